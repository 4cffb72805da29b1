"""Builds the mechanism of `Session.teach` (PATE), behind the `Labeller` that it returns: checks its options,
and chooses the aggregator's noise, the columns that teachers read and the stored size of a teacher.

A labeller is resumed by building its mechanism again from the same options. All of its parameters must be
those of its start (`curator.identities.parameters_of`): a labeller that was started with the defaults of this
module cannot be resumed after they change.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories
from ..mechanisms import stable_votes, vote_cost, votes
from ..mechanisms.protocols import ExampleSource

if TYPE_CHECKING:
    from ..learning.pate import PrivateTeachers
    from .base import SessionBase


# The names that the option `aggregator` of `teach` accepts.
AGGREGATORS = ("gnmax", "lnmax", "confident", "interactive", "stable", "sampled", "sparse")


# The largest number of questions of one labeller. Measured: its noise is calibrated in 2 CPU-seconds; for
# 10**9 questions, minutes were not enough.
MAX_QUERIES = 10_000_000

# Options of `teach` that only some aggregators have, with the names of these.
_OPTIONS = {
    "answers": ("confident", "interactive"),
    "threshold": ("confident", "interactive"),
    "failures": ("sparse",),
    "overlap": ("sampled",),
}


def build_mechanism(
    session: SessionBase, learner: Any, *, teachers: int, workers: Any, progress: Any, **options: Any
) -> tuple[PrivateTeachers, tuple[Any, ...] | None]:
    """Return the priced mechanism, and the values of the target that its class numbers 0, 1, ... stand for
    (None for tensors, whose classes are the numbers themselves). `options` are all other options of
    `Session.teach`."""
    from ..learning.pate import PrivateTeachers
    from ..learning.pate.labeller import input_type
    from ..learning.pate.teachers import can_train_apart

    public, source = session.public, session.curator.source
    _check_terms(options["aggregator"], options)
    columns, classes, values = _columns(
        public, source, options["target"], options["features"], options["classes"]
    )
    _require.integer(teachers=teachers, queries=options["queries"], at_least=1)
    if options["queries"] > MAX_QUERIES:
        raise _require.fail("queries", options["queries"], f"at most {MAX_QUERIES:,}")
    _require.integer(classes=classes, at_least=2)
    epsilon = options["epsilon"]
    delta = _delta(session, epsilon, options["delta"])
    aggregator, sanitized_cost = _aggregator(teachers, classes, delta, options)
    shape = (columns.width(public),) if columns is not None else tuple(source.shapes()[0].shape[1:])
    teacher_bytes = options["size"]
    if teacher_bytes is None:
        teacher_bytes = _teacher_bytes(public, learner, teachers, shape, classes, input_type(source, columns))
    if workers is None:
        cores = os.cpu_count() or 1
        workers = cores if cores > 1 and teachers > 1 and can_train_apart(learner) else 1
    mechanism = PrivateTeachers(
        public=public,
        learner=learner,
        aggregator=aggregator,
        teachers=teachers,
        classes=classes,
        shape=shape,
        columns=columns,
        size=teacher_bytes,
        sanitize=sanitized_cost,
        delta=delta,
        asked=None if epsilon is None else (epsilon, delta),
        workers=workers,
        progress=progress,
    )
    return mechanism, values


def _aggregator(
    teachers: int, classes: int, delta: float, options: Mapping[str, Any]
) -> tuple[Any, vote_cost.SanitizedCost | None]:
    """Return the aggregator with its noise, and, if `sanitize` is given (the epsilon of that), the mechanism
    that publishes the data-dependent cost; else None."""
    aggregator, epsilon, cost_epsilon = options["aggregator"], options["epsilon"], options["sanitize"]
    if isinstance(aggregator, str):
        vote_epsilon = None if epsilon is None else float(epsilon) - float(cost_epsilon or 0)
        specific = {name: options[name] for name in _OPTIONS}
        aggregator = build_aggregator(
            aggregator, vote_epsilon, delta, options["queries"], teachers, **specific
        )
    if cost_epsilon is None:
        return aggregator, None
    vote_cost.check_cost_known(aggregator)
    order = options["order"]
    if order is None:
        order = vote_cost.best_order(aggregator, teachers, classes, delta)
    return aggregator, vote_cost.SanitizedCost(epsilon=cost_epsilon, order=order)


def _teacher_bytes(
    public: Any, learner: Any, teachers: int, shape: tuple[int, ...], classes: int, dtype: Any
) -> int:
    """Return the default limit on the bytes of one stored teacher, from a fit to random examples.

    Some models grow with their rows, and a teacher above the limit is replaced by one that always casts a
    default vote. So the limit is generous: random labels make the largest models, the fit has twice the rows
    of one teacher (512 rows where no number of rows is declared, and at most 4096), and a quarter and 16 KiB
    are added. These numbers are chosen by hand, not tuned.
    """
    from ..learning.pate.labeller import fit_made_up

    rows = 512 if public.size is None else min(2 * public.size // teachers + 1, 4096)
    return len(fit_made_up(learner, shape, classes, rows, dtype)) * 5 // 4 + (1 << 14)


def _check_terms(aggregator: Any, options: Mapping[str, Any]) -> None:
    """Refuse options outside their range, and options that this aggregator would ignore."""
    for name in ("epsilon", "delta", "sanitize", "order"):
        if options[name] is not None:
            check = _require.open_probability if name == "delta" else _require.positive
            check(**{name: options[name]})
    for name in _OPTIONS:
        value = options[name]
        if value is None:
            continue
        _require.integer(**{name: value}, at_least=1)
        if not isinstance(aggregator, str) or aggregator not in _OPTIONS[name]:
            raise InvalidInput(
                f"{name}={value!r} is for the aggregators {', '.join(_OPTIONS[name])}, and "
                f"{aggregator if isinstance(aggregator, str) else type(aggregator).__name__} would ignore "
                f"it. Nothing was charged or read. Leave it out, or set it in the aggregator itself."
            )
    if options["order"] is not None and options["sanitize"] is None:
        raise InvalidInput(
            "order= is used with sanitize= only. Nothing was charged or read. Give both, or neither."
        )


def build_aggregator(
    name: str,
    epsilon: float | None,
    delta: float,
    queries: int,
    teachers: int,
    answers: int | None,
    threshold: int | None,
    failures: int | None,
    overlap: int | None = None,
) -> Any:
    """Return the aggregator of this name with noise for (epsilon, delta)-DP over all `queries`; the options
    are those of `Session.teach`."""
    _require.one_of(AGGREGATORS, aggregator=name)
    if epsilon is None or not epsilon > 0:
        raise InvalidInput(
            "give an epsilon, larger than `sanitize`, or an aggregator with its own noise, such as "
            "GNMax(variance=1600, queries=286). Nothing was charged."
        )
    if name == "gnmax":
        return votes.GNMax.for_privacy(epsilon, delta, queries)
    if name == "lnmax":
        return votes.LNMax.for_privacy(epsilon, delta, queries)
    if name == "stable":
        return stable_votes.StableVotes.for_privacy(epsilon, delta, queries)
    if name == "sampled":
        # By default each unit is given to a tenth of the teachers. Chosen by hand, not tuned.
        unit_teachers = max(teachers // 10, 1) if overlap is None else overlap
        if unit_teachers > teachers:
            raise _require.fail("overlap", unit_teachers, f"at most the {teachers} teachers")
        return stable_votes.SampledVotes.for_privacy(epsilon, delta, queries, overlap=unit_teachers)
    if name == "sparse":
        # 5 refused questions by default: chosen by hand, not tuned.
        refusals = 5 if failures is None else failures
        return stable_votes.SparseVotes.for_privacy(epsilon, delta, queries, failures=refusals)
    # By default, "confident": 4 of 5 teachers must agree, as in Papernot et al. 2018, arXiv:1802.08908;
    # "interactive": for some class, the votes must exceed what the student's prediction expects by 3 in 10 of
    # the teachers, chosen by hand, not tuned.
    votes_needed = (
        threshold if threshold is not None else round((0.8 if name == "confident" else 0.3) * teachers)
    )
    settings: dict[str, Any] = {"answers": queries if answers is None else answers, "threshold": votes_needed}
    if name == "confident":
        return votes.ConfidentGNMax.for_privacy(epsilon, delta, queries, **settings)
    return votes.InteractiveGNMax.for_privacy(epsilon, delta, queries, teachers=teachers, **settings)


def _columns(
    public: Any, source: Any, target: str | None, features: Sequence[str] | None, classes: int | None
) -> tuple[Any, int, tuple[Any, ...] | None]:
    """Return (the columns that teachers read, the number of classes, the values of the target); for tensors,
    columns and values are None."""
    if isinstance(source, ExampleSource):
        if classes is None:
            raise InvalidInput(
                "say how many classes there are, classes=10: their number is public, and is never read from "
                "the data. Nothing was charged or read."
            )
        if target is not None or features is not None:
            raise InvalidInput(
                "target= and features= name columns of a table, but these data are examples of tensors, "
                "which have inputs and targets already. Nothing was charged or read. Leave them out."
            )
        return None, classes, None
    from ..learning import Tabular

    if target is None:
        raise InvalidInput("say which column is the target, target='label'. Nothing was charged or read.")
    fact = public.fact(target)
    if not isinstance(fact, Categories | Boolean):
        raise InvalidInput(
            f"column {target!r} has no declared classes. Declare Categories or Boolean for it. Nothing was "
            f"charged or read."
        )
    names = features
    if names is None:
        unit = public.unit.column
        names = [
            name
            for name, kind in _schema(public)
            if name not in (target, unit) and isinstance(kind, Bounds | Categories | Boolean)
        ]
    values = (False, True) if isinstance(fact, Boolean) else tuple(fact.values)
    if classes is not None and classes != len(values):
        raise _require.fail("classes", classes, f"{len(values)}, as the target declares")
    return Tabular(features=tuple(names), target=target), len(values), values


def _schema(public: Any) -> list[tuple[str, Any]]:
    """Return the declared columns with their facts."""
    schema = public.schema
    return list(schema.items() if isinstance(schema, Mapping) else schema)


def _delta(session: SessionBase, epsilon: float | None, delta: float | None) -> float:
    """Return the delta of the labeller: as given, or the session's default for this epsilon (for epsilon 1
    where the aggregator has its own noise); 1e-6 where that default is zero. 1e-6 is a convention."""
    if delta is not None:
        return delta
    return session._delta(1 if epsilon is None else epsilon, session.curator.policy) or 1e-6
