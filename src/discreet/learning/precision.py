"""Full precision: settings that round the factors of float32 products are off while norms of gradients are
bounded and clipped gradients are added up.

Bounds on norms (`bounds`) allow for the rounding of float32, and for no more. Autocast around training would
compute them in half precision; `torch.set_float32_matmul_precision("medium")` allows torch to round the
factors of every product to bfloat16, on processors that gain from it. A ghost norm (`taps`), which is
computed by such products, may then be too small by one per cent.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch

# Torch's names for full precision: "highest" in older versions, "ieee" or the default "none" in newer ones.
_FULL = ("none", "ieee", "highest")


def full_precision() -> AbstractContextManager[Any]:
    """Return a context in which float32 products are those of float32.

    Autocast that the model itself turns on stays in force. The settings belong to the process: they are
    changed only where they were lower, and put back afterwards.
    """
    lowered = [setting for setting in _SETTINGS if setting.get() not in _FULL]
    if not lowered and not torch.is_autocast_enabled("cpu"):
        return nullcontext()
    return _with_full_precision(lowered)


@contextmanager
def _with_full_precision(lowered: list[_Setting]) -> Iterator[None]:
    """Turn autocast off and raise the settings that are below full precision, within this context."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", enabled=False))
        for setting in lowered:
            stack.callback(setting.set, setting.get())
            setting.set(setting.full)
        yield


class _Setting:
    """Reads and writes one of torch's settings of float32 products: of matrices, of convolutions, of
    recurrent layers.
    """

    full = "ieee"

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def get(self) -> str:
        return str(self._backend.fp32_precision)

    def set(self, value: str) -> None:
        self._backend.fp32_precision = value


class _Legacy(_Setting):
    """Reads and writes the only setting of older versions of torch, for all kinds of products."""

    full = "highest"

    def __init__(self) -> None:
        super().__init__(torch)

    def get(self) -> str:
        return torch.get_float32_matmul_precision()

    def set(self, value: str) -> None:
        torch.set_float32_matmul_precision(value)


def _settings() -> list[_Setting]:
    """Return the settings that this version of torch has."""
    kinds = [getattr(torch.backends.mkldnn, name, None) for name in ("matmul", "conv", "rnn")]
    settings = [_Setting(kind) for kind in kinds if hasattr(kind, "fp32_precision")]
    return settings or [_Legacy()]


_SETTINGS = _settings()
