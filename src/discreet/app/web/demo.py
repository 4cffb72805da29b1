"""Sets up the demonstration: the RAND health insurance table, a steward, two analysts and an auditor."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import Any

from ..._public import Public, Unit
from ...curator import Budget
from ...tables import dump
from ...tables.bundled import SCHEMA
from ..requests import create_session
from .settings import Settings
from .store import Dataset, Role, ServerStore

PEOPLE = (
    ("steward", Role.STEWARD),
    ("ann", Role.ANALYST),
    ("bob", Role.ANALYST),
    ("olga", Role.AUDITOR),
)
TABLE = "health"


def demo_settings(folder: Path, options: dict[str, Any], *, epsilon: float = 10.0) -> Settings:
    """Create the data and the state of a demonstration in a new folder; return the settings to serve it with.

    `options` are fields of `Settings`; one that is None keeps its default. The table is public, so that the
    time of an answer need not be hidden: answers leave at ticks of a quarter second by default.
    """
    data = folder / "data"
    data.mkdir(parents=True, exist_ok=True)
    table = data / f"{TABLE}.parquet"
    table.write_bytes(resources.files("discreet").joinpath("data/rand_hie.parquet").read_bytes())
    schema, ledger = Path(f"{table}.schema.toml"), Path(f"{table}.ledger")
    public = Public(schema=SCHEMA, unit=Unit("person", rows=5), table=TABLE, version="1")
    schema.write_text(dump(public), encoding="utf-8")
    # Each analyst may spend four tenths of the whole.
    budgets = {
        "ann": Budget(epsilon=epsilon * 0.4, delta=4e-7),
        "bob": Budget(epsilon=epsilon * 0.4, delta=4e-7),
    }
    budget = Budget(epsilon=epsilon, delta=1e-6)
    fields = {"tick": 0.25} | {name: value for name, value in options.items() if value is not None}
    settings = Settings(state=folder / "state", roots=(data,), demo=True, **fields)
    create_session(
        table,
        schema=schema,
        ledger=ledger,
        budget=budget,
        analysts=budgets,
        books=settings.books(TABLE),
        # the data of the demo is public, and tests ask it at any price
        large_epsilon=True,
    )
    store = ServerStore(folder / "state")
    tokens = []
    for name, role in PEOPLE:
        store.add_person(name, role)
        # A token for one day; its public id, the second item, is not shown.
        tokens.append((name, str(role), store.issue_token(name, 1)[0]))
    store.add_dataset(Dataset(TABLE, str(table), str(schema), str(ledger)))
    store.set_grants(TABLE, list(budgets))
    store.close()
    return dataclasses.replace(settings, demo_tokens=tuple(tokens))
