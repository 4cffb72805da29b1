"""Every verb of `Session` with all its options: values to try for each, and what is done with the result.

`test_outcomes` refuses a verb or an option without an entry here.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import date
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

import discreet as dp
from discreet._public import Public, Related, Text
from discreet.learning.pate import TorchLearner
from discreet.session import Session
from discreet.streaming import Ball, Box, LinearLoss, LogisticLoss, Simplex, SquaredDistance, SquaredLoss

from .cases_pate import Threshold
from .outcomes import table_like
from .walker import public_classes

# -- the table

SCHEMA = {
    "x": dp.Bounds(0, 10),
    "k": dp.Bounds(0, 7),
    "z": dp.Bounds(-1.0, 1.0, nullable=False),
    "c": dp.Categories(["a", "b", "c"]),
    "g": dp.Categories(["m", "w"]),
    "f": dp.Boolean(),
    "day": dp.Dates("2020-01-01", "2020-01-04"),
    "t": Text(),
}
TABLE = pa.table(
    {
        "who": pa.array([1, 2, 3, 4], pa.int64()),
        "x": pa.array([1.5, 2.5, 0.0, 9.0]),
        "k": pa.array([1, 2, 3, 7]),
        "z": pa.array([0.5, -0.5, 0.0, 1.0]),
        "c": pa.array(["a", "b", "c", "a"]),
        "g": pa.array(["m", "w", "m", "w"]),
        "f": pa.array([True, False, True, True]),
        "day": pa.array([date(2020, 1, n) for n in (1, 2, 3, 4)]),
        "t": pa.array(["a", "b", "7", ""]),
        "u": pa.array(["nobody", "declares", "this", None]),
    }
)
# The same columns as a CSV file has them, and with other types of numbers.
AS_TEXT = pa.table({name: TABLE[name].cast(pa.string()) for name in TABLE.column_names})
NARROW = TABLE.set_column(1, "x", TABLE["x"].cast(pa.decimal128(38, 4))).set_column(
    2, "k", TABLE["k"].cast(pa.int8())
)
TABLES = (TABLE, TABLE, AS_TEXT, NARROW)
VISITS_SCHEMA = {"kind": dp.Categories(["er", "gp"]), "cost": dp.Bounds(0, 9)}
VISITS = pa.table({"who": pa.array([1, 1, 2]), "kind": ["er", "gp", "er"], "cost": [1.0, 2.0, 9.0]})
RELATED = Related(name="visits", private=True, unit="who", schema=VISITS_SCHEMA)  # type: ignore[arg-type]


def facts(source: random.Random) -> Public:
    """Random declarations of the steward; the unit is a row, or a person with up to any number of rows."""
    neighbors = source.choice(["add_remove"] * 4 + ["replace", "zero_out"])
    unit = source.choice([dp.rows(), dp.Unit("who"), dp.Unit("who", rows=1), dp.Unit("who", rows=3)])
    size = TABLE.num_rows if neighbors != "add_remove" or source.random() < 0.7 else None
    joined = unit.column is not None and neighbors == "add_remove" and source.random() < 0.25
    tables = (RELATED,) if joined else ()
    return Public(schema=SCHEMA, unit=unit, neighbors=neighbors, size=size, table="t", tables=tables)  # type: ignore[arg-type]


def opened(table: pa.Table, visits: pa.Table, public: Public, budget: Any) -> Session:
    """A session on a table."""
    related = {"visits": visits} if public.tables else None
    return dp.open(
        table, schema=public, budget=budget, analysts={"ann": None}, related=related, large_delta=True,
        large_epsilon=True, ledger=":memory:",
    )  # fmt: skip


def visits_like(source: random.Random) -> pa.Table:
    """Random rows of the related table, some of which have owners in the table."""
    return table_like(VISITS, Public(schema=VISITS_SCHEMA, unit=dp.Unit("who")), source)  # type: ignore[arg-type]


# -- questions

EXPRESSIONS = (
    "x", "k", "z", "x * z", "x / k", "k // 2", "x % 3", "ABS(z)", "SQRT(x)", "LN(x + 1)", "POWER(x, 2)", "EXP(z)",
    "CAST(t AS INTEGER)", "CAST(t AS DOUBLE)", "LENGTH(t)", "CASE WHEN f THEN x ELSE k END", "COALESCE(x, 0)",
    "ROUND(x, 1)", "FLOOR(x / 3)", "EXTRACT(day FROM day)", "CAST(f AS INTEGER)", "x - k * z", "-x", "1 / x",
    "GREATEST(x, k)", "NULLIF(x, 0)", "LN(x)", "POWER(x, z)", "k * k * k", "CAST(x AS INTEGER)",
)  # fmt: skip
AGGREGATES = (
    *("COUNT(*)", "COUNT({0})", "COUNT(DISTINCT who)", "COUNT(DISTINCT c)", "COUNT(DISTINCT t)"),
    *(
        "SUM({0})",
        "AVG({0})",
        "MIN({0})",
        "MAX({0})",
        "MEDIAN({0})",
        "QUANTILE_CONT({0}, 0.3)",
        "STDDEV({0})",
    ),
    *("VARIANCE({0})", "MODE(c)", "SUM({0}) / COUNT(*)", "COUNT(*) FILTER (WHERE {0} > 1)", "CORR(x, k)"),
)
CONDITIONS = (
    *("", "WHERE x > 3", "WHERE c = 'a'", "WHERE t LIKE '%a%'", "WHERE day >= '2020-01-02'", "WHERE f"),
    *(
        "WHERE k BETWEEN 1 AND 4",
        "WHERE {0} > 1",
        "WHERE t = 'zz'",
        "WHERE x IS NULL",
        "WHERE c IN ('a', 'b')",
    ),
    "WHERE who IN (SELECT who FROM visits WHERE cost > 3)",
)
GROUPS = ("",) * 6 + ("c", "f", "day", "k", "t", "c, f", "u", "FLOOR(x)", "LENGTH(t)")


def sql(source: random.Random) -> str:
    """A random statement; one that is refused is refused for what it says."""
    expression = source.choice(EXPRESSIONS)
    where = source.choice(CONDITIONS).format(source.choice(EXPRESSIONS))
    kind = source.random()
    if kind < 0.12:
        inner = source.choice(("COUNT(*)", "SUM(x)", "MAX(k)", "AVG(x)", "MIN(z)", "COUNT(DISTINCT c)"))
        return (
            f"SELECT {source.choice(('COUNT(*)', 'SUM(s)', 'AVG(s)', 'MEDIAN(s)'))} AS n FROM "
            f"(SELECT who, {inner} AS s FROM t {where} GROUP BY who) {source.choice(('', 'WHERE s > 1'))}"
        )
    if kind < 0.2:
        return f"SELECT {source.choice(('COUNT(*)', 'SUM(v.cost)'))} AS n FROM t JOIN visits v ON t.who = v.who {where}"
    keys = source.choice(GROUPS)
    outputs = [source.choice(AGGREGATES).format(expression) for _ in range(source.choice((1, 1, 1, 2)))]
    listed = ", ".join(
        [*([keys] if keys else []), *(f"{output} AS n{i}" for i, output in enumerate(outputs))]
    )
    tail = source.choice(("", "", "", " ORDER BY n0 LIMIT 2", " HAVING COUNT(*) > 1"))
    return f"SELECT {listed} FROM t {where}" + (f" GROUP BY {keys}{tail}" if keys else "")


def count(source: random.Random, *more: str) -> str:
    """A statement of counts, as workloads take them, or of `more`."""
    keys = source.choice(("", "", "c", "f", "day", "k"))
    where = source.choice(CONDITIONS[:-1]).format(source.choice(EXPRESSIONS))
    what = source.choice(("COUNT(*)", "COUNT(x)", *more)).format(source.choice(EXPRESSIONS))
    return (
        f"SELECT {f'{keys}, ' if keys else ''}{what} AS n FROM t {where} {f'GROUP BY {keys}' if keys else ''}"
    )


def total(source: random.Random) -> str:
    """A statement of counts or sums, as streams take them."""
    return count(source, "COUNT(*)", "SUM(x)", "SUM({0})")


# -- estimators


@cache
def estimators() -> list[type]:
    """Every estimator that `fit` takes, but those that hold another."""
    named = [c for c in public_classes() if hasattr(c, "adopt") and hasattr(c, "mechanism")]
    found = [c for c in named if not inspect.isabstract(c)]
    parameters = {c: inspect.signature(c).parameters.keys() for c in found}
    return [c for c in found if "epsilon" in parameters[c] and "estimator" not in parameters[c]]


NUMBERS = (0.1, 0.5, 1, 3, 100, 1e-6)
# Values for the options of estimators, by their names.
ESTIMATOR_OPTIONS: Mapping[str, Sequence[Any]] = {
    "epsilon": (0.1, 1, 10, 1000),
    "delta": (1e-5, 0.01, 0.0),
    "noise_multiplier": (0.5, 3.0),
    "n": (1, 4, 1000),
    "lower": (-1.0, 0.0),
    "upper": (1.0, 5.0),
    "target_lower": (-1.0, 0.0),
    "target_upper": (1.0, 20.0),
    "classes": (None, ["a", "b"], ["a", "b", "c"]),
    "method": ("auto", "output", "objective", "gradient"),
    "regularization": NUMBERS,
    "penalty": NUMBERS,
    "fit_intercept": (True, False),
    "class_weight": (None, "balanced", {"a": 2.0, "b": 1.0, "c": 1.0}),
    "multi_class": ("softmax", "ovr"),
    "l1": (0.0, 0.1, 2.0),
    "threshold": NUMBERS,
    "max_depth": (1, 2, 6),
    "criterion": ("gini", "entropy", "max"),
    "bins": (2, 8, 32),
    "rounds": (1, 5, None),
    "learning_rate": (0.01, 1.0),
    "leaves": (2, 5),
    "bin_share": (0.05, 0.5),
    "n_clusters": (1, 2, 30),
    "n_components": (1, 3),
    "module": (None,),
    "clip": (0.1, 1.0, 100.0),
    "batch": (1, 2, 50),
    "epochs": (1, 3),
    "hidden": ((), (3,)),
    "optimizer": (None,),
    "average": (None, 0.5),
    "microbatch": (None, 1),
    "progress": (None,),
}
FEATURES = (None, ["x"], ["x", "k"], ["z", "f"], ["x", "c", "g"], ["x", "z", "k"])
TARGETS = ("c", "g", "f", "x", "z", "k", "c", "g", "c", "g", "day", None)


def estimator(source: random.Random) -> Any:
    """A random estimator with random options, alone or in a pipeline or a search."""
    from discreet.tabular import PrivatePipeline, PrivateSearch

    kind = source.choice(estimators())
    names = list(inspect.signature(kind).parameters)
    options = {n: source.choice(ESTIMATOR_OPTIONS[n]) for n in names if source.random() < 0.3}
    if "epochs" in names:
        options |= {"epochs": options.get("epochs", 1), "batch": options.get("batch", 2)}
    if "rounds" in names and source.random() < 0.9:
        options["rounds"] = source.choice((1, 5))
    one = kind(**options)
    if source.random() < 0.1:
        return PrivatePipeline(one, clip=source.choice((None, (0.1, 0.9))), scale=source.random() < 0.5)
    if source.random() < 0.1:
        trials = {"trials": source.choice((1.5, 3.0)), "holdout": source.choice((0.1, 0.5))}
        return PrivateSearch(
            one, {"epsilon": [0.5, 1.0]}, **trials, law=source.choice(("logarithmic", "poisson"))
        )
    return one


def trainer(session: Session, source: random.Random) -> Any:
    """A run in steps on the columns of the table."""
    from discreet.learning import DPClassifier, DPRegressor

    make, target = source.choice([(DPClassifier, "c"), (DPRegressor, "x")])
    one = make(
        epochs=source.choice((1, 3)), batch=source.choice((1, 2, 4)), n=4, epsilon=source.choice((0.5, 5))
    )
    features = source.choice((["z"], ["z", "k"], ["f", "g", "z"]))
    return one.mechanism(session.public, target=target, features=features, delta=0.01)


def checkpoint(session: Session, source: random.Random) -> str | None:
    """A file beside the ledger, which is a folder of its own."""
    return source.choice((None, str(session.ledger.path.parent / "checkpoint")))


def labels(labeller: Any, predictions: bool) -> Any:
    """Ask a labeller for the labels of public inputs."""
    width = labeller.mechanism.shape[0]
    x = np.linspace(0, 1, 3 * width, dtype=np.float32).reshape(3, width)
    given = {"predictions": np.full((3, labeller.mechanism.classes), 0.5)} if predictions else {}
    return labeller.label(x, **given)


def learner(source: random.Random) -> Any:
    """Something with fit and predict."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier
    from torch import nn

    torch_learner = TorchLearner(nn.LazyLinear(3), epochs=1)
    return source.choice([Threshold(), LogisticRegression(), DecisionTreeClassifier(), torch_learner])


