"""The course's pictures of what accounting claims, beside what was measured: composition, streams, training,
tuning, the votes of PATE.

`python -m docs.pictures` measures them with the others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import discreet as dp
from discreet import accounting as acc
from discreet import local, sampling, streaming
from discreet._drawing import Picture, Series
from discreet.sampling import SeededEntropy


def composition() -> Picture:
    """How well k randomized answers tell one person's bit, against what each rule of composition allows."""
    counts, entropy, epsilon = (1, 3, 10, 30, 100, 300, 1000), SeededEntropy(9), 0.1
    coin = local.KaryResponse(epsilon=epsilon, domain=2)
    rows: dict[str, list[float]] = {"basic": [], "advanced": [], "loss distribution": [], "attack": []}
    for k in counts:
        runs = max(4000, 600_000 // k)
        ones = [
            np.asarray(coin.respond(np.full(runs * k, bit), entropy=entropy)).reshape(runs, k).sum(axis=1)
            for bit in (0, 1)
        ]
        # the likelihood ratio grows with the ones: the best test is a threshold, in the middle by symmetry
        said = [float(((count > k / 2) + (count == k / 2) / 2).mean()) for count in ones]
        rows["attack"].append(said[1] - said[0])
        event = acc.PureDP(epsilon=epsilon).repeated(k)
        rows["basic"].append(_advantage(k * epsilon, 0.0))
        deltas = [10.0**-power for power in np.arange(0.5, 8, 0.5)]
        advanced = [_advantage(acc.epsilon(event, delta=d, accountant="advanced"), d) for d in deltas]
        rows["advanced"].append(min(*advanced, rows["basic"][-1]))
        rows["loss distribution"].append(dp.explain(event).risk.advantage)
    x = tuple(map(float, counts))
    names = {
        "basic": "allowed by adding up",
        "advanced": "allowed by advanced composition",
        "loss distribution": "allowed by the loss distribution",
        "attack": "measured: majority of k answers",
    }
    return Picture(
        title="Attack on one person's bit: k answers at epsilon 0.1 each",
        x_label="answers",
        y_label="true minus false positives",
        log_x=True,
        y_top=1.0,
        series=tuple(Series(names[key], x, tuple(y), dashed=key != "attack") for key, y in rows.items()),
    )


def _advantage(epsilon: float, delta: float) -> float:
    """The largest true minus false-positive rate that (epsilon, delta) allows."""
    return min(1.0, math.tanh(epsilon / 2) + 2 * delta / (1 + math.exp(min(epsilon, 700))))


def streams() -> Picture:
    """The error of running sums, over 200 runs of each counter and over all its steps, beside theory."""
    lengths, runs, entropy = (16, 64, 256, 1024), 200, SeededEntropy(10)
    names = {
        "item": "noise on every input", "tree": "tree", "honaker": "tree, Honaker's estimate",
        "square_root": "square root", "blt": "BLT, 4 buffers",
    }  # fmt: skip
    x, series, theory = tuple(map(float, lengths)), [], []
    for color, (strategy, name) in enumerate(names.items()):
        errors = [_stream_error(strategy, n, runs, entropy) for n in lengths]
        expected = [streaming.error_factors(strategy, steps=n).rms for n in lengths]
        series.append(Series(name, x, tuple(errors), color=color))
        theory.append(
            Series("" if theory else "dashed: theory", x, tuple(expected), dashed=True, color=color)
        )
    return Picture(
        title="Error of running sums at rho 1/2: 200 runs a point",
        x_label="steps",
        y_label="root mean squared error",
        log_x=True,
        log_y=True,
        series=(*series, *theory),
    )


def _stream_error(strategy: str, steps: int, runs: int, entropy: SeededEntropy) -> float:
    """The root mean squared error of all sums of a stream of zeros: each coordinate is a run of its own."""
    if strategy == "item":
        # unit noise on a grid of 2^-8, added up
        drawn = np.asarray(sampling.discrete_gaussian(2**8, steps * runs, entropy), float) / 2**8
        released = drawn.reshape(steps, runs).cumsum(axis=0)
    else:
        sums = streaming.PrivateSums(runs, steps, 1.0, rho=0.5, strategy=strategy)
        released = np.array([sums.add(np.zeros(runs), entropy=entropy) for _ in range(steps)])
    return math.sqrt(float(np.mean(released**2)))


def _digits() -> tuple[Any, ...]:
    """1,200 private digits, 300 public ones without labels, 297 to test on."""
    from sklearn.datasets import load_digits

    digits, order = load_digits(), np.random.default_rng(0).permutation(1797)
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)
    return x[:1200], y[:1200], x[1200:1500], y[1200:1500], x[1500:], y[1500:]


