"""Explains epsilon and delta: what a price means for one person, in words and pictures, for three kinds of
reader.

An explanation is a function of events, budgets and releases; no data is involved. `explain` takes an epsilon,
an answer, a session and more; it is also `dp.explain`, and on the shell `discreet explain`.
"""

from .accuracy import ColumnAccuracy, columns
from .api import Spending, explain, explain_event, explain_question, explain_spending
from .deployments import DEPLOYMENTS, Deployment, beside
from .explanation import Explanation, Section
from .picture import Picture, Series
from .risk import Risk
from .words import AUDIENCES

__all__ = [
    "AUDIENCES",
    "ColumnAccuracy",
    "DEPLOYMENTS",
    "Deployment",
    "Explanation",
    "Picture",
    "Risk",
    "Section",
    "Series",
    "Spending",
    "beside",
    "columns",
    "explain",
    "explain_event",
    "explain_question",
    "explain_spending",
]
