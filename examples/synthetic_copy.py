"""A synthetic copy of a table: paid once, asked as often as one likes.

Run it: python examples/synthetic_copy.py
"""

import numpy as np

import discreet as dp

random = np.random.default_rng(0)
n = 5_000
sex = random.choice(["female", "male"], n)
years = random.integers(6, 18, n)
age = np.maximum(random.integers(18, 91, n), years)
rich = random.random(n) < 0.05 + 0.03 * years + 0.1 * (sex == "male")

people = dp.open(
    {"sex": sex, "age": age, "years": years, "rich": rich},
    unit=dp.rows(),
    budget=dp.Budget(epsilon=2, delta=1e-6),
    schema={
        "sex": dp.Categories(["female", "male"]),
        "age": dp.Bounds(0, 90, nullable=False),
        "years": dp.Bounds(0, 20, nullable=False),
        "rich": dp.Boolean(nullable=False),
    },
    ledger=":memory:",
)

# Charged before any data is read. How many rows there are is private: the default is a noisy total.
copy = people.synthesize(epsilon=1, bins={"age": [0, 30, 45, 60, 75, 91]}, constraints=["age >= years"])
print(copy, f"{people.spent:g} of {people.budget.epsilon:g} spent")

# Anything can be asked of the copy, free; such answers carry no ± of the truth, and say so.
print(copy.sql("SELECT years >= 12 AS long, AVG(CAST(rich AS INT)) AS rich FROM data GROUP BY 1 ORDER BY 1"))
print("truth:", rich[years < 12].mean().round(3), rich[years >= 12].mean().round(3))

# What the released values promise of the measured tables, free; and for a price, how far the copy is off.
print(copy.report())
distance = people.compare_copy(copy, epsilon=0.1)
print(f"mean total variation over pairs: {distance.value:.3f} ± {distance.error(0.95):.3f}")

# Any number of rows, also under a condition. Asking for the same copy again is free.
print(copy.sample(3, given={"sex": "female", "rich": True}, seed=1).to_pydict())
again = people.synthesize(epsilon=1, bins={"age": [0, 30, 45, 60, 75, 91]}, constraints=["age >= years"])
print("asked again:", f"{people.spent:g} spent,", again.fitted == copy.fitted)
