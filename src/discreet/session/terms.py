"""Lists the options of a session's verbs, each once: its type, its default, its limits and what it is for.

A list is a dataclass. `takes` makes the signature of a method from it, `app.web.bodies` the fields of a
request, and `app.cli.parser` the options of a command. The help of an option is the text in the `Annotated`
of its field, in which the name of another option stands between backquotes.
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
    get_type_hints,
    overload,
)

from .._require import OPEN_PROBABILITY, POSITIVE, Limit, Real, a_float, at_least, at_most, checked, text

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

    epsilon: Annotated[Real | None, _PRICE] = None
    rho: Annotated[Real | None, _RHO] = None
    within: Annotated[Error | None, _WITHIN] = None
    confidence: Annotated[Share, "The probability with which errors and `within` hold."] = 0.95
    delta: Annotated[Delta | None, _DELTA] = None
    noise: Annotated[Noise, "laplace, gaussian or auto."] = "auto"
    rows: Annotated[Count | None, _ROWS] = None
    groups: Annotated[Count | None, _GROUPS] = None
    weights: Annotated[Weights, "How the price is divided between output columns, by their names."] = ()
    other: Annotated[bool, "Add one row with the sum of all groups that are not shown."] = False
    min_people: Annotated[Count | None, "Hide groups of fewer people, by their noisy number."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionTerms(Terms):
    """The options of a question in SQL."""

    fresh: Annotated[bool, _FRESH] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTerms:
    """The price of several counting questions together."""

    epsilon: Annotated[Real | None, _PRICE] = None
    rho: Annotated[Real | None, _RHO] = None
    delta: Annotated[Delta | None, _DELTA] = None
    rows: Annotated[Count | None, "How many rows of one person count in all questions together."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadQuestionTerms(WorkloadTerms):
    """The options of several counting questions together."""

    fresh: Annotated[bool, _FRESH] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CutOffTerms:
    """The options of the question how many units a limit affects."""

    rows: Annotated[int | None, "Units with more rows than this are counted."] = None
    groups: Annotated[int | None, "Units with rows in more groups of `by` than this are counted."] = None
    by: Annotated[str | None, "The column whose groups are meant."] = None
    where: Annotated[str | None, "A condition on rows, as in the query that has the limit."] = None
    epsilon: Annotated[Real | None, _PRICE] = None
    within: Annotated[Error | None, _WITHIN] = None
    delta: Annotated[Delta | None, _DELTA] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestTerms:
    """The options of a suggestion."""

    epsilon: Annotated[Real, "The price of the suggestion."]
    delta: Annotated[Delta | None, _DELTA] = None
    planned: Annotated[
        Real | None, "The epsilon at which the question will be asked. By default 19 times `epsilon`."
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTerms:
    """The options of a sparse vector (`mechanisms.SparseVector`)."""

    epsilon: Annotated[Real, "The price of all answers together."]
    delta: Annotated[
        Delta, 'Above zero, the threshold is drawn anew after each answer "above", which is cheaper for many.'
    ] = 0.0
    positives: Annotated[
        Annotated[int, at_least(1), Served(ge=1, le=10**6)], 'It halts after so many answers "above".'
    ] = 1
    number: Annotated[int | None, _NUMBER] = None
    numeric: Annotated[
        bool, 'Also release a noisy value with each answer "above"; it is part of the price.'
    ] = False
    gap: Annotated[bool, "Release by how much the noisy count exceeds the noisy threshold. Free."] = False
    questions: Annotated[Count | None, "The largest number of questions."] = None
    sensitivity: Annotated[Count, "By how much one unit moves a statistic."] = 1
    monotone: Annotated[
        bool | None, "By default whether counts are monotone under the declared neighbors."
    ] = None
    split: Annotated[tuple[Real, ...] | None, "How the price is divided: threshold, answers, values."] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTerms:
    """The options of a continual counter (`streaming.ContinualCounter`)."""

    epsilon: Annotated[Real | None, "The epsilon of all ticks together."] = None
    delta: Annotated[Delta | None, _DELTA] = None
    rho: Annotated[Real | None, "The rho of all ticks together."] = None
    horizon: Annotated[
        Ticks | None,
        "How many ticks there are at most; by default those of the clock. Without both there is no end, "
        "which is possible only where each row is a unit.",
    ] = None
    strategy: Annotated[
        Word,
        "auto, tree, honaker, square_root, banded, blt or optimal; or a baseline to compare with: item "
        "(noise on every tick's own count), fresh (new noise on every sum).",
    ] = "auto"
    participations: Annotated[Ticks | None, _PARTICIPATIONS] = None
    separation: Annotated[Ticks | None, _SEPARATION] = None
    clock: Annotated[
        str | None, "The column of days (or other declared ticks) whose rows each tick counts."
    ] = None
    window: Annotated[Ticks | None, "Count only the last so many ticks."] = None
    decay: Annotated[Share | None, "Weight a tick by this to the power of its age."] = None
    restart: Annotated[Ticks | None, "Begin again at zero after so many ticks."] = None
    rows: Annotated[Count | None, _ROWS] = None
    groups: Annotated[Count | None, _GROUPS] = None
    number: Annotated[int | None, _NUMBER] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineTerms:
    """The options of an online learner (`streaming.learner`)."""

    learner: Annotated[str, "leader, mirror, experts; auto fits the loss."] = "auto"
    horizon: Annotated[int | None, "How many rounds there are at most; by default the clock's."] = None
    clip: Annotated[Real | None, "L2 bound on a unit's gradient."] = None
    space: Annotated[Any, "The set that contains the decisions."] = None
    epsilon: Annotated[Real | None, "The epsilon of all rounds together."] = None
    delta: Annotated[float | None, _DELTA] = None
    rho: Annotated[Real | None, "The rho of all rounds together."] = None
    batch: Annotated[Real, "How many units a round has, as you declare it."] = 1
    ridge: Annotated[Real, "L2 penalty: adds ridge/2 * |w|² to the loss."] = 0
    parameter: Annotated[Real | None, "The learner's own step size. By default it fits the horizon."] = None
    strategy: Annotated[str, "As in discreet stream start."] = "auto"
    clock: Annotated[str | None, "The column of days whose rows are a round each."] = None
    participations: Annotated[
        int | None, "In how many rounds one person counts, where people have many rows."
    ] = None
    separation: Annotated[int | None, _SEPARATION] = None
    number: Annotated[int | None, _NUMBER] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisTerms:
    """The options of a synthetic copy that decide its mechanism."""

    epsilon: Annotated[Real, "The epsilon of the copy."]
    delta: Annotated[Delta | None, "The delta of the copy. By default a share of the budget's."] = None
    method: Annotated[Word, "auto, aim, mst, mwem or independent."] = "auto"
    columns: Annotated[Sequence[str] | None, "The columns to copy. By default all."] = None
    bins: Annotated[
        Mapping[str, Any] | None, "By column, the number of bins, or their edges: a public fact."
    ] = None
    missing: Annotated[
        Mapping[str, bool] | None, "By column, whether cells can be missing: a public fact."
    ] = None
    rows_per_unit: Annotated[Count | None, "How many rows of one person count."] = None
    constraints: Annotated[Sequence[Any], "Public facts, such as 'age >= education_num'."] = ()
    options: Annotated[Mapping[str, Any] | None, "Those of the method itself, such as degree or cells."] = (
        None
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyTerms(SynthesisTerms):
    """The options of a synthetic copy."""

    rows: Annotated[int | None, "How many rows to draw. By default a noisy count, which is paid for."] = (
        field(default=None, kw_only=False)
    )
    seed: Annotated[int | None, "The seed of the rows that are drawn; not of the noise."] = None
    checkpoint: Annotated[str | Path | None, _CHECKPOINT] = None
    resume: Annotated[bool, "Go on from the checkpoint, with the same options. Free."] = False
    progress: Annotated[Callable[[Any], Any] | None, "Called after each step with public facts."] = None
    fresh: Annotated[bool, _FRESH] = False
    seconds: Annotated[
        float | None,
        "On a server, the copy is a job that comes after this time and not before; by default 60.",
    ] = None


@checked
@dataclass(frozen=True, slots=True, kw_only=True)
class TeachTerms:
    """The options of a labeller (PATE)."""

    teachers: Annotated[
        Annotated[int, at_least(1)], "How many models are trained, each on a part of the data."
    ]
    target: Annotated[str | None, "The column of classes."] = None
    features: Annotated[
        Sequence[str] | None, "The columns that teachers read. By default all that can be used."
    ] = None
    epsilon: Annotated[Annotated[float, POSITIVE] | None, "The data-independent price of all labels."] = None
    delta: Annotated[
        Annotated[float, OPEN_PROBABILITY] | None,
        "The delta of that price. By default a share of the budget's.",
    ] = None
    queries: Annotated[
        Annotated[int, at_least(1), at_most(MAX_QUERIES)], "How many public inputs are labelled at most."
    ] = 500
    aggregator: Annotated[
        Any,
        "gnmax, lnmax, confident, interactive, stable (M_stab of Bassily et al. 2018, arXiv:1803.05101), "
        "sampled (M_samp), sparse (M_svec), or an instance of a class of `mechanisms.votes`, which has "
        "its own noise.",
    ] = "gnmax"
    answers: Annotated[
        Annotated[int, at_least(1)] | None,
        "How many questions are answered at most (confident, interactive).",
    ] = None
    threshold: Annotated[
        Annotated[int, at_least(1)] | None,
        "How many votes the most common class needs (confident), or by how many votes a class must "
        "exceed what the student's prediction expects (interactive).",
    ] = None
    failures: Annotated[
        Annotated[int, at_least(1)] | None, "After how many refused questions it halts (sparse)."
    ] = None
    overlap: Annotated[
        Annotated[int, at_least(1)] | None, "To how many teachers each unit is given (sampled)."
    ] = None
    classes: Annotated[int | None, "Their number, where the data are tensors and not a table."] = None
    sanitize: Annotated[
        Annotated[float, POSITIVE] | None,
        "The part of epsilon that pays for publishing the data-dependent cost.",
    ] = None
    order: Annotated[
        Annotated[float, POSITIVE] | None, "The Rényi order at which `sanitize` computes that cost."
    ] = None
    size: Annotated[int | None, "The public limit on the bytes of one stored teacher."] = None
    workers: Annotated[int | None, "The processes that train teachers."] = None
    progress: Annotated[Any, "Called with (teachers trained so far, `teachers`)."] = None
    number: Annotated[int | None, _NUMBER] = None


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a list: its name, its type with the limits, its default and its help. `MISSING` is the
    default of one that must be given; `by_name` says whether it is given by its name only."""

    name: str
    kind: Any
    default: Any
    help: str
    by_name: bool


