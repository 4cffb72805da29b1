"""An A/B test that is looked at every day: counts by arm, published daily, for one price in all.

Run: python examples/ab_test_stream.py
"""

import math

import numpy as np

import discreet as dp

DAYS, VISITORS = 28, 1500
CHANCES = {"old": 0.10, "new": 0.12}  # of buying something, which nobody knows
random = np.random.default_rng(0)

shop = dp.open(
    {"arm": ["old"], "bought": [False]},
    table="shop",
    unit=dp.rows(),  # one row is one visitor, who comes once
    schema={"arm": dp.Categories(["old", "new"]), "bought": dp.Boolean(nullable=False)},
    budget=dp.Budget(epsilon=1, delta=1e-6),
    ledger=":memory:",
)
counts = shop.stream(
    "SELECT arm, bought, COUNT(*) AS n FROM shop GROUP BY arm, bought", epsilon=0.5, horizon=DAYS
)
print(f"28 days of four counts, paid at the start: epsilon {shop.spent:.3g}; each count within "
      f"{counts.counter.error(0.95, DAYS):.0f} on the last day\n")  # fmt: skip


def effect(totals: dict) -> tuple[float, float]:
    """The difference of the two rates, and its deviation: that of sampling and that of the noise."""
    deviation = counts.error(0.95) / 1.96
    rates, variance = [], 0.0
    for arm in ("new", "old"):
        bought, other = max(totals[arm, True], 1.0), max(totals[arm, False], 1.0)
        people = bought + other
        rate = bought / people
        variance += rate * (1 - rate) / people + deviation**2 * ((1 - rate) ** 2 + rate**2) / people**2
        rates.append(rate)
    return rates[0] - rates[1], math.sqrt(variance)


# Looking every day is free, deciding is not: at 3.13 deviations 28 looks are wrong in at most 5% of tests.
limit = 3.13
decided = None
for day in range(1, DAYS + 1):
    arms = random.choice(["old", "new"], VISITORS)
    bought = random.random(VISITORS) < np.array([CHANCES[arm] for arm in arms])
    counts.feed({"arm": arms, "bought": bought})
    gain, deviation = effect(counts.value)
    clear = abs(gain) > limit * deviation
    if day in (1, 2, 4, 7, 14, 21, 28) or (clear and decided is None):
        print(f"day {day:2}: the new page sells {gain:+.2%} ± {1.96 * deviation:.2%}{'  decided' * clear}")
    decided = day if clear and decided is None else decided

print(f"\ndecided on day {decided}; in truth the gain is +2.00%; spent in the end: {shop.spent:.3g}")
