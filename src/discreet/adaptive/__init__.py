"""Adaptive data analysis: many questions about one dataset, each chosen after the answers before it, without
overfitting to that dataset. Reusable holdout, leaderboards, online false discovery rate control, changepoint
detection and private hypothesis tests.
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from . import generalization as generalization
    from .changepoints import BernoulliChange as BernoulliChange
    from .changepoints import Changepoint as Changepoint
    from .changepoints import ChangeWatch as ChangeWatch
    from .changepoints import GaussianChange as GaussianChange
    from .changepoints import alarm_threshold as alarm_threshold
    from .changepoints import changepoint as changepoint
    from .discovery import AlphaInvesting as AlphaInvesting
    from .discovery import Decisions as Decisions
    from .discovery import GeneralizedAlphaInvesting as GeneralizedAlphaInvesting
    from .discovery import Javanmard as Javanmard
    from .discovery import Listed as Listed
    from .discovery import Lord3 as Lord3
    from .discovery import LordPlusPlus as LordPlusPlus
    from .discovery import PowerLaw as PowerLaw
    from .discovery import Saffron as Saffron
    from .discovery import benjamini_hochberg as benjamini_hochberg
    from .holdout import Check as Check
    from .holdout import Thresholdout as Thresholdout
    from .hypotheses import Binomial as Binomial
    from .hypotheses import Hypothesis as Hypothesis
    from .hypotheses import TruncatedExponential as TruncatedExponential
    from .leaderboard import ShakyLadder as ShakyLadder
    from .leaderboard import SparseVectorBoard as SparseVectorBoard
    from .leaderboard import Standing as Standing
    from .leaderboard import Submission as Submission
    from .paprika import Decision as Decision
    from .paprika import Paprika as Paprika
    from .private_bh import PrivateBenjaminiHochberg as PrivateBenjaminiHochberg
    from .reference import Ladder as Ladder
    from .reference import ParameterFreeLadder as ParameterFreeLadder
    from .reference import PlainBoard as PlainBoard
    from .significance import GoodnessOfFitTest as GoodnessOfFitTest
    from .significance import IndependenceTest as IndependenceTest
    from .significance import ProportionTest as ProportionTest
    from .significance import TestResult as TestResult
    from .significance import TwoSampleMeanTest as TwoSampleMeanTest

__all__, __getattr__, __dir__ = _registry.exports(__name__)
