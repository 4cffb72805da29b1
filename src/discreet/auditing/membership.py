"""Membership inference: was this person in the training data? Attacks on a trained model, from the crudest to
the best.

All of them look at how sure the model is of an example's true label. `by_loss` compares that with one
threshold for everybody; `lira` learns for every single example, from models that the attacker has trained
(shadow models), how sure a model is of its members, which is what makes it strong where false alarms are
rare.

Nothing here knows torch or scikit-learn: attacks take arrays of confidences, or a function `train(indices)`
that trains a model on these examples and returns its scaled confidences in all examples, or a function
without arguments that does.

Computes ROC curves of membership inference, with exact limits: how well an attack tells members from
others, above all where false positives are rare.

An average says little: an attack that guesses at random for most people and is certain about a few is a
catastrophe for these few. So look at the true-positive rate (TPR) where the false-positive rate (FPR) is
small (Carlini et al. 2022, arXiv:2112.03570).

>>> roc = Roc.of([3.0, 2.5, 0.1, 2.0], [0.0, 0.2, 2.1, -1.0])
>>> roc.auc, roc.tpr_at(0.25)
(0.8125, 0.75)

Attribute inference and model inversion: a model that fits its data too well reveals the missing column of
a record, or the typical input of a class.

Attribute inference (Yeom et al. 2018, arXiv:1709.01604, section 5; Fredrikson et al. 2014) knows all of a
person's record but one column, tries each value, and keeps the one with which the model's loss is smallest.
Right guesses about people outside the training data are statistics, not a leak: the leak is the *difference*
between members and others. Model inversion (Fredrikson et al. 2015) searches for the input that a model finds
most typical of a class; where a class is one person, that is their picture.

Measures by canaries in text whether a language model has memorized a secret that was planted once.

Plant "the code is 4821" in the training text, train, and compute the rank of 4821 when all codes are listed
from the least to the most surprising, where surprise is minus the log-likelihood. The exposure is
log2(number of codes) - log2(rank): about 1 to 2 for a code that was not in the text, and log2(number of
codes), its maximum, for a code that comes first and so can be extracted (Carlini et al. 2019, "The Secret
Sharer", arXiv:1802.08232).

>>> exposure(surprise=2.0, others=[3.0, 5.0, 4.0, 1.0, 8.0, 9.0, 7.0]).bits
2.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import _require
from .outputs import Guesses, floats, fresh_order, lower_limit, upper_limit

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Operating:
    """Holds one operating point: one threshold of an attack, with its counts, and exact (lower, upper) limits
    of its rates.
    """

    threshold: float
    guesses: Guesses
    tpr: tuple[float, float]
    fpr: tuple[float, float]
    confidence: float

    def above(self, epsilon: float, delta: float = 0.0) -> bool:
        """Return whether TPR <= e^epsilon FPR + delta is contradicted: by the lower limit of the one and the
        upper limit of the other."""
        _require.non_negative(epsilon=epsilon)
        _require.probability(delta=delta)
        # Beyond e^700 nothing is contradicted: the upper limit of a rate is never so small.
        return bool(self.tpr[0] > math.exp(min(float(epsilon), 700.0)) * self.fpr[1] + delta)


@dataclass(frozen=True, eq=False)
class Roc:
    """Holds scores of members and of others, larger where the attack believes in a member.

    Guarantee: limits hold with their confidence for each point by itself, for scores that are independent of
               each other.
    Proof:     Clopper & Pearson 1934.
    Assumes:   independence. Scores of many examples on *one* model are not quite independent: they describe
               this model. For a bound on its epsilon that needs no independence, include each example by
               the toss of a fair coin, and give the numbers of examples, of guesses and of right guesses to
               `one_run_epsilon`.
    """

    members: Floats
    others: Floats

    @classmethod
    def of(cls, members: Any, others: Any) -> Roc:
        scores = [np.asarray(x, dtype=float).ravel() for x in (members, others)]
        for x in scores:
            fit = len(x) and not np.isnan(x).any()
            _require.that(fit, "a ROC curve needs scores of members and of others, and none may be NaN.")
        return cls(*scores)

    @classmethod
    def from_labels(cls, scores: Any, included: Any) -> Roc:
        """Return the curve of one list of scores; `included` says for each whether it is a member's."""
        values, truth = floats(scores=scores).ravel(), np.asarray(included, dtype=bool).ravel()
        _require.that(len(values) == len(truth), f"{len(values)} scores for {len(truth)} examples.")
        return cls.of(values[truth], values[~truth])

    def _counts(self, thresholds: Floats) -> tuple[Any, Any]:
        """Return how many members and how many others have at least these scores."""
        hits, false_hits = (
            len(x) - np.searchsorted(np.sort(x), thresholds, side="left") for x in (self.members, self.others)
        )
        return hits, false_hits

    def curve(self) -> tuple[Floats, Floats]:
        """Return (FPR, TPR) at every threshold, from (0, 0) to (1, 1)."""
        thresholds = np.concatenate([[np.inf], np.unique(np.concatenate([self.members, self.others]))[::-1]])
        hits, false_hits = self._counts(thresholds)
        return false_hits / len(self.others), hits / len(self.members)

    @property
    def auc(self) -> float:
        """Return the probability that a member scores above a non-member, ties counting half."""
        others = np.sort(self.others)
        below = np.searchsorted(others, self.members, side="left")
        not_above = np.searchsorted(others, self.members, side="right")
        return float((below + not_above).mean() / (2 * len(self.others)))

    @property
    def advantage(self) -> float:
        """Return the largest TPR - FPR (Yeom et al. 2018, arXiv:1709.01604, Definition 4, at the best
        threshold).
        """
        fpr, tpr = self.curve()
        return float((tpr - fpr).max())

    def tpr_at(self, fpr: float) -> float:
        """Return the observed TPR at the best threshold whose observed FPR is at most `fpr`."""
        _require.probability(fpr=fpr)
        observed_fpr, tpr = self.curve()
        return float(tpr[observed_fpr <= fpr].max())

    def band(self, confidence: float = 0.95) -> tuple[Floats, Floats, Floats]:
        """Return (FPR, TPR at least, TPR at most) at every threshold: two-sided limits of each point by
        itself."""
        _require.open_probability(confidence=confidence)
        fpr, tpr = self.curve()
        n, level = len(self.members), (1 - confidence) / 2
        return fpr, np.asarray(lower_limit(tpr * n, n, level)), np.asarray(upper_limit(tpr * n, n, level))

    def at(self, fpr: float, *, confidence: float = 0.95) -> Operating:
        """Return the threshold for this FPR, and its rates with exact limits; all four hold together with the
        confidence.

        The threshold is chosen on half of the non-members' scores and measured on the other half, so that
        the limits hold although it was chosen. The halves are drawn anew at each call: the limits hold for
        scores in any order, and two calls differ a little.
        """
        _require.probability(fpr=fpr)
        _require.open_probability(confidence=confidence)
        members, others = self.members, self.others[fresh_order(len(self.others))]
        _require.that(
            len(others) >= 2,
            "at least two non-members are needed: one half chooses the threshold, the other measures.",
        )
        choosing = np.sort(others[::2])
        allowed = int(np.floor(fpr * len(choosing)))
        # The next float above the largest score that must stay below the threshold: `>=` counts as a guess.
        threshold = (
            float(np.nextafter(choosing[len(choosing) - allowed - 1], np.inf))
            if allowed < len(choosing)
            else -np.inf
        )
        # The members' scores choose nothing, so that all of them measure.
        others = others[1::2]
        guesses = Guesses.of(members, others, threshold)
        # Union bound over the four limits.
        level = (1 - confidence) / 4
        rates = [
            (float(lower_limit(k, n, level)), float(upper_limit(k, n, level)))
            for k, n in ((guesses.hits, guesses.first), (guesses.false_hits, guesses.second))
        ]
        return Operating(
            threshold=threshold, guesses=guesses, tpr=rates[0], fpr=rates[1], confidence=confidence
        )

    def __repr__(self) -> str:
        return (
            f"Roc({len(self.members)} members, {len(self.others)} others: AUC {self.auc:.3f}, "
            f"TPR {self.tpr_at(0.01):.3f} at 1% FPR)"
        )


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
    _require.that(
        ((probabilities >= 0) & (probabilities <= 1)).all(),
        "confidences must be between 0 and 1. For scores before the soft-max use `margins`.",
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
    fit = z.ndim == 2 and y.shape == z.shape[:1]
    _require.that(fit, "logits must have a row for each example, labels one class number each.")
    _check_classes(y, z.shape[1])
    true_logit = np.take_along_axis(z, y[:, None].astype(np.int64), axis=1)[:, 0]
    other_logits = np.array(z)
    np.put_along_axis(other_logits, y[:, None].astype(np.int64), -np.inf, axis=1)
    return np.asarray(true_logit - special.logsumexp(other_logits, axis=1), dtype=float)


def _check_classes(labels: Any, classes: int) -> None:
    """Refuse labels that are no class: -1 would be taken for the last one."""
    fit = np.isin(labels, np.arange(classes)).all()
    _require.that(fit, f"labels must be the numbers of classes, 0 to {classes - 1}.")


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
        _require.that(
            scores.ndim == 3 and scores.shape[:2] == included.shape and len(scores) >= 2,
            "shadow models need scores [models, examples] or [models, examples, queries], and who was "
            "in, [models, examples]; two models at least.",
        )
        fit = np.isfinite(scores).all()
        _require.that(fit, "scores of shadow models must be finite: use `margins` or `logit_scaled`.")
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
        _require.that(
            scores.shape[:1] == (examples,) and scores.ndim <= 2,
            f"each model must be asked about all {examples} examples, those it was trained on and the "
            f"others: scores of shape ({examples},) or ({examples}, queries) are needed, got "
            f"{scores.shape}.",
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
    wanted, shape = shadows.scores.shape[1:], target_scores.shape
    what = f"the target must have scores of shape {wanted}, got {shape}: the shadows' examples and queries."
    _require.that(shape == wanted, what)
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
    _require.that(
        not (count < (1 if fixed else 2)).any() and not (count < 2).all(),
        "some example was in (or out of) too few shadow models to fit a normal distribution: train more "
        "of them, or use `halves`. Two per side are needed; with fixed_variance=True one, and two of "
        "some example.",
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


Objective = Callable[[Floats], tuple[float, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Counts how often a hidden value was guessed right: of members (`right` of `members`), and of others."""

    right: int
    members: int
    right_of_others: int
    others: int

    @property
    def advantage(self) -> float:
        """Return the share guessed right among members minus that among others: what the model tells beyond
        statistics.
        """
        return self.right / self.members - self.right_of_others / self.others

    def limits(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a lower and an upper limit of the advantage; both hold together with this confidence, from
        exact limits of the two shares (four in all, each at a quarter of the level)."""
        _require.open_probability(confidence=confidence)
        level = (1 - confidence) / 4
        among_members, among_others = (self.right, self.members), (self.right_of_others, self.others)
        low = float(lower_limit(*among_members, level)) - float(upper_limit(*among_others, level))
        return low, float(upper_limit(*among_members, level)) - float(lower_limit(*among_others, level))

    @property
    def guesses(self) -> Guesses:
        """Return the counts of a membership inference attack that says "member" where the guess is right."""
        return Guesses(
            hits=self.right, first=self.members, false_hits=self.right_of_others, second=self.others
        )


def guess_attributes(losses: Any, prior: Any = None) -> Any:
    """Return, for each example, the likeliest of the values that its hidden column may have.

    `losses` is [examples, values]: the model's loss on the example with each value filled in. `prior` is how
    common the values are (public statistics; all alike by default). A loss counts as minus a log-likelihood:
    the guess is the value with the largest prior * e^-loss.
    """
    table = floats(losses=losses)
    fit = table.ndim == 2 and table.shape[1] >= 2 and not np.isnan(table).any()
    _require.that(fit, "losses must be [examples, values], with two values at least and no NaN.")
    weights = np.ones(table.shape[1]) if prior is None else np.asarray(prior, dtype=float)
    fit = weights.shape == table.shape[1:] and (weights >= 0).all() and weights.sum() > 0
    _require.that(fit, "the prior must have one number for each value, none below zero.")
    with np.errstate(divide="ignore"):
        return np.argmax(np.log(weights) - table, axis=1)


def attribute_inference(losses: Any, truth: Any, included: Any, *, prior: Any = None) -> Attributes:
    """Guess the hidden column of everybody, and count right guesses among members and others.

    `truth` has, for each example, the number of the true value, which is its column in `losses`; `included`
    says whether the example is a member, that is, was in the training data.
    """
    guessed, true_values = guess_attributes(losses, prior), floats(truth=truth)
    _require.that(
        true_values.shape == guessed.shape and np.isin(true_values, np.arange(np.shape(losses)[1])).all(),
        "truth must have the number of the right value, 0 for the first column of losses and so "
        "on, for each example.",
    )
    right = guessed == true_values
    is_member = np.asarray(included, dtype=bool)
    _require.that(
        is_member.shape == right.shape and not is_member.all() and is_member.any(),
        "say of each example whether it was in the training data; some must be in and some out.",
    )
    return Attributes(
        right=int(right[is_member].sum()), members=int(is_member.sum()),
        right_of_others=int(right[~is_member].sum()), others=int((~is_member).sum()),
    )  # fmt: skip


def invert(
    objective: Objective,
    start: Any,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    rate: float = 0.1,
    steps: int = 500,
    patience: int = 50,
    smooth: Callable[[Floats], Floats] | None = None,
) -> Floats:
    """Return the input a model finds most typical: descend `objective` (1 - confidence in a class, or its
    loss) within `bounds`, in steps of `rate` times the gradient, and keep the best input.

    `objective(x)` returns its value at x and its gradient. The gradient may be None: then it is estimated
    from the values at nearby points, which is all that a black box allows. `smooth` may tidy the input
    after each step (a blur, where neighbors are alike).

    Fredrikson, Jha & Ristenpart 2015, Algorithm 1 (MI-Face): gradient descent, stopped when `patience` steps
    bring nothing.
    """
    _require.ordered(low=bounds[0], high=bounds[1])
    _require.positive(rate=rate)
    _require.integer(steps=steps, patience=patience, at_least=1)
    x = np.clip(np.asarray(start, dtype=float), *bounds)
    best, least, waited = x, np.inf, 0
    for _ in range(steps):
        value, gradient = objective(x)
        if value < least - 1e-9:
            best, least, waited = x, float(value), 0
        else:
            waited += 1
            if waited >= patience:
                break
        slope = (
            _finite_differences(objective, x, value)
            if gradient is None
            else np.asarray(gradient, dtype=float)
        )
        x = np.clip(x - rate * slope, *bounds)
        x = np.clip(smooth(x), *bounds) if smooth is not None else x
    return np.asarray(best, dtype=float)


def _finite_differences(objective: Objective, x: Floats, value: float, width: float = 1e-3) -> Floats:
    """Estimate the gradient of a black box by one query for each coordinate, at distance `width`."""
    gradient = np.zeros(x.size)
    for i in range(x.size):
        shifted = x.copy()
        shifted.flat[i] += width
        gradient[i] = (objective(shifted)[0] - value) / width
    return gradient.reshape(x.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Holds the exposure of a secret in `bits`, at most `max_bits`, and its `rank` among all candidates, 1
    for the least surprising (a number with a fraction where it is estimated)."""

    bits: float
    max_bits: float
    rank: float

    @property
    def extracted(self) -> bool:
        """Return whether the secret comes first: whoever ranks the candidates by surprise learns it."""
        return self.rank <= 1


def log_perplexity(probabilities: Any) -> Any:
    """Return the log-perplexity of texts in bits, from the probability that a model gave each token after
    those before it; tokens are on the last axis.

    It is a `surprise`: minus log2 of the text's probability (Carlini et al. 2019, arXiv:1802.08232,
    Definition 1).

    >>> log_perplexity([0.5, 0.25])
    3.0
    """
    given = floats(probabilities=probabilities)
    fit = given.ndim and ((given >= 0) & (given <= 1)).all()
    _require.that(fit, "probabilities must be a list of numbers between 0 and 1, one for each token.")
    with np.errstate(divide="ignore"):
        bits = -np.log2(given).sum(axis=-1)
    return bits if bits.ndim else float(bits)


def exposure(surprise: float, others: Any) -> Exposure:
    """Return the exact exposure; `others` has the surprise (minus log-likelihood) of every other candidate.

    A candidate that is as surprising as the secret is ranked before it.

    Proof: Carlini et al. 2019, arXiv:1802.08232, Definition 4: log2 of the number of candidates minus log2 of
           the rank.
    """
    other_surprises = _check_surprises(surprise, others=others)
    rank = 1 + int((other_surprises <= surprise).sum())
    return Exposure(
        bits=math.log2(len(other_surprises) + 1) - math.log2(rank),
        max_bits=math.log2(len(other_surprises) + 1),
        rank=rank,
    )


def _check_surprises(surprise: float, **argument: Any) -> Any:
    """Return the one further argument, surprises of other candidates, as an array; refuse it if there are
    none or some are NaN."""
    _require.number(surprise=surprise)
    surprises = floats(**argument).ravel()
    fit = len(surprises) and not np.isnan(surprises).any()
    _require.that(fit, "exposure needs the surprises of other candidates, and none may be NaN.")
    return surprises
