"""`Session.synthesize` and `Session.compare_copy`: they build a mechanism from the options, and a synthetic
copy from its release."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..curator import segments
from ..synthetic import copy as methods
from ..synthetic.copy import SyntheticCopy
from ..synthetic.counting import rows_per_unit as bounded_rows
from ..synthetic.quality import CopyDistance
from ..synthetic.table_domain import Domain, check_instance, check_method_options, check_rows_and_seed

if TYPE_CHECKING:
    from ..mechanisms.protocols import Release
    from .fitting import Models


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisTerms:
    """Holds the options of a synthesis that decide its mechanism; `Session.synthesize` documents them."""

    epsilon: Real
    delta: float | None = None
    method: str = "auto"
    columns: Sequence[str] | None = None
    bins: Mapping[str, Any] | None = None
    missing: Mapping[str, bool] | None = None
    rows_per_unit: int | None = None
    constraints: Sequence[Any] = ()
    options: Mapping[str, Any] | None = None

    def mechanism(self, session: Models) -> Any:
        """Return the priced mechanism; no data is read."""
        public = session.public
        options = check_method_options(self.options)
        domain = Domain.of(public, self.columns, bins=self.bins, missing=self.missing)
        return methods.method_for(
            self.method,
            public,
            domain,
            epsilon=self.epsilon,
            delta=self._delta(session),
            rows_per_unit=bounded_rows(public, self.rows_per_unit),
            constraints=_require.listed(constraints=self.constraints),
            **options,
        )

    def _delta(self, session: Models) -> float:
        """Return the delta: as given, or the session's default for this epsilon."""
        if self.delta is not None:
            return self.delta
        return session._delta(self.epsilon, session.curator.policy)


def synthesize(
    session: Models,
    terms: SynthesisTerms,
    *,
    rows: int | None,
    seed: int | None,
    checkpoint: str | Path | None,
    resume: bool,
    progress: segments.Watch | None,
    fresh: bool,
) -> SyntheticCopy:
    """Run and charge a synthesis, or take its release from the ledger, and return a copy drawn from it."""
    check_rows_and_seed(rows, seed)
    _require.flag(resume=resume, fresh=fresh)
    if progress is not None and not callable(progress):
        raise _require.fail("progress", progress, "a function of public facts")
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise _require.fail("checkpoint", checkpoint, "the name of a file")
    mechanism = terms.mechanism(session)
    release = _run_or_resume(session, mechanism, checkpoint, resume, progress, fresh)
    return SyntheticCopy.of(release.value, mechanism.event, rows=rows, seed=seed, asked=mechanism.asked)


def _run_or_resume(
    session: Models,
    mechanism: Any,
    checkpoint: str | Path | None,
    resume: bool,
    progress: segments.Watch | None,
    fresh: bool,
) -> Release:
    """Return the release of a synthesis: resumed from its checkpoint; asked, and free if the ledger has its
    answer; or, with a checkpoint or `progress`, as a new run that is charged (see `Session.train`)."""
    text = f"synthetic copy by {mechanism.method}"
    if resume:
        if checkpoint is None:
            raise InvalidInput("resume=True needs the checkpoint to continue from: checkpoint='copy.run'.")
        return session.resume(mechanism, checkpoint, progress=progress)
    if checkpoint is None and progress is None:
        return session.curator.ask(mechanism, analyst=session.analyst, text=text, fresh=fresh)
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