# -- verbs

# What is refused whatever the table is (zero, a missing price) is tried in test_public_parameters.
EPSILON = (0.1, 1, 1, 1, 10, 10, 1000, 0.001, 1e-9)
RHO = (None, None, None, 0.1, 2)
DELTA = (None, None, 0.0, 1e-6, 0.05)
LIMIT = (None, 1, 2, 3, 7, 100)
COUNTS = (1, 2, 5, None)
SPACES = (None, Ball(2), Box(1, -1, 1), Simplex(2), Ball(1), Box(2, 0, 3))
LOSSES = (
    SquaredLoss(target="x", features=("z", "k")),
    SquaredLoss(target="z", features=("x",), intercept=False),
    LogisticLoss(target="g", features=("z",)),
    SquaredDistance(columns=("x", "z")),
    SquaredDistance(columns=("k",)),
    LinearLoss(columns=("z", "x")),
)
STRATEGIES = ("auto", "auto", "tree", "honaker", "item", "fresh", "square_root", "blt", "banded", "optimal")
PRICE = {"epsilon": EPSILON, "delta": DELTA, "rho": RHO}
SQL = {
    "text": sql,
    **PRICE,
    "within": (None, None, None, 1, 50, 0.001),
    "confidence": (0.95, 0.5),
    "noise": ("auto", "laplace", "gaussian"),
    "rows": LIMIT,
    "groups": LIMIT,
    "weights": ((), {"n0": 3}),
    "other": (False, True),
    "min_people": (None, None, 2),
}
TICKS = {
    "horizon": (1, 3, 3, 3, 4, None),
    "strategy": STRATEGIES,
    "participations": (1, 1, 1, 2),
    "separation": (None, 1, 2),
    "clock": (None, "day", "k", "c"),
    "number": (None, None, None, 2),
}
TEACH = {
    "teachers": (1, 2, 5), "target": ("c", "g", "f", "c", None), "features": (["z"], ["z", "k"], ["k", "f"]),
    "epsilon": (0.5, 5, 100), "delta": (None, 0.01), "queries": (1, 3, 6),
    "aggregator": ("gnmax", "lnmax", "confident", "interactive", "stable", "sampled", "sparse"),
    "answers": (None, 2), "threshold": (None, 1), "failures": (None, 2), "overlap": (None, 1, 2),
    "classes": (None, 3), "sanitize": (None, None, 0.3), "order": (None, 8.0), "size": (None, 5000, 10),
    "workers": (1,), "progress": (None,),
}  # fmt: skip
# For every verb, values of its options (or a function that draws one); with `*` those that are always given.
VERBS: dict[str, dict[str, Any]] = {
    "sql": {**SQL, "fresh": (False, True)},
    "preview": SQL,
    "workload": {
        "queries": lambda source: [count(source) for _ in range(source.choice((1, 2, 3)))],
        **PRICE, "rows": LIMIT, "fresh": (False, True),
    },
    "cut_off": {
        "rows": LIMIT, "groups": LIMIT, "by": (None, "c", "t", "day"), "where": (None, "x > 3", "t = 'a'"),
        "epsilon": EPSILON, "within": (None, 5), "delta": DELTA,
    },
    "plan": {
        "work": lambda source: [sql(source), count(source), {"queries": [count(source)]}][: source.randrange(1, 4)],
        "epsilon": EPSILON, "together": (True, False),
    },
    "explain": {"text": (None, "SELECT COUNT(*) AS n FROM t"), "audience": (None, "public", "engineer"),
                "delta": DELTA, "options": lambda source: {"epsilon": source.choice(EPSILON)}},
    "fit": {
        "estimator": estimator, "target": TARGETS, "features": FEATURES, "checkpoint": checkpoint, "every": (1, 100),
        "text": (None, "a note"), "progress": (None, lambda *facts: None), "seconds": (None, 5),
    },
    "train": {"trainer": trainer, "checkpoint": checkpoint, "every": (1, 2), "text": (None, "a note"),
              "progress": (None, False, lambda *facts: None), "callbacks": ((), (lambda *facts: None,)),
              "validation": (None,)},
    "teach": {"learner": learner, **TEACH, "number": (None, None, None, 2)},
    "preview_teach": {"learner": learner, "options": lambda source: drawn(TEACH, 0.1, source)},
    "synthesize": {
        "rows": (None, 3, 0, 20), "epsilon": (0.1, 1, 10, 1000), "delta": DELTA,
        "method": ("auto", "aim", "mst", "mwem", "independent"),
        "columns": (None, ["c", "f"], ["x", "c", "f"], ["k", "day"], ["x"]),
        "bins": (None, {"x": 3}, {"x": [0, 1, 10]}), "missing": (None, {"c": False}, {"x": True}),
        "rows_per_unit": COUNTS, "constraints": ((), ("x >= k",)),
        "options": (None, {"degree": 1}, {"rounds": 2}, {"cells": 50}),
        "seed": (None, 7), "checkpoint": checkpoint, "resume": (False, True), "progress": (None, lambda *facts: None),
        "fresh": (False, True), "seconds": (None, 5),
    },
    "watch": {
        "threshold": (0, 3, -5, 50), "epsilon": (0.1, 1, 100), "delta": (0.0, 0.0, 1e-3),
        "positives": (1, 2, 5), "number": (None, None, None, 2), "numeric": (False, True), "gap": (False, True),
        "questions": (None, 1, 3), "sensitivity": (1, 1, 3, 20), "monotone": (None, False, True),
        "split": (None, None, (1, 2), (1, 2, 1)),
    },
    "stream": {
        "text": total, **PRICE, **TICKS, "window": (None, None, 1, 2), "decay": (None, None, 0.5),
        "restart": (None, None, 2), "rows": LIMIT, "groups": LIMIT,
    },
    "online": {
        "loss": LOSSES, "learner": ("auto", "leader", "mirror", "experts"), "clip": (1, 1, 0.01, 100, None),
        "space": SPACES, **PRICE, **TICKS, "batch": (1, 0.5, 100), "ridge": (0, 1), "parameter": (None, 0.3, 10),
    },
}  # fmt: skip
# Options that are always given: without them a call is hardly ever accepted.
REQUIRED = {
    "text", "queries", "work", "estimator", "trainer", "learner", "teachers", "loss", "horizon", "participations",
    "clip", "epsilon", "target", "features", "workers", "columns", "aggregator", "options",
}  # fmt: skip
# Of single verbs: options that are always given, and how often each other is (0.25 elsewhere).
ALSO = {"cut_off": {"rows"}, "watch": {"threshold"}, "synthesize": {"rows_per_unit", "method"}, "sql": {"rows"},
        "stream": {"rows"}}  # fmt: skip
