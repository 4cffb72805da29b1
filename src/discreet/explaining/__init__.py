"""Explains epsilon and delta: what a price means for one person, in words and pictures, for three kinds of
reader.

An explanation is a function of events, budgets and releases; no data is involved. `explain` takes an epsilon,
an answer, a session and more; it is also `dp.explain`, and on the shell `discreet explain`.
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .explanation import Explanation as Explanation
    from .risk import Risk as Risk
    from .subjects import explain as explain
    from .words import DEPLOYMENTS as DEPLOYMENTS

__all__, __getattr__, __dir__ = _registry.exports(__name__)
