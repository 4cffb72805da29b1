"""The conformance suite notices wrong texts for PostgreSQL: what its manual suggests fails on a row, or computes
something else."""

from __future__ import annotations

import dataclasses

import pytest
from sqlglot import exp

from discreet.tables import EngineError
from discreet.tables import semantics as d
from discreet.tables.dialect import template
from discreet.tables.engines.postgres_dialect import dialect

from .. import postgres
from ..loops import for_each
from .engines import CASES, ENGINES, TABLES, check
from .test_engines import FOUR, check_content, check_sums, check_uniform, ranked, tuples

pytestmark = postgres.needed
MUTANTS = {
    d.Plus: template("({this} + {expression})"),
    d.Times: template("({this} * {expression})"),
    d.Divide: template("({this} / NULLIF({expression}, 0))"),
    d.Remainder: template("mod({this}::numeric, NULLIF({expression}::numeric, 0))::float8"),
    d.RoundHalfAway: template("round({this})"),
    d.SafeNearestWhole: template("trunc({this})::bigint"),
    d.SafeCast: template("({this})::text::float8"),
    d.AsInteger: template("round({this}::text::numeric)::float8"),
    d.AsFloat: template("{this}::float4::float8"),
    d.Exponential: template("exp({this})"),
    d.SquareRoot: template("sqrt({this})"),
    d.Power: template("power({this}, {expression})"),
    d.Clip: template("GREATEST({low}, LEAST({this}, {high}))"),
    d.IsFinite: template("({this} <> 'Infinity' AND {this} <> '-Infinity')"),
    d.Matches: template("({this} LIKE {pattern})"),
    d.Same: template("({this} = {expression})"),
    d.Concat: template("concat({this}, {expression})"),
    d.StartOf: template("date_trunc('month', {this}::timestamp)::date"),
}


def mutated(node, writer):
    plain = dialect(frozenset({"b"}))
    return dataclasses.replace(plain, writers={**plain.writers, node: writer})


@pytest.fixture(scope="module")
def own():
    return {name: ENGINES[1].open(table) for name, table in TABLES.items()}


@for_each("node", MUTANTS, ids=lambda cls: cls.__name__)
def test_a_wrong_text_is_noticed(node, own):
    wrong, noticed = mutated(node, MUTANTS[node]), 0
    for tried in (c for c in CASES if c.node is node):
        engine = own[tried.table]
        try:
            check(tried, engine, wrong)
        except (AssertionError, EngineError):
            noticed += 1
    assert noticed


def test_wrong_sums_hashes_and_choices_are_noticed():
    case = ENGINES[1]
    with pytest.raises((AssertionError, EngineError)):
        check_sums(case.open, mutated(d.WideSum, template("SUM({this})::bigint")))
    untagged = template("concat({expressions})")
    engine = tuples(case)
    with pytest.raises(AssertionError):
        check_content(engine, mutated(d.Content, untagged))
    # the hash of a record adds up the hashes of its parts: two units choose alike
    added = template("hash_record_extended(ROW({expressions}), {key})")
    with pytest.raises(AssertionError):
        check_uniform(tuples(case, FOUR), mutated(d.KeyedHash, added))
    numbered = template(
        'chosen AS (SELECT "u", "j", "h" FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY "u" ORDER BY "h") '
        "AS k FROM t) AS d WHERE k <= {n})"
    )
    result, wanted = ranked(case, 2, mutated(d.SmallestRanks, numbered))
    assert result != wanted
    assert exp.CTE in dialect().writers
