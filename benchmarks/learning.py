"""Whole private training steps against the same plain torch step, every mode of Opacus, and jax-privacy; in
CPU time, on one thread and on two. On another device (`python -m benchmarks learning --device cuda`, which we
have never run) seconds of the clock are compared, with the data there, too.

Every contender is a process of its own, started afresh for each model as a script that trains it would be:
what a process trained before changes how its allocator behaves, by a tenth and more. They take turns, a few
steps each, and medians are compared. Where things came to lie in memory makes one process of the same code
faster than another, by a twentieth: of plain torch and of ours there are three each, and the one in the
middle counts. All of them copy the rows of a batch out of a data set and update the model. Ours is
`Run.step`: it tosses a coin for every example of the set, and draws its noise from AES. The others are given
the rows of a shuffled order, which costs them nothing. `DISCREET_BENCH=mlp,lstm` picks models,
`DISCREET_BENCH=memory` peak memory, `DISCREET_RIVALS=ew,ghost` rivals, `DISCREET_THREADS=1` threads.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    import torch
    from torch import nn
except ImportError:
    torch = None  # type: ignore[assignment]

# Our batches are Poisson, so that a step varies; fewer turns where they take more than so many seconds.
TURNS, FEWEST, ENOUGH = 25, 9, 60.0
# Where a step takes seconds (GPT-2 takes two) nine turns of eight processes would be ten minutes, and an hour
# on a machine with other work: medians of three steps by three processes have to do.
FEWEST_OF_LONG, TOO_LONG = 3, 180.0
PROCESSES = {"plain": 3, "ours": 3}
SECONDS = 0.15  # of a turn, about
LR = 0.01
DEVICE = os.environ.get("DISCREET_DEVICE", "cpu")
MODES = ("hooks", "ghost", "ew", "functorch")
Step = Callable[[], None]


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
    data: Callable[[int], tuple[Any, Any]]  # so many examples
    batch: int
    size: int  # of the data set
    at_most: float  # times the plain step
    faster: float  # than the best rival


def cases() -> dict[str, Case]:
    def images(*shape: int) -> Callable[[int], tuple[Any, Any]]:
        return lambda n: (torch.randn(n, *shape), torch.randint(0, 10, (n,)))

    def words(places: int) -> Callable[[int], tuple[Any, Any]]:
        return lambda n: (torch.randint(0, 10_000, (n, places)), torch.randint(0, 10, (n,)))

    def mnist() -> Any:  # Papernot et al. 2021, arXiv:2007.14191
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2),
            nn.Tanh(),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(512, 32),
            nn.Tanh(),
            nn.Linear(32, 10),
        )

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
            nn.Linear(32, 128),
            nn.TransformerEncoder(layer, 2, enable_nested_tensor=False),
            Mean(),
            nn.Linear(128, 10),
        )

    def mlp() -> Any:
        return nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def text() -> Any:
        return nn.Sequential(nn.Embedding(10_000, 16), Mean(), nn.Linear(16, 10))

    def lstm() -> Any:
        return nn.Sequential(Take(nn.LSTM(64, 128, batch_first=True)), nn.Linear(128, 10))

    return {
        "logistic": Case(lambda: nn.Linear(784, 10), images(784), 256, 60_000, 1.3, 1.5),
        "mlp": Case(mlp, images(784), 256, 60_000, 1.3, 1.5),
        "mnist-cnn": Case(mnist, images(1, 28, 28), 256, 60_000, 1.4, 1.0),
        "cifar-cnn": Case(cifar, images(3, 32, 32), 256, 10_000, 1.7, 1.0),
        "transformer": Case(transformer, images(64, 32), 64, 10_000, 1.3, 1.25),
        "embedding": Case(text, words(32), 256, 60_000, 4.0, 1.5),
        "lstm": Case(lstm, images(32, 64), 128, 10_000, 2.0, 1.5),
    }


def shuffled(case: Case, x: Any, y: Any) -> Callable[[], tuple[Any, Any]]:
    """Batches as a plain loop takes them: the next rows of a shuffled order, copied."""
    order, place = torch.randperm(len(x)), 0

    def batch() -> tuple[Any, Any]:
        nonlocal place
        rows = order[place : place + case.batch].to(x.device)
        place = (place + case.batch) % (len(x) - case.batch)
        return x.index_select(0, rows), y.index_select(0, rows)

    return batch


def on_device(tree: Any) -> Any:
    """A model, or a pair of tensors, on the device that is measured."""
    return tuple(t.to(DEVICE) for t in tree) if isinstance(tree, tuple) else tree.to(DEVICE)


def seconds() -> float:
    """CPU time; on an accelerator the clock, when it has finished."""
    if DEVICE == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def plain(name: str, case: Case) -> Step:
    from torch.nn import functional as F

    model, batch = on_device(case.build()), shuffled(case, *on_device(case.data(case.size)))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


def ours(name: str, case: Case, microbatch: int | None = None) -> Step:
    from discreet import Public
    from discreet.learning import SGD, Examples, Trainer
    from discreet.sampling import Entropy

    public = Public(size=case.size)
    trainer = Trainer(
        on_device(case.build()),
        nn.CrossEntropyLoss(),
        public=public,
        noise_multiplier=1.0,
        clip=1.0,
        batch=case.batch,
        steps=10**9,
        optimizer=SGD(lr=LR),
        microbatch=microbatch,
    )
    run = trainer.start(Examples(*on_device(case.data(case.size)), public), entropy=Entropy())
    run.__enter__()
    return run.step


def opacus(name: str, case: Case, mode: str) -> Step:
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.grad_sample.gsm_exp_weights import GradSampleModuleExpandedWeights
    from opacus.optimizers import DPOptimizer
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
    from opacus.validators import ModuleValidator

    model, batch = on_device(case.build()), shuffled(case, *on_device(case.data(case.size)))
    kwargs: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "expected_batch_size": case.batch,
        "loss_reduction": "mean",
    }
    model = ModuleValidator.fix(model) if not ModuleValidator.is_valid(model) else model
    inner = torch.optim.SGD(model.parameters(), lr=LR)
    if mode == "ghost":
        wrapped: Any = GradSampleModuleFastGradientClipping(model, max_grad_norm=1.0, use_ghost_clipping=True)
        optimizer: Any = DPOptimizerFastGradientClipping(inner, **kwargs)
        criterion: Any = DPLossFastGradientClipping(wrapped, optimizer, torch.nn.CrossEntropyLoss(), "mean")
    else:
        kinds = {
            "hooks": GradSampleModule,
            "functorch": GradSampleModule,
            "ew": GradSampleModuleExpandedWeights,
        }
        wrapped = kinds[mode](model, **({"force_functorch": True} if mode == "functorch" else {}))
        optimizer, criterion = DPOptimizer(inner, **kwargs), torch.nn.CrossEntropyLoss()

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        criterion(wrapped(x), y).backward()
        optimizer.step()

    return step


def jax(name: str, case: Case) -> Step:
    from ._learning_jax import stepper

    step, batch = stepper(name, case.batch, LR), shuffled(case, *case.data(case.size))

    def run() -> None:
        x, y = batch()
        step(x.numpy(), y.numpy())

    return run


def built(contender: str, name: str, case: Case) -> Step:
    makers: dict[str, Callable[[str, Case], Step]] = {"plain": plain, "ours": ours, "jax-privacy": jax}
    return makers[contender](name, case) if contender in makers else opacus(name, case, contender)


def worker(contender: str, cases: Callable[[], dict[str, Case]] = cases) -> None:
    """Takes orders on stdin: `make CASE THREADS` builds and warms up, `go N` runs N steps; answers with
    CPU-seconds a step, or `no`."""
    warnings.simplefilter("ignore")
    step: Step | None = None
    for line in sys.stdin:
        order, *rest = line.split()
        if order == "make":
            threads = int(rest[1])
            torch.set_num_threads(threads)
            os.sched_setaffinity(
                0,
                set(range(min(threads, os.cpu_count() or 1)))
                if contender == "jax-privacy"
                else range(os.cpu_count() or 1),
            )
            torch.manual_seed(0)
            step = None
            try:
                step = built(contender, rest[0], cases()[rest[0]])
                start = seconds()
                step()
                if seconds() - start < 1:  # compiled, or slow: one is enough
                    step()
            except Exception as error:  # a mode that does not support the model has no time
                print(f"no {type(error).__name__}", flush=True)
                continue
            rest = ["1"]
        assert step is not None
        start = seconds()
        for _ in range(int(rest[0])):
            step()
        print((seconds() - start) / int(rest[0]), flush=True)


class Contender:
    """A worker process, and what it said."""

    def __init__(self, name: str, module: str = "learning") -> None:
        self.name, self._first = name, 0.0
        self.times: list[float] = []
        code = (
            f"from benchmarks.learning import worker; from benchmarks.{module} import cases; "
            f"worker({name!r}, cases)"
        )
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    def ask(self, order: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(order + "\n")
        self._process.stdin.flush()
        return self._process.stdout.readline().strip() or "no process"

    def make(self, case: str, threads: int) -> bool:
        answer = self.ask(f"make {case} {threads}")
        if answer.startswith("no"):
            print(f"learning.{case:<12} {self.name} does not run this model: {answer[3:]}", flush=True)
            return False
        self._first = float(answer)
        self._steps, self.times = max(1, min(200, int(SECONDS / self._first))), []
        return True

    def turn(self) -> None:
        self.times.append(float(self.ask(f"go {self._steps}")))

    @property
    def time(self) -> float:
        """A step's, by the turns so far; before the first, by the one step after warming up."""
        return statistics.median(self.times) if self.times else self._first

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def compare(name: str, case: Case, threads: int, names: list[str], module: str = "learning") -> bool:
    contenders = [Contender(one, module) for one in names for _ in range(PROCESSES.get(one, 1))]
    try:
        return _compared(name, case, threads, contenders)
    finally:
        for contender in contenders:
            contender.stop()


