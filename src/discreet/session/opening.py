"""`dp.open`: a table, its public facts, its budget and its ledger become one session.

The session: one dataset, one budget, and all methods. Each method builds a mechanism and hands it to the
curator, which charges it and records it in the ledger.
"""

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
from .._public import ADD_REMOVE, UNVERSIONED, Neighbors, Public, Unit, as_neighbors
from ..curator import Budget, Curator, Policy
from ..curator.postgres_store import attach, split
from ..mechanisms.protocols import AnySource, ExampleSource, allow
from ..tables import Database, Source, connect, connect_postgres, load
from ..tables.engines.postgres_tables import is_address
from ..tables.engines.spark_files import frame_name, is_frame, is_several
from ..tables.files import (
    TRIAL_PREFIX,
    PrivateFolder,
    codebooks_of,
    formatted,
    refuse_empty,
    several,
    stand_in,
)
from ..tables.schema import data_of, mechanisms_of
from .fitting import Models
from .open_mechanisms import OpenMechanisms
from .questions import Questions


class Session(Questions, Models, OpenMechanisms):
    """Answers the questions of one person about one dataset, under one budget. `analyst` is the name of that
    person; the steward by default.

    An analyst with a budget of their own sees that budget and how much of it is left. About the spending of
    others they learn only whether a question still fits the dataset's budget, and in a preview how many such
    questions fit.
    """

    __slots__ = ()


