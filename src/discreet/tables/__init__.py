"""Data as mechanisms see it: sources, the engines behind them, and a real table to try things on."""

from .bundled import rand_hie
from .dummy import dummy
from .engine import Engine, EngineError, TimeLimit
from .engines.duckdb import DuckDB, connect, dialect_of, draft, engine_of, version_of
from .engines.duckdb_reading import Database
from .engines.postgres import UNVERSIONED, PostgreSQL, connect_postgres
from .engines.postgres_connection import is_address
from .engines.spark_files import files_of, is_several
from .fit import fit_of
from .formats import SEVERAL, Csv, Format, format_of, formatted
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
    "Format",
    "Memory",
    "PostgreSQL",
    "SEVERAL",
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
    "files_of",
    "fit_of",
    "format_of",
    "formatted",
    "is_address",
    "is_several",
    "load",
    "was_looked",
    "rand_hie",
    "version_of",
    "within",
]
