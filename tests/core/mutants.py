"""Mutants of the writer and of the forms: small faults, each put into a copy of the package, that the tests of this
folder must notice. `python -m tests.core.mutants` runs all and prints which survive; with names as arguments, those. It takes about ten
CPU-seconds for each that is killed at once, and a minute for one that survives.

A mutant is a module, a text that stands there exactly once, and what stands there instead. If a text is not found
once, the list is out of date, and the run stops.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "discreet"
# What is run against each mutant, until the first failure.
TESTS = (
    "tests/core/test_neighbors.py::test_no_neighbor_changes_an_answer_by_more_than_its_price",
    "tests/core/test_interpreter.py",
    "tests/core/test_neighbors.py::test_a_person_is_one_person_however_the_id_is_spelled",
    "tests/core/test_forged.py",
    "tests/core/test_hostile.py",
    "tests/core/test_question.py",
    "tests/core/test_flat.py",
)


@dataclass(frozen=True)
class Mutant:
    """`survives`: why no test can notice it; empty where one must."""

    name: str
    module: str
    old: str
    new: str
    survives: str = ""


_MEASURES, _PRICE, _OPERATORS = "core/measures.py", "query/price.py", "core/operators.py"
_FORMS, _QUESTION = "core/form.py", "core/question.py"
_DUCKDB = "tables/engines/duckdb_dialect.py"
_SOURCES, _SCAN, _COMPILE = (
    "core/sources.py",
    "core/scan.py",
    "core/compile.py",
)

FORMS = (
    # Descriptions.
    Mutant(
        "prefixes in capital letters are read",
        "core/sources.py",
        're.compile(r"[a-z]+[0-9]+", re.ASCII)',
        're.compile(r"[a-zA-Z]+[0-9]+", re.ASCII)',
    ),
    Mutant(
        "a narrower range is believed",
        "core/domain.py",
        "            and self.low <= other.low <= other.high <= self.high\n",
        "",
    ),
    # Norms.
    Mutant(
        "sensitivity halved",
        _MEASURES,
        "return Sensitivity(linf=largest, l0=l0)",
        "return Sensitivity(linf=(largest + 1) // 2, l0=l0)",
    ),
    Mutant(
        "sensitivity of the upper end alone",
        _MEASURES,
        "largest, span = max(-lo, hi), hi - lo",
        "largest, span = max(lo, hi), hi - lo",
    ),
    Mutant(
        "sensitivity of one group",
        _MEASURES,
        "l0 = bounding.groups if groups is None else min(bounding.groups, groups)",
        "l0 = 1",
    ),
    Mutant(
        "a replaced unit leaves no group",
        _MEASURES,
        "changed_groups = 2 * l0 if groups is None else min(2 * l0, groups)",
        "changed_groups = l0",
    ),
    Mutant("l1 of one unit where two change", _MEASURES, "l1=2 * l0 * largest", "l1=l0 * largest"),
    Mutant(
        "l2 of one unit where two change",
        _MEASURES,
        "l2_squared = max(l0 * span**2, 2 * l0 * largest**2)",
        "l2_squared = l0 * largest**2",
    ),
    Mutant(
        "limits without the number of rows",
        _MEASURES,
        '(1 if self.kind == "units" else bounding.rows)',
        "1",
    ),
    Mutant(
        "no lower limit",
        _MEASURES,
        "return times * min(self.low, 0), times * max(self.high, 0)",
        "return 0, times * max(self.high, 0)",
    ),
    Mutant(
        "the lower limit is that of a row that is there",
        _MEASURES,
        "return times * min(self.low, 0), times * max(self.high, 0)",
        "return times * self.low, times * self.high",
    ),
    Mutant(
        "an average is clipped, not scaled",
        "query/recipes.py",
        "scaled=centered and self.plan.many",
        "scaled=False",
    ),
    Mutant(
        "a square of the upper end alone",
        _MEASURES,
        "return step, center, 0, max(low**2, high**2)",
        "return step, center, 0, min(low**2, high**2) // 2",
    ),
    Mutant(
        "a sum without its middle",
        _MEASURES,
        "low, high = low - center, high - center",
        "high = high - center",
    ),
    # Prices.
    Mutant("noise for less is taken", _QUESTION, "and noise.covers(sensitivity)", ""),
    Mutant(
        "another number is public",
        _QUESTION,
        "isinstance(noise, PublicSize) and noise.value == self.form.public_rows",
        "isinstance(noise, PublicSize)",
    ),
    Mutant(
        "a selector for less is taken",
        _QUESTION,
        "and selector.sensitivity >= self.form.score_sensitivity(choice)",
        "",
    ),
    Mutant("scores may move both ways", _QUESTION, "and (is_one_way or not selector.monotone)", ""),
    Mutant(
        "a selector picks more than it pays for",
        _QUESTION,
        "is_right = selector.k == picks",
        "is_right = True",
    ),
    Mutant(
        "a choice is charged in one group",
        _QUESTION,
        "selector.event.repeated(form.changed_groups)",
        "selector.event",
    ),
    Mutant("a shown group is charged once", _QUESTION, "shown.repeated(form.changed_groups)", "shown"),
    Mutant(
        "noise for other neighbors is taken",
        _QUESTION,
        " or any(part.neighbors != neighbors for part in parts)",
        "",
    ),
    Mutant(
        "a replaced unit changes the choices of one group only",
        _FORMS,
        "changed = self.bounding.groups if self.public.neighbors is ADD_REMOVE else 2 * self.bounding.groups",
        "changed = self.bounding.groups",
    ),
    Mutant(
        "scores of a quantile move by the smaller side",
        _FORMS,
        "return self.bounding.rows * max(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)",
        "return self.bounding.rows * min(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)",
    ),
    Mutant(
        "scores of a quantile move by one row",
        _FORMS,
        "return self.bounding.rows * max(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)",
        "return max(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)",
    ),
    Mutant(
        "scores of a replaced unit move once",
        _FORMS,
        "return self.bounding.rows * max(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)",
        "return self.bounding.rows * max(a, b - a)",
    ),
    Mutant(
        "all counts move one way, also where a unit is replaced",
        _PRICE,
        'monotone = kind != "quantile" and shape.neighbors is ADD_REMOVE',
        'monotone = kind != "quantile"',
    ),
    Mutant(
        "a choice in every group at the price of one",
        _PRICE,
        "_selector(shape, *pick, Fraction(_round.down(e / shape.changed_groups)))",
        "_selector(shape, *pick, Fraction(_round.down(e)))",
    ),
    Mutant(
        "a choice in every group at the price of one, in rho",
        _PRICE,
        "math.sqrt(8 * pick[1] * share / shape.changed_groups)",
        "math.sqrt(8 * pick[1] * share)",
    ),
    Mutant(
        "groups shown at the price of one",
        _PRICE,
        "per_group = Fraction(_round.down(shares[-1] / shape.changed_groups))",
        "per_group = Fraction(_round.down(shares[-1]))",
    ),
    Mutant(
        "groups shown at the delta of one",
        _PRICE,
        "_round.down(Fraction(delta) / shape.changed_groups)",
        "_round.down(Fraction(delta))",
    ),
    Mutant(
        "each measure at the price of all",
        _PRICE,
        "shares = [Fraction(_round.down(target.epsilon * divisible * w / total)) for w in shape.weights]",
        "shares = [Fraction(_round.down(target.epsilon * divisible)) for w in shape.weights]",
    ),
    # Ranges.
    Mutant(
        "the range of CLAMP is too narrow",
        _OPERATORS,
        "min(a.high, high.low),\n        integral=",
        "min(a.high, high.low) / 2,\n        integral=",
    ),
    Mutant(
        "the range of a product is that of two corners",
        "core/domain.py",
        "return min(points), max(points)",
        "return min(points), points[0]",
    ),
    # Choices in the engine.
    Mutant(
        "one group more than the limit", _DUCKDB, 'LIST_MAX(MIN("h", {n}))', 'LIST_MAX(MIN("h", {n} + 1))'
    ),
    Mutant("one group less than the limit", _DUCKDB, 'AND "h" <= "last")\'', 'AND "h" < "last")\''),
    Mutant(
        "one value more than the limit", _DUCKDB, "UNNEST(MIN({pair}, {n}))", "UNNEST(MIN({pair}, {n} + 1))"
    ),
    Mutant(
        "one row more than the limit", _DUCKDB, "UNNEST(MIN({ranked}, {n}))", "UNNEST(MIN({ranked}, {n} + 1))"
    ),
    Mutant("two zeros are two units", _DUCKDB, "CAST({x} AS DOUBLE) + 0.0 END", "CAST({x} AS DOUBLE) END"),
)

# The unit, carried by the writer.
WRITER = (
    Mutant(
        "the unit is forgotten in joins",
        _SCAN,
        "            on.insert(0, self._same_unit(node.left, node.right, units[1]))\n",
        "            on = on or [exp.Boolean(this=True)]\n",
    ),
    Mutant(
        "the unit is forgotten in marks",
        _SCAN,
        '            on.insert(0, self._same_unit(node.child, node.right, f"{prefix}u"))\n',
        "            on = on or [exp.Boolean(this=True)]\n",
    ),
    Mutant(
        "the unit is forgotten in folds",
        _SCAN,
        "query.from_(rows).group_by(unit.copy(), *(k.copy() for k in keys))",
        "query.from_(rows).group_by(*(k.copy() for k in keys))",
    ),
    Mutant(
        "rows of nobody are kept",
        _SCAN,
        "return query.where(not_null(scan.unit)) if scan.unit is not None else query",
        "return query",
    ),
    Mutant(
        "a join forgets its own conditions",
        _SCAN,
        "return node.on if units is None else tuple(c for c in node.on if not _compares(c, *units))",
        "return node.on if units is None else ()",
    ),
    Mutant("an inner join keeps all rows", _SCAN, 'side="LEFT").where(not_null(found))', 'side="LEFT")'),
    Mutant(
        "a mark adds rows",
        _SCAN,
        "listed = select(*inner).distinct().from_",
        "listed = select(*inner).from_",
    ),
    Mutant(
        "equal rows are one",
        _SCAN,
        'aliased(exp.Count(this=exp.Star()), f"{scan.prefix}m")',
        'aliased(integer_literal(1), f"{scan.prefix}m")',
    ),
    Mutant(
        "equal rows count once in a sum",
        _COMPILE,
        'return wide_sum(binary(exp.Mul, convert(amount, "wide"), name("w")))',
        "return wide_sum(amount)",
    ),
    Mutant(
        "an outer join keeps public rows",
        _SOURCES,
        'if node.kind != "inner":\n            raise QueryError("an outer join',
        'if node.kind == "none":\n            raise QueryError("an outer join',
    ),
    Mutant(
        "rows may be joined with rows", _SOURCES, "if left.of_rows or right.of_rows:", "if left is right:"
    ),
    Mutant(
        "rows may be marked by rows",
        _SOURCES,
        "(own is None or own.of_rows or node.counted)",
        "(own is None or node.counted)",
        survives="rows of a table of rows carry no column of the unit, so that no engine can plan the mark",
    ),
    Mutant(
        "public rows may be marked by private ones",
        _SOURCES,
        "(own is None or own.of_rows or node.counted)",
        "(own is not None and (own.of_rows or node.counted))",
    ),
    Mutant(
        "private rows are counted for a mark",
        _SOURCES,
        "(own is None or own.of_rows or node.counted)",
        "(own is None or own.of_rows)",
    ),
    Mutant(
        "the unit is forgotten in marks with conditions",
        _SCAN,
        "            on.insert(0, self._same_unit(node.child, node.right, units[1]))\n            values.insert",
        "            values.insert",
    ),
    Mutant(
        "a match of another person will do",
        _SCAN,
        '            same.insert(0, exp.EQ(this=name(units[0]), expression=name(f"{prefix}u")))\n',
        "",
    ),
    Mutant(
        "one of two zeros stands for both",
        _SCAN,
        "aliased(canonical(c, sql(c)), c.name) for c in side",
        "aliased(sql(c), c.name) for c in side",
        survives="no operator tells the two zeros apart",
    ),
    Mutant(
        "a mark with conditions adds rows",
        _SCAN,
        'matched = select(*kept, aliased(exp.Boolean(this=True), f"{prefix}m")).distinct()',
        'matched = select(*kept, aliased(exp.Boolean(this=True), f"{prefix}m"))',
    ),
    Mutant(
        "units of two types are put together",
        _SCAN,
        "len({self._unit_kind(part) for part in node.parts}) > 1",
        "len({self._unit_kind(part) for part in node.parts}) > 2",
    ),
    Mutant(
        "a union of single rows has one row",
        _SOURCES,
        'return Carried(f"{node.prefix}u", single=False)',
        'return Carried(f"{node.prefix}u", single=all(part is not None and part.single for part in parts))',
    ),
    Mutant(
        "a union may have public rows",
        _SOURCES,
        "any(part is None or part.of_rows for part in parts)",
        "any(part is not None and part.of_rows for part in parts)",
        survives="public rows carry no unit, so that no engine can put them beside rows that do",
    ),
    Mutant(
        "rows are put together as if they had people",
        _SOURCES,
        "any(part is None or part.of_rows for part in parts)",
        "any(part is None for part in parts)",
        survives="rows of a table of rows carry no column of the unit, so that no engine can plan the union",
    ),
    Mutant(
        "a column with a c in its name is within its range",
        _SOURCES,
        'return column.name.rstrip("0123456789").endswith("c")',
        'return "c" in column.name',
    ),
    Mutant(
        "a column may say that it is NULL",
        "core/domain.py",
        "            and not self.null\n        )",
        "        )",
    ),
    Mutant("a fold by keys has one row", _SOURCES, "single=not node.keys", "single=True"),
    Mutant(
        "a join with several rows of a unit adds none",
        _SOURCES,
        "single=left.single and right.single",
        "single=left.single",
    ),
    Mutant(
        "a join with public rows adds none",
        _SOURCES,
        "left.single and adds_no_rows(node.right, node.on, public)",
        "left.single",
    ),
    Mutant(
        "a key that equals itself is compared",
        _SOURCES,
        "isinstance(side, Column) and not columns_of(other) & own",
        "isinstance(side, Column)",
    ),
    Mutant(
        "each unit has one row", _SOURCES, "single=of_rows, of_rows=of_rows", "single=True, of_rows=of_rows"
    ),
    Mutant(
        "a scan says of its table what it likes",
        _SOURCES,
        "if facts != [(scan.schema, scan.private, scan.unit, scan.reference)]:",
        "if not facts:",
    ),
    Mutant(
        "rows that are repeated are not read by content",
        _SOURCES,
        "if self.of_rows and not self.single else None",
        "if self.of_rows and self.single else None",
    ),
    # Limits.
    Mutant(
        "what a unit adds is not clipped",
        _COMPILE,
        "amount_of_unit(m, total, arguments[i], self.form.bounding)",
        "total",
    ),
    Mutant("what a row adds is not clipped", _COMPILE, "return limited(x, low, high)", "return x"),
    Mutant(
        "an upper limit off by one",
        _COMPILE,
        "greatest(total, integer_literal(low)), integer_literal(high))",
        "greatest(total, integer_literal(low)), integer_literal(high + 1))",
    ),
    Mutant(
        "a unit that is scaled down has one row more",
        _COMPILE,
        "integer_literal(bounding.rows * m.parts_per_step)",
        "integer_literal((bounding.rows + 1) * m.parts_per_step)",
    ),
    Mutant(
        "counts of values are not limited",
        _COMPILE,
        "least(exp.Count(this=exp.Star()), integer_literal(self.form.bounding.rows))",
        "least(exp.Count(this=exp.Star()), integer_literal(self.form.bounding.rows + 1))",
    ),
    Mutant(
        "private groups are not limited",
        _COMPILE,
        "(form.groups is None or form.groups > form.bounding.groups)",
        "(form.groups is not None and form.groups > form.bounding.groups)",
    ),
    Mutant(
        "a private group is named by its number among those that occur",
        _COMPILE,
        'return [name("j")] if self.form.known_keys else self._private_keys()',
        'return [name("j")]',
    ),
    Mutant(
        "all groups of a unit have one rank",
        _DUCKDB,
        'return f"(({hashed} & CAST({mask} AS UBIGINT)) | CAST({low} AS UBIGINT))"',
        'return f"CAST({hashed} & CAST({mask - mask} AS UBIGINT) AS UBIGINT)"',
    ),
    Mutant(
        "a value twice among those of a unit",
        _COMPILE,
        'name("x0")).distinct().from_("chosen")',
        'name("x0")).from_("chosen")',
    ),
    Mutant(
        "values above the upper bound become the lower one",
        _COMPILE,
        "        integer_literal(high),\n        integer_literal(low),\n",
        "        integer_literal(low),\n        integer_literal(low),\n",
    ),
    Mutant(
        "a value that may not be missing is missing",
        _COMPILE,
        "missing = exp.Null() if fact.nullable else integer_literal(low)",
        "missing = exp.Null()",
    ),
    Mutant(
        "numbers are not clipped when they are read",
        _SCAN,
        'inside = clipped(number, low, high, may_be_nan=kind != "integer")',
        "inside = number",
    ),
)

MUTANTS = (*FORMS, *WRITER)


def check(package: Path, mutant: Mutant) -> None:
    """Stop unless the text of a mutant is there once."""
    found = (package / mutant.module).read_text().count(mutant.old)
    if found != 1:
        raise SystemExit(
            f"mutant {mutant.name!r}: its text is {found} times in {mutant.module}; bring it up to date"
        )


@contextmanager
def planted(package: Path, mutant: Mutant) -> Iterator[None]:
    """Put a mutant into a copy of the package, and take it out again."""
    path = package / mutant.module
    text = path.read_text()
    path.write_text(text.replace(mutant.old, mutant.new))
    try:
        yield
    finally:
        path.write_text(text)


def run(package: Path, tests: tuple[str, ...] = TESTS) -> str:
    """Return the first test that fails against a copy of the package; "" if none does."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(package.parent),
        "OMP_NUM_THREADS": "1",
        # a file that is written twice within a second has one time
        "PYTHONDONTWRITEBYTECODE": "1",
        "DISCREET_MUTANT": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "not slow", "--no-header", *tests]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else ""


