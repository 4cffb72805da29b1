"""Defines a session over HTTP: the methods of `Session`, for arguments that have a JSON description
(`_registry`).

Options have the names that they have in `Session`. What only works in the steward's process, such as `train`,
`online`, or a checkpoint, is refused with a message that says so. `synthesize`, and `fit` with `seconds`, run
as a job on the server, which returns the result after `seconds` and not before.

Defines handles of interactive mechanisms and streams on a server: what `RemoteSession.start`, `watch` and
`stream` return.

`number` is that of the charge in the ledger: with it another process finds the mechanism again. A stream
publishes a count at every tick, a step of time such as a day.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput, UnknownAttribute
from .._require import Real
from ..mechanisms.protocols import Interactive, Release
from ..query import Answer
from ..query.mechanism import cut_off_sql
from ..session.base import SYNONYMS, Fed, QueryPreview, require_sql
from ..session.questions import workload_terms
from ..session.terms import (
    CutOffTerms,
    QuestionTerms,
    RemoteCopyTerms,
    StreamTerms,
    SynthesisTerms,
    Terms,
    WatchTerms,
    WorkloadQuestionTerms,
    chosen,
    takes,
)
from .client import Job, dataset_path, reads_reply, to_description
from .replies import (
    RemoteReader,
    answer_of,
    copy_of,
    from_description,
    listed_edges,
    model_of,
    number_of,
    preview_of,
    release_of,
    rows_json,
    sent,
    value_of,
    work_json,
)

if TYPE_CHECKING:
    from ..explaining import Explanation
    from ..planning import BudgetPlan
    from ..synthetic import SyntheticCopy


@dataclass(frozen=True, slots=True)
class RemoteHandle:
    """Asks an interactive mechanism on the server; its price was charged at its start.

    `mechanism` is None where the handle was made from the number alone.
    """

    session: RemoteSession
    number: int
    mechanism: Any

    def answer(self, question: Any) -> Release:
        """Ask one question: an object with a JSON description (`_registry`), or a condition in SQL."""
        description = question if isinstance(question, str) else to_description(question)
        return release_of(self.session.call("POST", f"/live/{self.number}/answers", question=description))


@dataclass(frozen=True, slots=True)
class RemoteWatch:
    """Asks a watch on the server whether counts are above its threshold (the sparse vector technique)."""

    live: RemoteHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> Any:
        """Return the value of the answer to one condition in SQL; `live.answer` also has its price and
        error."""
        return self.live.answer(question).value


@dataclass(frozen=True, slots=True)
class RemoteStream:
    """Feeds and reads a continual counter on the server. `feed` closes a tick; the other methods read what
    was released. All are free: the price was charged at the start."""

    session: RemoteSession
    number: int

    @property
    def facts(self) -> dict[str, Any]:
        """Return the server's description of the stream now: mechanism, ticks, releases, error."""
        return self.session.call("GET", f"/streams/{self.number}")

    @property
    def counter(self) -> Any:
        """Return the mechanism that was paid for."""
        return from_description(self.facts["mechanism"])

    def feed(self, rows: Any = None, *, tick: str | None = None) -> Release:
        """Close one tick, and return its release.

        The tick counts `rows`, which only a steward may send; without them, the rows of the server's table
        that the column of the clock assigns to the tick. `tick` is the tick's name; a name is fed once.
        """
        body = {"rows": None if rows is None else rows_json(rows), "tick": tick}
        return release_of(self.session.call("POST", f"/streams/{self.number}/ticks", **body))

    @property
    def steps(self) -> int:
        """Return how many ticks were released; a tick whose release waits for the server's time limit does
        not count yet."""
        return int(number_of(self.facts["steps"]))

    @property
    def history(self) -> list[Any]:
        """Return every release so far, in order."""
        facts = self.facts
        counter = from_description(facts["mechanism"])
        return [counter_value(counter, value_of(value)) for value in facts["history"]]

    @property
    def value(self) -> Any:
        """Return the newest release: a number, or a mapping from group to number."""
        history = self.history
        if not history:
            raise InvalidInput(
                "nothing was released yet: feed the first tick, or wait for the server's time limit."
            )
        return history[-1]

    def error(self, confidence: float = 0.95) -> float:
        """Return the half-width of the newest release's interval with this confidence."""
        _require.open_probability(confidence=confidence)
        facts = self.session.call("GET", f"/streams/{self.number}?confidence={float(confidence)!r}")
        return number_of(facts["error"])


