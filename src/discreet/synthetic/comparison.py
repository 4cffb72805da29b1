"""Compares a synthetic copy (generated rows that stand for the data) with the data, in many ways. NOT
private: for the steward who holds the data, or for public data.

Nothing here goes through the curator, which charges for private results, so nothing of it may be shown to
anybody who may not see the data. The comparison whose result may be shown has a price:
`quality.CopyDistance`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from .. import _require
from .._require import at_least, between, instance_of
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from ..tables import Source
from .copy import SyntheticCopy
from .counting import OccurringCells, count_domain_cells, count_sensitivity
from .counting import rows_per_unit as bounded_rows
from .graphical_model import Clique
from .quality import Drawing, MarginalShares, marginal
from .table_domain import require_column

# The most rows of the copy whose nearest real row is looked for, which takes time in proportion to rows of
# the copy times rows of the data; and the most rows for the propensity score, which takes rows times codes.
# Of more rows a random sample is taken. Round numbers, chosen by hand and not tuned.
_MAX_NEAREST_ROWS = 1000
_MAX_PROPENSITY_ROWS = 10_000
# The most triples of columns that are compared; if there are more, a random sample of them is compared.
# Chosen by hand, not tuned.
_MAX_TRIPLES = 200


@dataclass(frozen=True, slots=True)
class CopyComparison:
    """Says how a copy compares with its data. Not private: computed from the rows, without noise.

    `pairs`, `triples`: mean and largest total variation between copy and data of tables by two and by three
    columns. `direct`: the mean total variation that pairs would have if each were measured by itself with
    Gaussian noise, all of them together for the given rho (None where no rho was given). `propensity`: the
    mean squared distance from 1/2 of a logistic regression's probability that a row is synthetic: 0 if it
    cannot tell, 1/4 if it always can. `accuracy`: two accuracies of a logistic regression that predicts the
    column `target`, trained on the copy and trained on half of the data; both are tested on the other half.
    `nearest`: the median number of columns in which a synthetic row differs from the nearest real row, and
    the share of synthetic rows that equal a real row; neither is evidence for or against privacy. `private`
    is always false. `by_pair`: the total variation of each pair. `marginals`: the data of the bar charts.
    """

    pairs: tuple[float, float]
    triples: tuple[float, float] | None
    direct: float | None
    propensity: float
    accuracy: tuple[float, float] | None
    nearest: tuple[float, float]
    private: bool = False
    by_pair: Mapping[tuple[str, str], float] = field(default_factory=dict)
    marginals: tuple[MarginalShares, ...] = ()

    def plot(self) -> Drawing:
        """Draw the total variation of every pair, and every column of the copy beside that of the data. Not
        private."""
        columns = tuple(dict.fromkeys(name for pair in self.by_pair for name in pair))
        title = "NOT PRIVATE: total variation of pairs, computed from the data without noise"
        return Drawing(title, columns, self.by_pair, self.marginals, "data (not private)")

    def __str__(self) -> str:
        lines = ["NOT PRIVATE: computed from the data without noise"]
        lines.append(f"total variation of pairs     {self.pairs[0]:.4f} mean, {self.pairs[1]:.4f} largest")
        if self.triples is not None:
            lines.append(
                f"total variation of triples   {self.triples[0]:.4f} mean, {self.triples[1]:.4f} largest"
            )
        if self.direct is not None:
            lines.append(f"pairs measured one by one    {self.direct:.4f} mean, for the same price")
        lines.append(f"propensity                   {self.propensity:.4f} (0: nobody can tell, 0.25: always)")
        if self.accuracy is not None:
            lines.append(
                f"trained on copy, on data     {self.accuracy[0]:.4f}, {self.accuracy[1]:.4f} accuracy on "
                f"data"
            )
        lines.append(
            f"nearest real row             {self.nearest[0]:.0f} columns differ (median), "
            f"{self.nearest[1]:.1%} "
            f"equal one: no evidence of privacy"
        )
        return "\n".join(lines)


@_require.check_options
def compare(
    copy: Annotated[SyntheticCopy, instance_of(SyntheticCopy, "a SyntheticCopy")],
    source: Annotated[Source, instance_of(Source, "a table, such as people.curator.source")],
    *,
    target: str | None = None,
    rho: Annotated[float, between(1e-300, 1e300)] | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    rows_per_unit: int | None = None,
) -> CopyComparison:
    """Compare a copy with the data it was made from, or with other rows of the same schema. Not private.

    `target` is the column that is predicted for `CopyComparison.accuracy`, `rho` the price for `direct`.
    `rows_per_unit`: how many rows of one unit count, as they did for the copy; by default as many as the unit
    declares, or one.
    """
    _check_arguments(copy, source, target)
    row_limit = (source.public.unit.rows or 1) if rows_per_unit is None else rows_per_unit
    max_rows_per_unit = bounded_rows(source.public, row_limit)
    random = np.random.default_rng(int(seed))
    domain = copy.fitted.domain
    data_cells = count_domain_cells(source, domain, max_rows_per_unit, Entropy())
    _require.that(data_cells.counts.sum(), "the table is empty: there is nothing to compare with.")
    copy_cells = OccurringCells(data_cells.sizes, tuple(copy.codes), np.ones(copy.rows, np.int64))
    real_columns = [np.repeat(code, data_cells.counts) for code in data_cells.codes]
    pairs, triples = _cliques(len(data_cells.sizes), random)
    distances = [_total_variation(data_cells, copy_cells, pair) for pair in pairs]
    names, sizes = copy.columns, data_cells.sizes
    codings = domain.codings(copy.public)
    return CopyComparison(
        pairs=_mean_and_largest(distances),
        by_pair={(names[a], names[b]): d for (a, b), d in zip(pairs, distances, strict=True)},
        marginals=tuple(marginal(c, data_cells.table([a]), copy.codes[a]) for a, c in enumerate(codings)),
        triples=_mean_and_largest([_total_variation(data_cells, copy_cells, t) for t in triples])
        if triples
        else None,
        direct=None
        if rho is None
        else _direct_error(
            data_cells, pairs, float(rho), count_sensitivity(source.public, max_rows_per_unit)
        ),
        propensity=_propensity(real_columns, copy.codes, sizes, random),
        accuracy=None
        if target is None
        else _accuracies(real_columns, copy.codes, sizes, names.index(target), random),
        nearest=_nearest(real_columns, copy.codes, random),
    )


def _check_arguments(copy: SyntheticCopy, source: Source, target: str | None) -> None:
    """Refuse arguments for which there is no comparison, before anything is computed."""
    same = source.public.schema == copy.public.schema
    _require.that(same, "the table has another schema than the copy: there is nothing to compare.")
    _require.that(len(copy.columns) >= 2, "a copy with one column has no pairs to compare.")
    if target is not None:
        require_column(target, copy.columns, "the copy")


def _cliques(columns: int, random: np.random.Generator) -> tuple[list[Clique], list[Clique]]:
    """Return all pairs of columns, and all triples or a sample of them."""
    pairs, triples = (list(itertools.combinations(range(columns), size)) for size in (2, 3))
    if len(triples) > _MAX_TRIPLES:
        triples = [triples[i] for i in random.choice(len(triples), _MAX_TRIPLES, replace=False)]
    return pairs, triples


def _total_variation(data_cells: OccurringCells, copy_cells: OccurringCells, clique: Clique) -> float:
    """Return half the l1 distance of the shares of cells, in a table by the columns of a clique."""
    shares = [cells.table(clique) / cells.counts.sum() for cells in (data_cells, copy_cells)]
    return 0.5 * float(np.abs(shares[0] - shares[1]).sum())


def _mean_and_largest(distances: Sequence[float]) -> tuple[float, float]:
    return float(np.mean(distances)), float(np.max(distances))


def _direct_error(
    data_cells: OccurringCells, pairs: list[Clique], rho: float, sensitivity: Sensitivity
) -> float:
    """Return the mean expected total variation of all pairs, each measured with Gaussian noise for an equal
    share of rho; `sensitivity` is that of one table."""
    assert sensitivity.l2_squared is not None
    # Gaussian noise of variance l2^2 / (2 rho') is rho'-zCDP.
    deviation = math.sqrt(sensitivity.l2_squared * len(pairs) / (2 * rho))
    # of the share of one cell
    mean_absolute_noise = deviation * math.sqrt(2 / math.pi) / data_cells.counts.sum()
    errors = [0.5 * math.prod(data_cells.sizes[a] for a in pair) * mean_absolute_noise for pair in pairs]
    return float(np.mean(np.minimum(errors, 1.0)))


def _one_hot(
    code_columns: Sequence[Any], sizes: Sequence[int], skip: int | None = None
) -> NDArray[np.float64]:
    """Return rows as a matrix of indicators, one for each code of each column but `skip`, and last a column
    of ones. `code_columns` has one array of codes for each column."""
    columns = enumerate(zip(code_columns, sizes, strict=True))
    blocks = [np.eye(size)[np.asarray(codes)] for a, (codes, size) in columns if a != skip]
    return np.hstack([*blocks, np.ones((len(code_columns[0]), 1))])


def _fit_logistic(x: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.float64]:
    """Return the weights of a logistic regression with an l2 penalty of |weights|^2 / 2."""

    def loss_and_gradient(weights: Any) -> tuple[float, Any]:
        margins = x @ weights
        loss = float(np.logaddexp(0, margins).sum() - y @ margins + weights @ weights / 2)
        return loss, x.T @ (_sigmoid(margins) - y) + weights

    start = np.zeros(x.shape[1])
    return np.asarray(minimize(loss_and_gradient, start, jac=True, method="L-BFGS-B").x)


def _sigmoid(margins: NDArray[Any]) -> NDArray[np.float64]:
    return np.asarray(1 / (1 + np.exp(-np.clip(margins, -500, 500))))


def _subsample(code_columns: Sequence[Any], size: int, random: np.random.Generator) -> list[Any]:
    """Return the columns of at most `size` rows in random order."""
    index = random.permutation(len(code_columns[0]))[:size]
    return [np.asarray(column)[index] for column in code_columns]


def _propensity(
    real_columns: Sequence[Any],
    synthetic_columns: Sequence[Any],
    sizes: Sequence[int],
    random: np.random.Generator,
) -> float:
    """Return the mean squared distance from 1/2 of a classifier's probability that a row is synthetic."""
    size = min(len(real_columns[0]), len(synthetic_columns[0]), _MAX_PROPENSITY_ROWS)
    real, synthetic = (_subsample(columns, size, random) for columns in (real_columns, synthetic_columns))
    x = np.vstack([_one_hot(real, sizes), _one_hot(synthetic, sizes)])
    y = np.repeat([0.0, 1.0], size)
    return float(np.mean((_sigmoid(x @ _fit_logistic(x, y)) - 0.5) ** 2))


