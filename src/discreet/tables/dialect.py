"""The `Dialect` of an engine writes queries as its SQL, from a closed set of nodes and nothing else.

A query is a tree of plain SQL whose meaning is the same on every engine (`PLAIN`: SELECT, joins, comparisons,
CASE, COUNT, arithmetic on whole numbers) and of the nodes in `tables.semantics`, one for everything on which
engines differ.

Guarantee: the text that `Dialect.write` returns was put together from `PLAIN` and from writers of this
           dialect, and from nothing else.
Proof:     every node passes `_Closed.sql`, which refuses what is in neither (`Unwritten`); what the SQL
           library calls unsupported is refused as well.
Assumes:   the SQL library writes the nodes of `PLAIN` as standard SQL. tests/contracts/test_engines.py holds
           each engine to the docstrings of the nodes in `tables.semantics`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from string import Formatter
from typing import Any

from sqlglot import ErrorLevel, exp
from sqlglot.errors import SqlglotError
from sqlglot.generator import Generator

from .._errors import Unsupported
from .._text import is_text
from .columns import ID_KINDS
from .semantics import NODES, SelectNode, SmallestRanks, aliased, name, select


class Unwritten(Unsupported):
    """Says that a query holds something that the dialect of its engine does not write."""


_TWO = frozenset({"this", "expression"})
_ONE = frozenset({"this"})
# Nodes of standard SQL with the same meaning on every engine, and the arguments that they may have.
# `materialized` asks for a relation to be computed once; no answer depends on it, and an engine without it
# may leave it out. `with` and `from` are called `with_` and `from_` in later versions of the SQL library.
PLAIN: Mapping[type[exp.Expr], frozenset[str]] = {
    exp.Select: frozenset(
        {"with_", "with", "expressions", "from_", "from", "joins", "where", "group", "distinct"}
    ),
    exp.With: frozenset({"expressions"}),
    exp.CTE: frozenset({"this", "alias", "materialized"}),
    exp.From: _ONE,
    exp.Join: frozenset({"this", "on", "side", "kind"}),
    exp.Where: _ONE,
    exp.Group: frozenset({"expressions"}),
    exp.Distinct: frozenset({"expressions"}),
    exp.Subquery: frozenset({"this", "alias"}),
    # of all rows, as `distinct` is not among them
    exp.Union: _TWO,
    exp.Table: frozenset({"this", "alias"}),
    exp.TableAlias: frozenset({"this", "columns"}),
    exp.Values: frozenset({"expressions", "alias"}),
    exp.Tuple: frozenset({"expressions"}),
    exp.Identifier: frozenset({"this", "quoted"}),
    exp.Column: frozenset({"this", "table"}),
    exp.Alias: frozenset({"this", "alias"}),
    exp.Star: frozenset(),
    exp.Literal: frozenset({"this", "is_string"}),
    exp.Null: frozenset(),
    exp.Boolean: _ONE,
    exp.Paren: _ONE,
    exp.Neg: _ONE,
    exp.Not: _ONE,
    exp.And: _TWO,
    exp.Or: _TWO,
    exp.EQ: _TWO,
    exp.NEQ: _TWO,
    exp.LT: _TWO,
    exp.LTE: _TWO,
    exp.GT: _TWO,
    exp.GTE: _TWO,
    exp.Is: _TWO,
    exp.In: frozenset({"this", "expressions"}),
    exp.Between: frozenset({"this", "low", "high"}),
    exp.Case: frozenset({"this", "ifs", "default"}),
    exp.If: frozenset({"this", "true"}),
    # of whole numbers that are known not to overflow
    exp.Add: _TWO,
    exp.Sub: _TWO,
    exp.Mul: _TWO,
    exp.Coalesce: frozenset({"this", "expressions"}),
    exp.Nullif: _TWO,
    exp.Count: _ONE,
    exp.Min: _ONE,
    exp.Max: _ONE,
    exp.RowNumber: frozenset(),
    exp.Window: frozenset({"this", "partition_by", "order", "over"}),
    exp.Order: frozenset({"expressions"}),
    exp.Ordered: _ONE,
}
PLAIN = {**PLAIN, SelectNode: PLAIN[exp.Select]}
Writer = Callable[[Generator, Any], str]
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")


def template(text: str) -> Writer:
    """Return a writer from a text with the node's arguments in braces.

    >>> template("SQRT({this})")(Generator(), exp.Paren(this=exp.column("x")))
    'SQRT(x)'
    """
    names = {name for _, name, _, _ in Formatter().parse(text) if name}

    def write(generator: Generator, node: exp.Expression) -> str:
        return text.format(**{name: argument(generator, node, name) for name in names})

    return write


def argument(generator: Generator, node: exp.Expression, name: str) -> str:
    """Return the text of one argument of a node; for a list, its items separated by commas."""
    value = node.args.get(name)
    if isinstance(value, list):
        return ", ".join(generator.sql(item) for item in value)
    return generator.sql(value) if isinstance(value, exp.Expr | None) else word(value)


def word(value: object) -> str:
    """Return a number, a name or a word that is written into SQL unquoted.

    Any other character, which could end a name or a literal, is refused.
    """
    text = str(value)
    if not isinstance(value, int | str) or _WORD.fullmatch(text) is None:
        raise ValueError("not a word")
    return text


def canonical(**forms: str) -> Writer:
    """Return the writer of `semantics.Canonical`, from the form of a column {x} for each of `ID_KINDS`. Kinds
    without a form are written as they are; so are texts, which every engine reads without their collation.

    >>> canonical(number="({x} + 0.0)")(Generator(), exp.Paren(this=exp.column("y"), kind="number"))
    '(y + 0.0)'
    """
    all_forms = {**dict.fromkeys(ID_KINDS, "{x}"), **forms}
    return lambda generator, node: all_forms[node.args["kind"]].format(x=argument(generator, node, "this"))


def content(text: str, length: str, together: str) -> Writer:
    """Return the writer of `semantics.Content` as a text: the texts of all values, each after its length and
    a colon, or the letter n for NULL. `text` is the SQL of a value {x} as a text, `length` that of the length
    of a text {x}, as a text, and `together` that of all {parts} as one text."""

    def write(generator: Generator, node: exp.Expression) -> str:
        values = [text.format(x=generator.sql(value)) for value in node.args["expressions"]]
        parts = [f"COALESCE({length.format(x=x)} || ':' || {x}, 'n')" for x in values]
        return together.format(parts=", ".join(parts))

    return write


def chosen_totals(generator: Generator, node: exp.Expression) -> str:
    """Write `ChosenTotals` as the totals by unit "u" and group "j", followed by the `SmallestRanks` of these
    by their rank "h"."""
    amounts, columns = node.args["amounts"], ("u", "j", *map(word, node.args["columns"]))
    totals = select(name("u"), name("j"), *amounts, aliased(node.args["rank"], "h"))
    totals = totals.from_(word(node.args["source"])).group_by(*map(name, columns))
    alias = exp.TableAlias(this=exp.to_identifier("pairs"))
    pairs = exp.CTE(this=totals, alias=alias, materialized=True)
    # The totals have each rank of a unit once, so that they are also the `pairs` of `SmallestRanks`.
    ranks = SmallestRanks(
        alias=node.args["alias"],
        source="pairs",
        pairs="pairs",
        n=node.args["n"],
        columns=[amount.alias for amount in amounts],
    )
    return f"{generator.sql(pairs)}, {generator.sql(ranks)}"


# The SQL library would look for thirty more clauses of each SELECT, table and sub-query: that took two thirds
# of the time of writing. What they have beyond `PLAIN` is refused before, by `_Closed.sql`.


def _select(generator: Generator, node: exp.Expr) -> str:
    args = node.args
    clauses = [args.get("from_") or args.get("from"), *(args.get("joins") or ()), args.get("where")]
    rest = "".join(generator.sql(clause) for clause in (*clauses, args.get("group")))
    columns = ", ".join(generator.sql(column) for column in args["expressions"])
    definitions = generator.sql(args.get("with_") or args.get("with"))
    words = (definitions, "SELECT", generator.sql(args.get("distinct")), columns)
    return " ".join(word for word in words if word) + rest


def _with(generator: Generator, node: exp.Expr) -> str:
    return f"WITH {', '.join(generator.sql(part) for part in node.args['expressions'])}"


def _from(generator: Generator, node: exp.Expr) -> str:
    return f" FROM {generator.sql(node.this)}"


def _where(generator: Generator, node: exp.Expr) -> str:
    return f" WHERE {generator.sql(node.this)}"


def _table(generator: Generator, node: exp.Expr) -> str:
    return f"{generator.sql(node.this)}{_alias(generator, node)}"


def _subquery(generator: Generator, node: exp.Expr) -> str:
    return f"({generator.sql(node.this)}){_alias(generator, node)}"


def _union(generator: Generator, node: exp.Expr) -> str:
    return f"{generator.sql(node.this)} UNION ALL {generator.sql(node.args['expression'])}"


def _column(generator: Generator, node: exp.Expr) -> str:
    table = node.args.get("table")
    return generator.sql(node.this) if table is None else f"{generator.sql(table)}.{generator.sql(node.this)}"


def _aliased(generator: Generator, node: exp.Expr) -> str:
    return f"{generator.sql(node.this)} AS {generator.sql(node.args['alias'])}"


def _alias(generator: Generator, node: exp.Expr) -> str:
    alias = generator.sql(node.args.get("alias"))
    return f" AS {alias}" if alias else ""


class _Closed:
    """Makes a generator of SQL write the closed set, and refuse every other node or argument."""

    writers: Mapping[type[exp.Expression], Writer] = {}
    dialect_name = ""

    def sql(self, expression: Any, key: str | None = None, comment: bool = True) -> str:
        # With a `key`, the library calls `sql` again for that argument of the node.
        if key is None and isinstance(expression, exp.Expr):
            cls = type(expression)
            writer = self.writers.get(cls)  # type: ignore[arg-type]
            if writer is not None:
                if not _is_complete(expression):
                    raise _unwritten_error(
                        self.dialect_name, f"{cls.__name__} with parts that it lacks or does not know"
                    )
                return writer(self, expression)  # type: ignore[arg-type]
            allowed = PLAIN.get(cls)
            if allowed is None:
                raise _unwritten_error(self.dialect_name, cls.__name__)
            for name, value in expression.args.items():
                if value and name not in allowed:
                    raise _unwritten_error(self.dialect_name, f"{cls.__name__} with {name}")
        text: str = super().sql(expression, key, comment)  # type: ignore[misc]
        return text


def _is_complete(node: exp.Expr) -> bool:
    """Return whether a node of `tables.semantics` has all required arguments (`columns` may be empty) and no
    undeclared one."""
    declared, args = node.arg_types, node.args
    lacking = (
        name
        for name, required in declared.items()
        if required and args.get(name) in (None, []) and name != "columns"
    )
    return args.keys() <= declared.keys() and next(lacking, None) is None


def _unwritten_error(dialect: str, what: str) -> Unwritten:
    """Return the error for a node (`what`, in words) that a dialect has no writer for."""
    return Unwritten(f"{what} cannot be written for {dialect}: it is not in the closed set.")


@dataclass(frozen=True)
class Dialect:
    """Says how one engine writes the closed set: `base` generates its standard SQL, `writers` has an entry
    for every node.

    A node without an entry is an error when it is written, never passed through; `missing` says which these
    are.
    """

    name: str
    base: type[Generator]
    writers: Mapping[type[exp.Expression], Writer] = field(repr=False, compare=False)

    @property
    def missing(self) -> frozenset[type[exp.Expression]]:
        return NODES - self.writers.keys()

    @cached_property
    def _generator(self) -> type[Generator]:
        base = self.base
        # Spark's own method adds a hint to a SELECT.
        own = base.select_sql is not Generator.select_sql
        members = {
            "writers": dict(self.writers),
            "dialect_name": self.name,
            "TRANSFORMS": {
                **base.TRANSFORMS,
                SelectNode: base.TRANSFORMS.get(exp.Select, base.select_sql) if own else _select,
                exp.With: _with,
                exp.From: _from,
                exp.Where: _where,
                exp.Column: _column,
                exp.Alias: _aliased,
                exp.Table: _table,
                exp.Subquery: _subquery,
                exp.Union: _union,
            },
        }
        return type("Closed", (_Closed, base), members)

    def write(self, tree: exp.Expr) -> str:
        """Return the tree as this engine's SQL. The tree may be changed by it: callers must not use it
        again."""
        generator = self._generator(dialect=self.name, unsupported_level=ErrorLevel.RAISE, comments=False)
        try:
            written = generator.generate(tree, copy=False)
        except (SqlglotError, ValueError, LookupError):
            raise _unwritten_error(self.name, type(tree).__name__) from None
        if not is_text(written):
            raise Unsupported(
                "a declared category, or a text in the query, holds a character that is no text (NUL, or "
                "half of a pair of surrogates). Declare the others."
            )
        return written