@functools.cache
def options_of(terms: type) -> dict[str, Option]:
    """Return the options of a list by name; what is given without a name comes first."""
    hints = get_type_hints(terms, include_extras=True)
    found = [_option(field, hints[field.name]) for field in fields(terms)]
    return {option.name: option for option in sorted(found, key=lambda option: option.by_name)}


def _option(field: Field[Any], hint: Any) -> Option:
    """Return a field of a list as an option."""
    kind, *extras = get_args(hint)
    help = next(extra for extra in extras if isinstance(extra, str))
    limits = [extra for extra in extras if extra is not help]
    default = field.default if field.default_factory is MISSING else field.default_factory()
    return Option(
        field.name, Annotated[kind, *limits] if limits else kind, default, help, bool(field.kw_only)
    )


def defaults(terms: type) -> dict[str, Any]:
    """Return the default of each option of a list, by name."""
    return {name: option.default for name, option in options_of(terms).items()}


def values(terms: Any, kind: type | None = None) -> dict[str, Any]:
    """Return the options by name; of a longer list, those of the list `kind`."""
    return {name: getattr(terms, name) for name in options_of(kind or type(terms))}


def chosen(terms: Any, kind: type | None = None) -> dict[str, Any]:
    """Return the options that are not None, by name; of a longer list, those of the list `kind`."""
    return {name: value for name, value in values(terms, kind).items() if value is not None}


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
        *parameters, last = inspect.signature(method).parameters.values()
        names = [parameter.name for parameter in parameters[1:]]
        options = list(options_of(terms).values())

        @functools.wraps(method)
        def called(self: Any, *given: Any, **named: Any) -> Any:
            first = {name: named.pop(name) for name in names if name in named}
            leading, rest = given[: len(names)], given[len(names) :]
            return method(self, *leading, **first, **{last.name: terms(*rest, **named)})

        called.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*parameters, *map(_parameter, options)], return_annotation=method.__annotations__["return"]
        )
        called.__annotations__ = {
            **{name: method.__annotations__[name] for name in names},
            **{option.name: option.kind for option in options},
            "return": method.__annotations__["return"],
        }
        if method.__doc__ is not None:
            helps = [f"    {option.name}: {option.help}" for option in options]
            called.__doc__ = "\n".join([inspect.cleandoc(method.__doc__), "", "Options:", *helps])
        return called


def _parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter of a signature."""
    kind = inspect.Parameter.KEYWORD_ONLY if option.by_name else inspect.Parameter.POSITIONAL_OR_KEYWORD
    default = inspect.Parameter.empty if option.default is MISSING else option.default
    return inspect.Parameter(option.name, kind, default=default, annotation=plain(option.kind))
