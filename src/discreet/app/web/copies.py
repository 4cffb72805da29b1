"""Handles requests to a worker for synthetic copies: a released model of the table (`Fitted`), and rows that
are drawn from it.

A copy is charged once, when a job makes it. Listing, downloading and questioning it is free, because
everything after the release is post-processing.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Public
from ...accounting.caps import requested_price_of
from ...curator import values
from ...query.parse import plain_select
from ...session.synthesis import synthesis_mechanism
from ...session.terms import SynthesisTerms
from ...synthetic import SyntheticAnswer, SyntheticCopy
from ...tables.engines.duckdb import connect
from .asking import price_json
from .bookkeeping import Visible, charge_of, find_release, page, value_of, visible_releases
from .charts import harmless
from .sessions import Desk, Options, Request, Result, numbers, session_of

# The memory limit of the engine that answers a question to a copy. Chosen by hand, not tuned.
MEMORY = "1GB"
# How many drawn copies a worker keeps in memory. Chosen by hand, not tuned.
KEPT = 4
# `visible_releases` hides an analyst's releases that were charged after the "horizon" of the request. This
# one, in seconds since 1970, is after all entries (the year 2096).
_NO_HORIZON = 4e9


def _terms(options: Options) -> Options:
    """Return the options of `Session.synthesize` from those of a request, which are changed."""
    simple_options = {name: options.pop(name, None) for name in ("bins", "missing", "options")}
    columns, constraints = options.pop("columns", None), options.pop("constraints", None) or ()
    synthesis_options = {name: value for name, value in simple_options.items() if value}
    return numbers(options) | synthesis_options | {"columns": columns, "constraints": tuple(constraints)}


def preview_copy(desk: Desk, request: Request) -> Result:
    """Return the price of a synthesis; free, and reads no data."""
    session, options = session_of(desk, request)
    for name in ("rows", "seed", "fresh"):
        options.pop(name, None)
    mechanism = synthesis_mechanism(session, SynthesisTerms(**_terms(options)))
    noise = mechanism.noise(mechanism.exact_rho / len(mechanism.domain.columns))
    return {
        "method": mechanism.method,
        "columns": list(mechanism.domain.names),
        # of a count, if each column were counted by itself
        "error": noise.error(0.95),
        **price_json(session, mechanism, mechanism.asked[0]),
    }


def synthesize(desk: Desk, request: Request) -> Result:
    """Make a synthetic copy, for its price."""
    session, options = session_of(desk, request)
    # "rows" and "seed" say what is drawn from a copy (`_copy_of`): they do not change the release.
    options.pop("rows", None), options.pop("seed", None)
    copy = session.synthesize(None, **_terms(options))
    number = _copy_number(desk, request, values.encode(copy.fitted))
    return {"number": number, "method": copy.fitted.method, "columns": list(copy.columns),
            **_description(copy)}  # fmt: skip


def _copy_number(desk: Desk, request: Request, encoded: Any) -> int | None:
    """Return the number, as the caller sees it, of the copy that a job has made or got from the store.

    `encoded` is the copy as the ledger stores it; the latest release with that value is taken.
    """
    # The horizon does not apply here: the front process holds back this whole reply.
    unlimited = request | {"options": {"horizon": _NO_HORIZON}}
    copies = [release for release in visible_releases(desk, unlimited) if release.stored.copied is not None]
    matching = (one.number for one in reversed(copies) if value_of(desk, request, one) == encoded)
    return next(matching, None)


def _description(copy: SyntheticCopy) -> Result:
    """Return the released model of a copy, its privacy event, and the epsilon and delta it was asked with."""
    price = None if copy.asked is None else [_registry.to_json(copy.asked[0]), copy.asked[1]]
    return {"fitted": values.encode(copy.fitted), "event": copy.event.to_json(), "asked": price}


def copies(desk: Desk, request: Request) -> Result:
    """List the synthetic copies that the caller may see."""
    visible = [release for release in visible_releases(desk, request) if release.stored.copied is not None]
    facts = page("copies", visible, request["options"])
    return facts | {"copies": [_copy_line(desk, request, release) for release in facts["copies"]]}


def _copy_line(desk: Desk, request: Request, release: Visible) -> Result:
    """Return a copy as a line of a list."""
    analyst = release.stored.analyst if release.served is None else request["analyst"]
    time = charge_of(desk, request, release).time[:16] + "Z"
    return {"number": release.number, "analyst": analyst, "time": time} | (release.stored.copied or {})


def copy(desk: Desk, request: Request) -> Result:
    """Return the released model of a copy, and its card, which describes it for whoever gets it."""
    synthetic = _copy_of(desk, request)
    return {"number": request["options"]["number"], "card": synthetic.card(), **_description(synthetic)}


def copy_rows(desk: Desk, request: Request) -> Result:
    """Write the rows of a copy to the file that the request names: Parquet with the card inside, or CSV."""
    synthetic, file = _copy_of(desk, request), Path(request["options"]["file"])
    if request["options"]["form"] == "csv":
        csv.write_csv(_harmless_table(synthetic.table), file)
    else:
        synthetic.to_parquet(file)
    return {}


def _harmless_table(table: pa.Table) -> pa.Table:
    """Return a table whose texts and column names no spreadsheet runs as formulas."""
    for i, name in enumerate(table.column_names):
        if pa.types.is_string(table.schema.field(i).type):
            texts = [text and harmless(text) for text in table.column(i).to_pylist()]
            table = table.set_column(i, name, pa.array(texts, pa.string()))
    return table.rename_columns([harmless(name) for name in table.column_names])


def ask_copy(desk: Desk, request: Request) -> Result:
    """Answer SQL from the rows of a copy; free. The answer has no interval around the true one."""
    synthetic = _copy_of(desk, request)
    text = plain_select(request["options"]["sql"], synthetic.public.table)
    engine = connect(
        synthetic.table, Public(table=synthetic.public.table), memory=MEMORY, seconds=desk.seconds
    )
    table = engine.answer(text)
    if table.num_rows > desk.rows:
        raise InvalidInput(
            f"the answer has {table.num_rows:,} rows, and this server sends at most {desk.rows:,}. Ask for "
            f"fewer, or download the copy."
        )
    answer = SyntheticAnswer(table)
    rows = [[_json_value(value) for value in row.values()] for row in table.to_pylist()]
    return {"columns": table.column_names, "rows": rows, "note": answer.note, "table": values.encode(table)}


def _json_value(value: Any) -> Any:
    """Return a value of a table as one that JSON has; other numbers, dates and infinities as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    return float(value) if isinstance(value, float) and math.isfinite(value) else str(value)


