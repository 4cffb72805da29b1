"""Writes the golden ledgers of one release: `python -m tests.golden.write FOLDER`.

A golden ledger is written once, by the code of its release, and never again: every later version must open
it, verify it, total it the same and serve its releases from the store. The keys lie beside the ledgers; they
protect nothing.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import discreet as dp
from discreet import _registry, accounting
from discreet.adaptive.leaderboard import ShakyLadder
from discreet.curator import Curator, Ledger, Policy, books, values
from discreet.leaderboard import Leaderboard
from discreet.mechanisms import (
    AddNoise,
    Component,
    Histogram,
    IntegerGaussian,
    Sequential,
    SparseVector,
    noisy_count,
    noisy_sum,
)

N = 400
SCHEMA = {
    "id": dp.Bounds(0, 1000),
    "age": dp.Bounds(0, 100),
    "ward": dp.Categories(["a", "b", "c"]),
    "town": dp.Text(),
    "day": dp.Dates("2020-01-01", "2040-01-01"),
}
PUBLIC = dp.Public(schema=SCHEMA, table="people", size=N, version="1")
ROWS = {
    "id": np.arange(N),
    "age": np.arange(N) % 90,
    "ward": ["a"] * 90 + ["b"] * 300 + ["c"] * 10,
    "town": ["York"] * 250 + ["Bath"] * 148 + ["Rye", "Wick"],
    "day": ["2026-01-09"] * 200 + ["2026-02-03"] * 200,
}
# every parameter is written out: a default that changes later makes another question, which pays
QUESTIONS = (
    ("SELECT COUNT(*) AS n FROM people", {"epsilon": 0.25}),
    (
        "SELECT ward, COUNT(*) AS n, AVG(age) AS age FROM people GROUP BY ward",
        {"epsilon": 0.5, "noise": "gaussian", "delta": 1e-5 / 100},
    ),
    ("SELECT SUM(age) AS age FROM people WHERE ward = 'b'", {"within": 5000}),
)
TOWNS = ("SELECT town, COUNT(*) AS n FROM people GROUP BY town", {"epsilon": 1, "delta": 1e-6})
MECHANISMS = (
    noisy_count(PUBLIC, epsilon=0.5),
    noisy_sum(PUBLIC, "age", epsilon=0.25),
    AddNoise(public=PUBLIC, statistic=Histogram(column="ward"), noise=IntegerGaussian.for_rho(0.01)),
    Sequential(mechanisms=(noisy_count(PUBLIC, epsilon=0.125), noisy_sum(PUBLIC, "age", epsilon=0.125))),
)
VECTOR = SparseVector(public=PUBLIC, threshold=200, epsilon=1, positives=3, gap=True)
BOARD = ShakyLadder(public=PUBLIC, target="ward", id="id", epsilon=1, delta=1e-6, budget=50)
POLICY = Policy(budget=dp.Budget(epsilon=3, delta=1e-6), analysts={"ann": dp.Budget(epsilon=1), "bob": None})
MONTHLY = dp.Budget(epsilon=1, per=dp.Period(column="day", every="month"))


def source() -> Any:
    return dp.tables.connect(ROWS, PUBLIC)


def _opened(path: Path, budget: dp.Budget, **more: Any) -> dp.Session:
    return dp.open(source(), budget=budget, ledger=path, **more)


def plain(path: Path) -> None:
    """Laplace and Gaussian noise, through SQL and by mechanism."""
    people = _opened(path, dp.Budget(epsilon=8, delta=1e-5))
    for text, how in QUESTIONS:
        people.sql(text, **how)
    for mechanism in MECHANISMS:
        people.ask(mechanism)


def unknown_groups(path: Path) -> None:
    _opened(path, dp.Budget(epsilon=2, delta=1e-5)).sql(TOWNS[0], **TOWNS[1])


def periods(path: Path) -> None:
    people = _opened(path, MONTHLY)
    people.during("2026-01").sql(QUESTIONS[0][0], epsilon=0.5)
    people.during("2026-01", "2026-02").sql(QUESTIONS[0][0], epsilon=0.125)
    people.sql(QUESTIONS[0][0], epsilon=0.25)


def analysts(path: Path) -> None:
    """Own budgets, a release served to another, and a charge whose mechanism failed."""
    curator = Curator.create(path, source(), POLICY)
    curator.ask(MECHANISMS[0], analyst="ann", text="how many")
    curator.ask(MECHANISMS[0], analyst="bob")
    curator.ask(MECHANISMS[1], analyst="bob")
    curator._record_failure(curator.enter(accounting.PureDP(epsilon=0.125), "a run that failed"))


def concentrated(path: Path) -> None:
    Curator.create(path, source(), Policy(budget=dp.Budget(rho=1))).ask(MECHANISMS[2])


def live(path: Path) -> None:
    started = Curator.create(path, source(), Policy(budget=dp.Budget(epsilon=2))).start(VECTOR)
    for index in (0, 1, 2):
        started.answer(Component(statistic=Histogram(column="ward"), index=index))


def board(path: Path) -> None:
    curator = Curator.create(path, source(), Policy(budget=dp.Budget(epsilon=2, delta=1e-5)))
    opened = Leaderboard.open(curator, BOARD)
    opened.submit("team blue", dict.fromkeys(range(N), "a"))
    opened.submit("team red", dict.fromkeys(range(N), "b"))


def changed_policy(path: Path) -> None:
    people = _opened(path, MONTHLY)
    people.during("2026-01").sql(QUESTIONS[0][0], epsilon=0.5)
    weekly = dp.Budget(epsilon=2, per=dp.Period(column="day", every="week", total=dp.Budget(epsilon=9)))
    people.curator.change_policy(Policy(budget=weekly))
    people.during("2026-W02").sql(QUESTIONS[0][0], epsilon=0.5)


def entered(path: Path) -> None:
    """Charges of every event that adds up, as another system would have priced them."""
    curator = Curator.create(
        path, source(), Policy(budget=dp.Budget(epsilon=30, delta=1e-3)), large_epsilon=True
    )
    gaussian = accounting.Gaussian(noise_multiplier=4)
    prices = (
        accounting.PureDP(epsilon=0.5),
        accounting.ApproximateDP(epsilon=0.5, delta=1e-6),
        accounting.ZCDP(rho=0.01),
        gaussian,
        gaussian.sampled(rate=0.01).repeated(100),
        accounting.Laplace(noise_multiplier=4),
        accounting.DiscreteLaplace(scale=4, sensitivity=1),
        accounting.DiscreteGaussian(variance=16, sensitivity=1),
        accounting.compose([gaussian, accounting.PureDP(epsilon=0.25)]),
        accounting.ExponentialMechanism(epsilon=0.25),
        accounting.RandomizedResponse(epsilon=0.25),
    )
    for price in prices:
        curator.enter(price, f"a {type(price).__name__} made elsewhere")


STEPS, EVERY = 12, 4


def trainer() -> Any:
    import torch

    from discreet.learning import SGD, Trainer

    torch.manual_seed(0)
    return Trainer(
        torch.nn.Linear(3, 2),
        torch.nn.CrossEntropyLoss(),
        public=examples().public,
        noise_multiplier=2.0,
        batch=10,
        steps=STEPS,
        optimizer=SGD(lr=0.3, momentum=0.9),
    )


def examples() -> Any:
    import torch

    from discreet.learning import Examples

    x = torch.linspace(-1, 1, 120).reshape(40, 3)
    return Examples(x, (x.sum(1) > 0).long(), dp.Public(size=40))


class _Stop(BaseException):
    """Like a signal: nothing catches it."""


def training(path: Path) -> None:
    """A run that was killed in its second segment: its checkpoint is that of the first."""

    def killed(progress: Any) -> None:
        if progress.step == EVERY + 1:
            raise _Stop

    people = dp.open(examples(), budget=dp.Budget(epsilon=20, delta=1e-5), ledger=path)
    try:
        people.train(trainer(), checkpoint=path.with_suffix(".checkpoint"), every=EVERY, progress=killed)
    except _Stop:
        return


KINDS: dict[str, Callable[[Path], None]] = {
    made.__name__: made
    for made in (
        plain,
        unknown_groups,
        periods,
        analysts,
        concentrated,
        live,
        board,
        changed_policy,
        entered,
        training,
    )
}


def facts(ledger: Ledger) -> dict[str, Any]:
    """What must stay the same for ever, whatever classes are called: the head, every account, every stored
    release."""
    importlib.import_module("discreet.query")  # answers are decoded by their own package
    stored = [values.decode(ledger.value(entry.body)) for entry in ledger.entries() if "value" in entry.body]
    return {
        "anchor": str(ledger.anchor),
        "kinds": [entry.kind for entry in ledger.entries()],
        "accounts": [[account.of, account.used, _sums(account.spent)] for account in books.accounts(ledger)],
        "values": [_shown(value) for value in stored],
        "prices": [_price(event) for event in books.charged(ledger)],
    }


def _sums(spent: Any) -> list[str]:
    return [str(getattr(spent, name)) for name in ("sums", "delta", "events")]


def _shown(value: Any) -> str:
    if hasattr(value, "rows"):
        return repr(value.rows)
    fields = ("above", "value", "gap", "score", "improved", "left")
    parts = [repr(getattr(value, name)) for name in fields if hasattr(value, name)]
    return " ".join(parts) or repr(value.tolist() if isinstance(value, np.ndarray) else value)


def _price(event: Any) -> float:
    """The pure epsilon of an event, or else its epsilon at a delta of 1e-6 by Rényi divergences."""
    pure = accounting.epsilon(event, delta=0.0)
    return pure if math.isfinite(pure) else accounting.epsilon(event, delta=1e-6, accountant="rdp")


def every_tag() -> list[str]:
    """All tags that descriptions can have, of all packages."""
    for module in pkgutil.walk_packages(dp.__path__, "discreet."):
        if not module.name.startswith("discreet.app"):
            importlib.import_module(module.name)
    return sorted(_registry.registered())


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for name, make in KINDS.items():
        path = folder / f"{name}.ledger"
        make(path)
        written[name] = facts(Ledger(path))
    (folder / "facts.json").write_text(json.dumps(written, indent=1) + "\n")
    (folder / "tags.txt").write_text("".join(f"{tag}\n" for tag in every_tag()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
