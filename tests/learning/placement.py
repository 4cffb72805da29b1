"""Shows on the CPU what would fail on an accelerator: tensors without a device, and memory that numpy cannot read.

Within `placement()` every tensor that discreet makes without saying where is noted, and made on "meta", where it
has no values; so is every `.numpy()` in discreet of a tensor that was not brought to the host: by `.cpu()`, by
`torch.from_numpy`, or made there by name, with `device="cpu"`. The bounds on norms take the way of an accelerator.
The tests' own tensors, and those of their models, stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

import discreet
from discreet.learning.clipping import taps

OURS = str(Path(discreet.__file__).parent)
THEIRS = str(Path(torch.__file__).parent)
LOADERS = str(Path(THEIRS, "utils", "data"))
PROBE = str(Path(OURS, "learning", "probing", "safety.py"))
NUMPY, CPU, FROM_NUMPY = Tensor.numpy, Tensor.cpu, torch.from_numpy


def passes_on(frame: Any, func: Any) -> bool:
    """Whether a mode of discreet calls here what the model called: the very function that the mode was handed, or
    that of zeros in the place of random numbers, with the model's own arguments."""
    code = frame.f_code
    if code.co_qualname.endswith(".__torch_function__"):
        return frame.f_locals.get("func") is func
    return code.co_qualname == "_filled.<locals>.run" and code.co_filename == PROBE


def our_place(func: Any = None) -> str | None:
    """The line of discreet that called torch, or None where somebody else did: a call of the model's that a mode
    of discreet only passes on, or torch's own DataLoader, whose seed stays on the host."""
    frame: Any = sys._getframe(2)
    while frame is not None and (
        frame.f_code.co_filename.startswith((THEIRS, __file__, "<")) or passes_on(frame, func)
    ):
        # code of a page is the user's
        if frame.f_code.co_filename.startswith((LOADERS, "<doctest")):
            return None
        frame = frame.f_back
    if frame is None or not frame.f_code.co_filename.startswith(OURS):
        return None
    return f"{frame.f_code.co_filename.removeprefix(OURS)}:{frame.f_lineno}"


def marked(tensor: Tensor) -> Tensor:
    """Return the tensor, whose memory, with all views of it, counts as the host's."""
    tensor.untyped_storage().is_brought_to_the_host = True  # type: ignore[attr-defined]
    return tensor


def is_on_host(tensor: Tensor) -> bool:
    return hasattr(tensor.untyped_storage(), "is_brought_to_the_host")


class _Makers(TorchFunctionMode):
    """Notes makers of tensors that are called without a device."""

    def __init__(self, found: set[str]) -> None:
        super().__init__()
        self.found = found

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _device_constructors():
            return func(*args, **kwargs)
        if kwargs.get("device") is None and (place := our_place(func)) is not None:
            self.found.add(f"{place} {func.__name__}() without a device")
            kwargs = {**kwargs, "device": "meta"}
        made = func(*args, **kwargs)
        return marked(made) if isinstance(made, Tensor) and kwargs.get("device") == "cpu" else made


@contextmanager
def placement() -> Iterator[set[str]]:
    """Yield the places, in lines of discreet, that would fail on an accelerator."""
    found: set[str] = set()

    def numpy(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        place = our_place()
        if place is not None and not is_on_host(tensor):
            found.add(f"{place} numpy() without cpu()")
        return NUMPY(tensor, *args, **kwargs)

    def cpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        # a tensor of its own, as from an accelerator
        return marked(CPU(tensor, *args, **kwargs).clone()) if our_place() else CPU(tensor, *args, **kwargs)

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(Tensor, "numpy", numpy))
        stack.enter_context(mock.patch.object(Tensor, "cpu", cpu))
        stack.enter_context(mock.patch.object(torch, "from_numpy", lambda array: marked(FROM_NUMPY(array))))
        stack.enter_context(mock.patch.object(taps, "on_host", return_value=False))
        stack.enter_context(_Makers(found))
        yield found
