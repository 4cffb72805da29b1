"""Checks arguments, with one template for all messages: the name, what is required, and the value.

They are called with keywords, so that the message can name the argument:
`_require.positive(epsilon=epsilon)`. Checks of numbers accept `int`, `float`, `Fraction` and numpy's numbers;
they refuse booleans and strings.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import math
import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from fractions import Fraction
from numbers import Integral, Rational
from numbers import Real as AnyReal
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from ._errors import (
    DiscreetError,
    Halted,
    InvalidInput,
    LedgerError,
    ReleaseFailed,
    UnknownAttribute,
    UnknownOption,
    charges,
    charges_of_all,
)

# The declared type of numeric parameters; integers and fractions stay exact.
Real = int | float | Fraction

# Noise for a price (an epsilon or a rho) below this, or above its inverse, would leave the range of floats.
_LEAST_PRICE = Fraction(1, 10**100)
# The size of a float. numpy's long doubles are larger; they cannot be compared with fractions or converted to
# them, and are refused.
_FLOAT_BYTES = 8

F = TypeVar("F", bound=Callable[..., Any])
C = TypeVar("C")


def fail(name: str, value: object, wanted: str) -> InvalidInput:
    """Return the error for a bad argument, in the template of all messages; `wanted` completes "must be"."""
    return InvalidInput(f"{name} must be {wanted}, got {_shown(value)}.", option=name.partition("[")[0])


def must(holds: object, name: str, value: object, wanted: str) -> None:
    """Require of an argument what its type and limits do not say; `wanted` completes "must be".

    The texts are made also where the condition holds: in an inner loop, raise `fail` instead.
    """
    if not holds:
        raise fail(name, value, wanted)


def that(holds: object, otherwise: str) -> None:
    """Require a fact about several arguments, or about one whose message needs more than a name and a value;
    `otherwise` is the message."""
    if not holds:
        raise InvalidInput(otherwise)


class refusing:
    """Refuses, with a message or an error, what cannot be converted inside: a TypeError, a ValueError, an
    OverflowError, or one of `more`. Our own errors pass."""

    def __init__(self, refusal: str | InvalidInput, *more: type[Exception]) -> None:
        self._refusal = refusal
        self._kinds: tuple[type[Exception], ...] = (TypeError, ValueError, OverflowError, *more)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, self._kinds) and not isinstance(error, DiscreetError):
            raise InvalidInput(self._refusal) if isinstance(self._refusal, str) else self._refusal from None


# The largest number of characters of a bad argument that a message shows. A convention.
_SHOWN = 200


def _shown(value: object) -> str:
    """Return the text of a bad argument for a message, truncated; its type where it has no text."""
    try:
        if isinstance(value, Fraction) and value.denominator & (value.denominator - 1) == 0:
            # a number that its declaration has made a fraction is shown as it was given
            value = value.numerator if value.denominator == 1 else float(value)
        text = repr(value)
    except Exception:
        # an integer of more than 4,300 digits, or an object whose own code fails
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def number(**named: Any) -> None:
    """Require a real number that is not NaN; infinities pass."""
    for name, value in named.items():
        # Python's own types first, for speed: checks against the abstract classes take ten times as long.
        if type(value) is int or type(value) is Fraction or (type(value) is float and value == value):
            continue
        if isinstance(value, bool) or not isinstance(value, AnyReal) or math.isnan(float_or_inf(value)):
            raise fail(name, value, "a number")
        if getattr(value, "itemsize", 0) > _FLOAT_BYTES:
            raise fail(name, value, "a number that a float holds: write float(...)")


def finite(**named: Any) -> None:
    """Require a finite number."""
    number(**named)
    for name, value in named.items():
        if type(value) is int or type(value) is Fraction:
            continue
        if not isinstance(value, Rational) and math.isinf(value):
            raise fail(name, value, "finite")


def positive(**named: Any) -> None:
    """Require a finite number above zero."""
    finite(**named)
    for name, value in named.items():
        if not value > 0:
            raise fail(name, value, "above zero")


def a_float(**named: Any) -> None:
    """Require a number within the range of floats, or infinity itself: not 10**400."""
    number(**named)
    for name, value in named.items():
        if not isinstance(value, float) and math.isinf(float_or_inf(value)):
            raise fail(name, value, "a number that a float holds")


def text(**named: Any) -> None:
    """Require a text."""
    for name, value in named.items():
        if not isinstance(value, str):
            raise fail(name, _kind(value), "a text")


def price(**named: Any) -> None:
    """Require a price or a weight between 1e-100 and 1e100, so that noise for a part of it is still within
    the range of floats.

    >>> price(epsilon=0.5)
    """
    positive(**named)
    for name, value in named.items():
        if not _LEAST_PRICE <= value <= 1 / _LEAST_PRICE:
            # an integer or a fraction out of range may have thousands of digits: its type is shown
            shown_value = value if isinstance(value, float) else type(value).__name__
            raise fail(name, shown_value, f"between {float(_LEAST_PRICE):g} and {float(1 / _LEAST_PRICE):g}")


def non_negative(**named: Any) -> None:
    """Require a finite number of at least zero."""
    finite(**named)
    for name, value in named.items():
        if not value >= 0:
            raise fail(name, value, "zero or above")


def probability(**named: Any) -> None:
    """Require a number in [0, 1]."""
    finite(**named)
    for name, value in named.items():
        if not 0 <= value <= 1:
            raise fail(name, value, "between 0 and 1")


def open_probability(**named: Any) -> None:
    """Require a number in (0, 1), both ends excluded."""
    finite(**named)
    for name, value in named.items():
        if not 0 < value < 1:
            raise fail(name, value, "strictly between 0 and 1")


def integer(*, at_least: int | None = None, **named: Any) -> None:
    """Require an integer, of at least `at_least` where that is given."""
    for name, value in named.items():
        if type(value) is not int and (isinstance(value, bool) or not isinstance(value, Integral)):
            raise fail(name, value, "an integer")
        if at_least is not None and value < at_least:
            raise fail(name, value, f"an integer of at least {at_least}")


def ordered(**named: Any) -> None:
    """Require that the two arguments, in the order of the call, satisfy first < second."""
    finite(**named)
    (first, low), (second, high) = named.items()
    if not low < high:
        raise InvalidInput(f"{first} must be below {second}, got {low!r} and {high!r}.")


def non_empty(**named: Sequence[Any]) -> None:
    """Require a sequence with at least one entry."""
    for name, value in named.items():
        if len(value) == 0:
            raise InvalidInput(f"{name} must not be empty.")


def flag(**named: Any) -> None:
    """Require True or False, and nothing that merely counts as one of them."""
    for name, value in named.items():
        if not isinstance(value, bool):
            raise fail(name, value, "True or False")


def one_of(choices: Sequence[str], **named: Any) -> None:
    """Require one of the `choices`."""
    for name, value in named.items():
        if not isinstance(value, str) or value not in choices:
            raise fail(name, value, " or ".join(repr(choice) for choice in choices))


def listed(**named: Any) -> tuple[Any, ...]:
    """Return the argument as a tuple; a string, a mapping, or an object that cannot be iterated is
    refused."""
    ((name, value),) = named.items()
    if (
        isinstance(value, str | bytes | Mapping)
        or not isinstance(value, Iterable)
        or getattr(value, "ndim", 1) == 0
    ):
        raise fail(name, value, "a list")
    return tuple(value)


def entries(**named: Any) -> tuple[Any, ...]:
    """Return the argument, a list with at least one entry, as a tuple."""
    values = listed(**named)
    non_empty(**dict.fromkeys(named, values))
    return values


def exact(value: Any, name: str) -> Fraction:
    """Return the argument as a rational, with no rounding: a float is taken at its binary value.

    >>> exact(0.5, "scale")
    Fraction(1, 2)
    """
    if type(value) is Fraction:
        return value
    finite(**{name: value})
    if isinstance(value, Rational):
        return Fraction(int(value.numerator), int(value.denominator))
    return Fraction(float(value))


def exactly(**named: Any) -> Fraction:
    """Return the argument as a rational, with no rounding."""
    ((name, value),) = named.items()
    return exact(value, name)


def as_float(**named: Any) -> float:
    """Return the argument as a finite float.

    Torch multiplies by floats only, and would refuse a Fraction, or an integer too large for a float, in the
    first step, after the charge.
    """
    finite(**named)
    ((name, value),) = named.items()
    result = float_or_inf(value)
    finite(**{name: result})
    return result


def float_or_inf(value: Any) -> float:
    """Return a number as a float; infinite where it is too large for one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def did_you_mean(name: str, names: Iterable[Any]) -> str:
    """Return the question "Did you mean ...?" with the most similar of `names` and a space before it; an
    empty text where none is similar.

    >>> did_you_mean("sexe", ["age", "Sex"])
    " Did you mean 'Sex'?"
    """
    from difflib import get_close_matches

    by_lower = {str(candidate).lower(): str(candidate) for candidate in reversed(list(names))}
    nearest = get_close_matches(str(name).lower(), by_lower, n=1, cutoff=0.6)
    return f" Did you mean {by_lower[nearest[0]]!r}?" if nearest else ""


