"""What servers and their workers load before the first request, loaded once: `run_server` forks both from it."""

import duckdb  # noqa: F401
import pandas  # noqa: F401  (Arrow loads it when it first converts a list)
import uvicorn  # noqa: F401

from discreet.app.cli import serve  # noqa: F401
from discreet.app.web import build, workers  # noqa: F401

workers.load_packages()
