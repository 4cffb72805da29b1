"""Holds a synthetic copy of two linked tables: synthetic units with a key, and their rows with the same
key."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import csv, parquet

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..accounting import Event
from ..tables.engines.open_rows import ask_open_rows
from .arguments import check_instance, check_rows_and_seed, check_writable
from .coarsening import group_arrays
from .constraints import repair_rows
from .copy import NOTE, SyntheticAnswer, SyntheticCopy, file_names
from .evidence import sample_conditional
from .generation import fit_model, ungroup
from .linked import LinkedFitted, find_child
from .model import GraphicalModel
from .quality import QualityReport, bound_errors


@dataclass(frozen=True, eq=False)
class SyntheticPair:
    """Holds synthetic units and their rows in the second table.

    `fitted` is the release, and `units` the copy of the flat table of parents. `parents` and `children` are
    Arrow tables. The column of the key has in each the name that the private table gives it; keys are the
    numbers from 1 on, and belong to no real unit.
    """

    fitted: LinkedFitted
    units: SyntheticCopy

    @classmethod
    def of(
        cls,
        fitted: LinkedFitted,
        event: Event,
        *,
        rows: int | None = None,
        seed: int | None = None,
        asked: tuple[Real, float] | None = None,
    ) -> SyntheticPair:
        """Return the copy of a release: by default with the noisy number of units, and with a random seed,
        which the card states."""
        check_instance(LinkedFitted, fitted=fitted)
        check_rows_and_seed(rows, seed)
        return cls(fitted, SyntheticCopy.of(fitted.parents, event, rows=rows, seed=seed, asked=asked))

    @property
    def rows(self) -> int:
        return self.units.rows

    @property
    def seed(self) -> int:
        return self.units.seed

    @property
    def names(self) -> tuple[str, str]:
        """The names of the two tables."""
        return self.fitted.public.table, self.fitted.child

    @property
    def keys(self) -> tuple[str, str]:
        """The names of the columns that hold the key, in the first and in the second table."""
        child = find_child(self.fitted.public, self.fitted.child)
        return str(self.fitted.public.unit.column), str(child.unit)

    @cached_property
    def parents(self) -> pa.Table:
        """The synthetic units with their keys; the last column of the flat table, the number of children, is
        left out."""
        table = self.units.table
        table = table.drop_columns([table.column_names[-1]])
        return table.add_column(0, self.keys[0], pa.array(np.arange(1, self.rows + 1)))

    @cached_property
    def _owners(self) -> Any:
        """The position of each child's parent: parent i is repeated as often as it has children, because the
        code of the number of children is that number itself."""
        return np.repeat(np.arange(self.rows), self.units.codes[-1])

    @cached_property
    def _drawn_children(self) -> tuple[pa.Table, list[Any]]:
        """The flat table of children, and its codes. Where `repair_rows` replaces a child by a copy of
        another, only the child's own columns change: it keeps its parent."""
        random = np.random.default_rng([self.seed, 3])
        codes, fitted = self._sampled_children, self.fitted.children
        table = fitted.domain.decode(fitted.public, codes, random)
        if not table.num_rows:
            return table, codes
        table, rows = repair_rows(table, fitted, codes, random)
        shared = len(self.units.codes) - 1
        return table, codes[:shared] + [column[rows] for column in codes[shared:]]

    @property
    def _child_codes(self) -> list[Any]:
        return self._drawn_children[1]

    @cached_property
    def children(self) -> pa.Table:
        """The synthetic rows of the second table with the keys of their units."""
        table = self._drawn_children[0]
        of_child = table.column_names[len(self.units.codes) - 1 :]
        own_names = [name[len(self.fitted.child) + 1 :] for name in of_child]
        table = table.select(of_child).rename_columns(own_names)
        return table.add_column(0, self.keys[1], pa.array(self._owners + 1))

    @cached_property
    def _child_model(self) -> GraphicalModel:
        return fit_model(self.fitted.children)

    @cached_property
    def _sampled_children(self) -> list[Any]:
        """The codes of the flat table of children: those of the parent's columns, and those of the child's
        own columns, drawn given the former."""
        # The generators `seed` and [`seed`, 1] draw the units (`SyntheticCopy`). All must stay as they are,
        # because the seed on a copy's card must give the same rows again.
        random = np.random.default_rng([self.seed, 2])
        fitted, owners, shared = self.fitted.children, self._owners, self.units.codes[:-1]
        if not len(owners):
            return [np.zeros(0, np.int64) for _ in fitted.domain.columns]
        # The model has groups of codes, so the parents' codes are translated to groups.
        groups = group_arrays(fitted.groups, len(fitted.domain.columns))
        given = {}
        for a, codes in enumerate(shared):
            group = groups[a]
            given[a] = codes[owners] if group is None else group[codes[owners]]
        model = self._child_model
        columns = ungroup(fitted, model, sample_conditional(model, given, random), random)
        return [codes[owners] for codes in shared] + columns[len(shared) :]

    def to_arrow(self) -> dict[str, pa.Table]:
        return dict(zip(self.names, (self.parents, self.children), strict=True))

    def to_pandas(self) -> dict[str, Any]:
        return {name: table.to_pandas() for name, table in self.to_arrow().items()}

    @_require.check_options
    def to_parquet(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a Parquet file for each table into a folder, and the card beside them; existing files are
        replaced only with `overwrite`."""
        for path, table in self._prepare_folder(folder, "parquet", overwrite).items():
            parquet.write_table(table, path)

    @_require.check_options
    def to_csv(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write a CSV file for each table into a folder, and the card beside them; existing files are
        replaced only with `overwrite`."""
        for path, table in self._prepare_folder(folder, "csv", overwrite).items():
            csv.write_csv(table, path)

    def _prepare_folder(self, folder: Any, suffix: str, overwrite: bool) -> dict[Path, pa.Table]:
        """Check that all files can be written, make the folder and write the card; return the tables by the
        paths of their files, which the caller writes."""
        if not isinstance(folder, str | Path) or "\0" in str(folder):
            raise _require.fail("folder", folder, "the name of a folder")
        target = Path(folder)
        if target.exists() and not target.is_dir():
            raise InvalidInput(f"{str(folder)!r} is a file, not a folder. Nothing was written.")
        if not target.parent.is_dir():
            raise InvalidInput(f"there is no folder {str(target.parent)!r}. Nothing was written.")
        names, other_suffix = file_names(*self.names), "csv" if suffix == "parquet" else "parquet"
        files = [target / f"{name}.{suffix}" for name in names]
        card, text = target / "card.json", json.dumps(self.card(), indent=2) + "\n"
        # If this copy was written to the folder in the other format before, its card is there already.
        same_card = card.is_file() and card.read_bytes() == text.encode()
        if target.is_dir():
            for path in (*files, *([] if same_card else [card])):
                check_writable(path, overwrite=overwrite)
        stale = [path for path in (target / f"{name}.{other_suffix}" for name in names) if path.exists()]
        # With tables of another copy in the folder, `open_copy` could pair them with the card of this one.
        if stale and not same_card:
            raise InvalidInput(
                f"{str(stale[0])!r} belongs to another copy, which the card of this one would not describe. "
                f"Nothing was written. Give another folder, or remove that file."
            )
        target.mkdir(exist_ok=True)
        card.write_text(text)
        return dict(zip(files, (self.parents, self.children), strict=True))

    def sql(self, text: str) -> SyntheticAnswer:
        """Ask both tables in full SQL, joins included, free; they have the names of the private tables they
        were made from."""
        return SyntheticAnswer(ask_open_rows(self.to_arrow(), text))

    def report(self, confidence: float = 0.95) -> dict[str, QualityReport]:
        """Return bounds on the error of each measured table (`quality.bound_errors`), free: one report on the
        flat table of parents and one on that of children, by the names of the two tables."""
        of_children = bound_errors(self.fitted.children, self._child_model, self._child_codes, confidence)
        reports = (self.units.report(confidence), of_children)
        return dict(zip(self.names, reports, strict=True))

    def card(self) -> dict[str, Any]:
        """Return a description of this copy for whoever gets it: public facts and released values only."""
        flat = self.fitted.children
        measured = [[flat.domain.names[a] for a in table.clique] for table in flat.tables]
        return self.units.card() | {
            "what": "synthetic copy of two linked tables: made-up rows, drawn from noisy tables of counts",
            "child": {
                "table": self.fitted.child,
                "keys": list(self.keys),
                "method": flat.method,
                "columns": list(flat.domain.names),
                "measured": measured,
                "constraints": [str(c) for c in flat.constraints],
            },
            "answers": NOTE,
        }

    def __repr__(self) -> str:
        return f"<SyntheticPair of {self.names[0]!r} and {self.names[1]!r}: {self.rows:,} units>"
