"""The session: one dataset, one budget, and all methods. Each method builds a mechanism and hands it to the
curator, which charges it and records it in the ledger."""

from __future__ import annotations

from .models import Models
from .open_mechanisms import OpenMechanisms
from .questions import Questions


class Session(Questions, Models, OpenMechanisms):
    """Answers the questions of one person about one dataset, under one budget. `analyst` is the name of that
    person; the steward by default.

    An analyst with a budget of their own sees that budget and how much of it is left. About the spending of
    others they learn only whether a question still fits the dataset's budget, and in a preview how many such
    questions fit.
    """

    __slots__ = ()
