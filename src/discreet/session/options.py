"""Lists the options of a session's verbs, each once: its type, its default, its limits and what it is for.

A list is a dataclass. `takes` makes the signature of a method from it, `app.web.bodies` the fields of a
request, and `app.cli.options` the options of a command with their help. In a help, the name of another option
stands between backquotes.
"""

# Without `from __future__ import annotations`: the types of the fields are read.

import functools
import inspect
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from .._require import OPEN_PROBABILITY, POSITIVE, Limit, Real, a_float, at_least, at_most, checked, text
from ..curator import segments

P = ParamSpec("P")
Self = TypeVar("Self")
Lead = TypeVar("Lead")
Options = TypeVar("Options")
Result = TypeVar("Result")


class Served:
    """Stands on a type: what a server takes of it, as the arguments of pydantic's `Field`. Limits that keep
    absurd requests from its workers are chosen by hand."""

    def __init__(self, **field: Any) -> None:
        self.field = field


# How many rows or groups of one unit count; and a number of ticks.
Count = Annotated[int, at_least(1), Served(ge=1, le=10**9)]
Ticks = Annotated[int, Limit(a_float), Served(ge=1, le=10**7)]
Error = Annotated[float, Limit(a_float), Served(gt=0, le=1e300, allow_inf_nan=False)]
Delta = Annotated[float, Limit(a_float), Served(ge=0, lt=1)]
Share = Annotated[float, Limit(a_float), Served(gt=0, lt=1)]
Word = Annotated[str, Limit(text), Served(max_length=32)]
Noise = Annotated[str, Limit(text), Served(pattern="^(auto|laplace|gaussian)$")]
# The largest number of questions of one labeller. Measured: its noise is calibrated in 2 CPU-seconds; for
# 10**9 questions, minutes were not enough.
MAX_QUERIES = 10_000_000
Weights = Mapping[str, Real] | Sequence[tuple[str, Real]]


def says(help: str) -> Mapping[str, str]:
    """Return the metadata of a field that has this help."""
    return {"help": help}


