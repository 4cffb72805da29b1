"""Presents data as mechanisms see it: sources, the engines behind them, and a real table to try things on.

Sources: `Memory`, `Files`, `Database`, and whatever `connect` and `connect_postgres` open. Schema files:
`draft`, `load`, `dump`. For the steward, who holds the data: `version_of` is the time at which a file was
written, which may be declared as its version. `dummy` draws made-up rows with the same public facts;
`rand_hie` is the real table.

Other packages import the rest from its module: `files` (the files that a folder, pattern or list means, and
how a CSV file is written), `schema` (what a schema file says), `fit` (how well data fit their schema, and the
rows of some periods or with some values).
"""

from .bundled import dummy, rand_hie
from .drafting import draft, version_of
from .engines.duckdb import DuckDB, connect
from .engines.duckdb_reading import Database
from .engines.postgres import PostgreSQL, connect_postgres
from .files import Files
from .schema import dump, load
from .source import Engine, EngineError, Memory, Source, TimeLimit

__all__ = [
    "Database",
    "DuckDB",
    "Engine",
    "EngineError",
    "Files",
    "Memory",
    "PostgreSQL",
    "Source",
    "TimeLimit",
    "connect",
    "connect_postgres",
    "draft",
    "dummy",
    "dump",
    "load",
    "rand_hie",
    "version_of",
]
