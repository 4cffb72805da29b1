"""Adaptive data analysis: many questions about one dataset, each chosen after the answers before it, without
overfitting to that dataset. Reusable holdout, leaderboards, online false discovery rate control, changepoint
detection and private hypothesis tests.
"""

from . import generalization
from .changepoints import (
    BernoulliChange,
    Changepoint,
    ChangeWatch,
    GaussianChange,
    alarm_threshold,
)
from .changepoints import offline as changepoint
from .discovery import (
    Addis,
    AlphaInvesting,
    Decisions,
    GeneralizedAlphaInvesting,
    Javanmard,
    Listed,
    Lord3,
    LordPlusPlus,
    PowerLaw,
    Saffron,
    benjamini_hochberg,
)
from .holdout import Check, Thresholdout
from .hypotheses import Binomial, Hypothesis, TruncatedExponential
from .leaderboard import ShakyLadder, SparseVectorBoard, Standing, Submission
from .paprika import Decision, Paprika
from .private_bh import PrivateBenjaminiHochberg
from .reference import Ladder, ParameterFreeLadder, PlainBoard
from .significance import (
    GoodnessOfFitTest,
    IndependenceTest,
    ProportionTest,
    TestResult,
    TwoSampleMeanTest,
)

__all__ = [
    "Addis",
    "AlphaInvesting",
    "BernoulliChange",
    "Binomial",
    "ChangeWatch",
    "Check",
    "Decision",
    "Decisions",
    "GaussianChange",
    "GeneralizedAlphaInvesting",
    "GoodnessOfFitTest",
    "Hypothesis",
    "IndependenceTest",
    "Javanmard",
    "Ladder",
    "Listed",
    "Lord3",
    "LordPlusPlus",
    "Paprika",
    "ParameterFreeLadder",
    "PlainBoard",
    "PowerLaw",
    "PrivateBenjaminiHochberg",
    "ProportionTest",
    "Saffron",
    "ShakyLadder",
    "SparseVectorBoard",
    "Standing",
    "Submission",
    "TestResult",
    "Thresholdout",
    "TruncatedExponential",
    "TwoSampleMeanTest",
    "alarm_threshold",
    "benjamini_hochberg",
    "Changepoint",
    "changepoint",
    "generalization",
]