def no_attribute(
    owner: str, name: str, names: Iterable[str], synonyms: Mapping[str, str] | None = None
) -> UnknownAttribute:
    """Return the error for an attribute that `owner` does not have. It suggests the most similar of `names`,
    or the name that `synonyms` gives for it."""
    # no search for names with an underscore, many of which Python itself looks up
    public = (
        [] if name.startswith("_") else [candidate for candidate in names if not candidate.startswith("_")]
    )
    hint = (synonyms or {}).get(name)
    suggestion = f" Did you mean {hint!r}?" if hint is not None else did_you_mean(name, public)
    return UnknownAttribute(f"{owner} has no attribute {name!r}.{suggestion}")


class NearestNames:
    """Makes the error for a misspelt attribute of a class suggest the most similar name. `hasattr` still
    works."""

    __slots__ = ()
    # names that other libraries use, and the name of this class for each
    _synonyms: ClassVar[Mapping[str, str]] = {}

    # Hidden from type checkers, which would otherwise accept every name as an attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                # a property of that name raised AttributeError: reading it again raises that error
                return object.__getattribute__(self, name)
            raise self._unknown(name)

    def _unknown(self, name: str) -> UnknownAttribute:
        """Return the error for an attribute that is not there."""
        return no_attribute(f"{type(self).__name__!r} object", name, dir(type(self)), self._synonyms)


