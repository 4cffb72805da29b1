"""Synthetic copies of a table: tables of counts are chosen and measured with noise, a graphical model is
fitted to them, and rows are drawn from it.

Everything after the noise is post-processing: a copy may be queried, shared and joined without limit.
"""

from typing import TYPE_CHECKING

from .. import _registry

if TYPE_CHECKING:
    from .aim import AIM as AIM
    from .comparison import compare as compare
    from .constraints import Constraint as Constraint
    from .copy import SyntheticAnswer as SyntheticAnswer
    from .copy import SyntheticCopy as SyntheticCopy
    from .copy import open_copy as open_copy
    from .marginal_trees import MST as MST
    from .marginal_trees import MWEM as MWEM
    from .marginal_trees import Independent as Independent
    from .quality import CopyDistance as CopyDistance
    from .synthesizer import Fitted as Fitted
    from .table_domain import Domain as Domain

__all__, __getattr__, __dir__ = _registry.exports(__name__)
