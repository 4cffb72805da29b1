"""What a year of statistics means for one patient: in words, as a page, and as a privacy label.

Run: python examples/explain_to_people.py
"""

import tempfile
from pathlib import Path

import discreet as dp
from discreet.tables import rand_hie

people = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=1, delta=1e-6), ledger=":memory:")
question = "SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health"

# Before anything is asked: how good would it be, and what would make it twice as good?
plan = people.explain(question, epsilon=0.25)
(accuracy,) = [section for section in plan.sections if section.heading == "How good n will be"]
print("\n".join(accuracy.lines))

people.sql(question, epsilon=0.25)
people.sql("SELECT AVG(visits) AS visits FROM rand_hie", epsilon=0.25)

# Afterwards: what does all of it mean for one person? Three readers, three texts.
for audience in ("public", "policy", "engineer"):
    shown = dp.explain(people, audience=audience)
    print(f"\nFor {audience}: {shown.sections[0].lines[0]}")

risk = dp.explain(people).risk
print(f"\nepsilon {risk.epsilon:.3g}: a belief of 1 in 100 becomes at most {risk.after(0.01):.3%}")
print(f"the best test with 1% false positives finds at most {risk.true_positives(0.01):.3%} of those inside")

with tempfile.TemporaryDirectory() as folder:
    label = Path(folder) / "label.html"
    label.write_text(dp.explain(people).label())
    print(f"a privacy label of {label.stat().st_size:,} bytes, which loads nothing from anywhere")
