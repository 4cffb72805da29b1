"""Publish a census: counts of country, regions and districts that add up, whole and none below zero.

Run: python examples/census_release.py
"""

import numpy as np

import discreet as dp
from discreet import inference

REGIONS, DISTRICTS, PEOPLE = 4, 24, 60_000
random = np.random.default_rng(0)
size = random.dirichlet(np.full(DISTRICTS, 0.7))  # some districts are nearly empty
district = random.choice(DISTRICTS, PEOPLE, p=size)
names = [f"{'NESW'[d % REGIONS]}{d // REGIONS + 1}" for d in range(DISTRICTS)]
age = np.array(["child", "adult", "old"])[random.choice(3, PEOPLE, p=[0.2, 0.6, 0.2])]
regions = np.array(list("NESW"))[district % REGIONS]

census = dp.open(
    {"region": regions, "district": np.array(names)[district], "age": age},
    table="census",
    unit=dp.rows(),  # one row is one person
    schema={
        "region": dp.Categories(list("NESW")),
        "district": dp.Categories(names),
        "age": dp.Categories(["child", "adult", "old"]),
    },
    budget=dp.Budget(epsilon=1, delta=1e-9),
    ledger=":memory:",
)

# Three levels, one price: the noise is shared out so that the whole table is as good as it can be.
levels = [
    "SELECT COUNT(*) AS n FROM census",
    "SELECT region, COUNT(*) AS n FROM census GROUP BY region",
    "SELECT district, age, COUNT(*) AS n FROM census GROUP BY district, age",
]
print(census.preview(levels, epsilon=0.5), "\n")
country, by_region, cells = census.workload(levels, epsilon=0.5)

# What follows is post-processing, and free. The tree: country, regions, districts, cells by age.
cell = {(row[0], row[1]): row[2] for row in cells.rows}
ages = ["child", "adult", "old"]
parents = [-1] + [0] * REGIONS + [1 + d % REGIONS for d in range(DISTRICTS)]
parents += [1 + REGIONS + d for d in range(DISTRICTS) for _ in ages]
region = dict(by_region.rows)
values = [float(country), *(region[r] for r in "NESW")]
values += [sum(cell[name, a] for a in ages) for name in names]
values += [cell[name, a] for name in names for a in ages]
error = [max(answer.error(0.95)["n"]) for answer in (country, by_region, cells)]
variances = [error[0] ** 2] + [error[1] ** 2] * REGIONS
variances += [3 * error[2] ** 2] * DISTRICTS + [error[2] ** 2] * len(ages) * DISTRICTS
tree = inference.Tree(parents)
published = inference.top_down(tree, values, variances)

truth = np.bincount(district, minlength=DISTRICTS)
districts = published[1 + REGIONS : 1 + REGIONS + DISTRICTS]
print(f"{'district':9} {'truth':>7} {'published':>10}")
for d in np.argsort(truth)[[0, 1, 2, -2, -1]]:
    print(f"{names[d]:9} {truth[d]:7,} {districts[d]:10,}")
print(f"country   {PEOPLE:7,} {published[0]:10,}")
sums = [published[1 + r] == districts[r::REGIONS].sum() for r in range(REGIONS)]
print(f"\nregions are the sums of their districts: {all(sums)}; none below zero: {published.min() >= 0}")
print(
    f"mean error of a district: {np.abs(districts - truth).mean():.1f} people; spent {census.spent:.3g} of 1"
)
