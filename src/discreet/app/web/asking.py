"""Handles requests to a worker for previews, questions in SQL and models: their descriptions are built here.

`wire` has the requests that hold a description. The `desk` of a handler holds the sessions that the worker
has open.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from ... import _registry, _require
from ..._errors import InvalidInput
from ...accounting.caps import requested_price_of
from ...curator.policy import check_epsilon
from ...mechanisms.statistics import length_of
from ...query import Query, WorkloadQuery
from ...session import Session
from ...session.base import refusing
from ...session.terms import Terms, WorkloadTerms
from .. import requests
from ..estimator_json import estimator_of, model_json
from .sessions import Desk, Options, Request, Result, numbers, session_of

# The cells of an answer, per row that may be sent. Chosen by hand, not tuned.
CELLS = 10


def account_json(session: Session) -> dict[str, Any]:
    """Return the account of the caller as JSON, and under "accounts" one line per account: there is one per
    period where budgets are per period."""
    with session.ledger.refreshed():
        account, accounts, budget = session.curator.account(session.analyst), session.accounts, session.budget
    return {
        "used": account.used,
        "remaining": account.left,
        "limit": float(account.rule.total),
        "unit": account.rule.unit,
        "budget": _registry.to_json(budget),
        "accounts": [requests.account_line(account) for account in accounts],
    }


def open_table(desk: Desk, request: Request) -> Result:
    """Open the table of a dataset and read its ledger now, so that the next request waits for neither."""
    desk.index(request["dataset"])
    return {}


def describe(desk: Desk, request: Request) -> Result:
    """Return the public facts of a dataset, the account of the caller, and the budgets that limit the caller:
    the dataset's, and their own, if they have one; with the "facts" that the front process adds."""
    session, options = session_of(desk, request)
    policy = session.curator.policy
    own = policy.of(request["analyst"])
    facts: Result = options.get("facts", {})
    return facts | {
        "public": _registry.to_json(session.public),
        "own_budget": own is not None,
        "account": account_json(session),
        "analyst": request["analyst"],
        "policy": {
            "budget": _registry.to_json(policy.budget),
            "own": None if own is None else _registry.to_json(own),
            **requests.limits_json(policy),
        },
    }


def budget(desk: Desk, request: Request) -> Result:
    """Return the account of the caller."""
    session, _ = session_of(desk, request)
    return account_json(session)


def preview(desk: Desk, request: Request) -> Result:
    """Return the price and expected error of a question, or of several answered together."""
    session, options = session_of(desk, request)
    # Only the routes set them; without a horizon nothing is said to be answered.
    times: Options = {name: options.pop(name) for name in ("horizon", "hidden") if name in options}
    text = options.pop("sql", None)
    questions, in_odds = options.pop("queries", None), options.pop("in_odds", False)
    if (text is None) == (questions is None):
        raise InvalidInput("a preview is of one question, sql=, or of several together, queries=: give one.")
    query_preview = session.preview(text if questions is None else questions, **numbers(options))
    query_preview = replace(query_preview, answered=requests.shown_time(query_preview.answered, times))
    facts = requests.preview_json(query_preview)
    if in_odds:
        # Only for the console (the pages in the browser): where noise is Gaussian, an accountant computes the
        # odds, which takes seconds.
        from ...explaining.odds import odds

        facts["odds"] = odds(query_preview.query.event, float(facts.get("delta") or 0.0))
    return facts


def sql(desk: Desk, request: Request) -> Result:
    """Answer a question, for its price."""
    session, options = session_of(desk, request)
    text, fresh = options.pop("sql"), bool(options.pop("fresh", False))
    terms = Terms(**numbers(options))
    query = session._query(text, terms)
    if terms.within is not None:
        # `verbs.handle` has checked any price but one that follows from an accuracy. Workloads have none.
        with _require.door():
            check_epsilon(query.epsilon, query.rho, large_epsilon=request["large_epsilon"])
    check_size(desk, query)
    with refusing(terms):
        release = session.curator.ask(query, analyst=session.analyst, text=text, fresh=fresh)
    answer = release.value[0] if isinstance(release.value, tuple) else release.value
    return requests.answer_json(answer, terms.confidence, session)


