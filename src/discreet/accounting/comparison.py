"""Compares the accountants: the epsilon of one event by each of them, in one table."""

from __future__ import annotations

import math
from dataclasses import dataclass

from .. import _require
from .._errors import Unsupported
from . import rdp
from .api import ACCOUNTANTS, _check_event, _epsilon_by
from .events import Event


@dataclass(frozen=True, slots=True)
class Row:
    """The result of one accountant: its epsilon, or None and in `note` the reason why it has none.

    For the Rényi accountant `note` is the order that gave the epsilon.
    """

    accountant: str
    title: str
    epsilon: float | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Holds the results of all accountants for one event. Prints as a table; `.best` is the row with the
    least epsilon."""

    delta: float
    rows: tuple[Row, ...]

    @property
    def best(self) -> Row:
        priced = [row for row in self.rows if row.epsilon is not None]
        if not priced:
            raise Unsupported("no accountant has a price for this event: `rows` says why.")
        return min(priced, key=lambda row: row.epsilon or 0.0)

    def as_dict(self) -> dict[str, float]:
        """Return a map from accountant to epsilon, without the accountants that refused the event."""
        return {row.accountant: row.epsilon for row in self.rows if row.epsilon is not None}

    def __repr__(self) -> str:
        priced = [row for row in self.rows if row.epsilon is not None]
        lines = [f"epsilon at delta = {self.delta:g}"]
        for row in sorted(priced, key=lambda r: r.epsilon or 0.0):
            assert row.epsilon is not None
            mark = "<- tightest" if row.epsilon == self.best.epsilon else ""
            number = "infinite" if math.isinf(row.epsilon) else f"{row.epsilon:.6g}"
            lines.append(
                (
                    f"  {row.accountant:<9} {number:>12}  "
                    f"{row.title}{', ' + row.note if row.note else ''} {mark}"
                ).rstrip()
            )
        lines += [f"  {row.accountant:<9} {'-':>12}  {row.note}" for row in self.rows if row.epsilon is None]
        return "\n".join(lines)


@_require.check_options
def compare(event: Event, *, delta: float) -> Comparison:
    """Return the epsilon of the event at `delta` by every accountant, or the reason why an accountant has
    none."""
    _check_event(event)
    _require.open_probability(delta=delta)
    return Comparison(float(delta), tuple(_row(name, event, float(delta)) for name in ACCOUNTANTS))


def _row(name: str, event: Event, delta: float) -> Row:
    """Return the result of one accountant for an event, or the reason why it refuses."""
    accountant = ACCOUNTANTS[name]
    try:
        value = _epsilon_by(accountant, event, delta)
    except Unsupported as refusal:
        return Row(name, accountant.title, None, str(refusal).split(". ")[0])
    note = ""
    if name == "rdp" and 0 < value < math.inf:
        order = rdp.best(event, delta).order
        note = "pure" if math.isinf(order) else f"order {order:.4g}"
    return Row(name, accountant.title, value, note)