# The value of `ledger` that asks for a ledger which is deleted with the session.
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
    neighbors: Neighbors | str | None = None,
    size: int | None = None,
    table: str | None = None,
    version: str | None = None,
    related: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    memory: str | None = None,
    large_delta: bool = False,
    large_epsilon: bool = False,
    engine: str | None = None,
    remote: str | None = None,
) -> Session:
    """Open a dataset: a file, a data frame, or a table of a database, with its public facts, its budget and
    its ledger.

    `data`: a Parquet or CSV file, a folder, a pattern ("visits-*.parquet") or a list of these,
    `tables.Database(path, table)`, a data frame, an Arrow table, a mapping of columns, a table of a
    PostgreSQL database ("postgresql://user@host/database", with the name `table`; docs/databases.md), or a
    Spark DataFrame of a stored table.

    Public facts. `schema`: facts by column, the path of a schema file, or a `Public`. `unit`: `dp.rows()` if
    nobody has two rows, or the column that tells people apart; it has no default. `neighbors`: by default
    add_remove. `size`: the number of units, if it is public. `table`: the name that queries use. `version`:
    the name of the state of the data; answers are repeated from the ledger for the same version only. By
    default it is the version of a schema file or `Public`. Where none is declared, answers are repeated
    within this session only: nothing is read off rows or files to tell one state from another. What a
    complete schema declares is not overruled by these arguments: where the two differ, nothing
    is opened. `related`: the data of other tables that the schema declares, by name; a schema file may name
    the files of these tables itself.

    Budget and ledger. `ledger`: the file in which charges are recorded, created with `budget` if it does not
    exist; by default the name of the data file with `.ledger` added. ":memory:" is for trials: that ledger is
    deleted with the session. For many workers and machines, "postgresql://user@host/books::name" keeps the
    entries in a PostgreSQL database; the file name.ledger, which points there, and its key are created in the
    current folder. `remote`: the same address, where `ledger` is the file that points there. `analysts`:
    names with budgets of their own, or None. `large_delta`: accept a delta above 1e-3 where no size is
    declared. `large_epsilon`: accept budgets above 20, which protect next to nothing.

    Engine. `seconds`: a public limit for each of the engine's queries; a query that takes longer is stopped,
    and stays charged. `memory` ("4GB"): the memory that the engine may use before it writes to disk.
    `engine`: "spark" reads a Parquet file, a folder or a pattern of these with Spark.
    """
    _require.must(
        analysts is None or isinstance(analysts, Mapping),
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
        related = {
            name: formatted(several(of) or of, Path(schema), public, name)
            for name, of in {**data_of(Path(schema)), **(related or {})}.items()
        } or None
        for tag in mechanisms_of(Path(schema)):
            allow(tag)
    limits: dict[str, Any] = {k: v for k, v in (("seconds", seconds), ("memory", memory)) if v is not None}
    if isinstance(schema, str | Path) and (books := codebooks_of(Path(schema), public)):
        limits["codebooks"] = books
    by_spark = _uses_spark(data, engine, memory)
    if is_address(data):
        source: Any = _connect_postgres_table(data, public, table, related, limits)
    elif by_spark:
        source = _on_spark(data, public, related=related, **limits)
    else:
        source = _connect_source(data, public, schema, related, limits)
    large: dict[str, Any] = {"large_delta": large_delta, "large_epsilon": large_epsilon}
    return Session(_curator(data, source, budget, analysts, ledger, remote, large))


def _connect_source(
    data: Any, public: Public, schema: Any, related: Mapping[str, Any] | None, limits: Mapping[str, Any]
) -> Any:
    """Return the source of local data; data that is a `Source` already is returned unchanged, or connected to
    its related tables."""
    if not is_frame(data) and isinstance(data, Source | ExampleSource):
        _require.that(
            not limits or related,
            "this source was connected already: set its limits there, tables.connect(..., seconds=...).",
        )
        source = data if not related else connect(data, public, related=related, **limits)
        if source.public != public:
            raise InvalidInput("this source has public facts of its own; give none beside them.")
        return source
    # a folder, a pattern or a list becomes one set of files
    table_data = (None if is_frame(data) else several(data)) or data
    if isinstance(schema, str | Path):
        table_data = formatted(table_data, Path(schema), public)
    return connect(table_data, public, related=related, **limits)


def _curator(
    data: Any,
    source: Any,
    budget: Budget | None,
    analysts: Mapping[str, Budget | None] | None,
    ledger: str | Path | None,
    remote: str | None,
    large: dict[str, Any],
) -> Curator:
    """Open the ledger of a source if it exists, else create it with the budget; `large` are the options of
    `Policy.check`."""
    if ledger == TRIAL:
        _require.that(
            remote is None,
            "ledger=':memory:' is deleted with the session, and is in no database. Leave remote out.",
        )
        return _trial(source, budget, analysts, large)
    address = remote or _ledger_address(ledger)
    path = _ledger_path(data, ledger) if remote or address is None else Path(split(address)[1] + ".ledger")
    # `attach` returns whether the database has this ledger; it then creates the local file that points there.
    exists = path.exists() if address is None else attach(path, address)
    if exists:
        return _open_curator(path, source, budget, analysts)
    policy = _policy(budget, analysts, f"at {path}")
    return Curator.create(path, source, policy, remote=address, **large)


def _policy(budget: Budget | None, analysts: Mapping[str, Budget | None] | None, where: str) -> Policy:
    """Return the policy of a new ledger; `where` completes the error "there is no ledger ..."."""
    if budget is None:
        raise LedgerError(
            f"there is no ledger {where} yet: give a budget, such as dp.Budget(epsilon=1), and one is made."
        )
    return Policy(budget=budget, analysts=tuple((analysts or {}).items()))


def _trial(
    source: Any,
    budget: Budget | None,
    analysts: Mapping[str, Budget | None] | None,
    large: dict[str, Any],
) -> Curator:
    """Create a ledger in a private folder, which is removed when the ledger object is no longer used, or at
    once if creating the ledger fails."""
    policy = _policy(budget, analysts, "in memory")
    folder = PrivateFolder(TRIAL_PREFIX)
    try:
        curator = Curator.create(folder.path / "trial.ledger", source, policy, durable=False, **large)
    except BaseException:
        folder.remove()
        raise
    weakref.finalize(curator.ledger, folder.remove)
    return curator


def _connect_postgres_table(
    data: str, public: Public, table: str | None, related: Mapping[str, Any] | None, limits: dict[str, Any]
) -> Source:
    """Connect a table of a PostgreSQL database: `data` is "postgresql://user@host/database", or the same with
    "::table" added."""
    address, _, table_name = data.partition("::")
    _require.that(
        "memory" not in limits,
        "memory limits the embedded engine, and a PostgreSQL server has its own settings. Leave it out.",
    )
    return connect_postgres(address, public, table=table_name or table, related=related, **limits)


def _uses_spark(data: Any, engine: str | None, memory: str | None) -> bool:
    """Return whether Spark answers the queries: for Spark DataFrames, and for files with engine='spark'."""
    _require.must(engine in (None, "spark", "duckdb"), "engine", engine, "'spark' or 'duckdb'")
    by_spark = is_frame(data) or engine == "spark"
    if is_frame(data) and engine == "duckdb":
        raise InvalidInput("a Spark DataFrame is answered by Spark. Leave engine out.")
    if memory is not None and by_spark:
        raise InvalidInput("memory= is not for Spark: its own settings say what it may use.")
    if engine == "spark" and not is_frame(data) and not isinstance(data, str | Path):
        raise InvalidInput("engine='spark' reads Parquet files, or give a Spark DataFrame.")
    return by_spark


def _on_spark(data: Any, public: Public, **options: Any) -> Source:
    """Connect the data to Spark."""
    from ..tables.engines.spark import connect as connect_spark

    return connect_spark(data, public, **options)


def _open_curator(
    path: Path, source: AnySource, budget: Budget | None, analysts: Mapping[str, Budget | None] | None
) -> Curator:
    """Open an existing ledger; refuse a budget or analysts that differ from those of the ledger."""
    curator = Curator.open(path, source)
    policy = curator.policy
    if (budget is not None and budget != policy.budget) or (
        analysts is not None and dict(analysts) != dict(policy.analysts)
    ):
        names = ", ".join(name for name, _ in policy.analysts)
        analyst_words = f"analysts {names}" if names else "no analysts"
        raise LedgerError(
            f"{path} was made with {policy.budget} and {analyst_words}. Nothing was changed.",
            remedy="Open it without a budget, or change the budgets with session.curator.change_policy(...).",
            option="budget",
        )
    return curator


def _public(
    data: Any,
    schema: Any,
    unit: Unit | str | None,
    neighbors: Neighbors | str | None,
    size: int | None,
    table: str | None,
    version: str | None,
) -> Public:
    """Return the public facts of the data: those of a schema, or those that the arguments declare."""
    facts = {
        "unit": Unit(unit) if isinstance(unit, str) else unit,
        "neighbors": None if neighbors is None else as_neighbors(neighbors),
        "size": size,
    }
    if not is_frame(data) and isinstance(data, Source | ExampleSource) and schema is None:
        return _check_agreement(data.public, {**facts, "table": table, "version": version})
    path = _existing_path(data)
    if is_address(data):
        table = _table_name(data, table, schema)
    if isinstance(schema, str | Path) and not Path(schema).exists():
        raise InvalidInput(f"there is no schema file {str(schema)!r}. `discreet init` drafts one.")
    if isinstance(schema, Public | str | Path):
        complete = schema if isinstance(schema, Public) else load(Path(schema))
        return _with_version(_check_agreement(complete, {**facts, "table": table}), version)
    if schema is None:
        raise _no_schema(path, data)
    if unit is None:
        raise InvalidInput(
            "say whom the table protects. unit=dp.rows() if nobody can have two rows, or unit='person_id', "
            "the column that tells people apart: taking a row for a person where people have many would "
            "protect nobody."
        )
    return Public(
        schema=schema,
        unit=Unit(unit) if isinstance(unit, str) else unit,
        neighbors=as_neighbors(ADD_REMOVE if neighbors is None else neighbors),
        size=size,
        table=table or _default_table_name(data, path),
        version=version or UNVERSIONED,
    )


def _existing_path(data: Any) -> Path | None:
    """Return the path of the data, None where it has none; refuse a path that does not exist, and a network
    address other than PostgreSQL's."""
    refuse_empty(data.path if isinstance(data, Database) else data)
    path = _path(data)
    if not is_address(data) and isinstance(data, str) and "://" in data:
        raise InvalidInput(
            f"{data!r} is an address, and nothing is fetched from the network. Download it, and give the "
            f"file."
        )
    if path is not None and not os.path.exists(path) and not is_several(data):
        raise InvalidInput(f"there is no file {str(data)!r}.")
    return path


def _no_schema(path: Path | None, data: Any) -> InvalidInput:
    """Return the error for data without a schema; it names the schema file in the folder of the data, if
    there is one."""
    if any(kind.__module__.startswith("torch.utils.data") for kind in type(data).__mro__):
        return InvalidInput(
            f"a {type(data).__name__} is opened as examples, with the number of people, which you declare: "
            "dp.open(learning.Examples.of(data, dp.Public(size=...)), budget=...)."
        )
    schema_path = None if path is None else path.with_name(path.name + ".schema.toml")
    if schema_path is not None and schema_path.exists():
        return InvalidInput(
            "declare what is public. There is a schema file in the same folder: give "
            f"schema={str(schema_path)!r}."
        )
    return InvalidInput(
        "declare what is public: schema={'age': dp.Bounds(0, 120), ...}, or the path of a schema "
        "file as `discreet init` drafts it. "
        "No public fact is ever read from the data."
    )


def _default_table_name(data: Any, path: Path | None) -> str:
    """Return the name that queries use for a table without a declared name."""
    if isinstance(data, Database):
        return data.table
    return (frame_name(data) or "data") if path is None else path.name.split(".")[0]


def _with_version(public: Public, version: str | None) -> Public:
    """Return the facts of a complete schema with the version that was given beside it."""
    if public.version != UNVERSIONED:
        return _check_agreement(public, {"version": version})
    return public if version is None else replace(public, version=version)


def _table_name(data: str, table: str | None, schema: Any) -> str | None:
    """Return the name that queries use for a table of a database: "visits" for "public.visits". None where
    the schema names it."""
    name = data.partition("::")[2] or table
    if name is None and not isinstance(schema, str | Path | Public):
        raise InvalidInput("say which table of the database: table='visits'.")
    return None if name is None else name.rpartition(".")[2].strip('"')


def _check_agreement(public: Public, arguments: Mapping[str, Any]) -> Public:
    """Return complete public facts, and refuse arguments of `open` that declare a fact differently: who is
    protected must not depend on which of the two declarations is used. Arguments that are None declare
    nothing."""
    facts = _require.field_values(public)
    for name, value in arguments.items():
        declared = facts[name]
        if isinstance(value, Neighbors):
            declared, value = str(declared), str(value)
        # A unit that is only a column agrees with a declared unit that also limits the rows of that column.
        same_column = name == "unit" and value == Unit(declared.column)
        _require.that(
            value is None or value == declared or same_column,
            f"the schema says {name} = {declared!r}, and {name}={value!r} was given beside it. Say it in "
            "one place.",
        )
    return public


def _ledger_address(ledger: str | Path | None) -> str | None:
    """Return the address of the database that holds the ledger's entries; None for a file. In a `Path`, the
    two slashes of an address have become one."""
    text = re.sub(r"^(postgres(?:ql)?:)/(?!/)", r"\1//", str(ledger))
    return text if is_address(text) else None


def _path(data: Any) -> Path | None:
    """Return the file or folder of the data; None where there is none."""
    if isinstance(data, Database):
        return Path(data.path)
    if is_address(data):
        return None
    # For a folder or a pattern: the path from which the table and its ledger get their names.
    if is_several(data):
        return stand_in(data)
    return Path(data) if isinstance(data, str | Path) else None


def _ledger_path(data: Any, ledger: str | Path | None) -> Path:
    """Return the path of the ledger: as given, or beside the data."""
    if ledger is not None:
        if not isinstance(ledger, str | Path) or not Path(ledger).name:
            raise _require.fail(
                "ledger", ledger, "the name of a file, such as 'people.ledger', or ':memory:'"
            )
        return Path(ledger)
    path = _path(data)
    if path is None:
        raise InvalidInput(
            "say where the ledger is: ledger='people.ledger', or ledger=':memory:' to try things out."
        )
    return path.with_name(path.name + ".ledger")
