"""Streams and online learning: sums that are published at every tick, and learners that never stop.

streaming.error_factors("honaker", steps=1024)     # (max, rms), before anything is spent
daily = streaming.counter(public, Count(), horizon=365, epsilon=1)    # an Interactive: session.start(daily)
people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=365)    # the same, by SQL
"""

from .build import counter
from .counter import Advance, ContinualCounter, Latest
from .factors import NAMES, ErrorFactors, error_factors, named
from .online import (
    Ball,
    Box,
    FollowTheApproximateLeader,
    OnlineMirrorDescent,
    PrivateExperts,
    PrivateSums,
    Simplex,
    regret,
)
from .running import RunningSum
from .statistics import DyadicCounts, HashedBits, Presence

__all__ = [
    "Advance",
    "Ball",
    "Box",
    "ContinualCounter",
    "DyadicCounts",
    "ErrorFactors",
    "FollowTheApproximateLeader",
    "HashedBits",
    "Latest",
    "NAMES",
    "OnlineMirrorDescent",
    "Presence",
    "PrivateExperts",
    "PrivateSums",
    "RunningSum",
    "Simplex",
    "counter",
    "error_factors",
    "named",
    "regret",
]
