"""Discreet answers questions about people without revealing anyone: differential privacy, one dataset, one
budget.

`open` a dataset with a budget, and ask. Packages are imported when they are first used, so that `import
discreet` is fast.

>>> import discreet as dp
>>> dp.accounting.basic(dp.accounting.PureDP(epsilon=0.5).repeated(3)).value
1.5
"""

from typing import TYPE_CHECKING

from . import _registry
from ._errors import BudgetExceeded as BudgetExceeded
from ._errors import DescriptionError as DescriptionError
from ._errors import DiscreetError as DiscreetError
from ._errors import Halted as Halted
from ._errors import InvalidInput as InvalidInput
from ._errors import LedgerError as LedgerError
from ._errors import MissingExtra as MissingExtra
from ._errors import NotPrivate as NotPrivate
from ._errors import PrivateFact as PrivateFact
from ._errors import PublicMismatch as PublicMismatch
from ._errors import ReleaseFailed as ReleaseFailed
from ._errors import UnknownAttribute as UnknownAttribute
from ._errors import UnknownOption as UnknownOption
from ._errors import Unsupported as Unsupported
from ._errors import WrongRelation as WrongRelation
from ._public import ADD_REMOVE as ADD_REMOVE
from ._public import REPLACE as REPLACE
from ._public import ZERO_OUT as ZERO_OUT
from ._public import Boolean as Boolean
from ._public import Bounds as Bounds
from ._public import Categories as Categories
from ._public import Dates as Dates
from ._public import Neighbors as Neighbors
from ._public import Public as Public
from ._public import Reference as Reference
from ._public import Related as Related
from ._public import Text as Text
from ._public import Unit as Unit
from ._public import rows as rows

if TYPE_CHECKING:
    from . import accounting as accounting
    from . import adaptive as adaptive
    from . import auditing as auditing
    from . import curator as curator
    from . import explaining as explaining
    from . import inference as inference
    from . import learning as learning
    from . import local as local
    from . import mechanisms as mechanisms
    from . import query as query
    from . import sampling as sampling
    from . import streaming as streaming
    from . import synthetic as synthetic
    from . import tables as tables
    from . import tabular as tabular
    from .app.client import connect as connect
    from .curator import Budget as Budget
    from .curator import Period as Period
    from .explaining import explain as explain
    from .session import Session as Session
    from .session import open as open

__version__ = "0.1.0"

__all__, __getattr__, __dir__ = _registry.exports(__name__)
