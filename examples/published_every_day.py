"""A count that is published every day: one price, five strategies, a clock, and people who come often."""

from datetime import date, timedelta

import numpy as np

import discreet as dp
from discreet import streaming

rng = np.random.default_rng(1)
DAYS = 60

# How good a strategy is, is known before anything is spent.
for name in ("fresh", "item", "tree", "honaker", "square_root", "blt"):
    factors = streaming.error_factors(name, steps=DAYS)
    print(f"{name:12} max {factors.max:6.2f}  rms {factors.rms:6.2f}")

# A table that has all days, and more to come: the clock closes them one after the other.
first = date(2026, 1, 1)
people = rng.integers(0, 2000, 6000)
days = [first + timedelta(days=int(d)) for d in rng.integers(0, DAYS, 6000)]
visits = dp.open(
    {"person": people, "day": days},
    table="visits",
    schema={"day": dp.Dates(first.isoformat(), (first + timedelta(days=DAYS - 1)).isoformat())},
    unit="person",
    budget=dp.Budget(epsilon=8, delta=1e-6),
    ledger=":memory:",
)
stream = visits.stream(
    "SELECT day, COUNT(*) AS n FROM visits GROUP BY day", epsilon=4, participations=3, rows=1
)
for _ in range(5):
    stream.feed()
truth = sum(day < first + timedelta(days=5) for day in days)
print(f"after {stream.steps} days: {stream.value:.0f} visits ± {stream.error(0.95):.0f}, in truth {truth}")
print(f"everybody counts on at most 3 of {DAYS} days; spent in all: {visits.spent:.3g}")
