"""Private learning with PyTorch: the same model, loss and data, and a price that is known before training."""

from .._errors import MissingExtra

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise MissingExtra("discreet.learning needs PyTorch. Install it with: pip install 'discreet[learn]'") from None

from .clipping import Automatic, Flat, PerLayer
from .engine import Engine
from .plan import routes, without_batch_norm

__all__ = ["Automatic", "Engine", "Flat", "PerLayer", "routes", "without_batch_norm"]
