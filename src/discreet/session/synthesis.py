"""`Session.synthesize` and `Session.compare_copy`: they build a mechanism from the options, and a synthetic
copy from its release."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..synthetic import copy as methods
from ..synthetic.copy import SyntheticCopy
from ..synthetic.counting import rows_per_unit as bounded_rows
from ..synthetic.quality import CopyDistance
from ..synthetic.table_domain import Domain, check_instance, check_method_options, check_rows_and_seed
from .terms import CopyTerms, SynthesisTerms

if TYPE_CHECKING:
    from ..mechanisms.protocols import Release
    from .fitting import Models


# How long a server works on a copy by default, in seconds. Chosen by hand.
JOB_SECONDS = 60.0


def synthesis_mechanism(session: Models, terms: SynthesisTerms) -> Any:
    """Return the priced mechanism of a synthesis; no data is read."""
    public = session.public
    options = check_method_options(terms.options)
    delta = terms.delta
    if delta is None:
        delta = session._delta(terms.epsilon, session.curator.policy)
    return methods.method_for(
        terms.method,
        public,
        Domain.of(public, terms.columns, bins=terms.bins, missing=terms.missing),
        epsilon=terms.epsilon,
        delta=delta,
        rows_per_unit=bounded_rows(public, terms.rows_per_unit),
        constraints=_require.listed(constraints=terms.constraints),
        **options,
    )


def synthesize(session: Models, terms: CopyTerms) -> SyntheticCopy:
    """Run and charge a synthesis, or take its release from the ledger, and return a copy drawn from it."""
    check_rows_and_seed(terms.rows, terms.seed)
    if terms.progress is not None and not callable(terms.progress):
        raise _require.fail("progress", terms.progress, "a function of public facts")
    if terms.checkpoint is not None and not isinstance(terms.checkpoint, str | Path):
        raise _require.fail("checkpoint", terms.checkpoint, "the name of a file")
    mechanism = synthesis_mechanism(session, terms)
    release = _run_or_resume(session, mechanism, terms)
    return SyntheticCopy.of(
        release.value, mechanism.event, rows=terms.rows, seed=terms.seed, asked=mechanism.asked
    )


def _run_or_resume(session: Models, mechanism: Any, terms: CopyTerms) -> Release:
    """Return the release of a synthesis: resumed from its checkpoint; asked, and free if the ledger has its
    answer; or, with a checkpoint or `progress`, as a new run that is charged (see `Session.train`)."""
    text, checkpoint, progress = f"synthetic copy by {mechanism.method}", terms.checkpoint, terms.progress
    if terms.resume:
        if checkpoint is None:
            raise InvalidInput("resume=True needs the checkpoint to continue from: checkpoint='copy.run'.")
        return session.resume(mechanism, checkpoint, progress=progress)
    if session.curator.away:
        options: dict[str, Any] = {"fresh": terms.fresh, "seconds": terms.seconds or JOB_SECONDS}
        return session.curator.run(mechanism, checkpoint=checkpoint, progress=progress, **options)
    if checkpoint is None and progress is None:
        return session.curator.ask(mechanism, analyst=session.analyst, text=text, fresh=terms.fresh)
    return session.train(mechanism, checkpoint=checkpoint, every=1, text=text, progress=progress)


def compare_copy(
    session: Models, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
) -> Release:
    """Ask, at the price `epsilon`, how far the two-way marginals of a copy are from those of the table, on
    average."""
    check_instance(SyntheticCopy, copy=copy)
    mechanism = CopyDistance(
        public=session.public,
        fitted=copy.fitted,
        epsilon=epsilon,
        rows=copy.rows,
        seed=copy.seed,
        rows_per_unit=bounded_rows(session.public, rows_per_unit),
    )
    return session.curator.ask(mechanism, analyst=session.analyst, text="distance of a synthetic copy")
