"""Explanations of epsilon and delta: what a price means for one person, in words and pictures, for three
kinds of reader.

Pure functions of events, budgets and releases; no data is involved. `explain(1.0)`, `explain(answer)`,
`explain(session)` are also `dp.explain`; `discreet explain` is the same on the shell.
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
