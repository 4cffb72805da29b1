"""Private linear models of tables: Adult at several epsilons, the ranking of methods on small tables, time,
and tuning.

Bounds are declared, nothing is tuned on the held-out part, the settings are the defaults. `DISCREET_DATA` is
the folder with adult.parquet. `SPLITS` in the environment shortens a run, `SECTIONS` (names by commas) picks
parts of it. diffprivlib is run where `DISCREET_DIFFPRIVLIB_PYTHON` names a Python that has it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LinearRegression as PlainRegression
from sklearn.linear_model import LogisticRegression as Plain
from sklearn.metrics import roc_auc_score

from discreet import Bounds, Categories, Public, tabular
from discreet.sampling import Entropy
from discreet.tables import Memory
from discreet.tabular import (
    DecisionTreeClassifier,
    DecisionTreeRegressor,
    ExplainableBoostingClassifier,
    ExplainableBoostingRegressor,
    GaussianNB,
    HuberRegressor,
    LinearRegression,
    LogisticRegression,
    PrivateSearch,
)

NUMBERS = {
    "age": (17, 90),
    "education_num": (1, 16),
    "capital_gain": (0, 20000),
    "capital_loss": (0, 5000),
    "hours_per_week": (1, 99),
}
CATEGORIES = [
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
]
# (epsilon, delta): the least mean accuracy; None: within WITHIN of the plain fit
TARGETS: dict[tuple[float, float], float | None] = {
    (0.1, 0.0): 0.81, (0.5, 0.0): 0.84, (1.0, 0.0): 0.847, (5.0, 0.0): 0.850,
    (0.1, 1e-6): 0.840, (0.5, 1e-6): None, (1.0, 1e-6): None, (5.0, 1e-6): None,
}  # fmt: skip
WITHIN, SLOWER = 0.002, 1.5
METHODS = ("auto", "objective", "output", "gradient")
SPLITS = int(os.environ.get("SPLITS", "10"))


def say(name: str, text: str, ok: bool | None = None) -> bool:
    print(f"tabular.{name:<34} {text}   {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)
    return ok is not False


def adult() -> tuple[pa.Table, dict[str, Any]] | None:
    path = Path(os.environ.get("DISCREET_DATA", "../shared/data")) / "adult.parquet"
    if not path.exists():
        return None
    table = pq.read_table(path)
    schema: dict[str, Any] = {name: Bounds(*bounds) for name, bounds in NUMBERS.items()}
    for name in [*CATEGORIES, "income"]:
        schema[name] = Categories(sorted({value for value in table[name].to_pylist() if value is not None}))
    return table.select(list(schema)), schema


def fitted(estimator: Any, source: Memory, target: str, delta: float) -> Any:
    mechanism = estimator.mechanism(source.public, target=target, delta=delta)
    return estimator.adopt(mechanism(source, entropy=Entropy()), mechanism)


def plain_fit(design: tabular.Design, source: Memory) -> Any:
    x, y = design.read(source, Entropy())
    return Plain(C=1.0, max_iter=2000, fit_intercept=False).fit(x, y)


def rival(**given: Any) -> tuple[list[float], list[float]] | None:
    """Return diffprivlib's accuracies and the CPU seconds of its fits, in its own interpreter."""
    python = os.environ.get("DISCREET_DIFFPRIVLIB_PYTHON")
    if not python:
        return None
    with tempfile.TemporaryDirectory() as folder:
        inputs, outputs = Path(folder) / "in.npz", Path(folder) / "out.npz"
        np.savez(inputs, **given)
        script = Path(__file__).with_name("_tabular_rival.py")
        # its own packages only: ours would hide them
        own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, "-W", "ignore", script, inputs, outputs], check=True, env=own)
        results = np.load(outputs)
        return results["accuracies"].tolist(), results["seconds"].tolist()


