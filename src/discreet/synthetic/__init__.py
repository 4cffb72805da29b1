"""Synthetic copies of a table: tables of counts are chosen and measured with noise, a graphical model is
fitted to them, and rows are drawn from it.

Everything after the noise is post-processing: a copy may be queried, shared and joined without limit.
"""

from .aim import AIM
from .comparison import compare
from .constraints import Constraint
from .copy import SyntheticAnswer, SyntheticCopy, open_copy
from .marginal_trees import MST, MWEM, Independent
from .privbayes import PrivBayes
from .quality import CopyDistance
from .synthesizer import Fitted
from .table_domain import Domain

__all__ = [
    "AIM",
    "MST",
    "MWEM",
    "Constraint",
    "CopyDistance",
    "Domain",
    "Fitted",
    "Independent",
    "PrivBayes",
    "SyntheticAnswer",
    "SyntheticCopy",
    "compare",
    "open_copy",
]
