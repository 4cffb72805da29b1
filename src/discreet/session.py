"""The front door: `dp.open(...)` joins a table, its public facts, its budget and its ledger into one session.

Thin: a question becomes a mechanism and goes to the curator, which charges it and keeps the books. Everything
a session can do can be done with the rooms below it; nothing gets out but through the curator.
"""

from __future__ import annotations

import copy
import html
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _require
from ._errors import InvalidInput, LedgerError
from ._public import ADD_REMOVE, Neighbors, Public, Unit, as_neighbors
from ._require import Real
from .accounting.caps import asked_of, share
from .accounting.filters import Filter
from .accounting.filters import Preview as Cost
from .curator import STEWARD, Account, Budget, Curator, InteractiveHandle, Ledger, Policy, segments
from .mechanisms import RedrawnSparseVector, SparseVector, ThresholdAnswer
from .mechanisms.protocols import AnySource, ExampleSource, Interactive, Mechanism, Release, Stepped
from .query import Answer, Preview, Query, ask, cut_off_sql, several_counts, where
from .tables import SEVERAL, Database, Memory, Source, connect, data_of, dummy, formatted, load, version_of

if TYPE_CHECKING:
    from .planning import BudgetPlan
    from .query import WorkloadPreview, WorkloadQuery

TRIAL = ":memory:"  # a ledger that is forgotten with the session
# Of a budget in rho: the part of its delta that one query may fail with unless told otherwise.
_SHARE = 100


@dataclass(frozen=True, slots=True)
class QueryPreview:
    """What a question would cost and how good its answer would be.

    `fits`: how many more of these the budget buys.
    """

    query: Preview | WorkloadPreview
    budget: Cost

    @property
    def fits(self) -> int | None:
        return self.budget.fits

    @property
    def admitted(self) -> bool:
        return self.budget.admitted

    def __str__(self) -> str:
        left = "any number of these" if self.fits is None else f"{self.fits:,} of these"
        state = f"used so far: {self.budget.before:.4g} of {self.budget.limit:.4g}; the budget buys {left}."
        return f"{self.query}\n{state}"

    def _repr_html_(self) -> str:
        from .query.pages import preview_html

        if not isinstance(self.query, Preview):
            return f"<pre>{html.escape(str(self))}</pre>"
        return preview_html(self.query, self.budget.before, self.budget.after, self.budget.limit, self.fits)


@dataclass(frozen=True, slots=True)
class Watch:
    """Any number of questions of the form "are there at least so many?"; only those answered with yes are
    paid for, and beforehand.

    `number` finds it again after a restart: `session.watch(..., number=...)` with the same terms.
    """

    live: InteractiveHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> ThresholdAnswer:
        """A condition as after WHERE ("age > 60 AND smoker"), one SELECT of a COUNT or a SUM, or a statistic
        from Python."""
        asked = where(question, self.live.mechanism.public) if isinstance(question, str) else question
        answer: ThresholdAnswer = self.live.answer(asked).value
        return answer