def accuracy_on_adult() -> bool:
    loaded = adult()
    if loaded is None:
        print("tabular: adult.parquet is missing (DISCREET_DATA is its folder); nothing was measured on it")
        return False
    table, schema = loaded
    results: dict[Any, list[tuple[float, float]]] = {}
    theirs: dict[float, list[float]] = {}
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(len(table))
        cut = round(0.8 * len(table))
        train, test = table.take(order[:cut]), table.take(order[cut:])
        source = Memory(train, Public(schema=schema, size=cut, table="adult"))
        truth = np.array(test["income"].to_pylist()) == ">50K"
        design = tabular.Design(features=(*NUMBERS, *CATEGORIES), target="income", clip="never")
        scores = plain_fit(design, source).decision_function(design.encode(test, source.public))
        results.setdefault("plain", []).append(
            (float(np.mean((scores > 0) == truth)), float(roc_auc_score(truth, scores)))
        )
        for epsilon, delta in TARGETS:
            scores = fitted(LogisticRegression(epsilon=epsilon), source, "income", delta).decision_function(
                test
            )
            pair = float(np.mean((scores > 0) == truth)), float(roc_auc_score(truth, scores))
            results.setdefault((epsilon, delta), []).append(pair)
        x, y = design.read(source, Entropy())
        epsilons = [0.1, 0.5, 1.0, 5.0]
        other = rival(
            x=x[:, :-1], y=y, x_test=design.encode(test, source.public)[:, :-1], y_test=truth,
            epsilons=epsilons, norm=np.sqrt(13), repeats=1,
        )  # fmt: skip
        for place, epsilon in enumerate(epsilons):
            theirs.setdefault(epsilon, []).extend([] if other is None else [other[0][place]])
    plain = np.mean(results["plain"], axis=0)
    ok = say("adult, not private", f"accuracy {plain[0]:.4f} AUC {plain[1]:.4f}")
    for (epsilon, delta), least in TARGETS.items():
        mean, spread = np.mean(results[epsilon, delta], axis=0), np.std(results[epsilon, delta], axis=0)
        wanted = float(plain[0]) - WITHIN if least is None else least
        text = f"accuracy {mean[0]:.4f} +- {spread[0]:.4f} AUC {mean[1]:.4f}  target >= {wanted:.4f}"
        if delta == 0 and theirs[epsilon]:
            text += f"  diffprivlib {np.mean(theirs[epsilon]):.4f}"
        ok &= say(f"adult, epsilon {epsilon}, delta {delta:g}", text, bool(mean[0] >= wanted))
    return ok


def small_tables() -> dict[str, tuple[Any, Any, Any, Any]]:
    cancer, digits = load_breast_cancer(), load_digits()
    # round bounds that are known of the instruments, not the data's own extremes
    top = 10.0 ** np.ceil(np.log10(np.maximum(cancer.data.mean(axis=0) * 3, 1e-3)))
    late = digits.target >= 4
    return {
        "breast cancer (569 rows)": (cancer.data, cancer.target, 0.0, top),
        "digits 4 to 9, 7 and above (1077 rows)": (
            digits.data[late],
            (digits.target[late] >= 7).astype(int),
            0.0,
            16.0,
        ),
        "digits, 5 and above (1797 rows)": (digits.data, (digits.target >= 5).astype(int), 0.0, 16.0),
    }


def ranking() -> None:
    """The methods side by side on small tables. For information: no target."""
    for name, (X, y, low, high) in small_tables().items():
        for epsilon in (1.0, 5.0):
            scores: dict[str, list[float]] = {}
            for split in range(SPLITS):
                order = np.random.default_rng(split).permutation(len(X))
                cut = round(0.8 * len(X))
                train, test = order[:cut], order[cut:]
                facts: dict[str, Any] = {
                    "epsilon": epsilon, "delta": 1e-6, "classes": [0, 1], "n": cut, "lower": low,
                    "upper": high,
                }  # fmt: skip
                models = {
                    **{m: LogisticRegression(method=m, **facts) for m in METHODS},
                    "naive Bayes": GaussianNB(**facts),
                    "tree": DecisionTreeClassifier(**facts),
                    "boosting": ExplainableBoostingClassifier(rounds=30, **facts),
                    "not private": Plain(max_iter=5000),
                }
                for method, model in models.items():
                    # the plain fit gets the same coordinates
                    plain = method == "not private"
                    x = X / np.broadcast_to(high, X.shape) if plain else X
                    scores.setdefault(method, []).append(
                        model.fit(x[train], y[train]).score(x[test], y[test])
                    )
            ranked = sorted(scores.items(), key=lambda pair: -np.mean(pair[1]))
            say(f"{name}, {epsilon:g}", "  ".join(f"{m} {np.mean(s):.3f}" for m, s in ranked))


