"""One Spark for all tests of a process: two threads on this machine, no pages, little memory."""

from __future__ import annotations

import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

CONFIG = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.warehouse.dir": "/nonexistent",
    "spark.log.level": "OFF",
    # A worker of Python starts in 15 seconds on a quiet machine only.
    "spark.python.authenticate.socketTimeout": "600s",
    # A few hundred small queries: what the second compiler and the threads of a parallel collector do for them
    # costs more than it saves.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def missing() -> str | None:
    """Why Spark cannot be tried here; None if it can."""
    java = Path(os.environ.get("JAVA_HOME", "")) / "bin" / "java"
    if shutil.which("java") is None and not (os.environ.get("JAVA_HOME") and java.exists()):
        return "SKIPPED ALL SPARK TESTS: there is no Java. Install Java 17 (apt-get install openjdk-17-jre-headless)."
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "SKIPPED ALL SPARK TESTS: there is no pyspark. pip install 'discreet[spark]'."
    return None


@cache
def session() -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("discreet tests")
    for name, value in CONFIG.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
