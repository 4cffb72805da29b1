"""Two tables linked by the unit's key, such as people and their visits: a person's rows stay together.

Two flat tables are synthesized one after the other, each by any method of this package. The *parents* have
one row for every unit, and one more column with the unit's number of rows in the second table. The *children*
have one row for every row of the second table (at most `rows_per_unit` of a unit), with the columns of its
unit beside its own. For a copy, parents are drawn with their numbers of children, and then as many children
for each parent, given the parent's columns.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, ClassVar, Self

from .. import _require
from .._errors import InvalidInput
from .._public import Bounds, Public, Related, Unit
from .._registry import described, to_json
from .._require import Real
from ..accounting import Event, calibrate, compose
from ..mechanisms import noise_tails
from ..mechanisms.protocols import Release, check_source, release
from ..sampling import Entropy
from ..tables import Source
from ..tables.cells import Coding, count_linked, plan_linked
from ..tables.columns import no_match
from ..tables.engines.duckdb import engine_of
from .arguments import check_epsilon, check_instance, check_mapping, check_method_options
from .constraints import Constraint
from .counting import OccurringCells
from .domain import Domain, DomainColumn
from .methods import method_class
from .synthesizer import RHO_BRACKET, Fitted, State, Synthesizer, count_lost_steps, refuse_further_steps

# The largest `rows_per_unit` of children: each number of children is a code of a column of the parents, and
# the noise of the children's tables grows with the limit. A round number, chosen by hand and not tuned.
MAX_CHILDREN = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildTable:
    """Says which columns of the second table are copied and how, with the same options as for the first.

    `name` is the name of the second table. `rows_per_unit`: at most this many rows of each unit count, chosen
    by a keyed hash. `share`: the share of rho that is for the flat table of children.
    """

    name: str
    rows_per_unit: int
    columns: Sequence[str] | None = None
    bins: Mapping[str, Any] | None = None
    missing: Mapping[str, bool] | None = None
    constraints: Sequence[Any] = ()
    share: Real = Fraction(1, 2)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise _require.fail("name", self.name, "the name of a private table")
        _require.integer(rows_per_unit=self.rows_per_unit, at_least=1)
        if self.rows_per_unit > MAX_CHILDREN:
            raise _require.fail("rows_per_unit", self.rows_per_unit, f"at most {MAX_CHILDREN:,}")
        share = _require.exact(self.share, "share")
        if not 0 < share < 1:
            raise _require.fail("share", self.share, "between 0 and 1")
        object.__setattr__(self, "share", share)
        object.__setattr__(self, "constraints", _require.listed(constraints=self.constraints))


def find_child(public: Public, name: str) -> Related:
    """Return the private table of this name; refused if there is none, or if the first table has no column
    that names the unit of a row."""
    private = [other for other in public.tables if other.private]
    for other in private:
        if other.name == name and public.unit.column is not None:
            return other
    names = [other.name for other in private]
    raise InvalidInput(
        f"{name!r} is no private table beside {public.table!r}.{_require.did_you_mean(name, names)} Nothing "
        f"was charged. Declare it in the schema: Related(name={name!r}, private=True, unit='person_id', "
        f"...), and open the data with unit='person_id'."
    )


def parent_public(public: Public, name: str, rows: int) -> Public:
    """Return the public facts of the flat table of parents: the columns of the first table, and last the
    number of children, from 0 to `rows`."""
    # Refuses names that are no private table.
    find_child(public, name)
    schema = (*public.schema, (child_count_column(public, name), Bounds(0, rows, nullable=False)))
    return _flat_public(public, schema, public.table)


def child_public(public: Public, name: str) -> Public:
    """Return the public facts of the flat table of children: the columns of their unit, then their own, which
    are named "<table>.<column>"."""
    child = find_child(public, name)
    own = tuple((f"{name}.{column}", fact) for column, fact in child.schema if column != child.unit)
    of_parent = tuple((column, fact) for column, fact in public.schema if column != public.unit.column)
    if clashes := {column for column, _ in own} & {column for column, _ in of_parent}:
        raise InvalidInput(
            f"column {min(clashes)!r} has the name of a column of {name!r}. Nothing was charged. Rename it."
        )
    return _flat_public(public, (*of_parent, *own), name)


def child_count_column(public: Public, name: str) -> str:
    """Return the name of the column of numbers of children, which no column of the first table has."""
    column = f"{name}.rows"
    while column in dict(public.schema):
        column += "_"
    return column


def _flat_public(public: Public, schema: Any, table: str) -> Public:
    """Return the public facts of one flat table: those of the data, with another schema and table name, and
    without other tables and the unit's limits."""
    unit = Unit(public.unit.column)
    return Public(
        schema=schema,
        unit=unit,
        neighbors=public.neighbors,
        size=public.size,
        table=table,
        version=public.version,
    )


