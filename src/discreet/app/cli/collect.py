"""`discreet collect plan | randomize | estimate | browser`: local differential privacy on the
command line; and `discreet collect survey.toml`, a survey in the browser.

Each command imports the library when it is run, so that --help does not wait for it.
"""

from __future__ import annotations

import json
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..._errors import DescriptionError, InvalidInput, MissingExtra
from ..._text import visible
from . import forms
from .forms import exact
from .options import CERTIFICATE, FORCE, JSON, KEY
from .parser import CommandGroup, Shell


class SurveyGroup(CommandGroup):
    """Runs `survey FILE` for `discreet collect FILE` where the file ends in .toml."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name; `survey` if the first of them is a .toml file."""
        return super().resolve_command(ctx, ["survey", *args] if args[0].endswith(".toml") else args)


collect = Shell(cls=SurveyGroup, no_args_is_help=True)

EPSILON = typer.Option(..., "--epsilon", "-e", help="The epsilon of one report, for the person who gives it.")
BITS = typer.Option(None, "--bits", help="The largest length of a report, in bits.")
CATEGORIES = typer.Option(None, "--categories", help="The possible values, separated by commas.")
BETWEEN = typer.Option(
    None, "--between", help="For numbers: their bounds, such as 0,120. The mean is estimated."
)


