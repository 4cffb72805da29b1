"""Linkage attacks (re-identification): a few ratings that somebody has mentioned elsewhere, with roughly
known stars and dates, single this person out among thousands of "anonymous" users.

The scoreboard of Narayanan & Shmatikov 2008, who found Netflix subscribers by what they had said about films
on another site: rare films count more, near ratings and dates count, and a match is believed only if it
stands out from the runner-up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from .. import _require
from .._errors import InvalidInput


@dataclass(frozen=True, eq=False)
class Ratings:
    """Holds ratings of users times items: `stars` 1 to 5 where there is a rating, and on which day it was
    given; both are sparse, with entries at the same positions.
    """

    stars: sparse.csr_matrix
    days: sparse.csr_matrix

    @property
    def users(self) -> int:
        return int(self.stars.shape[0])


@dataclass(frozen=True, slots=True)
class SideKnowledge:
    """Holds the auxiliary information of an attacker about a target: some items that the target rated, and
    approximately with how many stars and on which day."""

    items: Any
    stars: Any
    days: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Names the best candidate, and by how many standard deviations (`eccentricity`) it beats the second;
    `user` is the best one, or None if it does not stand out.
    """

    user: int | None
    best: int
    eccentricity: float


def made_up_ratings(
    users: int = 2000, items: int = 1000, *, seed: int = 0, popularity: Any = None
) -> Ratings:
    """Draw synthetic ratings with the long tail of real ones: few items that everybody rates, many that
    hardly anybody does.

    Items are drawn in proportion to 1 / (rank + 10), or to `popularity`; how many a user rates is log-normal
    with median 40.
    """
    _require.integer(users=users, items=items, at_least=2)
    rng = np.random.default_rng(seed)
    relative_popularity = (
        1 / (np.arange(items) + 10.0)
        if popularity is None
        else np.clip(np.asarray(popularity, float), 1e-9, None)
    )
    probabilities = relative_popularity / relative_popularity.sum()
    counts = np.clip(rng.lognormal(np.log(40), 0.8, users).astype(int), 2, items // 2)
    rows = np.repeat(np.arange(users), counts)
    columns = np.concatenate([rng.choice(items, n, replace=False, p=probabilities) for n in counts])
    stars = np.clip(np.rint(rng.normal(3.6, 1.1, len(rows))), 1, 5)
    days = rng.integers(1, 2000, len(rows)).astype(float)
    shape = (users, items)
    return Ratings(
        sparse.csr_matrix((stars, (rows, columns)), shape), sparse.csr_matrix((days, (rows, columns)), shape)
    )


def side_knowledge(
    ratings: Ratings, user: int, *, items: int = 8, day_error: int = 14, seed: int = 0
) -> SideKnowledge:
    """Return auxiliary information that a friend of `user` may have: `items` of their ratings, off by up to
    one star, dated to within `day_error` days.
    """
    _require.integer(user=user, at_least=0)
    if user >= ratings.stars.shape[0]:
        raise InvalidInput(f"there is no user {user}: the users are 0 to {ratings.stars.shape[0] - 1}.")
    _require.integer(items=items, at_least=1)
    _require.integer(day_error=day_error, at_least=0)
    rng = np.random.default_rng((seed, user))
    row = ratings.stars[user]
    if row.nnz == 0:
        raise InvalidInput(f"user {user} has rated nothing: there is nothing to know.")
    chosen = rng.choice(row.indices, min(items, row.nnz), replace=False)
    stars = np.asarray(ratings.stars[user, chosen].todense()).ravel() + rng.integers(-1, 2, len(chosen))
    days = np.asarray(ratings.days[user, chosen].todense()).ravel()
    return SideKnowledge(chosen, stars, days + rng.integers(-day_error, day_error + 1, len(chosen)))


def link(
    ratings: Ratings,
    known: SideKnowledge,
    *,
    stars_scale: float = 1.5,
    days_scale: float = 30.0,
    stand_out: float = 1.5,
) -> Match:
    """Match by the scoreboard: a user's score is the sum, over the known items that the user rated, of
    (e^(-a / stars_scale) + e^(-b / days_scale)) / ln(number of users who rated the item, at least 2), where
    a and b are the absolute differences of the stars and of the days.

    The scales and `stand_out` (how many standard deviations the best must be above the second) are those of
    Narayanan & Shmatikov 2008.
    """
    _require.positive(stars_scale=stars_scale, days_scale=days_scale)
    items = np.asarray(known.items)
    stars, days = (np.asarray(m[:, items].todense()) for m in (ratings.stars, ratings.days))
    rated = stars > 0
    item_weights = 1 / np.log(np.maximum(rated.sum(axis=0), 2))
    similarity = np.exp(-np.abs(stars - known.stars) / stars_scale) + np.exp(
        -np.abs(days - known.days) / days_scale
    )
    scores = (np.where(rated, similarity, 0.0) * item_weights).sum(axis=1)
    best, second = np.argsort(-scores, kind="stable")[:2]
    spread = float(scores.std())
    eccentricity = float(scores[best] - scores[second]) / spread if spread > 0 else 0.0
    return Match(
        user=int(best) if eccentricity > stand_out else None, best=int(best), eccentricity=eccentricity
    )


def linked(ratings: Ratings, targets: Ratings, users: Any, **known: Any) -> tuple[float, float]:
    """Return the shares of these users of `targets` that are matched in the released `ratings`, rightly and
    wrongly; the options are those of `side_knowledge`."""
    _require.non_empty(users=users)
    matches = [(user, link(ratings, side_knowledge(targets, int(user), **known)).user) for user in users]
    right = sum(match == user for user, match in matches)
    wrong = sum(match is not None and match != user for user, match in matches)
    return right / len(matches), wrong / len(matches)