def _accuracies(
    real_columns: Sequence[Any],
    synthetic_columns: Sequence[Any],
    sizes: Sequence[int],
    target: int,
    random: np.random.Generator,
) -> tuple[float, float]:
    """Return two accuracies for the column `target`: of a classifier trained on the copy, and of one trained
    on half of the data, both tested on the other half. Each is a logistic regression for every code against
    all others."""
    shuffled = _subsample(real_columns, len(real_columns[0]), random)
    half = len(shuffled[0]) // 2
    train, test = [c[:half] for c in shuffled], [c[half:] for c in shuffled]
    test_x = _one_hot(test, sizes, target)
    accuracies = []
    for columns in (synthetic_columns, train):
        x = _one_hot(columns, sizes, target)
        margins = [
            test_x @ _fit_logistic(x, (np.asarray(columns[target]) == code).astype(np.float64))
            for code in range(sizes[target])
        ]
        accuracies.append(float(np.mean(np.argmax(margins, axis=0) == test[target])))
    return accuracies[0], accuracies[1]


def _nearest(
    real_columns: Sequence[Any], synthetic_columns: Sequence[Any], random: np.random.Generator
) -> tuple[float, float]:
    """Return the median number of columns in which a synthetic row differs from the nearest real row, and the
    share of synthetic rows that equal a real row."""
    synthetic = np.stack(_subsample(synthetic_columns, _MAX_NEAREST_ROWS, random), axis=1)
    real = np.unique(np.stack([np.asarray(c) for c in real_columns], axis=1), axis=0)
    differences = np.array([(real != row).sum(axis=1).min() for row in synthetic])
    return float(np.median(differences)), float(np.mean(differences == 0))
