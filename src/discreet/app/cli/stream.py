"""`discreet stream start | learn | feed | show | factors`: keeps a count that is published again at every
tick (a step of time, such as a day), or an online learner that decides after every round."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Annotated, Any

import typer

from ... import _require
from ..._errors import InvalidInput
from ...curator.policy import check_epsilon
from ...session.terms import OnlineTerms, StreamTerms
from .options import CONFIDENCE, DATA, JSON, LARGE_EPSILON, SQL, Opening, TableFiles
from .parser import Only, Shell
from .query import print_note, sql_text

stream = Shell(no_args_is_help=True)

NUMBER = typer.Option(
    None, "--stream", help="Which stream, by the number of its charge. By default the newest."
)
# the options that the shell has of a stream, and of a learner
STARTING = "epsilon delta horizon clock participations separation window decay restart strategy rows groups"
LEARNING = "epsilon delta learner clip batch ridge horizon clock participations strategy"


@stream.command()
def start(
    data: str = DATA,
    sql: str = SQL,
    *,
    terms: Annotated[StreamTerms, Only(STARTING, required="epsilon")],
    preview: bool = typer.Option(
        False, "--preview", help="Print the error without starting; nothing is charged."
    ),
    large_epsilon: bool = LARGE_EPSILON,
    opening: Annotated[Opening, Only("schema ledger analyst")],
    as_json: bool = JSON,
) -> None:
    """Start a stream on a table whose ledger is open (discreet init), and charge its whole epsilon."""
    from ...session.streams import Stream, stream_counter

    check_epsilon(terms.epsilon, large_epsilon=large_epsilon)
    session = opening.session(data)
    counter = stream_counter(session, sql_text(sql), terms)
    summary: dict[str, Any] = {
        "strategy": type(counter.strategy).__name__,
        "level": counter.level,
        "horizon": counter.horizon,
        "error": counter.error(0.95),
    }
    if not preview:
        summary["stream"] = Stream.begin(session, counter).number
    if as_json:
        print(json.dumps(summary))
        return
    end = "without end" if counter.horizon is None else f"of at most {counter.horizon:,} ticks"
    status = "not started, nothing charged" if preview else f"{summary['stream']} is started"
    print_note(f"stream {status}: {end}, at {counter.level} level, by {summary['strategy']}")
    print_note(f"each release is within {summary['error']:,.4g} with 95% confidence, at the worst tick")
    print_note(f"used so far: {session.spent:.4g}; left: {max(0.0, session.remaining):.4g}")


@dataclass(frozen=True, kw_only=True)
class DecisionSet:
    """What an online learner decides, as the shell writes it."""

    loss: Annotated[str, "squared, logistic, distance or linear."]
    features: Annotated[str, "Columns of numbers, with commas between them."]
    target: Annotated[str | None, "What is predicted, for squared and logistic."] = None
    radius: Annotated[float, "Radius of the L2 ball that contains the decisions."] = 1.0


@stream.command()
def learn(
    data: str = DATA,
    *,
    decision: DecisionSet,
    terms: Annotated[OnlineTerms, Only(LEARNING, required="epsilon")],
    preview: bool = typer.Option(
        False, "--preview", help="Print the regret bound without starting; nothing is charged."
    ),
    large_epsilon: bool = LARGE_EPSILON,
    opening: Annotated[Opening, Only("schema ledger analyst")],
    as_json: bool = JSON,
) -> None:
    """Start an online learner, and charge its whole epsilon. `feed` gives it a round; `show` prints its
    decisions."""
    from ...session.streams import OnlineStream, online_learner

    check_epsilon(terms.epsilon, large_epsilon=large_epsilon)
    session = opening.session(data)
    loss = _loss(decision.loss, decision.features, decision.target)
    online = online_learner(session, loss, replace(terms, space=_decision_set(terms.learner, decision)))
    summary: dict[str, Any] = {
        "learner": online.learner,
        "level": online.level,
        "horizon": online.horizon,
        "regret_bound": online.regret_bound(),
    }
    if not preview:
        summary["stream"] = OnlineStream.begin(session, online).number
    if as_json:
        print(json.dumps(summary))
        return
    status = "not started, nothing charged" if preview else f"{summary['stream']} is started"
    print_note(f"learner {status}: {online.learner}, {online.horizon:,} rounds, at {online.level} level")
    print_note(f"its regret over all rounds is expected to be below {summary['regret_bound']:,.4g}")
    print_note(f"used so far: {session.spent:.4g}; left: {max(0.0, session.remaining):.4g}")


def _loss(name: str, features: str, target: str | None) -> Any:
    """Return the loss of this name on columns of numbers."""
    from ...streaming.losses import LOSSES

    _require.one_of(tuple(LOSSES), loss=name)
    columns = tuple(part.strip() for part in features.split(",") if part.strip())
    if name in ("distance", "linear"):
        if target is not None:
            raise InvalidInput(f"the loss {name} has no target. Leave --target out.")
        return LOSSES[name](columns=columns)
    if target is None:
        raise InvalidInput(f"the loss {name} needs --target, a column.")
    return LOSSES[name](target=target, features=columns)


def _decision_set(learner: str, decision: DecisionSet) -> Any:
    """Return the L2 ball that contains the decisions; None for experts, whose decisions are probabilities."""
    from ...streaming import Ball

    if learner == "experts" or (learner == "auto" and decision.loss == "linear"):
        return None
    # Only the dimension of this loss is read, and it does not depend on the target.
    target = "" if decision.loss in ("squared", "logistic") else None
    return Ball(_loss(decision.loss, decision.features, target).dimension, decision.radius)


@stream.command()
def feed(
    data: str = DATA,
    rows_from: str = typer.Option(
        None,
        "--rows-from",
        help="A file (or database.duckdb::table) with the rows of this tick alone, where there is no clock.",
    ),
    tick: str = typer.Option(None, "--tick", help="The tick's name, fed only once. By default its number."),
    number: int = NUMBER,
    ticks: int = typer.Option(
        1, "--ticks", min=1, help="With a clock: close so many ticks, one after the other."
    ),
    *,
    files: TableFiles,
    as_json: bool = JSON,
) -> None:
    """Close the next tick, and publish the count so far, or a learner's decision. Free: the stream was paid
    for at its start."""
    from ...session.streams import find_stream
    from ..requests import data_of

    session = files.session(data)
    running = find_stream(session, number)
    has_clock = running.counter.clock is not None
    if not has_clock and rows_from is None:
        raise InvalidInput(
            "this stream has no clock: each tick has rows of its own, and every row is fed once. Nothing was "
            "fed. Name the rows of this tick: --rows-from today.csv."
        )
    if ticks > 1 and (rows_from is not None or tick is not None):
        raise InvalidInput(
            "--ticks closes several ticks of a clock; --rows-from and --tick are about one tick. Nothing was "
            "fed. Leave --ticks out."
        )
    tick_rows = None if rows_from is None else data_of(rows_from)
    for _ in range(ticks):
        running.feed(tick_rows, tick=tick)
        _print_tick(running, as_json)


@stream.command()
def show(
    data: str = DATA,
    number: int = NUMBER,
    confidence: float = CONFIDENCE,
    *,
    files: TableFiles,
    as_json: bool = JSON,
) -> None:
    """Show what a stream has published so far, with its error (for a learner, that of its noisy sum of
    gradients). Free."""
    from ...session.streams import find_stream

    session = files.session(data)
    running = find_stream(session, number)
    history = running.history
    errors = [running.counter.error(confidence, t) for t in range(1, len(history) + 1)]
    if as_json:
        print(json.dumps({"stream": running.number, "values": _to_json(history), "errors": errors}))
        return
    print(f"stream {running.number}: {len(history)} ticks so far{_what(running.counter)}")
    for t, (value, error) in enumerate(zip(history, errors, strict=True), 1):
        print(f"{t:>8}  {_format_value(value)}  {_format_error(running, error)}")


@stream.command()
def factors(
    steps: int = typer.Option(1024, "--steps", help="How many ticks the stream has."),
    as_json: bool = JSON,
) -> None:
    """Compare strategies by the error of running sums over so many ticks: the largest, and the root mean
    square. The strategy "optimal" is left out where there are too many ticks to compute it."""
    from ...streaming import NAMES, error_factors
    from ...streaming.factors import MAX_OPTIMAL

    names = [name for name in NAMES if name != "optimal" or steps <= MAX_OPTIMAL]
    values = {name: error_factors(name, steps) for name in names}
    if as_json:
        print(json.dumps({name: {"max": v.max, "rms": v.rms} for name, v in values.items()}))
        return
    for name, value in values.items():
        print(f"{name:<12} max {value.max:>10.5g}  rms {value.rms:>10.5g}  minimizes {value.minimizes}")


def _print_tick(running: Any, as_json: bool) -> None:
    """Print the newest release of a stream, with its error."""
    value, error = running.value, running.error()
    if as_json:
        print(
            json.dumps(
                {"stream": running.number, "tick": running.steps, "value": _to_json(value), "error": error}
            )
        )
        return
    print(f"tick {running.steps}: {_format_value(value)} {_format_error(running, error)}")


def _what(counter: Any) -> str:
    """Say that each release of a counter is the total so far; "" for a learner, and where old rows leave."""
    forgets = [getattr(counter, name, True) for name in ("window", "decay", "restart")]
    return "" if any(forgets) else "; each line is the total so far"


def _to_json(value: Any) -> Any:
    """Return a release, or a list of releases, as `json.dumps` takes it. A release is a number, a vector, or
    a mapping from group to number."""
    if isinstance(value, list):
        return [_to_json(v) for v in value]
    if isinstance(value, dict):
        return {str(key): v for key, v in value.items()}
    return value.tolist() if hasattr(value, "tolist") else value


def _format_value(value: Any) -> str:
    """Return a release as text: a number, a vector, or a number per group."""
    if isinstance(value, dict):
        return ", ".join(f"{key}: {v:,.1f}" for key, v in value.items())
    if hasattr(value, "tolist"):
        return "(" + ", ".join(f"{v:.4g}" for v in value.tolist()) + ")"
    return f"{value:,.1f}"


def _format_error(running: Any, error: float) -> str:
    """Return the error of a release as text. That of a learner is not the error of its decision, but that of
    one entry of the noisy sum of gradients, divided by the declared batch (`OnlineLearner.error`)."""
    from ...session.streams import OnlineStream

    if isinstance(running, OnlineStream):
        return f"(sum of gradients ± {error:,.4g})"
    return f"± {error:,.4g}"