def workload(desk: Desk, request: Request) -> Result:
    """Answer several counting questions together, for one price."""
    session, options = session_of(desk, request)
    queries, fresh = options.pop("queries"), bool(options.pop("fresh", False))
    query = session._workload(queries, WorkloadTerms(**numbers(options)))
    check_size(desk, query)
    text = "; ".join(query.queries)
    answers = session.curator.ask(query, analyst=session.analyst, text=text, fresh=fresh).value
    return {"answers": [requests.answer_json(answer, 0.95, session) for answer in answers]}


def suggest(desk: Desk, request: Request) -> Result:
    """Find narrower bounds of a column of numbers, or the limits with which a question errs least."""
    session, options = session_of(desk, request)
    price = options["epsilon"]
    if "column" in options:
        bounds = session.suggest(options["column"], epsilon=price)
        return {"bounds": {"lower": bounds.lower, "upper": bounds.upper}}
    limits = session.suggest_limits(options["sql"], epsilon=price)
    return {"limits": {"rows": limits.rows, "groups": limits.groups, "error": limits.error}}


def check_size(desk: Desk, mechanism: Any) -> None:
    """Refuse an answer with more rows than may be sent, or more cells than ten times that, before it is
    charged. The numbers of a released vector are its rows."""
    columns = 1
    if isinstance(mechanism, Query | WorkloadQuery):
        rows = mechanism.declared_groups
        columns = len(mechanism.columns) if isinstance(mechanism, Query) else 1
    else:
        statistic: Any = getattr(mechanism, "statistic", None)
        rows = length_of(statistic, mechanism.public)
    if rows is not None and (rows > desk.rows or rows * columns > CELLS * desk.rows):
        raise InvalidInput(
            f"the answer would have {rows:,} groups with {columns:,} columns, and this server sends at most "
            f"{desk.rows:,} rows, and {CELLS * desk.rows:,} cells.",
            remedy="Ask about fewer groups.",
        )


# The verb of each piece of work of a run, by its field of the body.
RUNS = {"fit": "fit", "query": "sql", "workload": "workload", "ask": "ask", "synthesize": "synthesize"}


def parse_run(desk: Desk, request: Request) -> Result:
    """Return the work of a run, its verb by its field of the body, and the seconds of its job, if any."""
    options = request["options"]
    return {"work": [[p, v] for p, v in RUNS.items() if p in options], "seconds": options.get("seconds")}


def fit(desk: Desk, request: Request) -> Result:
    """Fit a described estimator; the model comes back as JSON."""
    session, options = session_of(desk, request)
    estimator = estimator_of(options["estimator"])
    fitted = session.fit(estimator, target=options.get("target"), features=options.get("features"))
    return model_json(fitted)


def preview_fit(desk: Desk, request: Request) -> Result:
    """Return the price of a model; free, and reads no data."""
    session, options = session_of(desk, request)
    estimator = estimator_of(options["estimator"])
    return price_json(session, session._mechanism_for(estimator, options["target"], None), estimator.epsilon)


def price_json(session: Session, mechanism: Any, epsilon: float) -> Result:
    """Return what a mechanism would cost that is asked for with an epsilon, and what that does to the
    budget."""
    price = requested_price_of(mechanism)
    cost = session.curator.preview(mechanism.event, analyst=session.analyst, requested_price=price)
    return {
        "event": mechanism.event.to_json(),
        "epsilon": float(epsilon),
        "delta": 0.0 if price is None else float(price.delta),
        "admitted": cost.admitted,
        "fits": cost.fits,
        "budget": asdict(cost),
    }
