"""`discreet epsilon`: computes the privacy cost of a described release. `discreet calibrate`: finds the
noise, number of steps or sampling rate for a given cost.

No data is read, and nothing is charged.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import _registry
from ... import accounting as acc
from ..._errors import InvalidInput, Unsupported
from ..._round import UpperAmount
from ..._text import visible
from ...accounting.pricing import Comparison
from ...session.terms import values
from . import forms
from .forms import EventOptions
from .options import FORCE, JSON
from .parser import Named, flag

KIND = Annotated[str | None, typer.Argument(help=f"One of: {', '.join(forms.KINDS)}.", show_default=False)]


@dataclass(frozen=True, kw_only=True)
class EventWords:
    """The options that describe an event, as they are written."""

    noise_multiplier: Annotated[
        str | None, "Noise deviation (Gaussian) or scale (Laplace), divided by the sensitivity."
    ] = None
    scale: Annotated[str | None, "Scale of discrete Laplace noise."] = None
    variance: Annotated[str | None, "Variance of discrete Gaussian noise."] = None
    sensitivity: Annotated[int, "How far one unit moves the integer that discrete noise is added to."] = 1
    each: Annotated[str | None, "Epsilon of one release (pure, randomized-response, exponential)."] = None
    categories: Annotated[int, "Number of possible answers of randomized response."] = 2
    times: Annotated[int | None, "How often it is released; for dpsgd the number of steps."] = None
    rate: Annotated[str | None, "Every unit is in a sample with this probability (Poisson sampling)."] = None
    n: Annotated[int | None, "dpsgd: number of units, as declared."] = None
    batch: Annotated[int | None, "dpsgd: expected batch size."] = None
    epochs: Annotated[str | None, "dpsgd: passes over the data."] = None
    neighbors: Annotated[str, "add_remove, replace or zero_out."] = "add_remove"

    @property
    def exact(self) -> EventOptions:
        """Return them with numbers instead of words; decimals are read exactly."""
        words = values(self)
        numbers = ("noise_multiplier", "scale", "variance", "each", "rate", "epochs")
        return EventOptions(**words | {name: forms.exact(words[name], flag(name)) for name in numbers})


@dataclass(frozen=True, kw_only=True)
class CalibrationTarget:
    """What `discreet calibrate` is to reach."""

    epsilon: Annotated[float | None, Named("Target: epsilon at `delta`.", "--epsilon")] = None
    delta: Annotated[float | None, "Target: delta at `epsilon`."] = None
    advantage: Annotated[float | None, "Target: an attacker's largest TPR - FPR."] = None
    tpr: Annotated[float | None, "Target: an attacker's largest true-positive rate at `fpr`."] = None
    fpr: Annotated[float | None, "Target: the false-positive rate of `tpr`."] = None


ACCOUNTANT = typer.Option(
    "tightest",
    "--accountant",
    help="tightest, pld, rdp, zcdp, gdp, optimal, advanced or basic.",
)


def epsilon(
    kind: KIND = None,
    *,
    delta: float = typer.Option(
        ..., help="The additive delta beside epsilon; far below one over the number of people."
    ),
    words: EventWords,
    event: str = typer.Option(
        None, "--event", help="A JSON description of an event: a file, or - for standard input."
    ),
    accountant: str = ACCOUNTANT,
    compare: bool = typer.Option(False, "--compare", help="Every accountant's epsilon, side by side."),
    as_json: bool = JSON,
    plot: Path = typer.Option(
        None, "--plot", help="Save a picture: cost over steps, orders, trade-off, profile."
    ),
    force: bool = FORCE,
) -> None:
    options = words.exact
    plot = forms.picture(plot)  # type: ignore[assignment]
    # `data`: the picture is never written over the file that describes the event.
    forms.check(plot, force=force, data=[] if event in (None, "-") else [event], makes_folder=True)
    priced_event = _event(kind, event, options)
    value = acc.epsilon(priced_event, delta=delta, accountant=accountant)
    # The lower bound shows how tight the epsilon is; beside a looser accountant that was asked for, it is
    # left out.
    lower = _lower(priced_event, delta) if accountant in ("tightest", "pld") else None
    table = acc.compare(priced_event, delta=delta) if compare else None
    if plot is not None:
        # imported here: matplotlib is optional, and slow to load
        from .. import plots

        plots.overview(priced_event, delta=delta, path=plot)
    if as_json:
        _print_json(
            event=priced_event.to_json(),
            delta=delta,
            accountant=accountant,
            epsilon=value,
            lower=lower,
            **({"compare": table.as_dict()} if table else {}),
            **({"plot": str(plot)} if plot else {}),
        )
        return
    console = Console(highlight=False)
    console.print(_epsilon_in_words(value, delta, accountant, lower), soft_wrap=True)
    if table is not None:
        console.print(_table(table))
    if plot is not None:
        # as Text: brackets in a path are not markup
        console.print(Text.assemble(("picture saved as ", "dim"), visible(str(plot))), soft_wrap=True)


def calibrate(
    kind: KIND = None,
    *,
    find: str = typer.Option("noise", "--find", help="What to solve for: noise, times or rate."),
    goal: CalibrationTarget,
    words: EventWords,
    accountant: str = ACCOUNTANT,
    as_json: bool = JSON,
) -> None:
    if kind is None:
        raise InvalidInput(f"say what to calibrate: one of {', '.join(forms.KINDS)}.")
    # `settle` refuses options that the kind does not take, and turns those of dpsgd into a rate and steps.
    options = forms.settle(kind, words.exact)
    option = _solved_option(kind, find)
    target = asdict(goal)
    solution = _solve(kind, options, option, accountant, target)
    priced_event = forms.event(kind, _with_option(options, option, solution))
    achieved = _achieved(priced_event, target, accountant)
    if as_json:
        _print_json(
            **{option: solution, "event": priced_event.to_json(), "accountant": accountant, **achieved}
        )
        return
    console = Console(highlight=False)
    name = "steps" if kind == "dpsgd" and option == "times" else option.replace("_", " ")
    console.print(
        f"[bold]{name} = {solution if option == 'times' else f'{solution:.6g}'}[/] "
        f"{_batch_of(kind, options, option, solution)}{_solution_in_words(option, achieved)}",
        soft_wrap=True,
    )


def _event(kind: str | None, source: str | None, options: EventOptions) -> acc.Event:
    """Return the event of a plain form (`kind`), or of the JSON file `source`: exactly one of the two is
    given. Of the options, only --times is read for a file."""
    if (kind is None) == (source is None):
        raise InvalidInput(f"say what to price: one of {', '.join(forms.KINDS)}, or --event FILE (not both).")
    if kind is not None:
        return forms.event(kind, options)
    assert source is not None
    event = forms.described(source)
    return event if options.times is None else event.repeated(options.times)


def _lower(event: acc.Event, delta: float) -> float | None:
    """Return a lower bound on the event's epsilon at `delta`; None at a delta of 0 or 1, and where no
    accountant has one."""
    if not 0 < delta < 1:
        return None
    try:
        return acc.bounds(event, delta=delta)[0]
    except Unsupported:
        return None


def _epsilon_in_words(value: float, delta: float, accountant: str, lower: float | None) -> str:
    """Return what an epsilon means in words; epsilon is rounded up, the lower bound `lower` down."""
    by = "" if accountant == "tightest" else f" by the {accountant} accountant"
    if math.isinf(value):
        return f"[bold]epsilon is infinite[/] at delta = {delta:g}{by}: no finite bound holds."
    factor = _factor(value)
    tight = f" No accountant can prove less than {_six_digits(lower, up=False):.6g}." if lower else ""
    head = f"[bold]epsilon = {_six_digits(value, up=True):.6g}[/] at delta = {delta:g}{by}: "
    if delta == 0:
        return head + (
            f"whatever an onlooker thinks the odds are that one unit is in the data, all releases together "
            f"move these odds by at most a factor of {factor}.{tight}"
        )
    # With delta > 0 a sentence about odds would be false: they may change by more than e^epsilon with a
    # probability above delta (docs/explain.md).
    return head + (
        f"a test that says a unit is in the data, and is wrong with probability x where it is not, is right "
        f"with probability at most {factor} x + {delta:g} where it is, after all releases together.{tight}"
    )


def _factor(epsilon: float) -> str:
    """Return e^epsilon with three digits, rounded up (by the format of `UpperAmount`).

    Below epsilon 1, the three digits are those of e^epsilon - 1; from epsilon 20 on, those of the exponent.

    >>> _factor(0.001), _factor(1.0), _factor(1e-9)
    ('1.00101', '2.72', '(1 + 1.01e-09)')
    """
    if epsilon >= 20:
        return f"e^{UpperAmount(epsilon):.3g}"
    if epsilon >= 1 or epsilon == 0:
        return f"{UpperAmount(math.exp(epsilon)):.3g}"
    above_one = f"{UpperAmount(math.expm1(epsilon)):.3g}"
    return f"{1 + float(above_one):.12g}" if epsilon > 1e-6 else f"(1 + {above_one})"


def _table(comparison: Comparison) -> Table:
    """Return a table with the epsilon of every accountant, the tightest first; those without a theorem for
    the event come last."""
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    table.add_column("accountant")
    table.add_column("epsilon", justify="right")
    table.add_column("how")
    tightest = comparison.best
    for row in sorted((r for r in comparison.rows if r.epsilon is not None), key=lambda r: r.epsilon or 0.0):
        style = "bold" if row.epsilon == tightest.epsilon else ""
        description = f"{row.title}, {row.note}" if row.note else row.title
        table.add_row(row.accountant, _number(row.epsilon), description, style=style)
    for row in comparison.rows:
        if row.epsilon is None:
            table.add_row(row.accountant, "-", row.note, style="dim")
    return table


def _number(value: float | None) -> str:
    """Return an epsilon with six digits, rounded up."""
    return "infinite" if value is None or math.isinf(value) else f"{_six_digits(value, up=True):.6g}"


def _print_json(**fields: Any) -> None:
    """Print fields as one JSON object; fractions are written as their JSON descriptions (`_registry`). A
    dict, such as the description of an event, is written as it is."""
    encoded = {
        key: _registry.to_json(value) if not isinstance(value, dict) else value
        for key, value in fields.items()
    }
    typer.echo(json.dumps(encoded, default=_registry.to_json))


def _solved_option(kind: str, find: str) -> str:
    """Return the name of the option that --find asks for; for noise it depends on the kind of event. "steps"
    is taken as another word for "times"."""
    names = {"noise": forms.kind(kind).noise, "times": "times", "steps": "times", "rate": "rate"}
    if find not in names:
        raise InvalidInput(f"--find must be noise, times or rate, got {find!r}.")
    return names[find]


def _with_option(options: EventOptions, option: str, value: float) -> EventOptions:
    """Return the options with one of them replaced; a float is taken as the decimal that it prints as."""
    change: dict[str, Any] = {option: int(value) if option == "times" else Fraction(repr(value))}
    return replace(options, **change)


def _solve(kind: str, options: EventOptions, option: str, accountant: str, target: dict[str, Any]) -> float:
    """Return the value of `option` that reaches the target, rounded to six digits towards safety.

    A rate r is searched through its odds r / (1 - r), which have no upper limit.
    """
    by_odds = option == "rate"
    solution = acc.calibrate(
        lambda x: forms.event(kind, _with_option(options, option, x / (1 + x) if by_odds else x)),
        accountant=accountant,
        integer=option == "times",
        **target,
    )
    if option == "times":
        return int(solution)
    if by_odds:
        return _six_digits(solution / (1 + solution), up=False)
    # `grows`: whether a larger value of the option is more private.
    return _six_digits(float(solution), up=forms.kind(kind).grows)


def _six_digits(value: float, *, up: bool) -> float:
    """Return a number with six digits, rounded up or down.

    Callers round towards safety: costs and noise up; lower bounds, rates and the epsilon of one release down.
    """
    if value <= 0 or math.isinf(value):
        return value
    step = 10.0 ** (math.floor(math.log10(value)) - 5)
    rounded = float(f"{value:.6g}")
    if (up and rounded < value) or (not up and rounded > value):
        rounded = float(f"{rounded + (step if up else -step):.6g}")
    return rounded


def _achieved(event: acc.Event, target: dict[str, float | None], accountant: str) -> dict[str, float]:
    """Return what the solution reaches, in the terms of the target: (epsilon, delta), an advantage, or (tpr,
    fpr)."""
    if target["delta"] is not None:
        delta = target["delta"]
        return {"epsilon": acc.epsilon(event, delta=delta, accountant=accountant), "delta": delta}
    if target["advantage"] is not None:
        # An attacker's largest advantage is the total variation distance, which is delta at epsilon 0.
        return {"advantage": acc.delta(event, epsilon=0.0, accountant=accountant)}
    fpr = target["fpr"]
    assert fpr is not None
    return {"tpr": 1 - acc.tradeoff(event, alpha=fpr, accountant=accountant), "fpr": fpr}


def _solution_in_words(option: str, achieved: dict[str, float]) -> str:
    """Return the sentence after the solution: that it is the best within the target, and what it reaches."""
    superlatives = {
        "times": "as often as possible",
        "rate": "the largest rate",
        "each": "the largest epsilon of one release",
    }
    superlative = superlatives.get(option, "the least noise")
    facts = ", ".join(f"{name} = {_six_digits(value, up=True):.6g}" for name, value in achieved.items())
    return f"is {superlative} within the target; it gives {facts}."


def _batch_of(kind: str, options: EventOptions, option: str, solution: float) -> str:
    """Return the expected batch size, in parentheses, of a solution that is a sampling rate of DP-SGD on a
    known number of units; for any other solution an empty text."""
    if kind == "dpsgd" and option == "rate" and options.n is not None:
        return f"(an expected batch of {math.floor(solution * options.n)} of {options.n}) "
    return ""
