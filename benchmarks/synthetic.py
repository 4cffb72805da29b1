"""Synthetic copies of Adult: AIM here against MST of mbi, on the same domain, budget and tables.

All 48,842 rows, the columns but fnlwgt, epsilon 1, delta 1e-9, as many rows as the data has. The figure is
the mean total variation over all 91 pairs of columns and over 64 triples (seed 0). mbi is run by the Python
that `DISCREET_MBI_PYTHON` names; without it only ours is run. `RUNS` in the environment shortens a run.
"""

from __future__ import annotations

import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from discreet import Bounds, Categories, Public
from discreet.sampling import Entropy
from discreet.synthetic import Domain, SyntheticCopy
from discreet.synthetic.counting import count
from discreet.synthetic.methods import method_for
from discreet.tables import Memory

BINS: dict[str, Any] = {
    "age": [*range(17, 91, 5), 91],
    "education_num": list(range(1, 18)),
    "capital_gain": [0, 1, 5001, 10001, 100000],
    "capital_loss": [0, 1, 1501, 2001, 4501],
    "hours_per_week": list(range(0, 101, 10)),
}
BOUNDS = {
    "age": (17, 90),
    "education_num": (1, 16),
    "capital_gain": (0, 99999),
    "capital_loss": (0, 4500),
    "hours_per_week": (0, 99),
}
EPSILON, DELTA = 1.0, 1e-9
RUNS = int(os.environ.get("RUNS", "5"))
BARS = {"pairs": 0.75, "triples": 0.80}
SECONDS, GIGABYTES, POINTS = 120, 4, 0.015


