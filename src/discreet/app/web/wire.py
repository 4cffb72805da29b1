"""Handles the six verbs of the wire: `ask`, `start`, `answer`, `feed` and `run` a description, and `read`
what was released (`price`, `live` and `all_live`; `bookkeeping` and `asking` read the rest).

`RemoteCurator` is their client. A request holds a description, the JSON of a class in `NETWORK`, and a
*claim*: the price, an event, that the client expects. The worker builds the mechanism again, computes the
event itself, and refuses the request if it is another one. A *live* mechanism is an interactive one, which
was paid for at its start; its number is that of its charge.

Guarantee: nothing that comes over the network makes an object of a class that is not in `NETWORK`, or of a
           third party's that the steward has allowed; and nothing is charged but the event of the mechanism
           that was built here.
Proof:     `read` compares every tag of a description with the list before any class is looked up.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from ... import _registry
from ..._errors import DiscreetError, InvalidInput, PrivateFact, PublicMismatch
from ..._public import Public
from ...curator import STEWARD, values
from ...curator.tickets import STATE, TICKET
from ...mechanisms.protocols import BaseMechanism, Interactive, Mechanism, Release, as_of
from ...query import Query, WorkloadQuery
from ...query.statistic import where
from ...session import Session
from ...session.streams import kind_of
from ...streaming import ContinualCounter, Latest, OnlineLearner
from .. import requests
from .asking import check_size
from .bodies import InvalidRequest
from .bookkeeping import page, read_entries
from .sessions import Desk, Request, Result, entry_number, session_of, shown_number

# The classes whose descriptions are read from the network, by package: what analysts ask with, and its parts.
# Not here: events, budgets, models and their training (estimators are sent by their names, `estimator_json`;
# of "learning" only strategies of streams, and what principal components need), and leaderboards without a
# guarantee.
_NAMES = """
public: Boolean Bounds Categories Dates Public Reference Related Text Unit
query: Mean PublicSize Query Range SqlStatistic SqlVector WorkloadQuery
mechanisms: AboveThreshold AddNoise ApproximateQuantiles CellCounts CellDistances Clamp Count CountNonNull
  CountsBelow Design DistanceToInstability Entry ExponentialMechanism Fold GridGaussian GridLaplace
  GroupPrivate Histogram HistogramBounds InputPerturbation IntegerGaussian IntegerLaplace Kary Mean
  MeanWithFoundBounds Parallel PartMean PartMode PermuteAndFlip PostProcessed PowerSum
  ProposeTestRelease Quantile RandomizedResponse RedrawnSparseVector ReportNoisyMax Reports Round
  SampleAndAggregate Select Sequential SmoothSensitivityMedian SparseVector StableMedian StableMode
  StableSparseVector Stack SubsampleAggregateStable TopK Truncate Variance
learning: Dense Design SecondMoments Toeplitz
matrix: AllRanges Attribute BinaryTree Buffered Cells Explicit Fourier Haar Identity Lower Marginals Optimal
  PIdentity Prefix Product Residuals Total Tree Union WeightedTree WorkloadMechanism
adaptive: AlphaInvesting GeneralizedAlphaInvesting Lord3 LordPlusPlus
  BernoulliChange Binomial Bound ChangeWatch Changepoint Check CrossCounts Decision Estimate
  GaussianChange GoodnessOfFitTest GroupSums Hypothesis IndependenceTest LikelihoodScores Listed Paprika
  PowerLaw PrivateBenjaminiHochberg ProportionTest RankScores TestResult Thresholdout TruncatedExponential
  TwoSampleMeanTest YesNo
streaming: Advance Ball Box ClippedGradients ContinualCounter Latest LinearLoss
  LogisticLoss OnlineLearner Presence RunningSum Simplex SquaredDistance SquaredLoss
synthetic: AIM Constraint CopyDistance Domain DomainColumn Fitted Independent MST MWEM MarginalCounts
  MeasuredTable
