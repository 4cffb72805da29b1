"""The bodies of requests: every field with its limits, nothing else accepted."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Number = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | dict[str, str]
SQL = Annotated[str, Field(min_length=1, max_length=20_000)]
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.@-]+$")]
Periods = Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=64)] | None
Described = dict[str, Any]


class Body(BaseModel):
    """What all bodies share: a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class Terms(Body):
    """The price or the accuracy of a question, as in `Session.sql`."""

    epsilon: Number | None = None
    rho: Number | None = None
    within: Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False)] | None = None
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    noise: Annotated[str, Field(pattern="^(auto|laplace|gaussian)$")] = "auto"
    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    groups: Annotated[int, Field(ge=1, le=10**9)] | None = None
    weights: Annotated[dict[str, Number], Field(max_length=100)] | None = None
    other: bool = False
    periods: Periods = None


class PreviewBody(Terms):
    """A question in SQL."""

    sql: SQL


class QueryBody(PreviewBody):
    """A question in SQL, to be paid for."""

    fresh: bool = False


class WorkloadPreviewBody(Body):
    """Several counting questions."""

    queries: Annotated[list[SQL], Field(min_length=1, max_length=200)]
    epsilon: Number | None = None
    rho: Number | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] | None = None
    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None
    periods: Periods = None


class WorkloadBody(WorkloadPreviewBody):
    """Several counting questions, to be paid for."""

    fresh: bool = False


class MechanismBody(Body):
    """A mechanism by its JSON description."""

    mechanism: Described
    periods: Periods = None


class AskBody(MechanismBody):
    """A mechanism to be paid for."""

    fresh: bool = False


class WatchBody(Body):
    """A watch on counts, as in `Session.watch`."""

    threshold: Annotated[int, Field(ge=-(10**15), le=10**15)]
    epsilon: Number
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0
    positives: Annotated[int, Field(ge=1, le=10**6)] = 1
    numeric: bool = False
    gap: bool = False
    questions: Annotated[int, Field(ge=1, le=10**9)] | None = None
    sensitivity: Annotated[int, Field(ge=1, le=10**9)] = 1
    monotone: bool | None = None
    periods: Periods = None


class QuestionBody(Body):
    """A question to a live mechanism: a condition in SQL, or a description."""

    question: SQL | Described
    periods: Periods = None


class FitBody(Body):
    """A model of one column: the name and parameters of an estimator."""

    estimator: Described
    target: Annotated[str, Field(min_length=1, max_length=256)]
    features: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=1000)] | None = None
    periods: Periods = None


class JobBody(Body):
    """Long work: one of the other bodies, and when its result is to be there."""

    seconds: Annotated[float, Field(gt=0, le=10**6)] = 60.0
    fit: FitBody | None = None
    query: QueryBody | None = None
    workload: WorkloadBody | None = None
    ask: AskBody | None = None


class BudgetBody(Body):
    """A budget."""

    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    rho: Annotated[float, Field(gt=0, le=1e6)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0


class PolicyBody(Body):
    """The dataset's budget, and those of analysts; null is one limited by the dataset's only."""

    budget: BudgetBody
    analysts: Annotated[dict[Name, BudgetBody | None], Field(max_length=10_000)]
    large_delta: bool = False


class PersonBody(Body):
    """A person and their role."""

    name: Name
    role: Annotated[str, Field(pattern="^(steward|analyst|auditor)$")]


class TokenBody(Body):
    """How long a token lasts."""

    days: Annotated[float, Field(gt=0, le=3660)] | None = None


class DraftBody(Body):
    """A file under a configured root."""

    path: Annotated[str, Field(min_length=1, max_length=1000)]


class DatasetBody(Body):
    """A new dataset: its file, its schema (TOML, as drafted and completed) and its budget."""

    name: Name
    path: Annotated[str, Field(min_length=1, max_length=1000)]
    schema_text: Annotated[str, Field(max_length=200_000)] | None = None
    budget: BudgetBody | None = None
    analysts: Annotated[dict[Name, BudgetBody | None], Field(max_length=10_000)] = {}