def training() -> Picture:
    """Accuracy of DP-SGD on small digits, over the epsilon that each accountant says the same runs cost."""
    import torch
    from torch import nn

    from discreet import learning

    private, labels, _, _, test, truth = _digits()
    epochs, batch, noise, delta, seeds = (1, 2, 5, 10, 20, 40), 120, 4.0, 1e-5, 3
    known = dp.Public(table="digits", size=len(private))
    shares = []
    for count in epochs:
        right = []
        for seed in range(seeds):
            torch.manual_seed(seed)
            trainer = learning.Trainer(
                nn.Linear(64, 10), "cross_entropy", public=known, noise_multiplier=noise, delta=delta,
                clip=0.5, batch=batch, epochs=count, optimizer=learning.SGD(lr=2.0),
            )  # fmt: skip
            model = trainer(learning.Examples(private, labels, known), entropy=SeededEntropy(seed)).value
            with torch.no_grad():
                right.append(float((model(torch.tensor(test)).argmax(1).numpy() == truth).mean()))
        shares.append(100 * float(np.mean(right)))
    rate = batch / len(private)
    steps = [count * len(private) // batch for count in epochs]
    event = acc.Gaussian(noise_multiplier=noise).sampled(rate=rate)
    prices = {
        "by the moments accountant": [acc.moments.epsilon(rate, noise, n, delta) for n in steps],
        "by Rényi accounting": [acc.epsilon(event.repeated(n), delta=delta, accountant="rdp") for n in steps],
        "by the loss distribution": [acc.epsilon(event.repeated(n), delta=delta) for n in steps],
    }
    return Picture(
        title="The same runs of DP-SGD, priced by three accountants",
        x_label="epsilon, delta 1e-5",
        y_label="right of 297 digits (%), mean of 3 runs",
        log_x=True,
        y_top=100.0,
        series=tuple(Series(name, tuple(x), tuple(shares)) for name, x in prices.items()),
    )


def tuning() -> Picture:
    """What the best of k runs gives away of one person: k is fixed, or random and secret."""
    from discreet.tabular.trials import gamma_of, number_of_trials

    rng, entropy, epsilon, draws = np.random.default_rng(15), SeededEntropy(15), 0.5, 20_000
    means = (1, 2, 3, 4, 6, 8)
    base = acc.PureDP(epsilon=epsilon)
    rows: dict[str, list[float]] = {"fixed": [], "geometric": [], "paid": [], "priced": []}
    for mean in means:
        rows["paid"].append(acc.epsilon(base.repeated(mean), delta=0))
        rows["fixed"].append(_leak(np.full(50 * draws, mean), epsilon, rng))
        if mean == 1:
            rows["geometric"].append(_leak(np.full(50 * draws, 1), epsilon, rng))
            rows["priced"].append(epsilon)
            continue
        law = acc.NegativeBinomialTrials(shape=1.0, gamma=gamma_of(1.0, mean))
        trials = np.array([number_of_trials(law, entropy) for _ in range(draws)])
        rows["geometric"].append(_leak(np.repeat(trials, 50), epsilon, rng))
        rows["priced"].append(acc.epsilon(acc.RepeatAndSelect(event=base, trials=law), delta=0))
    x = tuple(map(float, means))
    return Picture(
        title="What the best of several runs at epsilon 0.5 gives away",
        x_label="mean number of runs",
        y_label="epsilon",
        series=(
            Series("paid one by one", x, tuple(rows["paid"]), dashed=True, color=1),
            Series("measured: always so many", x, tuple(rows["fixed"]), color=1),
            Series("priced: random number, geometric", x, tuple(rows["priced"]), dashed=True, color=0),
            Series("measured: random number", x, tuple(rows["geometric"]), color=0),
        ),
    )


def _leak(trials: Any, epsilon: float, rng: np.random.Generator) -> float:
    """The log of how much likelier "no run succeeded" is on one of two neighbors, from simulated searches.

    A run succeeds by randomized response of one person's bit; the search keeps a success if there is one.
    """
    chances = [1 / (1 + math.exp(epsilon)), 1 / (1 + math.exp(-epsilon))]
    failed = [float((rng.binomial(trials, chance) == 0).mean()) for chance in chances]
    return math.log(failed[0] / failed[1])


def pate_votes() -> Picture:
    """The price of labels by real teachers: 40 of them on 1,200 small digits, Gaussian noise on the votes."""
    from sklearn.linear_model import LogisticRegression

    private, labels, public, truth, _, _ = _digits()
    teachers, sigma, delta = 40, 6.0, 1e-5
    votes = np.zeros((len(public), 10), np.int64)
    for part in np.array_split(np.arange(len(private)), teachers):
        said = LogisticRegression(max_iter=300).fit(private[part], labels[part]).predict(public)
        votes[np.arange(len(public)), said] += 1
    noisy = votes + np.asarray(sampling.discrete_gaussian(6, votes.size, SeededEntropy(17))).reshape(
        votes.shape
    )
    right = 100 * float((noisy.argmax(axis=1) == truth).mean())
    agreed = 100 * float(votes.max(axis=1).mean()) / teachers
    counts = (1, 3, 10, 30, 100, 300)
    dependent = [acc.pate.vote_cost(votes[:k].tolist(), sigma).epsilon_for_steward(delta) for k in counts]
    independent = [acc.epsilon(acc.GNMax(sigma=sigma).repeated(k), delta=delta) for k in counts]
    x = tuple(map(float, counts))
    return Picture(
        title=f"40 teachers, {agreed:.0f}% agree; {right:.0f}% of noisy labels are right",
        x_label="labels asked",
        y_label="epsilon, delta 1e-5",
        log_x=True,
        log_y=True,
        series=(
            Series("charged: whatever the votes are", x, tuple(independent), dashed=True),
            Series("by the votes that were measured", x, tuple(dependent)),
        ),
    )


PICTURES = {
    "composition": composition,
    "streams": streams,
    "training": training,
    "tuning": tuning,
    "pate-votes": pate_votes,
}