"""
NETWORK = frozenset(
    f"{package}.{name}"
    for package, names in (part.split(":") for part in _NAMES.strip().replace("\n  ", " ").splitlines())
    for name in names.split()
)


def read(description: Any) -> Any:
    """Return the object of a description from the network, whose classes must all be in `NETWORK`."""
    for tag in _registry.tags_in(description):
        if tag not in NETWORK and not _registry.is_other(tag):
            raise InvalidInput(
                f"{tag!r} is not a description that is read from the network.",
                remedy="Ask the steward to run it in their own process, with dp.open(...).",
            )
    return _registry.from_json(description)


def mechanism_of(options: dict[str, Any], public: Public, *kinds: type[BaseMechanism]) -> Any:
    """Return the mechanism that a request describes; refuse it unless it is one of `kinds`, was made for the
    public facts of this dataset, and has the price that the request claims."""
    mechanism = read(options["mechanism"])
    if not isinstance(mechanism, kinds):
        raise InvalidInput(f"{type(mechanism).__name__} is not a mechanism that can be asked for here.")
    if mechanism.public != public:
        raise PublicMismatch(
            "the mechanism was described for other public facts than this dataset has now.",
            remedy="Build it from the session's own `public`.",
        )
    claim = options.get("claim")
    if claim is not None and claim != mechanism.event.to_json():
        raise InvalidInput(
            f"the price of this {type(mechanism).__name__} is not the one that the request claims.",
            remedy="The client and the server may be of different versions of discreet.",
            option="claim",
        )
    return mechanism


def text_of(mechanism: Any) -> str | None:
    """Return the question of a mechanism in words, for the record. A client does not choose them."""
    if isinstance(mechanism, WorkloadQuery):
        return "; ".join(mechanism.queries)
    if isinstance(mechanism, Query):
        return mechanism.sql
    method = getattr(mechanism, "method", None)
    return f"synthetic copy by {method}" if isinstance(method, str) else None


def price(desk: Desk, request: Request) -> Result:
    """Return what a described mechanism would cost, and when its answer was given; free."""
    session, options = session_of(desk, request)
    mechanism = mechanism_of(options, session.public, Mechanism, Interactive)
    cost, answered = session.curator.quote(mechanism, analyst=session.analyst)
    return {
        "event": mechanism.event.to_json(),
        "admitted": cost.admitted,
        "fits": cost.fits,
        "answered": requests.shown_time(answered, options),
        "budget": asdict(cost),
    }


def ask(desk: Desk, request: Request) -> Result:
    """Run a described mechanism, for its price."""
    session, options = session_of(desk, request)
    mechanism = mechanism_of(options, session.public, Mechanism)
    check_size(desk, mechanism)
    fresh = bool(options.get("fresh", False))
    return release_json(
        session.curator.ask(mechanism, analyst=session.analyst, text=text_of(mechanism), fresh=fresh)
    )


def start(desk: Desk, request: Request) -> Result:
    """Pay for a described live mechanism, and open it."""
    session, options = session_of(desk, request)
    mechanism = mechanism_of(options, session.public, Interactive)
    check_size(desk, mechanism)
    live = session.start(mechanism)
    return {
        "number": shown_number(desk, request, live.number),
        "event": live.mechanism.event.to_json(),
        "mechanism": _registry.to_json(live.mechanism),
    }


def answer(desk: Desk, request: Request) -> Result:
    """Answer a question to a live mechanism; only the person who started it may ask."""
    session, options = session_of(desk, request)
    mechanism, number = own_mechanism(desk, request, session, owner_only=True)
    live = session.curator.resume(mechanism, number)
    question = options["question"]
    described = where(question, live.mechanism.public) if isinstance(question, str) else read(question)
    return release_json(live.answer(described)) | {"number": options["number"]}


def feed(desk: Desk, request: Request) -> Result:
    """Continue a live mechanism: a stream with one tick, of the table's rows if the stream has a clock (a
    column of dates), else of the rows that the steward sends; another one with the table as the server has it
    now, the next version of the table."""
    session, options = session_of(desk, request)
    mechanism, number = own_mechanism(desk, request, session)
    rows, tick = options.get("rows"), options.get("tick")
    if rows is not None and request["analyst"] != STEWARD:
        raise PrivateFact(
            "new rows come from the steward.",
            remedy="An analyst closes the ticks of a stream with a clock, whose rows are in the table.",
        )
    release: Release | None
    is_stream = isinstance(mechanism, ContinualCounter | OnlineLearner)
    if is_stream and (mechanism.clock is not None or rows is not None or tick is not None):
        # The stream was started on an earlier version of the table.
        current = as_of(mechanism, session.public)
        stream = kind_of(current).resume(session, current, number)
        release = stream.feed(None if rows is None else decode_rows(rows), tick=tick)
    else:
        release = session.feed(mechanism, number=number).release
    facts: Result = {"value": None, "event": None, "errors": []} if release is None else release_json(release)
    return facts | {"number": options["number"], "released": release is not None}


def own_mechanism(
    desk: Desk, request: Request, session: Session, *, owner_only: bool = False
) -> tuple[Any, int]:
    """Return the live mechanism with the number in the request, and the ledger's number of its charge. The
    caller must have started it; the steward may use all, but for `owner_only`.

    An unknown number and another person's give the same error, because the length of the ledger tells what
    others do.
    """
    analyst, number = request["analyst"], request["options"]["number"]
    entry = entry_number(desk, request, number)
    try:
        body = session.ledger.entry(entry).body
    except DiscreetError:
        body = {}
    is_own = body.get("analyst") == analyst or (analyst == STEWARD and not owner_only)
    described = body.get("mechanism") if is_own else None
    mechanism = None if described is None else _registry.from_json(described)
    if not isinstance(mechanism, Interactive):
        raise InvalidInput(f"number {number} is no live mechanism of yours.", option="number")
    return mechanism, entry


def all_live(desk: Desk, request: Request) -> Result:
    """List the live mechanisms that the caller has started; for the steward, all of them."""
    session, index = desk.session(request["dataset"], request["analyst"]), desk.index(request["dataset"])
    is_steward = request["analyst"] == STEWARD
    numbers = index.charges if is_steward else index.owned.get(request["analyst"], [])
    facts = page("live", [n for n in numbers if _is_live(index.charges.get(n))], request["options"])
    return facts | {"live": [_live_line(desk, request, e) for e in read_entries(session, facts["live"])]}


def _is_live(charge: tuple[str, str] | None) -> bool:
    """Return whether a charge of the index is that of a live mechanism."""
    kind = None if charge is None else _registry.class_of(charge[1])
    return kind is not None and issubclass(kind, Interactive)


def _live_line(desk: Desk, request: Request, charge: Any) -> Result:
    """Return a live mechanism as a line of a list."""
    described = charge.body["mechanism"]
    number, time = shown_number(desk, request, charge.seq), charge.time[:16] + "Z"
    line = {name: described.get(name) for name in ("type", "clock", "horizon")}
    return {"number": number, "time": time, **line, "analyst": charge.body["analyst"]}


def live(desk: Desk, request: Request) -> Result:
    """Return what a live mechanism has released so far, up to the last answer whose public time is over;
    free."""
    session, options = session_of(desk, request)
    mechanism, number = own_mechanism(desk, request, session)
    # When the work on each answer began. An answer leads to the next version of the mechanism's state; an
    # entry, the ticket, announces it before data are read. Later attempts at a version do not count.
    begun: dict[int, str] = {}
    released: list[Result] = []
    latest = _registry.to_json(Latest())
    for entry in read_entries(session, desk.index(request["dataset"]).about.get(number, [])):
        body = entry.body
        if entry.kind == TICKET and not body.get("attempt"):
            begun[int(body["version"])] = entry.time
        # The question `Latest` repeats an old release, and is no tick.
        elif entry.kind == STATE and "value" in body and body.get("question") != latest:
            if not requests.is_shown(begun[int(body["version"])], options):
                break
            released.append({"table": body.get("table"), "value": session.ledger.value(body)})
    return {
        "number": options["number"],
        "mechanism": _registry.to_json(mechanism),
        "steps": len(released),
        "released": released,
    }


def decode_rows(rows: dict[str, Any]) -> Any:
    """Return the rows of a request: columns by name, or the Arrow table whose base64 stands under "arrow"."""
    # A list under "arrow" is a column of that name.
    if rows.keys() == {"arrow"} and isinstance(rows["arrow"], str):
        try:
            return values.decode(rows)
        except (ValueError, OSError, pa.ArrowException):
            raise InvalidInput(
                "the rows are no Arrow stream in base64.",
                remedy="Write them with pyarrow.ipc.new_stream, or send columns by name.",
            ) from None
    if any(not isinstance(column, list) or not all(map(_is_cell, column)) for column in rows.values()):
        wrong = "rows are columns by name, each a list of finite numbers, texts, true, false, null."
        raise InvalidRequest(wrong, option="rows")
    return rows


def _is_cell(value: Any) -> bool:
    """Return whether a value may stand in a column of rows that are sent."""
    return math.isfinite(value) if isinstance(value, float) else isinstance(value, int | str | None)


def release_json(release: Release) -> Result:
    """Return a release as JSON: its value, its privacy event, and its errors at several confidences.

    "scored" says whether the errors are in scores or ranks, not in the unit of the value.
    """
    return {
        "value": values.encode(release.value),
        "event": release.event.to_json(),
        "scored": release.error_in_scores,
        "errors": values.tabulated(release._error),
        "mark": release.mark,
    }
