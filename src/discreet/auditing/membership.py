"""Membership inference: was this person in the training data? Attacks on a trained model, from the crudest to
the best.

All of them look at how sure the model is of an example's true label. `by_loss` compares that with one
threshold for everybody; `by_shadows` learns from models that the attacker has trained (shadow models)
how sure a model is of its members, class by class; `lira` learns it for every single example, which is what
makes it strong where false alarms are rare; `by_quantile` gets nearly as far without training any model.

Nothing here knows torch or scikit-learn: attacks take arrays of confidences, or a function `train(indices)`
that trains a model on these examples and returns its scaled confidences in all examples, or a function
without arguments that does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from .. import _require
from .._errors import InvalidInput
from .outputs import floats
from .roc import Floats, Roc

Train = Callable[[NDArray[np.int64]], Any]
# Confidences are clipped to this distance from 0 and 1, so that their logit is finite.
_MARGIN = 1e-12


def logit_scaled(confidences: Any) -> Floats:
    """Return ln(p / (1 - p)) of the confidence in the true label: close to normally distributed, which a
    confidence is not.

    Carlini et al. 2022, arXiv:2112.03570, section IV. If the scores before the soft-max are known, use
    `margins`: it is exact also for confidences near 0 and 1, which are clipped here.
    """
    probabilities = floats(confidences=confidences)
    if not ((probabilities >= 0) & (probabilities <= 1)).all():
        raise InvalidInput(
            "confidences must be between 0 and 1. For scores before the soft-max use `margins`."
        )
    p = np.clip(probabilities, _MARGIN, 1 - _MARGIN)
    return np.asarray(np.log(p) - np.log1p(-p), dtype=float)


def margins(logits: Any, labels: Any) -> Floats:
    """Return `logit_scaled` of a soft-max, computed from its inputs: the true label's input minus the
    log-sum-exp of the others.

    >>> margins([[2.0, 0.0, 0.0]], [0]).round(4).tolist()
    [1.3069]
    """
    z, y = np.asarray(logits, dtype=float), np.asarray(labels)
    if z.ndim != 2 or y.shape != z.shape[:1]:
        raise InvalidInput("logits must have a row for each example, labels one class number each.")
    _check_classes(y, z.shape[1])
    true_logit = np.take_along_axis(z, y[:, None].astype(np.int64), axis=1)[:, 0]
    other_logits = np.array(z)
    np.put_along_axis(other_logits, y[:, None].astype(np.int64), -np.inf, axis=1)
    return np.asarray(true_logit - special.logsumexp(other_logits, axis=1), dtype=float)


def _check_classes(labels: Any, classes: int) -> None:
    """Refuse labels that are no class: -1 would be taken for the last one."""
    if not np.isin(labels, np.arange(classes)).all():
        raise InvalidInput(
            f"labels must be the numbers of classes, 0 to {classes - 1}. Nothing was computed."
        )


def by_loss(members: Any, others: Any) -> Roc:
    """Return the ROC curve of the loss alone, with one threshold for everybody (Yeom et al. 2018,
    arXiv:1709.01604, Adversary 2).

    Arguments are losses.
    """
    return Roc.of(-floats(members=members), -floats(others=others))


@dataclass(frozen=True, eq=False)
class Shadows:
    """Holds what shadow models trained on known halves of the examples say: `scores` is [models, examples] or
    [models, examples, queries], `included` [models, examples]. Queries are an example's variants (shifted,
    mirrored), on each of which the model was asked.
    """

    scores: Floats
    included: NDArray[np.bool_]

    def __post_init__(self) -> None:
        scores, included = np.asarray(self.scores, dtype=float), np.asarray(self.included, dtype=bool)
        if scores.ndim == 2:
            scores = scores[:, :, None]
        if scores.ndim != 3 or scores.shape[:2] != included.shape or len(scores) < 2:
            raise InvalidInput(
                "shadow models need scores [models, examples] or [models, examples, queries], and who was "
                "in, [models, examples]; two models at least."
            )
        if not np.isfinite(scores).all():
            raise InvalidInput("scores of shadow models must be finite: use `margins` or `logit_scaled`.")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "included", included)

    def without(self, model: int) -> Shadows:
        """Return the shadow models other than this one, when it is the target."""
        keep = np.arange(len(self.scores)) != model
        return Shadows(self.scores[keep], self.included[keep])


def halves(models: int, examples: int, *, seed: int | None = None) -> NDArray[np.bool_]:
    """Return which example is in which model, [models, examples]; every example is in exactly half of
    them (rounded down), which is drawn at random: anew at each call, unless a `seed` is given."""
    _require.integer(models=models, examples=examples, at_least=2)
    order = np.random.default_rng(seed).random((models, examples)).argsort(axis=0)
    return np.asarray(order < models // 2, dtype=bool)


def train_shadows(train: Train, examples: int, *, models: int = 16, seed: int | None = None) -> Shadows:
    """Train models on random halves of the examples (`halves`) and ask each about all of them.

    `train(indices)` trains on these examples and returns the logit-scaled confidence in the true label for
    *all* examples, [examples] or [examples, queries], or a function without arguments that does.
    """
    included = halves(models, examples, seed=seed)
    model_scores = []
    for row in included:
        answer = train(np.flatnonzero(row))
        scores = floats(scores=answer() if callable(answer) else answer)
        if scores.shape[:1] != (examples,) or scores.ndim > 2:
            raise InvalidInput(
                f"each model must be asked about all {examples} examples, those it was trained on and the "
                f"others: scores of shape ({examples},) or ({examples}, queries) are needed, got "
                f"{scores.shape}."
            )
        model_scores.append(scores)
    return Shadows(np.stack(model_scores), included)


@_require.check_options
def lira(target: Any, shadows: Shadows, *, online: bool = True, fixed_variance: bool = False) -> Floats:
    """Return the scores of the likelihood-ratio attack (LiRA): for each example, how much likelier the
    target's confidences are if it was in, as a log-likelihood ratio; offline, how far they lie above
    those of models without it, in standard deviations.

    `target` has the target model's confidences, scaled as those of the shadows. For each example a normal
    distribution is fitted to the models with it and to those without it (`online`), or to the latter alone,
    with a one-sided test (offline: the attacker need not know the examples when the shadow models are
    trained). `fixed_variance` pools the variance of all examples: better with few models (below 64 or so).
    Several queries count as independent.

    Source: Carlini et al. 2022, arXiv:2112.03570, Algorithm 1 and section IV-C; offline, section IV-D:
            1 - P[Z > target].
    """
    target_scores = np.asarray(target, dtype=float)
    target_scores = target_scores[:, None] if target_scores.ndim == 1 else target_scores
    if target_scores.shape != shadows.scores.shape[1:]:
        raise InvalidInput(
            f"the target must have scores of shape {shadows.scores.shape[1:]}, got {target_scores.shape}: "
            f"the shadows' examples and queries."
        )
    mean_out, spread_out = _fit_normal(shadows, False, fixed_variance)
    if not online:
        return np.asarray(((target_scores - mean_out) / spread_out).mean(axis=1), dtype=float)
    mean_in, spread_in = _fit_normal(shadows, True, fixed_variance)
    ratio = _log_density(target_scores, mean_in, spread_in) - _log_density(
        target_scores, mean_out, spread_out
    )
    return np.asarray(ratio.sum(axis=1), dtype=float)


def _fit_normal(shadows: Shadows, members: bool, fixed: bool) -> tuple[Floats, Floats]:
    """Return the mean and standard deviation of each example and query, over the models where it was in (or
    out)."""
    used = (shadows.included == members)[:, :, None]
    count = used.sum(axis=0)
    # With a pooled variance one model per side is enough, if some example has two.
    if (count < (1 if fixed else 2)).any() or (count < 2).all():
        raise InvalidInput(
            "some example was in (or out of) too few shadow models to fit a normal distribution: train more "
            "of them, or use `halves`. Two per side are needed; with fixed_variance=True one, and two of "
            "some example."
        )
    mean = np.where(used, shadows.scores, 0.0).sum(axis=0) / count
    squares = np.where(used, (shadows.scores - mean) ** 2, 0.0)
    if fixed:
        degrees_of_freedom = (count - 1).sum(axis=0)
        spread = np.broadcast_to(np.sqrt(squares.sum(axis=(0, 1)) / degrees_of_freedom), mean.shape)
    else:
        spread = np.sqrt(squares.sum(axis=0) / (count - 1))
    return mean, np.maximum(spread, 1e-9)


def _log_density(x: Floats, mean: Floats, spread: Floats) -> Floats:
    """Return the logarithm of the normal density, without its constant."""
    return np.asarray(-(((x - mean) / spread) ** 2) / 2 - np.log(spread), dtype=float)


@_require.check_options
def lira_roc(
    shadows: Shadows,
    *,
    online: bool = True,
    fixed_variance: bool = False,
    targets: Sequence[int] | None = None,
) -> Roc:
    """Return the ROC curve of LiRA with every model (or those in `targets`) as the target in turn and the
    others as its shadows, all scores together."""
    target_models = range(len(shadows.scores)) if targets is None else targets
    scores = [
        lira(shadows.scores[i], shadows.without(i), online=online, fixed_variance=fixed_variance)
        for i in target_models
    ]
    return Roc.from_labels(
        np.concatenate(scores), np.concatenate([shadows.included[i] for i in target_models])
    )


def by_shadows(target: Any, labels: Any, vectors: Any, included: Any, *, top: int = 3) -> Floats:
    """Return the scores of the attack of Shokri et al. 2017 (arXiv:1610.05820): a classifier learns from
    shadow models what members' predictions look like.

    `target` is [examples, classes], the probabilities that the target model gives; `labels` the true classes;
    `vectors` [models, examples, classes] and `included` [models, examples] those of the shadow models. One
    logistic regression is fitted per class, on the confidence in the true class and the `top` largest ones,
    all scaled by `logit_scaled`. Scores are larger for members.
    """
    p, y, is_member = np.asarray(vectors, dtype=float), np.asarray(labels), np.asarray(included, dtype=bool)
    target_vectors = np.asarray(target, dtype=float)
    if (
        p.ndim != 3
        or target_vectors.shape != p.shape[1:]
        or is_member.shape != p.shape[:2]
        or y.shape != p.shape[1:2]
    ):
        raise InvalidInput(
            "shadow attack: target [examples, classes], labels [examples], vectors [models, examples, "
            "classes], included [models, examples]."
        )
    _check_classes(y, p.shape[2])
    _require.integer(top=top, at_least=1)
    scores = np.zeros(len(target_vectors))
    for value in np.unique(y):
        rows = np.flatnonzero(y == value)
        shadow_features = np.concatenate([_features(predictions[rows], y[rows], top) for predictions in p])
        weights = _logistic(shadow_features, is_member[:, rows].ravel())
        target_features = _features(target_vectors[rows], y[rows], top)
        scores[rows] = target_features @ weights[:-1] + weights[-1]
    return scores


def _features(probabilities: Floats, labels: Any, top: int) -> Floats:
    """Return the scaled confidences in the true class and in the `top` likeliest ones."""
    true_class = np.take_along_axis(probabilities, np.asarray(labels)[:, None].astype(np.int64), axis=1)
    largest = -np.sort(-probabilities, axis=1)[:, :top]
    return logit_scaled(np.hstack([true_class, largest]))


def _logistic(features: Floats, truth: Any, ridge: float = 1.0) -> Floats:
    """Fit a ridge logistic regression by Newton's method, on standardized features; return weights for the
    features as they came in, intercept last."""
    center, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-9)
    design = np.hstack([(features - center) / scale, np.ones((len(features), 1))])
    weights, labels = np.zeros(design.shape[1]), np.asarray(truth, dtype=float)
    for _ in range(12):
        fitted = special.expit(design @ weights)
        gradient = design.T @ (labels - fitted) - ridge * weights
        hessian = (design * (fitted * (1 - fitted))[:, None]).T @ design + ridge * np.eye(len(weights))
        weights = weights + np.linalg.solve(hessian, gradient)
    slopes = weights[:-1] / scale
    return np.append(slopes, weights[-1] - slopes @ center)


def by_quantile(
    target: Any,
    features: Any,
    outside: Any,
    outside_features: Any,
    *,
    levels: Sequence[float] = (0.5, 0.75, 0.9, 0.95, 0.98),
) -> Floats:
    """Return how unusually sure the model is of an example, compared with examples like it: quantile
    regression on people known to be outside.

    `target` are scaled confidences, `features` what is known of each example (a row each); `outside` and
    `outside_features` the same for examples that were certainly not in the training data. For every level a
    linear quantile is fitted; the score says between which quantiles an example's confidence lies, on a
    normal scale. Apart from these quantiles nothing is trained (Bertran et al. 2023, arXiv:2307.03694).
    """
    outside_scores, x = np.asarray(outside, dtype=float), _design(outside_features)
    target_scores, z = np.asarray(target, dtype=float), _design(features)
    if outside_scores.shape != x.shape[:1] or target_scores.shape != z.shape[:1] or x.shape[1] != z.shape[1]:
        raise InvalidInput(
            "quantile attack: one confidence and one row of features (of one width) for each example."
        )
    ordered_levels = sorted(levels)
    _require.integer(levels=len(ordered_levels), at_least=2)
    _require.open_probability(lowest=ordered_levels[0], highest=ordered_levels[-1])
    fitted = np.stack([z @ _quantile(x, outside_scores, level) for level in ordered_levels], axis=1)
    return _on_normal_scale(target_scores, np.sort(fitted, axis=1), special.ndtri(np.asarray(ordered_levels)))


def _design(features: Any) -> Floats:
    """Return the rows of features with a one appended, for the intercept."""
    rows = np.asarray(features, dtype=float)
    rows = rows[:, None] if rows.ndim == 1 else rows
    return np.hstack([rows, np.ones((len(rows), 1))])


def _quantile(x: Floats, y: Floats, level: float) -> Floats:
    """Return the linear function with the least pinball loss, by its dual linear program (Koenker & Bassett
    1978)."""
    solution = optimize.linprog(-y, A_eq=x.T, b_eq=(1 - level) * x.sum(axis=0), bounds=(0, 1), method="highs")
    if not solution.success:
        raise InvalidInput("the quantile regression has no solution for these features: are they all finite?")
    return np.asarray(-solution.eqlin.marginals, dtype=float)


def _on_normal_scale(confidences: Floats, quantiles: Floats, positions: Floats) -> Floats:
    """Return the position of each confidence on a normal scale: interpolated linearly between the example's
    fitted quantiles, whose `positions` are given, and extrapolated beyond the outermost two."""
    gap = np.maximum(np.diff(quantiles, axis=1), 1e-9)
    segment = np.clip((quantiles[:, 1:-1] < confidences[:, None]).sum(axis=1), 0, gap.shape[1] - 1)
    rows = np.arange(len(confidences))
    slope = np.diff(positions)[segment] / gap[rows, segment]
    return np.asarray(positions[segment] + (confidences - quantiles[rows, segment]) * slope, dtype=float)
