"""What every worker of a server loads before its first request, loaded once: `run_server` forks workers from it."""

import duckdb  # noqa: F401
import pandas  # noqa: F401  (Arrow loads it when it first converts a list)

from discreet.app.web.workers import load_packages

load_packages()
