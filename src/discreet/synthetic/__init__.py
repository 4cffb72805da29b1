"""Synthetic copies of a table: tables of counts are chosen and measured with noise, a graphical model is
fitted to them, and rows are drawn from it.

Everything after the noise is post-processing: a copy may be queried, shared and joined without limit.
"""

from .aim import AIM
from .baselines import MWEM
from .comparison import CopyComparison, compare
from .constraints import Constraint
from .copy import OpenedCopy, OpenedPair, SyntheticAnswer, SyntheticCopy, open_copy
from .counting import MarginalCounts
from .domain import Domain, DomainColumn
from .linked import ChildTable, LinkedFitted, LinkedSynthesis
from .marginal_trees import MST, Independent
from .pair import SyntheticPair
from .privbayes import PrivBayes
from .quality import CopyDistance, QualityReport
from .synthesizer import Fitted, MeasuredTable

__all__ = [
    "AIM",
    "MST",
    "MWEM",
    "ChildTable",
    "CopyComparison",
    "Constraint",
    "CopyDistance",
    "Domain",
    "DomainColumn",
    "Fitted",
    "Independent",
    "LinkedFitted",
    "LinkedSynthesis",
    "MarginalCounts",
    "MeasuredTable",
    "OpenedCopy",
    "OpenedPair",
    "PrivBayes",
    "QualityReport",
    "SyntheticAnswer",
    "SyntheticCopy",
    "SyntheticPair",
    "compare",
    "open_copy",
]
