"""Synthetic copies of Adult: AIM here against MST of mbi, on the same domain, budget and tables.

All 48,842 rows, the columns but fnlwgt, epsilon 1, delta 1e-9, as many rows as the data has. The figure is
the mean total variation over all 91 pairs of columns and over 64 triples (seed 0). The rival is the authors'
own mst.py in the checkout of private-pgm that `DISCREET_PRIVATE_PGM` names, run by the Python that
`DISCREET_MBI_PYTHON` names (commit 4d2b3c5 with jax 0.6.2, chex 0.1.89, pandas 2.2.3, matplotlib);
without both only ours is run. `RUNS` in the environment shortens a run, and `SECTIONS` (such as "aim,mbi")
names parts of it: figures are kept in out/synthetic.json between parts, so that a ratio needs both but not at
once. The picture of the error against epsilon goes to out/synthetic.png.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from discreet import Bounds, Categories, Public
from discreet.sampling import Entropy
from discreet.synthetic import Domain, SyntheticCopy
from discreet.synthetic.copy import method_for
from discreet.synthetic.counting import count_domain_cells
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
# Ages and hours one by one, capital in 100 bins of equal width: MST was measured before at 0.0536 and 0.117
# on a finer domain whose bins were not written down; on this one MST here has about the same pairs, and
# worse triples.
FINER = BINS | {
    "age": list(range(17, 92)),
    "hours_per_week": list(range(101)),
    "capital_gain": 100,
    "capital_loss": 100,
}
GOALS = {"pairs": 0.040, "triples": 0.090}
MEMBERSHIP = 120
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
# of the checkout, wherever it is run from
OUT = Path(__file__).resolve().parents[1] / "out"
Figures = dict[str, Any]


def say(name: str, text: str, ok: bool | None = None) -> bool:
    print(f"synthetic.{name:<30} {text}   {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)
    return ok is not False


def load_adult(split: str | None = None, bins: dict[str, Any] | None = None) -> tuple[Memory, Domain] | None:
    path = Path(os.environ.get("DISCREET_DATA", "../shared/data")) / "adult.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path)
    if split is not None:
        table = table.filter(pc.equal(table["split"], split))
    names = [n for n in table.column_names if n not in ("fnlwgt", "split")]
    all_rows = pq.read_table(path)
    schema: dict[str, Any] = {}
    for name in names:
        values = sorted({v for v in all_rows[name].to_pylist() if v is not None})
        schema[name] = Bounds(*BOUNDS[name], nullable=False) if name in BOUNDS else Categories(values)
    public = Public(schema=schema, table="adult")
    missing = {n: all_rows[n].null_count > 0 for n in names}
    return Memory(table.select(names), public), Domain.of(public, bins=bins or BINS, missing=missing)


def share_table(codes: list[Any], sizes: tuple[int, ...], clique: tuple[int, ...]) -> Any:
    shape = [sizes[a] for a in clique]
    index = np.ravel_multi_index([codes[a] for a in clique], shape)
    return np.bincount(index, minlength=int(np.prod(shape))) / len(codes[0])


def distances(data: list[Any], copy: list[Any], sizes: tuple[int, ...]) -> tuple[float, float]:
    """Return the mean total variation over all pairs, and over 64 triples."""
    columns = range(len(sizes))
    triples = list(itertools.combinations(columns, 3))
    sample = np.random.default_rng(0).choice(len(triples), 64, replace=False)
    workloads = [list(itertools.combinations(columns, 2)), [triples[i] for i in sample]]
    means = [
        np.mean(
            [0.5 * np.abs(share_table(data, sizes, c) - share_table(copy, sizes, c)).sum() for c in cliques]
        )
        for cliques in workloads
    ]
    return float(means[0]), float(means[1])


def codes_of(source: Memory, domain: Domain) -> list[Any]:
    cells = count_domain_cells(source, domain, None, Entropy())
    return [np.repeat(code, cells.counts) for code in cells.codes]


def synthesize(
    source: Memory, domain: Domain, rows: int, epsilon: float = EPSILON, method: str = "aim", **options: Any
) -> tuple[SyntheticCopy, float]:
    start = time.process_time()
    mechanism = method_for(method, source.public, domain, epsilon=epsilon, delta=DELTA, **options)
    released = mechanism(source, entropy=Entropy())
    copy = SyntheticCopy.of(released.value, released.event, rows=rows)
    assert len(copy.codes[0]) == rows
    return copy, time.process_time() - start


def run_rival(data: list[Any], sizes: tuple[int, ...]) -> list[tuple[float, float, float]] | None:
    python, checkout = os.environ.get("DISCREET_MBI_PYTHON"), os.environ.get("DISCREET_PRIVATE_PGM")
    if not python or not checkout:
        return None
    with tempfile.TemporaryDirectory() as folder:
        codes, target = Path(folder) / "codes.npz", Path(folder) / "out.npz"
        np.savez(codes, codes=np.stack(data, axis=1), sizes=np.array(sizes))
        script = Path(__file__).with_name("_synthetic_rival.py")
        arguments = [checkout, codes, EPSILON, DELTA, RUNS, target]
        subprocess.run([python, "-W", "ignore", str(script), *map(str, arguments)], check=True)
        results = np.load(target)
        return [
            (*distances(data, list(results[f"run{i}"].T), sizes), float(results[f"seconds{i}"]))
            for i in range(RUNS)
        ]


def open_adult(bins: dict[str, Any] | None = None) -> tuple[Memory, Domain, tuple[int, ...], list[Any]]:
    loaded = load_adult(bins=bins)
    assert loaded is not None
    source, domain = loaded
    return source, domain, domain.sizes(source.public), codes_of(source, domain)


def measure_error(
    bins: dict[str, Any] | None = None, runs: int = RUNS, **options: Any
) -> tuple[float, float, float, float]:
    """Return the mean over runs of the total variation of pairs and of triples, the largest CPU-seconds of a
    run, and the gigabytes that the process needed so far."""
    source, domain, sizes, data = open_adult(bins)
    figures, seconds = [], []
    for i in range(runs):
        copy, spent = synthesize(source, domain, len(data[0]), **options)
        figures.append(distances(data, copy.codes, sizes))
        seconds.append(spent)
        if runs > 1:
            say(f"run_{i}", f"pairs {figures[-1][0]:.4f}  triples {figures[-1][1]:.4f}  {spent:.1f} CPU-s")
    pairs, triples = (float(np.mean([f[k] for f in figures])) for k in (0, 1))
    return pairs, triples, max(seconds), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def mst(figures: Figures) -> bool:
    pairs, triples, seconds, gigabytes = measure_error(method="mst")
    figures["mst"] = [pairs, triples]
    text = f"pairs {pairs:.4f}  triples {triples:.4f}  {seconds:.1f} CPU-s  {gigabytes:.2f} GB  ({RUNS} runs)"
    return say("mst", text)


def aim(figures: Figures) -> bool:
    pairs, triples, seconds, gigabytes = measure_error()
    figures["aim"] = [pairs, triples]
    say("aim", f"pairs {pairs:.4f}  triples {triples:.4f}  ({RUNS} runs)")
    text = f"{seconds:.1f} CPU-s  {gigabytes:.2f} GB  target <= {SECONDS} s, {GIGABYTES} GB"
    return say("aim.cost", text, seconds <= SECONDS and gigabytes <= GIGABYTES) & compare_with_rival(figures)


def mbi(figures: Figures) -> bool:
    _, _, sizes, data = open_adult()
    runs = run_rival(data, sizes)
    if runs is None:
        return say("mst_of_mbi", "not run: DISCREET_PRIVATE_PGM and DISCREET_MBI_PYTHON are not set")
    theirs = [float(np.mean([o[k] for o in runs])) for k in range(3)]
    figures["mbi"] = theirs[:2]
    gigabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
    text = f"pairs {theirs[0]:.4f}  triples {theirs[1]:.4f}  {theirs[2]:.1f} CPU-s  {gigabytes:.2f} GB"
    return say("mst_of_mbi", f"{text}  ({RUNS} runs)") & compare_with_rival(figures)


def compare_with_rival(figures: Figures) -> bool:
    """Check the ratio of our error to theirs, where both were measured."""
    good = True
    for name, mine, other in zip(BARS, figures.get("aim", []), figures.get("mbi", []), strict=False):
        text = f"ours / mbi {mine / other:.3f}  target <= {BARS[name]:.2f}"
        good &= say(f"{name}_against_mst", text, mine <= BARS[name] * other)
    return good


def baselines(figures: Figures) -> bool:
    for method in ("mwem", "independent"):
        pairs, triples, seconds, _ = measure_error(runs=1, method=method)
        figures[method] = [pairs, triples]
        say(method, f"pairs {pairs:.4f}  triples {triples:.4f}  {seconds:.1f} CPU-s  (one run)")
    return True


def finer(figures: Figures) -> bool:
    pairs, triples, seconds, _ = measure_error(FINER, runs=1, method="mst")
    say("finer.mst", f"pairs {pairs:.4f}  triples {triples:.4f}  {seconds:.1f} CPU-s  (one run)")
    pairs, triples, seconds, gigabytes = measure_error(FINER)
    figures["finer"] = [pairs, triples]
    text = f"pairs {pairs:.4f}  triples {triples:.4f}  {seconds:.1f} CPU-s  {gigabytes:.2f} GB  ({RUNS} runs)"
    good = pairs <= GOALS["pairs"] and triples <= GOALS["triples"]
    return say("finer.aim", f"{text}  target <= {GOALS['pairs']:.3f}, {GOALS['triples']:.3f}", good)


def epsilons(figures: Figures) -> bool:
    """Measure and draw the error against epsilon."""
    curves: dict[str, list[tuple[float, float]]] = {"aim": [], "mst": [], "independent": []}
    for epsilon in EPSILONS:
        for method, curve in curves.items():
            pairs, triples, _, _ = measure_error(runs=1, epsilon=epsilon, method=method)
            curve.append((pairs, triples))
            text = f"pairs {pairs:.4f}  triples {triples:.4f}  (one run)"
            say(f"{method}_at_epsilon_{epsilon:g}", text)
        OUT.mkdir(exist_ok=True)
        # Of what was measured so far.
        draw(curves, OUT / "synthetic.png")
    figures["epsilons"] = {"epsilon": EPSILONS, **curves}
    return say("epsilons", f"picture in {OUT / 'synthetic.png'}")


def draw(curves: dict[str, list[tuple[float, float]]], path: Path) -> None:
    """Draw the error against epsilon: pairs as lines, triples dashed."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5))
    for (method, curve), color in zip(curves.items(), ("tab:blue", "tab:orange", "tab:gray"), strict=True):
        for k, (what, dash) in enumerate((("pairs", "-"), ("triples", "--"))):
            axes.plot(
                EPSILONS[: len(curve)],
                [c[k] for c in curve],
                dash,
                marker="o",
                color=color,
                label=f"{method}, {what}",
            )
    axes.set(xscale="log", yscale="log", xlabel="epsilon (delta 1e-9)", ylabel="mean total variation")
    axes.set_title("Copies of Adult: error against epsilon, one run each")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def regression(figures: Figures) -> bool:
    """Compare a logistic regression that was trained on a copy of the training part with one that was trained
    on that part itself."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import OneHotEncoder

    parts = [load_adult(split) for split in ("train", "test")]
    assert parts[0] is not None
    assert parts[1] is not None
    (source, domain), (held_out, _) = parts
    train, test = codes_of(source, domain), codes_of(held_out, domain)
    target = domain.names.index("income")
    encoder = OneHotEncoder(categories=[range(n) for n in domain.sizes(source.public)][:target])
    unseen = encoder.fit_transform(np.stack(test, axis=1)[:, :target])
    accuracies = []
    for rows in (train, *(synthesize(source, domain, len(train[0]))[0].codes for _ in range(RUNS))):
        x = encoder.transform(np.stack(rows, axis=1)[:, :target])
        model = LogisticRegression(max_iter=1000).fit(x, rows[target])
        accuracies.append(float(model.score(unseen, test[target])))
    data, copies = accuracies[0], accuracies[1:]
    figures["regression"] = accuracies
    text = f"data {data:.4f}  copies {np.mean(copies):.4f} (worst {min(copies):.4f})  ({RUNS} runs)"
    good = data - float(np.mean(copies)) <= POINTS
    return say("logistic_regression", f"{text}  target within {POINTS:.3f}", good)


def membership(figures: Figures) -> bool:
    """Attack copies with and without one rare row: `auditing` proves no more than was paid.

    The rows and columns are few, so that the row weighs more than in any real table. The attacker sees the
    synthetic rows alone: how many have each of the row's values, and how many have two or more of them. The
    same attack on copies at a hundred times the epsilon shows that it finds what there is to find.
    """
    from discreet import auditing

    delta = 1e-5
    outputs = attacked_outputs(EPSILON, delta, MEMBERSHIP)
    report = auditing.from_outputs(*outputs, claim=(EPSILON, delta))
    roc = auditing.Roc.of(*(np.array([sum(output) for output in runs]) for runs in outputs))
    bound = float((np.exp(EPSILON) - 1 + 2 * delta) / (np.exp(EPSILON) + 1))
    # The largest distance of two empirical distributions from the true ones, with probability 0.998
    # (Dvoretzky, Kiefer & Wolfowitz).
    slack = float(np.sqrt(np.log(2 / 1e-3) / (2 * MEMBERSHIP))) * 2
    figures["membership"] = [report.epsilon, roc.advantage, roc.auc, bound]
    text = f"proven epsilon {report.epsilon:.3f} of {EPSILON:g}  AUC {roc.auc:.3f}  advantage "
    text += f"{roc.advantage:.3f}  bound {bound:.3f}  (2 x {MEMBERSHIP} copies)"
    good = say("membership", text, not report.refuted and roc.advantage <= bound + slack)
    outputs = attacked_outputs(100 * EPSILON, delta, MEMBERSHIP)
    control = auditing.from_outputs(*outputs, claim=(EPSILON, delta))
    figures["membership_control"] = control.epsilon
    text = f"proven epsilon {control.epsilon:.3f} of {100 * EPSILON:g}  (2 x {MEMBERSHIP} copies)"
    return good & say("membership.control", f"{text}  target > {EPSILON:g}", control.epsilon > EPSILON)


def attacked_outputs(epsilon: float, delta: float, runs: int) -> list[list[list[float]]]:
    """Return what the attacker sees of copies of 400 rows with one rare row, and without it."""
    random = np.random.default_rng(0)
    base = {n: random.integers(0, 3, 400).astype(str) for n in "abc"}
    public = Public(schema={n: Categories(["0", "1", "2", "3"]) for n in base})
    domain = Domain.of(public, missing=dict.fromkeys(base, False))
    method = method_for("aim", public, domain, epsilon=epsilon, delta=delta, degree=2)
    outputs: list[list[list[float]]] = []
    for extra in (["3"], []):
        source = Memory({n: [*column, *extra] for n, column in base.items()}, public)
        outputs.append([])
        for _ in range(runs):
            released = method(source, entropy=Entropy())
            codes = np.stack(SyntheticCopy.of(released.value, released.event, rows=400).codes)
            matches = (codes == 3).sum(axis=0)
            outputs[-1].append([*(codes == 3).sum(axis=1).astype(float), float((matches > 1).sum())])
    return outputs


SECTIONS: dict[str, Callable[[Figures], bool]] = {
    section.__name__: section
    for section in (aim, finer, mbi, mst, baselines, membership, regression, epsilons)
}


def main() -> int:
    if load_adult() is None:
        say("adult", "no data: set DISCREET_DATA to the folder of adult.parquet")
        return 0
    names = os.environ.get("SECTIONS", ",".join(SECTIONS)).split(",")
    path = OUT / "synthetic.json"
    partial = set(names) != set(SECTIONS)
    figures: Figures = json.loads(path.read_text()) if partial and path.exists() else {}
    good = True
    for name in names:
        good &= SECTIONS[name](figures)
        OUT.mkdir(exist_ok=True)
        path.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
