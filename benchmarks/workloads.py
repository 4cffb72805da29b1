"""Workloads answered together: how near to the optimum, how fast, and whether predicted errors come true.

RMSE is at l2 sensitivity 1 and unit noise. The optima of prefix sums and ranges were computed apart from this
code. The tables are those of Adult, where its file is at hand (DISCREET_DATA); numbers are put into sixteen
bins. Rivals run in the same process where they are installed.
"""

from __future__ import annotations

import os

# One thread of linear algebra: on a machine that is shared, more of them wait for each other. Set before
# numpy is loaded.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import _workload_rivals
from discreet import Bounds, Categories, Public, inference
from discreet.mechanisms import matrix
from discreet.query import Query, WorkloadQuery
from discreet.sampling import Entropy
from discreet.tables import Memory

OPTIMA = {
    "prefix 256": (lambda: matrix.prefix(256), 2.52441),
    "prefix 1024": (lambda: matrix.prefix(1024), 2.9556),
    "ranges 256": (lambda: matrix.all_ranges(256), 2.90144),
    "ranges 1024": (lambda: matrix.all_ranges(1024), 3.51508),
}
NEAR, MINUTE, PLANNED, PREDICTED = 1.005, 60.0, 10.0, 0.05


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = run()
    return result, time.perf_counter() - start


class Report:
    def __init__(self) -> None:
        self.missed = 0

    def line(self, name: str, found: str, target: str, good: bool) -> None:
        self.missed += not good
        print(f"{name:44} {found:52} target {target:22} {'ok' if good else 'MISSED'}", flush=True)


def optima(report: Report) -> None:
    for name, (build, optimum) in OPTIMA.items():
        best, seconds = timed(lambda build=build: matrix.optimize(build()))
        workload = best.workload
        others = {
            "svd": best.bound,
            "tree": matrix.tree(workload.cells, workload=workload).rmse,
            "haar": matrix.haar(workload.cells, workload=workload).rmse,
        }
        shown = f"{best.rmse:.5f} in {seconds:.1f} s ({', '.join(f'{k} {v:.4f}' for k, v in others.items())})"
        report.line(
            f"{name}: rmse",
            shown,
            f"<= {optimum * NEAR:.4f}, {MINUTE:.0f} s",
            best.rmse <= optimum * NEAR and seconds < MINUTE,
        )


def laplace(report: Report) -> None:
    """OPT_0 of HDMM against the strategies without search, for Laplace noise: rmse at l1 sensitivity 1."""
    for name, workload in (("prefix 256", matrix.prefix(256)), ("ranges 256", matrix.all_ranges(256))):
        best, seconds = timed(lambda workload=workload: matrix.optimize(workload, "l1"))
        others = min(value for other, value in best.candidates if other != "p-identity")
        report.line(
            f"{name}: rmse, Laplace",
            f"{best.rmse:.4f} ({best.name}) in {seconds:.1f} s; next {others:.4f}",
            "the best of all",
            best.rmse <= others,
        )


def lecture(report: Report) -> None:
    public = Public(schema={"sex": Categories(["f", "m"]), "bmi": Bounds(10, 60)}, table="people")
    conditions = ("sex = 'm' AND bmi < 25", "sex = 'm'", "sex = 'f' AND bmi < 25", "sex = 'f'")
    texts = tuple(f"SELECT COUNT(*) AS n FROM people WHERE {c}" for c in conditions)
    together = 4 * WorkloadQuery(queries=texts, public=public, epsilon=0.01).rmse ** 2 * 1e-4
    alone = (
        sum(Query(sql=t, public=public, epsilon=0.0025).question.noises[0].mean_squared_error for t in texts)
        * 1e-4
    )
    report.line(
        "the lecture's four counts, times epsilon²",
        f"{together:.3f} together, {alone:.3f} one by one",
        "<= 12.01",
        together <= 12.01,
    )


