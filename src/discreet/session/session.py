"""The verbs of a session: each makes a mechanism of a question and gives it to the curator, which charges it
and keeps the books."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Public
from .._require import Real
from ..accounting.caps import asked_of
from ..curator import STEWARD, Account, Budget, Curator, InteractiveHandle, Ledger, Policy, segments
from ..mechanisms import RedrawnSparseVector, SparseVector
from ..mechanisms.protocols import Interactive, Mechanism, Release, SecretlyStepped, Stepped
from ..query import Answer, Query, cut_off_sql
from ..tables import Memory, dummy
from .previews import Fed, QueryPreview, Watch
from .room import try_room
from .terms import Terms, share_of

if TYPE_CHECKING:
    from ..explaining import Explanation
    from ..planning import BudgetPlan
    from ..query import WorkloadQuery
    from ..synthetic import ChildTable, SyntheticCopy
    from .streams import OnlineStream, Stream
    from .teaching import Labeller, TeachingPreview


@dataclass(frozen=True, slots=True, repr=False)
class Session:
    """One dataset, one budget, as one person sees it. `analyst` is who asks; the steward by default.

    An analyst with a budget of their own sees that budget and what is left of it, never what others have
    spent.
    """

    curator: Curator
    analyst: str = STEWARD

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = self.curator.source.public
        return public

    @property
    def ledger(self) -> Ledger:
        return self.curator.ledger

    @property
    def budget(self) -> Budget:
        """The budget of who asks: the analyst's own if they have one, else the dataset's."""
        policy = self.curator.policy
        return policy.of(self.analyst) or policy.budget

    @property
    def spent(self) -> float:
        """How much of that budget is gone, in its own unit (epsilon, or rho); of several periods, where most
        is gone."""
        return self.curator.account(self.analyst).used

    @property
    def remaining(self) -> float:
        return self.curator.account(self.analyst).left

    @_require.spelled
    def sql(
        self,
        text: str,
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        within: float | None = None,
        confidence: float = 0.95,
        delta: float | None = None,
        noise: str = "auto",
        rows: int | None = None,
        groups: int | None = None,
        weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = (),
        other: bool = False,
        fresh: bool = False,
    ) -> Answer:
        """Answer a SQL query privately, charged before it is computed; the same question again is answered
        from the ledger, free.

        `epsilon` or `rho` asks by price, `within` with `confidence` by accuracy. `delta`: by default as much
        of the budget's as `epsilon` is of its epsilon, halved.
        `noise`: "laplace", "gaussian" or "auto". `rows`, `groups`: what one unit may contribute. `weights`:
        how the price is shared between output columns. `other`: groups that are not shown are added up in one
        row. `fresh`: pay for new noise.
        """
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        with terms.refusing():
            released = self.curator.ask(
                self._query(text, terms), analyst=self.analyst, text=text, fresh=fresh
            )
        # Several counts of one statement are a workload, whose value is one answer for each statement.
        answer: Answer = released.value[0] if isinstance(released.value, tuple) else released.value
        return answer

    @_require.spelled
    def workload(
        self,
        queries: Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        delta: float | None = None,
        rows: int | None = None,
        fresh: bool = False,
    ) -> tuple[Answer, ...]:
        """Answer several counting queries, in the order asked: one price for all, and answers that agree with
        each other.

        `rows`: how many rows of one unit count in all queries together. `preview([...])` says what answering
        together saves.
        """
        asked = self._workload(queries, epsilon=epsilon, rho=rho, delta=delta, rows=rows)
        text = "; ".join(asked.queries)
        answers: tuple[Answer, ...] = self.curator.ask(
            asked, analyst=self.analyst, text=text, fresh=fresh
        ).value
        return answers

    @_require.spelled
    def plan(self, work: Sequence[Any], *, epsilon: float, together: bool = True) -> BudgetPlan:
        """Split epsilon among questions and models so that the weighted error is least; free until the plan's
        `run`. See `planning.plan`."""
        from ..planning import plan

        return plan(self, work, epsilon=epsilon, together=together)

    @_require.spelled
    def preview(
        self,
        text: str | Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        within: float | None = None,
        confidence: float = 0.95,
        delta: float | None = None,
        noise: str = "auto",
        rows: int | None = None,
        groups: int | None = None,
        weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = (),
        other: bool = False,
    ) -> QueryPreview:
        """Preview price, error and plan of a question, and how many more of these the budget buys.

        Options as in `sql`. Free: no data is touched.

        Of a list of questions: of answering them together, see `workload`.
        """
        query: Any
        if not isinstance(text, str):
            if within is not None:
                raise InvalidInput(
                    "a workload is asked by price: epsilon, delta, rho and rows. Nothing was charged."
                )
            query = self._workload(text, epsilon=epsilon, rho=rho, delta=delta, rows=rows)
            cost = self.curator.preview(query.event, analyst=self.analyst, asked=asked_of(query))
            return QueryPreview(query.preview(confidence), cost)
        terms = Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        query = self._query(text, terms)
        cost = self.curator.preview(query.event, analyst=self.analyst, asked=asked_of(query))
        shown = query.preview(confidence) if isinstance(query, Query) else query.preview_of_one(confidence)
        return QueryPreview(shown, cost)

    @_require.spelled
    def explain(
        self,
        text: str | None = None,
        *,
        audience: str | None = None,
        delta: float | None = None,
        **options: Any,
    ) -> Explanation:
        """Explain what the budget and the ledger mean for one person, in words and pictures.

        With a question in SQL and the options of `preview`: what it would cost, how good its answer would be,
        and what would halve its error.

        Free: no data is touched.
        """
        from .explanations import explain_books, explain_sql

        if text is None:
            return explain_books(self, audience or "public", delta)
        return explain_sql(
            self, text, audience or "engineer", options | ({} if delta is None else {"delta": delta})
        )

    @_require.spelled
    def cut_off(
        self,
        *,
        rows: int | None = None,
        groups: int | None = None,
        by: str | None = None,
        where: str | None = None,
        epsilon: Real | None = None,
        within: float | None = None,
        delta: float | None = None,
    ) -> Answer:
        """Ask, for a price, how many units have more than `rows` rows, or are in more than `groups` groups of
        `by`: whom a limit cuts off.

        The answer has the columns `units` and `above`; above / units is the share. `where`: a condition on
        rows, as in the question that the limit is for. It is an ordinary question: in the ledger, and free
        the second time.
        """
        text = cut_off_sql(self.public, rows, groups, by, where)
        return self.sql(text, epsilon=epsilon, within=within, delta=delta)

    def ask(self, mechanism: Mechanism, *, fresh: bool = False) -> Release:
        """Ask any mechanism of discreet, or the steward's own."""
        return self.curator.ask(mechanism, analyst=self.analyst, fresh=fresh)

    def start(self, interactive: Interactive) -> InteractiveHandle:
        """Start an interactive mechanism: its complete price is paid now."""
        return self.curator.start(interactive, analyst=self.analyst)

    @_require.spelled
    def feed(self, live: Any, *, number: int | None = None) -> Fed:
        """Let a live mechanism go on with this session's table: the next version, or a batch of new rows.

        Free: it was paid for at its start.

        `live` is what `watch` or `start` gave in the session of an earlier version on the same ledger; after
        a restart it is the mechanism, with the `number` of its charge. What has a method `feed` is given the
        table, once for each name of a version; a sparse vector or a `Thresholdout` is asked about it from now
        on, by the new handle. All others are refused, and so is a stream of rows without a clock, where each
        row of a version would count again: its ticks are `Stream.feed(rows)`.

        Guarantee: that of the mechanism, for histories of versions that differ in the rows of one unit.
        Proof:     that of `Curator.feed` and `Curator.resume`, which do all of it.
        Assumes:   when a version arrives does not depend on the data.
        """
        mechanism, number = self._started(live, number)
        goes_on = getattr(mechanism, "any_version", False) and not hasattr(mechanism, "feed")
        if goes_on and mechanism is not live and mechanism.public == self.public:
            raise InvalidInput(
                f"this goes on with the version {self.public.version!r} of the table already. "
                f"Nothing was read or released. Open the new data as "
                f"a version of its own, dp.open(..., version=...), and feed it there."
            )
        release = None if goes_on else self.curator.feed(mechanism, number, analyst=self.analyst)
        resumed = self.curator.resume(mechanism, number, analyst=self.analyst)
        return Fed(
            resumed if isinstance(live, InteractiveHandle) or mechanism is live else _over(live, resumed),
            release,
        )

    def _started(self, live: Any, number: int | None) -> tuple[Any, int]:
        """Return the mechanism of a handle and the number of its charge, which must be one of this ledger."""
        running = live if isinstance(live, InteractiveHandle) else getattr(live, "live", None)
        if isinstance(running, InteractiveHandle) and number is None:
            if os.path.realpath(running.ledger.path) != os.path.realpath(self.ledger.path):
                raise InvalidInput(
                    "this was started on another ledger, where its price was paid. Nothing was read "
                    "or released. Open the new version of the "
                    "table with that ledger, dp.open(..., ledger=...), or start a new one here."
                )
            return running.mechanism, running.number
        if running is None and number is not None and isinstance(live, Interactive):
            return live, number
        raise _require.fail(
            "live",
            type(live).__name__,
            "what watch(...) or start(...) gave, or a live mechanism with the number= of its charge",
        )

    @_require.spelled
    def train(
        self,
        trainer: Stepped,
        *,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
    ) -> Release:
        """Train a model (`learning.Trainer`), charged first.

        With a `checkpoint`, its state is saved there after `every` steps, and `resume` goes on after a crash.

        `progress` is called after each step with public facts: the step, and the number of steps. `text` is
        for the record.
        """
        if checkpoint is not None:
            try_room(Path(checkpoint), trainer)
        return segments.train(
            self.curator, trainer, checkpoint, every=every, analyst=self.analyst, text=text, progress=progress
        )

    @_require.spelled
    def resume(
        self,
        trainer: Stepped,
        checkpoint: str | Path,
        *,
        every: int | None = None,
        progress: segments.Watch | None = None,
    ) -> Release:
        """Go on with a run from its newest checkpoint, with the trainer it was started with.

        Free: it was paid for at its start.
        """
        return segments.resume(
            self.curator, trainer, checkpoint, every=every, analyst=self.analyst, progress=progress
        )

    @_require.spelled
    def fit(
        self,
        estimator: Any,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
        number: int | None = None,
    ) -> Any:
        """Fit an estimator to the table, charged first: classes, bounds and size are those of the schema.

        An estimator has `mechanism(public, target=..., features=..., delta=...)`, which is priced and not run
        yet, and `adopt(release, mechanism)`. `target` is left out where nothing is predicted (k-means,
        components). What is trained in steps goes through `train`, with
        `checkpoint`, `every` and `progress` as there; what runs once goes through `ask`. `features` are by
        default all columns that can be. `number`, that of its charge, goes on with a `PrivateSearch` that was
        interrupted, with exactly the same candidates; free.
        """
        if not (hasattr(estimator, "adopt") and hasattr(estimator, "mechanism")):
            raise _require.fail(
                "estimator",
                type(estimator).__name__,
                "one of discreet.learning, such as LogisticRegression(epsilon=1)",
            )
        if target is None and not getattr(estimator, "unsupervised", False):
            raise _require.fail("target", None, "the name of the column to predict")
        epsilon = getattr(estimator, "epsilon", None)
        delta = None if epsilon is None else self._delta(epsilon, self.curator.policy)
        mechanism = estimator.mechanism(self.public, target=target, features=features, delta=delta or None)
        note = type(estimator).__name__ if target is None else f"{type(estimator).__name__} of {target}"
        note = note if text is None else text
        if isinstance(mechanism, SecretlyStepped):
            released = self.curator.run(
                mechanism, checkpoint=checkpoint, progress=progress, analyst=self.analyst, text=note,
                pace=getattr(estimator, "pace", 0.0), number=number,
            )  # fmt: skip
        elif number is not None:
            raise InvalidInput(
                "number= goes on with a PrivateSearch; what is trained in steps is resumed from its "
                "checkpoint. Nothing was charged."
            )
        elif isinstance(mechanism, Stepped):
            released = self.train(mechanism, checkpoint=checkpoint, every=every, text=note, progress=progress)
        elif checkpoint is not None or progress is not None:
            raise InvalidInput(
                f"{type(estimator).__name__} is fitted in one step: there is nothing to save or to "
                f"watch on the way. Nothing was charged. "
                f"Leave checkpoint= and progress= out."
            )
        else:
            released = self.curator.ask(mechanism, analyst=self.analyst, text=note)
        return estimator.adopt(released, mechanism)

    @_require.spelled
    def teach(
        self,
        learner: Any,
        *,
        teachers: int,
        target: str | None = None,
        features: Sequence[str] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        queries: int = 500,
        aggregator: Any = "gnmax",
        answers: int | None = None,
        threshold: int | None = None,
        failures: int | None = None,
        overlap: int | None = None,
        classes: int | None = None,
        sanitize: float | None = None,
        order: float | None = None,
        size: int | None = None,
        workers: int | None = None,
        progress: Any = None,
        number: int | None = None,
    ) -> Labeller:
        """Train teachers on disjoint parts of the data, charged first, and return a labeller that answers
        `queries` questions about public inputs (PATE).

        `learner`: a scikit-learn classifier, or `learning.pate.TorchLearner(model)`. `aggregator`: "gnmax",
        "lnmax", "confident" (with `answers` and `threshold`), "interactive", "stable" (M_stab), "sampled"
        (M_samp, with `overlap`), "sparse" (M_svec, with `failures`), or one of `mechanisms.votes` with its
        own noise. `sanitize` is an epsilon, out of the whole, for publishing the data-dependent cost at
        `order`. `classes` is for examples; `size` the bytes of one teacher in the vault. `number` finds a
        labeller again.
        """
        from .teaching import teach

        options = {
            name: value for name, value in locals().items() if name not in ("self", "teach", "learner")
        }
        return teach(self, learner, **options)

    def preview_teach(self, learner: Any, **options: Any) -> TeachingPreview:
        """Preview the price of a labeller, the lead in votes that its noise asks for, and how many more of
        these the budget buys: with the options of `teach`. Free: no data is touched."""
        from .teaching import preview

        return preview(self, learner, **options)

    @_require.spelled
    def synthesize(
        self,
        rows: int | None = None,
        *,
        epsilon: Real,
        delta: float | None = None,
        method: str = "auto",
        columns: Sequence[str] | None = None,
        bins: Mapping[str, Any] | None = None,
        missing: Mapping[str, bool] | None = None,
        rows_per_unit: int | None = None,
        constraints: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        child: ChildTable | str | None = None,
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: segments.Watch | None = None,
        fresh: bool = False,
    ) -> Any:
        """Make a synthetic copy of the table, charged first; asking again with the same options is free.

        `rows`: how many to draw, by default as many as a noisy total says. `method`: "auto", "aim", "mst",
        "mwem", "privbayes" or "independent"; `options` are its own (degree, cells). `bins`, `missing` and
        `constraints` are public facts, see `synthetic.Domain` and `synthetic.Constraint`. With a `checkpoint`
        the run is saved after each step, and `resume` goes on after a crash; `progress` is told each step.
        `child`: a second private table, its name or `synthetic.ChildTable(...)`, whose rows are copied with
        those of their units; the result is then a `SyntheticPair`, else a `SyntheticCopy`.
        """
        from .synthesis import SynthesisTerms, synthesize

        terms = SynthesisTerms(
            epsilon=epsilon,
            delta=delta,
            method=method,
            columns=columns,
            bins=bins,
            missing=missing,
            rows_per_unit=rows_per_unit,
            constraints=constraints,
            options=options,
            child=child,
        )
        run = {"checkpoint": checkpoint, "resume": resume, "progress": progress, "fresh": fresh}
        return synthesize(self, terms, rows=rows, seed=seed, **run)  # type: ignore[arg-type]

    def compare_copy(
        self, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
    ) -> Release:
        """Ask, for a price, how far a synthetic copy's tables by two columns are from the data's, on
        average."""
        from .synthesis import compare_copy

        return compare_copy(self, copy, epsilon=epsilon, rows_per_unit=rows_per_unit)

    @_require.spelled
    def watch(
        self,
        threshold: int,
        *,
        epsilon: Real,
        delta: float = 0.0,
        positives: int = 1,
        number: int | None = None,
        numeric: bool = False,
        gap: bool = False,
        questions: int | None = None,
        sensitivity: int = 1,
        monotone: bool | None = None,
        split: tuple[Real, ...] | None = None,
    ) -> Watch:
        """Ask which of many counts are above a threshold: a sparse vector, paid now, that halts after
        `positives` that are.

        `numeric` also buys a noisy value for each, `gap` tells how far above, free; `questions`,
        `sensitivity`, `monotone` (by default that of counts) and `split` as in `mechanisms.SparseVector`.
        With a delta the threshold is drawn anew after each, which is cheaper for many. `number` goes on with
        one that was started before.
        """
        terms: dict[str, Any] = {
            "public": self.public,
            "threshold": threshold,
            "epsilon": epsilon,
            "positives": positives,
            "monotone": self.public.neighbors is ADD_REMOVE if monotone is None else monotone,
            "numeric": numeric,
            "gap": gap,
            "questions": questions,
            "sensitivity": sensitivity,
            "split": split,
        }
        vector = SparseVector(**terms) if delta == 0 else RedrawnSparseVector(**terms, delta=delta)
        return Watch(
            self.start(vector)
            if number is None
            else self.curator.resume(vector, number, analyst=self.analyst)
        )

    @_require.spelled
    def stream(
        self,
        text: str,
        *,
        epsilon: Real | None = None,
        delta: float | None = None,
        rho: Real | None = None,
        horizon: int | None = None,
        strategy: str = "auto",
        participations: int | None = None,
        separation: int | None = None,
        clock: str | None = None,
        window: int | None = None,
        decay: float | None = None,
        restart: int | None = None,
        capacity: int | None = None,
        rows: int | None = None,
        groups: int | None = None,
        number: int | None = None,
    ) -> Stream:
        """Publish a count or a sum again at every tick, for one price, paid now: a continual counter.

        `text` is one COUNT or SUM, with GROUP BY declared columns for a vector of them; a column of declared
        days in GROUP BY (or `clock=`) is the clock, whose ticks are closed one after the other. `epsilon`
        (with `delta`) or `rho` is the price of all ticks together, of which there are `horizon`.
        `participations`: in how many ticks one unit may count, needed where units are a column, at least
        `separation` ticks apart. `rows`, `groups`: what one unit may contribute to one tick. `strategy`,
        `window`, `decay`, `restart` and `capacity` as in `streaming.ContinualCounter`; `number` goes on with
        a stream that was started before.
        """
        from .streams import open_stream

        options = {
            "separation": separation,
            "window": window,
            "decay": decay,
            "restart": restart,
            "capacity": capacity,
        }
        return open_stream(
            self,
            text,
            epsilon=epsilon,
            delta=delta,
            rho=rho,
            horizon=horizon,
            strategy=strategy,
            participations=participations,
            clock=clock,
            rows=rows,
            groups=groups,
            number=number,
            **{name: value for name, value in options.items() if value is not None},
        )

    @_require.spelled
    def online(
        self,
        loss: Any,
        *,
        learner: str = "auto",
        horizon: int | None = None,
        clip: Real | None = None,
        space: Any = None,
        epsilon: Real | None = None,
        delta: float | None = None,
        rho: Real | None = None,
        batch: Real = 1,
        ridge: Real = 0,
        parameter: Real | None = None,
        strategy: str = "auto",
        clock: str | None = None,
        participations: int | None = None,
        separation: int | None = None,
        capacity: int | None = None,
        number: int | None = None,
    ) -> OnlineStream:
        """Learn online: a decision before each round, for one price, paid now; `feed` is a round.

        `loss`: one of `streaming.SquaredLoss`, `LogisticLoss`, `SquaredDistance`, `LinearLoss`. `learner`:
        "leader" (follow the approximate leader), "mirror" (online mirror descent), "experts" (expert advice).
        Options as in `streaming.learner`; `number` goes on with a learner that was started before.
        """
        from .streams import open_learner

        options = {name: value for name, value in locals().items() if name not in ("self", "open_learner")}
        return open_learner(self, options.pop("loss"), options.pop("number"), **options)

    def during(self, *periods: str) -> Session:
        """Return a session on the rows of some periods only, where budgets are per period: what is asked is
        charged to each of these.

        A session without periods asks about the whole table, and is charged to every period, past and to
        come.
        """
        return replace(self, curator=self.curator.during(*periods))

    @property
    def accounts(self) -> list[Account]:
        """What was spent of what by who asks: one account, or with a budget per period one for each."""
        return self.curator.accounts_of(self.analyst)

    def as_analyst(self, name: str) -> Session:
        """Return a session on the same dataset as an analyst sees it, under their own budget if they have
        one."""
        self.curator.policy.of(name)
        return replace(self, analyst=name)

    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a made-up table with the same schema, to write queries against. It says nothing about the
        data."""
        return dummy(self.public, rows, seed)

    def _asked(self, text: str, **options: Any) -> Query | WorkloadQuery:
        """Return the priced question, with options as in `sql`."""
        return self._query(text, Terms(**options))

    def _workload(
        self,
        queries: Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        delta: float | None = None,
        rows: int | None = None,
    ) -> WorkloadQuery:
        from ..query import WorkloadQuery

        own = delta
        if own is None:
            own = 0.0 if rho is not None or epsilon is None else self._delta(epsilon, self.curator.policy)
        texts = tuple(_require.listed(queries=queries))
        return WorkloadQuery(
            queries=texts, public=self.public, epsilon=epsilon, rho=rho, delta=own, rows=rows
        )

    def _query(self, text: str, terms: Terms) -> Query | WorkloadQuery:
        policy = self.curator.policy
        return terms.query(text, self.public, lambda epsilon: self._delta(epsilon, policy))

    def _delta(self, epsilon: Any, policy: Policy) -> float:
        """Return the delta that goes with an epsilon unless another is named: so much that deltas last as
        long as epsilon does."""
        own = policy.of(self.analyst)
        return min(share_of(budget, epsilon) for budget in (policy.budget, own) if budget is not None)

    def __repr__(self) -> str:
        who = "" if self.analyst == STEWARD else f", as {self.analyst!r}"
        return f"<Session of {self.public.table!r}{who}: {self._state()}>"

    def _state(self) -> str:
        account = self.curator.account(self.analyst)
        return f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g} used"

    def _repr_html_(self) -> str:
        from ..query.pages import session_html

        rows = [(a.of, a.used, float(a.rule.total), a.rule.unit) for a in self.accounts]
        return session_html(self.public, rows, None if self.analyst == STEWARD else self.analyst)


def _over(handle: Any, live: InteractiveHandle) -> Any:
    """Return a copy of a handle (a `Watch`, a `HoldoutScorer`) on another `live`."""
    if is_dataclass(handle):
        return replace(handle, live=live)  # type: ignore[type-var]
    other = copy.copy(handle)
    other.live = live
    return other