SHARE = {
    "teach": 0.08,
    "synthesize": 0.12,
    "online": 0.06,
    "sql": 0.12,
    "preview": 0.12,
    "stream": 0.08,
    "cut_off": 0.1,
}
# Verbs that are not drawn, each with the reason.
OTHERWISE = {
    "ask": "takes a mechanism: `walk_mechanisms`",
    "start": "takes a mechanism: `walk_mechanisms`",
    "feed": "of a watch and of streams: done with their results",
    "resume": "of a run: done with the results of `train`",
    "steps": "takes the steps of `train` one by one: tests/learning/test_callbacks.py",
    "suggest": "asks SQL of its own: tests/session/test_suggesting.py",
    "suggest_limits": "asks SQL of its own: tests/session/test_suggesting.py",
    "preview_suggest": "asks nothing: tests/session/test_suggesting.py",
    "compare_copy": "of a copy: done with the results of `synthesize`",
    "during": "takes names of periods: every session is also asked about one",
    "as_analyst": "reads nothing: every session is also asked as an analyst",
    "dummy": "reads nothing but the public facts",
    "receipt": "reads the ledger alone: tests/curator/test_receipts.py",
}


def drawn(
    choices: Mapping[str, Any],
    share: float,
    source: random.Random,
    required: Set[str] = REQUIRED,
    *before: Any,
) -> dict[str, Any]:
    """Random values of the required options, and of a share of the others."""
    options: dict[str, Any] = {}
    for name, values in choices.items():
        if name in required or source.random() < share:
            takes_session = callable(values) and "session" in inspect.signature(values).parameters
            given = (*before, source) if takes_session else (source,)
            options[name] = values(*given) if callable(values) else source.choice(values)
    return options


