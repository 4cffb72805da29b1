"""The session: one dataset, one budget, and all verbs. Each makes a mechanism of a question and gives it to
the curator, which charges it and keeps the books."""

from __future__ import annotations

from .models import Models
from .open_mechanisms import OpenMechanisms
from .questions import Questions


class Session(Questions, Models, OpenMechanisms):
    """Answers questions about one dataset under one budget, as one person may ask them. `analyst` is who
    asks; the steward by default.

    An analyst with a budget of their own sees that budget and what is left of it. Of what others have spent
    they learn only whether, and in a preview how often, a question still fits the dataset's budget.
    """

    __slots__ = ()
