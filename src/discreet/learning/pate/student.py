"""Trains the student of PATE: a model that may be published, learned from the labels that were bought
(released by the labeller for a price) and from public inputs without labels.

Everything here is post-processing of released labels, and free. `typical_examples` chooses which inputs to
ask about, before there are labels: the input nearest to the center of each of many clusters. `spread_labels`
carries labels over to nearby inputs (Zhou et al. 2004, "Learning with local and global consistency").

Trains a torch model as a teacher of PATE: without noise, because teachers are never released, only noisy
aggregates of their votes.

Trains a student of PATE for images, which also learns from unlabelled ones, by consistency: FixMatch (Sohn
et al. 2020, arXiv:2001.07685).

Where the network is sure of the class of a slightly moved image, it is trained to predict the same class for
a strongly distorted copy. All inputs are public, and all labels were released by the teachers' aggregate, so
this is post-processing, and free.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ... import _require
from ..._errors import InvalidInput, MissingExtra
from ..training.data import as_array

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
    _require.must(number <= len(points), "number", number, f"at most the {len(points)} inputs")
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
            raise InvalidInput("a student needs labels of at least two classes. Buy more answers.")
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
        return float(np.mean(self.predict(x) == as_array(y)))


def _check_labels(targets: Array, inputs: int, classes: int) -> None:
    """Refuse labels that are not one for each input, or that are neither a class number nor -1."""
    if targets.shape != (inputs,) or ((targets >= classes) | (targets < -1)).any():
        raise InvalidInput("labels must have a class number, or -1, for each input.")


def _matrix(x: Any) -> Array:
    """Return inputs as a matrix with one flat row of floats for each input."""
    values = np.asarray(x, dtype=np.float32)
    if values.ndim < 2 or not len(values) or not np.isfinite(values).all():
        raise InvalidInput(f"inputs must be finite numbers, one row per input; the shape is {values.shape}.")
    return values.reshape(len(values), -1)


class TorchLearner:
    """Fits a copy of a torch model to the examples of one teacher, by Adam on cross-entropy.

    It has the two methods that a teacher needs, `fit(x, y)` and `predict(x)`, like a scikit-learn classifier.
    Not private by itself: a fitted model must not be released.
    Batches are drawn with torch's global generator, which `teachers.seeded` sets for each teacher.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        epochs: int = 20,
        batch: int = 32,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise _require.fail(
                "model", type(model).__name__, "a torch.nn.Module that gives scores of classes"
            )
        _require.integer(epochs=epochs, batch=batch, at_least=1)
        _require.positive(lr=lr)
        _require.non_negative(weight_decay=weight_decay)
        self.model = model
        self.epochs, self.batch, self.lr, self.weight_decay = epochs, batch, lr, weight_decay

    def fit(self, x: Any, y: Any) -> TorchLearner:
        """Replace the model by a copy of it, and train that copy."""
        self.model = copy.deepcopy(self.model)
        inputs, targets = self._inputs(x), torch.as_tensor(as_array(y), device="cpu")
        targets = targets.to(inputs.device)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        self.model.train()
        for _ in range(self.epochs):
            for batch in torch.split(torch.randperm(len(inputs), device="cpu"), self.batch):
                optimizer.zero_grad()
                torch.autograd.backward(
                    nn.functional.cross_entropy(self.model(inputs[batch]), targets[batch])
                )
                optimizer.step()
        self.model.eval()
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Return the class of the largest score."""
        return self.model(self._inputs(x)).argmax(1).cpu().numpy()

    def _inputs(self, x: Any) -> Tensor:
        """Return inputs as a tensor, floats as the type of the model's weights."""
        inputs = torch.as_tensor(as_array(x), device="cpu")
        weights = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        if weights is None:
            return inputs
        return inputs.to(weights.device, weights.dtype if inputs.is_floating_point() else None)


