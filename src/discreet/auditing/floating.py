"""Floating-point attacks: noise drawn in floating point leaves traces in the last bits that the mathematics
of the noise does not have.

Textbook Laplace noise is a logarithm of one of 2^53 numbers, so most floats can never come out, and which
ones can depends on the true value: an output may be possible under one table and impossible under its
neighbor, whatever epsilon was claimed. Both attacks use outputs alone, and `audit.from_outputs` measures how
well they tell the tables apart. They succeed against noise in floats, and find nothing where outputs are
multiples of a fixed step.

>>> import numpy as np
>>> rng = np.random.default_rng(1)
>>> naive = lambda x: x + rng.laplace(scale=10)
>>> floating_point_attack(naive, 1.0, 0.0, scale=10, claim=0.1, runs=1000).refuted
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .audit import from_outputs
from .claims import as_claim
from .outputs import atoms, number
from .report import Report

# numpy's Laplace noise is scale ln(U + U) below zero and -scale ln((2 - U) - U) above, with U a multiple of
# 2^-53, and 2 - U rounded to a multiple of 2^-52: the argument of the logarithm is a multiple of 2^-52 below,
# and of 2^-53 above.
_GRID_BELOW, _GRID_ABOVE = 1 << 52, 1 << 53


def explained(output: float, value: float, scale: float, *, reach: int = 6) -> bool:
    """Return whether `output` can be value + textbook Laplace noise: some u on the grid has value -+ scale
    ln(u) exactly equal to it.

    Mironov 2012: u is computed from the output up to rounding, and the `reach` grid points on either side of
    it are tried. The grid is that of numpy's sampler. NaN and infinities are not explained.
    """
    noise = output - value
    if not math.isfinite(noise):
        return False
    sign, grid = (1.0, _GRID_BELOW) if noise < 0 else (-1.0, _GRID_ABOVE)
    nearest = round(math.exp(-abs(noise) / scale) * grid)
    return any(
        value + sign * (scale * math.log(k / grid)) == output
        for k in range(max(1, nearest - reach), min(grid, nearest + reach) + 1)
    )


def lowest_bit(outputs: Sequence[float] | Any) -> NDArray[np.int64]:
    """Return the exponent e of the last bit that is set: output = odd * 2^e. Zero, NaN and infinities give
    1024, which no other float has.

    >>> lowest_bit([1.0, 0.75, 6.0, 0.1]).tolist()
    [0, -2, 1, -55]
    """
    values = np.asarray(outputs, dtype=np.float64)
    usable = np.isfinite(values) & (values != 0)
    mantissa, exponent = np.frexp(np.where(usable, values, 1.0))
    integers = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    last = np.log2((integers & -integers).astype(np.float64)).astype(np.int64)
    return np.where(usable, exponent.astype(np.int64) - 53 + last, 1024)


def _values(outputs: Sequence[Any]) -> list[float]:
    """Return the first number of each output."""
    values = [number(next(iter(atoms(output)), None)) for output in outputs]
    if all(math.isnan(value) for value in values):
        raise InvalidInput(
            "these attacks look at numbers, and the outputs begin with none. Nothing was measured."
        )
    return values


def _outputs_on_both(
    run: Callable[[Any], Any], on: Any, neighbor: Any, runs: int
) -> tuple[list[float], list[float]]:
    """Return the first numbers of `runs` outputs on each table."""
    return _values([run(on) for _ in range(runs)]), _values([run(neighbor) for _ in range(runs)])


def floating_point_attack(
    run: Callable[[Any], Any],
    on: Any,
    neighbor: Any,
    *,
    scale: float,
    values: tuple[float, float] | None = None,
    claim: Any,
    confidence: float = 0.95,
    runs: int = 1000,
) -> Report:
    """Run the attack of Mironov 2012: which of the two true values could have given this output at all?

    `values` are the exact answers on both tables (default: `on` and `neighbor` are numbers themselves);
    `scale` is that of the noise.
    """
    _require.positive(scale=scale)
    _require.integer(runs=runs, at_least=40)
    stated = as_claim(claim, run, None)
    a, b = (float(on), float(neighbor)) if values is None else (float(values[0]), float(values[1]))
    explained_by = [
        [(explained(y, a, float(scale)), explained(y, b, float(scale))) for y in outputs]
        for outputs in _outputs_on_both(run, on, neighbor, runs)
    ]
    return from_outputs(*explained_by, claim=stated, confidence=confidence)


def precision_attack(
    run: Callable[[Any], Any],
    on: Any,
    neighbor: Any,
    *,
    claim: Any,
    confidence: float = 0.95,
    runs: int = 2000,
) -> Report:
    """Run the precision-based attack of Haney et al. 2022: a sum of floats has no finer bits than the larger
    of them had.

    Noise near zero keeps its last bits when the true value is 0, and loses them when it is added to 1. The
    attack works however well the noise was drawn, as long as it is rounded to a float before or while it is
    added.
    """
    _require.integer(runs=runs, at_least=40)
    stated = as_claim(claim, run, None)
    lowest_bits = [lowest_bit(outputs).tolist() for outputs in _outputs_on_both(run, on, neighbor, runs)]
    return from_outputs(*lowest_bits, claim=stated, confidence=confidence)
