"""Contains the engines that answer queries: DuckDB (embedded), PostgreSQL and Spark.

Each engine is a module here (`duckdb`, `postgres`, `spark`). The module of its dialect (`duckdb_dialect` and
so on) writes every node of `tables.semantics` in the SQL of that engine.

`tests/contracts/engines.py` lists the engines, and the tests beside it hold all of them to the same contract.
"""
