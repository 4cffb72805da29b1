"""Checks the arguments of every function of this package: finite numbers, variances of zero or above, shapes
that match."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from .. import _require
from .._errors import InvalidInput

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def numbers(name: str, values: Any, *, dimensions: int | None = 1) -> Floats:
    """Return the argument as a new array of finite floats, with this many dimensions (None: any number of
    them); the error names the first bad entry."""
    array = as_array(name, values)
    fits = dimensions is None or array.ndim == dimensions
    _require.that(fits, f"{name} must have {dimensions} dimension(s), got shape {array.shape}.")
    refuse_where(name, array, ~np.isfinite(array), "finite")
    return array


def variances(values: Any, shape: tuple[int, ...], *, zero: bool = True, infinite: bool = False) -> Floats:
    """Return variances of this shape; a single number is taken for all entries.

    A variance of zero marks a value that is known exactly, and an infinite one a value that was not measured.
    Each is refused unless `zero` or `infinite` allows it.
    """
    array = as_array("variances", values)
    with _require.refusing(f"variances must have shape {shape}, one for each value, got {array.shape}."):
        array = np.array(np.broadcast_to(array, shape), dtype=np.float64)
    refuse_where("variances", array, np.isnan(array) | (array < 0), "zero or above")
    if not zero:
        refuse_where("variances", array, array == 0, "above zero")
    if not infinite:
        refuse_where("variances", array, np.isinf(array), "finite")
    return array


def for_each(name: str, values: Any, length: int, what: str) -> Floats:
    """Return `length` finite numbers, one for each of the things that the error calls `what`; a single number
    is repeated."""
    array = numbers(name, values, dimensions=None)
    _require.that(
        array.shape in ((), (length,)),
        f"{name} must be one number, or one for each of the {length} {what}, got shape {array.shape}.",
    )
    return np.array(np.broadcast_to(array, (length,)))


def shaped(name: str, array: NDArray[Any], shape: tuple[int, ...], why: str = "") -> None:
    """Refuse an array of another shape than `shape`; `why` follows it in the error."""
    _require.that(array.shape == shape, f"{name} must have shape {shape}{why}, got {array.shape}.")


def measured_only(name: str, values: Any, measured: NDArray[Any], why: str = "") -> Floats:
    """Return numbers of the shape of the mask `measured`; `why` says in the error where it comes from. They
    must be finite where the mask is true; elsewhere any value is accepted and replaced by zero."""
    array = as_array(name, values)
    shaped(name, array, measured.shape, why)
    refuse_where(name, array, ~np.isfinite(array) & measured, "finite")
    return np.where(measured, array, 0.0)


def matrix(name: str, values: Any, *, rows: int | None = None, columns: int | None = None) -> Any:
    """Return a dense float matrix, or a sparse one in CSR form, with finite entries and the stated shape."""
    if sparse.issparse(values):
        checked = sparse.csr_array(values, dtype=np.float64)
        _require.that(np.isfinite(checked.data).all(), f"{name} must have finite entries only.")
    else:
        checked = np.atleast_2d(numbers(name, values, dimensions=None))
        _require.that(checked.ndim == 2, f"{name} must be a matrix, got shape {checked.shape}.")
    for axis, wanted in ((0, rows), (1, columns)):
        fits, kind = wanted is None or checked.shape[axis] == wanted, ("rows", "columns")[axis]
        _require.that(fits, f"{name} must have {wanted} {kind}, got shape {checked.shape}.")
    return checked


def none_of(bad: Any, what: str, words: str, numbers: NDArray[Any] | None = None) -> None:
    """Refuse where the mask `bad` is true anywhere: the error says of which of the things `what`, by their
    positions or by their `numbers`, and goes on with `words`."""
    if bad.any():
        positions = np.flatnonzero(bad)
        named = positions if numbers is None else np.sort(numbers[positions])
        raise InvalidInput(f"{some(what, named)} {words}")


def some(name: str, positions: NDArray[Any], limit: int = 6) -> str:
    """Return the first few positions, for messages: `cells 0, 3, 4 and 12 more`."""
    shown = ", ".join(str(p) for p in positions[:limit].tolist())
    more = f" and {len(positions) - limit} more" if len(positions) > limit else ""
    return f"{name} {shown}{more}"


def as_array(name: str, values: Any) -> Floats:
    """Return numbers as a new array of floats, finite or not; refuse a text, an array of booleans, and
    complex numbers."""
    flags = isinstance(values, np.ndarray) and values.dtype == bool
    _require.must(not (flags or isinstance(values, str | bytes)), name, type(values).__name__, "numbers")
    with _require.refusing(f"{name} must be numbers in a regular array."):
        # numpy would drop the imaginary parts
        _require.must(not np.iscomplexobj(values), name, "complex numbers", "real numbers")
        return np.array(values, dtype=np.float64)


def refuse_where(name: str, array: Floats, bad: NDArray[Any], wanted: str) -> None:
    """Refuse an array that has an entry where the mask `bad` is true, and name the first such entry."""
    if not bad.any():
        return
    if array.ndim == 0:
        raise _require.fail(name, float(array), wanted)
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    raise _require.fail(f"{name}[{', '.join(map(str, index))}]", float(array[index]), wanted)