def _copy_of(desk: Desk, request: Request) -> SyntheticCopy:
    """Return the copy with the number in the request, if the caller may see it, with its rows drawn.

    The option "rows" is how many rows are drawn; None draws as many as its released noisy count says,
    but at most `desk.copy_rows`. The option "seed" is their random seed; None takes the copy's number, so
    that the same request draws the same rows.
    """
    options = request["options"]
    number, rows, seed = options["number"], options.get("rows"), options.get("seed")
    release = find_release(desk, request, number, "synthetic copy")
    if rows is not None and rows > desk.copy_rows:
        raise InvalidInput(f"a copy has at most {desk.copy_rows:,} rows here. Nothing was drawn.")
    seed = number if seed is None else seed
    # The ledger's own number of the entry: `number` is another copy for another analyst (`sessions`).
    key = (request["dataset"]["ledger"], release.release, rows, seed)
    cached: SyntheticCopy | None = desk.copies.pop(key, None)
    if cached is None:
        charge = charge_of(desk, request, release)
        fitted = values.decode(value_of(desk, request, release))
        event = _registry.from_json(charge.body["event"])
        described = charge.body["mechanism"]
        price = None if described is None else requested_price_of(_registry.from_json(described))
        cached = SyntheticCopy.of(fitted, event, rows=rows, seed=seed, asked=price)
        if cached.rows > desk.copy_rows:
            cached = SyntheticCopy.of(fitted, event, rows=desk.copy_rows, seed=cached.seed, asked=price)
    desk.copies[key] = cached
    while len(desk.copies) > KEPT:
        desk.copies.pop(next(iter(desk.copies)))
    return cached