# What several verbs say of the options that they share.
_PRICE = "Ask by price."
_RHO = "Ask by price, as zero-concentrated privacy."
_WITHIN = "Ask by accuracy: the least price that promises this error."
_ROWS = "How many rows of one person count in each group."
_GROUPS = "In how many groups one person counts."
_DELTA = "The delta of the question. By default a hundredth of the budget's."
_FRESH = "Pay for new noise even if the answer is in the ledger."
_NUMBER = "The number of a charge in the ledger: go on with what it has paid for."
_PARTICIPATIONS = "On how many ticks one person counts, where people have many rows."
_SEPARATION = "The least number of ticks from one participation of a person to the next. By default 1."
_CHECKPOINT = "Save the run here after each step."


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The price, or the accuracy, of a question in SQL."""

    epsilon: Real | None = field(default=None, metadata=says(_PRICE))
    rho: Real | None = field(default=None, metadata=says(_RHO))
    within: Error | None = field(default=None, metadata=says(_WITHIN))
    confidence: Share = field(
        default=0.95, metadata=says("The probability with which errors and `within` hold.")
    )
    delta: Delta | None = field(default=None, metadata=says(_DELTA))
    noise: Noise = field(default="auto", metadata=says("laplace, gaussian or auto."))
    rows: Count | None = field(default=None, metadata=says(_ROWS))
    groups: Count | None = field(default=None, metadata=says(_GROUPS))
    weights: Weights = field(
        default=(), metadata=says("How the price is divided between output columns, by their names.")
    )
    other: bool = field(
        default=False, metadata=says("Add one row with the sum of all groups that are not shown.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionTerms(Terms):
    """The options of a question in SQL."""

    fresh: bool = field(default=False, metadata=says(_FRESH))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTerms:
    """The price of several counting questions together."""

    epsilon: Real | None = field(default=None, metadata=says(_PRICE))
    rho: Real | None = field(default=None, metadata=says(_RHO))
    delta: Delta | None = field(default=None, metadata=says(_DELTA))
    rows: Count | None = field(
        default=None, metadata=says("How many rows of one person count in all questions together.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuestionTerms(WorkloadTerms):
    """The options of several counting questions together."""

    fresh: bool = field(default=False, metadata=says(_FRESH))


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOffTerms:
    """The options of the question how many units a limit affects."""

    rows: int | None = field(default=None, metadata=says("Units with more rows than this are counted."))
    groups: int | None = field(
        default=None, metadata=says("Units with rows in more groups of `by` than this are counted.")
    )
    by: str | None = field(default=None, metadata=says("The column whose groups are meant."))
    where: str | None = field(
        default=None, metadata=says("A condition on rows, as in the query that has the limit.")
    )
    epsilon: Real | None = field(default=None, metadata=says(_PRICE))
    within: Error | None = field(default=None, metadata=says(_WITHIN))
    delta: Delta | None = field(default=None, metadata=says(_DELTA))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTerms:
    """The options of a sparse vector (`mechanisms.SparseVector`)."""

    epsilon: Real = field(metadata=says("The price of all answers together."))
    delta: Delta = field(
        default=0.0,
        metadata=says(
            'Above zero, the threshold is drawn anew after each answer "above", which is cheaper for many.'
        ),
    )
    positives: Annotated[int, at_least(1), Served(ge=1, le=10**6)] = field(
        default=1, metadata=says('It halts after so many answers "above".')
    )
    number: int | None = field(default=None, metadata=says(_NUMBER))
    numeric: bool = field(
        default=False,
        metadata=says('Also release a noisy value with each answer "above"; it is part of the price.'),
    )
    gap: bool = field(
        default=False,
        metadata=says("Release by how much the noisy count exceeds the noisy threshold. Free."),
    )
    questions: Count | None = field(default=None, metadata=says("The largest number of questions."))
    sensitivity: Count = field(default=1, metadata=says("By how much one unit moves a statistic."))
    monotone: bool | None = field(
        default=None,
        metadata=says("By default whether counts are monotone under the declared neighbors."),
    )
    split: tuple[Real, ...] | None = field(
        default=None, metadata=says("How the price is divided: threshold, answers, values.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """The options of a continual counter (`streaming.ContinualCounter`)."""

    epsilon: Real | None = field(default=None, metadata=says("The epsilon of all ticks together."))
    delta: Delta | None = field(default=None, metadata=says(_DELTA))
    rho: Real | None = field(default=None, metadata=says("The rho of all ticks together."))
    horizon: Ticks | None = field(
        default=None,
        metadata=says(
            "How many ticks there are at most; by default those of the clock. Without both there is no end, "
            "which is possible only where each row is a unit."
        ),
    )
    strategy: Word = field(
        default="auto",
        metadata=says(
            "auto, tree, honaker, square_root, banded, blt or optimal; or a baseline to compare with: item "
            "(noise on every tick's own count), fresh (new noise on every sum)."
        ),
    )
    participations: Ticks | None = field(default=None, metadata=says(_PARTICIPATIONS))
    separation: Ticks | None = field(default=None, metadata=says(_SEPARATION))
    clock: str | None = field(
        default=None,
        metadata=says("The column of days (or other declared ticks) whose rows each tick counts."),
    )
    window: Ticks | None = field(default=None, metadata=says("Count only the last so many ticks."))
    decay: Share | None = field(default=None, metadata=says("Weight a tick by this to the power of its age."))
    restart: Ticks | None = field(default=None, metadata=says("Begin again at zero after so many ticks."))
    rows: Count | None = field(default=None, metadata=says(_ROWS))
    groups: Count | None = field(default=None, metadata=says(_GROUPS))
    number: int | None = field(default=None, metadata=says(_NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineTerms:
    """The options of an online learner (`streaming.learner`)."""

    learner: str = field(default="auto", metadata=says("leader, mirror, experts; auto fits the loss."))
    horizon: int | None = field(
        default=None, metadata=says("How many rounds there are at most; by default the clock's.")
    )
    clip: Real | None = field(default=None, metadata=says("L2 bound on a unit's gradient."))
    space: Any = field(default=None, metadata=says("The set that contains the decisions."))
    epsilon: Real | None = field(default=None, metadata=says("The epsilon of all rounds together."))
    delta: float | None = field(default=None, metadata=says(_DELTA))
    rho: Real | None = field(default=None, metadata=says("The rho of all rounds together."))
    batch: Real = field(default=1, metadata=says("How many units a round has, as you declare it."))
    ridge: Real = field(default=0, metadata=says("L2 penalty: adds ridge/2 * |w|² to the loss."))
    parameter: Real | None = field(
        default=None, metadata=says("The learner's own step size. By default it fits the horizon.")
    )
    strategy: str = field(default="auto", metadata=says("As in discreet stream start."))
    clock: str | None = field(default=None, metadata=says("The column of days whose rows are a round each."))
    participations: int | None = field(
        default=None, metadata=says("In how many rounds one person counts, where people have many rows.")
    )
    separation: int | None = field(default=None, metadata=says(_SEPARATION))
    number: int | None = field(default=None, metadata=says(_NUMBER))


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisTerms:
    """The options of a synthetic copy that decide its mechanism."""

    epsilon: Real = field(metadata=says("The epsilon of the copy."))
    delta: Delta | None = field(
        default=None, metadata=says("The delta of the copy. By default a share of the budget's.")
    )
    method: Word = field(default="auto", metadata=says("auto, aim, mst, mwem, privbayes or independent."))
    columns: Sequence[str] | None = field(default=None, metadata=says("The columns to copy. By default all."))
    bins: Mapping[str, Any] | None = field(
        default=None, metadata=says("By column, the number of bins, or their edges: a public fact.")
    )
    missing: Mapping[str, bool] | None = field(
        default=None, metadata=says("By column, whether cells can be missing: a public fact.")
    )
    rows_per_unit: Count | None = field(default=None, metadata=says("How many rows of one person count."))
    constraints: Sequence[Any] = field(
        default=(), metadata=says("Public facts, such as 'age >= education_num'.")
    )
    options: Mapping[str, Any] | None = field(
        default=None, metadata=says("Those of the method itself, such as degree or cells.")
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTerms(SynthesisTerms):
    """The options of a synthetic copy."""

    rows: int | None = field(
        default=None,
        kw_only=False,
        metadata=says("How many rows to draw. By default a noisy count, which is paid for."),
    )
    seed: int | None = field(
        default=None, metadata=says("The seed of the rows that are drawn; not of the noise.")
    )
    checkpoint: str | Path | None = field(default=None, metadata=says(_CHECKPOINT))
    resume: bool = field(
        default=False,
        metadata=says("Go on from the checkpoint, with the same options. Free."),
    )
    progress: segments.Watch | None = field(
        default=None, metadata=says("Called after each step with public facts.")
    )
    fresh: bool = field(default=False, metadata=says(_FRESH))


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCopyTerms(CopyTerms):
    """The options of a synthetic copy that is made on a server."""

    seconds: float = field(default=60.0, metadata=says("The copy comes after this time and not before."))


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class TeachTerms:
    """The options of a labeller (PATE)."""

    teachers: Annotated[int, at_least(1)] = field(
        metadata=says("How many models are trained, each on a part of the data.")
    )
    target: str | None = field(default=None, metadata=says("The column of classes."))
    features: Sequence[str] | None = field(
        default=None, metadata=says("The columns that teachers read. By default all that can be used.")
    )
    epsilon: Annotated[float, POSITIVE] | None = field(
        default=None, metadata=says("The data-independent price of all labels.")
    )
    delta: Annotated[float, OPEN_PROBABILITY] | None = field(
        default=None, metadata=says("The delta of that price. By default a share of the budget's.")
    )
    queries: Annotated[int, at_least(1), at_most(MAX_QUERIES)] = field(
        default=500, metadata=says("How many public inputs are labelled at most.")
    )
    aggregator: Any = field(
        default="gnmax",
        metadata=says(
            "gnmax, lnmax, confident, interactive, stable (M_stab of Bassily et al. 2018, "
            "arXiv:1803.05101), sampled (M_samp), sparse (M_svec), or an instance of a class of "
            "`mechanisms.votes`, which has its own noise."
        ),
    )
    answers: Annotated[int, at_least(1)] | None = field(
        default=None,
        metadata=says("How many questions are answered at most (confident, interactive)."),
    )
    threshold: Annotated[int, at_least(1)] | None = field(
        default=None,
        metadata=says(
            "How many votes the most common class needs (confident), or by how many votes a class must "
            "exceed what the student's prediction expects (interactive)."
        ),
    )
    failures: Annotated[int, at_least(1)] | None = field(
        default=None, metadata=says("After how many refused questions it halts (sparse).")
    )
    overlap: Annotated[int, at_least(1)] | None = field(
        default=None, metadata=says("To how many teachers each unit is given (sampled).")
    )
    classes: int | None = field(
        default=None, metadata=says("Their number, where the data are tensors and not a table.")
    )
    sanitize: Annotated[float, POSITIVE] | None = field(
        default=None,
        metadata=says("The part of epsilon that pays for publishing the data-dependent cost."),
    )
    order: Annotated[float, POSITIVE] | None = field(
        default=None, metadata=says("The Rényi order at which `sanitize` computes that cost.")
    )
    size: int | None = field(
        default=None, metadata=says("The public limit on the bytes of one stored teacher.")
    )
    workers: int | None = field(default=None, metadata=says("The processes that train teachers."))
    progress: Any = field(default=None, metadata=says("Called with (teachers trained so far, `teachers`)."))
    number: int | None = field(default=None, metadata=says(_NUMBER))


def defaults(terms: type) -> dict[str, Any]:
    """Return the options of a list by name, each with its default; `MISSING` if it must be given."""
    return {option.name: option.default for option in fields(terms)}


def chosen(terms: Any, kind: type | None = None) -> dict[str, Any]:
    """Return the options that are not None, by name; of a longer list, those of the list `kind`."""
    values = {option.name: getattr(terms, option.name) for option in fields(kind or terms)}
    return {name: value for name, value in values.items() if value is not None}


def plain(kind: Any) -> Any:
    """Return a type without its limits.

    >>> plain(Count | None)
    int | None
    """
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return plain(parts[0])
    return functools.reduce(operator.or_, map(plain, parts)) if origin in (Union, UnionType) else kind


class takes(Generic[P, Options]):
    """Decorates a method whose last parameter is a list of options, so that it is called with the options
    themselves.

    Type checkers, `inspect.signature`, `help` and the completion of editors see each option with its type and
    its default; the help of each stands at the end of the docstring.
    """

    def __init__(self, terms: Callable[P, Options]) -> None:
        self.terms = terms

    @overload
    def __call__(
        self, method: Callable[[Self, Options], Result]
    ) -> Callable[Concatenate[Self, P], Result]: ...
    @overload
    def __call__(
        self, method: Callable[[Self, Lead, Options], Result]
    ) -> Callable[Concatenate[Self, Lead, P], Result]: ...
    def __call__(self, method: Any) -> Any:
        """Return the method as its callers see it."""
        terms: Any = self.terms
        *leading, last = inspect.signature(method).parameters.values()
        names = [parameter.name for parameter in leading[1:]]
        options = sorted(fields(terms), key=lambda option: bool(option.kw_only))

        @functools.wraps(method)
        def called(self: Any, *values: Any, **named: Any) -> Any:
            first = {name: named.pop(name) for name in names if name in named}
            given, rest = values[: len(names)], values[len(names) :]
            return method(self, *given, **first, **{last.name: terms(*rest, **named)})

        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*leading, *map(_parameter, options)], return_annotation=method.__annotations__["return"]
        )
        called.__annotations__ = {
            **{name: method.__annotations__[name] for name in names},
            **{option.name: option.type for option in options},
            "return": method.__annotations__["return"],
        }
        if method.__doc__ is not None:
            helps = [f"    {option.name}: {option.metadata['help']}" for option in options]
            called.__doc__ = "\n".join([inspect.cleandoc(method.__doc__), "", "Options:", *helps])
        return called


def _parameter(option: Field[Any]) -> inspect.Parameter:
    """Return an option as a parameter of a signature."""
    kind = inspect.Parameter.KEYWORD_ONLY if option.kw_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    return inspect.Parameter(option.name, kind, default=default, annotation=plain(option.type))