def small_network(classes: int, channels: int = 1, width: int = 32) -> nn.Module:
    """Return a network of three convolutions with group normalization, an average over 3 x 3 parts of the
    image, and a linear layer. `width`, a multiple of 8, is the number of channels of the first
    convolution."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

    with torch.device("cpu"):
        return nn.Sequential(
            *block(channels, width), nn.MaxPool2d(2), *block(width, 2 * width), nn.MaxPool2d(2),
            *block(2 * width, 2 * width), nn.AdaptiveAvgPool2d(3), nn.Flatten(),
            nn.Linear(18 * width, classes),
        )  # fmt: skip


class FixMatchStudent:
    """Learns images from few labels and many unlabelled inputs, by consistency under distortions.

    If the network gives the class of a slightly moved image a probability of `sure` or more, that class is
    the label of the image's distorted copy. Predictions are made with an exponential moving average of the
    weights, whose decay is `average`. Distortions are rotations up to `degrees`, changes of size, shears,
    moves and an erased square; no mirror images, because a mirrored digit is no digit.

    Each of `steps` steps takes `labelled` images that have labels, and `unlabelled` of all images, whose
    labels, if they have any, are not used; `progress(step, steps)` is called after it. `lr` is the learning
    rate of Adam.
    """

    def __init__(
        self,
        classes: int,
        model: nn.Module | None = None,
        *,
        steps: int = 1000,
        labelled: int = 64,
        unlabelled: int = 192,
        sure: float = 0.95,
        lr: float = 2e-3,
        average: float = 0.995,
        degrees: float = 20.0,
        seed: int = 0,
        progress: Any = None,
    ) -> None:
        _require.integer(classes=classes, at_least=2)
        _require.integer(steps=steps, labelled=labelled, unlabelled=unlabelled, at_least=1)
        _require.open_probability(sure=sure, average=average)
        _require.positive(lr=lr)
        self.classes, self.model, self.steps = classes, model, steps
        self.labelled, self.unlabelled, self.sure = labelled, unlabelled, sure
        self.lr, self.average, self.degrees, self.seed = lr, average, degrees, seed
        self.progress = progress

    def fit(self, images: Any, labels: Any) -> FixMatchStudent:
        """Fit to public images (n, channels, height, width); `labels` has a class number for each image, or
        -1 (or None) for an image without a label."""
        x = _images(images)
        targets = torch.tensor([-1 if label is None else int(label) for label in labels], device="cpu")
        if len(targets) != len(x) or bool(((targets >= self.classes) | (targets < -1)).any()):
            raise InvalidInput("labels must have a class number, or -1, for each image.")
        labelled = torch.nonzero(targets >= 0).flatten()
        if len(torch.unique(targets[labelled])) < 2:
            raise InvalidInput("a student needs labels of at least two classes. Buy more answers.")
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model = (
                small_network(self.classes, x.shape[1]) if self.model is None else copy.deepcopy(self.model)
            )
            self.network_ = self._train(model, x, targets, labelled, generator)
        return self

    def _train(
        self, model: nn.Module, x: Tensor, targets: Tensor, labelled: Tensor, generator: torch.Generator
    ) -> nn.Module:
        """Train `model` by FixMatch, and return a copy of it that has the moving average of the weights, and
        the last buffers (such as statistics of batch normalization). `labelled` has the positions of images
        with labels."""
        mean = copy.deepcopy(model).eval()
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        for step in range(self.steps):
            # The learning rate's schedule of FixMatch: cos(7 pi k / (16 K)) in step k of K.
            optimizer.param_groups[0]["lr"] = self.lr * math.cos(7 * math.pi * step / (16 * self.steps))
            labelled_batch = labelled[
                torch.randint(len(labelled), (self.labelled,), generator=generator, device="cpu")
            ]
            unlabelled_batch = torch.randint(len(x), (self.unlabelled,), generator=generator, device="cpu")
            with torch.no_grad():
                probabilities = model(distort(x[unlabelled_batch], generator, weak=True)).softmax(1)
                confidence, pseudo_labels = probabilities.max(1)
            weak, strong = (
                distort(x[labelled_batch], generator, weak=True),
                distort(x[unlabelled_batch], generator, degrees=self.degrees),
            )
            scores = model(torch.cat([weak, strong]))
            loss = nn.functional.cross_entropy(scores[: len(labelled_batch)], targets[labelled_batch])
            consistency_loss = nn.functional.cross_entropy(
                scores[len(labelled_batch) :], pseudo_labels, reduction="none"
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss + (consistency_loss * (confidence >= self.sure)).mean())
            optimizer.step()
            with torch.no_grad():
                # Smaller in the first steps, so that the initial weights are soon forgotten.
                decay = min(self.average, (1 + step) / (10 + step))
                for mean_weights, weights in zip(mean.parameters(), model.parameters(), strict=True):
                    mean_weights.lerp_(weights, 1 - decay)
            if self.progress is not None:
                self.progress(step + 1, self.steps)
        for mean_buffer, buffer in zip(mean.buffers(), model.buffers(), strict=True):
            mean_buffer.copy_(buffer)
        return mean

    @torch.no_grad()
    def probabilities(self, images: Any) -> Any:
        """Return the probabilities of each class."""
        batches = [self.network_(batch).softmax(1) for batch in torch.split(_images(images), 256)]
        return torch.cat(batches).cpu().numpy()

    def predict(self, images: Any) -> Any:
        """Return the class numbers of new images."""
        return self.probabilities(images).argmax(1)

    def score(self, images: Any, y: Any) -> float:
        """Return the accuracy on new images."""
        return float(np.mean(self.predict(images) == as_array(y)))


def distort(
    images: Tensor, generator: torch.Generator, *, weak: bool = False, degrees: float = 20.0
) -> Tensor:
    """Return distorted copies of images: with `weak` moved by up to 2 pixels in each direction; otherwise
    rotated by up to `degrees`, resized and sheared by up to 20%, moved by up to 3 pixels, and with an erased
    square, a quarter as high as the image."""
    n, _, height, width = images.shape

    def uniform(bound: float) -> Tensor:
        return (torch.rand(n, generator=generator, device="cpu") * 2 - 1) * bound

    pixels = 2 if weak else 3
    angle = uniform(0.0 if weak else math.radians(degrees))
    scale, shear = 1 + uniform(0.0 if weak else 0.2), uniform(0.0 if weak else 0.2)
    cos, sin = torch.cos(angle), torch.sin(angle)
    # The grid's coordinates reach from -1 to 1, so that a pixel is 2 / width wide.
    x_row = torch.stack([cos * scale, (shear * cos - sin) * scale, uniform(2 * pixels / width)], 1)
    y_row = torch.stack([sin * scale, (shear * sin + cos) * scale, uniform(2 * pixels / height)], 1)
    grid = nn.functional.affine_grid(torch.stack([x_row, y_row], 1), list(images.shape), align_corners=False)
    out = nn.functional.grid_sample(images, grid, align_corners=False)
    if weak:
        return out
    side = max(height // 4, 1)
    tops = torch.randint(height - side + 1, (n, 1, 1, 1), generator=generator, device="cpu")
    lefts = torch.randint(width - side + 1, (n, 1, 1, 1), generator=generator, device="cpu")
    rows, columns = (
        torch.arange(height, device="cpu").view(1, 1, -1, 1),
        torch.arange(width, device="cpu").view(1, 1, 1, -1),
    )
    is_erased = (rows >= tops) & (rows < tops + side) & (columns >= lefts) & (columns < lefts + side)
    return out.masked_fill(is_erased, 0.0)


def _images(images: Any) -> Tensor:
    """Return images as a tensor of floats, refused unless they are finite and have four dimensions."""
    x = torch.as_tensor(as_array(images), dtype=torch.float32, device="cpu")
    _require.that(
        x.dim() == 4 and len(x) and torch.isfinite(x).all(),
        "images must be finite numbers of the shape (number, channels, height, width), not "
        f"{tuple(x.shape)}.",
    )
    return x
