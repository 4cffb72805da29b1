"""`dp.open`: a table, its public facts, its budget and its ledger become one session."""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import _require
from .._errors import InvalidInput, LedgerError
from .._public import ADD_REMOVE, Neighbors, Public, Unit, as_neighbors
from ..curator import Budget, Curator, Policy
from ..curator.postgres_store import attach, split
from ..mechanisms.protocols import AnySource, ExampleSource
from ..tables import (
    UNVERSIONED,
    Database,
    Source,
    connect,
    connect_postgres,
    data_of,
    formatted,
    is_address,
    load,
    several,
    stand_in,
    version_of,
)
from ..tables.engines.spark_files import frame_name, is_frame, is_several
from ..tables.spill import TRIAL_PREFIX, PrivateFolder
from .changes import warn_of_changes
from .session import Session

# The name of a ledger that is deleted with the session.
TRIAL = ":memory:"


@_require.check_options
def open(
    data: Any,
    *,
    schema: Any = None,
    unit: Unit | str | None = None,
    budget: Budget | None = None,
    ledger: str | Path | None = None,
    analysts: Mapping[str, Budget | None] | None = None,
    neighbors: Neighbors | str = ADD_REMOVE,
    size: int | None = None,
    table: str | None = None,
    version: str | None = None,
    related: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    memory: str | None = None,
    large_delta: bool = False,
    engine: str | None = None,
    key: str | None = None,
    remote: str | None = None,
) -> Session:
    """Open a dataset: a file, a data frame, or a table of a database, with its public facts, its budget and
    its ledger.

    `data`: a Parquet or CSV file, a folder, a pattern ("visits-*.parquet") or a list of these,
    `tables.Database(path, table)`, a data frame, an Arrow table, a mapping of columns, a table of a
    PostgreSQL database ("postgresql://user@host/database", with `table` and, where answers may be served
    twice, `version`; docs/engines.md), or a Spark DataFrame of a stored table.

    `schema`: public facts by column, the path of a schema file, or a `Public`. `related`: the data of other
    tables that the schema declares, by name; a schema file may say itself where these are. `unit`:
    `dp.rows()` if nobody has two rows, or the column that tells people apart: it has no default.
    `large_delta` insists on a delta above 1e-3 where no size is declared. `ledger`: the file that keeps the
    books, made with `budget` if it is not there yet; for many workers and machines a PostgreSQL database,
    "postgresql://user@host/books::name" (a file name.ledger, which points there, and its key are made in the
    folder one is in); ":memory:" is for trying things out, and forgets. For a file of data it is that file's
    name with `.ledger` added. `seconds`: a public limit for each of the engine's queries; one that takes
    longer is stopped, and stays charged. `memory` ("4GB"): what the engine may use; the rest goes to disk.
    `engine`: "spark" reads a Parquet file, a folder or a pattern of these with Spark. `key`: with Spark and
    `dp.rows()`, the column in which no two rows agree; joins need it. `remote`: the database in which the
    entries of `ledger`, a file that points there, are kept: "postgresql://user@host/books::name".
    """
    if analysts is not None and not isinstance(analysts, Mapping):
        raise _require.fail(
            "analysts",
            analysts,
            "names with their budgets, such as {'ann': dp.Budget(epsilon=1), 'bob': None}",
        )
    if related is not None and not isinstance(related, Mapping):
        raise _require.fail(
            "related", type(related).__name__, "tables by their names, such as {'visits': data}"
        )
    public = _public(data, schema, unit, neighbors, size, table, version)
    if isinstance(schema, str | Path):
        related = {**data_of(Path(schema)), **(related or {})} or None
    limits: dict[str, Any] = {k: v for k, v in (("seconds", seconds), ("memory", memory)) if v is not None}
    by_spark = _spark_engine(data, engine, key, memory)
    if is_address(data):
        source: Any = _remote(data, public, table, related, limits)
    elif by_spark:
        is_versioned = not is_frame(data) or version is not None or public.version != Public().version
        source = _on_spark(data, public, related=related, seconds=seconds, key=key, versioned=is_versioned)
    else:
        source = _connect_source(data, public, schema, related, limits)
    return Session(_curator(data, source, public, budget, analysts, ledger, remote, large_delta))


def _connect_source(
    data: Any, public: Public, schema: Any, related: Mapping[str, Any] | None, limits: Mapping[str, Any]
) -> Any:
    """Return the source of local data; one that is a source already stays as it is."""
    if not is_frame(data) and isinstance(data, Source | ExampleSource):
        if limits and not related:
            raise InvalidInput(
                "this source was connected already: give it a limit there, tables.connect(..., seconds=...)."
            )
        source = data if not related else connect(data, public, related=related, **limits)
        if source.public != public:
            raise InvalidInput("this source has public facts of its own; give none beside them.")
        return source
    table_data = (None if is_frame(data) else several(data)) or data
    if isinstance(schema, str | Path):
        table_data = formatted(table_data, Path(schema), public)
    return connect(table_data, public, related=related, **limits)


