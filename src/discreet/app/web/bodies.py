"""Defines the bodies of requests: numbers and lengths have limits, and unknown fields are refused.

The limits keep absurd requests from the workers. They are chosen by hand. A *live* mechanism is an
interactive one that was paid for at its start.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Collection, Mapping
from fractions import Fraction
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from ..._errors import InvalidInput
from ..._require import Real
from ...session.terms import Served, SynthesisTerms, Terms, WorkloadTerms, options_of

B = TypeVar("B", bound=type)

# An amount: a float, or an exact fraction such as {"fraction": "1/3"}.
Number = Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | dict[str, str]
SQL = Annotated[str, Field(min_length=1, max_length=20_000)]
Questions = Annotated[list[SQL], Field(min_length=1, max_length=200)]
# The name of a person (`store.add_person` checks the same) or of a dataset.
# Not of dots alone: "." and ".." are steps of a path, so that browsers ask for another page.
_NAME = r"^[A-Za-z0-9_.@-]*[A-Za-z0-9_@-][A-Za-z0-9_.@-]*$"
Name = Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME)]
# The same where a name stands in a path, which holds no step "." or "..".
NAME_IN_PATH = r"^[A-Za-z0-9_.@-]+$"
# Names of the periods that a question is about, where a budget is per period. None is the whole table, which
# every period pays for; a list that came out empty is refused, as `Session.during` refuses it.
Periods = Annotated[list[Annotated[str, Field(max_length=64)]], Field(min_length=1, max_length=64)] | None
# The number of an entry of the ledger, as the caller sees it (`sessions`).
EntryNumber = Annotated[int, Field(ge=1, le=2**53)]
# A mechanism, an estimator or a question as JSON; the worker checks it.
Described = dict[str, Any]


# How many bytes a body has at most: of most kinds, with 20,000 characters that JSON escapes, and of large
# ones. Chosen by hand, not tuned; `Settings.request_bytes` limits all of them.
SMALL, LARGE = 1 << 17, 1 << 20


class InvalidRequest(InvalidInput):
    """A body is JSON, and not of the right form."""


def problem(error: Mapping[str, Any]) -> str:
    """Return which field of a request is wrong and why, from the first error of its validation. A name is not
    explained by its pattern but in words."""
    # "[key]" says that the error is about a key, such as an analyst's name, which stands before it.
    field = ".".join(str(part) for part in error["loc"] if part not in ("body", "[key]"))
    if error.get("ctx", {}).get("pattern") in (_NAME, NAME_IN_PATH):
        return f"{field}: a name has letters a to z, A to Z, digits and _ . @ - only, and not dots alone"
    return f"{field}: {error['msg']}"


class Body(BaseModel):
    """What all bodies share: an unknown field is an error, and so is a value of another type.

    Without `strict`, pydantic would take true for an epsilon of 1, and "yes" for a flag.
    """

    model_config = ConfigDict(extra="forbid", strict=True)
    most_bytes: ClassVar[int] = SMALL


def parse(kind: type[Body], sent: bytes) -> Any:
    """Return the body in the bytes of a request. The error says which field is wrong and why, and does not
    repeat its value."""
    try:
        return kind.model_validate_json(sent or b"null")
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        field = str(first["loc"][0]) if first["loc"] else None
        kind_of_error = InvalidInput if first["type"] == "json_invalid" else InvalidRequest
        wrong = kind_of_error(f"{problem(first)}.", option=field)
        wrong.charged = False
        raise wrong from None


def fields_of(body: Body) -> dict[str, Any]:
    """Return the fields of a body by name, without those that are None."""
    return {name: value for name, value in body.model_dump().items() if value is not None}


class PaidBody(Body):
    """What is to be paid for: without `large_epsilon` an epsilon above 20 is refused (`verbs.handle`)."""

    large_epsilon: bool = False


def served(kind: Any) -> Any:
    """Return the type of an option as a request has it: amounts may be fractions, and a type that says what a
    server takes of it (`terms.Served`) has these limits."""
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [Field(**part.field) for part in parts[1:] if isinstance(part, Served)]
        return Annotated[parts[0], *limits] if limits else parts[0]
    if origin in (Union, UnionType):
        # an exact amount is a union of kinds of numbers
        amount: list[Any] = [Number] if Fraction in parts else []
        others = [part for part in parts if not (amount and part in get_args(Real))]
        return functools.reduce(operator.or_, amount + [served(part) for part in others])
    return kind


def has_options(terms: type, *, without: Collection[str] = (), optional: bool = False) -> Callable[[B], B]:
    """Decorate a body so that it has the options of a list (`session.terms`), but for those that it
    declares itself and for those in `without`. With `optional`, each of them may be left out."""

    def extended(body: Any) -> Any:
        options = [
            option for name, option in options_of(terms).items() if name not in {*without, *body.model_fields}
        ]
        added: dict[str, Any] = {
            option.name: (served(option.kind | None), None)
            if optional
            else (served(option.kind), ... if option.default is dataclasses.MISSING else option.default)
            for option in options
        }
        return create_model(body.__name__, __base__=body, __doc__=body.__doc__, __module__=__name__, **added)

    return extended


@has_options(Terms)
class TermsBody(Body):
    """The price or the accuracy of a question, as in `Session.sql`."""

    weights: Annotated[dict[str, Number], Field(max_length=100)] | None = None
    periods: Periods = None


class PreviewBody(TermsBody):
    """A question in SQL whose price and error are to be shown, or several that are answered together: exactly
    one of `sql` and `queries`."""

    most_bytes = LARGE
    sql: SQL | None = None
    queries: Questions | None = None


class QueryBody(TermsBody, PaidBody):
    """A question in SQL, to be paid for."""

    sql: SQL
    fresh: bool = False


@has_options(WorkloadTerms)
class WorkloadBody(PaidBody):
    """Several counting questions, answered together, to be paid for."""

    most_bytes = LARGE
    queries: Questions
    fresh: bool = False
    periods: Periods = None


class MechanismBody(Body):
    """A mechanism by its JSON description, and the price that is expected, an event (`wire`)."""

    most_bytes = LARGE
    mechanism: Described
    claim: Described | None = None
    periods: Periods = None


class StartBody(MechanismBody):
    """A live mechanism to be paid for, and the price that it is expected to have, as `price` returns it."""

    claim: Described


class AskBody(StartBody):
    """A mechanism to be paid for."""

    fresh: bool = False


class AnswerBody(Body):
    """A question to the live mechanism with this number: a condition in SQL, or a description."""

    most_bytes = LARGE
    number: EntryNumber
    question: SQL | Described
    periods: Periods = None


Column = Annotated[str, Field(min_length=1, max_length=256)]


class FitBody(Body):
    """A model: the name and parameters of an estimator, the column to predict, and the columns to predict it
    from. `target` is None for an estimator that predicts nothing, such as `PCA`."""

    most_bytes = LARGE
    estimator: Described
    target: Column | None = None
    features: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=1000)] | None = None
    periods: Periods = None


class WorkBody(Body):
    """A piece of work of a plan: exactly one of `sql`, `queries` and `estimator`, with its options."""

    sql: SQL | None = None
    queries: Questions | None = None
    estimator: Described | None = None
    target: Column | None = None
    features: Annotated[list[Column], Field(max_length=1000)] | None = None
    weight: Annotated[float, Field(gt=0, le=1e9)] | None = None
    within: Annotated[float, Field(gt=0, le=1e300, allow_inf_nan=False)] | None = None
    rows: Annotated[int, Field(ge=1, le=10**9)] | None = None


class PlanBody(Body):
    """Work to be planned under one epsilon, as in `Session.plan`."""

    most_bytes = LARGE
    work: Annotated[list[SQL | Questions | WorkBody], Field(min_length=1, max_length=50)]
    epsilon: Annotated[float, Field(gt=0, le=1e6)]
    together: bool = True
    periods: Periods = None


@has_options(Terms, without=("rho", "weights"), optional=True)
class ExplainBody(Body):
    """What is to be explained: a question in SQL with its terms, a stored release by its number, an epsilon,
    or else the ledger."""

    sql: SQL | None = None
    number: Annotated[int, Field(ge=1, le=2**53)] | None = None
    audience: Annotated[str, Field(pattern="^(public|policy|engineer)$")] | None = None
    periods: Periods = None


Finite = Annotated[float, Field(allow_inf_nan=False)]
# An edge of a bin: a number, or a date as text.
Edge = Finite | Annotated[str, Field(max_length=64)]
# The bins of a column: how many there are, or their edges.
Bins = Annotated[int, Field(ge=1, le=10**6)] | Annotated[list[Edge], Field(max_length=10_000)]


@has_options(SynthesisTerms)
class SynthesizeBody(PaidBody):
    """A synthetic copy, as in `Session.synthesize`."""

    most_bytes = LARGE
    columns: Annotated[list[Column], Field(min_length=1, max_length=1000)] | None = None
    bins: Annotated[dict[Column, Bins], Field(max_length=1000)] | None = None
    missing: Annotated[dict[Column, bool], Field(max_length=1000)] | None = None
    constraints: Annotated[list[Annotated[str, Field(max_length=600)]], Field(max_length=100)] | None = None
    options: Annotated[dict[str, int | Finite | bool], Field(max_length=20)] | None = None
    fresh: bool = False
    periods: Periods = None


class CopyQueryBody(Body):
    """A question in SQL to a synthetic copy; `rows` and `seed` say which rows are drawn."""

    sql: SQL
    rows: Annotated[int, Field(ge=1, le=10**7)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None


# A table as JSON: the cells of each column, which `wire.decode_rows` checks.
Rows = Annotated[dict[Column, list[Any]], Field(max_length=1000)]


class ArrowBody(Body):
    """A table as an Arrow stream in base64."""

    arrow: Annotated[str, Field(max_length=1 << 20)]


class FeedBody(Body):
    """What a live mechanism goes on with: one tick of a stream, with a name for it, and the new rows, which
    only the steward may send; or the server's table as it is now.

    A stream with a clock takes the rows of the tick from the table if none are sent.
    """

    most_bytes = LARGE
    number: EntryNumber
    rows: ArrowBody | Rows | None = None
    tick: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    periods: Periods = None


class Released(BaseModel):
    """What a mechanism has released: its value (`curator.values`), its event, and pairs of a confidence and
    the error that is not exceeded with it. `number` is that of a live mechanism."""

    value: Any
    event: Described | None
    errors: list[Any]
    scored: bool = False
    mark: str
    number: int | None = None
    released: bool = True


class Started(BaseModel):
    """A live mechanism that was paid for: the number of its charge, its event and its description."""

    number: int
    event: Described
    mechanism: Described


class RunBody(Body):
    """Work: exactly one of the fields after `seconds`. With `seconds` it is a job, whose result is shown
    after that time; without, it is answered within the public time of a question."""

    most_bytes = LARGE
    seconds: Annotated[float, Field(gt=0, le=10**6)] | None = None
    fit: FitBody | None = None
    query: QueryBody | None = None
    workload: WorkloadBody | None = None
    ask: AskBody | None = None
    synthesize: SynthesizeBody | None = None


class BudgetBody(Body):
    """A budget: a limit on either `epsilon` or `rho`, with its `delta`."""

    epsilon: Annotated[float, Field(gt=0, le=1e6)] | None = None
    rho: Annotated[float, Field(gt=0, le=1e6)] | None = None
    delta: Annotated[float, Field(ge=0, lt=1)] = 0.0


class PolicyBody(Body):
    """The dataset's budget, and the analysts' own by name; an analyst with null is limited by the dataset's
    budget only. `large_delta`: accept a delta that is not far below 1 / (number of people). `large_epsilon`:
    accept budgets above 20. Limits that are left out stay; 0 removes one."""

    most_bytes = LARGE
    budget: BudgetBody
    analysts: Annotated[dict[Name, BudgetBody | None], Field(max_length=10_000)]
    max_per_day: Annotated[float, Field(ge=0, le=1e6)] | None = None
    max_per_question: Annotated[float, Field(ge=0, le=1e6)] | None = None
    min_people: Annotated[int, Field(ge=0, le=10**9)] | None = None
    large_delta: bool = False
    large_epsilon: bool = False


class PersonBody(Body):
    """A person and their role."""

    name: Name
    role: Annotated[str, Field(pattern="^(steward|analyst|auditor)$")]


class TokenBody(Body):
    """How many days a token lasts; null is the server's default. The limit is that of `store.issue_token`."""

    days: Annotated[float, Field(gt=0, le=3660)] | None = None


class DraftBody(Body):
    """A file under a configured root, whose schema is to be drafted."""

    path: Annotated[str, Field(min_length=1, max_length=1000)]


class DatasetBody(Body):
    """A new dataset: its file, its schema (TOML, as drafted and completed), its budget and its analysts.

    The schema is left out if its file is beside the data already, the budget and the analysts if the data has
    a ledger already.
    """

    most_bytes = LARGE
    name: Name
    path: Annotated[str, Field(min_length=1, max_length=1000)]
    schema_text: Annotated[str, Field(max_length=200_000)] | None = None
    budget: BudgetBody | None = None
    analysts: Annotated[dict[Name, BudgetBody | None], Field(max_length=10_000)] = {}
    large_epsilon: bool = False
