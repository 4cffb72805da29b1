"""The engines that answer queries: DuckDB (embedded), PostgreSQL and Spark.

Each engine is a module here, with the `Dialect` that writes the closed set of nodes for it.

`tests/contracts/engines.py` lists them; what an engine must do is tested there for all of them alike.
"""
