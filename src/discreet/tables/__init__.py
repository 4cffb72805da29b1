"""Presents data as mechanisms see it: sources, the engines behind them, and a real table to try things on.

Sources: `Memory`, `Files`, `Database`, and whatever `connect` and `connect_postgres` open. Schema files:
`draft`, `load`, `dump`. For the steward, who holds the data: `version_of` is the time at which a file was
written, which may be declared as its version. `dummy` draws made-up rows with the same public facts;
`rand_hie` is the real table.

Other packages import the rest from its module: `files` (the files that a folder, pattern or list means, and
how a CSV file is written), `schema` (what a schema file says), `fit` (how well data fit their schema, and the
rows of some periods or with some values).
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .bundled import dummy as dummy
    from .bundled import rand_hie as rand_hie
    from .drafting import draft as draft
    from .drafting import version_of as version_of
    from .engines.duckdb import DuckDB as DuckDB
    from .engines.duckdb import connect as connect
    from .engines.duckdb_reading import Database as Database
    from .engines.postgres import PostgreSQL as PostgreSQL
    from .engines.postgres import connect_postgres as connect_postgres
    from .files import Files as Files
    from .schema import dump as dump
    from .schema import load as load
    from .source import Engine as Engine
    from .source import EngineError as EngineError
    from .source import Memory as Memory
    from .source import Source as Source
    from .source import TimeLimit as TimeLimit

__all__, __getattr__, __dir__ = _registry.exports(__name__)
