"""Private training steps against the same plain torch step, and against Opacus, in CPU time, one thread, interleaved.

A step is the whole of it: forward, backward, clipping, noise, update, on a batch that is there already. `DISCREET_BENCH=mlp,lstm` picks models.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import torch
    from torch import nn
except ImportError:
    torch = None  # type: ignore[assignment]

REPEATS = 15
LR = 0.01


if torch is not None:  # Opacus pickles models: their classes must be found by name

    class Take(nn.Module):
        """A recurrent layer's last output."""

        def __init__(self, inner: nn.Module) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return self.inner(x)[0][:, -1]

    class Mean(nn.Module):
        def forward(self, x: Any) -> Any:
            return x.mean(1)


@dataclass(frozen=True)
class Case:
    build: Callable[[], Any]
    batch: Callable[[], tuple[Any, Any]]
    at_most: float  # times the plain step
    faster: float  # than the best mode of Opacus


def cases() -> dict[str, Case]:
    def images(batch: int, *shape: int) -> Callable[[], tuple[Any, Any]]:
        return lambda: (torch.randn(batch, *shape), torch.randint(0, 10, (batch,)))

    def words(batch: int, places: int) -> Callable[[], tuple[Any, Any]]:
        return lambda: (torch.randint(0, 10_000, (batch, places)), torch.randint(0, 10, (batch,)))

    def mnist() -> Any:  # Papernot et al. 2021, arXiv:2007.14191
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2), nn.Tanh(),
            nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip

    def cifar() -> Any:
        parts: list[Any] = []
        for inside, outside in ((3, 32), (32, 64), (64, 128)):
            parts += [
                nn.Conv2d(inside, outside, 3, padding=1),
                nn.Tanh(),
                nn.Conv2d(outside, outside, 3, padding=1),
                nn.Tanh(),
            ]
            parts += [nn.MaxPool2d(2)]
        return nn.Sequential(*parts, nn.Flatten(), nn.Linear(2048, 128), nn.Tanh(), nn.Linear(128, 10))

    def transformer() -> Any:
        layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
        return nn.Sequential(
            nn.Linear(32, 128), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), Mean(), nn.Linear(128, 10)
        )

    return {
        "logistic": Case(lambda: nn.Linear(784, 10), images(256, 784), 1.3, 1.5),
        "mlp": Case(
            lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)),
            images(256, 784), 1.3, 1.5,
        ),
        "mnist-cnn": Case(mnist, images(256, 1, 28, 28), 1.4, 1.0),
        "cifar-cnn": Case(cifar, images(256, 3, 32, 32), 1.7, 1.0),
        "transformer": Case(transformer, images(64, 64, 32), 1.3, 1.25),
        "embedding": Case(lambda: nn.Sequential(nn.Embedding(10_000, 16), Mean(), nn.Linear(16, 10)), words(256, 32), 4.0, 1.5),
        "lstm": Case(lambda: nn.Sequential(Take(nn.LSTM(64, 128, batch_first=True)), nn.Linear(128, 10)), images(128, 32, 64), 2.0, 1.5),
    }  # fmt: skip


def plain(case: Case) -> Callable[[], None]:
    from torch.nn import functional as F

    model, (x, y) = case.build(), case.batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(case: Case) -> Callable[[], None]:
    from discreet import Public
    from discreet.learning import SGD, Examples, Trainer
    from discreet.sampling import Entropy

    x, y = case.batch()
    public = Public(size=len(x))
    trainer = Trainer(
        case.build(), nn.CrossEntropyLoss(), public=public, noise_multiplier=1.0, clip=1.0, batch=len(x), steps=10**9, optimizer=SGD(lr=LR)
    )  # fmt: skip
    run = trainer.start(Examples(x, y, public), entropy=Entropy())
    run.__enter__()

    def step() -> None:
        run._noise.into(run._gradient)
        run._engine.add_clipped(x, y, trainer.clip, run._sums)
        run._descend()

    return step


def opacus(case: Case, mode: str) -> Callable[[], None] | None:
    """One mode of Opacus, or None where it is not installed or refuses the model."""
    try:
        from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
        from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights
        from opacus.optimizers import DPOptimizer
        from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.validators import ModuleValidator
    except ImportError:
        return None
    model, (x, y) = case.build(), case.batch()
    size, ghost = len(x), mode == "ghost"
    kwargs: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "expected_batch_size": size,
        "loss_reduction": "mean",
    }
    model = ModuleValidator.fix(model) if not ModuleValidator.is_valid(model) else model
    inner = torch.optim.SGD(model.parameters(), lr=LR)
    if ghost:
        wrapped: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(inner, **kwargs)
        criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, torch.nn.CrossEntropyLoss(), "mean")
    else:
        kinds = {"hooks": GradSampleModule, "functorch": GradSampleModule, "ew": GradSampleModuleExpandedWeights}
        wrapped = kinds[mode](model, **({"force_functorch": True} if mode == "functorch" else {}))
        optimizer, criterion = DPOptimizer(inner, **kwargs), torch.nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


def interleaved(steps: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Median CPU-seconds of each, taken in turns, so that a busy machine is busy for all of them."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
        step()
    inner = dict.fromkeys(steps, 1)
    for name, step in steps.items():
        start = time.process_time()
        step()
        inner[name] = max(1, min(50, int(0.02 / max(1e-6, time.process_time() - start))))
    for _ in range(REPEATS if max(inner.values()) > 1 else 5):
        for name, step in steps.items():
            start = time.process_time()
            for _ in range(inner[name]):
                step()
            times[name].append((time.process_time() - start) / inner[name])
    return {name: statistics.median(values) for name, values in times.items()}


def compare(name: str, case: Case) -> bool:
    steps = {"plain": plain(case), "ours": ours(case)}
    for mode in ("hooks", "ghost", "ew", "functorch"):
        try:
            rival = opacus(case, mode)
            if rival is not None:
                rival()
                steps[mode] = rival
        except Exception as error:  # a mode that does not support the model has no time
            print(f"learning.{name:<12} opacus {mode} does not run this model: {type(error).__name__}", flush=True)
    times = interleaved(steps)
    over = times["ours"] / times["plain"]
    ok = over <= case.at_most
    print(
        f"learning.{name:<12} ours {times['ours'] * 1e3:8.2f} ms   plain {times['plain'] * 1e3:8.2f} ms   {over:5.2f}x the plain step   "
        f"target <= {case.at_most:<4} {'ok' if ok else 'MISSED'}",
        flush=True,
    )
    rivals = {mode: t for mode, t in times.items() if mode not in ("plain", "ours")}
    if rivals:
        best = min(rivals, key=lambda mode: rivals[mode])
        faster = rivals[best] / times["ours"]
        met = faster >= case.faster
        ok &= met
        modes = ", ".join(f"{mode} {t / times['plain']:.1f}x" for mode, t in rivals.items())
        print(
            f"learning.{name:<12} ours {times['ours'] * 1e3:8.2f} ms   opacus {best} {rivals[best] * 1e3:8.2f} ms   {faster:5.2f}x faster   "
            f"target >= {case.faster:<4} {'ok' if met else 'MISSED'}   ({modes})",
            flush=True,
        )
    return ok


def main() -> int:
    if torch is None:
        print("learning: PyTorch is not installed; nothing was measured")
        return 0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    wanted = os.environ.get("DISCREET_BENCH", "").split(",")
    chosen = {name: case for name, case in cases().items() if wanted == [""] or name in wanted}
    met = [compare(name, case) for name, case in chosen.items()]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
