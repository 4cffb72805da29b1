"""Synthetic copies of a table: tables of counts are chosen and measured with noise, a graphical model is
fitted to them, and rows are drawn from it.

Everything after the noise is post-processing: a copy may be queried, shared and joined without limit.
"""

from .aim import AIM
from .comparison import CopyComparison, compare
from .constraints import Constraint
from .copy import OpenedCopy, SyntheticAnswer, SyntheticCopy, open_copy
from .counting import MarginalCounts
from .marginal_trees import MST, MWEM, Independent
from .privbayes import PrivBayes
from .quality import CopyDistance, QualityReport
from .synthesizer import Fitted, MeasuredTable
from .table_domain import Domain, DomainColumn

__all__ = [
    "AIM",
    "MST",
    "MWEM",
    "CopyComparison",
    "Constraint",
    "CopyDistance",
    "Domain",
    "DomainColumn",
    "Fitted",
    "Independent",
    "MarginalCounts",
    "MeasuredTable",
    "OpenedCopy",
    "PrivBayes",
    "QualityReport",
    "SyntheticAnswer",
    "SyntheticCopy",
    "compare",
    "open_copy",
]