def say(name: str, text: str, ok: bool | None = None) -> bool:
    print(f"synthetic.{name:<30} {text}   {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)
    return ok is not False


def adult(split: str | None = None) -> tuple[Memory, Domain] | None:
    path = Path(os.environ.get("DISCREET_DATA", "../shared/data")) / "adult.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path)
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    names = [n for n in table.column_names if n not in ("fnlwgt", "split")]
    whole = pq.read_table(path)
    schema: dict[str, Any] = {}
    for name in names:
        values = sorted({v for v in whole[name].to_pylist() if v is not None})
        schema[name] = Bounds(*BOUNDS[name], nullable=False) if name in BOUNDS else Categories(values)
    public = Public(schema=schema, table="adult")
    missing = {n: whole[n].null_count > 0 for n in names}
    return Memory(table.select(names), public), Domain.of(public, bins=BINS, missing=missing)


def table_of(codes: list[Any], sizes: tuple[int, ...], clique: tuple[int, ...]) -> Any:
    shape = [sizes[a] for a in clique]
    place = np.ravel_multi_index([codes[a] for a in clique], shape)
    return np.bincount(place, minlength=int(np.prod(shape))) / len(codes[0])


def distances(data: list[Any], copy: list[Any], sizes: tuple[int, ...]) -> tuple[float, float]:
    """The mean total variation over all pairs, and over 64 triples."""
    columns = range(len(sizes))
    triples = list(itertools.combinations(columns, 3))
    chosen = np.random.default_rng(0).choice(len(triples), 64, replace=False)
    sets = [list(itertools.combinations(columns, 2)), [triples[i] for i in chosen]]
    means = [
        np.mean([0.5 * np.abs(table_of(data, sizes, c) - table_of(copy, sizes, c)).sum() for c in cliques])
        for cliques in sets
    ]
    return float(means[0]), float(means[1])


def codes_of(source: Memory, domain: Domain) -> list[Any]:
    cells = count(source, domain, None, Entropy())
    return [np.repeat(code, cells.counts) for code in cells.codes]


def ours(
    source: Memory, domain: Domain, rows: int, epsilon: float = EPSILON, method: str = "aim", **options: Any
) -> tuple[SyntheticCopy, float]:
    start = time.process_time()
    mechanism = method_for(method, source.public, domain, epsilon=epsilon, delta=DELTA, **options)
    released = mechanism(source, entropy=Entropy())
    copy = SyntheticCopy.of(released.value, released.event, rows=rows)
    assert len(copy.codes[0]) == rows
    return copy, time.process_time() - start


def rival(data: list[Any], sizes: tuple[int, ...]) -> list[tuple[float, float, float]] | None:
    python = os.environ.get("DISCREET_MBI_PYTHON")
    if not python:
        return None
    with tempfile.TemporaryDirectory() as folder:
        given, target = Path(folder) / "codes.npz", Path(folder) / "out.npz"
        np.savez(given, codes=np.stack(data, axis=1), sizes=np.array(sizes))
        script = Path(__file__).with_name("_synthetic_rival.py")
        command = [python, "-W", "ignore", str(script), given, str(EPSILON), str(DELTA), str(RUNS), target]
        subprocess.run([str(c) for c in command], check=True)
        results = np.load(target)
        return [
            (*distances(data, list(results[f"run{i}"].T), sizes), float(results[f"seconds{i}"]))
            for i in range(RUNS)
        ]


def regression() -> bool:
    """A logistic regression trained on a copy of the training part against one trained on that part
    itself."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder

    parts = [adult(split) for split in ("train", "test")]
    assert parts[0] is not None
    assert parts[1] is not None
    (source, domain), (held_out, _) = parts
    train, test = codes_of(source, domain), codes_of(held_out, domain)
    target = domain.names.index("income")
    encoder = OneHotEncoder(categories=[range(n) for n in domain.sizes(source.public)][:target])
    copy = ours(source, domain, len(train[0]))[0].codes
    accuracies = []
    for rows in (train, copy):
        x = encoder.fit_transform(np.stack(rows, axis=1)[:, :target])
        model = LogisticRegression(max_iter=1000).fit(x, rows[target])
        unseen = encoder.transform(np.stack(test, axis=1)[:, :target])
        accuracies.append(float(model.score(unseen, test[target])))
    text = f"data {accuracies[0]:.4f}  copy {accuracies[1]:.4f}  target within {POINTS:.3f}"
    return say("logistic_regression", text, accuracies[0] - accuracies[1] <= POINTS)


def main() -> int:
    opened = adult()
    if opened is None:
        say("adult", "no data: set DISCREET_DATA to the folder of adult.parquet")
        return 0
    source, domain = opened
    sizes = domain.sizes(source.public)
    data = codes_of(source, domain)
    figures, seconds = [], []
    for _ in range(RUNS):
        copy, spent = ours(source, domain, len(data[0]))
        figures.append(distances(data, copy.codes, sizes))
        seconds.append(spent)
    pairs, triples = (float(np.mean([f[k] for f in figures])) for k in (0, 1))
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    good = say("aim", f"pairs {pairs:.4f}  triples {triples:.4f}  ({RUNS} runs)")
    text = f"{max(seconds):.1f} CPU-s  {gigabytes:.2f} GB  target <= {SECONDS} s, {GIGABYTES} GB"
    good &= say("aim.cost", text, max(seconds) <= SECONDS and gigabytes <= GIGABYTES)
    others = rival(data, sizes)
    if others is not None:
        theirs = [float(np.mean([o[k] for o in others])) for k in range(3)]
        say("mst_of_mbi", f"pairs {theirs[0]:.4f}  triples {theirs[1]:.4f}  {theirs[2]:.1f} CPU-s")
        for name, mine, other in (("pairs", pairs, theirs[0]), ("triples", triples, theirs[1])):
            text = f"ours / mbi {mine / other:.3f}  target <= {BARS[name]:.2f}"
            good &= say(f"{name}_against_mst", text, mine <= BARS[name] * other)
    for method in ("mst", "mwem", "privbayes", "independent"):
        copy, spent = ours(source, domain, len(data[0]), method=method)
        far = distances(data, copy.codes, sizes)
        say(method, f"pairs {far[0]:.4f}  triples {far[1]:.4f}  {spent:.1f} CPU-s  (one run)")
    for epsilon in (0.1, 0.3, 3.0, 10.0):
        far = distances(data, ours(source, domain, len(data[0]), epsilon)[0].codes, sizes)
        say(f"aim_at_epsilon_{epsilon:g}", f"pairs {far[0]:.4f}  triples {far[1]:.4f}  (one run)")
    good &= regression()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
