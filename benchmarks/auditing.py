"""Audits at length: rivals' mechanisms by the same attacks, LiRA with and without privacy, training from
inside, many canaries.

`python -m benchmarks auditing`. The reports on rivals are saved as pages in out/audits. A claim that is
refuted is a finding about the rival, not a missed target; a refuted claim of ours, or an attack that has lost
its teeth, is one.
"""

from __future__ import annotations

import importlib.util
import sys
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from discreet import accounting as acc
from discreet import auditing, mechanisms, sampling

RUNS, CONFIDENCE = 10_000, 1 - 1e-6
# of the checkout, wherever it is run from
OUT = Path(__file__).resolve().parents[1] / "out" / "audits"
LIRA_EPSILON, LIRA_DELTA = 2.0, 1e-5


def line(name: str, text: str, target: str, ok: bool) -> bool:
    print(f"auditing.{name:<34} {text:<74} target {target:<22} {'ok' if ok else 'MISSED'}", flush=True)
    return ok


def opendp_mechanisms() -> dict[str, Callable[[Any], Any]]:
    """opendp's Laplace on whole numbers and on floats, geometric and randomized response, all at epsilon
    1."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    whole = dp.m.make_laplace(dp.atom_domain(T="i64"), dp.absolute_distance(T="i64"), scale=1.0)
    floats = dp.m.make_laplace(dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float), scale=1.0)
    coin = dp.m.make_randomized_response_bool(prob=float(1 / (1 + np.exp(-1))))
    return {
        "opendp laplace, integers": lambda x: whole(int(x)),
        "opendp laplace, floats": lambda x: floats(float(x)),
        "opendp randomized response": lambda x: coin(bool(x)),
    }


def diffprivlib_mechanisms() -> dict[str, Callable[[Any], Any]]:
    """diffprivlib's Laplace, its truncated form, its geometric one, its snapping one, all at epsilon 1."""
    _without_models("diffprivlib")
    from diffprivlib import mechanisms as dpl

    laplace, geometric = dpl.Laplace(epsilon=1.0, sensitivity=1), dpl.Geometric(epsilon=1.0, sensitivity=1)
    snapping = dpl.Snapping(epsilon=1.0, sensitivity=1, lower=-4, upper=4)
    return {
        "diffprivlib Laplace": lambda x: laplace.randomise(float(x)),
        "diffprivlib Geometric": lambda x: geometric.randomise(int(x)),
        "diffprivlib Snapping": lambda x: snapping.randomise(float(x)),
    }


def _without_models(package: str) -> None:
    """Only its mechanisms: diffprivlib 0.6.6 as a whole does not load beside scikit-learn 1.9, whose trees it
    reaches into."""
    spec = importlib.util.find_spec(package)
    if package not in sys.modules and spec is not None:
        sys.modules[package] = types.ModuleType(package)
        sys.modules[package].__path__ = list(spec.submodule_search_locations or ())


def ours() -> dict[str, Callable[[Any], Any]]:
    noise, entropy = mechanisms.IntegerLaplace.for_epsilon(1), sampling.Entropy()
    return {"discreet IntegerLaplace": lambda x: int(noise(np.array([int(x)]), entropy=entropy)[0])}


def rivals() -> bool:
    """Each mechanism by learned events, and its last bits by Mironov's and the precision attack; a page for
    each."""
    OUT.mkdir(parents=True, exist_ok=True)
    found = [report(name, run, own=True) for name, run in ours().items()]
    for load in (opendp_mechanisms, diffprivlib_mechanisms):
        try:
            named = load()
        except ImportError as missing:
            print(f"auditing.rivals: {missing.name} is not installed (`make peers`)")
            continue
        found += [report(name, run, own=False) for name, run in named.items()]
    return all(found)


def report(name: str, run: Callable[[Any], Any], *, own: bool) -> bool:
    learned = auditing.audit(run, 1, 0, claim=1.0, runs=RUNS, confidence=CONFIDENCE)
    learned.save(OUT / f"{name.replace(' ', '_').replace(',', '')}.html")
    bits = {}
    if isinstance(run(0), float):
        bits["last bits"] = auditing.floating_point_attack(
            run, 1.0, 0.0, scale=1, claim=1.0, confidence=CONFIDENCE, runs=2000
        )
    refuted = learned.refuted or any(one.refuted for one in bits.values())
    words = f"epsilon 1 claimed, {learned.epsilon:.2f} shown" + "".join(
        f", {one.epsilon:.2f} by its {k}" for k, one in bits.items()
    )
    return line(
        name,
        f"{words}: {'REFUTED' if refuted else 'stands'}",
        "not refuted" if own else "reported",
        not (own and refuted),
    )


def digits(people: int) -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(x))[:people]
    x, y = x[chosen] / 16, y[chosen].copy()
    wrong = rng.random(people) < 0.2
    y[wrong] = rng.integers(0, 10, wrong.sum())
    return x, y