def regressions() -> None:
    """Regressions side by side on diabetes (442 rows): R² on the held-out part. For information."""
    X, y = load_diabetes(return_X_y=True, scaled=False)
    # round bounds of age, sex, body mass, pressure and six serum values, and of the target
    low = np.array([0, 1, 15, 50, 50, 30, 0, 0, 3, 40.0])
    high = np.array([100, 2, 50, 150, 350, 300, 120, 10, 7, 140.0])
    for epsilon in (1.0, 5.0, 20.0):
        scores: dict[str, list[float]] = {}
        for split in range(SPLITS):
            order = np.random.default_rng(split).permutation(len(X))
            train, test = order[:354], order[354:]
            facts: dict[str, Any] = {
                "epsilon": epsilon, "delta": 1e-6, "n": 354, "lower": low, "upper": high,
                "target_lower": 0, "target_upper": 350,
            }  # fmt: skip
            models: dict[str, Any] = {
                "Huber": HuberRegressor(**facts),
                "moments (AdaSSP)": LinearRegression(**facts),
                "tree": DecisionTreeRegressor(**facts),
                "boosting": ExplainableBoostingRegressor(rounds=30, **facts),
                "not private": PlainRegression(),
            }
            for name, model in models.items():
                scores.setdefault(name, []).append(model.fit(X[train], y[train]).score(X[test], y[test]))
        ranked = sorted(scores.items(), key=lambda pair: -np.mean(pair[1]))
        say(f"diabetes (442 rows), {epsilon:g}", "  ".join(f"{m} {np.mean(s):.3f}" for m, s in ranked))


def timed(work: Any) -> float:
    """The median CPU time of three runs: the first of a process also pays for fresh memory."""
    times = []
    for _ in range(3):
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return float(np.median(times))


def problem(rows: int, width: int) -> tuple[Any, Any, Memory, tabular.Design]:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (rows, width))
    y = (x @ rng.normal(size=width) + rng.logistic(size=rows) > 0).astype(int)
    names = tuple(f"x{i}" for i in range(width))
    public = Public(schema={**dict.fromkeys(names, Bounds(-1, 1)), "y": Categories([0, 1])}, size=rows)
    source = Memory({**{name: x[:, i] for i, name in enumerate(names)}, "y": y}, public)
    return x, y, source, tabular.Design(features=names, target="y")


KINDS = (tabular.OutputPerturbation, tabular.ObjectivePerturbation)


def speed() -> bool:
    x, y, source, design = problem(1_000_000, 50)
    theirs, ok = timed(lambda: Plain(C=1.0, max_iter=1000).fit(x, y)), True
    other = rival(x=x, y=y, x_test=x[:10], y_test=y[:10], epsilons=[1.0], norm=np.sqrt(50), repeats=1)
    for kind in KINDS:
        mechanism = kind(public=source.public, design=design, epsilon=1.0)
        ours = timed(lambda mechanism=mechanism: mechanism(source, entropy=Entropy()))
        text = (
            f"ours {ours:.2f} s CPU  scikit-learn {theirs:.2f} s  {ours / theirs:.2f}x  target <= {SLOWER}x"
        )
        fast = ours <= SLOWER * theirs
        if other is not None:
            text += f"  diffprivlib {other[1][0]:.2f} s"
            fast &= ours < other[1][0]
        ok &= say(f"time of {kind.__name__}", text, fast)
    return ok


def growth() -> None:
    """CPU seconds over rows and columns, also as a picture, out/tabular.png."""
    curves: dict[str, list[tuple[int, float, float]]] = {"rows, 20 columns": [], "columns, 50,000 rows": []}
    for rows, width in [(n, 20) for n in (10_000, 100_000, 400_000)] + [(50_000, d) for d in (5, 20, 80)]:
        x, y, source, design = problem(rows, width)
        mechanism = KINDS[1](public=source.public, design=design, epsilon=1.0)
        ours = timed(lambda mechanism=mechanism, source=source: mechanism(source, entropy=Entropy()))
        theirs = timed(lambda x=x, y=y: Plain(C=1.0, max_iter=1000).fit(x, y))
        name = "rows, 20 columns" if width == 20 and rows != 50_000 else "columns, 50,000 rows"
        curves[name].append((rows if name.startswith("rows") else width, ours, theirs))
        say(f"growth, {rows} x {width}", f"objective {ours:.3f} s CPU  scikit-learn {theirs:.3f} s")
    path = Path(__file__).resolve().parents[1] / "out" / "tabular.png"
    path.parent.mkdir(exist_ok=True)
    draw(curves, str(path))
    print(f"tabular: the picture of growth is {path}")


def draw(curves: dict[str, list[tuple[int, float, float]]], path: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(curves), figsize=(9, 3.5), layout="constrained")
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        for place, label in ((1, "objective perturbation"), (2, "scikit-learn")):
            axis.loglog([p[0] for p in points], [p[place] for p in points], marker="o", label=label)
        axis.set(xlabel=name, ylabel="CPU seconds")
        axis.legend()
    figure.savefig(path)


