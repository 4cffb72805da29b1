"""Workloads against what others offer for them, at the same price: OpenDP's trees, sums of noisy cells, and
mbi's graphical models.

Each side is run several times on the same table. Shown are the root mean squared error over all questions and
runs, which is what is predicted, the median over runs of the error of one run, and median CPU-seconds of a
run. HDMM is not compared: the package index has nothing of that name.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from discreet import Bounds, Categories, Public
from discreet.mechanisms import matrix
from discreet.sampling import Entropy, discrete_gaussian, discrete_laplace
from discreet.tables import Memory

PRICES: tuple[dict[str, float], ...] = ({"epsilon": 1.0}, {"rho": 0.5})
BRANCHES = (2, 4, 16)
# Rounds of mirror descent: 1000 is what the page of mbi shows; there it has not converged.
ROUNDS = {1000: 3, 4000: 1}
WORKLOADS: dict[str, Callable[[int], matrix.Workload]] = {
    "prefix": matrix.prefix,
    "all ranges": matrix.all_ranges,
}
# Eight columns of Adult; numbers go into bins between these edges.
COLUMNS: dict[str, tuple[float, ...]] = {
    "sex": (),
    "race": (),
    "relationship": (),
    "marital_status": (),
    "income": (),
    "age": (0, 25, 35, 45, 60, 100),
    "education_num": (0, 8.5, 9.5, 10.5, 12.5, 17),
    "hours_per_week": (0, 20, 39, 41, 55, 100),
}


class Measured(NamedTuple):
    """The errors of several runs, and what they cost."""

    rmse: float
    median: float
    seconds: float


def measured(run: Callable[[], Any], truth: Any, runs: int) -> Measured:
    errors, times = [], []
    for _ in range(runs):
        start = time.process_time()
        answers = run()
        times.append(time.process_time() - start)
        errors.append(float(np.sqrt(np.mean((np.asarray(answers) - truth) ** 2))))
    return Measured(
        float(np.sqrt(np.mean(np.square(errors)))), statistics.median(errors), statistics.median(times)
    )


def show(name: str, result: Measured, ours: Measured, note: str = "") -> None:
    print(
        f"  {name:34} rmse {result.rmse:8.3f} ({result.rmse / ours.rmse:6.3f} of ours)   "
        f"median {result.median:8.3f} ({result.median / ours.median:6.3f})   {result.seconds:8.4f} "
        f"CPU-s   {note}",
        flush=True,
    )


def noisy_cells(counts: Any, workload: matrix.Workload, price: dict[str, float]) -> Callable[[], Any]:
    """Noise on every cell, then sums: what is done without a strategy."""
    entropy = Entropy()
    if "epsilon" in price:
        return lambda: workload.times(counts + discrete_laplace(1 / price["epsilon"], len(counts), entropy))
    return lambda: workload.times(
        counts + discrete_gaussian((1 / (2 * price["rho"])) ** 0.5, len(counts), entropy)
    )


def opendp_tree(
    counts: Any, workload: matrix.Workload, price: dict[str, float], branches: int, *, corrected: bool = False
) -> Callable[[], Any]:
    """OpenDP's tree of counts at that price by its own privacy map, its consistent leaves, and their sums.

    With Gaussian noise its map charges as many times the noise as there are layers, where one row moves the
    tree by the square root of that in l2; `corrected` gives it the noise of the latter.
    """
    import opendp.prelude as dp

    dp.enable_features("contrib")
    pure = "epsilon" in price
    metric = (dp.l1_distance if pure else dp.l2_distance)(T="i64")
    noise = dp.m.then_laplace if pure else dp.m.then_gaussian
    size, domain = len(counts), dp.vector_domain(dp.atom_domain(T="i64"))
    tree = dp.t.make_b_ary_tree(domain, metric, leaf_count=size, branching_factor=branches)
    leaves = dp.t.make_consistent_b_ary_tree(branching_factor=branches, TIA="i64", TOA="f64")
    if corrected:
        noised = tree >> noise((tree.map(1) / (2 * price["rho"])) ** 0.5)
    else:
        noised = dp.binary_search_chain(
            lambda scale: tree >> noise(scale), 1, price["epsilon" if pure else "rho"]
        )
    release, column = noised >> leaves, np.asarray(counts, dtype=np.int64)
    return lambda: workload.times(np.asarray(release(column))[:size])


def opendp_trees(
    counts: Any, workload: matrix.Workload, price: dict[str, float]
) -> dict[str, Callable[[], Any]]:
    trees = {f"opendp tree of {b}": opendp_tree(counts, workload, price, b) for b in BRANCHES}
    if "rho" in price:
        trees |= {
            f"opendp tree of {b}, l2 corrected": opendp_tree(counts, workload, price, b, corrected=True)
            for b in BRANCHES
        }
    return trees


def ranges(size: int, runs: int) -> list[bool]:
    """Prefix sums and ranges: whether ours has the smallest error, for each workload and price."""
    public = Public(schema={"x": Bounds(0, size)})
    cells = matrix.Cells.of(matrix.Attribute(column="x", edges=tuple(range(size + 1))))
    source = Memory({"x": np.random.default_rng(1).uniform(0, size, 5000).tolist()}, public)
    counts = np.asarray(cells(source), dtype=np.int64)
    results = []
    for (name, build), price in itertools.product(WORKLOADS.items(), PRICES):
        workload = build(size)
        truth = workload.times(counts)
        start = time.process_time()
        asked = matrix.answer(public, cells, workload, **price)  # type: ignore[arg-type]
        planning = time.process_time() - start
        print(f"{name} {size}, {', '.join(f'{k} {v:g}' for k, v in price.items())}: medians of {runs} runs")
        ours = measured(lambda asked=asked: asked(source, entropy=Entropy()).value.answers, truth, runs)
        show("ours", ours, ours, f"planned in {planning:.2f} CPU-s; {asked.rmse:.3f} predicted")
        rivals = {"noisy cells + sums": noisy_cells(counts, workload, price)}
        try:
            rivals |= opendp_trees(counts, workload, price)
        except ImportError:
            print("  opendp is not installed (`make peers`): not compared")
        errors = []
        for rival, run in rivals.items():
            result = measured(run, truth, runs)
            show(rival, result, ours)
            errors.append(result.rmse)
        results.append(ours.rmse < min(errors))
        print(f"  target: below all others   {'ok' if results[-1] else 'MISSED'}")
    return results


def adult(path: Path) -> tuple[Public, matrix.Cells, Memory]:
    import pyarrow.parquet as pq

    table = pq.read_table(path).select(list(COLUMNS))
    schema: dict[str, Any] = {}
    attributes = []
    for name, edges in COLUMNS.items():
        if edges:
            schema[name] = Bounds(edges[0], edges[-1])
            attributes.append(matrix.Attribute(column=name, edges=edges))
        else:
            schema[name] = Categories(sorted(set(table.column(name).to_pylist()) - {None}))
            attributes.append(matrix.Attribute(column=name))
    public = Public(schema=schema)
    return public, matrix.Cells(attributes=tuple(attributes)), Memory(table, public)


def mbi_estimate(tables: list[Any], sets: Any, sizes: Any, rho: float, rounds: int) -> Callable[[], Any]:
    """All tables measured with the same Gaussian noise, rho in all, and fitted by mbi's mirror descent."""
    import jax

    # Both are what mbi asks for when it is imported.
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)
    from mbi import Domain, LinearMeasurement, estimation

    domain = Domain([f"a{i}" for i in range(len(sizes))], list(sizes))
    cliques = [tuple(f"a{i}" for i in s) for s in sets]
    deviation = (len(sets) / (2 * rho)) ** 0.5
    entropy = Entropy()

    def run() -> Any:
        noisy = [t + discrete_gaussian(deviation, len(t), entropy) for t in tables]
        parts = [
            LinearMeasurement(y.astype(float), c, deviation) for y, c in zip(noisy, cliques, strict=True)
        ]
        model = estimation.MirrorDescent().estimate(domain, parts, iters=rounds)
        return np.concatenate([np.asarray(model.project(c).datavector()) for c in cliques])

    return run


