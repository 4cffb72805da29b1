"""Which of forty columns differ between two arms of a trial? From a table to discoveries on one budget. Run:
python examples/discoveries.py"""

import numpy as np

import discreet as dp
from discreet.adaptive import (
    LordPlusPlus,
    ProportionTest,
    Saffron,
    TwoSampleMeanTest,
    benjamini_hochberg,
)

COLUMNS, PEOPLE, REAL = 40, 20_000, (3, 7, 19, 28, 33)  # the treatment moves these five, and nothing else

random = np.random.default_rng(0)
arm = random.integers(0, 2, PEOPLE)
data = {
    f"marker_{i}": random.normal(50 + 5 * arm * (i in REAL), 12, PEOPLE).clip(0, 100) for i in range(COLUMNS)
}
data |= {"arm": np.array(["control", "treated"])[arm], "smoker": random.random(PEOPLE) < 0.23}

trial = dp.open(
    data,
    unit=dp.rows(),
    schema={name: dp.Bounds(0, 100) for name in data if name.startswith("marker")}
    | {"arm": dp.Categories(["treated", "control"]), "smoker": dp.Boolean()},
    budget=dp.Budget(epsilon=3, delta=1e-6),
    table="trial",
    ledger=":memory:",
)
print(trial.sql("SELECT arm, COUNT(*) AS people FROM trial GROUP BY arm ORDER BY arm", epsilon=0.1), "\n")

tests = [
    TwoSampleMeanTest(
        public=trial.public, column=f"marker_{i}", group="arm", epsilon=0.05, step=2, runs=99_999
    )
    for i in range(COLUMNS)
]
pvalues = [trial.ask(test).value.pvalue for test in tests]

# The p-values are private already, noise and all: whatever is done with them now is free.
print(f"the treatment moves markers {list(REAL)}")
print("found, FDR 5%:")
print("  Benjamini-Hochberg", np.flatnonzero(benjamini_hochberg(pvalues, alpha=0.05)).tolist())
for online in (Saffron(alpha=0.05), LordPlusPlus(alpha=0.05)):
    print(f"  {type(online).__name__:18}", online.run(pvalues).discoveries.tolist())

share = trial.ask(ProportionTest(public=trial.public, column="smoker", chance=0.2, epsilon=0.2)).value
print(
    f"\none in five smokes? of about {share.people} people {share.statistic:.3f} do, p = {share.pvalue:.2g}"
)
means = TwoSampleMeanTest(public=trial.public, column="marker_7", group="arm", epsilon=0.3, step=1)
told = trial.ask(means).value
print(f"marker 7 is higher by {told.statistic:.1f} in the treated, p = {told.pvalue:.2g}")
print(f"\nspent {trial.spent:.3g} of {trial.budget.epsilon} for everything above")
