"""Learns privately with PyTorch: DP-SGD on the user's own model, federated learning, PATE, image features.

A user brings the model, the loss and the data; the price is known before training. `clipping` bounds the
gradient of each example, `probe` tries whether a model lets examples meet, `training` runs the steps. Linear
models, trees and statistics of tables are in `discreet.tabular`, which needs no torch.

A name's module is imported when the name is first used.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import MissingExtra

if TYPE_CHECKING:
    from .clipping.norms import (
        Adaptive as Adaptive,
    )
    from .clipping.norms import (
        Automatic as Automatic,
    )
    from .clipping.norms import (
        Flat as Flat,
    )
    from .clipping.norms import (
        PerLayer as PerLayer,
    )
    from .clipping.routes import routes as routes
    from .clipping.routes import without_batch_norm as without_batch_norm
    from .estimators import (
        DPClassifier as DPClassifier,
    )
    from .estimators import (
        DPRegressor as DPRegressor,
    )
    from .estimators import (
        SGDLogisticRegression as SGDLogisticRegression,
    )
    from .probe.safety import probe as probe
    from .training.callbacks import Progress as Progress
    from .training.callbacks import PublicSet as PublicSet
    from .training.data import (
        Augment as Augment,
    )
    from .training.data import (
        Examples as Examples,
    )
    from .training.data import (
        FlipAndShift as FlipAndShift,
    )
    from .training.data import (
        Tabular as Tabular,
    )
    from .training.distributed import across_workers as across_workers
    from .training.federated import LocalSGD as LocalSGD
    from .training.gradient_noise import Dense as Dense
    from .training.gradient_noise import Toeplitz as Toeplitz
    from .training.gradient_noise import square_root as square_root
    from .training.hugging_face import TransformersTrainer as TransformersTrainer
    from .training.optimizers import SGD as SGD
    from .training.optimizers import Adam as Adam
    from .training.optimizers import warmup_cosine as warmup_cosine
    from .training.schedules import (
        BallsInBins as BallsInBins,
    )
    from .training.schedules import (
        Poisson as Poisson,
    )
    from .training.schedules import (
        TruncatedPoisson as TruncatedPoisson,
    )
    from .training.schedules import (
        smallest_limit as smallest_limit,
    )
    from .training.trainer import (
        Trainer as Trainer,
    )
    from .training.trainer_options import Optimization as Optimization
    from .training.trainer_options import Performance as Performance
    from .training.trainer_options import Privacy as Privacy
    from .training.trainer_options import Rounds as Rounds

# The public names of each module. For those who check types, the same names are imported above.
_NAMES = {
    "clipping.norms": "Adaptive Automatic Flat PerLayer",
    "clipping.routes": "routes without_batch_norm",
    "estimators": "DPClassifier DPRegressor SGDLogisticRegression",
    "probe.safety": "probe",
    "training.data": "Augment Examples FlipAndShift Tabular",
    "training.distributed": "across_workers",
    "training.federated": "LocalSGD",
    "training.hugging_face": "TransformersTrainer",
    "training.gradient_noise": "Dense Toeplitz square_root",
    "training.optimizers": "SGD Adam warmup_cosine",
    "training.trainer_options": "Optimization Performance Privacy Rounds",
    "training.schedules": "BallsInBins Poisson TruncatedPoisson smallest_limit",
    "training.trainer": "Trainer",
    "training.callbacks": "Progress PublicSet",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = list(_MODULE_OF)


def __getattr__(name: str) -> Any:
    """Return a public name, or a package of this one such as `learning.pate`; import its module first."""
    module_name = _MODULE_OF.get(name, name)
    if name.startswith("_") or find_spec(f"{__name__}.{module_name}") is None:
        raise _require.no_attribute("module 'discreet.learning'", name, __all__)
    if find_spec("torch") is None:
        raise MissingExtra.of("learn", f"discreet.learning.{name} needs PyTorch") from None
    module = import_module(f"{__name__}.{module_name}")
    return getattr(module, name) if name in _MODULE_OF else module


def __dir__() -> list[str]:
    return sorted(__all__)
