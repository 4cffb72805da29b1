"""A steward opens a table with a budget; an analyst asks SQL. Run: python examples/ask_a_table.py"""

import discreet as dp
from discreet.tables import rand_hie

people = dp.open(
    rand_hie(),  # 20,190 rows of 5,912 people: each person is protected as a whole
    budget=dp.Budget(epsilon=2, delta=1e-6),
    analysts={"ann": dp.Budget(epsilon=1)},
    ledger=":memory:",  # a file name keeps the books
)
ann = people.as_analyst("ann")

question = """
    SELECT coinsurance, AVG(visits) AS visits
    FROM rand_hie WHERE age >= 18 GROUP BY coinsurance ORDER BY coinsurance
"""
print(ann.preview(question, epsilon=0.5, rows=5, groups=1), "\n")
print(ann.sql(question, epsilon=0.5, rows=5, groups=1), "\n")

print("people, asked for by accuracy instead of price:")
print(ann.sql("SELECT COUNT(DISTINCT person) AS n FROM rand_hie", within=40), "\n")

try:
    ann.sql("SELECT SUM(spending) AS dollars FROM rand_hie", epsilon=1, rows=5)
except dp.BudgetExceeded as refusal:
    print(f"refused: {refusal}\n")

print(
    f"spent {people.spent:.3g} of 2; the ledger has {people.ledger.anchor.seq} entries, problems: "
    f"{people.curator.verify()}"
)
