"""Provides streams and online learning: continual counting (sums that are published at every tick, by tree
aggregation or the matrix mechanism), and private online learners.

    streaming.error_factors("honaker", steps=1024)    # (max, rms), before anything is spent
    daily = streaming.counter(public, Count(), horizon=365, epsilon=1)   # for session.start(daily)
    people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=365)    # the same, by SQL
    people.online(streaming.SquaredLoss(target="y", features=["x"]), clip=1, epsilon=1, horizon=365)
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .continual import Advance as Advance
    from .continual import ContinualCounter as ContinualCounter
    from .continual import Latest as Latest
    from .continual import counter as counter
    from .factors import NAMES as NAMES
    from .factors import error_factors as error_factors
    from .factors import named as named
    from .learners import OnlineLearner as OnlineLearner
    from .learners import learner as learner
    from .losses import Ball as Ball
    from .losses import Box as Box
    from .losses import LinearLoss as LinearLoss
    from .losses import LogisticLoss as LogisticLoss
    from .losses import Simplex as Simplex
    from .losses import SquaredDistance as SquaredDistance
    from .losses import SquaredLoss as SquaredLoss
    from .online import FollowTheApproximateLeader as FollowTheApproximateLeader
    from .online import PrivateSums as PrivateSums
    from .online import regret as regret
    from .stream_statistics import Presence as Presence

__all__, __getattr__, __dir__ = _registry.exports(__name__)
