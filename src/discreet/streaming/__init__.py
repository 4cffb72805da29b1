"""Provides streams and online learning: continual counting (sums that are published at every tick, by tree
aggregation or the matrix mechanism), and private online learners.

    streaming.error_factors("honaker", steps=1024)    # (max, rms), before anything is spent
    daily = streaming.counter(public, Count(), horizon=365, epsilon=1)   # for session.start(daily)
    people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=365)    # the same, by SQL
    people.online(streaming.SquaredLoss(target="y", features=["x"]), clip=1, epsilon=1, horizon=365)
"""

from .continual import Advance, ContinualCounter, Latest, counter
from .factors import NAMES, error_factors, named
from .learners import OnlineLearner, learner
from .losses import Ball, Box, LinearLoss, LogisticLoss, Simplex, SquaredDistance, SquaredLoss
from .online import (
    FollowTheApproximateLeader,
    OnlineMirrorDescent,
    PrivateExperts,
    PrivateSums,
    regret,
)
from .stream_statistics import DyadicCounts, HashedBits, PerUnit, Presence

__all__ = [
    "Advance",
    "Ball",
    "Box",
    "ContinualCounter",
    "DyadicCounts",
    "FollowTheApproximateLeader",
    "HashedBits",
    "Latest",
    "LinearLoss",
    "LogisticLoss",
    "NAMES",
    "OnlineLearner",
    "OnlineMirrorDescent",
    "PerUnit",
    "Presence",
    "PrivateExperts",
    "PrivateSums",
    "Simplex",
    "SquaredDistance",
    "SquaredLoss",
    "counter",
    "error_factors",
    "learner",
    "named",
    "regret",
]
