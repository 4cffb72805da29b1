"""What somebody with write access to the file can do: change rows, and leave the schema as it was."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

Statement = str | tuple[str, tuple[object, ...]] | Callable[[sqlite3.Connection], object]


def tamper(path: Path, *statements: Statement) -> None:
    """Run statements on a ledger with its triggers taken away, and put these back."""
    db = sqlite3.connect(path)
    triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
    for name, _ in triggers:
        db.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        if callable(statement):
            statement(db)
        else:
            db.execute(*((statement,) if isinstance(statement, str) else statement))
    for _, sql in triggers:
        db.execute(sql)
    db.commit()
    db.close()
