"""What one run shows beside its noisy value, and tables to compare it on.

Two tables with the same public facts are joined by a chain of neighbors. So what must not differ between neighbors
(refused or not, failed or not, the words of an error, the price, what is entered in the ledger) must be the same
on any two such tables: an empty one and a hostile one differ in more ways than two neighbors do, and find more.
"""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from discreet._public import ADD_REMOVE, Boolean, Bounds, Categories, Dates, Public
from discreet.curator import door
from discreet.curator.ledger import Ledger
from discreet.sampling import SeededEntropy

# Fields of entries that hold noisy values (`fitted`: a copy that was released before) or random names.
RANDOM = {"value", "errors", "fitted", "file", "digest", "asker"}
HOSTILE_TEXTS = ("", " ", "zz", "A", "a ", "ä", "\x00", "x" * 5000, "nan", "1e400", "2020-01-01")


class Replayed(SeededEntropy):
    """Gives the same draws on both tables, and passes for private, as the curator requires it."""

    @property
    def private(self) -> bool:
        return True

    def aside(self, purpose: str) -> Replayed:
        return Replayed(b"aside:" + purpose.encode() + b":" + self._origin)


@contextmanager
def replayed(seed: int) -> Iterator[None]:
    """Let every curator that is opened in the block draw the same bits each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(door, "Entropy", lambda: Replayed(seed))
        yield


def outcome(ledger: Ledger, action: Callable[[], Any]) -> tuple[Any, ...]:
    """Everything of a run but its noisy values: the error, warnings, and the entries that it left."""
    folder = str(ledger.path.parent)
    before = ledger.anchor.seq
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            result: Any = type(action()).__name__
        except Exception as error:
            result = f"{type(error).__name__}: {error}".replace(folder, "")
    entries = [(entry.kind, _exact(entry.body)) for entry in ledger.entries(after=before)]
    return result, sorted({f"{w.category.__name__}: {w.message}" for w in warned}), entries


def _exact(part: Any) -> Any:
    """A part of an entry without what is noisy or random."""
    if isinstance(part, dict):
        # The comparison of a copy that was released before: its rows, their seed, and the grid of its noise (but not
        # its epsilon, which stays) follow that copy.
        compared = "fitted" in (part.get("mechanism") or ())
        noisy = {"rows", "seed"} if "fitted" in part else {"event"} if compared else set()
        return {name: _exact(value) for name, value in part.items() if name not in RANDOM | noisy}
    return [_exact(value) for value in part] if isinstance(part, list) else part


# -- tables


def table_like(table: pa.Table, public: Public, source: random.Random) -> pa.Table:
    """A random table with the columns, the types and the ids of a case's table, which has the same public facts.
    Where neighbors have the same size, it has as many units."""
    unit, facts = public.unit.column, dict(public.schema)
    profile = source.choice(("plain", "mixed", "hostile", "equal", "empty", "crowd"))
    if public.neighbors is ADD_REMOVE:
        rows = {"empty": 0, "crowd": 80}.get(profile, source.randrange(1, 12))
        ids = None if unit is None else [*_ids(table, unit), *([None] if profile != "plain" else [])]
        units = None if ids is None else source.choices(ids[: 1 if profile == "crowd" else None], k=rows)
    else:
        ids = None if unit is None else _ids(table, unit)
        extra = {"crowd": 80, "empty": 0}.get(profile, source.randrange(0, 12))
        units = None if ids is None else [*ids, *source.choices(ids, k=extra)]
        rows = table.num_rows if units is None else len(units)
    columns = {}
    for field in table.schema:
        if field.name == unit:
            columns[field.name] = pa.array(units, field.type)
            continue
        values = _values(facts.get(field.name), field.type, source, profile)
        drawn = [next(values)] * rows if profile == "equal" else [next(values) for _ in range(rows)]
        columns[field.name] = pa.array(drawn, field.type)
    return pa.table(columns)


def neighbor_of(table: pa.Table, template: pa.Table, public: Public, source: random.Random) -> pa.Table:
    """A table that differs in the rows of one unit: taken out, put in, or replaced, as the relation has it."""
    other = table_like(template, public, source)
    unit = public.unit.column
    names = table.column(unit).to_pylist() if unit is not None else list(range(table.num_rows))
    if not names:
        return other.slice(0, 1) if public.neighbors is ADD_REMOVE else table
    chosen = source.choice(names)
    rest = table.filter(pa.array([name != chosen for name in names], pa.bool_()))
    if public.neighbors is ADD_REMOVE and source.random() < 0.5:
        return rest
    if not other.num_rows:
        return rest if public.neighbors is ADD_REMOVE else table
    rows = other.slice(0, 1 if unit is None else None)
    if unit is not None:
        renamed = pa.array([chosen] * rows.num_rows, table.schema.field(unit).type)
        rows = rows.set_column(rows.schema.get_field_index(unit), unit, renamed)
    return pa.concat_tables([rest, rows])


def _ids(table: pa.Table, unit: str) -> list[Any]:
    named = {str(u): u for u in table.column(unit).to_pylist() if u is not None and u == u}
    return [named[text] for text in sorted(named)]


def _values(fact: Any, kind: pa.DataType, source: random.Random, profile: str) -> Iterator[Any]:
    """Endless values of a column: declared ones, and in tables that are not plain, others as well."""
    plain, odd = _pools(fact, kind)
    if not getattr(fact, "nullable", True):
        # That nothing is missing is a declaration of the steward, and taken for true; so are texts that say numbers.
        odd = [v for v in odd if v is not None and v == v and not isinstance(v, str)]
    share = {"plain": 0.0, "hostile": 0.8}.get(profile, 0.3) if odd else 0.0
    while True:
        yield source.choice(odd if source.random() < share else plain)


def _pools(fact: Any, kind: pa.DataType) -> tuple[Sequence[Any], list[Any]]:
    """Ordinary and odd values of a column."""
    if pa.types.is_boolean(kind):
        return (True, False), [None]
    if pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return _numbers(fact, kind)
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        make = date if pa.types.is_date(kind) else datetime
        day = make.fromisoformat(fact.lower) if isinstance(fact, Dates) else make(2020, 1, 1)
        return (day,), [None, make(1900, 1, 1), make(2200, 12, 31)]
    if pa.types.is_decimal(kind):
        largest = Decimal("9" * (kind.precision - kind.scale))
        numbers, _ = _numbers(fact, pa.float64())
        return [Decimal(str(round(v, kind.scale))) for v in numbers], [None, largest, largest.copy_negate()]
    assert pa.types.is_string(kind) or pa.types.is_large_string(kind), kind
    if isinstance(fact, Dates):
        return (fact.lower, fact.upper), [None, *HOSTILE_TEXTS]
    declared = [v for v in fact.values if isinstance(v, str)] if isinstance(fact, Categories) else ["a", "b"]
    if isinstance(fact, Boolean | Bounds):
        declared = ["1", "0"]
    return declared, [None, *HOSTILE_TEXTS, *declared]


def _numbers(fact: Any, kind: pa.DataType) -> tuple[Sequence[Any], list[Any]]:
    whole = pa.types.is_integer(kind)
    lower, upper = (0, 3)
    if isinstance(fact, Bounds):
        lower, upper = fact.lower, fact.upper
    plain: list[Any] = [lower, upper, lower + (upper - lower) / 2, lower + (upper - lower) / 3]
    if isinstance(fact, Categories):
        plain = [v for v in fact.values if not isinstance(v, str)] or [0]
    if whole:
        limit = 2 ** (kind.bit_width - 1) - 1
        low = 0 if pa.types.is_unsigned_integer(kind) else -limit - 1
        return [min(max(math.floor(v), low), limit) for v in plain], [None, low, limit, limit // 2, 0]
    odd = [None, math.nan, math.inf, -math.inf, -0.0, 5e-324, float(upper) * 1.5 + 1]
    largest = {16: 6e4, 32: 3e38}.get(kind.bit_width, 1e308)
    return [float(v) for v in plain], [*odd, largest, -largest]
