"""Streams and online learning: sums that are published at every tick, and learners that never stop.

streaming.error_factors("honaker", steps=1024)     # (max, rms), before anything is spent
daily = streaming.counter(public, Count(), horizon=365, epsilon=1)    # an Interactive: session.start(daily)
people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=365)    # the same, by SQL
"""

from .build import counter
from .counter import Advance, ContinualCounter, Latest
from .factors import NAMES, ErrorFactors, error_factors, named
from .running import RunningSum

__all__ = [
    "Advance",
    "ContinualCounter",
    "ErrorFactors",
    "Latest",
    "NAMES",
    "RunningSum",
    "counter",
    "error_factors",
    "named",
]