def tables(path: Path, runs: int, rounds: dict[int, int], rho: float = 0.5) -> None:
    """All 2-way tables of eight columns of Adult; `rounds` of mbi's mirror descent, and how often each number
    is run.

    What mbi gives is never negative, and one distribution; ours is unbiased. It is made for more than these
    tables, so that no target is set.
    """
    public, cells, source = adult(path)
    workload = matrix.marginals(cells.domain(public), ways=2)
    counts = cells.counts(source)
    exact = [counts.table(s).ravel() for s in workload.sets]
    truth = np.concatenate(exact)
    start = time.process_time()
    asked = matrix.answer(public, cells, workload, rho=rho)
    planning = time.process_time() - start
    print(
        f"2-way tables of 8 columns of Adult, rho {rho:g}: {len(workload.sets)} tables, "
        f"{len(truth):,} counts, "
        f"{workload.cells:,} cells; medians of {runs} runs"
    )
    ours = measured(lambda: asked(source, entropy=Entropy()).value.answers, truth, runs)
    show("ours", ours, ours, f"planned in {planning:.2f} CPU-s; {asked.rmse:.3f} predicted")
    deviation, entropy = (len(exact) / (2 * rho)) ** 0.5, Entropy()
    alone = measured(lambda: truth + discrete_gaussian(deviation, len(truth), entropy), truth, runs)
    show("every table by itself", alone, ours)
    for number, times in rounds.items():
        try:
            run = mbi_estimate(exact, workload.sets, workload.sizes, rho, number)
        except ImportError:
            print("  mbi is not installed (`make peers`): not compared")
            return
        show(f"mbi, {number} rounds, {times} run{'s' * (times > 1)}", measured(run, truth, times), ours)


def compare(data: Path, size: int = 256, runs: int = 101, table_runs: int = 21) -> bool:
    results = ranges(size, runs)
    if data.exists():
        tables(data, table_runs, ROUNDS)
    else:
        print(f"no {data}: set DISCREET_DATA for the tables of Adult")
    print("hdmm: the package index has no package of that name; not compared")
    return all(results)
