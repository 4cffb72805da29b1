"""Many questions, few that matter: sparse vector pays only for the latter.

Run: python examples/many_looks.py
"""

import discreet as dp
from discreet import mechanisms
from discreet.tables import rand_hie

people = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=1), ledger=":memory:")

# Which ages have more than 120 people? Up to 65 questions are asked; the price is that of three answers, paid
# at the start.
ages = mechanisms.Histogram(column="age", edges=tuple(range(66)))
live = people.start(
    mechanisms.SparseVector(
        public=people.public, threshold=120, epsilon=1, positives=3, monotone=True, questions=65
    )
)
print(f"paid at the start: epsilon {people.spent:g}")
for age in range(65):
    try:
        answer = live.answer(mechanisms.Component(statistic=ages, index=age)).value
    except dp.Halted as halted:
        print(f"halted before age {age}: {halted}")
        break
    if answer.above:
        print(f"120 people or more, about, of age {age}")
print(
    f"spent in the end: epsilon {people.spent:g}; every answer is in the ledger: "
    f"{people.ledger.anchor.seq} entries"
)
