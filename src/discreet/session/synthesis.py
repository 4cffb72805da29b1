"""`Session.synthesize`: from its options to a method, and from its release to a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..curator import segments
from ..synthetic import methods
from ..synthetic.arguments import instance, mapping, rows_and_seed
from ..synthetic.copy import SyntheticCopy
from ..synthetic.counting import rows_per_unit as bounded_rows
from ..synthetic.domain import Domain
from ..synthetic.quality import CopyDistance

if TYPE_CHECKING:
    from ..mechanisms.protocols import Release
    from .session import Session


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesisTerms:
    """The options of a synthesis, as `Session.synthesize` spells them out."""

    epsilon: Real
    delta: float | None = None
    method: str = "auto"
    columns: Sequence[str] | None = None
    bins: Mapping[str, Any] | None = None
    missing: Mapping[str, bool] | None = None
    rows_per_unit: int | None = None
    constraints: Sequence[Any] = ()
    options: Mapping[str, Any] | None = None

    def mechanism(self, session: Session) -> Any:
        """Return the priced method; nothing is read."""
        public = session.public
        options = mapping(options=self.options)
        if own := sorted({"rows_per_unit", "constraints", "epsilon", "delta"} & set(options)):
            raise InvalidInput(
                f"{own[0]} is an option of synthesize itself: synthesize({own[0]}=...). Nothing was charged."
            )
        domain = Domain.of(public, self.columns, bins=self.bins, missing=self.missing)
        delta = self.delta
        if delta is None:
            delta = session._delta(self.epsilon, session.curator.policy)
        return methods.method_for(
            self.method,
            public,
            domain,
            epsilon=self.epsilon,
            delta=delta,
            rows_per_unit=bounded_rows(public, self.rows_per_unit),
            constraints=_require.listed(constraints=self.constraints),
            **options,
        )


def synthesize(
    session: Session,
    terms: SynthesisTerms,
    *,
    rows: int | None,
    seed: int | None,
    checkpoint: str | Path | None,
    resume: bool,
    progress: segments.Watch | None,
    fresh: bool,
) -> SyntheticCopy:
    """Pay for a synthesis, or find it in the ledger, and return its copy."""
    rows_and_seed(rows, seed)
    _require.flag(resume=resume, fresh=fresh)
    if progress is not None and not callable(progress):
        raise _require.fail("progress", progress, "a function of public facts")
    if checkpoint is not None and not isinstance(checkpoint, str | Path):
        raise _require.fail("checkpoint", checkpoint, "the name of a file")
    mechanism = terms.mechanism(session)
    released = _released(session, mechanism, checkpoint, resume, progress, fresh)
    return SyntheticCopy.of(released.value, mechanism.event, rows=rows, seed=seed, asked=mechanism.asked)


def _released(
    session: Session,
    mechanism: Any,
    checkpoint: str | Path | None,
    resume: bool,
    progress: segments.Watch | None,
    fresh: bool,
) -> Release:
    text = f"synthetic copy by {mechanism.method}"
    if resume:
        if checkpoint is None:
            raise InvalidInput(
                "resume needs the checkpoint to go on from: checkpoint='copy.run'. Nothing was run."
            )
        return session.resume(mechanism, checkpoint, progress=progress)
    if checkpoint is None and progress is None:
        return session.curator.ask(mechanism, analyst=session.analyst, text=text, fresh=fresh)
    return session.train(mechanism, checkpoint=checkpoint, every=1, text=text, progress=progress)


def compare_copy(
    session: Session, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
) -> Release:
    """Ask, for a price, how far the tables by two columns of a copy are from the data's, on average."""
    instance(SyntheticCopy, copy=copy)
    asked = CopyDistance(
        public=session.public,
        fitted=copy.fitted,
        epsilon=epsilon,
        rows=copy.rows,
        seed=copy.seed,
        rows_per_unit=bounded_rows(session.public, rows_per_unit),
    )
    return session.curator.ask(asked, analyst=session.analyst, text="distance of a synthetic copy")
