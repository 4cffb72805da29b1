"""Adaptive analysis: many looks at one dataset, each chosen after seeing the last, without being fooled by it."""

from . import generalization
from .boosting import boost
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
    "AlphaInvesting",
    "Binomial",
    "Check",
    "Counted",
    "Decision",
    "Decisions",
    "Estimate",
    "GeneralizedAlphaInvesting",
    "HoldoutScorer",
    "Hypothesis",
    "Javanmard",
    "Ladder",
    "Listed",
    "Lord3",
    "LordPlusPlus",
    "MultiplicativeWeights",
    "Paprika",
    "ParameterFreeLadder",
    "PlainBoard",
    "PowerLaw",
    "Saffron",
    "ShakyLadder",
    "SparseVectorBoard",
    "Standing",
    "Submission",
    "Thresholdout",
    "TruncatedExponential",
    "Where",
    "benjamini_hochberg",
    "boost",
    "generalization",
    "science",
]
