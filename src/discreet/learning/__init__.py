"""Learns privately with PyTorch: DP-SGD on the user's own model, federated learning, PATE, image features.

A user brings the model, the loss and the data; the price is known before training. `clipping` bounds the
gradient of each example, `probing` tries whether a model lets examples meet, `training` runs the steps.
Linear models, trees and statistics of tables are in `discreet.tabular`, which needs no torch.

A name's module is imported when the name is first used.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .. import _registry
from .._errors import MissingExtra

if TYPE_CHECKING:
    from .clipping.norms import Adaptive as Adaptive
    from .clipping.norms import Automatic as Automatic
    from .clipping.norms import Flat as Flat
    from .clipping.norms import PerLayer as PerLayer
    from .clipping.routes import routes as routes
    from .clipping.routes import without_batch_norm as without_batch_norm
    from .estimators import DPClassifier as DPClassifier
    from .estimators import DPRegressor as DPRegressor
    from .estimators import SGDLogisticRegression as SGDLogisticRegression
    from .probing.safety import probe as probe
    from .training.callbacks import Progress as Progress
    from .training.callbacks import PublicSet as PublicSet
    from .training.data import Augment as Augment
    from .training.data import Examples as Examples
    from .training.data import FlipAndShift as FlipAndShift
    from .training.data import Tabular as Tabular
    from .training.distributed import across_workers as across_workers
    from .training.federated import LocalSGD as LocalSGD
    from .training.gradient_noise import Dense as Dense
    from .training.gradient_noise import Toeplitz as Toeplitz
    from .training.gradient_noise import square_root as square_root
    from .training.hugging_face import TransformersTrainer as TransformersTrainer
    from .training.optimizers import SGD as SGD
    from .training.optimizers import Adam as Adam
    from .training.optimizers import warmup_cosine as warmup_cosine
    from .training.schedules import BallsInBins as BallsInBins
    from .training.schedules import Poisson as Poisson
    from .training.schedules import TruncatedPoisson as TruncatedPoisson
    from .training.schedules import smallest_limit as smallest_limit
    from .training.trainer import Trainer as Trainer
    from .training.trainer_options import Optimization as Optimization
    from .training.trainer_options import Performance as Performance
    from .training.trainer_options import Privacy as Privacy
    from .training.trainer_options import Rounds as Rounds

__all__, _find, __dir__ = _registry.exports(__name__)


def __getattr__(name: str) -> Any:
    """Return a public name, or a package of this one such as `learning.pate`; import its module first."""
    if name in __all__ and find_spec("torch") is None:
        raise MissingExtra.of("learn", f"discreet.learning.{name} needs PyTorch") from None
    return _find(name)