def counter_value(counter: Any, value: Any) -> Any:
    """Return a release of a counter as `session.Stream.value` returns it: a number, or a mapping from group
    to number."""
    from ..session.streams import value_by_group

    return value_by_group(counter, value)


# How options that are no single value are written in a request.
_WRITTEN: Mapping[str, Callable[[Any], Any]] = {
    "weights": lambda weights: sent(dict(weights)),
    "columns": list,
    "bins": lambda bins: {name: listed_edges(edges) for name, edges in bins.items()},
    "missing": dict,
    "constraints": lambda constraints: [str(constraint) for constraint in constraints],
    "options": dict,
}


def body_of(terms: Any, kind: type | None = None) -> dict[str, Any]:
    """Return the options of a list as a request has them, without those that are None or empty; of a longer
    list, those of the list `kind`."""
    body = {name: _WRITTEN.get(name, to_description)(value) for name, value in chosen(terms, kind).items()}
    return {name: value for name, value in body.items() if value not in ({}, [])}


# Sent with every price: the server asks whether an epsilon above 20 is meant, a session in Python does not.
MEANT = {"large_epsilon": True}
Progress = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True, repr=False)
class RemoteSession(RemoteReader):
    """One dataset on a server, as the token's holder sees it, with the methods of `Session`; some of them are
    refused."""

    def during(self, *periods: str) -> RemoteSession:
        """Return a session whose questions are about the rows of these periods only."""
        _require.non_empty(periods=periods)
        return RemoteSession(self.server, self.name, periods)

    @_require.check_options
    @takes(Terms)
    def preview(self, text: str | Sequence[str], terms: Terms) -> QueryPreview:
        """Return the price and the error that a question would have, or several counting questions answered
        together; free. Options as in `Session.preview`; several questions take `epsilon`, `rho`, `delta`,
        `rows` and `confidence`."""
        require_sql(text)
        if isinstance(text, str):
            return preview_of(self.call("POST", "/preview", sql=text, **body_of(terms)))
        body = body_of(workload_terms(terms)) | {"confidence": to_description(terms.confidence)}
        queries = list(_require.listed(text=text))
        return preview_of(self.call("POST", "/workload/preview", queries=queries, **body))

    @_require.check_options
    @takes(QuestionTerms)
    def sql(self, text: str, terms: QuestionTerms) -> Answer:
        """Ask a question in SQL, and return the private answer; its price is charged. Options as in
        `Session.sql`."""
        return answer_of(self.call("POST", "/query", sql=text, **body_of(terms), **MEANT))

    @_require.check_options
    @takes(WorkloadQuestionTerms)
    def workload(self, queries: Sequence[str], terms: WorkloadQuestionTerms) -> tuple[Answer, ...]:
        """Answer several counting questions together, for one price; options as in `Session.workload`."""
        texts = list(_require.listed(queries=queries))
        facts = self.call("POST", "/workload", queries=texts, **body_of(terms), **MEANT)
        return tuple(answer_of(answer_facts) for answer_facts in facts["answers"])

    @_require.check_options
    def plan(self, work: Sequence[Any], *, epsilon: Real, together: bool = True) -> BudgetPlan:
        """Split epsilon among questions and models so that the weighted sum of errors is least.

        The plan is free; its `run` asks the server for one piece after the other, and each is charged.
        """
        from ..planning import BudgetPlan
        from .web.planning import item_of

        pieces = [work_json(entry) for entry in _require.listed(work=work)]
        facts = self.call("POST", "/plan", work=pieces, epsilon=float(epsilon), together=together)
        return reads_reply(
            lambda: BudgetPlan(self, facts["epsilon"], tuple(item_of(item) for item in facts["items"]))
        )()

    @_require.check_options
    def explain(
        self,
        text: str | None = None,
        *,
        audience: str | None = None,
        delta: float | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain what the ledger's charges mean for the privacy of one person; with SQL in `text` and the
        options of `preview`, what that question would mean. Free."""
        from .web.planning import explanation_of

        terms = sent({"audience": audience, "delta": delta, **options})
        return reads_reply(explanation_of)(self.call("POST", "/explain", sql=text, **terms))

    @_require.check_options
    @takes(CutOffTerms)
    def cut_off(self, terms: CutOffTerms) -> Answer:
        """Ask how many people the limits `rows` and `groups` cut off, as in `Session.cut_off`; the question
        is charged."""
        text = cut_off_sql(self.public, terms.rows, terms.groups, terms.by, terms.where)
        return self.sql(text, epsilon=terms.epsilon, within=terms.within, delta=terms.delta)

    def ask(self, mechanism: Any, *, fresh: bool = False) -> Release:
        """Run a mechanism that has a description, for its price."""
        return release_of(self.call("POST", "/ask", mechanism=to_description(mechanism), fresh=fresh))

    def start(self, interactive: Any) -> RemoteHandle:
        """Start an interactive mechanism on the server; its whole price is charged now."""
        facts = self.call("POST", "/live", mechanism=to_description(interactive))
        return RemoteHandle(self, facts["number"], from_description(facts["mechanism"]))

    @_require.check_options
    def feed(self, live: Any, *, number: int | None = None) -> Fed:
        """Let an interactive mechanism go on with the server's newest version of the table. Free.

        `live` is the handle that `watch` or `start` returned; in a new process, where that handle is lost,
        the mechanism itself, with the `number` of its charge. The result has the handle to go on with, and
        the release that feeding caused, or None.
        """
        # The attribute `live` of a `RemoteWatch` is its handle.
        handle = live if isinstance(live, RemoteHandle) else getattr(live, "live", None)
        if isinstance(handle, RemoteHandle) and number is None:
            number = handle.number
        elif number is None or not isinstance(live, Interactive):
            raise _require.fail(
                "live",
                type(live).__name__,
                "what watch(...) or start(...) returned, or an interactive mechanism with the number= of its "
                "charge",
            )
        facts = self.call("POST", f"/live/{int(number)}/feed")
        release = None if facts["release"] is None else release_of(facts["release"])
        resumed = RemoteHandle(self, facts["number"], from_description(facts["mechanism"]))
        return Fed(RemoteWatch(resumed) if isinstance(live, RemoteWatch) else resumed, release)

    @_require.check_options
    @takes(WatchTerms)
    def watch(self, threshold: int, terms: WatchTerms) -> RemoteWatch:
        """Start asking which of many counts are above a threshold; options as in `Session.watch`.

        With `number`, go on with a watch that was started before, by the number of its charge; the server
        knows its terms, so the other arguments are not read.
        """
        if terms.number is not None:
            # None: the description of the mechanism is on the server only.
            return RemoteWatch(RemoteHandle(self, terms.number, None))
        facts = self.call("POST", "/watches", threshold=threshold, **body_of(terms), **MEANT)
        return RemoteWatch(RemoteHandle(self, facts["number"], from_description(facts["mechanism"])))

    @_require.check_options
    @takes(StreamTerms)
    def stream(self, text: str, terms: StreamTerms) -> RemoteStream:
        """Start publishing a count or a sum at every tick, for one price; options as in `Session.stream`.

        With `number`, go on with a stream of yours by the number of its charge; the server knows its terms,
        so the other arguments are not read.
        """
        if terms.number is not None:
            return RemoteStream(self, terms.number)
        facts = self.call("POST", "/streams", sql=text, **body_of(terms), **MEANT)
        return RemoteStream(self, int(number_of(facts["number"])))

    @_require.check_options
    def fit(
        self,
        estimator: Any,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: Progress | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Fit a model on the server, and return it: a `tabular` model, or a neural network.

        With `seconds` the server fits it as a job, and returns it after that time and not before, so that the
        time tells nothing about the data; `progress` is called with the job's public state. `checkpoint`,
        `every` and `text` are for local sessions only, and are refused.
        """
        from .web.estimator_json import describe_estimator

        # 100 is the default of `every`.
        if checkpoint is not None or every != 100 or text is not None:
            raise InvalidInput(
                "checkpoint=, every= and text= are for sessions in the steward's process. Nothing "
                "was charged. Leave them out; a job that is interrupted stays charged."
            )
        body: dict[str, Any] = {"estimator": describe_estimator(estimator), "target": target}
        body |= {} if features is None else {"features": list(features)}
        if seconds is None:
            if progress is not None:
                raise InvalidInput("progress= needs a job: give seconds=, too. Nothing was charged.")
            return model_of(self.call("POST", "/models", **body))
        return model_of(self._job("fit", body, seconds).wait(progress))

    def _job(self, work: str, body: Mapping[str, Any], seconds: float) -> Job:
        """Start a job of `seconds` on the server; `work` is "fit" or "synthesize", `body` its options, to
        which `_body` adds the periods of this session."""
        sent_body = {"seconds": seconds, work: self._body(body)}
        return Job(self.server, self.server.call("POST", f"{dataset_path(self.name)}/jobs", sent_body)["id"])

    @_require.check_options
    @takes(RemoteCopyTerms)
    def synthesize(self, terms: RemoteCopyTerms) -> SyntheticCopy:
        """Make a synthetic copy as a job on the server, which returns it after `seconds` and not before, so
        that the time tells nothing about the data. Asking again with the same options is free, unless `fresh`
        asks for another copy.

        The server sends the fitted distribution that was released. Rows are drawn in this process, and
        `copy.sql`, `copy.report` and `copy.sample` run in it, for free.
        """
        if terms.checkpoint is not None or terms.resume:
            raise InvalidInput(
                "checkpoint= and resume= are for sessions in the steward's process. Nothing was charged. "
                "Leave them out, and give the job enough seconds=."
            )
        body = {**body_of(terms, SynthesisTerms), **MEANT, "fresh": terms.fresh}
        job = self._job("synthesize", body, terms.seconds)
        return copy_of(job.wait(terms.progress), terms.rows, terms.seed)

    def compare_copy(
        self, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
    ) -> Release:
        """Ask, for a price, how far the two-way tables (counts by two columns) of a synthetic copy are from
        those of the data."""
        from ..synthetic import CopyDistance
        from ..synthetic.counting import rows_per_unit as bounded_rows

        public = self.public
        # how many rows of one unit count: the given number, checked, or the declared one
        limit = bounded_rows(public, rows_per_unit)
        distance = CopyDistance(
            public=public, fitted=copy.fitted, epsilon=epsilon, rows=copy.rows, seed=copy.seed,
            rows_per_unit=limit,
        )  # fmt: skip
        return self.ask(distance)

    def _unknown(self, name: str) -> UnknownAttribute:
        """Return the error for an attribute that does not exist, with the nearest names."""
        if name == "curator":
            return UnknownAttribute(
                "the curator is in the server's process, and not here. Its records are in `ledger`, "
                "`releases()` and `accounts`; a steward has it with dp.open(...) beside the data."
            )
        return _require.no_attribute("a session over HTTP", name, dir(type(self)), SYNONYMS)

    def as_analyst(self, name: str) -> RemoteSession:
        """Refuse: the token alone says who asks."""
        raise InvalidInput(
            f"on a server the token says who asks, so nobody can become {name!r}. Nothing was done. Connect "
            f"with that person's token: dp.connect(url, token)."
        )

    def train(self, trainer: Any, **_: Any) -> Any:
        """Refuse: a trainer holds a torch module, which has no description.

        Here and below, `to_description` raises the error.
        """
        return to_description(trainer)

    def resume(self, trainer: Any, checkpoint: Any, **_: Any) -> Any:
        """Refuse: a training run and its checkpoint are in the steward's process."""
        return to_description(trainer)

    def online(self, loss: Any, **_: Any) -> Any:
        """Refuse: rounds of an online learner are fed in the steward's process."""
        raise InvalidInput(
            "an online learner is started and fed in the steward's process: dp.open(...).online(...). "
            "Nothing was charged."
        )

    def preview_teach(self, learner: Any, **_: Any) -> Any:
        """Refuse: a learner is an object of another package, which has no description."""
        return to_description(learner)

    def teach(self, learner: Any, **_: Any) -> Any:
        """Refuse: a learner is an object of another package, which has no description."""
        return to_description(learner)
