"""Suggests what a steward does not know, for a price: bounds of a column, and the limits on rows and groups
with which a question errs least.

Both are ordinary questions in SQL, in which each person is in one of a list of public classes: a histogram
that one person changes by one, whatever the number of their rows. What is suggested is computed from its
noisy counts. So the guarantee, the record and the price are those of `sql`, for all units, over the network
as well, and the second time it is free.

The limits are chosen where one more row or group per person would add as much noise as it saves of rows that
are left out: by the number of people above a limit, not by the data's largest (Amin, Kulesza, Muñoz Medina &
Vassilvitskii 2019, "Bounding user contributions: a bias-variance trade-off in differential privacy").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from .._drawing import Picture, Series
from .._errors import InvalidInput
from .._public import Bounds
from .._require import NearestNames

# The ends of the classes of sizes of numbers: powers of two. Numbers beyond the last one are very rare.
_POWERS = tuple(2.0**power for power in range(-10, 41))
# The ends of the classes of rows, and of groups, of one person; a person above the last counts as twice that.
LEVELS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 24, 32, 48, 64, 96, 128)
# How far above zero, in standard deviations of its noise, a number of people must be that decides anything.
# Measured at 2 and 3 on the five tables of tests/session/test_suggesting.py: 3 is as good or better on each.
_SIGNIFICANT = 3.0
# A class counts as empty unless its noisy count is above what noise alone reaches with this probability.
_EMPTY = 0.01


def classes(value: str, ends: Sequence[float], above: int) -> str:
    """Return the SQL of the number of the class to which a value belongs: the first whose end is not below
    it, or `above`."""
    cases = " ".join(f"WHEN {value} <= {end!r} THEN {number}" for number, end in enumerate(ends))
    return f"CASE {cases} ELSE {above} END"


def bounds_question(column: str, table: str, bounds: Bounds) -> tuple[str, list[float]]:
    """Return SQL with the noisy number of rows in each class of a column's values, and the ends of the
    classes within the declared bounds."""
    low, high = float(bounds.lower), float(bounds.upper)
    inside = [end for end in (*(-p for p in reversed(_POWERS)), 0.0, *_POWERS) if low < end < high]
    name = '"' + column.replace('"', '""') + '"'
    sql = (
        f"SELECT {classes(name, inside, len(inside))} AS bin, COUNT(*) AS n "
        f'FROM "{table.replace(chr(34), chr(34) * 2)}" WHERE {name} IS NOT NULL GROUP BY 1'
    )
    return sql, [low, *inside, high]


def bounds_of(answer: Any, ends: Sequence[float]) -> Bounds:
    """Return the hull of the classes that are not empty, by their noisy counts."""
    error = _error(answer, 1 - _EMPTY / len(ends))
    counts = dict(zip(answer["bin"], answer["n"], strict=True))
    full = [number for number in range(len(ends) - 1) if counts.get(number, 0) > error]
    if not full:
        raise InvalidInput(
            f"no class of values has clearly more people than noise alone (about {error:.0f}). "
            "Ask with more epsilon, or declare bounds from what is known about the study."
        )
    return Bounds(_plain(ends[full[0]]), _plain(ends[full[-1] + 1]))


def _error(answer: Any, confidence: float) -> float:
    """Return how far the count of a class may be off."""
    if not answer.rows:
        raise InvalidInput(
            "each class of people has fewer than are shown (min_people). Ask with more epsilon, or declare "
            "limits and bounds from what is known about the study."
        )
    error: float = answer.error(confidence)["n"][0]
    return error


def _plain(number: float) -> int | float:
    return int(number) if number.is_integer() else number


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedLimits(NearestNames):
    """Suggests limits of one person's contribution to an answer.

    `error`: what the mean error of a group is predicted to be: of noise, and of rows that are left out.
    `curve`: for other limits on rows, the best limit on groups with it, and that error.
    """

    rows: int
    groups: int
    error: float
    curve: tuple[tuple[int, int, float], ...]

    def __str__(self) -> str:
        return (
            f"rows={self.rows}, groups={self.groups}: a group is off by about {self.error:.3g} (noise, and "
            "rows that are left out, as estimated)"
        )

    def picture(self) -> Picture:
        """Return the predicted error by the limit on rows."""
        rows, _, errors = zip(*self.curve, strict=True)
        line = Series("predicted error", tuple(map(float, rows)), tuple(errors))
        best = Series("suggested", (float(self.rows),), (self.error,), kind="points")
        return Picture(
            title="Error by the limit on rows of one person",
            x_label="rows",
            y_label="mean error of a group",
            series=(line, best),
            log_x=True,
            y_bottom=0.0,
        )

    def _repr_html_(self) -> str:
        return f"<p>{self}</p>{self.picture().svg()}"


def limits_questions(parts: str, grouped: bool) -> list[str]:
    """Return SQL with the noisy number of people by what they add to the group where it is most; and where
    there are groups, by the number of these. `parts` has one row per person `u` and group, with what is added
    as `n`."""
    most = 2 * LEVELS[-1]
    people = f"(SELECT u, COUNT(*) AS g, MAX(CLAMP(n, 0, {most})) AS n FROM ({parts}) AS a GROUP BY u) AS b"
    return [
        f"SELECT {by} AS bin, COUNT(*) AS n FROM {people} GROUP BY 1"
        for by in (classes(what, LEVELS, len(LEVELS)) for what in ("n", "g")[: 1 + grouped])
    ]


@dataclass(frozen=True, slots=True)
class Tail:
    """Estimates, for k = 0, 1, 2, ..., how many people have more than k of something: `above`."""

    above: tuple[float, ...]

    @classmethod
    def of(cls, answer: Any, most: int | None = None) -> Tail:
        """Return the tail of the noisy number of people in each class of `LEVELS`; nobody has more than
        `most`.

        It is believed as far as it is clearly above its noise. Beyond, it goes on as it fell before if what
        was counted there is not clearly less; else it ends.
        """
        counts = dict(zip(answer["bin"], answer["n"], strict=True))
        # 95% of the noise of a count is within its error: about 2.1 standard deviations.
        deviation = _error(answer, 0.95) / 2.1
        ends = [end for end in (0, *LEVELS) if most is None or end < most]
        sizes = [float(counts.get(number, 0)) for number in range(len(LEVELS) + 1)][: len(ends)]
        more = [*accumulate(reversed(sizes))][::-1]
        doubt = [_SIGNIFICANT * deviation * math.sqrt(len(ends) - number) for number in range(len(ends))]
        last = next((n for n in range(1, len(ends)) if more[n] <= doubt[n]), len(ends)) - 1
        above = [max(more[0], 1.0)]
        for number in range(last):
            above += _between(ends[number], above[-1], ends[number + 1], min(more[number + 1], above[-1]))
        if last and (most is None or ends[last] + 1 < most):
            beyond = _beyond(ends[last - 1], above[ends[last - 1]], ends[last], above[-1])
            following = ends[last + 1] if last + 1 < len(ends) else None
            is_less = following and more[last + 1] + doubt[last + 1] < beyond[following - ends[last] - 1]
            above += [] if is_less else beyond
        return cls(tuple(above[:most]))

    def mean(self, limit: int) -> float:
        """Return the estimated mean of what people have, of which at most `limit` counts."""
        return sum(self.above[:limit]) / self.above[0]

    @property
    def most(self) -> int:
        return len(self.above)


def _between(start: int, high: float, end: int, low: float) -> list[float]:
    """Return how many people are above start + 1, ..., end, falling from `high` by one factor to `low`."""
    factor = (low / high) ** (1 / (end - start))
    return [high * factor**step for step in range(1, end - start + 1)]


def _beyond(start: int, high: float, end: int, low: float) -> list[float]:
    """Return the numbers of people above end + 1, end + 2, ..., as they go on from how they fell between two
    levels: halfway between falling by one factor at each step, and as a power."""
    fall = math.log(high / low)
    steps = range(1, 3 * end + 8)
    factor = fall / (end - start)
    power = fall / math.log((end + 1) / (start + 1))
    return [low * math.exp(-(factor * k + power * math.log1p(k / (end + 1))) / 2) for k in steps]


def choose(
    rows: Tail, groups: Tail | None, noise: dict[int, float], *, largest: float, among: int
) -> SuggestedLimits:
    """Return the limits with the least predicted error of a group.

    `noise`: by limit on groups, the mean noise of a group that one row adds. `largest`: what one row adds at
    most. `among`: the number of groups.
    """
    # A person with n in the group where they have most, and with g groups, adds between n and n g in all; of
    # the few whom a limit cuts, nearly all is in one group. Of the powers of g from 1/5 to 1/2, the third
    # root led to limits nearest to the best.
    spread = 1.0 if groups is None else groups.mean(groups.most) ** (1 / 3)
    whole = rows.above[0] * rows.mean(rows.most) * spread
    best: dict[int, tuple[float, int]] = {}
    for limit in range(1, rows.most + 1):
        for number, added in noise.items():
            share = 1.0 if groups is None else groups.mean(number) / groups.mean(groups.most)
            kept = rows.above[0] * rows.mean(limit) * spread * share
            error = added * limit + (whole - kept) * largest / among
            best[limit] = min(best.get(limit, (math.inf, 0)), (error, number))
    chosen = min(best, key=lambda limit: best[limit])
    error, number = best[chosen]
    curve = tuple((limit, best[limit][1], best[limit][0]) for limit in best)
    return SuggestedLimits(rows=chosen, groups=number, error=error, curve=curve)
