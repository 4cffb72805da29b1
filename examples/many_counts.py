"""Many counts at once: what answering together saves, the strategy behind it, and a plan for a whole
budget."""

import discreet as dp
from discreet.mechanisms import matrix
from discreet.tables import rand_hie

people = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=3), ledger=":memory:")

# Four related counts: the same cells answer all of them.
questions = [
    "SELECT COUNT(*) AS n FROM rand_hie WHERE health = 'poor'",
    "SELECT COUNT(*) AS n FROM rand_hie WHERE health = 'poor' OR health = 'fair'",
    "SELECT COUNT(*) AS n FROM rand_hie WHERE health <> 'excellent'",
    "SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY ROLLUP(health)",
]
print(people.preview(questions, epsilon=0.5))
answers = people.workload(questions, epsilon=0.5)
print(answers[3])
groups = {row[0]: row[1] for row in answers[3].rows}
print(
    "poor + fair by groups",
    round(groups["poor"] + groups["fair"], 6),
    "and asked for itself",
    round(answers[1].value, 6),
)

# Which strategy is best is known before anything is spent.
for workload in (matrix.prefix(64), matrix.all_ranges(64), matrix.marginals([4, 5, 6], ways=2)):
    best = matrix.optimize(workload)
    print(
        f"{type(workload).__name__}: rmse {best.rmse:.3f}, nothing is below {best.bound:.3f}. {best.reason}"
    )

# One epsilon for several things, the average three times as important as the counts.
plan = people.plan(
    [*questions[:3], {"sql": "SELECT AVG(visits) AS visits FROM rand_hie", "weight": 3}], epsilon=1
)
print(plan)
plan.run()
print(f"spent: {people.spent:.3f}")