def _curator(
    data: Any,
    source: Any,
    public: Public,
    budget: Budget | None,
    analysts: Mapping[str, Budget | None] | None,
    ledger: str | Path | None,
    remote: str | None,
    large_delta: bool,
) -> Curator:
    """Open the ledger of a source, or create one with the budget."""
    if ledger == TRIAL:
        if remote is not None:
            raise InvalidInput("ledger=':memory:' forgets, and is in no database: leave remote out.")
        return _trial(source, budget, analysts, large_delta)
    address = remote or _address(ledger)
    path = _ledger(data, ledger) if remote or address is None else Path(split(address)[1] + ".ledger")
    if path.exists() if address is None else attach(path, address):
        curator = _open_curator(path, source, budget, analysts)
        warn_of_changes(_path(data), public, curator.ledger)
        return curator
    policy = _policy(budget, analysts, f"at {path}")
    return Curator.create(path, source, policy, large_delta=large_delta, remote=address)


def _policy(budget: Budget | None, analysts: Mapping[str, Budget | None] | None, where: str) -> Policy:
    """Return the policy of a ledger that is to be made."""
    if budget is None:
        raise LedgerError(
            f"there is no ledger {where} yet: give a budget, such as dp.Budget(epsilon=1), and one is made."
        )
    return Policy(budget=budget, analysts=tuple((analysts or {}).items()))


def _trial(
    source: Any, budget: Budget | None, analysts: Mapping[str, Budget | None] | None, large_delta: bool
) -> Curator:
    """Create a ledger in a private folder that is removed with the ledger, or at once if none is made."""
    policy = _policy(budget, analysts, "in memory")
    folder = PrivateFolder(TRIAL_PREFIX)
    try:
        curator = Curator.create(
            folder.path / "trial.ledger", source, policy, large_delta=large_delta, durable=False
        )
    except BaseException:
        folder.remove()
        raise
    weakref.finalize(curator.ledger, folder.remove)
    return curator


def _remote(
    data: str, public: Public, table: str | None, related: Mapping[str, Any] | None, limits: dict[str, Any]
) -> Source:
    """Return the engine of a table in a PostgreSQL database: "postgresql://user@host/database", perhaps with
    "::table" behind it."""
    address, _, table_name = data.partition("::")
    if "memory" in limits:
        raise InvalidInput("memory is a limit of the embedded engine, and the server has its own.")
    return connect_postgres(address, public, table=table_name or table, related=related, **limits)


def _spark_engine(data: Any, engine: str | None, key: str | None, memory: str | None) -> bool:
    """Return whether Spark answers: for its own DataFrames, and for files where it is asked for."""
    if engine not in (None, "spark", "duckdb"):
        raise _require.fail("engine", engine, "'spark' or 'duckdb'")
    by_spark = is_frame(data) or engine == "spark"
    if is_frame(data) and engine == "duckdb":
        raise InvalidInput("a Spark DataFrame is answered by Spark. Nothing was opened. Leave engine out.")
    if key is not None and not by_spark:
        raise InvalidInput("key= is for Spark: other engines number the rows by themselves. Leave it out.")
    if memory is not None and by_spark:
        raise InvalidInput(
            "memory= is not for Spark: its own settings say what it may use. Nothing was opened."
        )
    if engine == "spark" and not is_frame(data) and not isinstance(data, str | Path):
        raise InvalidInput(
            "engine='spark' reads Parquet files, or give a Spark DataFrame. Nothing was opened."
        )
    return by_spark


def _on_spark(data: Any, public: Public, **options: Any) -> Source:
    """Connect the data to Spark."""
    from ..tables.engines.spark import connect as connect_spark

    return connect_spark(data, public, **options)


def _open_curator(
    path: Path, source: AnySource, budget: Budget | None, analysts: Mapping[str, Budget | None] | None
) -> Curator:
    """Open a ledger that exists; refuse a budget or analysts that are not those it has."""
    curator = Curator.open(path, source)
    policy = curator.policy
    if (budget is not None and budget != policy.budget) or (
        analysts is not None and dict(analysts) != dict(policy.analysts)
    ):
        names = ", ".join(name for name, _ in policy.analysts)
        analyst_words = f"analysts {names}" if names else "no analysts"
        raise LedgerError(
            f"{path} was made with {policy.budget} and {analyst_words}. Nothing was changed. Open it "
            f"without a budget, or change the budgets with session.curator.change_policy(...)."
        )
    return curator


