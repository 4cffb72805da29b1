"""Turns any output into numbers and labels, which attacks use.

A release, a number, an array, a data frame, a dictionary, a model, a tuple of answers until a halt: each is
taken apart into leaves, and every leaf has a path, as in `output['age'][3]`. Numbers go into columns, one
per path; all paths and leaves together are also a label, for outputs with few values. Keys belong to the
paths: which groups are there tells as much as what is in them.

Computes Clopper-Pearson limits of an attack's true- and false-positive rates, and the lower bounds on
epsilon that follow from them.

An attack says "this came from the first table" or not. On runs it was not built from, count how often it says
so rightly and how often wrongly. Both probabilities have exact confidence limits, whatever the attack is;
from these follow lower bounds on epsilon at any delta, on the mu of Gaussian DP, and on the distance to any
claimed trade-off curve.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, is_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from numbers import Complex, Real
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from .. import _require
from .._errors import InvalidInput
from .._require import at_least
from ..accounting.conversion import gaussian_epsilon
from ..mechanisms.protocols import Release

Floats = NDArray[np.float64]
PathAndLeaf = tuple[str, Any]
# Objects nested deeper than this are not taken apart, so that the recursion ends for an object that contains
# itself. Chosen by hand, not tuned.
DEPTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """Stands for a run that ended in an exception: whoever ran it sees the exception's type and message, so
    it is an output like any other.
    """

    kind: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """Stands for an output without visible contents: its repr is an address in memory, which says nothing."""

    kind: str


def leaves(output: Any, path: str = "", depth: int = 0) -> Iterator[PathAndLeaf]:
    """Yield the leaves of an output, in a fixed order, each with its path.

    >>> list(leaves({"b": (1, None), "a": [2.5, "x"]}))
    [("['a'][0]", 2.5), ("['a'][1]", 'x'), ("['b'][0]", 1), ("['b'][1]", None)]
    """
    leaf, items = _contents(output) if depth < DEPTH else (_text_or_opaque(output), None)
    if items is None:
        yield path, leaf
        return
    for name, item in items:
        yield from leaves(item, path + name, depth + 1)


def _contents(output: Any) -> tuple[Any, Iterator[tuple[str, Any]] | None]:
    """Return (leaf, None) for a leaf; for anything else (None, its items, each with its piece of the
    path)."""
    if isinstance(output, np.generic):
        return _contents(output.item())
    if output is None or isinstance(
        output, Opaque | bool | int | float | str | bytes | Fraction | Decimal | date | timedelta
    ):
        return output, None
    if isinstance(output, Release):
        return None, iter((("", output.value),))
    if isinstance(output, Complex) and not isinstance(output, Real):
        return None, iter(((".real", output.real), (".imag", output.imag)))
    if isinstance(output, Mapping):
        return None, ((f"[{key!r}]", output[key]) for key in sorted(output, key=repr))
    if isinstance(output, Set):
        return tuple(sorted(map(repr, output))), None
    if isinstance(output, np.ndarray):
        return _contents(output.tolist())
    if isinstance(output, Sequence | Iterator):
        return None, ((f"[{i}]", item) for i, item in enumerate(output))
    return _object(output)


def _object(output: Any) -> tuple[Any, Iterator[tuple[str, Any]] | None]:
    """Return the parts of a data frame or tensor by its own methods (no package is imported for it), of other
    objects by their attributes."""
    if is_dataclass(output) and not isinstance(output, type):
        return None, ((f".{name}", value) for name, value in _require.field_values(output).items())
    # Arrow, pandas, torch, polars
    for method in ("to_pydict", "to_pylist", "to_dict", "tolist", "to_list"):
        if callable(convert := getattr(output, method, None)):
            return None, iter((("", convert()),))
    attributes = getattr(output, "__dict__", None)
    if attributes and not isinstance(output, type):
        return None, ((f".{name}", attributes[name]) for name in sorted(attributes))
    return _text_or_opaque(output), None


def _text_or_opaque(output: Any) -> str | Opaque:
    """Return the repr of an output, or `Opaque` where the repr holds an address in memory."""
    text = repr(output)
    return Opaque(kind=type(output).__qualname__) if " at 0x" in text else text


def atoms(output: Any) -> list[Any]:
    """Return the leaves of an output without their paths.

    >>> atoms({"b": (1, None), "a": [2.5, "x"]})
    [2.5, 'x', 1, None]
    """
    return [leaf for _, leaf in leaves(output)]


def split_into_leaves(outputs: Sequence[Any]) -> list[list[PathAndLeaf]]:
    """Return the leaves of each output; refused where there is nothing to look at."""
    runs = [list(leaves(output)) for output in outputs]
    for run in runs:
        if len(run) == 1 and run[0][0] == "" and isinstance(run[0][1], Opaque):
            raise InvalidInput(
                f"an output is a {run[0][1].kind} that cannot be looked into. Return numbers, text, arrays, "
                "tables, dictionaries or lists of these, or an object with attributes."
            )
    return runs


def numeric_paths(runs: Sequence[Sequence[PathAndLeaf]]) -> list[str]:
    """Return the paths at which some run has a number."""
    return list(dict.fromkeys(path for run in runs for path, leaf in run if not math.isnan(number(leaf))))


def _label(parts: Sequence[PathAndLeaf]) -> Hashable:
    """Return a label that is equal for equal outputs only: 0.0 is not -0.0, True is not 1, and one NaN is
    like another. Floats and Decimals stand there as text, since a NaN differs from itself."""
    return tuple(
        (path, type(leaf).__name__, repr(leaf) if isinstance(leaf, float | Decimal) else leaf)
        for path, leaf in parts
    )


@dataclass(frozen=True, eq=False)
class Outputs:
    """Holds the outputs of many runs: `numbers` has a row per run, NaN where there is none; `labels` the
    complete output of each.

    The first column is how many leaves there were; the others are the `paths`.
    """

    numbers: Floats
    labels: list[Hashable]
    paths: tuple[str, ...]

    @classmethod
    def of(cls, outputs: Sequence[Any], paths: Sequence[str] | None = None) -> Outputs:
        """Return outputs as a matrix with a column for each of `paths`; by default, for each path at which
        some output has a number."""
        runs = split_into_leaves(outputs)
        return cls.of_leaves(runs, numeric_paths(runs) if paths is None else paths)

    @classmethod
    def of_leaves(cls, runs: Sequence[Sequence[PathAndLeaf]], paths: Sequence[str]) -> Outputs:
        """Return the matrix of outputs that are split into leaves already."""
        column = {path: j for j, path in enumerate(paths, start=1)}
        numbers = np.full((len(runs), len(column) + 1), np.nan)
        for i, run in enumerate(runs):
            numbers[i, 0] = len(run)
            for path, leaf in run:
                if path in column:
                    numbers[i, column[path]] = number(leaf)
        return cls(numbers, [_label(run) for run in runs], tuple(paths))

    @property
    def width(self) -> int:
        return int(self.numbers.shape[1]) - 1

    def part(self, start: int, stop: int) -> Outputs:
        return Outputs(self.numbers[start:stop], self.labels[start:stop], self.paths)

    def __len__(self) -> int:
        return len(self.labels)


def floats(**argument: Any) -> Floats:
    """Return the one argument as an array of floats; if it is not made of numbers, the error names it."""
    ((name, values),) = argument.items()
    with _require.refusing(f"{name} must be numbers, all rows of one length."):
        # a tensor of torch that has a gradient is converted without it
        return np.asarray(values.detach() if hasattr(values, "detach") else values, dtype=float)


def number(leaf: Any) -> float:
    """Return a number, or a text that is a number, as a float (huge ones as infinite); a duration in seconds,
    and a date in days; NaN for anything else."""
    if isinstance(leaf, Real | Fraction):
        return _require.float_or_inf(leaf)
    if isinstance(leaf, Decimal | str):
        try:
            return float(leaf)
        except ValueError:
            return math.nan
    if isinstance(leaf, timedelta):
        return leaf.total_seconds()
    if isinstance(leaf, datetime):
        return (
            leaf.toordinal()
            + (leaf.hour * 3600 + leaf.minute * 60 + leaf.second + leaf.microsecond / 1e6) / 86_400
        )
    return float(leaf.toordinal()) if isinstance(leaf, date) else math.nan


# Limits are widened by this relative amount: scipy's quantiles of the beta distribution have relative errors
# of about 1e-12, so a thousand times that is safe, and still negligible.
_ROUNDING = 1e-9


def fresh_order(count: int) -> NDArray[np.int64]:
    """Return the numbers 0, ..., count - 1 in an order that is drawn anew at each call.

    Every split of given results into some that choose and some that measure, and every tie among them, goes
    by such an order. A caller may give results sorted, or members before others: by a rule that is fixed
    beforehand the same ranks would then measure each time, and no count would be binomial.
    """
    return np.random.default_rng().permutation(count)


def lower_limit(hits: Any, trials: Any, level: float) -> Any:
    """Return the lower Clopper-Pearson limit of the probability of an event that occurred `hits` times in
    `trials`.

    Guarantee: above the true probability with probability at most `level`, whatever that and the number of
               trials are.
    Proof:     Clopper & Pearson 1934: the quantile of Beta(hits, trials - hits + 1) solves P[Bin(trials, p)
               >= hits] = level.
    """
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    bound = stats.beta.ppf(level, np.maximum(hits, 1), trials - hits + 1) * (1 - _ROUNDING)
    return np.where(hits > 0, bound, 0.0)


def upper_limit(hits: Any, trials: Any, level: float) -> Any:
    """Return the upper Clopper-Pearson limit: below the true probability with probability at most `level`, as
    in `lower_limit`."""
    hits, trials = np.asarray(hits, float), np.asarray(trials, float)
    bound = stats.beta.isf(level, hits + 1, np.maximum(trials - hits, 1))
    bound = np.nextafter(bound + _ROUNDING * np.minimum(bound, 1 - bound), 1.0)
    return np.where(hits < trials, bound, 1.0)


def epsilon_of_limits(low: Any, high: Any, delta: float) -> Any:
    """Return the least epsilon with which a true-positive rate of `low` or more and a false-positive rate of
    `high` or less can go together.

    Both the attack's event and its complement are used: low <= e^eps high + delta, and 1 - high <= e^eps (1 -
    low) + delta.
    """
    low, high = np.asarray(low, float), np.asarray(high, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        event = np.where(low > delta, np.log((low - delta) / high), -np.inf)
        complement = np.where(1 - high > delta, np.log((1 - high - delta) / (1 - low)), -np.inf)
    return np.maximum(np.maximum(event, complement), 0.0)


def newton_logistic(design: Floats, truth: Floats, ridge: float, rounds: int) -> Floats:
    """Return the weights of a logistic regression with a ridge penalty, after so many steps of Newton's."""
    weights = np.zeros(design.shape[1])
    for _ in range(rounds):
        fitted = 1 / (1 + np.exp(-np.clip(design @ weights, -30, 30)))
        gradient = design.T @ (truth - fitted) - ridge * weights
        hessian = (design * (fitted * (1 - fitted))[:, None]).T @ design + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(hessian, gradient)
    return weights


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Guesses:
    """Counts how an attack did on fresh runs: it said "first table" `hits` times in `first` runs on the first
    table, and `false_hits` times in `second` runs on the other.

    >>> round(Guesses(hits=900, first=1000, false_hits=100, second=1000).epsilon(confidence=0.95), 1)
    2.0
    """

    hits: Annotated[int, at_least(0)]
    first: Annotated[int, at_least(1)]
    false_hits: Annotated[int, at_least(0)]
    second: Annotated[int, at_least(1)]

    @classmethod
    def of(cls, scores: Any, others: Any, threshold: float) -> Guesses:
        """Count the scores, of runs on the first table and on the other, that reach the threshold."""
        hits, false_hits = (int((x >= threshold).sum()) for x in (scores, others))
        return cls(hits=hits, first=len(scores), false_hits=false_hits, second=len(others))

    def __post_init__(self) -> None:
        if self.hits > self.first or self.false_hits > self.second:
            raise InvalidInput(f"more hits than runs: {self!r}.")

    def limits(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return (TPR at least, FPR at most), both true together with probability `confidence`.

        Guarantee: fails with probability at most 1 - confidence.
        Proof:     one-sided Clopper-Pearson limits, each at half the level, and the union bound.
        Assumes:   the attack was fixed before these runs were made, and the runs are independent.
        """
        _require.open_probability(confidence=confidence)
        level = (1 - confidence) / 2
        low = lower_limit(self.hits, self.first, level)
        return float(low), float(upper_limit(self.false_hits, self.second, level))

    def epsilon(self, *, delta: float = 0.0, confidence: float = 0.95) -> float:
        """Return a lower bound on epsilon: with probability `confidence`, whatever ran is not (x, delta)-DP
        for any x below it.

        Proof: (epsilon, delta)-DP bounds P(E) <= e^epsilon P'(E) + delta for every event, both ways (Kairouz,
               Oh & Viswanath 2015, arXiv:1311.0776); the attack's limits contradict it for smaller epsilon.
        """
        _require.probability(delta=delta)
        return float(epsilon_of_limits(*self.limits(confidence), float(delta)))

    def mu(self, *, confidence: float = 0.95) -> float:
        """Return a lower bound on mu: with probability `confidence`, whatever ran is not x-GDP for any x
        below it.

        Proof: mu-GDP means TPR <= Phi(Phi^-1(FPR) + mu) (Dong, Roth & Su 2022, arXiv:1905.02383), which rises
               with FPR.
        """
        low, high = self.limits(confidence)
        if low <= 0 or high >= 1:
            return 0.0
        return max(0.0, float(special.ndtri(low) - special.ndtri(high)) * (1 - _ROUNDING))

    def gaussian_epsilon(self, *, delta: float, confidence: float = 0.95) -> float:
        """Return the epsilon of the Gaussian that `mu` allows: a lower bound *if* what ran is exactly
        Gaussian; far sharper at small delta.

        Assumes: the mechanism's trade-off curve is that of some N(0, 1) against N(mu, 1), as for the Gaussian
                 mechanism.
        """
        _require.open_probability(delta=delta)
        mu = self.mu(confidence=confidence)
        return gaussian_epsilon(mu, float(delta)) * (1 - _ROUNDING) if mu > 0 else 0.0

    def below(self, tradeoff: Any, *, confidence: float = 0.95) -> bool:
        """Return whether, with probability `confidence`, the attack beats a claimed trade-off curve (FPR ->
        least FNR)."""
        low, high = self.limits(confidence)
        return bool(1 - low < tradeoff(high))