class Fed(NamedTuple):
    """A live mechanism that goes on with another table: the `handle` to ask it over that one, and what it
    released when it was fed, if anything."""

    handle: Any
    release: Release | None


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
        """A private answer, charged before it is computed; the same question again is answered from the
        ledger, free.

        `epsilon` or `rho` asks by price, `within` with `confidence` by accuracy. `delta`: by default as much
        of the budget's as `epsilon` is of its epsilon, halved.
        `noise`: "laplace", "gaussian" or "auto". `rows`, `groups`: what one unit may contribute. `weights`:
        how the price is shared between output columns. `other`: groups that are not shown are added up in one
        row. `fresh`: pay for new noise.
        """
        terms = _Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        released = self.curator.ask(self._query(text, terms), analyst=self.analyst, text=text, fresh=fresh)
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
        """Private answers to several counting queries, in the order asked: one price for all, and answers
        that agree with each other.

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
        from .planning import plan

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
        """Price, error and plan of a question, and how many more of these the budget buys.

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
        terms = _Terms(epsilon, rho, within, confidence, delta, noise, rows, groups, weights, other)
        query = self._query(text, terms)
        cost = self.curator.preview(query.event, analyst=self.analyst, asked=asked_of(query))
        shown = query.preview(confidence) if isinstance(query, Query) else query.preview_of_one(confidence)
        return QueryPreview(shown, cost)

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
        """Any mechanism of discreet, or the steward's own."""
        return self.curator.ask(mechanism, analyst=self.analyst, fresh=fresh)

    def start(self, interactive: Interactive) -> InteractiveHandle:
        """A live answerer: its whole price is paid now."""
        return self.curator.start(interactive, analyst=self.analyst)

    @_require.spelled
    def feed(self, live: Any, *, number: int | None = None) -> Fed:
        """Let a live mechanism go on with this session's table: the next version, or a batch of new rows.

        Free: it was paid for at its start.

        `live` is what `watch` or `start` gave in the session of an earlier version on the same ledger; after
        a restart it is the mechanism, with the `number` of its charge. What has a method `feed` is given the
        table, once for each name of a version; a sparse vector or a `Thresholdout` is asked about it from now
        on, by the new handle. All others are refused.

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
        release = None if goes_on else self.curator.feed(mechanism, number)
        resumed = self.curator.resume(mechanism, number)
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
            _try_room(Path(checkpoint), trainer)
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
        target: str,
        features: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
    ) -> Any:
        """Fit an estimator to the table, charged first: classes, bounds and size are those of the schema.

        An estimator has `mechanism(public, target=..., features=..., delta=...)`, which is priced and not run
        yet, and `adopt(release, mechanism)`. What is trained in steps goes through `train`, with
        `checkpoint`, `every` and `progress` as there; what runs once goes through `ask`. `features` are by
        default all columns that can be.
        """
        if not (hasattr(estimator, "adopt") and hasattr(estimator, "mechanism")):
            raise _require.fail(
                "estimator",
                type(estimator).__name__,
                "one of discreet.learning, such as LogisticRegression(epsilon=1)",
            )
        epsilon = getattr(estimator, "epsilon", None)
        delta = None if epsilon is None else self._delta(epsilon, self.curator.policy)
        mechanism = estimator.mechanism(self.public, target=target, features=features, delta=delta or None)
        note = f"{type(estimator).__name__} of {target}" if text is None else text
        if isinstance(mechanism, Stepped):
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
        return Watch(self.start(vector) if number is None else self.curator.resume(vector, number))

    def during(self, *periods: str) -> Session:
        """The rows of some periods only, where budgets are per period: what is asked is charged to each of
        these.

        A session without periods asks about the whole table, and is charged to every period, past and to
        come.
        """
        return replace(self, curator=self.curator.during(*periods))

    @property
    def accounts(self) -> list[Account]:
        """What was spent of what by who asks: one account, or with a budget per period one for each."""
        return self.curator.accounts_of(self.analyst)

    def as_analyst(self, name: str) -> Session:
        """The same dataset as an analyst sees it, under their own budget if they have one."""
        self.curator.policy.of(name)
        return replace(self, analyst=name)

    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """A made-up table with the same schema, to write queries against. It says nothing about the data."""
        return dummy(self.public, rows, seed)

    def _asked(self, text: str, **options: Any) -> Query | WorkloadQuery:
        """Return the priced question, with options as in `sql`."""
        return self._query(text, _Terms(**options))

    def _workload(
        self,
        queries: Sequence[str],
        *,
        epsilon: Real | None = None,
        rho: Real | None = None,
        delta: float | None = None,
        rows: int | None = None,
    ) -> WorkloadQuery:
        from .query import WorkloadQuery

        own = delta
        if own is None:
            own = 0.0 if rho is not None or epsilon is None else self._delta(epsilon, self.curator.policy)
        texts = tuple(_require.listed(queries=queries))
        return WorkloadQuery(
            queries=texts, public=self.public, epsilon=epsilon, rho=rho, delta=own, rows=rows
        )

    def _query(self, text: str, terms: _Terms) -> Query | WorkloadQuery:
        policy = self.curator.policy
        return terms.query(text, self.public, lambda epsilon: self._delta(epsilon, policy))

    def _delta(self, epsilon: Any, policy: Policy) -> float:
        """The delta that goes with an epsilon unless told otherwise: so much that deltas last as long as
        epsilon does."""
        own = policy.of(self.analyst)
        return min(_share(budget, epsilon) for budget in (policy.budget, own) if budget is not None)

    def __repr__(self) -> str:
        who = "" if self.analyst == STEWARD else f", as {self.analyst!r}"
        return f"<Session of {self.public.table!r}{who}: {self._state()}>"

    def _state(self) -> str:
        account = self.curator.account(self.analyst)
        return f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g} used"

    def _repr_html_(self) -> str:
        from .query.pages import session_html

        rows = [(a.of, a.used, float(a.rule.total), a.rule.unit) for a in self.accounts]
        return session_html(self.public, rows, None if self.analyst == STEWARD else self.analyst)


@dataclass(frozen=True, slots=True)
class _Terms:
    """The options of a question, as `Session.sql` and `Session.preview` spell them out."""

    epsilon: Real | None = None
    rho: Real | None = None
    within: float | None = None
    confidence: float = 0.95
    delta: float | None = None
    noise: str = "auto"
    rows: int | None = None
    groups: int | None = None
    weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = ()
    other: bool = False

    def query(self, text: str, public: Public, delta: Callable[[Any], float]) -> Query | WorkloadQuery:
        """Return the query; `delta` is the one that goes with an epsilon unless another is given."""
        if self.epsilon is None and self.rho is None and self.within is None:
            raise InvalidInput(
                "say what the answer may cost (epsilon=0.1) or how good it must be (within=50). "
                "Nothing was charged."
            )
        own: float | Callable[[Any], float] = 0.0 if self.rho is not None else delta
        if self.delta is not None:
            own = self.delta
        if several_counts(text) and self.within is None:
            whole = self._together(text, public, own(self.epsilon) if callable(own) else own)
            if whole is not None:
                return whole
        weights = tuple(self.weights.items()) if isinstance(self.weights, Mapping) else tuple(self.weights)
        return ask(
            text,
            public,
            epsilon=self.epsilon,
            rho=self.rho,
            within=self.within,
            confidence=self.confidence,
            delta=own,
            noise=self.noise,
            rows=self.rows,
            groups=self.groups,
            weights=weights,
            other=self.other,
        )

    def _together(self, text: str, public: Public, delta: float) -> WorkloadQuery | None:
        """Return the statement as a workload where that is better, or the only way; see `query.together`."""
        from .query import together

        others = {"noise": (self.noise, "auto"), "groups": (self.groups, None), "other": (self.other, False)}
        options: dict[str, Any] = {name: given for name, (given, usual) in others.items() if given != usual}
        options |= {"weights": self.weights} if self.weights else {}
        options |= {"rows": self.rows} if self.rows is not None else {}
        return together(text, public, epsilon=self.epsilon, rho=self.rho, delta=delta, **options)


@_require.spelled
def open(
    data: Any,
    *,
    schema: Any = None,
    unit: Unit | str | None = None,
    budget: Budget | None = None,
    ledger: str | Path | None = None,
    analysts: Mapping[str, Budget | None] | None = None,
    neighbors: Neighbors | str = ADD_REMOVE,
    size: int | None = None,
    table: str | None = None,
    version: str | None = None,
    related: Mapping[str, Any] | None = None,
    seconds: float | None = None,
    memory: str | None = None,
    large_delta: bool = False,
) -> Session:
    """Open a dataset: a Parquet or CSV file, `tables.Database(path, table)`, a data frame, an Arrow table, or
    a mapping of columns.

    `schema`: public facts by column, the path of a schema file, or a `Public`. `related`: the data of other
    tables that the schema declares, by name; a schema file may say itself where these are. `unit`:
    `dp.rows()` if nobody has two rows, or the column that tells people apart: it has no default.
    `large_delta` insists on a delta above 1e-3 where no size is declared. `ledger`: the file that keeps the
    books, made with `budget` if it is not there yet; ":memory:" is for trying things out, and forgets. For a
    file of data it is that file's name with `.ledger` added. `seconds`: a public limit for each of the
    engine's queries; one that takes longer is stopped, and stays charged. `memory` ("4GB"): what the engine
    may use; the rest goes to disk.
    """
    if analysts is not None and not isinstance(analysts, Mapping):
        raise _require.fail(
            "analysts",
            analysts,
            "names with their budgets, such as {'ann': dp.Budget(epsilon=1), 'bob': None}",
        )
    public = _public(data, schema, unit, neighbors, size, table, version)
    if isinstance(schema, str | Path):
        related = {**data_of(Path(schema)), **(related or {})} or None
        table_data = formatted(data, Path(schema), public)
    else:
        table_data = data
    limits: dict[str, Any] = {k: v for k, v in (("seconds", seconds), ("memory", memory)) if v is not None}
    opened = isinstance(data, Source | ExampleSource)
    if limits and opened and not related:
        raise InvalidInput(
            "this source was connected already: give it a limit there, tables.connect(..., seconds=...)."
        )
    source = data if opened and not related else connect(table_data, public, related=related, **limits)
    if opened and source.public != public:
        raise InvalidInput("this source has public facts of its own; give none beside them.")
    path = _ledger(data, ledger)
    if path.exists():
        return Session(_existing(path, source, budget, analysts))
    if budget is None:
        raise LedgerError(
            f"there is no ledger at {path} yet: give a budget, such as dp.Budget(epsilon=1), and one is made."
        )
    policy = Policy(budget=budget, analysts=tuple((analysts or {}).items()))
    curator = Curator.create(path, source, policy, large_delta=large_delta, durable=ledger != TRIAL)
    if ledger == TRIAL:
        weakref.finalize(curator.ledger, shutil.rmtree, path.parent, ignore_errors=True)
    return Session(curator)


def _over(handle: Any, live: InteractiveHandle) -> Any:
    """Return the same handle (a `Watch`, a `HoldoutScorer`) on another `live`."""
    if is_dataclass(handle):
        return replace(handle, live=live)  # type: ignore[type-var]
    other = copy.copy(handle)
    other.live = live
    return other


def _share(budget: Budget, epsilon: Any) -> float:
    """The part of a budget's delta that goes with an epsilon."""
    if budget.epsilon is None:
        return budget.delta / _SHARE
    rule = budget.filter()
    assert isinstance(rule, Filter)
    return share(_require.exact(epsilon, "epsilon"), of=rule)


