"""What docs/sql.md says is allowed can be previewed, and what it says is refused is refused."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

import discreet as dp
from discreet.query import QueryError

PAGE = (Path(__file__).parents[2] / "docs" / "sql.md").read_text()
OPENING = PAGE.split("## What is allowed, and what is refused")[1].split("\n## ")[0]
# what the table shows in a cell: a whole question about it
ALLOWED = {
    "COUNT(DISTINCT person)": "SELECT COUNT(DISTINCT person) AS n FROM t",
    "SUM(x)": "SELECT SUM(x) AS s, AVG(x) AS a, STDDEV(x) AS d FROM t",
    "CORR(x, y)": "SELECT CORR(x, y) AS c FROM t",
    "MEDIAN(x)": "SELECT MEDIAN(x) AS m, QUANTILE_CONT(x, 0.9) AS q FROM t",
    "MODE(x)": "SELECT MIN(x) AS low, MAX(x) AS high, MODE(sex) AS m FROM t",
    "WHERE age BETWEEN 20 AND 40 AND sex = 'male'": (
        "SELECT COUNT(*) AS n FROM t WHERE age BETWEEN 20 AND 40 AND sex = 'male'"
    ),
    "FLOOR(age / 10)": "SELECT FLOOR(age / 10) AS tens, COUNT(*) AS n FROM t GROUP BY tens",
    "DATE_TRUNC('month', day)": "SELECT DATE_TRUNC('month', day) AS m, COUNT(*) AS n FROM t GROUP BY m",
    "GROUP BY diagnosis": "SELECT diagnosis, COUNT(*) AS n FROM t GROUP BY diagnosis",
    "AVG(CLAMP(total, 0, 50)) FROM (SELECT person, SUM(x) AS total FROM t GROUP BY person)": (
        "SELECT AVG(CLAMP(total, 0, 50)) AS a FROM (SELECT person, SUM(x) AS total FROM t GROUP BY person)"
    ),
    "12 * AVG(x)": "SELECT sex, 12 * AVG(x) AS a FROM t GROUP BY sex HAVING COUNT(*) > 5 ORDER BY a LIMIT 1",
    "ON a.person = b.person": "SELECT COUNT(*) AS n FROM t AS a JOIN t AS b ON a.person = b.person",
    "SUM(CLAMP(1 / x, 0, 5))": "SELECT SUM(CLAMP(1 / x, 0, 5)) AS s FROM t",
}
REFUSED = {
    "SELECT *": "SELECT * FROM t",
    "SELECT name": "SELECT diagnosis FROM t",
    "SELECT DISTINCT x": "SELECT DISTINCT x FROM t",
    "GROUP BY person": "SELECT person, COUNT(*) AS n FROM t GROUP BY person",
    "SUM(1 / x)": "SELECT SUM(1 / x) AS s FROM t",
    "sex = 'Female'": "SELECT COUNT(*) AS n FROM t WHERE sex = 'Female'",
    "age > 200": "SELECT COUNT(*) AS n FROM t WHERE age > 200",
    "a column that is not declared": "SELECT AVG(weight) AS a FROM t",
    "private tables joined on anything but the person": "SELECT COUNT(*) AS n FROM t AS a JOIN t AS b ON a.age = b.age",
    "FULL JOIN": "SELECT COUNT(*) AS n FROM t AS a FULL JOIN t AS b ON a.person = b.person",
    "window functions": "SELECT COUNT(*) AS n, RANK() OVER (ORDER BY age) AS r FROM t",
    "UNION": "SELECT COUNT(*) AS n FROM t UNION SELECT COUNT(*) AS n FROM t",
    "x > (SELECT AVG(x) ...)": "SELECT COUNT(*) AS n FROM t WHERE x > (SELECT AVG(x) FROM t)",
    "RANDOM()": "SELECT COUNT(*) AS n FROM t WHERE RANDOM() < 0.5",
    "NOW()": "SELECT COUNT(*) AS n FROM t WHERE day < NOW()",
    "more than one statement": "SELECT COUNT(*) AS n FROM t; SELECT COUNT(*) AS n FROM t",
    "anything but `SELECT`": "DELETE FROM t",
}


@pytest.fixture(scope="module")
def table() -> dp.Session:
    n = 20
    return dp.open(
        {
            "person": list(range(n)),
            "age": [30 + i for i in range(n)],
            "sex": ["female", "male"] * (n // 2),
            "x": [float(i) for i in range(n)],
            "y": [float(i % 3) for i in range(n)],
            "day": [dt.date(2026, 1, 1 + i) for i in range(n)],
            "diagnosis": ["cough"] * n,
            "weight": [70.0] * n,
        },
        schema={
            "age": dp.Bounds(0, 65),
            "sex": dp.Categories(["female", "male"]),
            "x": dp.Bounds(0.0, 20.0),
            "y": dp.Bounds(0.0, 2.0),
            "day": dp.Dates(dt.date(2026, 1, 1), dt.date(2026, 12, 31)),
            "diagnosis": dp.Text(),
        },
        unit=dp.Unit("person", rows=2),
        budget=dp.Budget(epsilon=2, delta=1e-6),
        table="t",
        ledger=":memory:",
    )


@pytest.mark.parametrize("cell", ALLOWED)
def test_what_is_allowed_can_be_asked(table: dp.Session, cell: str) -> None:
    assert f"`{cell}`" in OPENING
    assert table.preview(ALLOWED[cell], epsilon=1).query.columns


@pytest.mark.parametrize("cell", REFUSED)
def test_what_is_refused_is_refused_for_its_text(table: dp.Session, cell: str) -> None:
    assert cell in OPENING
    with pytest.raises(QueryError, match=r"^line \d+, column \d+: |^one statement"):
        table.preview(REFUSED[cell], epsilon=1)


def test_every_example_of_the_refused_is_tried() -> None:
    """A row that is added to the page is added here."""
    _, refused = OPENING.split("| refused |")
    cells = [line.split("|")[1].strip() for line in refused.splitlines() if line.startswith("| ")]
    assert len(cells) >= 8
    for cell in cells:
        assert any(name in cell for name in REFUSED), cell