def main(names: list[str]) -> int:
    """Run all mutants, or those with these names; return how many survive that should not. A name with a slash
    is the package that is mutated."""
    source = Path(names.pop(0)) if names and "/" in names[0] else SOURCE
    chosen = [m for m in MUTANTS if not names or m.name in names]
    for mutant in chosen:
        check(source, mutant)
    survivors = []
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder) / "discreet"
        shutil.copytree(source, package, ignore=shutil.ignore_patterns("__pycache__"))
        if failed := run(package):
            raise SystemExit(f"the tests fail without any mutant: {failed}")
        for mutant in chosen:
            start = time.monotonic()
            with planted(package, mutant):
                # descriptions that no SQL reaches are what notices a missing refusal
                failed = run(package, TESTS[::-1] if mutant.module in (_SOURCES, _QUESTION) else TESTS)
            took = time.monotonic() - start
            sys.stdout.write(
                f"{mutant.name:60} {'killed' if failed else 'SURVIVES':9} {took:4.0f} s  {failed[7:110]}\n"
            )
            sys.stdout.flush()
            if not failed:
                survivors.append(mutant)
    explained = [m for m in survivors if m.survives]
    sys.stdout.write(f"{len(chosen) - len(survivors)} of {len(chosen)} killed, {len(explained)} explained\n")
    return len(survivors) - len(explained)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