@collect.command()
def plan(
    epsilon: str = EPSILON,
    domain: int = typer.Option(..., "--domain", help="How many possible values there are."),
    people: int = typer.Option(..., "--people", help="How many people will report."),
    bits: int = BITS,
    as_json: bool = JSON,
) -> None:
    """Compare the frequency oracles before anybody is asked: error and length of a report, best first."""
    from ... import local

    offers = local.predictions(epsilon=_number(epsilon), domain=domain, people=people, bits=bits)
    rows = [
        {
            "oracle": type(o.oracle).__name__,
            "standard_error": o.mean_squared_error**0.5,
            "error_95": o.oracle.error(people),
            "bits": o.bits,
        }
        for o in offers
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("oracle", "standard error of a share", "largest error of any, 95%", "bits per report")
    for row in rows:
        table.add_row(
            row["oracle"], f"{row['standard_error']:.3g}", f"{row['error_95']:.3g}", str(row["bits"])
        )
    Console().print(table)


@collect.command()
def randomize(
    values: Path = typer.Argument(
        ..., help="A text file with one value per line, each of another person; - reads standard input."
    ),
    epsilon: str = EPSILON,
    categories: str = CATEGORIES,
    between: str = BETWEEN,
    bits: int = BITS,
    out: Path = typer.Option(None, "--out", "-o", help="Where the reports go. By default standard output."),
    force: bool = FORCE,
) -> None:
    """Turn values into private reports, as a device would send them. The first line describes the randomizer,
    each further line is a report.

    [dim]discreet collect randomize colors.txt --categories red,green,blue --epsilon 1 -o reports.jsonl[/]
    """
    from ...sampling import Entropy

    forms.check(out, force=force, data=[values])
    lines = (sys.stdin.read() if str(values) == "-" else _text(values)).splitlines()
    if not lines:
        raise InvalidInput("there are no values.")
    randomizer, labels = _randomizer(epsilon, categories, between, bits, len(lines))
    reports = randomizer.respond(_encode_values(lines, labels), entropy=Entropy())
    text = (
        "\n".join([json.dumps(_header(randomizer, labels)), *(json.dumps(report) for report in reports)])
        + "\n"
    )
    if out is None:
        typer.echo(text, nl=False)
        return
    forms.write(out, text, force=force)
    typer.echo(
        f"{len(lines)} reports, each epsilon = {float(randomizer.epsilon):g} for the person who gave it: "
        f"{visible(str(out))}"
    )


@collect.command()
def estimate(
    reports: Path = typer.Argument(
        ..., help="A file that `discreet collect randomize` wrote, or lines of the same form."
    ),
    confidence: float = typer.Option(
        0.95, "--confidence", help="The probability with which all errors hold at once."
    ),
    consistent: bool = typer.Option(
        False, "--consistent", help="Change the shares so that none is negative and they add up to one."
    ),
    as_json: bool = JSON,
) -> None:
    """Estimate shares (or a mean) from reports. It costs nothing: the reports are private already."""
    from ... import local

    randomizer, labels, report_list = _read_reports(reports)
    release = randomizer.estimate(report_list)
    error = release.error(confidence)
    if labels is None:
        values, names = [_mean(release.value, reports)], ["mean"]
    else:
        shares = local.consistent(release.value) if consistent else release.value
        values, names = [float(v) for v in shares], labels
    if as_json:
        answer = {
            "reports": len(report_list),
            "epsilon": float(randomizer.epsilon),
            "error": float(error),
            "confidence": confidence,
        }
        typer.echo(json.dumps(answer | {"estimates": dict(zip(names, values, strict=True))}))
        return
    table = Table("value", "estimate", f"error, {confidence:.0%}")
    for name, value in zip(names, values, strict=True):
        # Names come from the file of reports: as Text they are no markup, and cannot command the terminal.
        table.add_row(Text(visible(name)), f"{value:.4g}", f"{float(error):.2g}")
    Console().print(table)


@collect.command()
def browser(
    folder: Path = typer.Argument(..., help="Where the script and its description go."),
    epsilon: str = EPSILON,
    categories: str = CATEGORIES,
    between: str = BETWEEN,
    people: int = typer.Option(10_000, "--people", help="About how many people will report."),
    bits: int = BITS,
    force: bool = FORCE,
) -> None:
    """Write the client for a web page: discreet-local.mjs, and description.json for its `respond`."""
    from ... import local

    randomizer, labels = _randomizer(epsilon, categories, between, bits, people)
    script, description_file = folder / local.SCRIPT.name, folder / "description.json"
    for path in (script, description_file):
        forms.check(path, force=force, makes_folder=True)
    folder.mkdir(parents=True, exist_ok=True)
    forms.write(script, local.SCRIPT.read_text(encoding="utf-8"), force=force)
    description = {"client": randomizer.client(), "header": _header(randomizer, labels)}
    forms.write(description_file, json.dumps(description) + "\n", force=force)
    typer.echo(f"{visible(str(script))} and {visible(str(description_file))} are written")


@collect.command()
def survey(
    file: Path = typer.Argument(
        ..., help="The survey: its questions, and what each may cost (docs/server.md)."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen at."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="The port to listen at."),
    name: list[str] = typer.Option([], "--name", help="A host name under which browsers reach it."),
    certificate: Path = CERTIFICATE,
    key: Path = KEY,
    behind_tls: bool = typer.Option(
        False, "--behind-tls", help="A proxy in front speaks TLS, and limits what one client sends."
    ),
) -> None:
    """Serve a survey: each answer is randomized on the device, and only the report is sent. Reports are kept
    beside the file."""
    try:
        import uvicorn

        from ..web.survey import build_survey
        from .serve import check_tls
    except ImportError:
        raise MissingExtra.of("server", "a survey page needs FastAPI and uvicorn") from None
    check_tls(host, certificate, key, behind_tls)
    secure = bool(certificate or behind_tls)
    app = build_survey(file, hosts=(*name, host), secure=secure, proxy=behind_tls)
    scheme = "http" if certificate is None else "https"
    typer.echo(f"the survey is at {scheme}://{host}:{port}/ and its results at /results/{app.state.results}")
    uvicorn.run(
        app, host=host, port=port, access_log=False, log_level="warning", server_header=False,
        proxy_headers=False, ssl_certfile=certificate, ssl_keyfile=key,
    )  # fmt: skip


def _number(text: str, option: str = "--epsilon") -> Fraction:
    """Return the exact number of an option that was given."""
    number = exact(text, option)
    assert number is not None
    return number


def _randomizer(
    epsilon: str, categories: str | None, between: str | None, bits: int | None, people: int
) -> tuple[Any, list[str] | None]:
    """Return the randomizer that the options describe, and its categories, or None in their place for
    numbers.

    For categories it is the frequency oracle with the least error for so many `people`, among those whose
    reports have at most so many `bits`. For numbers neither is used.
    """
    from ... import local

    if (categories is None) == (between is None):
        raise InvalidInput("give either --categories red,green,blue or --between 0,120.")
    if between is not None:
        bounds = between.split(",")
        if len(bounds) != 2:
            raise InvalidInput(f"--between takes two bounds, such as 0,120; got {between!r}.")
        return local.HybridMean(
            epsilon=_number(epsilon),
            low=_number(bounds[0], "--between"),
            high=_number(bounds[1], "--between"),
        ), None
    labels = [label.strip() for label in str(categories).split(",")]
    if len(set(labels)) < len(labels) or "" in labels:
        raise InvalidInput("the categories must differ from each other, and none may be empty.")
    return local.best(epsilon=_number(epsilon), domain=len(labels), people=people, bits=bits), labels


def _encode_values(lines: list[str], labels: list[str] | None) -> Any:
    """Return the values as numbers, or as indices in the list of categories.

    A line that is neither is refused, and the message does not repeat it: it is somebody's private value.
    """
    import numpy as np

    if labels is None:
        try:
            return np.array([float(line) for line in lines])
        except ValueError:
            raise InvalidInput("some lines are no numbers. Correct the file.") from None
    index_of = {label: i for i, label in enumerate(labels)}
    codes = [index_of.get(line.strip(), -1) for line in lines]
    if -1 in codes:
        raise InvalidInput(
            "some lines are none of the categories. Add a category such as other, or correct the file."
        )
    return np.array(codes)


def _mean(value: Any, path: Path) -> float:
    """Return the estimate of a mean. Called where the first line of the file names no categories: an estimate
    that is not one number is refused."""
    try:
        return float(value)
    except TypeError:
        raise InvalidInput(
            f"the randomizer in the first line of {str(path)!r} has no categories, and its estimate is not "
            "one number. This command estimates a mean, or the shares of categories."
        ) from None


def _header(randomizer: Any, labels: list[str] | None) -> dict[str, Any]:
    """Return the first line of a file of reports: the randomizer and its categories."""
    from ..._registry import to_json

    return {"randomizer": to_json(randomizer), "categories": labels}


def _read_reports(path: Path) -> tuple[Any, list[str] | None, list[Any]]:
    """Return the randomizer, its categories (None for numbers) and the reports of a file."""
    from ... import local
    from ..._registry import from_json

    try:
        header, *report_list = [json.loads(line) for line in _text(path).splitlines() if line.strip()]
        randomizer, labels = from_json(header["randomizer"]), header["categories"]
    except (ValueError, TypeError, KeyError, RecursionError, DescriptionError):
        raise InvalidInput(
            f"{str(path)!r} is no file of reports: its first line must describe the randomizer."
        ) from None
    # A frequency oracle has a domain, and one category for each of its values; a mean has neither.
    domain = getattr(randomizer, "domain", None)
    labels_valid = (labels is None and domain is None) or (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels) and len(labels) == domain
    )
    if not isinstance(randomizer, local.LocalRandomizer) or not labels_valid:
        raise InvalidInput(
            f"the first line of {str(path)!r} does not describe a randomizer and its categories."
        )
    return randomizer, labels, report_list


def _text(path: Path) -> str:
    """Return the text of a file in UTF-8, without its byte-order mark."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(f"{str(path)!r} cannot be read: {type(problem).__name__}.") from None
