"""Explains epsilon and delta: what a price means for one person, in words and pictures, for three kinds of
reader.

An explanation is a function of events, budgets and releases; no data is involved. `explain` takes an epsilon,
an answer, a session and more; it is also `dp.explain`, and on the shell `discreet explain`.
"""

from .explanation import Explanation
from .risk import Risk
from .subjects import explain
from .words import DEPLOYMENTS

__all__ = [
    "DEPLOYMENTS",
    "Explanation",
    "Risk",
    "explain",
]
