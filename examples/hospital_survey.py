"""A hospital's file of visits, as messy as such files are: from CSV to answers and a privacy label.

Run: python examples/hospital_survey.py
"""

import tempfile
from pathlib import Path

import numpy as np

import discreet as dp

# Several visits per patient, decimal commas, two formats of dates, gaps and typing errors.
random = np.random.default_rng(0)
lines = ["Patient No;Ward;Age;Größe (cm);Admitted;Satisfied"]
for patient in range(3000):
    height = f"{random.normal(170, 10):.1f}".replace(".", ",")
    for _ in range(random.integers(1, 4)):
        ward = random.choice(["A", "B", "C", ""], p=[0.5, 0.3, 0.19, 0.01])
        day, month = random.integers(1, 29), random.integers(1, 13)
        date = random.choice(
            [f"{day:02}.{month:02}.2025", f"2025-{month:02}-{day:02}", "unknown"], p=[0.6, 0.39, 0.01]
        )
        happy = random.choice(["yes", "no"], p=[0.8, 0.2] if ward == "A" else [0.6, 0.4])
        lines.append(f"P{patient};{ward};{random.integers(18, 95)};{height};{date};{happy}")

folder = Path(tempfile.mkdtemp())
(folder / "visits.csv").write_text("\n".join(lines), "utf-8")

# What is public about the file: declared by the hospital, from what it knows; nothing is read off the values.
(folder / "visits.csv.schema.toml").write_text(
    """
table = "visits"
version = "2025"
[unit]                      # all visits of one patient are protected together
column = "Patient No"
rows = 3
groups = 3
[format]
delimiter = ";"
decimal = ","
dates = ["%Y-%m-%d", "%d.%m.%Y"]
[columns."Patient No"]
type = "text"
[columns.Ward]
type = "categories"
values = ["A", "B", "C"]
[columns.Age]
type = "number"
lower = 18
upper = 100
[columns."Größe (cm)"]
type = "number"
lower = 100
upper = 220
[columns.Admitted]
type = "date"
lower = "2025-01-01"
upper = "2025-12-31"
[columns.Satisfied]
type = "categories"
values = ["yes", "no"]
""",
    "utf-8",
)
visits = dp.open(
    folder / "visits.csv",
    schema=folder / "visits.csv.schema.toml",
    budget=dp.Budget(epsilon=4, delta=1e-6),
    analysts={"ann": dp.Budget(epsilon=3)},
)
ann = visits.as_analyst("ann")

# Ann plans within her budget, then asks: every answer with its error, every price known before.
satisfied = "SELECT Ward, Satisfied, COUNT(*) AS n FROM visits GROUP BY Ward, Satisfied"
print(ann.preview(satisfied, epsilon=1), "\n")
shares: dict[str, dict[str, float]] = {}
for ward, answer, n in ann.sql(satisfied, epsilon=1).rows:
    shares.setdefault(ward, {})[answer] = n
for ward, counts in shares.items():
    print(f"ward {ward}: {counts['yes'] / sum(counts.values()):.0%} satisfied")
print(ann.sql('SELECT AVG("Größe (cm)") AS height FROM visits', epsilon=0.5), "\n")
print(
    ann.sql(
        'SELECT quarter(Admitted) AS q, COUNT(DISTINCT "Patient No") AS n FROM visits GROUP BY q ORDER BY q',
        epsilon=1,
    )
)

# For the patients: what all of it can tell on any of them, on one page.
label = folder / "label.html"
label.write_text(dp.explain(visits).label(), "utf-8")
print(
    f"\nspent {visits.spent:.3g} of 4, ann has {ann.remaining:.3g} left; label {label.stat().st_size:,} bytes"
)
print(dp.explain(visits).sections[0].lines[0])
