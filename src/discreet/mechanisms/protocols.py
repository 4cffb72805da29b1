"""The base classes of all mechanisms: a mechanism is a callable with a price, its accounting `event`.

A `Statistic` is an exact integer-valued function of the data, to which noise is added or by which a selector
chooses. A `Mechanism` knows its price before any data is read, and gives a `Release`. An `Interactive` pays
its whole price at the start and answers until it halts. A `Stepped` pays its whole price at the start as
well, and runs in steps that can be interrupted. `BaseMechanism` has a default for all that the curator reads
besides. Any part of a mechanism may have a method `rehearse(source)`, too, which tries, on made-up data,
everything that could fail for reasons other than the data; the curator calls it before the charge. Mechanisms
read columns of a `tables.Source`; those that train on tensors read an `ExampleSource`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib.metadata import entry_points
from numbers import Real
from typing import TYPE_CHECKING, Annotated, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from .. import _registry, _require
from .._errors import InvalidInput, PublicMismatch, Unsupported
from .._public import Bounds, Public
from .._require import at_least, instance_of, such_that
from ..accounting import Event, NonPrivate, NoOp
from ..sampling import Entropy
from ..tables import Source

# int64, or Python ints in an object array where 64 bits would not hold them
Integers = NDArray[Any]

# The number of failed questions after which an interactive mechanism halts, if it says nothing else; chosen
# by hand. One that is fed for years may set its own.
FAILURES = 10


def integers(values: Any) -> NDArray[Any]:
    """Return `values` as an array of integers; refuse anything else, with a message that shows no value."""
    array = np.asarray(values)
    if array.dtype.kind == "O" and all(isinstance(v, int | np.integer) for v in array.flat):
        # numpy's own integers would wrap when noise is added to them
        return np.array([int(v) for v in array.flat], dtype=object).reshape(array.shape)
    if array.dtype.kind == "i":
        return array.astype(np.int64, copy=False)
    if array.dtype.kind == "u":
        return array.astype(np.int64) if array.dtype.itemsize < 8 else array.astype(object)
    raise InvalidInput(
        f"integers are needed, got an array of {array.dtype}. Put real numbers on a grid first: GridLaplace, "
        "GridGaussian, or Sum(column, step)."
    )


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """Says how far one unit of privacy can move a vector of integers: each norm is an integer upper bound.

    At most `l0` entries move, each by at most `linf`. `l1` and `l2_squared` follow from these unless a
    tighter bound is given.
    """

    linf: Annotated[int, at_least(0)]
    l0: Annotated[int, at_least(0)] = 1
    l1: Annotated[int, at_least(0)] | None = None
    l2_squared: Annotated[int, at_least(0)] | None = None

    def __post_init__(self) -> None:
        derived_l1, derived_l2_squared = self.l0 * self.linf, self.l0 * self.linf**2
        l1 = derived_l1 if self.l1 is None else min(self.l1, derived_l1)
        object.__setattr__(self, "l1", l1)
        squared = derived_l2_squared if self.l2_squared is None else min(self.l2_squared, derived_l2_squared)
        object.__setattr__(self, "l2_squared", squared)

    def covers(self, other: Sensitivity) -> bool:
        """Return whether noise priced for `self` is enough for `other` as well."""
        own = _require.field_values(self)
        return all(norm <= own[name] for name, norm in _require.field_values(other).items())


@runtime_checkable
class ExampleSource(Protocol):
    """Examples to train on, with the public facts under which they are protected: for tensors what
    `tables.Source` is for columns.

    Besides `public`, only the shapes and types of one example are public. The results of `take`, `size` and
    `people` are private: they are for mechanisms that read examples, which call `check_source(...,
    examples=True)`.
    """

    @property
    def public(self) -> Public: ...

    @property
    def size(self) -> int:
        """The number of units: rows, or people."""

    @property
    def people(self) -> Any:
        """The owner of each row (`learning.training.data.People`); None where the unit is a row."""

    def take(self, positions: Any, /) -> tuple[Any, Any]:
        """Return the inputs and targets of the rows at these positions, as a batch."""

    def shapes(self) -> tuple[Any, Any]:
        """Return inputs and targets of zero examples, which have the shapes and types of one example."""


AnySource = Source | ExampleSource


@runtime_checkable
class Statistic(Protocol):
    """An exact integer-valued function of the data, with its sensitivity under public facts."""

    def sensitivity(self, public: Public) -> Sensitivity: ...

    def __call__(self, source: Source) -> Integers: ...


def is_statistic(candidate: Any) -> bool:
    """Return whether `candidate` is a statistic. Noise and selectors have a `sensitivity` too, but theirs is
    a number and not a function of public facts."""
    return isinstance(candidate, Statistic) and callable(candidate.sensitivity)


class BaseMechanism:
    """Base of all mechanisms: what each must say, and a default for all else that the curator reads.

    A mechanism is a frozen dataclass. It has `public`, the public facts that it is priced for, and `event`,
    its price; both may be fields or properties. Any default below is replaced by a method, a property or a
    class attribute of that name.
    """

    __slots__ = ()

    # Not abstract properties, because a field of a subclass would take them for its default.
    if TYPE_CHECKING:

        @property
        def public(self) -> Public: ...

        @property
        def event(self) -> Event: ...

    @property
    def asked(self) -> Any:
        """The (epsilon, delta) that it was requested with, a hint for the filter; None if there is none."""
        return None

    @property
    def error(self) -> Callable[..., Any] | None:
        """The method `error(confidence)`, a bound on the error that is known before a run; None if there is
        none."""
        return None

    @property
    def error_in_scores(self) -> bool:
        """Whether the error is in scores, ranks or people, not in the unit of the released value."""
        return False

    @property
    def least_people(self) -> int:
        """The least number of people in a group whose numbers it shows (`Policy.min_people`); 0 without
        one."""
        return 0

    @property
    def identity(self) -> Any:
        """What tells a run of trusted code from others, as JSON, where there is no description; or None."""
        return None

    @property
    def key(self) -> Any:
        """A normal form, as JSON, that is the same for all ways to write one question; None if that is the
        description."""
        return None

    @property
    def rehearse(self) -> Callable[..., Any] | None:
        """The method `rehearse(source)`, which tries, before the charge, all that can fail for reasons other
        than the data; None if each part is to be rehearsed instead."""
        return None


# The group of entry points in which a package declares its mechanisms, each under its tag:
# "acme_dp.Lead" = "acme_dp.leads:Lead".
GROUP = "discreet.mechanisms"
_TAG = re.compile(r"[a-z][a-z0-9_]{0,99}\.[A-Za-z][A-Za-z0-9_]{0,99}", re.ASCII)
TAG = such_that(lambda tag: bool(_TAG.fullmatch(tag)), 'a package and a name, such as "acme_dp.Lead"')


@_require.check_options
def allow(tag: Annotated[str, TAG]) -> type[BaseMechanism]:
    """Allow a mechanism of a third party in this process, and return its class.

    Its package declares it as an entry point (`GROUP`) named like its tag, whose first part is the name of
    the package. From now on it has a JSON description, as ours have. The package's code is run, and its
    prices are charged as it states them: whoever calls this takes them on trust, which is marked in the
    ledger and on every release (`Release.mark`).
    """
    points = tuple(entry_points(group=GROUP, name=tag))
    if len(points) != 1:
        declared = sorted({point.name for point in entry_points(group=GROUP)})
        raise InvalidInput(
            f"{len(points) or 'no'} installed packages declare the mechanism {tag} (exactly one must). "
            f"Declared are: {', '.join(map(repr, declared)) or 'none'}."
        )
    (point,) = points
    package, version = ("", "") if point.dist is None else (point.dist.name, point.dist.version)
    if re.sub(r"[-_.]+", "_", package).lower() != tag.partition(".")[0]:
        raise InvalidInput(f"the package {package!r} may not declare {tag}: a tag begins with its package.")
    known = _registry.class_of(tag)
    try:
        cls = point.load()
    except Exception as error:
        raise InvalidInput(f"{point.value!r} of {package} cannot be loaded: {error}.") from error
    if known is not None and cls is known:
        return cls
    what = f"{point.value!r} of {package} is no"
    ours = isinstance(cls, type) and issubclass(cls, BaseMechanism) and is_dataclass(cls)
    _require.that(ours, f"{what} mechanism: a frozen dataclass with our base.")
    own = cls.__module__.split(".")[0] != "discreet" and cls.__dataclass_params__.frozen
    _require.that(own, f"{what} frozen dataclass of its own.")
    _registry.enter_other(cls, tag, f"{package} {version}")
    return cls  # type: ignore[no-any-return]


class Mechanism(BaseMechanism, ABC):
    """Runs once on a source, for a price known beforehand."""

    __slots__ = ()

    def restated(self, value: Any) -> Any:
        """Return a stored value with the text of this question, where it quotes the one asked first."""
        return value

    @abstractmethod
    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release: ...


# What a question is answered with: the next state, and the release.
Answered = tuple[Any, "Release"]


class Interactive(BaseMechanism, ABC):
    """Answers questions until it halts; the whole price is paid at the start.

    The state is secret (a noisy threshold!) and JSON-able: the curator stores it encrypted, together with the
    answer. A question is refused before the source is read, or not at all, and never because of a secret in
    the state: only because of the question, of what earlier answers show, or of what is counted. Where
    questions are counted, the state counts them under "asked", and the curator adds those that fail.

    A mechanism with more to store than fits into a state (trained teachers, noise) says its `blob_size`. Its
    `start`, `answer` and `feed` then get a keyword `drawer`, with `put(name, bytes)` and `get(name)`. All
    that is put is committed together with the state and the answer, or not at all. The number of blobs and
    their names are public.

    It belongs to one version of a table, unless it says otherwise, in one of two ways. With `any_version =
    True`, each question may be asked of another version. With a method `feed(state, batch, *, entropy) ->
    (state, Release | None)` it is given each version, or batch of new rows, once. In both cases neighbors are
    *histories*, which differ in the rows of one unit in all versions or batches; the times at which they
    arrive are public. The guarantee must hold for histories: the section "Versions" of the mechanism's
    docstring says why it does.
    """

    __slots__ = ()

    @property
    def blob_size(self) -> int | None:
        """The public number of bytes to which each blob is padded; 0 if blobs grow with the data (each is
        then padded to a power of two, which only the steward's disk shows); None if there are no blobs."""
        return None

    @property
    def any_version(self) -> bool:
        """Whether each question may be asked of another version of the table."""
        return False

    @property
    def feed(self) -> Callable[..., Any] | None:
        """The method that is given each version of the table, or batch of new rows; None if it is not fed."""
        return None

    @property
    def batches_only(self) -> bool:
        """Whether it is fed new rows alone, because it could not tell them from old ones in a version."""
        return False

    @property
    def failure_limit(self) -> int:
        """How many questions may fail after data was read before the curator halts it: a public limit,
        because the price does not cover whether a question fails."""
        return FAILURES

    @abstractmethod
    def start(self, source: Source, *, entropy: Entropy) -> Any: ...

    @abstractmethod
    def answer(self, state: Any, source: Source, question: Any, *, entropy: Entropy) -> Answered: ...

    def paid(self, value: Any, entropy: Entropy, error: Callable[[float], Any] | None = None) -> Release:
        """Return the release of an answer, which costs nothing: all was paid at the start."""
        return release(value, event=NoOp(neighbors=self.public.neighbors), entropy=entropy, error=error)


@runtime_checkable
class FitsTables(Protocol):
    """An estimator: builds the mechanism that fits it to a table, and takes over what that releases."""

    def mechanism(self, public: Public, /, **options: Any) -> Any: ...

    def adopt(self, release: Release, mechanism: Any, /) -> Any: ...


@runtime_checkable
class Randomizer(Protocol):
    """The local model: runs on the device of the person who is asked, and needs no source and no ledger.

    `respond` is the only thing that sees a person's value, and what it returns is epsilon-DP for that person
    by itself, so everything after it (transport, shuffling, `estimate`) is post-processing. What a device has
    to remember (memoized reports, its budget) is state of the client, never of the server.
    """

    @property
    def epsilon(self) -> Any: ...

    def respond(self, value: Any, /, *, entropy: Entropy) -> Any: ...

    def estimate(self, reports: Any, /) -> Release: ...


class Run(Protocol):
    """A run of a `Stepped` mechanism. `steps_taken` counts the steps that are done, and those that were lost
    when the run was interrupted."""

    steps_taken: int

    @property
    def progress(self) -> Any:
        """Public facts about the run, for a progress display."""

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> Any: ...

    def step(self) -> None: ...

    def dump(self) -> bytes: ...

    def release(self) -> Release: ...


class Stepped(Mechanism):
    """Runs in `length` steps, and can be interrupted after every `period` of them: a run that is restored
    there from what `Run.dump` returned, with fresh randomness, has the distribution of one that went on."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def length(self) -> int: ...

        @property
        def period(self) -> int: ...

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        """Run all steps."""
        run = self.start(source, entropy=entropy)
        with run:
            while run.steps_taken < self.length:
                run.step()
        return run.release()

    @abstractmethod
    def start(self, source: Source, *, entropy: Entropy) -> Run: ...

    @abstractmethod
    def restore(self, source: Source, raw: bytes, steps_taken: int, *, entropy: Entropy) -> Run: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Release(_require.NearestNames):
    """What a mechanism released: the value, its price, and a bound on its error.

    `event` is `NonPrivate` if the entropy was seeded: such a value is for tests and simulations only. With
    `error_in_scores` the error is in scores, ranks or people, not in the value's own unit. `mark` says
    what its price rests on: "by construction" where the core computed it (docs/core.md), "by proof" where the
    mechanism states it by a theorem, or the word of somebody: a third party's package, or the steward.
    """

    value: Any
    event: Event
    private: bool = True
    error_in_scores: bool = False
    mark: str = "by proof"
    _error: Callable[[float], Any] | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        mark = "" if self.mark == "by proof" else f", mark={self.mark!r}"
        return (
            f"Release(value={self.value!r}, event={self.event!r}, private={self.private!r}, "
            f"error_in_scores={self.error_in_scores!r}{mark})"
        )

    def error(self, confidence: float = 0.95) -> Any:
        """Return a bound on the error that holds with probability `confidence`, from public parameters and
        released values only."""
        _require.open_probability(confidence=confidence)
        if self._error is None:
            raise InvalidInput("no error bound is known for this kind of release.")
        return self._error(confidence)

    def interval(self, confidence: float = 0.95) -> tuple[Any, Any]:
        """Return (value - error, value + error); refused where the value is not made of numbers, or the error
        is not in their unit."""
        _require.that(
            not self.error_in_scores,
            "the error of this release is in scores or ranks, so it gives no interval around the "
            "value. Use `error`.",
        )
        _require.that(
            not isinstance(self.value, dict | tuple | list) and _is_numeric(self.value),
            "this release is not made of plain numbers: look at its value and at error(confidence).",
        )
        width = self.error(confidence)
        return np.subtract(self.value, width), np.add(self.value, width)


def _is_numeric(value: Any) -> bool:
    """Return whether a value, or every entry of an array, is a real number."""
    array = np.asarray(value)
    if array.dtype.kind != "O":
        return array.dtype.kind in "iuf"
    return all(isinstance(entry, Real) for entry in array.flat)


def error_of(mechanism: BaseMechanism, confidence: float) -> Any:
    """Return the error bound that a mechanism gives before it is run; refused where it gives none."""
    if mechanism.error is None:
        raise InvalidInput(
            f"how far off {type(mechanism).__name__} may be is known only with its release: ask the "
            f"release for its error."
        )
    return mechanism.error(confidence)


@_require.check_options
def release(
    value: Any,
    *,
    event: Event,
    entropy: Entropy,
    error: Callable[[float], Any] | None = None,
    error_in_scores: bool = False,
) -> Release:
    """Return the release of `value`, marked as not private if its randomness was seeded."""
    paid = event if entropy.private else NonPrivate(neighbors=event.neighbors)
    return Release(
        value=value, event=paid, private=entropy.private, error_in_scores=error_in_scores, _error=error
    )


def rehearse(mechanism: Any, source: AnySource) -> None:
    """Check that the source is ready, and call `rehearse` of the mechanism. The curator does so before it
    charges, so that a failure costs nothing."""
    # `ready` replaces a broken engine, or raises.
    if hasattr(source, "ready"):
        source.ready()
    rehearse_parts(mechanism, source)


def rehearse_parts(thing: Any, source: AnySource) -> None:
    """Call `rehearse` of a mechanism or a question; where it has none, that of each part it is made of, at
    any depth. The parts of an object with a `rehearse` are left to it."""
    things = [thing]
    while things:
        part = things.pop()
        trial = None if isinstance(part, type) else getattr(part, "rehearse", None)
        if trial is not None:
            trial(source)
        elif is_dataclass(part) and not isinstance(part, type | Public):
            things += [getattr(part, option.name, None) for option in fields(part)]
        elif isinstance(part, tuple | list):
            things += part


def require_columns(source: AnySource, *names: str) -> None:
    """Refuse names that are no columns of the source; for `rehearse`, where no schema declares the columns.

    The names of columns are public. A source that does not list them is not checked.
    """
    kinds = _column_kinds(source)
    unknown = [] if kinds is None else [name for name in names if name not in kinds]
    if kinds is not None and unknown:
        suggestion = _require.did_you_mean(unknown[0], kinds)
        raise InvalidInput(f"the table has no column {unknown[0]!r}.{suggestion}")


def require_numbers(source: AnySource, column: str) -> None:
    """Refuse a column that the source does not have, or that does not hold numbers; for `rehearse`, where no
    schema declares the column. What kind of values a column holds is public."""
    require_columns(source, column)
    kind = (_column_kinds(source) or {}).get(column, "number")
    _require.that(
        kind in _NUMBERS or isinstance(dict(source.public.schema).get(column), Bounds),
        f"column {column!r} is of kind {kind}, and a number is needed. Convert it, or declare it as "
        "Bounds(lower, upper).",
    )


# Kinds of columns that are read as numbers.
_NUMBERS = ("integer", "number", "decimal", "boolean")


def _column_kinds(source: AnySource) -> Mapping[str, str] | None:
    """Return the kind of every column of the source's own table; None where the source does not say."""
    kinds: Mapping[str, str] | None = getattr(source, "column_kinds", None)
    if kinds is None and hasattr(source, "kinds"):
        kinds = source.kinds.get(source.public.table)
    return kinds


def as_of(mechanism: Any, public: Public) -> Any:
    """Return the mechanism with `public`, the facts of another version of its table, if it may continue on
    one (`Interactive`); otherwise the mechanism unchanged. It is unchanged, too, where more than the version
    differs (or the size, for a mechanism that is fed: a batch has a size of its own): `check_source` then
    refuses the source."""
    # the public facts for which the mechanism was priced
    fed, priced = mechanism.feed is not None, mechanism.public
    if not (fed or mechanism.any_version):
        return mechanism
    size = priced.size if fed else public.size
    if replace(public, version=priced.version, size=size) != priced:
        return mechanism
    return mechanism if public == priced else replace(mechanism, public=public)


def check_source(public: Public, source: AnySource, *, examples: bool = False) -> None:
    """Refuse a source whose public facts are not those for which the price was computed, and one without
    columns unless the mechanism reads `examples`."""
    _require.that(
        isinstance(getattr(source, "public", None), Public),
        "a mechanism runs on a source, which says what is public about it, and not on a "
        f"{type(source).__name__}. Wrap the data: tables.Memory(data, public), "
        "learning.Examples.of(dataset, public), or open them with dp.open(data, ...) and ask there.",
    )
    if source.public != public:
        own = _require.field_values(source.public)
        differing = [name for name, fact in _require.field_values(public).items() if fact != own[name]]
        raise PublicMismatch(
            f"the mechanism was priced for other public facts than the source has: {', '.join(differing)} "
            "differ (also by the types of the declared bounds: Bounds(0, 9) is of whole numbers, "
            "Bounds(0.0, 9.0) is not). Build the mechanism with the source's own `public`."
        )
    if not (examples or isinstance(source, Source)) and isinstance(source, ExampleSource):
        raise Unsupported(
            f"{type(source).__name__} are tensors without columns, and this reads columns. Train on them "
            "with learning.Trainer, or open a table to ask about its columns."
        )


# Limits of fields and parameters that hold a mechanism or a statistic.
MECHANISM = instance_of(Mechanism, "a mechanism: something with public, event and a call")
STATISTIC = such_that(is_statistic, "a statistic, such as Count() or Histogram(column=...)")