def _existing(
    path: Path, source: AnySource, budget: Budget | None, analysts: Mapping[str, Budget | None] | None
) -> Curator:
    curator = Curator.open(path, source)
    policy = curator.policy
    if (budget is not None and budget != policy.budget) or (
        analysts is not None and tuple(analysts.items()) != policy.analysts
    ):
        raise LedgerError(
            f"{path} was made with {policy.budget} and analysts "
            f"{[name for name, _ in policy.analysts]}. Nothing was changed. Open it "
            f"without a budget, or change the budgets with session.curator.change_policy(...)."
        )
    return curator


def _public(
    data: Any,
    schema: Any,
    unit: Unit | str | None,
    neighbors: Any,
    size: int | None,
    table: str | None,
    version: str | None,
) -> Public:
    if isinstance(data, Source | ExampleSource) and schema is None:
        return data.public
    path = _path(data)
    if isinstance(data, str) and "://" in data:
        raise InvalidInput(
            f"{data!r} is an address: nothing is fetched from the network. Download it, and give the file."
        )
    if path is not None and not path.exists():
        several = any(mark in path.name for mark in "*?[")
        way = SEVERAL.format(pattern=path.name) if several else ""
        raise InvalidInput(f"there is no file {str(path)!r}.{way}")
    if isinstance(schema, Public):
        return _agreed(schema, unit, size, table)
    if isinstance(schema, str | Path):
        if not Path(schema).exists():
            raise InvalidInput(f"there is no schema file {str(schema)!r}. `discreet init` drafts one.")
        return _agreed(load(Path(schema)), unit, size, table)
    if schema is None:
        raise InvalidInput(
            "declare what is public: schema={'age': dp.Bounds(0, 120), ...}, or the path of a schema "
            "file as `discreet init` drafts it. "
            "Nothing is ever read off the data for that."
        )
    if unit is None:
        raise InvalidInput(
            "say whom the table protects. Nothing was opened. unit=dp.rows() if nobody can have two "
            "rows, or unit='person_id', the column "
            "that tells people apart: taking a row for a person where people have many would protect nobody."
        )
    return Public(
        schema=schema,
        unit=Unit(unit) if isinstance(unit, str) else unit,
        neighbors=as_neighbors(neighbors),
        size=size,
        table=table
        or (
            data.table if isinstance(data, Database) else "data" if path is None else path.name.split(".")[0]
        ),
        version=version or ("1" if path is None else version_of(path)),
    )