@described("synthetic.LinkedFitted")
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedFitted:
    """Holds all that a synthesis of two tables released: the tables of counts of each flat table. `child` is
    the name of the second table."""

    public: Public
    child: str
    parents: Fitted
    children: Fitted


@described("synthetic.LinkedSynthesis")
@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedSynthesis:
    """Synthesizes a table with one row for each unit, and a second private table with several rows for each.

    `child` is the name of the second table. `parents` and `children` are the methods for the two flat tables,
    whose public facts are those of `parent_public` and `child_public`. A synthesis runs at once
    (`Mechanism`), or in steps (`Stepped`). `epsilon` and `delta` are those that `for_privacy` was called
    with.

    Guarantee: `event`, for neighbors that differ in all rows of one unit in both tables.
    Proof:     such neighbors differ in one row of the flat parents and in at most `children.rows_per_unit`
               rows of the flat children (`tables.cells.count_linked`), and each method is priced for that.
               The second method runs after the first: adaptive composition.
    """

    method: ClassVar[str] = "linked"
    error_in_scores: ClassVar[bool] = True
    public: Public
    child: str
    parents: Synthesizer
    children: Synthesizer
    epsilon: Real | None = None
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_instance(Public, public=self.public)
        check_instance(Synthesizer, parents=self.parents, children=self.children)
        if self.epsilon is not None:
            _require.positive(epsilon=self.epsilon)
        _require.probability(delta=self.delta)
        rows = self.children.rows_per_unit
        publics = (parent_public(self.public, self.child, rows), child_public(self.public, self.child))
        if (self.parents.public, self.children.public) != publics or self.parents.rows_per_unit != 1:
            raise InvalidInput(
                "the methods are not for the flat tables of these two tables, or count several parents for "
                "one unit. Nothing was charged. Build the synthesis with LinkedSynthesis.for_privacy(...)."
            )
        edges = tuple(range(rows + 2))
        child_count = DomainColumn(
            column=child_count_column(self.public, self.child), edges=edges, missing=False
        )
        shared = self._shared
        if (
            self.parents.domain.columns[-1] != child_count
            or self.children.domain.columns[: len(shared)] != shared
        ):
            raise InvalidInput(
                "the domain of the children must begin with the columns of the parents, and the domain of "
                "the parents must end with the number of children. Nothing was charged. Build the synthesis "
                "with LinkedSynthesis.for_privacy(...)."
            )
        own = self.children.domain.names[len(shared) :]
        if not own:
            raise InvalidInput(f"no column of {self.child!r} is copied. Nothing was charged. Name some.")
        of_parent = [name for name in own if name in dict(self.public.schema)]
        if of_parent:
            raise InvalidInput(
                f"the domain of the children has column {of_parent[0]!r} of the first table, which the "
                f"domain of the parents does not have. Nothing was charged. Build the synthesis with "
                f"LinkedSynthesis.for_privacy(...)."
            )

    @property
    def _shared(self) -> tuple[Any, ...]:
        """The columns of both flat tables: those of the parents without the number of children."""
        return self.parents.domain.columns[:-1]

    @classmethod
    def for_privacy(
        cls,
        public: Public,
        child: ChildTable,
        *,
        epsilon: Real,
        delta: float,
        method: str = "auto",
        columns: Sequence[str] | None = None,
        bins: Mapping[str, Any] | None = None,
        missing: Mapping[str, bool] | None = None,
        constraints: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
    ) -> LinkedSynthesis:
        """Return the synthesis with the largest rho that is (epsilon, delta)-DP.

        `columns`, `bins`, `missing` and `constraints` are for the first table, and `options` are those of the
        method, which is the same for both flat tables (with "auto", chosen for each).
        """
        check_instance(Public, public=public)
        check_epsilon(epsilon)
        _require.open_probability(delta=delta)
        check_instance(ChildTable, child=child)
        method_options = check_method_options(options)
        domains = _flat_domains(
            public, child, columns, check_mapping(bins=bins), check_mapping(missing=missing)
        )
        publics = (parent_public(public, child.name, child.rows_per_unit), child_public(public, child.name))
        prefixed = tuple(_add_prefix(child, constraint) for constraint in child.constraints)
        settings: list[dict[str, Any]] = [
            {"constraints": tuple(_require.listed(constraints=constraints)), "rows_per_unit": 1},
            {"constraints": prefixed, "rows_per_unit": int(child.rows_per_unit)},
        ]
        classes = [method_class(method, domain, method_options) for domain in domains]
        shares = (1 - _require.exact(child.share, "share"), _require.exact(child.share, "share"))

        def build(rho: float, **asked: Any) -> LinkedSynthesis:
            exact = _require.exact(rho, "rho")
            parents, children = (
                synthesizer(public=flat, domain=domain, rho=exact * share, **setting, **method_options)
                for synthesizer, flat, domain, share, setting in zip(
                    classes, publics, domains, shares, settings, strict=True
                )
            )
            return cls(public=public, child=child.name, parents=parents, children=children, **asked)

        target = float(epsilon)
        rho = calibrate(
            lambda r: build(r).event, epsilon=target, delta=delta, bracket=RHO_BRACKET, tolerance=1e-3
        )
        return build(rho, epsilon=epsilon, delta=delta)

    @property
    def asked(self) -> tuple[Real, float] | None:
        return None if self.epsilon is None else (self.epsilon, self.delta)

    @property
    def event(self) -> Event:
        return compose([self.parents.event, self.children.event])

    @property
    def length(self) -> int:
        return self.parents.length + self.children.length

    @property
    def period(self) -> int:
        return 1

    def rehearse(self, source: Source) -> None:
        """Refuse, before the charge, two tables whose keys are of kinds that do not match, and queries that
        the engine cannot plan."""
        kinds, child = engine_of(source).id_kinds, find_child(self.public, self.child)
        keys = ((self.public.table, str(self.public.unit.column)), (child.name, str(child.unit)))
        first, second = ((table, column, kinds[table][column]) for table, column in keys)
        if first[2] != second[2]:
            raise no_match(first, second)
        of_parent, own = _linked_codings(self)
        plan_linked(source, of_parent, child, own, rows=self.children.rows_per_unit)

    def start(self, source: Source, *, entropy: Entropy) -> LinkedRun:
        check_source(self.public, source)
        return LinkedRun(self, source, LinkedState(of=self._fingerprint()), 0, entropy)

    def restore(self, source: Source, raw: bytes, steps_taken: int, *, entropy: Entropy) -> LinkedRun:
        check_source(self.public, source)
        state = LinkedState.load(raw)
        if state.of != self._fingerprint():
            raise InvalidInput(
                "the checkpoint is of a synthesis with other options. Nothing was run. Give those that it "
                "was started with."
            )
        # Refuses a checkpoint with more steps than were begun.
        count_lost_steps(state.steps, steps_taken)
        # The steps of the parents come first.
        of_parents = self.parents.length
        self.parents.forfeit(state.parents, min(steps_taken, of_parents) - min(state.steps, of_parents))
        lost = max(steps_taken - of_parents, 0) - max(state.steps - of_parents, 0)
        self.children.forfeit(state.children, lost)
        return LinkedRun(self, source, state, steps_taken, entropy)

    def _fingerprint(self) -> str:
        """Return a hash of both methods and their options, all public."""
        return hashlib.sha256(json.dumps(to_json(self), sort_keys=True).encode()).hexdigest()

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        run = self.start(source, entropy=entropy)
        while run.steps_taken < self.length:
            run.step()
        return run.release()


