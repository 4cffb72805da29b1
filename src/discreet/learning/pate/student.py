"""Trains the student of PATE: a model that may be published, learned from the labels that were bought
(released by the labeller for a price) and from public inputs without labels.

Everything here is post-processing of released labels, and free. `typical_examples` chooses which inputs to
ask about, before there are labels: the input nearest to the center of each of many clusters. `spread_labels`
carries labels over to nearby inputs (Zhou et al. 2004, "Learning with local and global consistency").
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ... import _require
from ..._errors import InvalidInput, MissingExtra

Array = NDArray[Any]


def _require_sklearn() -> None:
    """Raise `MissingExtra` where scikit-learn is not installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        raise MissingExtra("a student needs scikit-learn: pip install 'discreet[learn]'.") from None


def typical_examples(x: Any, number: int, *, seed: int = 0, clusters: Any = None) -> Array:
    """Return the positions of `number` inputs to ask about, the nearest to the center of each cluster.

    Clusters are found by k-means on public inputs, without labels. Positions are in the order of the size of
    their clusters, largest first, so that a quota that ends early is spent on inputs that stand for many
    others. `clusters` is a `KMeans` that was fitted to these inputs before, whose clusters are taken whatever
    `number` is; by default one with `number` clusters is fitted here. Where inputs are equal there may be
    fewer clusters, and fewer positions.
    """
    _require_sklearn()
    from sklearn.cluster import KMeans

    points = _matrix(x)
    _require.integer(number=number, at_least=1)
    if number > len(points):
        raise _require.fail("number", number, f"at most the {len(points)} inputs")
    model = clusters or KMeans(number, n_init=1, max_iter=50, random_state=seed).fit(points)
    distances = ((points - model.cluster_centers_[model.labels_]) ** 2).sum(1)
    order = np.lexsort((distances, model.labels_))
    nearest = np.unique(model.labels_[order], return_index=True)[1]
    sizes = np.bincount(model.labels_, minlength=number)
    examples = order[nearest]
    return np.asarray(examples[np.argsort(-sizes[model.labels_[examples]], kind="stable")])


def spread_labels(
    x: Any, labels: Any, classes: int, *, neighbors: int = 10, alpha: float = 0.9, steps: int = 60
) -> Array:
    """Return a score of every class for every input, an array (inputs, classes) whose rows add up to 1:
    labels are propagated along a graph of nearest neighbors.

    `labels` has a class number for each input, or -1 where there is no label. Let Y be the array (inputs,
    classes) that is 1 where an input has a label of the class and 0 elsewhere, and S the symmetric graph's
    adjacency matrix W, normalized to D^(-1/2) W D^(-1/2) with the degrees D. Scores F begin as Y, and become
    alpha S F + (1 - alpha) Y, `steps` times. Then the column of each class is scaled to add up to its number
    of labels (class mass normalization; Zhu, Ghahramani & Lafferty 2003), and each row to add up to 1; inputs
    that no label reached have the same score for all classes.
    """
    _require_sklearn()
    from scipy import sparse
    from sklearn.neighbors import kneighbors_graph

    points, targets = _matrix(x), np.asarray(labels, dtype=np.int64)
    _check_labels(targets, len(points), classes)
    _require.integer(neighbors=neighbors, steps=steps, at_least=1)
    _require.open_probability(alpha=alpha)
    graph = kneighbors_graph(points, min(neighbors, len(points) - 1))
    graph = (graph + graph.T).minimum(1).astype(np.float64)
    inverse_root = sparse.diags(1 / np.sqrt(np.maximum(np.asarray(graph.sum(1)).ravel(), 1)))
    normalized = inverse_root @ graph @ inverse_root
    seeds = np.zeros((len(points), classes))
    labelled = np.flatnonzero(targets >= 0)
    seeds[labelled, targets[labelled]] = 1
    scores = seeds.copy()
    for _ in range(steps):
        scores = alpha * (normalized @ scores) + (1 - alpha) * seeds
    scores = scores / np.maximum(scores.sum(0), 1e-12) * np.maximum(seeds.sum(0), 1)
    total = scores.sum(1, keepdims=True)
    return np.asarray(np.where(total > 0, scores / np.maximum(total, 1e-300), 1 / classes))


