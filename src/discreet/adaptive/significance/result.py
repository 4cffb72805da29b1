"""Defines the result of a private test, and common parts of all tests: tails of noise, simulations, checks.

Where a p-value depends on a number that is only known with noise (a nuisance parameter: how many people there
are), it is the largest over all values of that number that the noise allows, except with probability
`FAILURE_PROBABILITY`, and `FAILURE_PROBABILITY` is added to it (Berger & Boos 1994). It is then valid for
every value of the number, and never below a millionth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ... import _require
from ..._errors import InvalidInput
from ..._public import Public
from ..._registry import described
from ...mechanisms import arrow_columns
from ...mechanisms.statistics import require_rows
from ...sampling import Entropy

Floats = NDArray[np.float64]
ALTERNATIVES = ("two-sided", "greater", "less")
# The probability that the noise was larger than a p-value allows for; it is added to the p-value, which is
# therefore never below it. A smaller one widens the range of the nuisance parameter. Chosen by hand,
# not tuned.
FAILURE_PROBABILITY = 1e-6
# A generous bound on the relative rounding error of sums of floats.
_ROUNDING = 1e-9
# Above this scale geometric variables may exceed 64 bits, and numpy would return the largest integer for
# them.
_LARGEST_DISCRETE_SCALE = 2.0**50


@described("adaptive.TestResult")
@dataclass(frozen=True, slots=True, kw_only=True)
class TestResult:
    """Holds the noisy statistic and its p-value.

    `people`: the noisy number of people (one row each) who were compared, where the test released it.
    """

    statistic: float
    pvalue: float
    people: int | None = None

    # pytest would take a class whose name begins with Test for a class of tests
    __test__: ClassVar[bool] = False


def check_unit_and_epsilon(public: Any, epsilon: Any) -> None:
    """Refuse public facts whose unit of privacy is not one row, and an epsilon whose noise would leave the
    range of floats: the release would fail after its charge."""
    require_rows(public)
    _require.price(epsilon=epsilon)


def check_columns(**columns: Any) -> None:
    """Refuse arguments that are not names of columns, or name the same column twice."""
    for argument, column in columns.items():
        if not isinstance(column, str):
            raise _require.fail(argument, column, "the name of a column")
    if len(set(columns.values())) < len(columns):
        raise InvalidInput(
            f"{' and '.join(columns)} are the same column. Nothing was read. Name two columns."
        )


def check_runs(runs: Any) -> None:
    """Refuse too few or too many simulations."""
    _require.integer(runs=runs, at_least=99)
    if runs > 1_000_000:
        raise _require.fail("runs", runs, "at most 1000000")


def conservative_pvalue(pvalue: float, allowance: float = 0.0) -> float:
    """Return the p-value, rounded up, plus the allowance (such as FAILURE_PROBABILITY); at most 1, and above
    0, because a probability that underflows to 0 is not 0."""
    return min(1.0, pvalue * (1 + _ROUNDING) + allowance + 1e-300)


def survival(points: Any, scale: float) -> Floats:
    """Return P(L >= m) for discrete Laplace noise L."""
    m = np.asarray(points, dtype=np.float64)
    upper = np.exp(-np.where(m >= 1, m, 1 - m) / scale) / (1 + math.exp(-1 / scale))
    tails: Floats = np.where(m >= 1, upper, 1 - upper)
    return tails


def random_source(entropy: Entropy) -> np.random.Generator:
    """Return a generator for simulations under the null hypothesis. They read no data, so that a fast
    pseudo-random generator is enough."""
    return np.random.default_rng(entropy.integer(128))


def simulated(random: np.random.Generator, scale: float, shape: tuple[int, ...]) -> Floats:
    """Draw discrete Laplace noise for simulations, as the difference of two geometric variables. For very
    large scales draw rounded continuous Laplace noise: the two differ by less than the resolution of
    floats."""
    if scale > _LARGEST_DISCRETE_SCALE:
        return np.rint(random.laplace(0.0, scale, shape))
    success = -math.expm1(-1 / scale)
    noise: Floats = (random.geometric(success, shape) - random.geometric(success, shape)).astype(np.float64)
    return noise


def monte_carlo(observed: float, under_null: Floats) -> float:
    """Return (1 + the number of simulated statistics that are at least the observed one) / (1 + their
    number): a p-value that is valid for any number of simulations."""
    return float((1 + np.count_nonzero(under_null >= observed)) / (1 + len(under_null)))


def pvalue_for(greater: float, less: float, alternative: str) -> float:
    """Return the p-value for an alternative, from the two one-sided p-values."""
    if alternative == "two-sided":
        return min(1.0, 2 * min(greater, less))
    return greater if alternative == "greater" else less


def values_in(batch: Any, index: int, column: str, public: Public) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the numbers of a column, clipped to its bounds, and which rows have a number."""
    array = arrow_columns.unpacked(batch.column(index))
    bounds = public.bounds(column)
    values = np.clip(
        arrow_columns.numbers(array, column).astype(np.float64), float(bounds.lower), float(bounds.upper)
    )
    return values, arrow_columns.present(array)


def groups_in(
    batch: Any, index: int, column: str, public: Public, groups: tuple[Any, ...]
) -> NDArray[np.int64]:
    """Return, for each row, the index of its category among `groups`, or -1."""
    values = public.categories(column).values
    codes = arrow_columns.categories(arrow_columns.unpacked(batch.column(index)), values, column)
    # the -1 at the end is for code -1, a missing value
    index_of = np.array([*(groups.index(v) if v in groups else -1 for v in values), -1], dtype=np.int64)
    indices: NDArray[np.int64] = index_of[codes]
    return indices


def check_groups(
    public: Public, column: str, groups: Any, at_least: int = 2, at_most: int | None = None
) -> Any:
    """Return the categories to compare: `groups`, or all declared categories where that is None. Refuses
    undeclared or repeated ones, and fewer or more than allowed."""
    declared = public.categories(column).values
    chosen = declared if groups is None else _require.listed(groups=groups)
    if any(isinstance(v, bool) or not isinstance(v, str | int) or v not in declared for v in chosen):
        raise _require.fail("groups", chosen, f"declared categories of column {column!r}")
    too_many = at_most is not None and len(chosen) > at_most
    if len(set(chosen)) < len(chosen) or len(chosen) < at_least or too_many:
        number = f"at least {at_least}" if at_most is None else str(at_most)
        raise _require.fail("groups", chosen, f"{number} different categories")
    return chosen