@dataclass(slots=True)
class LinkedState:
    """Holds what a run has released so far from both tables; `of` is the fingerprint of its synthesis, and
    `steps` the number of finished steps. The keys of `dump` stand in checkpoints: they must not change."""

    of: str
    steps: int = 0
    parents: State = field(default_factory=State)
    children: State = field(default_factory=State)

    def dump(self) -> bytes:
        parts = {"parents": self.parents.dump().decode(), "children": self.children.dump().decode()}
        return json.dumps({"of": self.of, "steps": self.steps, **parts}).encode()

    @classmethod
    def load(cls, raw: bytes) -> LinkedState:
        body = json.loads(raw)
        parents, children = (State.load(body[name].encode()) for name in ("parents", "children"))
        return cls(body["of"], int(body["steps"]), parents, children)


class LinkedRun:
    """Runs a synthesis of two tables step by step: first the steps of the parents, then those of the
    children. As in `SynthesisRun`, a step counts as taken when it begins."""

    def __init__(
        self, method: LinkedSynthesis, source: Source, state: LinkedState, steps_taken: int, entropy: Entropy
    ) -> None:
        self.method, self.source, self.state = method, source, state
        self.steps_taken, self.entropy = steps_taken, entropy
        self._cells: tuple[OccurringCells, OccurringCells] | None = None

    @property
    def progress(self) -> dict[str, int]:
        """Public facts: steps taken, steps in all, and tables released so far."""
        tables = len(self.state.parents.tables) + len(self.state.children.tables)
        return {"step": self.steps_taken, "steps": self.method.length, "tables": tables}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def step(self) -> None:
        """Take the next step; refused when all are taken."""
        refuse_further_steps(self.steps_taken, self.method.length)
        step, of_parents = self.steps_taken, self.method.parents.length
        self.steps_taken += 1
        if self._cells is None:
            self._cells = count_linked_cells(self.method, self.source, self.entropy)
        if step < of_parents:
            self.method.parents.advance(self.state.parents, self._cells[0], step, self.entropy)
        else:
            self.method.children.advance(self.state.children, self._cells[1], step - of_parents, self.entropy)
        self.state.steps = self.steps_taken

    def dump(self) -> bytes:
        return self.state.dump()

    def release(self) -> Release:
        fitted = LinkedFitted(
            public=self.method.public,
            child=self.method.child,
            parents=self.method.parents.fitted(self.state.parents),
            children=self.method.children.fitted(self.state.children),
        )
        return release(
            fitted, event=self.method.event, entropy=self.entropy, error=self._error, error_in_scores=True
        )

    def _error(self, confidence: float) -> int:
        """Return a bound that all released counts keep together: with probability `confidence` none is
        further from the true count."""
        tables = [*self.state.parents.tables, *self.state.children.tables]
        entries = sum(len(table.values) for table in tables)
        failure = noise_tails.failure_per_draw(confidence, max(1, entries))
        return max((noise_tails.gaussian_error(v, failure) for v in {t.variance for t in tables}), default=0)