@dataclass
class Student:
    """Learns from bought labels, and, unless `semi` is False, also from public inputs without labels.

    With `semi`, labels are spread to all inputs (`spread_labels`, with `neighbors` and `alpha`), and the
    model is fitted to all but the share `drop` of inputs whose spread labels are the least certain. `model`
    is any scikit-learn classifier; by default a support vector machine with a radial kernel. Inputs are
    reduced first to their `reduce` principal components, computed on public inputs (None: not at all).
    """

    classes: int
    model: Any = None
    semi: bool = True
    reduce: int | None = 120
    neighbors: int = 10
    alpha: float = 0.9
    drop: float = 0.0
    seed: int = 0
    _reduction: Any = field(default=None, repr=False)

    def prepare(self, x: Any) -> Array:
        """Compute the principal components of public inputs, and return these inputs reduced to them."""
        _require_sklearn()
        from sklearn.decomposition import PCA

        points = _matrix(x)
        if self.reduce is not None and self.reduce < min(points.shape):
            self._reduction = PCA(self.reduce, random_state=self.seed).fit(points)
        return self.reduce_inputs(points)

    def reduce_inputs(self, x: Any) -> Array:
        """Return inputs reduced to the principal components that `prepare` computed, if it did."""
        points = _matrix(x)
        return points if self._reduction is None else np.asarray(self._reduction.transform(points))

    def fit(self, x: Any, labels: Any) -> Student:
        """Fit to public inputs; `labels` has a class number for each input, or -1 (or None) for an input
        without a label. Principal components are computed here unless `prepare` was called before."""
        _require_sklearn()
        from sklearn.svm import SVC

        points = self.prepare(x) if self._reduction is None else self.reduce_inputs(x)
        targets = np.array([-1 if label is None else int(label) for label in labels], np.int64)
        _check_labels(targets, len(points), self.classes)
        labelled = np.flatnonzero(targets >= 0)
        if len(np.unique(targets[labelled])) < 2:
            raise InvalidInput(
                "a student needs labels of at least two classes. Nothing was trained. Buy more answers."
            )
        if self.semi:
            scores = spread_labels(points, targets, self.classes, neighbors=self.neighbors, alpha=self.alpha)
            certain = np.argsort(-scores.max(1), kind="stable")[: round(len(points) * (1 - self.drop))]
            points, targets = points[certain], scores.argmax(1)[certain]
        else:
            points, targets = points[labelled], targets[labelled]
        model = self.model if self.model is not None else SVC(C=10, gamma="scale")
        self.fitted_ = model.fit(points, targets)
        return self

    def predict(self, x: Any) -> Array:
        """Return the class numbers of new inputs."""
        return np.asarray(self.fitted_.predict(self.reduce_inputs(x)))

    def score(self, x: Any, y: Any) -> float:
        """Return the accuracy on new inputs."""
        return float(np.mean(self.predict(x) == np.asarray(y)))


def _check_labels(targets: Array, inputs: int, classes: int) -> None:
    """Refuse labels that are not one for each input, or that are neither a class number nor -1."""
    if targets.shape != (inputs,) or ((targets >= classes) | (targets < -1)).any():
        raise InvalidInput("labels must have a class number, or -1, for each input. Nothing was computed.")


def _matrix(x: Any) -> Array:
    """Return inputs as a matrix with one flat row of floats for each input."""
    values = np.asarray(x, dtype=np.float32)
    if values.ndim < 2 or not len(values) or not np.isfinite(values).all():
        raise InvalidInput(
            f"inputs must be finite numbers, one row per input; the shape is {values.shape}. Nothing "
            f"was computed."
        )
    return values.reshape(len(values), -1)