def adult(report: Report) -> None:
    path = Path(os.environ.get("DISCREET_DATA", "data")) / "adult.parquet"
    if not path.exists():
        print(f"no {path}: set DISCREET_DATA for the tables of Adult")
        return
    import pyarrow.parquet as pq

    table = pq.read_table(path).drop(["split"])
    schema: dict[str, Any] = {}
    attributes = []
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if str(column.type) in ("string", "large_string"):
            schema[name] = Categories(sorted({v for v in column.to_pylist() if v is not None}))
            attributes.append(matrix.Attribute(column=name))
        else:
            values = column.to_numpy(zero_copy_only=False)
            schema[name] = Bounds(float(values.min()), float(values.max()))
            attributes.append(
                matrix.Attribute(
                    column=name, edges=tuple(np.linspace(values.min(), values.max(), 17).tolist())
                )
            )
    public = Public(schema=schema)
    cells = matrix.Cells(attributes=tuple(attributes))
    workload = matrix.marginals(cells.domain(public), ways=3)
    asked, planning = timed(lambda: matrix.answer(public, cells, workload, rho=0.5))
    source = Memory(table, public)
    answers, answering = timed(lambda: asked(source, entropy=Entropy()).value.answers)
    axes = [np.asarray(h) for h in cells.counts(source).positions]
    counts = cells.counts(source)
    truth = np.concatenate([counts.table(s).ravel() for s in workload.sets])
    ratio = float(np.sqrt(np.mean((answers - truth) ** 2))) / asked.rmse
    size = f"{len(axes)} attributes, {workload.cells:.1e} cells, {workload.queries:,} counts"
    report.line(
        "all 3-way marginals of Adult: planned",
        f"{planning:.2f} s ({size})",
        f"< {PLANNED:.0f} s",
        planning < PLANNED,
    )
    report.line(
        "all 3-way marginals of Adult: answered",
        f"{answering:.1f} s",
        f"< {MINUTE:.0f} s",
        answering < MINUTE,
    )
    report.line(
        "all 3-way marginals of Adult: error",
        f"{ratio:.4f} of the predicted {asked.rmse:.3f}",
        "within 5%",
        abs(ratio - 1) < PREDICTED,
    )


def wide(report: Report) -> None:
    """Ten attributes of ten values: pairs with prefix sums and ranges on some of them. 1e10 cells, never
    written out."""
    bases = {0: matrix.prefix(10), 3: matrix.all_ranges(10), 7: matrix.prefix(10)}
    workload = matrix.marginals([10] * 10, ways=2, bases=bases)
    names = [f"a{i}" for i in range(10)]
    public = Public(schema={name: Categories(list(range(10))) for name in names})
    rng = np.random.default_rng(1)
    source = Memory({name: rng.integers(0, 10, 20_000).tolist() for name in names}, public)
    cells = matrix.Cells.of(*names)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = cpu()
    asked = matrix.answer(public, cells, workload, rho=0.1)
    errors = []
    counts = cells.counts(source)
    truth = np.concatenate([workload.answers_of(s, counts.table(s).astype(float)) for s in workload.sets])
    for _ in range(20):
        errors.append(asked(source, entropy=Entropy()).value.answers - truth)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    ratio = float(np.sqrt(np.mean(np.square(errors)))) / asked.rmse
    found = f"{workload.queries:,} questions, 20 runs in {cpu() - start:.1f} CPU-s, {grown:.0f} MB more"
    report.line("ten attributes, 1e10 cells", found, "< 1000 MB", grown < 1000)
    report.line("ten attributes: error", f"{ratio:.4f} of predicted", "within 5%", abs(ratio - 1) < PREDICTED)


def predicted(report: Report) -> None:
    public = Public(schema={"x": Bounds(0, 64)})
    cells = matrix.Cells.of(matrix.Attribute(column="x", edges=tuple(range(65))))
    source = Memory({"x": np.random.default_rng(1).uniform(0, 64, 2000).tolist()}, public)
    for name, price in (("Laplace", {"epsilon": 0.5}), ("Gaussian", {"rho": 0.1})):
        asked = matrix.answer(public, cells, matrix.all_ranges(64), **price)  # type: ignore[arg-type]
        truth = asked.workload.times(cells(source))
        errors = [asked(source, entropy=Entropy()).value.answers - truth for _ in range(300)]
        ratio = float(np.sqrt(np.mean(np.square(errors)))) / asked.rmse
        report.line(
            f"all ranges of 64, {name}: error",
            f"{ratio:.4f} of predicted ({type(asked.strategy).__name__})",
            "within 5%",
            abs(ratio - 1) < PREDICTED,
        )


def isotonic(report: Report) -> None:
    values = np.sort(np.random.default_rng(1).normal(size=1_000_000)) + np.random.default_rng(2).normal(
        size=1_000_000
    )
    start = cpu()
    inference.isotonic(values)
    seconds = cpu() - start
    report.line("isotonic regression of 1e6 values", f"{seconds:.3f} CPU-s", "< 1 s", seconds < 1)


def rivals(report: Report) -> None:
    data = Path(os.environ.get("DISCREET_DATA", "data")) / "adult.parquet"
    report.missed += not _workload_rivals.compare(data)


def main() -> int:
    report = Report()
    for part in (lecture, optima, laplace, adult, wide, predicted, isotonic, rivals):
        part(report)
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