def tuning() -> bool:
    """Ten values of lambda at a total epsilon of 2 against the default lambda at that epsilon, where declared
    bounds are far too wide: weights must be larger than the default expects, and it is measurably below the
    best of the grid."""
    X, y, low, high = small_tables()["breast cancer (569 rows)"]
    settings = {"regularization": [float(v) for v in np.logspace(-2, 0.5, 10)]}
    default, tuned, total = [], [], 2.0
    for split in range(2 * SPLITS):
        order = np.random.default_rng(200 + split).permutation(len(X))
        cut = round(0.8 * len(X))
        train, test = order[:cut], order[cut:]
        facts: dict[str, Any] = {
            "classes": [0, 1], "n": cut, "lower": low, "upper": high, "method": "gradient", "delta": 1e-6,
        }  # fmt: skip
        model = LogisticRegression(epsilon=total, **facts).fit(X[train], y[train])
        default.append(model.score(X[test], y[test]))
        search = PrivateSearch(LogisticRegression(**facts), settings, epsilon=total, delta=1e-6)
        tuned.append(search.fit(X[train], y[train]).score(X[test], y[test]))
    return tuning_line("breast cancer, gradient", search, default, tuned, total)


def tuning_line(name: str, search: Any, default: list[float], tuned: list[float], total: float) -> bool:
    plain = search.comparison()["plain composition, every candidate once"]
    text = (
        f"tuned {np.mean(tuned):.4f} default {np.mean(default):.4f} at epsilon {total:g}; plain "
        f"composition: {plain:.3g}"
    )
    better = bool(np.mean(tuned) > np.mean(default)) and search.mechanism_.epsilon < plain
    return say(f"tuning, {name}", text, better)


def tuning_of_a_trainer() -> bool:
    """Ten optimizers of DP-SGD on digits against the default of `Trainer`, SGD(lr=0.1)."""
    from discreet.learning import SGD, DPClassifier

    data, total, default, tuned = load_digits(), 2.0, [], []
    names = [f"p{i}" for i in range(64)]
    schema = {**dict.fromkeys(names, Bounds(0, 16)), "digit": Categories(list(range(10)))}
    public = Public(schema=schema, size=1437, table="digits")
    space = {"optimizer": [SGD(lr=lr, momentum=m) for lr in (0.05, 0.1, 0.5, 1.0, 2.0) for m in (0.0, 0.9)]}
    for split in range(max(1, SPLITS // 2)):
        order = np.random.default_rng(300 + split).permutation(len(data.data))
        train, test = order[:1437], order[1437:]
        columns = {name: data.data[train, i] for i, name in enumerate(names)}
        source = Memory({**columns, "digit": data.target[train]}, public)
        new = {name: data.data[test, i] for i, name in enumerate(names)}
        plain = fitted(DPClassifier(epsilon=total, optimizer=SGD(lr=0.1)), source, "digit", 1e-5)
        default.append(float(np.mean(plain.predict(new) == data.target[test])))
        search = fitted(PrivateSearch(DPClassifier(), space, epsilon=total), source, "digit", 1e-5)
        tuned.append(float(np.mean(search.predict(new) == data.target[test])))
    return tuning_line("digits, DPClassifier", search, default, tuned, total)


def learners() -> None:
    """Other learners on Adult: one split each. For information: no target."""
    loaded = adult()
    if loaded is None:
        return
    table, schema = loaded
    order = np.random.default_rng(1000).permutation(len(table))
    cut = round(0.8 * len(table))
    train, test = table.take(order[:cut]), table.take(order[cut:])
    source = Memory(train, Public(schema=schema, size=cut, table="adult"))
    truth = np.array(test["income"].to_pylist()) == ">50K"
    for kind in (GaussianNB, DecisionTreeClassifier, ExplainableBoostingClassifier):
        parts = []
        for epsilon in (0.1, 1.0, 5.0):
            scores = fitted(kind(epsilon=epsilon), source, "income", 1e-6).decision_function(test)
            accuracy, area = np.mean((scores > 0) == truth), roc_auc_score(truth, scores)
            parts.append(f"{epsilon:g}: {accuracy:.3f} / {area:.3f}")
        say(f"adult, {kind.__name__}", "  ".join(parts) + "  (accuracy / AUC)")


# each below eight minutes
SECTIONS: dict[str, Any] = {
    "adult": accuracy_on_adult,
    "speed": speed,
    "growth": growth,
    "ranking": ranking,
    "regressions": regressions,
    "learners": learners,
    "tuning": tuning,
    "trainer": tuning_of_a_trainer,
}


def main() -> int:
    wanted = os.environ.get("SECTIONS", ",".join(SECTIONS)).split(",")
    # no target is no miss
    results = [SECTIONS[name]() for name in wanted]
    return 1 if any(result is False for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