def _public(
    data: Any,
    schema: Any,
    unit: Unit | str | None,
    neighbors: Any,
    size: int | None,
    table: str | None,
    version: str | None,
) -> Public:
    """Return the public facts of the data: those of a schema, or those that the arguments declare."""
    if not is_frame(data) and isinstance(data, Source | ExampleSource) and schema is None:
        return data.public
    path = _existing_path(data)
    if is_address(data):
        table, version = _table_name(data, table, schema), version or UNVERSIONED
    if isinstance(schema, Public):
        return _without_version(data, _check_agreement(schema, unit, size, table))
    if isinstance(schema, str | Path):
        if not Path(schema).exists():
            raise InvalidInput(f"there is no schema file {str(schema)!r}. `discreet init` drafts one.")
        return _without_version(data, _check_agreement(load(Path(schema)), unit, size, table))
    if schema is None:
        raise _no_schema(path)
    if unit is None:
        raise InvalidInput(
            "say whom the table protects. Nothing was opened. unit=dp.rows() if nobody can have two "
            "rows, or unit='person_id', the column "
            "that tells people apart: taking a row for a person where people have many would protect nobody."
        )
    return Public(
        schema=schema,
        unit=Unit(unit) if isinstance(unit, str) else unit,
        neighbors=as_neighbors(neighbors),
        size=size,
        table=table or _default_table_name(data, path),
        version=version or _version(data, path),
    )


def _existing_path(data: Any) -> Path | None:
    """Return the path of a file; refuse one that is not there, and an address of the network."""
    path = _path(data)
    if not is_address(data) and isinstance(data, str) and "://" in data:
        raise InvalidInput(
            f"{data!r} is an address: nothing is fetched from the network. Download it, and give the file."
        )
    if path is not None and not os.path.exists(path) and not is_several(data):
        raise InvalidInput(f"there is no file {str(data)!r}. Nothing was opened.")
    return path


def _no_schema(path: Path | None) -> InvalidInput:
    """Return the error for data without a schema; it names a schema file that lies beside the data."""
    schema_path = None if path is None else path.with_name(path.name + ".schema.toml")
    if schema_path is not None and schema_path.exists():
        return InvalidInput(
            f"declare what is public. Nothing was opened. There is a schema file beside the data: give "
            f"schema={str(schema_path)!r}."
        )
    return InvalidInput(
        "declare what is public: schema={'age': dp.Bounds(0, 120), ...}, or the path of a schema "
        "file as `discreet init` drafts it. "
        "Nothing is ever read off the data for that."
    )


def _default_table_name(data: Any, path: Path | None) -> str:
    """Return what queries call a table that was given no name."""
    if isinstance(data, Database):
        return data.table
    return frame_name(data) or "data" if path is None else path.name.split(".")[0]


def _without_version(data: Any, public: Public) -> Public:
    """Return the public facts without a version, for a table that others write to, unless one is declared."""
    has_no_version = is_address(data) and public.version == Public().version
    return replace(public, version=UNVERSIONED) if has_no_version else public


def _table_name(data: str, table: str | None, schema: Any) -> str | None:
    """Return what queries call a table of a database: the last part of its name there."""
    name = data.partition("::")[2] or table
    if name is None and not isinstance(schema, str | Path | Public):
        raise InvalidInput("say which table of the database: table='visits'. Nothing was opened.")
    return None if name is None else name.rpartition(".")[2].strip('"')


def _check_agreement(public: Public, unit: Unit | str | None, size: int | None, table: str | None) -> Public:
    """Refuse what is said beside a complete schema and is not the same: whom it protects must not depend on
    which of the two is read."""
    arguments = {"unit": Unit(unit) if isinstance(unit, str) else unit, "size": size, "table": table}
    facts = {"unit": public.unit, "size": public.size, "table": public.table}
    for name, value in arguments.items():
        agrees = value == facts[name] or (
            isinstance(unit, str) and name == "unit" and unit == public.unit.column
        )
        if value is not None and not agrees:
            raise InvalidInput(
                f"the schema says {name} = {facts[name]!r}, and {name}={value!r} was given beside it. "
                f"Nothing was opened. Say it in one place."
            )
    return public


def _address(ledger: str | Path | None) -> str | None:
    """Return the address of the database in which a ledger's entries are; None for a file. A `Path` has lost
    a slash."""
    text = re.sub(r"^(postgres(?:ql)?:)/(?!/)", r"\1//", str(ledger))
    return text if is_address(text) else None


def _version(data: Any, path: Path | None) -> str:
    """Return the version of the data, from the state of its files."""
    files = None if is_frame(data) or is_address(data) else several(data)
    if files is not None:
        return files.version
    return "1" if path is None else version_of(path)


def _path(data: Any) -> Path | None:
    """Return the file or folder of the data; None where there is none."""
    if isinstance(data, Database):
        return Path(data.path)
    if is_address(data):
        return None
    # the folder of a pattern, which has a name
    if is_several(data):
        return stand_in(data)
    return Path(data) if isinstance(data, str | Path) else None


def _ledger(data: Any, ledger: str | Path | None) -> Path:
    if ledger is not None:
        if not isinstance(ledger, str | Path) or not Path(ledger).name:
            raise _require.fail(
                "ledger", ledger, "the name of a file, such as 'people.ledger', or ':memory:'"
            )
        return Path(ledger)
    path = _path(data)
    if path is None:
        raise InvalidInput(
            "say where the books are kept: ledger='people.ledger', or ledger=':memory:' to try things out."
        )
    return path.with_name(path.name + ".ledger")
