"""`discreet plan`: splits one epsilon among questions and models that a TOML file lists; nothing is charged
without --run."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._errors import InvalidInput
from ..._text import visible
from ...curator.policy import check_epsilon
from ...planning import BudgetPlan
from ...query import Answer
from ...tables.engines.postgres_tables import is_address
from .options import JSON, LARGE_EPSILON, Opening
from .parser import Only

FILE = typer.Argument(
    ..., help="A TOML file: data, epsilon, and a [\\[work]] for each question or model.", show_default=False
)
RUN = typer.Option(False, "--run", help="Run the plan. Each piece is charged before it is answered.")
# "together" (true by default): whether counting queries may be answered as one workload where that is
# predicted to have a smaller error (`planning.plan`).
_PLAN_KEYS = {"data", "epsilon", "together", "work"}


def plan(
    file: Path = FILE,
    run: bool = RUN,
    *,
    opening: Annotated[Opening, Only("schema ledger analyst")],
    large_epsilon: bool = LARGE_EPSILON,
    as_json: bool = JSON,
) -> None:
    settings = _read_plan(file)
    data = settings["data"]
    # A relative path is relative to the plan file.
    if not is_address(data) and not Path(data.partition("::")[0]).is_absolute():
        data = str(file.parent / data)
    session = opening.session(data)
    budget_plan = session.plan(
        [_work_with_model(entry) for entry in settings["work"]],
        epsilon=settings["epsilon"],
        together=settings.get("together", True),
    )
    if run:
        check_epsilon(settings["epsilon"], large_epsilon=large_epsilon)
    results = budget_plan.run() if run else None
    if as_json:
        print(json.dumps(_plan_json(budget_plan, results)))
        return
    print(visible(str(budget_plan), keep="\n"))
    for answer in _answers(results or ()):
        print(visible(str(answer), keep="\n"))
    if not run:
        print("nothing was charged; --run runs the plan")


def _read_plan(file: Path) -> dict[str, Any]:
    """Read a plan file; refuse one that lacks data, work or epsilon."""
    if not file.exists():
        raise InvalidInput(f"there is no file {str(file)!r}.")
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InvalidInput(f"the plan {str(file)!r} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise InvalidInput(f"{str(file)!r} is not TOML: {error}.") from None
    if unknown := sorted(set(settings) - _PLAN_KEYS):
        raise InvalidInput(f"a plan has no {unknown[0]!r}; it has {', '.join(sorted(_PLAN_KEYS))}.")
    work = settings.get("work")
    if (
        not isinstance(settings.get("data"), str)
        or not isinstance(work, list)
        or not all(isinstance(w, dict) for w in work)
    ):
        raise InvalidInput('a plan needs data = "file.parquet" and one [[work]] for each question.')
    if "epsilon" not in settings:
        raise InvalidInput("a plan needs epsilon = 1.0, what all of it may cost.")
    return settings


def _work_with_model(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a piece of work in which the name of a model ("model") is replaced by the estimator of that name
    ("estimator")."""
    if "model" not in entry:
        return entry
    # imported here: slow to load, and only plans with models need it
    from ... import learning, tabular

    name, options = entry["model"], {key: value for key, value in entry.items() if key != "model"}
    # classes with `adopt` are estimators that a session can fit
    package = tabular if name in tabular.__all__ else learning
    kind = getattr(package, name) if name in package.__all__ else None
    if kind is None or not hasattr(kind, "adopt"):
        raise InvalidInput(
            f"there is no model {name!r} in discreet.tabular or discreet.learning; there is "
            "LogisticRegression, for example."
        )
    return {**options, "estimator": kind()}


def _answers(results: tuple[Any, ...]) -> list[Answer]:
    """Return the answers among the results; a workload has a tuple of them, and models are left out."""
    flat = [value for result in results for value in (result if isinstance(result, tuple) else (result,))]
    return [value for value in flat if isinstance(value, Answer)]


def _plan_json(budget_plan: BudgetPlan, results: tuple[Any, ...] | None) -> dict[str, Any]:
    """Return a plan, and the answers where it was run, as JSON."""
    items = [
        {"work": item.work.name, "weight": item.weight, "epsilon": item.epsilon, "error": item.error}
        for item in budget_plan.items
    ]
    body: dict[str, Any] = {"epsilon": budget_plan.epsilon, "items": items, "run": results is not None}
    if results is not None:
        body["answers"] = [
            {"columns": list(a.columns), "rows": [list(row) for row in a.rows], "errors": a.error()}
            for a in _answers(results)
        ]
    return body
