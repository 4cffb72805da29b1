"""MST on mbi (private-pgm), for `synthetic.py`: run as a script by a Python that has mbi 2.

Arguments: a file of codes (npz: `codes`, `sizes`), epsilon, delta, how many runs, where to write (npz). The
steps and constants are those of the authors' mechanisms/mst.py: a third of rho each for columns, choices and
pairs, values below three standard deviations put together, 2,500 and 10,000 iterations of mirror descent.
"""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

from mbi import Dataset, Domain, LinearMeasurement, estimation  # type: ignore[import-not-found]  # noqa: E402
from scipy.optimize import brentq, minimize_scalar  # noqa: E402


def rho_of(epsilon: float, delta: float) -> float:
    """The rho whose best conversion (Canonne, Kamath & Steinke 2020, Proposition 12) is (epsilon,
    delta)-DP."""

    def log_delta(rho: float) -> float:
        def bound(log_a: float) -> float:
            a = 1 + np.exp(log_a)
            return float((a - 1) * (a * rho - epsilon) + a * np.log1p(-1 / a) - np.log(a - 1))

        return float(minimize_scalar(bound, bounds=(-6, 8), method="bounded").fun)

    return float(brentq(lambda rho: log_delta(rho) - np.log(delta), 1e-6, epsilon))


def fit(domain: Any, log: list[Any], iterations: int) -> Any:
    return estimation.MirrorDescent().estimate(domain, log, iters=iterations)


def mst(codes: Any, sizes: list[int], epsilon: float, delta: float, random: Any) -> Any:
    names, rho = [f"c{i}" for i in range(len(sizes))], rho_of(epsilon, delta)
    sigma = np.sqrt(3 * len(sizes) / (2 * rho))
    counts = [np.bincount(codes[:, i], minlength=n) for i, n in enumerate(sizes)]
    noisy = [c + random.normal(0, sigma, len(c)) for c in counts]
    kept = [np.flatnonzero(y >= 3 * sigma) for y in noisy]
    rare = [np.flatnonzero(y < 3 * sigma) for y in noisy]
    fewer, small, log = np.empty_like(codes), {}, []
    for i, y in enumerate(noisy):
        place = np.full(sizes[i], len(kept[i]))
        place[kept[i]] = np.arange(len(kept[i]))
        fewer[:, i] = place[codes[:, i]]
        small[names[i]] = len(kept[i]) + (len(rare[i]) > 0)
        weights = np.ones(small[names[i]])
        values = y[kept[i]]
        if len(rare[i]):
            weights[-1] = 1 / np.sqrt(len(rare[i]))
            values = np.append(values, y[rare[i]].sum() * weights[-1])
        query = (lambda w: lambda mu: mu.datavector() * w)(weights)
        log.append(LinearMeasurement(values, (names[i],), sigma, query=query))
    data = Dataset({n: fewer[:, i] for i, n in enumerate(names)}, Domain.fromdict(small))
    model = fit(data.domain, log, 2500)
    pairs = list(itertools.combinations(names, 2))
    score = {p: np.abs(table(data, p) - table(model, p)).sum() for p in pairs}
    part, each = {n: n for n in names}, np.sqrt(8 * rho / 3 / (len(names) - 1))
    chosen = []
    for _ in range(len(names) - 1):
        ready = [p for p in pairs if part[p[0]] != part[p[1]]]
        logits = 0.5 * each * np.array([score[p] for p in ready])
        odds = np.exp(logits - logits.max())
        a, b = ready[random.choice(len(ready), p=odds / odds.sum())]
        chosen.append((a, b))
        old, new = part[b], part[a]
        part = {n: new if p == old else p for n, p in part.items()}
    sigma = np.sqrt(3 * len(chosen) / (2 * rho))
    for p in chosen:
        x = table(data, p)
        log.append(LinearMeasurement(x + random.normal(0, sigma, x.size), p, sigma))
    drawn = fit(data.domain, log, 10000).synthetic_data()
    out = np.empty((len(drawn.data[names[0]]), len(names)), np.int64)
    for i, n in enumerate(names):
        column = np.asarray(drawn.data[n])
        lost = column == len(kept[i])
        out[~lost, i] = kept[i][column[~lost]]
        out[lost, i] = random.choice(rare[i], int(lost.sum())) if lost.any() else 0
    return out


def table(of: Any, pair: Any) -> Any:
    return np.asarray(of.project(pair).datavector())


def main() -> None:
    path, epsilon, delta, runs, target = sys.argv[1:6]
    given, results = np.load(path), {}
    for i in range(int(runs)):
        start = time.process_time()
        # mbi draws its rows with numpy's global generator.
        np.random.seed(i)  # noqa: NPY002
        sizes = [int(n) for n in given["sizes"]]
        random = np.random.default_rng(i)
        results[f"run{i}"] = mst(given["codes"], sizes, float(epsilon), float(delta), random)
        results[f"seconds{i}"] = np.array(time.process_time() - start)
    np.savez(target, **results)


if __name__ == "__main__":
    main()
