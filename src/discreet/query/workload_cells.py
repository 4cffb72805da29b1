"""Compiles several counting queries to cells: sets of rows such that each query counts all rows of a cell or
none.

Each query counts, in each of its groups, the rows that satisfy a condition. A *mark* of a row is a group key,
or an atom of a condition (a part of it without AND, OR and NOT); each has a few possible results, its
*classes*. Cells are the combinations of classes that can occur. Marks of one column are analyzed together,
so that `age < 25` and `age < 60` make three classes, not four. A *measure* is an exact count for every group
(`measures.Measure`), to which noise is added later. Only public facts are used.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core.domain import Kind
from ..core.errors import QueryError
from ..core.exact import public_keys
from ..core.marks import MISSING, Family, Mark, RowCounts
from ..core.nodes import Call, Column, Expr, Literal, OutputReference, computable, make, value, walk
from ..core.sources import Filtered, From, is_within_range, source_key
from .plan import Plan
from .recipes import Recipes

# The largest number of combinations of classes, before any are merged, that are written out: with more, the
# queries are refused as a workload, and must be asked one by one. Not tuned; `workload._NO_CELL` is made
# for at most 2**16.
MAX_RAW = 1 << 16
# The largest number of entries (answers, times combinations) of the matrix of `explicit`. Not tuned.
MAX_ENTRIES = 1 << 24
# The largest number of values of a column for which marks are computed one by one. Not tuned.
MAX_MEMBERS = 4096


@dataclass(frozen=True, slots=True)
class CompiledCounts:
    """Holds the marks and counts of several queries over one relation (without WHERE), and what is counted.

    `recipes`: how each plan's aggregates are computed from measures. `mark_groups`: pairs of some marks
    (positions) and the combinations of their classes that can occur; each mark is in one pair, together with
    the other marks of its column.
    """

    counted: RowCounts
    plans: tuple[Plan, ...]
    recipes: tuple[Recipes, ...]
    mark_groups: tuple[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]], ...]

    @property
    def marks(self) -> tuple[Mark, ...]:
        return self.counted.marks

    @property
    def families(self) -> tuple[Family, ...]:
        return self.counted.families


def compile_counts(plans: list[Plan], max_rows: int) -> CompiledCounts:
    """Return the marks and families of several plans, which must all count rows of one relation; others are
    refused with the reason."""
    recipes = [Recipes(plan) for plan in plans]
    bases = [_base(plan) for plan in plans]
    relations = {source_key(source) for source, _ in bases}
    if len(relations) > 1:
        raise _refuse("they read different tables or joins", "Ask queries with the same FROM together.")
    marks: list[Mark] = []
    families = []
    for plan_index, (plan, recipe, (_, where)) in enumerate(zip(plans, recipes, bases, strict=True)):
        _require_counts(plan, recipe)
        keys = tuple(_index_of(marks, Mark(k.expression, k.values)) for k in plan.keys)
        for measure_index, measure in enumerate(recipe.measures):
            condition = _both(where, None if measure.expression is None else _present(measure.expression))
            for atom in atoms(condition):
                _index_of(marks, Mark(atom, None))
            families.append(Family(plan_index, measure_index, keys, condition))
    return CompiledCounts(
        counted=RowCounts(
            public=plans[0].public,
            source=bases[0][0],
            marks=tuple(marks),
            families=tuple(families),
            max_rows=max_rows,
        ),
        plans=tuple(plans),
        recipes=tuple(recipes),
        mark_groups=tuple(_group_marks(marks)),
    )


def _refuse(why: str, advice: str) -> QueryError:
    return QueryError(f"these queries cannot be answered together: {why}. {advice}")


def _base(plan: Plan) -> tuple[From, Expr | None]:
    """Return the relation that a plan reads without its WHERE, and the condition of WHERE."""
    if isinstance(plan.source, Filtered):
        return plan.source.child, plan.source.condition
    return plan.source, None


def _require_counts(plan: Plan, recipes: Recipes) -> None:
    """Refuse a plan that is not made of counts of rows in public groups."""
    # `choices` are results of a selection mechanism, such as quantiles.
    if recipes.choices or any(m.kind not in ("rows", "present") for m in recipes.measures):
        raise _refuse("only COUNT(*), COUNT(x) and COUNT_IF are counts of rows", "Ask the others one by one.")
    if not plan.known_keys:
        raise _refuse(
            "a group key is not declared as categories, so its groups are not public",
            "Have the steward declare it.",
        )


def _index_of(marks: list[Mark], mark: Mark) -> int:
    """Return the position of a mark in the list, to which it is added if it is new."""
    if mark not in marks:
        marks.append(mark)
    return marks.index(mark)


def _present(expression: Expr) -> Expr:
    """Return the condition under which COUNT(x) counts a row: x is not NULL. COUNT_IF(c), bound as
    COUNT(CASE WHEN c THEN 1 END), counts where c is true."""
    if (
        isinstance(expression, Call)
        and expression.op == "case"
        and len(expression.args) == 3
        and isinstance(expression.args[1], Literal)
        and expression.args[1].content is not None
        and expression.args[2] == Literal(None)
    ):
        return expression.args[0]
    return make("not", make("null?", expression))


def _both(a: Expr | None, b: Expr | None) -> Expr | None:
    """Return the condition `a` AND `b`; None stands for the condition that always holds."""
    if a is None or b is None:
        return b if a is None else a
    return make("and", a, b)


def atoms(condition: Expr | None) -> list[Expr]:
    """Return the atoms of a condition, each once: the conditions that it combines by AND, OR and NOT."""
    if condition is None:
        return []
    if isinstance(condition, Call) and condition.op in ("and", "or", "not"):
        return list(dict.fromkeys(atom for arg in condition.args for atom in atoms(arg)))
    return [condition]


def truth(condition: Expr | None, atom_truths: dict[Expr, Any]) -> Any:
    """Return the truth of a condition from that of its atoms: arrays of 1, 0, and NaN for NULL."""
    if condition is None:
        return np.float64(1.0)
    if condition in atom_truths:
        return atom_truths[condition]
    assert isinstance(condition, Call)
    parts = [truth(arg, atom_truths) for arg in condition.args]
    if condition.op == "not":
        return 1.0 - parts[0]
    result = parts[0]
    # One argument with this value decides the result, also where another is NULL: false for AND, true for OR.
    decisive = 0.0 if condition.op == "and" else 1.0
    for part in parts[1:]:
        undecided = np.where(np.isnan(result) | np.isnan(part), np.nan, 1.0 - decisive)
        result = np.where((result == decisive) | (part == decisive), decisive, undecided)
    return result


def _group_marks(marks: list[Mark]) -> list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]]:
    """Return the `mark_groups` of `CompiledCounts`: marks that read one column together, with the
    combinations of classes that occur for some value of it; any other mark by itself, with all its
    classes."""
    by_column: dict[Expr, list[int]] = {}
    groups: list[tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]] = []
    for i, mark in enumerate(marks):
        columns = {node for node in walk(mark.expression) if isinstance(node, Column)}
        if len(columns) == 1:
            by_column.setdefault(columns.pop(), []).append(i)
        else:
            groups.append(((i,), tuple((c,) for c in range(mark.size))))
    for column, mark_indices in by_column.items():
        assert isinstance(column, Column)
        points = _points(column, [marks[i] for i in mark_indices])
        if points is None:
            groups += [((i,), tuple((c,) for c in range(marks[i].size))) for i in mark_indices]
            continue
        classes = [marks[i].classes(_values(marks[i].expression, column, points)) for i in mark_indices]
        occurring = sorted(set(zip(*(c.tolist() for c in classes), strict=True)))
        groups.append((tuple(mark_indices), tuple(occurring)))
    return groups


def _values(expression: Expr, column: Column, points: list[Any]) -> Any:
    """Return the values of an expression at some values of its only column."""
    is_numeric = column.domain.kind is Kind.NUMBER or column.domain.kind is Kind.BOOLEAN
    content = [np.nan if p is None else float(p) for p in points] if is_numeric else points
    array = np.array(content, dtype=float if is_numeric else object)
    return np.broadcast_to(
        np.asarray(value(_replace_column(expression, column), [array], [])), (len(points),)
    )


def _replace_column(node: Expr, column: Column) -> Expr:
    """Return the expression with a placeholder for a column, to be computed outside the engine."""
    if node == column:
        return OutputReference("key", 0, column.domain)
    if isinstance(node, Call):
        return Call(
            node.op,
            tuple(_replace_column(a, column) for a in node.args),
            node.domain,
            node.weight,
            node.depth,
        )
    return node


def _points(column: Column, marks: list[Mark]) -> list[Any] | None:
    """Return values of a column that meet every combination of classes that can occur; None where such a list
    is not known.

    A combination that this list misses would not be counted, so None is returned in doubt.
    """
    if not all(computable(_replace_column(mark.expression, column)) for mark in marks):
        return None
    domain = column.domain
    # Keys that are computed from days or texts are not analyzed, nor are other marks of their column.
    if domain.kind in (Kind.DATE, Kind.TEXT) and any(
        mark.expression != column and mark.values for mark in marks
    ):
        return None
    column_values = domain.members(MAX_MEMBERS)
    if domain.kind is Kind.TEXT and all(_is_equality(m.expression, column) for m in marks):
        # All texts that are neither declared nor literals of the queries have the same classes: one stands
        # for them.
        literals = [n.content for m in marks for n in walk(m.expression) if isinstance(n, Literal)]
        mentioned = dict.fromkeys(
            [*(column_values or ()), *(text for text in literals if isinstance(text, str))]
        )
        return [*mentioned, "\x00 not named", None]
    # A number of a table's column is clipped to its declared bounds, or NULL if it is not one of the declared
    # categories; a computed one may be outside its range by a rounding error.
    is_clipped = is_within_range(column)
    if column_values is not None and (
        domain.kind is Kind.BOOLEAN or (domain.kind is Kind.NUMBER and is_clipped)
    ):
        return [*column_values, None]
    if domain.kind is Kind.NUMBER and all(_thresholds(m.expression, column) is not None for m in marks):
        cuts = sorted(
            {t for m in marks for t in _thresholds(m.expression, column) or ()} | {domain.low, domain.high}
        )
        low, high = (domain.low, domain.high) if is_clipped else (-math.inf, math.inf)
        cuts = [cut for cut in cuts if low <= cut <= high and math.isfinite(cut)] or [0.0]
        # One number below the first threshold and one above the last, unless the range ends there.
        points = [
            *([math.nextafter(cuts[0], -math.inf)] if math.isinf(low) else []),
            *cuts,
            *([math.nextafter(cuts[-1], math.inf)] if math.isinf(high) else []),
        ]
        middles = [(a + b) / 2 for a, b in itertools.pairwise(points)]
        return [*points, *middles, None]
    return None


def _is_equality(expression: Expr, column: Column) -> bool:
    """Return whether an expression is the column itself, or a comparison with literals by =, <>, IN or IS
    NULL: it has one result for all texts that are none of the literals."""
    if expression == column:
        return True
    if not isinstance(expression, Call) or expression.op not in ("=", "<>", "in", "null?"):
        return False
    return all(a == column or isinstance(a, Literal) for a in expression.args)


def _thresholds(expression: Expr, column: Column) -> set[float] | None:
    """Return the numbers at which the result of a comparison of the column with literals may change; None if
    the expression is no such comparison."""
    if not isinstance(expression, Call) or expression.op not in (
        "=",
        "<>",
        "<",
        "<=",
        ">",
        ">=",
        "in",
        "null?",
    ):
        return None
    constants = [a.content for a in expression.args if isinstance(a, Literal)]
    if any(isinstance(n, bool | str) or n is None for n in constants) or len(constants) + 1 != len(
        expression.args
    ):
        return None
    return {float(n) for n in constants} if column in expression.args else None


@dataclass(frozen=True, slots=True)
class ExplicitCells:
    """Holds the workload over merged cells, written out as a matrix (marginals need none): `matrix` has a row
    for each answer and a column for each merged cell, 1 where the answer counts the cell and else 0.

    `cell`: for each combination of classes its merged cell, or -1 if nothing counts it. Combinations are
    numbered as by `numpy.unravel_index` over `CompiledCounts.mark_groups`.
    """

    matrix: Any
    cell: Any


def explicit(compilation: CompiledCounts) -> ExplicitCells:
    """Return the workload as a matrix over cells.

    Two cells are merged if every answer counts both or neither, and cells that no answer counts are left out.
    Merging loses nothing: each answer is a sum over cells, which contains merged cells together or not at
    all.
    """
    sizes = [len(combinations) for _, combinations in compilation.mark_groups]
    combined = math.prod(sizes)
    answers = sum(len(public_keys(compilation.plans[f.plan].keys)) for f in compilation.families)
    if combined > MAX_RAW or combined * answers > MAX_ENTRIES:
        raise _refuse(
            f"they distinguish {combined:,} classes of rows, and ask for {answers:,} numbers",
            "Ask fewer queries together, or group without conditions.",
        )
    positions = np.unravel_index(np.arange(combined), tuple(sizes)) if sizes else ()
    classes: dict[int, Any] = {}
    for (mark_indices, combinations), positions_in_group in zip(
        compilation.mark_groups, positions, strict=True
    ):
        table = np.array(combinations, np.int64)
        for column, mark in enumerate(mark_indices):
            classes[mark] = table[positions_in_group, column]
    truths = {
        m.expression: _truth_of(classes[i]) for i, m in enumerate(compilation.marks) if m.values is None
    }
    matrix_rows = []
    for family in compilation.families:
        counted = np.broadcast_to(truth(family.condition, truths) == 1.0, (combined,))
        # without the last class of a key, which is for all other values
        key_classes = [range(compilation.marks[k].size - 1) for k in family.keys]
        for combination in itertools.product(*key_classes):
            row = counted.copy()
            for k, key_class in zip(family.keys, combination, strict=True):
                row &= classes[k] == key_class
            matrix_rows.append(row)
    W = np.array(matrix_rows, dtype=np.int8).reshape(len(matrix_rows), combined)
    merged, inverse = np.unique(W, axis=1, return_inverse=True)
    used = merged.any(axis=0)
    if not used.any():
        raise _refuse("no row can be counted by any of them", "Check their conditions.")
    index = np.where(used, np.cumsum(used) - 1, -1)
    return ExplicitCells(merged[:, used].astype(float), index[np.ravel(inverse)])


def _truth_of(classes: Any) -> Any:
    """Return the classes of a condition as 1.0, 0.0, and NaN for NULL."""
    return np.where(classes == MISSING, np.nan, classes.astype(float))