def lira(models: int = 64, private_models: int = 32, people: int = 600) -> bool:
    """An overfitted network, and private logistic regressions of epsilon 2: the long form of
    tests/auditing/test_membership.py."""
    from sklearn.neural_network import MLPClassifier

    from discreet import learning

    x, y = digits(people)

    def overfitted(members: Any) -> Callable[[], Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = MLPClassifier((64,), solver="lbfgs", alpha=1e-6, max_iter=60, random_state=0).fit(
                x[members], y[members]
            )
        return lambda: auditing.margins(np.maximum(model.predict_log_proba(x), -50.0), y)

    def private(members: Any) -> Callable[[], Any]:
        model = learning.DPClassifier(
            epsilon=LIRA_EPSILON,
            delta=LIRA_DELTA,
            classes=list(range(10)),
            n=people // 2,
            lower=0,
            upper=1,
            batch=60,
            epochs=10,
        ).fit(x[members], y[members])
        return lambda: auditing.margins(np.log(model.predict_proba(x) + 1e-12), y)

    shadows = auditing.train_shadows(overfitted, people, models=models, seed=1)
    ok = True
    for online in (True, False):
        roc = auditing.lira_roc(shadows, online=online, fixed_variance=True)
        at = roc.at(0.01)
        name = f"lira, {'online' if online else 'offline'}, no privacy"
        text = (
            f"TPR {roc.tpr_at(0.01):.3f} at 1% FPR (limits {at.tpr[0]:.3f} to {at.tpr[1]:.3f}), AUC "
            f"{roc.auc:.3f}"
        )
        ok &= line(name, text, "TPR > 0.1" if online else "reported", not online or at.tpr[0] > 0.1)
    roc = auditing.lira_roc(
        auditing.train_shadows(private, people, models=private_models, seed=2), fixed_variance=True
    )
    for rate in (0.01, 0.1):
        at = roc.at(rate)
        text = (
            f"TPR {roc.tpr_at(rate):.3f} at {rate:g} FPR (limits {at.tpr[0]:.3f} to {at.tpr[1]:.3f}), "
            f"AUC {roc.auc:.3f}"
        )
        ok &= line("lira, epsilon 2", text, "<= e^eps FPR + delta", not at.above(LIRA_EPSILON, LIRA_DELTA))
    return ok


def training(
    epsilon: float, canaries: int = 10_000, runs: int = 4, rate: float = 0.1, steps: int = 100
) -> bool:
    """The real trainer with Dirac canaries: the share of the claim that is shown."""
    from torch import nn

    from discreet import learning

    made = learning.Trainer(
        nn.Embedding(canaries, 1),
        lambda out, goal: out[:, 0] * goal,
        epsilon=epsilon,
        delta=1e-5,
        rate=rate,
        batch=100,
        steps=steps,
        optimizer=learning.SGD(lr=1.0),
    )
    scores, coins = [], []
    for _ in range(runs):
        included, sums = np.random.default_rng().random(canaries) < 0.5, []
        members = np.flatnonzero(included)
        examples = learning.Examples(members, np.full(len(members), 1000.0, np.float32))
        with made.start(examples, entropy=sampling.Entropy()) as run:
            before = run.model.weight.detach().numpy().ravel()
            while not run.done:
                run.step()
                after = run.model.weight.detach().numpy().ravel()
                sums.append((before - after) * made.schedule.divisor)
                before = after
        scores.append(
            auditing.step_scores(sums, noise_multiplier=made.noise_multiplier, rate=rate)["likelihood ratio"]
        )
        coins.append(included)

    def family(noise: float) -> acc.Event:
        return acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)

    found = auditing.audit_canaries(
        np.concatenate(scores), np.concatenate(coins), family=family, noise_multiplier=made.noise_multiplier
    )
    text = (
        f"{found.epsilon:.2f} shown ({found.epsilon / epsilon:.0%}); one run "
        f"{found.one_run_epsilon:.2f}, with its curve {found.one_run_curve_epsilon:.2f}"
    )
    return line(f"training, epsilon {epsilon:g}", text, ">= 60%", found.epsilon >= 0.6 * epsilon)


def many_canaries() -> bool:
    started = time.process_time()
    rng = np.random.default_rng(0)
    included = rng.random(100_000) < 0.5
    scores = rng.normal(size=100_000) + 2.0 * included
    plain = auditing.audit_one_run(scores, included, delta=1e-5)
    guesses, right = auditing.guess_by_score(scores, included, 5000)
    curve = auditing.one_run_gaussian_epsilon(100_000, guesses, right, delta=1e-5)
    seconds = time.process_time() - started
    text = (
        f"{seconds:.1f} CPU-s; epsilon {plain:.2f}, as a Gaussian {curve:.2f} (the truth is "
        f"{acc.epsilon(acc.Gaussian(noise_multiplier=0.5), delta=1e-5):.2f})"
    )
    return line("one run, 100,000 canaries", text, "< 60 s", seconds < 60)


def main() -> int:
    results = [many_canaries(), rivals(), *(training(epsilon) for epsilon in (1.0, 2.0, 4.0)), lira()]
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
