"""Presents data as mechanisms see it: sources, the engines behind them, and a real table to try things on.

Sources: `Memory`, `Files`, `Database`, and whatever `connect` and `connect_postgres` open; `engine_of` gives
the engine that answers for a source, `several` the files that a folder, pattern or list means (`stand_in` is
the path they are named after), `within` the rows of some periods or with some values. Schema files: `draft`,
`load`, `dump`, `data_of`, `was_looked` (whether a draft came from values); how a CSV file is written: `Csv`,
`Format`, `format_of`, `formatted`. For the steward, who holds the data: `fit_of` and `not_utf8` say how well
data fit their schema; `version_of` is the time at which a file was written, which may be declared as its
version. `dummy` draws made-up rows with the same public facts; `rand_hie` is the real table.
"""

from .._public import UNVERSIONED
from .bundled import rand_hie
from .drafting import draft, version_of
from .dummy import dummy
from .engine import Engine, EngineError, TimeLimit
from .engines.duckdb import DuckDB, connect, dialect_of, engine_of
from .engines.duckdb_reading import Database
from .engines.postgres import PostgreSQL, connect_postgres
from .engines.postgres_connection import is_address
from .engines.spark_files import is_several
from .files import Files, several, stand_in
from .fit import fit_of, not_utf8
from .formats import Csv, Format, format_of, formatted
from .parts import within
from .schema import data_of, dump, load, was_looked
from .source import Memory, Source
from .texts import engine_values

__all__ = [
    "Csv",
    "Database",
    "DuckDB",
    "Engine",
    "EngineError",
    "Files",
    "Format",
    "Memory",
    "PostgreSQL",
    "Source",
    "TimeLimit",
    "UNVERSIONED",
    "connect",
    "connect_postgres",
    "data_of",
    "dialect_of",
    "draft",
    "dummy",
    "dump",
    "engine_of",
    "engine_values",
    "fit_of",
    "format_of",
    "formatted",
    "is_address",
    "is_several",
    "load",
    "not_utf8",
    "was_looked",
    "rand_hie",
    "several",
    "stand_in",
    "version_of",
    "within",
]