def _compared(name: str, case: Case, threads: int, contenders: list[Contender]) -> bool:
    present = [c for c in contenders if c.make(name, threads)]
    start = time.monotonic()
    for turn in range(TURNS):
        passed = time.monotonic() - start
        if (turn >= FEWEST and passed > ENOUGH) or (turn >= FEWEST_OF_LONG and passed > TOO_LONG):
            break
        mine = _middle(present)["ours"]
        for contender in present:
            if (
                contender.time <= (4 if turn else 20) * mine
            ):  # who is that much slower need not be measured often
                contender.turn()
    times = _middle(present)
    over = times["ours"] / times["plain"]
    met = [over <= case.at_most]
    what = (
        f"learning.{name:<12} {threads} thread{'s' if threads > 1 else ' '}  ours "
        f"{times['ours'] * 1e3:8.3f} ms"
    )
    print(
        f"{what}   plain       {times['plain'] * 1e3:8.3f} ms   {over:6.2f}x the plain step   target "
        f"<= {case.at_most:<4} {_said(met[-1])}"
    )
    for rivals in (MODES, ("jax-privacy",)):
        found = {rival: times[rival] for rival in rivals if rival in times}
        if found:
            best = min(found, key=lambda rival: found[rival])
            met.append(found[best] >= case.faster * times["ours"])
            modes = ", ".join(f"{rival} {t / times['plain']:.1f}x" for rival, t in found.items())
            print(
                f"{what}   {best:<11} {found[best] * 1e3:8.3f} ms   "
                f"{found[best] / times['ours']:6.2f}x faster           target >= {case.faster:<4} "
                f"{_said(met[-1])}   (over plain: {modes})"
            )
    met.append(_fastest(what, times, [c.name for c in contenders if c.name not in times]))
    sys.stdout.flush()
    return all(met)