def terms(verb: str, session: Session, source: random.Random) -> dict[str, Any]:
    """Random options of a verb."""
    required = (REQUIRED | ALSO.get(verb, set())) - ({"options"} if verb == "synthesize" else set())
    options = drawn(VERBS[verb], SHARE.get(verb, 0.25), source, required, session)
    if verb in ("explain", "preview_teach"):
        # a parameter `**options`
        options |= options.pop("options")
    if options.get("epsilon") is not None and options.get("rho") is not None:
        del options[source.choice(("epsilon", "rho"))]
    return options


QUESTIONS = (
    *(
        "x > 3",
        "t = 'a'",
        "c = 'a' AND f",
        "SELECT COUNT(DISTINCT who) AS n FROM t",
        "SELECT SUM(k) AS n FROM t",
    ),
    *("LN(x) > 0", "CAST(t AS INTEGER) = 7"),
)
STORED = {"sql", "workload", "cut_off", "fit"}
Step = Callable[[Session, Any], Any]


def follow(
    verb: str, options: Mapping[str, Any], batches: Sequence[pa.Table], source: random.Random
) -> list[Step]:
    """What is done with the result of a verb, step by step."""
    if verb in ("stream", "online"):
        own = source.random() < 0.3
        return [lambda session, live, rows=rows: live.feed(None if own else rows) for rows in batches]
    if verb == "watch":
        asked = source.choices(QUESTIONS, k=3)
        return [lambda session, watch, question=question: watch.ask(question) for question in asked]
    if verb == "teach":
        predictions = source.random() < 0.3
        label: Step = lambda session, one: labels(one, predictions)  # noqa: E731
        return [label, label, lambda session, one: one.publish_cost()]
    if verb in STORED:
        # asked again: served from the ledger, on both tables or on none
        return [lambda session, answer: getattr(session, verb)(**options)]
    if verb == "plan":
        return [lambda session, plan: plan.run()]
    if verb == "train" and options.get("checkpoint"):
        return [lambda session, model: session.resume(options["trainer"], options["checkpoint"])]
    if verb == "synthesize":
        epsilon, rows = source.choice((0.5, 5)), source.choice(COUNTS)
        return [lambda session, copy: session.compare_copy(copy, epsilon=epsilon, rows_per_unit=rows)]
    return []
