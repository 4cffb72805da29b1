"""`discreet policy`: shows and changes who may spend how much. It needs the ledger's key, and reads no
data."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

from ..._errors import InvalidInput
from ...curator import Budget
from ...curator.curator import without_data
from ..requests import analyst_of, policy_json
from .ledger import LEDGER
from .options import JSON, LARGE_DELTA, LARGE_EPSILON

WARNING = (
    "warning: decide about budgets without looking at answers. A budget that was chosen because of "
    "what was released promises less: the deltas of all budgets that might have been chosen add up "
    "(docs/proofs/filters.md)."
)


def policy(
    path: Path = LEDGER,
    analyst: list[str] = typer.Option(
        [],
        "--analyst",
        help="Add, or change: NAME, or NAME=EPSILON or NAME=EPSILON,DELTA for a budget of their own.",
    ),
    remove: list[str] = typer.Option(
        [], "--remove", help="This analyst may ask nothing more. What they spent stays spent."
    ),
    epsilon: float = typer.Option(None, "--epsilon", help="The dataset's budget from now on."),
    delta: float = typer.Option(None, "--delta", help="Of the dataset's budget from now on."),
    max_per_day: float = typer.Option(
        None, "--max-per-day", help="The most that one asker spends on one day (UTC); 0 is no limit."
    ),
    max_per_question: float = typer.Option(
        None, "--max-per-question", help="The most that one question costs; 0 is no limit."
    ),
    min_people: int = typer.Option(
        None, "--min-people", help="Answers in SQL show no group of fewer people; 0 shows all."
    ),
    large_delta: bool = LARGE_DELTA,
    large_epsilon: bool = LARGE_EPSILON,
    as_json: bool = JSON,
) -> None:
    curator = without_data(path)
    before = curator.policy
    analysts = dict(before.analysts)
    if unknown := [name for name in remove if name not in analysts]:
        raise InvalidInput(f"{unknown[0]!r} is not an analyst of this dataset. Nothing was changed.")
    changed = [analyst_of(text) for text in analyst]
    names = [*remove, *(name for name, _ in changed)]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"{repeated[0]!r} is named more than once in --analyst and --remove. Nothing was changed. Say "
            f"once what the analyst may spend, or remove them."
        )
    analysts = {name: budget for name, budget in analysts.items() if name not in remove} | dict(changed)
    asked = {"max_per_day": max_per_day, "max_per_question": max_per_question, "min_people": min_people}
    limits: dict[str, Any] = {name: limit or None for name, limit in asked.items() if limit is not None}
    after = dataclasses.replace(
        before, budget=_budget(before.budget, epsilon, delta), analysts=tuple(analysts.items()), **limits
    )
    if after != before:
        if (after.budget, after.analysts) != (before.budget, before.analysts):
            Console(stderr=True).print(Text(WARNING, style="yellow"), soft_wrap=True)
        curator.change_policy(after, large_delta=large_delta, large_epsilon=large_epsilon)
    if as_json:
        print(json.dumps(policy_json(after) | {"changed": after != before}))
        return
    print(f"dataset: {after.budget}")
    for name, budget in after.analysts:
        print(f"{name}: {'limited by the dataset only' if budget is None else budget}")
    for name, limit in after.limits.items():
        print(f"{name}: {limit}")


def _budget(budget: Budget, epsilon: float | None, delta: float | None) -> Budget:
    """Return the dataset's budget with a new epsilon or delta, where one is given."""
    if epsilon is not None and budget.epsilon is None:
        raise InvalidInput(
            "this dataset's budget is in rho (zero-concentrated privacy), and stays so. Nothing was changed."
        )
    changes = {name: value for name, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    return dataclasses.replace(budget, **changes)  # type: ignore[arg-type]