def option_error(
    function_name: str, signature: inspect.Signature, args: Sequence[Any], named: Mapping[str, Any]
) -> UnknownOption | None:
    """Return the error of a call with arguments `args` and `named`: an unknown option (with the most similar
    name), too many positional arguments, or a missing option; None where the call fits the signature."""
    parameters = [p for name, p in signature.parameters.items() if name not in ("self", "cls")]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    options = [p.name for p in parameters if p.kind is not p.VAR_POSITIONAL]
    if unknown := [name for name in named if name not in options]:
        suggestion = did_you_mean(unknown[0], options)
        return UnknownOption(
            f"{function_name} has no option {unknown[0]!r}.{suggestion} It takes: {', '.join(options)}."
        )
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(args) > len(positional) and not any(p.kind is p.VAR_POSITIONAL for p in parameters):
        keyword_only = [name for name in options if name not in positional]
        count_words = "one value" if len(positional) == 1 else f"{len(positional) or 'no'} values"
        ellipsis = "..., " if positional else ""
        value = args[len(positional)]
        example = f": write {function_name}({ellipsis}{keyword_only[0]}={value!r})" if keyword_only else ""
        return UnknownOption(f"{function_name} takes {count_words} without a name, got {len(args)}{example}.")
    present = {*positional[: len(args)], *named}
    required = [
        p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if missing := [name for name in required if name not in present]:
        return UnknownOption(f"{function_name} needs {', '.join(missing)}.")
    return None


def _fit(signature: inspect.Signature) -> Callable[[int, Mapping[str, Any]], bool]:
    """Return a quick check of the number of positional arguments and of the named ones: where it is true,
    `option_error` returns None. It is always false for a function with *args or **kwargs."""
    parameters = [p for name, p in signature.parameters.items() if name not in ("self", "cls")]
    if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
        return lambda count, named: False
    options = {p.name for p in parameters}
    required = {p.name for p in parameters if p.default is p.empty}
    positional = [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]

    def fits(count: int, named: Mapping[str, Any]) -> bool:
        return (
            count <= len(positional) and named.keys() <= options and required <= {*positional[:count], *named}
        )

    return fits


def _kind(value: object) -> object:
    """Return a number, a text or None unchanged; for any other object, which may contain data, the name of
    its type."""
    return value if isinstance(value, int | float | str | bytes | None) else type(value).__name__


# What an argument must pass: called with its name and value, it raises, or returns the value.
Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that stands on a field or on a parameter: `epsilon: Annotated[Real, POSITIVE]`.

    `check` is called with one keyword, the name. It raises, or returns None, or what the value becomes.
    """

    check: Callable[..., Any]

    def __call__(self, name: str, value: Any) -> Any:
        converted = self.check(**{name: value})
        return value if converted is None else converted


TEXT, A_FLOAT = Limit(text), Limit(a_float)
FINITE, POSITIVE, NON_NEGATIVE = Limit(finite), Limit(positive), Limit(non_negative)
PROBABILITY, OPEN_PROBABILITY = Limit(probability), Limit(open_probability)
PRICE, INTEGER = Limit(price), Limit(integer)
# These convert the value as well: a list becomes a tuple, a number a Fraction or a finite float.
LISTED, NON_EMPTY = Limit(listed), Limit(entries)
EXACT, FLOAT = Limit(exactly), Limit(as_float)


def at_least(lowest: int) -> Limit:
    """Return the limit of an integer that is not below `lowest`."""
    return Limit(functools.partial(integer, at_least=lowest))


def at_most(highest: int) -> Limit:
    """Return the limit of a number that is not above `highest`."""
    return Limit(functools.partial(_not_above, highest))


def _not_above(highest: int, **named: Any) -> None:
    for name, value in named.items():
        if value > highest:
            raise fail(name, value, f"at most {highest:,}")


def between(lowest: Real, highest: Real) -> Limit:
    """Return the limit of a number in [lowest, highest]."""
    return Limit(functools.partial(_within, lowest, highest))


def _within(lowest: Real, highest: Real, **named: Any) -> None:
    finite(**named)
    for name, value in named.items():
        if not lowest <= value <= highest:
            raise fail(name, value, f"between {float(lowest):g} and {float(highest):g}")


def such_that(holds: Callable[[Any], bool], wanted: str) -> Limit:
    """Return the limit of an object for which `holds` is true; `wanted` completes "must be". The message
    shows numbers and texts, and the type of any other object, which may hold data."""

    def check(**named: Any) -> None:
        for name, value in named.items():
            if not holds(value):
                raise fail(name, _kind(value), wanted)

    return Limit(check)


def instance_of(kind: Any, wanted: str) -> Limit:
    """Return the limit of an object of `kind`, a class, a union of some, or a protocol; `wanted` says how one
    is made."""
    return such_that(lambda value: isinstance(value, kind), wanted)


def among(choices: Sequence[str]) -> Limit:
    """Return the limit of a text that is one of `choices`."""
    return Limit(functools.partial(one_of, choices))


def _a_flag(name: str, value: Any) -> Any:
    if not isinstance(value, bool):
        raise fail(name, _kind(value), "True or False")
    return value


# The checks of types without a limit: of fields, and of parameters. Fields of other types are checked by
# `__post_init__`, parameters by their function.
_FIELDS: Mapping[Any, Check] = {bool: _a_flag}
_PARAMETERS: Mapping[Any, Check] = {
    bool: _a_flag,
    str: TEXT,
    int: INTEGER,
    float: A_FLOAT,
    Real: Limit(number),
    int | float: Limit(number),
}


class _Unknown:
    """Stands for a name in an annotation that is imported for type checkers only."""

    def __class_getitem__(cls, _: Any) -> type:
        return cls


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        return vars(builtins).get(name, _Unknown)


def _checks(annotations: Mapping[str, Any], module: str, types: Mapping[Any, Check]) -> dict[str, Check]:
    """Return the check of each name whose annotation declares one; `types` has those of types without a
    limit."""
    names = _Names(vars(sys.modules[module]))
    declared = {
        name: eval(text, {}, names) if isinstance(text, str) else text for name, text in annotations.items()
    }
    found = {name: _check_of(annotation, types) for name, annotation in declared.items() if name != "return"}
    return {name: check for name, check in found.items() if check is not None}


def _check_of(annotation: Any, types: Mapping[Any, Check]) -> Check | None:
    """Return the check that an annotation declares; None if it declares none."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        if _Unknown in parts:
            # imported for type checkers only: the limit would silently not be there
            raise TypeError("a limit in an annotation is not imported when the program runs.")
        own = [_check_of(parts[0], types), *(part for part in parts[1:] if isinstance(part, Limit))]
        return _all_of([check for check in own if check is not None])
    if origin is Literal:
        return among(parts)
    if origin is tuple and parts[1:] == (...,):
        check = _check_of(parts[0], {})
        return check and _each(check)
    if origin in (Union, UnionType) and NoneType in parts:
        rest = tuple(part for part in parts if part is not NoneType)
        return _or_none(_check_of(Union[rest], types))  # noqa: UP007 - of as many as there are
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return functools.partial(_member, annotation)
    return types.get(annotation)


def _member(kind: type[StrEnum], name: str, value: Any) -> StrEnum:
    """Return the member of an enumeration that a text names."""
    try:
        return kind(value)
    except ValueError:
        raise fail(name, value, f"one of {', '.join(kind)}") from None


def _all_of(checks: Sequence[Check]) -> Check:
    def check(name: str, value: Any) -> Any:
        for one in checks:
            value = one(name, value)
        return value

    return checks[0] if len(checks) == 1 else check


def _or_none(check: Check | None) -> Check | None:
    return None if check is None else lambda name, value: None if value is None else check(name, value)


def _each(check: Check) -> Check:
    """Return the check of a list, which becomes a tuple, and of its entries."""

    def checked(name: str, value: Any) -> Any:
        return tuple(check(f"{name}[{i}]", plain(one)) for i, one in enumerate(listed(**{name: value})))

    return checked


def check_options(function: F) -> F:
    """Decorate a function so that a misspelt, missing or superfluous option, and a value of another type than
    declared, is refused with a DiscreetError. Tracebacks of DiscreetErrors, except ReleaseFailed, omit the
    frames inside the function."""
    signature = inspect.signature(function)
    positions = [name for name in signature.parameters if name not in ("self", "cls")]
    is_method = len(positions) < len(signature.parameters)
    fits = _fit(signature)
    # Constructors store their parameters unchanged until `fit`, as scikit-learn wants it.
    annotations = {} if function.__name__ == "__init__" else function.__annotations__
    # resolved at the first call, when the module is complete
    checks: dict[str, Check] | None = None

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        nonlocal checks
        if checks is None:
            checks = _checks(annotations, function.__module__, _PARAMETERS)
        # without `self` or `cls`, the first argument of a method
        placed = args[1:] if is_method else args
        if not fits(len(placed), named):
            owner = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
            error = option_error(owner, signature, placed, named)
            if error is not None:
                raise error
        for name, value in (*zip(positions, placed, strict=False), *named.items()):
            if name in checks:
                checks[name](name, value)
        try:
            return function(*args, **named)
        except ReleaseFailed:
            raise
        except DiscreetError as refusal:
            # A refusal is about the caller's arguments, so the traceback shows the caller's line and not the
            # frames below. Its cause, if it has one, stays.
            raise refusal.with_traceback(None)  # noqa: B904

    return wrapper  # type: ignore[return-value]


# These say themselves what was charged.
_TOLD = (ReleaseFailed, LedgerError, Halted)


@contextmanager
def door() -> Iterator[None]:
    """Mark an error that is raised inside with whether anything was charged since.

    A `LedgerError` may say that nothing was charged, which is true of what failed, and not of what was
    charged before: then it becomes a `ReleaseFailed`. What another thread has charged may be a part of this
    work or not: then nothing is said.
    """
    before, of_all = charges.get(), charges_of_all()
    try:
        yield
    except LedgerError as error:
        if charges.get() == before or "Nothing was charged" not in error.what:
            raise
        raise ReleaseFailed(
            f"after a charge, the ledger could not be used: {error.what.partition('. ')[0]}. What was "
            "charged stays charged (`discreet ledger show`)."
        ) from error
    except DiscreetError as error:
        if not isinstance(error, _TOLD):
            own = charges.get() > before
            if own or not error.settled:
                error.charged = None if charges_of_all() > of_all and not own else own
        raise


def paying(function: F) -> F:
    """Decorate a verb that charges a budget: its options are checked (`check_options`), and an error that it
    raises says whether anything was charged."""
    checked = check_options(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        try:
            with door():
                return checked(*args, **named)
        except ReleaseFailed:
            raise
        except DiscreetError as refusal:
            raise refusal.with_traceback(None)  # noqa: B904

    return wrapper  # type: ignore[return-value]


def an_object(value: Any) -> None:
    """Refuse a class where an object of it is needed."""
    if isinstance(value, type):
        raise InvalidInput(f"give an object, {value.__name__}(...), not the class itself.")


def checked(cls: type[C]) -> type[C]:
    """Decorate a dataclass so that its constructor checks the limits that stand on its fields, converts
    numpy's numbers to Python's own, and refuses a misspelt, missing or superfluous option with the most
    similar name."""
    original_init: Any = cls.__init__
    positions = [f.name for f in fields(cls) if f.init and not f.kw_only]  # type: ignore[arg-type]
    # resolved at the first call, when the module is complete
    checks: dict[str, Check] | None = None

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **named: Any) -> None:
        nonlocal checks
        if checks is None:
            checks = _checks_of_fields(cls)
        values = {**dict(zip(positions, args, strict=False)), **named}
        if len(values) < len(args) + len(named):
            raise option_error(cls.__name__, inspect.signature(original_init), args, named) or InvalidInput(
                f"{cls.__name__} got a value twice."
            )
        for name, value in values.items():
            value = plain(value)
            values[name] = checks[name](name, value) if name in checks else value
        try:
            original_init(self, **values)
        except TypeError:
            wrong = option_error(cls.__name__, inspect.signature(original_init), args, named)
            if wrong is None:
                raise
            raise wrong from None

    cls.__init__ = init  # type: ignore[method-assign]
    return cls


def _checks_of_fields(cls: type) -> dict[str, Check]:
    """Return the check of each field of a dataclass, as the class declares it that defines it last."""
    found: dict[str, Check] = {}
    for base in reversed(cls.__mro__):
        own = inspect.get_annotations(base)
        found = {name: check for name, check in found.items() if name not in own}
        found |= _checks(own, base.__module__, _FIELDS)
    return found


def field_values(thing: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by their names, as they are (`asdict` would copy them)."""
    return {field.name: getattr(thing, field.name) for field in fields(thing)}


def plain(value: Any) -> Any:
    """Return a numpy number as Python's own, also inside a tuple (one level deep); anything else unchanged.

    numpy's integers overflow silently (200 * 2 is 144 in uint8), and a price must not."""
    if type(value) in (int, float, bool, str, Fraction) or value is None:
        return value
    if type(value) is tuple:
        items = tuple(item if type(item) is tuple else plain(item) for item in value)
        return value if all(map(operator.is_, items, value)) else items
    if type(value).__module__ != "numpy" or getattr(value, "ndim", 1) != 0:
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, AnyReal) else value.item()