def count_linked_cells(
    method: LinkedSynthesis, source: Source, entropy: Entropy
) -> tuple[OccurringCells, OccurringCells]:
    """Count both flat tables, parents first, in the engine; which rows of a unit count is decided by a hash
    under a fresh secret key."""
    child = find_child(method.public, method.child)
    of_parent, own = _linked_codings(method)
    rows = method.children.rows_per_unit
    linked = count_linked(source, of_parent, child, own, rows=rows, key=entropy.integer(63))
    parents, children = (
        OccurringCells(part.sizes, cells.codes, cells.counts)
        for part, cells in ((method.parents, linked.parents), (method.children, linked.children))
    )
    return parents, children


def _linked_codings(method: LinkedSynthesis) -> tuple[Sequence[Coding], list[Coding]]:
    """Return the codings of the columns of the main table, and those of the second table."""
    of_parent = Domain(columns=method.parents.domain.columns[:-1]).codings(method.public)
    flat = method.children.domain.codings(method.children.public)[len(of_parent) :]
    # In the engine, the columns of the second table have no prefix.
    return of_parent, [_remove_prefix(coding, method.child) for coding in flat]


def _remove_prefix(coding: Any, child: str) -> Any:
    """Return the coding of a column of the second table under its own name, without "<table>."."""
    return replace(coding, column=coding.column[len(child) + 1 :])


def _add_prefix(child: ChildTable, text: Any) -> Constraint:
    """Return a constraint on columns of the second table with the names of the flat table of children."""
    constraint = Constraint.parse(text)
    left, right = f"{child.name}.{constraint.left}", f"{child.name}.{constraint.right}"
    return Constraint(left=left, comparison=constraint.comparison, right=right)


def _flat_domains(
    public: Public,
    child: ChildTable,
    columns: Sequence[str] | None,
    bins: dict[str, Any],
    missing: dict[str, bool],
) -> tuple[Domain, Domain]:
    """Return the domains of the flat tables, parents first; `columns`, `bins` and `missing` are those of the
    first table."""
    flat = _flat_public(public, public.schema, public.table)
    of_parent = Domain.of(flat, columns, bins=bins, missing=missing)
    flat_parents = parent_public(public, child.name, child.rows_per_unit)
    edges = {child_count_column(public, child.name): list(range(child.rows_per_unit + 2))}
    child_count = Domain.of(flat_parents, list(edges), bins=edges)
    related = find_child(public, child.name)
    second = Public(schema=related.schema, unit=Unit(related.unit), table=child.name)
    own = Domain.of(second, child.columns, bins=child.bins, missing=child.missing)
    renamed = tuple(replace(column, column=f"{child.name}.{column.column}") for column in own.columns)
    return (
        Domain(columns=(*of_parent.columns, *child_count.columns)),
        Domain(columns=(*of_parent.columns, *renamed)),
    )
