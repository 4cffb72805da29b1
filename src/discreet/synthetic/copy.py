"""Holds a synthetic copy: rows drawn from a released model, which may be kept, shared and queried without
limit.

Everything here is post-processing of values that were released and paid for. A copy is always saved with its
card, a JSON description of how it was made. Answers from it have no confidence interval.

Lists the methods of synthesis by their names, such as "aim".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Categories, Public
from .._require import Real
from ..accounting import Event
from ..tables.cells import Coding
from ..tables.engines.duckdb import ask_open_rows
from .aim import AIM
from .constraints import repair_rows
from .estimation import estimate_total
from .generation import fit_model, noisy_tables, sample_rows
from .graphical_model import GraphicalModel
from .marginal_trees import MST, MWEM, Independent
from .quality import QualityReport, bound_errors
from .synthesizer import Fitted, Synthesizer
from .table_domain import (
    MAX_DEFAULT_ROWS,
    Domain,
    Rows,
    Seed,
    bin_ends,
    check_instance,
    check_mapping,
    check_rows_and_seed,
    check_writable,
    require_column,
    to_number,
)

NOTE = (
    "From a synthetic copy: an answer about made-up rows. It carries no ± of the truth, and no further "
    "privacy is spent."
)


class _Rows:
    """Made-up rows, in `table`."""

    table: Any

    def to_arrow(self) -> pa.Table:
        return self.table

    def to_pandas(self) -> Any:
        return self.table.to_pandas()


@dataclass(frozen=True, eq=False)
class SyntheticCopy(_Rows):
    """Holds `rows` synthetic rows; the same `seed` gives the same rows.

    `fitted` is the release that they are drawn from, `event` its price. `asked` is the epsilon and delta that
    the caller asked for, None where the price was given as rho.
    """

    fitted: Fitted
    event: Event
    rows: int
    seed: int
    asked: tuple[Real, float] | None = None

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        event: Event,
        *,
        rows: int | None = None,
        seed: int | None = None,
        asked: tuple[Real, float] | None = None,
    ) -> SyntheticCopy:
        """Return the copy of a release: by default with the noisy number of rows, and with a random seed,
        which the card states."""
        check_instance(Fitted, fitted=fitted)
        check_instance(Event, event=event)
        check_rows_and_seed(rows, seed)
        if asked is not None:
            epsilon, delta = check_privacy_parameters(asked)
            asked = (epsilon, float(delta))
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1)[0])
        copy = cls(fitted, event, 0, int(seed), asked)
        noisy_rows = min(MAX_DEFAULT_ROWS, max(1, round(copy.total)))
        return replace(copy, rows=noisy_rows if rows is None else int(rows))

    @property
    def public(self) -> Public:
        return self.fitted.public

    @property
    def columns(self) -> tuple[str, ...]:
        return self.fitted.domain.names

    @property
    def total(self) -> float:
        """The noisy number of rows of the table; 1 where nothing was released."""
        return estimate_total(noisy_tables(self.fitted))

    @cached_property
    def model(self) -> GraphicalModel:
        """The graphical model that is fitted to the released tables."""
        return fit_model(self.fitted)

    @cached_property
    def _drawn(self) -> tuple[pa.Table, list[Any]]:
        """The rows as a table of values, and as one array of codes for each column."""
        # The two generators must stay as they are: `quality.CopyDistance` draws the same codes again, and
        # the seed on a copy's card must give the same rows again.
        codes = sample_rows(self.fitted, self.model, self.rows, np.random.default_rng(self.seed))
        table, origins = self._decode(codes, np.random.default_rng([self.seed, 1]))
        return table, [column[origins] for column in codes]

    @property
    def codes(self) -> list[Any]:
        """The rows as one array of codes for each column."""
        return self._drawn[1]

    @property
    def table(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._drawn[0]

    @_require.check_options
    def sample(
        self, rows: Rows, *, seed: Seed | None = None, given: Mapping[str, Any] | None = None
    ) -> pa.Table:
        """Draw any number of rows from the model; with `given`, only rows that have these values in the named
        columns, or for numbers and dates a value of the same bin.

        This is free: the model is already released.
        """
        random = np.random.default_rng(None if seed is None else int(seed))
        conditions = self._encode_conditions(check_mapping(given=given))
        codes = sample_rows(self.fitted, self.model, int(rows), random, conditions)
        return self._decode(codes, random)[0]

    def _encode_conditions(self, values: Mapping[str, Any]) -> dict[int, int]:
        """Return the code of each column that has a condition."""
        codings = {c.column: c for c in self.fitted.domain.codings(self.public)}
        conditions = {}
        for name, value in values.items():
            require_column(name, codings, f"the copy, which has {', '.join(codings)}")
            conditions[self.columns.index(name)] = encode_value(codings[name], value)
        return conditions

    def _decode(self, codes: list[Any], random: np.random.Generator) -> tuple[pa.Table, Any]:
        """Return the table that codes stand for, and the position in `codes` that each of its rows comes from
        (`repair_rows`)."""
        table = self.fitted.domain.decode(self.public, codes, random)
        return repair_rows(table, self.fitted, codes, random)

    @_require.check_options
    def to_parquet(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the rows as Parquet, with the card in the file's metadata; an existing file is replaced only
        with `overwrite`."""
        target = check_writable(path, overwrite=overwrite)
        card = {b"discreet": json.dumps(self.card()).encode()}
        table = self.table.replace_schema_metadata({**(self.table.schema.metadata or {}), **card})
        parquet.write_table(table, target)

    @_require.check_options
    def to_csv(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the rows as CSV, and the card beside them (`name.card.json`); existing files are replaced
        only with `overwrite`."""
        target = check_writable(path, overwrite=overwrite)
        card_path = check_writable(target.with_suffix(".card.json"), overwrite=overwrite)
        csv.write_csv(self.table, target)
        card_path.write_text(json.dumps(self.card(), indent=2) + "\n")

    def sql(self, text: str) -> SyntheticAnswer:
        """Ask the copy in full SQL, free; the table has the name of the private table it was made from."""
        return SyntheticAnswer(ask_open_rows({self.public.table: self.table}, text))

    def card(self) -> dict[str, Any]:
        """Return a description of this copy for whoever gets it: public facts and released values only."""
        asked = None if self.asked is None else {"epsilon": float(self.asked[0]), "delta": self.asked[1]}
        return {
            "what": "synthetic copy: made-up rows, drawn from noisy tables of counts",
            "table": self.public.table,
            "version": self.public.version,
            "method": self.fitted.method,
            "privacy": {
                "asked": asked,
                "event": self.event.to_json(),
                "neighbors": str(self.public.neighbors),
                "unit": self.public.unit.column or "row",
            },
            "rows": self.rows,
            "seed": self.seed,
            "columns": [_describe_column(c) for c in self.fitted.domain.codings(self.public)],
            "measured": [[self.columns[a] for a in t.clique] for t in self.fitted.tables],
            "constraints": [str(c) for c in self.fitted.constraints],
            "answers": NOTE,
        }

    def report(self, confidence: float = 0.95) -> QualityReport:
        """Return bounds on the error of each measured table, free (`quality.bound_errors`).

        A comparison with the data has a price (`Session.compare_copy`), or is not private
        (`comparison.compare`).
        """
        return bound_errors(self.fitted, self.model, self.codes, confidence)

    def __repr__(self) -> str:
        summary = f"{self.rows:,} rows by {self.fitted.method}, {len(self.columns)} columns"
        return f"<SyntheticCopy of {self.public.table!r}: {summary}>"


@dataclass(frozen=True, eq=False)
class SyntheticAnswer(_Rows):
    """Holds the answer to a query of a copy; `note` says that it is no answer about the true table."""

    table: pa.Table
    note: str = NOTE

    def interval(self, confidence: float = 0.95) -> Any:
        """Refuse: for this query it is not known how far the copy is from the true table."""
        raise InvalidInput(
            f"{self.note} Ask the table itself for an answer with an interval: people.sql(..., epsilon=0.1)."
        )

    def __str__(self) -> str:
        columns = [
            [name, *map(_shown, self.table.column(i).slice(0, 50).to_pylist())]
            for i, name in enumerate(self.table.column_names)
        ]
        widths = [max(map(len, column)) for column in columns]
        lines = [
            "  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
            for row in zip(*columns, strict=True)
        ]
        return "\n".join([*lines, f"({self.note})"])


def _shown(value: Any) -> str:
    """Return a value as a printed answer shows it: "-" where it is missing."""
    return "-" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True, eq=False)
class OpenedCopy(_Rows):
    """Holds a copy that was read from its file: rows for full SQL, free, and their card."""

    table: pa.Table
    card: Mapping[str, Any]

    def sql(self, text: str) -> SyntheticAnswer:
        """Ask the rows in full SQL; the table has the name of the one it was made from."""
        return SyntheticAnswer(ask_open_rows({str(self.card["table"]): self.table}, text))


def open_copy(path: str | Path) -> OpenedCopy:
    """Open a copy that `to_parquet` or `to_csv` wrote.

    A file without the card of a copy is refused, because it may hold private data.
    """
    there = isinstance(path, str | Path) and "\0" not in str(path) and Path(path).is_file()
    _require.must(there, "path", path, "the file of a copy")
    source, card = Path(path), None
    with _require.refusing(f"{str(path)!r} cannot be read as a copy."):
        if source.suffix == ".csv":
            card_path = source.with_suffix(".card.json")
            card = json.loads(card_path.read_text()) if card_path.is_file() else None
            table = csv.read_csv(source)
        else:
            table = parquet.read_table(source)
            raw = (table.schema.metadata or {}).get(b"discreet")
            card = None if raw is None else json.loads(raw)
    if not isinstance(card, dict) or "synthetic copy" not in str(card.get("what")) or "table" not in card:
        raise InvalidInput(
            f"{str(path)!r} has no card of a synthetic copy: it may be data. Open data with dp.open(...)."
        )
    return OpenedCopy(table.replace_schema_metadata(None), card)


def is_copy(path: str | Path) -> bool:
    """Return whether a Parquet file carries the card of a synthetic copy."""
    if not Path(path).is_file():
        return False
    try:
        raw = (parquet.read_schema(path).metadata or {}).get(b"discreet")
        card = None if raw is None else json.loads(raw)
    except (OSError, pa.ArrowException, ValueError):
        return False
    return isinstance(card, dict) and "synthetic copy" in str(card.get("what"))


def check_privacy_parameters(asked: Any) -> tuple[Real, Real]:
    """Return the epsilon and delta that were asked for, checked."""
    pair = _require.listed(asked=asked)
    _require.must(len(pair) == 2, "asked", asked, "a pair of epsilon and delta")
    _require.positive(epsilon=pair[0])
    _require.probability(delta=pair[1])
    return pair[0], pair[1]


def encode_value(coding: Coding, value: Any) -> int:
    """Return the code of a value in a column, for conditions of `SyntheticCopy.sample`; a value that the
    column cannot have is refused."""
    fact = coding.fact
    if value is None:
        _require.that(coding.missing, f"column {coding.column!r} is never missing in this copy.")
        return coding.size - 1
    if isinstance(fact, Categories):
        if not isinstance(value, str | Integral) or isinstance(value, bool) or value not in fact.values:
            hint = _require.did_you_mean(str(value), map(str, fact.values))
            raise InvalidInput(f"{value!r} is no declared value of column {coding.column!r}.{hint}")
        return fact.values.index(value)
    if isinstance(fact, Boolean):
        _require.flag(**{coding.column: value})
        return int(value)
    number = to_number(fact, value, coding.column)
    least, largest = bin_ends(coding)
    within = least[0] <= number <= largest[-1]
    _require.that(within, f"{value!r} is outside the declared bounds of column {coding.column!r}.")
    code = int(np.searchsorted(np.array(coding.edges), number, side="right")) - 1
    # Values outside of all edges belong to the first or the last bin, as in the engine.
    return min(max(code, 0), len(coding.edges) - 2)


def _describe_column(coding: Coding) -> dict[str, Any]:
    """Describe how a column was coded, as JSON."""
    values = list(coding.fact.values) if isinstance(coding.fact, Categories) else None
    return {
        "name": coding.column,
        "values": values,
        "edges": list(coding.edges) or None,
        "missing": coding.missing,
    }


METHODS: dict[str, type[Synthesizer]] = {m.method: m for m in (AIM, MST, MWEM, Independent)}
# With more columns than this, "auto" is MST: AIM scores all triples of columns in each round, which takes too
# long. A round number, chosen by hand and not tuned.
_MAX_AIM_COLUMNS = 40


def method_for(
    name: str, public: Public, domain: Domain, *, epsilon: Real, delta: float, **options: Any
) -> Synthesizer:
    """Return the method of this name for an epsilon and delta; "auto" is AIM, MST for very wide tables, or
    independent columns where there is only one."""
    cls = method_class(name, domain, options)
    return cls.for_privacy(public, domain, epsilon=epsilon, delta=delta, **options)


def method_class(name: str, domain: Domain, options: Mapping[str, Any]) -> type[Synthesizer]:
    """Return the class of the method of this name for a domain; options that it does not have are refused."""
    _require.one_of(("auto", *METHODS), method=name)
    check_instance(Domain, domain=domain)
    if name == "auto":
        columns = len(domain.columns)
        name = "independent" if columns == 1 else "aim" if columns <= _MAX_AIM_COLUMNS else "mst"
    cls = METHODS[name]
    reserved = {"public", "domain", "rho", "epsilon", "delta"}
    allowed = {option.name for option in fields(cls)} - reserved
    # The message does not name those that `Session.synthesize` takes as its own arguments.
    own = sorted(allowed - {"rows_per_unit", "constraints"})
    for option in options:
        _require.must(option in allowed, "an option", option, f"of {name}: {', '.join(own) or 'it has none'}")
    return cls