def _agreed(public: Public, unit: Unit | str | None, size: int | None, table: str | None) -> Public:
    """Refuse what is said beside a complete schema and is not the same: whom it protects must not depend on
    which of the two is read."""
    said = {"unit": Unit(unit) if isinstance(unit, str) else unit, "size": size, "table": table}
    own = {"unit": public.unit, "size": public.size, "table": public.table}
    for name, value in said.items():
        same = value == own[name] or (isinstance(unit, str) and name == "unit" and unit == public.unit.column)
        if value is not None and not same:
            raise InvalidInput(
                f"the schema says {name} = {own[name]!r}, and {name}={value!r} was given beside it. "
                f"Nothing was opened. Say it in one place."
            )
    return public


def _try_room(checkpoint: Path, trainer: Any) -> None:
    """Write, and take away again, a file as large as a checkpoint will be about: a disk that is full should
    be noticed before the charge."""
    parameters = getattr(getattr(trainer, "model", None), "parameters", None)
    count = sum(int(p.numel()) for p in parameters()) if callable(parameters) else 0
    # weights, two moments of an optimizer and an average, as floats; half a megabyte for all else
    size = 16 * count + (1 << 19)
    if not checkpoint.parent.is_dir() or checkpoint.exists():
        return
    trial = checkpoint.with_name(checkpoint.name + ".trial")
    try:
        with trial.open("xb") as file:
            for start in range(0, size, 1 << 20):
                file.write(bytes(min(1 << 20, size - start)))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        raise InvalidInput(f"{trial} is in the way: take it away. Nothing was charged or trained.") from None
    except OSError as error:
        trial.unlink(missing_ok=True)
        raise InvalidInput(
            f"a checkpoint of about {size / 1e6:.1f} MB cannot be written at {checkpoint} "
            f"({error.strerror}). Nothing was charged or trained."
        ) from None
    trial.unlink()


def _path(data: Any) -> Path | None:
    if isinstance(data, Database):
        return Path(data.path)
    return Path(data) if isinstance(data, str | Path) else None


def _ledger(data: Any, ledger: str | Path | None) -> Path:
    if ledger == TRIAL:
        return Path(tempfile.mkdtemp(prefix="discreet-")) / "trial.ledger"
    if ledger is not None:
        return Path(ledger)
    path = _path(data)
    if path is None:
        raise InvalidInput(
            "say where the books are kept: ledger='people.ledger', or ledger=':memory:' to try things out."
        )
    return path.with_name(path.name + ".ledger")
