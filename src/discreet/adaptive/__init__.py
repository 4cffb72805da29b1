"""Adaptive analysis: many looks at one dataset, each chosen after seeing the last, without being fooled by it."""

from . import generalization
from .alarms import Alarm, ChangeWatch, alarm_threshold
from .boosting import boost
from .changepoints import BernoulliChange, GaussianChange, LikelihoodScores, RankScores
from .changepoints import offline as changepoint
from .discovery import (
    Addis,
    AlphaInvesting,
    Decisions,
    GeneralizedAlphaInvesting,
    Lord3,
    LordPlusPlus,
    Saffron,
    benjamini_hochberg,
)
from .experiment import science
from .holdout import Check, Estimate, HoldoutScorer, Thresholdout
from .hypotheses import Binomial, Hypothesis, TruncatedExponential
from .ladder import Ladder, ParameterFreeLadder, PlainBoard
from .leaderboard import ShakyLadder, SparseVectorBoard, Standing
from .multiplicative_weights import Counted, MultiplicativeWeights, Where
from .paprika import Decision, Paprika
from .spending import Javanmard, Listed, PowerLaw
from .submissions import Submission

__all__ = [
    "Addis",
    "Alarm",
    "AlphaInvesting",
    "BernoulliChange",
    "Binomial",
    "ChangeWatch",
    "Check",
    "Counted",
    "Decision",
    "Decisions",
    "Estimate",
    "GaussianChange",
    "GeneralizedAlphaInvesting",
    "HoldoutScorer",
    "Hypothesis",
    "Javanmard",
    "Ladder",
    "LikelihoodScores",
    "Listed",
    "Lord3",
    "LordPlusPlus",
    "MultiplicativeWeights",
    "Paprika",
    "ParameterFreeLadder",
    "PlainBoard",
    "PowerLaw",
    "RankScores",
    "Saffron",
    "ShakyLadder",
    "SparseVectorBoard",
    "Standing",
    "Submission",
    "Thresholdout",
    "TruncatedExponential",
    "Where",
    "alarm_threshold",
    "benjamini_hochberg",
    "boost",
    "changepoint",
    "generalization",
    "science",
]
