"""`discreet collect plan | randomize | estimate | browser | compare`: the local model on the shell; and
`discreet collect survey.toml`, a survey in the browser.
"""

from __future__ import annotations

import json
import shutil
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from ..._errors import DescriptionError, InvalidInput, MissingExtra
from .forms import exact


class SurveyGroup(TyperGroup):
    """Takes the name of a survey file for the command `survey`."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, ["survey", *args] if args[0].endswith(".toml") else args)


collect = typer.Typer(
    cls=SurveyGroup,
    help="Ask people who trust nobody: each report is private before it leaves them.",
    no_args_is_help=True,
    add_completion=False,
)

EPSILON = typer.Option(..., "--epsilon", "-e", help="What one report may tell about the one who gives it.")
BITS = typer.Option(None, "--bits", help="How long a report may be.")
JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")
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
) -> None:
    """Turn values to private reports: what a device would send. The first line describes the randomizer, each
    further one is a report.

    [dim]discreet collect randomize colors.txt --categories red,green,blue --epsilon 1 -o reports.jsonl[/]
    """
    from ...sampling import Entropy

    lines = (sys.stdin.read() if str(values) == "-" else _text(values)).splitlines()
    if not lines:
        raise InvalidInput("there are no values. Nothing was drawn.")
    randomizer, labels = _randomizer(epsilon, categories, between, bits, len(lines))
    reports = randomizer.respond(_encode_values(lines, labels), entropy=Entropy())
    text = (
        "\n".join([json.dumps(_header(randomizer, labels)), *(json.dumps(report) for report in reports)])
        + "\n"
    )
    if out is None:
        typer.echo(text, nl=False)
        return
    out.write_text(text)
    typer.echo(
        f"{len(lines)} reports, each epsilon = {float(randomizer.epsilon):g} for the one who gave it: {out}"
    )


@collect.command()
def estimate(
    reports: Path = typer.Argument(
        ..., help="A file that `discreet collect randomize` wrote, or lines of the same form."
    ),
    confidence: float = typer.Option(0.95, "--confidence", help="With which all errors hold at once."),
    consistent: bool = typer.Option(
        False, "--consistent", help="Shares that are not negative and add up to one."
    ),
    as_json: bool = JSON,
) -> None:
    """Estimate shares (or a mean) from reports. It costs nothing: everything private happened before."""
    from ... import local

    randomizer, labels, rows = _read_reports(reports)
    release = randomizer.estimate(rows)
    error = release.error(confidence)
    if labels is None:
        values, names = [float(release.value)], ["mean"]
    else:
        shares = local.consistent(release.value) if consistent else release.value
        values, names = [float(v) for v in shares], labels
    if as_json:
        answer = {
            "reports": len(rows),
            "epsilon": float(randomizer.epsilon),
            "error": float(error),
            "confidence": confidence,
        }
        typer.echo(json.dumps(answer | {"estimates": dict(zip(names, values, strict=True))}))
        return
    table = Table("value", "estimate", f"error, {confidence:.0%}")
    for name, value in zip(names, values, strict=True):
        table.add_row(name, f"{value:.4g}", f"{float(error):.2g}")
    Console().print(table)


@collect.command()
def browser(
    folder: Path = typer.Argument(..., help="Where the script and its description go."),
    epsilon: str = EPSILON,
    categories: str = CATEGORIES,
    between: str = BETWEEN,
    people: int = typer.Option(10_000, "--people", help="About how many people will report."),
    bits: int = BITS,
) -> None:
    """Write the client for a web page: discreet-local.mjs, and description.json for its `respond`."""
    from ... import local

    randomizer, labels = _randomizer(epsilon, categories, between, bits, people)
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(local.SCRIPT, folder / local.SCRIPT.name)
    description = {"client": randomizer.client(), "header": _header(randomizer, labels)}
    (folder / "description.json").write_text(json.dumps(description) + "\n")
    typer.echo(f"{folder / local.SCRIPT.name} and {folder / 'description.json'} are written")


@collect.command()
def compare(
    out: Path = typer.Option(Path("local.png"), "--out", "-o", help="Where the picture goes."),
    epsilon: str = typer.Option("1", "--epsilon", "-e"),
    runs: int = typer.Option(50, "--runs", help="How often each count is repeated."),
) -> None:
    """Measure what trusting nobody costs: the error of one count, local, shuffled and central, for a
    hundred to 100,000 people.
    """
    from ...sampling import Entropy
    from .. import local_plots

    counts = (100, 1000, 10_000, 100_000)
    price = float(_number(epsilon))
    curves = local_plots.measure(epsilon=price, counts=counts, runs=runs, entropy=Entropy())
    table = Table("people", "central", "shuffled", "local")
    for i, people in enumerate(counts):
        table.add_row(f"{people}", *(f"{curves[name][i]:.3g}" for name in ("central", "shuffled", "local")))
    Console().print(table)
    typer.echo(f"picture saved as {local_plots.against_central(out, counts, curves, price)}")


@collect.command()
def survey(
    file: Path = typer.Argument(
        ..., help="The survey: its questions, and what each may cost (docs/server.md)."
    ),
    host: str = typer.Option("127.0.0.1", "--host", help="The address to listen at."),
    port: int = typer.Option(8080, "--port", min=0, max=65535, help="The port to listen at."),
    name: list[str] = typer.Option([], "--name", help="A host name under which browsers reach it."),
) -> None:
    """Serve a survey: each answer is randomized on the device, and only the report is sent. Reports are kept
    beside the file."""
    try:
        import uvicorn

        from ..web.survey import build_survey
    except ImportError:
        raise MissingExtra.of("server", "a survey page needs FastAPI and uvicorn") from None
    app = build_survey(file, hosts=(*name, host))
    typer.echo(f"the survey is at http://{host}:{port}/ and its results at /results/{app.state.results}")
    uvicorn.run(app, host=host, port=port, access_log=False, log_level="warning", server_header=False)


def _number(text: str, option: str = "--epsilon") -> Fraction:
    number = exact(text, option)
    assert number is not None
    return number


def _randomizer(
    epsilon: str, categories: str | None, between: str | None, bits: int | None, people: int
) -> tuple[Any, list[str] | None]:
    """Return the randomizer that the options describe, and its categories; None for numbers."""
    from ... import local

    if (categories is None) == (between is None):
        raise InvalidInput("give either --categories red,green,blue or --between 0,120. Nothing was drawn.")
    if between is not None:
        bounds = between.split(",")
        if len(bounds) != 2:
            raise InvalidInput(
                f"--between takes two bounds, such as 0,120; got {between!r}. Nothing was drawn."
            )
        return local.HybridMean(
            epsilon=_number(epsilon),
            low=_number(bounds[0], "--between"),
            high=_number(bounds[1], "--between"),
        ), None
    labels = [label.strip() for label in str(categories).split(",")]
    if len(set(labels)) < len(labels) or "" in labels:
        raise InvalidInput("--categories must differ from each other and not be empty. Nothing was drawn.")
    return local.best(epsilon=_number(epsilon), domain=len(labels), people=people, bits=bits), labels


def _encode_values(lines: list[str], labels: list[str] | None) -> Any:
    """Return numbers, or the indices of values in the list of categories; what is none is refused without
    being repeated."""
    import numpy as np

    if labels is None:
        try:
            return np.array([float(line) for line in lines])
        except ValueError:
            raise InvalidInput("some lines are no numbers. Nothing was drawn.") from None
    index_of = {label: i for i, label in enumerate(labels)}
    codes = [index_of.get(line.strip(), -1) for line in lines]
    if -1 in codes:
        raise InvalidInput(
            "some lines are none of the categories. Nothing was drawn. Add a category such as other, "
            "or correct the file."
        )
    return np.array(codes)


def _header(randomizer: Any, labels: list[str] | None) -> dict[str, Any]:
    from ..._registry import to_json

    return {"randomizer": to_json(randomizer), "categories": labels}


def _read_reports(path: Path) -> tuple[Any, list[str] | None, list[Any]]:
    """Return the randomizer, its categories and the reports of a file."""
    from ... import local
    from ..._registry import from_json

    try:
        header, *rows = [json.loads(line) for line in _text(path).splitlines() if line.strip()]
        randomizer, labels = from_json(header["randomizer"]), header["categories"]
    except (ValueError, TypeError, KeyError, DescriptionError):
        raise InvalidInput(
            f"{str(path)!r} is no file of reports: its first line must describe the randomizer."
        ) from None
    labels_valid = labels is None or (
        isinstance(labels, list) and all(isinstance(label, str) for label in labels)
    )
    if (
        not isinstance(randomizer, local.LocalRandomizer)
        or not labels_valid
        or len(labels or []) != (getattr(randomizer, "domain", 0) if labels else 0)
    ):
        raise InvalidInput(
            f"the first line of {str(path)!r} does not describe a randomizer and its categories."
        )
    return randomizer, labels, rows


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as problem:
        raise InvalidInput(
            f"{str(path)!r} cannot be read: {type(problem).__name__}. Nothing was drawn."
        ) from None
