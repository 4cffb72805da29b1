"""Checks arguments, with one template for all messages: the name, what is required, and the value.

They are called with keywords, so that the message can name the argument:
`_require.positive(epsilon=epsilon)`. Checks of numbers accept `int`, `float`, `Fraction` and numpy's numbers;
they refuse booleans and strings.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fractions import Fraction
from numbers import Integral, Rational
from numbers import Real as AnyReal
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

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
    """Return the error for a bad argument, in the template of all messages; `wanted` completes "must be". It
    is returned, not raised, so that `raise` stays visible at the call."""
    return InvalidInput(f"{name} must be {wanted}, got {_shown(value)}.", option=name)


# The largest number of characters of a bad argument that a message shows. A convention.
_SHOWN = 200


def _shown(value: object) -> str:
    """Return the text of a bad argument for a message, truncated; its type where it has no text."""
    try:
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


def _a_number(name: str, value: object) -> None:
    number(**{name: value})


def _a_float(name: str, value: object) -> None:
    a_float(**{name: value})


def _an_integer(name: str, value: Any) -> None:
    integer(**{name: value})


def _a_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise fail(name, _kind(value), "True or False")


def _a_text(name: str, value: object) -> None:
    text(**{name: value})


# The check of an argument, by the declared type of its parameter. Arguments of other types are checked by the
# function itself.
_CHECKS: dict[frozenset[str], Callable[[str, object], None]] = {
    frozenset(("bool",)): _a_flag,
    frozenset(("str",)): _a_text,
    frozenset(("int",)): _an_integer,
    frozenset(("float",)): _a_float,
    frozenset(("Real",)): _a_number,
    frozenset(("int", "float")): _a_number,
    frozenset(("int", "float", "Fraction")): _a_number,
}


def _declared_checks(function: Callable[..., Any]) -> dict[str, tuple[Callable[[str, object], None], bool]]:
    """Return the check of each parameter that is declared as a flag, a number or a text, and whether it may
    be None. Constructors are not checked: scikit-learn's estimators must store their parameters unchanged
    until `fit`."""
    if function.__name__ == "__init__":
        return {}
    checks = {}
    for name, annotation in function.__annotations__.items():
        kinds = frozenset(str(annotation).split(" | "))
        check = _CHECKS.get(kinds - {"None"})
        if check is not None and name != "return":
            checks[name] = (check, "None" in kinds)
    return checks


def check_options(function: F) -> F:
    """Decorate a function so that a misspelt, missing or superfluous option, and a value of another type than
    declared, is refused with a DiscreetError. Tracebacks of DiscreetErrors, except ReleaseFailed, omit the
    frames inside the function."""
    signature = inspect.signature(function)
    positions = [name for name in signature.parameters if name not in ("self", "cls")]
    is_method = len(positions) < len(signature.parameters)
    fits = _fit(signature)
    checks = _declared_checks(function)

    @functools.wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        # without `self` or `cls`, the first argument of a method
        placed = args[1:] if is_method else args
        if not fits(len(placed), named):
            owner = type(args[0]).__name__ if function.__name__ == "__init__" else function.__name__
            error = option_error(owner, signature, placed, named)
            if error is not None:
                raise error
        for name, value in (*zip(positions, placed, strict=False), *named.items()):
            check, optional = checks.get(name, (None, True))
            if check is not None and not (value is None and optional):
                check(name, value)
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


def named_options(cls: type[C]) -> type[C]:
    """Decorate a class so that a misspelt, missing or superfluous option of its constructor is refused with a
    DiscreetError that names the nearest one."""
    original_init: Any = cls.__init__
    signature = inspect.signature(original_init)

    @functools.wraps(original_init)
    def init(self: Any, *args: Any, **named: Any) -> None:
        error = option_error(cls.__name__, signature, args, named)
        if error is not None:
            raise error
        original_init(self, *args, **named)

    cls.__init__ = init  # type: ignore[method-assign]
    return cls