def _middle(contenders: list[Contender]) -> dict[str, float]:
    """By name: the time of the process in the middle, where there are several."""
    names = dict.fromkeys(c.name for c in contenders)
    return {name: statistics.median_low(c.time for c in contenders if c.name == name) for name in names}


def _fastest(what: str, times: dict[str, float], absent: list[str]) -> bool:
    """Whether ours beats every rival that runs this model, with the closest of them."""
    rivals = {name: t for name, t in times.items() if name not in ("ours", "plain")}
    if not rivals:
        return True
    closest = min(rivals, key=lambda rival: rivals[rival])
    met = rivals[closest] > times["ours"]
    missing = f"; not running it: {', '.join(absent)}" if absent else ""
    print(
        f"{what}   faster than every rival   {_said(met)}   ({len(rivals)} ran, closest {closest} "
        f"{rivals[closest] / times['ours']:.2f}x{missing})"
    )
    return met


def _said(met: bool) -> str:
    return "ok" if met else "MISSED"


def peak(contender: str, name: str, batch: int, microbatch: int | None) -> float:
    """Megabytes that a fresh process held at most, over a few steps on a small data set."""
    code = (
        f"import resource; from benchmarks import learning as b; from dataclasses import replace; "
        f"b.torch.set_num_threads(1); "
        f"case = replace(b.cases()[{name!r}], batch={batch}, size={2 * batch}); "
        f"step = b.ours({name!r}, case, {microbatch}) if {contender!r} == 'ours' else "
        f"b.plain({name!r}, case); [step() for _ in range(6)]; "
        f"print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return float(found.stdout)


def memory() -> bool:
    met = []
    for name in ("mlp", "transformer"):
        batch = cases()[name].batch
        mine, base = (
            statistics.median(peak(c, name, batch, None) for _ in range(3)) for c in ("ours", "plain")
        )
        met.append(mine <= 1.3 * base)
        print(
            f"learning.{name:<12} peak memory  ours {mine:6.0f} MB   plain {base:6.0f} MB   "
            f"{mine / base:5.2f}x   target <= 1.3  {_said(met[-1])}",
            flush=True,
        )
    data = 64 * 32 * 4 / 2**20  # megabytes of one example
    found = {batch: peak("ours", "transformer", batch, 16) - 2 * batch * data for batch in (64, 256, 1024)}
    met.append(max(found.values()) <= 1.1 * min(found.values()))
    shown = ", ".join(f"{batch}: {mb:.0f} MB" for batch, mb in found.items())
    print(
        f"learning.transformer  peak memory without the data, microbatch 16, by batch: {shown}   target: "
        f"flat   {_said(met[-1])}",
        flush=True,
    )
    return all(met)


def main() -> int:
    if torch is None:
        print("learning: PyTorch is not installed; nothing was measured")
        return 0
    wanted = [name for name in os.environ.get("DISCREET_BENCH", "").split(",") if name]
    chosen = {name: case for name, case in cases().items() if not wanted or name in wanted}
    threads = [int(n) for n in os.environ.get("DISCREET_THREADS", "1,2").split(",")]
    rivals = os.environ.get("DISCREET_RIVALS", ",".join((*MODES, "jax-privacy"))).split(",")
    start = time.monotonic()
    names = [name for name in ("plain", "ours", *rivals) if name]
    met = [compare(name, case, n, names) for n in threads for name, case in chosen.items()]
    if not wanted or "memory" in wanted:
        met.append(memory())
    print(f"learning: measured in {time.monotonic() - start:.0f} s", flush=True)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
