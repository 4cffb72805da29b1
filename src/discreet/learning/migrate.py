"""Read an Opacus training script and say, line by line, what to change; `discreet migrate FILE.py`.

The file is parsed and never run. What is recognized is Opacus's public interface (1.x) by name: what a script
hides behind its own functions is not seen.

>>> for advice in advise("from opacus import PrivacyEngine\\nengine = PrivacyEngine(secure_mode=True)\\n"):
...     print(advice.line, advice.ours)
1 from discreet import Public, accounting as acc, learning; from discreet.sampling import Entropy
2 (nothing)
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from .._errors import InvalidInput

# The most characters of a script, which is parsed in memory: training scripts have thousands.
LARGEST = 5_000_000
NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True)
class Advice:
    """Says what to do with one line: the Opacus code there, our code for it, and why."""

    line: int
    theirs: str
    ours: str
    why: str


# By name of a function, method or class of Opacus: our code, and why. Calls with arguments that matter are
# in `_Reader`.
SIMPLE: dict[str, tuple[str, str]] = {
    "GradSampleModule": (
        "model",
        "a model is given as it is; gradients of examples are the trainer's affair",
    ),
    "GradSampleModuleFastGradientClipping": ("model", "a model is given as it is"),
    "GradSampleModuleExpandedWeights": ("model", "a model is given as it is"),
    "DPLossFastGradientClipping": ("criterion", "the loss is given as it is, nn.CrossEntropyLoss() say"),
    "DPOptimizer": (
        "learning.SGD(lr=...)",
        "or a function that builds one of torch's; noise is the trainer's",
    ),
    "DPOptimizerFastGradientClipping": ("learning.SGD(lr=...)", "noise and clipping are the trainer's"),
    "AdaClipDPOptimizer": ("clip=learning.Adaptive(clip=1.0)", "its count of short gradients is paid for"),
    "DPDataLoader": (
        "learning.Examples.of(dataset, public)",
        "the trainer draws Poisson batches itself, at rate batch / declared size",
    ),
    "UniformWithReplacementSampler": (NOTHING, "the trainer draws its batches"),
    "wrap_data_loader": ("microbatch=...", "an argument of the trainer; noise stays once per step"),
    "virtual_step": ("microbatch=...", "an argument of the trainer; noise stays once per step"),
    "signal_skip_step": ("microbatch=...", "an argument of the trainer; noise stays once per step"),
    "validate": ("learning.routes(model)", "the trainer refuses what mixes examples, when it is made"),
    "is_valid": ("learning.routes(model)", "the trainer refuses what mixes examples, when it is made"),
    "DifferentiallyPrivateDistributedDataParallel": (
        "mechanism = learning.across_workers(trainer)",
        "in every worker, on its own part of the examples",
    ),
    "DPDDP": (
        "mechanism = learning.across_workers(trainer)",
        "in every worker, on its own part of the examples",
    ),
    "DPLSTM": ("nn.LSTM", "torch's own layer is known; DPLSTM would train, too"),
    "DPGRU": ("nn.GRU", "torch's own layer is known; DPGRU would train, too"),
    "DPRNN": ("nn.RNN", "torch's own layer is known; DPRNN would train, too"),
    "DPMultiheadAttention": (
        "nn.MultiheadAttention",
        "torch's own layer is known; Opacus's would train, too",
    ),
    "register_grad_sampler": (NOTHING, "a layer of your own runs example by example under vmap"),
    "save_checkpoint": (
        "people.train(trainer, checkpoint='run.ckpt', every=10)",
        "a checkpoint is signed and bound to its charge",
    ),
    "load_checkpoint": ("people.resume(trainer, 'run.ckpt')", "free, and no step is run twice"),
    "ExponentialNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "StepNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "LambdaNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "ExponentialGradClip": ("clip=learning.Adaptive(clip=1.0)", "or one clip for all steps"),
    "StepGradClip": ("clip=learning.Adaptive(clip=1.0)", "or one clip for all steps"),
    "PrivacyEngine": (
        NOTHING,
        "the trainer has the price; coins and noise always come from AES (secure_mode), accounting is PLD",
    ),
    "RDPAccountant": ("acc.epsilon(trainer.event, delta=..., accountant='rdp')", "of the event, at any time"),
    "PRVAccountant": ("acc.epsilon(trainer.event, delta=...)", "PLD with a proved bound on both sides"),
    "GaussianAccountant": ("acc.epsilon(trainer.event, delta=..., accountant='gdp')", "to compare with"),
}
_FIXES = ("fix", "fix_and_validate")
_VALIDATOR = "ModuleValidator"
_METHODS = {"virtual_step", "signal_skip_step", "save_checkpoint", "load_checkpoint"}


def advise(source: str) -> list[Advice]:
    """Return what to change in an Opacus script, in the order of its lines.

    Guarantee: nothing of the script is run or imported.
    """
    if len(source) > LARGEST:
        raise InvalidInput(
            f"the script has {len(source)} characters, more than {LARGEST}. Nothing was run. Give the file "
            f"with the training loop."
        )
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        where = f" (line {error.lineno})" if isinstance(error, SyntaxError) and error.lineno else ""
        raise InvalidInput(
            f"this is not Python that can be parsed{where}: {type(error).__name__}. Nothing was run. Of a "
            f"notebook, give the script: jupyter nbconvert --to script."
        ) from None
    reader = _Reader(tree)
    if not reader.names and not reader.has_opacus:
        raise InvalidInput(
            "no import of opacus is in this file. Nothing was run. Give the file with the PrivacyEngine."
        )
    return sorted(dict.fromkeys(reader.advice()), key=lambda advice: advice.line)


class _Reader:
    """Knows what a script imported from Opacus, and what its variables were first set to."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        # the names that the script uses, with Opacus's own for each
        self.names: dict[str, str] = {}
        self.has_opacus = False
        self.values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _is_opacus(node.module):
                self.names |= {a.asname or a.name: a.name for a in node.names}
            elif isinstance(node, ast.Import) and any(_is_opacus(a.name) for a in node.names):
                self.has_opacus = True
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.values.setdefault(node.targets[0].id, node.value)

    def advice(self) -> Iterator[Advice]:
        """Yield what is to be changed, in any order."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                yield from self._advise_import(node)
            elif isinstance(node, ast.FunctionDef):
                # A decorator without arguments is no call, so it is found here; one with arguments below.
                yield from (
                    _advice(d, *SIMPLE[self.names[d.id]])
                    for d in node.decorator_list
                    if isinstance(d, ast.Name) and self.names.get(d.id) in SIMPLE
                )
            elif isinstance(node, ast.Call):
                yield from self._advise_call(node)
            elif isinstance(node, ast.For | ast.AsyncFor):
                yield from self._advise_loop(node)
            elif isinstance(node, ast.Attribute) and node.attr == "grad_sample":
                yield _advice(
                    node, "learning.ClippingEngine(model, loss)", "its clipped sum; no single gradient"
                )

    def _advise_import(self, node: ast.Import | ast.ImportFrom) -> Iterator[Advice]:
        from_opacus = isinstance(node, ast.ImportFrom) and _is_opacus(node.module)
        if from_opacus or (isinstance(node, ast.Import) and any(_is_opacus(a.name) for a in node.names)):
            yield _advice(
                node,
                "from discreet import Public, accounting as acc, learning; from discreet.sampling import "
                "Entropy",
                "in place of all imports of opacus",
            )

    def _advise_call(self, node: ast.Call) -> Iterator[Advice]:
        name, holder = _call_name(node.func)
        name = self.names.get(name, name) if holder is None else name
        imported = self.names.get(holder, holder) if holder else None
        if name in ("make_private", "make_private_with_epsilon"):
            yield from self._advise_make_private(node, name)
        elif name == "BatchMemoryManager":
            size = _keyword(node, "max_physical_batch_size", 1, "...")
            yield _advice(node, f"microbatch={size}", "an argument of the trainer; noise stays once per step")
        elif name == "get_epsilon":
            delta = _keyword(node, "delta", 0, "1e-5")
            ours = f"acc.epsilon(trainer.event, delta={delta})"
            yield _advice(node, ours, "the price is known before training, and is never exceeded")
        elif name == "get_noise_multiplier":
            yield _advice(node, _calibration(node), "or give epsilon= and delta= to the trainer")
        elif name in _FIXES and imported == _VALIDATOR:
            model = ast.unparse(node.args[0]) if node.args else "model"
            yield _advice(node, f"learning.without_batch_norm({model})", "GroupNorm in place of BatchNorm")
        elif name in ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d"):
            yield _advice(
                node, "model = learning.without_batch_norm(model)", "it mixes examples; or freeze it"
            )
        elif name in SIMPLE and self._is_theirs(name, imported):
            yield _advice(node, *SIMPLE[name])
        elif imported in SIMPLE and name.startswith("from_"):
            yield _advice(node, *SIMPLE[imported])

    def _is_theirs(self, name: str, holder: str | None) -> bool:
        """Return whether a name of Opacus is meant: imported from it, or a method of what it makes."""
        if holder is None:
            return name in self.names.values()
        if name in ("validate", "is_valid"):
            return holder == _VALIDATOR
        return name in _METHODS or _is_opacus(holder)

    def _advise_make_private(self, node: ast.Call, name: str) -> Iterator[Advice]:
        yield _advice(node, self._trainer(node, name), "the number of people is declared: len() is private")
        yield _advice(
            node,
            "private = trainer(learning.Examples.of(dataset, public), entropy=Entropy()).value",
            "all steps; people.train(trainer) charges a ledger first",
        )
        mode = _keyword(node, "grad_sample_mode", None, "")
        if mode:
            why = "one engine; each layer takes the cheaper way, ghost norms included"
            yield Advice(node.lineno, f"grad_sample_mode={mode}", NOTHING, why)
        if _keyword(node, "poisson_sampling", None, "True") == "False":
            yield Advice(
                node.lineno,
                "poisson_sampling=False",
                "sampling='balls_in_bins'",
                "shuffled batches are not Poisson samples: priced as if they were, epsilon is too small",
            )

    def _trainer(self, node: ast.Call, name: str) -> str:
        """Return our call, with what the script says about model, optimizer, batch and length."""
        model = _keyword(node, "module", 0, "model")
        arguments = [model, self._loss(), "public=Public(size=...)"]
        if name == "make_private":
            arguments.append(f"noise_multiplier={_keyword(node, 'noise_multiplier', None, '...')}")
            arguments.append(f"epochs={self._epochs()}")
        else:
            arguments.append(f"epsilon={_keyword(node, 'target_epsilon', None, '...')}")
            arguments.append(f"delta={_keyword(node, 'target_delta', None, '...')}")
            arguments.append(f"epochs={_keyword(node, 'epochs', None, '...')}")
        arguments.append(f"clip={_clip(node)}")
        arguments.append(f"batch={self._batch(node)}")
        arguments.append(f"optimizer={self._optimizer(node)}")
        if _keyword(node, "poisson_sampling", None, "True") == "False":
            arguments.append("sampling='balls_in_bins'")
        return f"trainer = learning.Trainer({', '.join(arguments)})"

    def _value(self, node: ast.Call, name: str) -> ast.expr | None:
        """Return what a keyword's variable was set to, or the keyword's own value."""
        value = next((k.value for k in node.keywords if k.arg == name), None)
        return self.values.get(value.id, value) if isinstance(value, ast.Name) else value

    def _batch(self, node: ast.Call) -> str:
        loader = self._value(node, "data_loader")
        return _keyword(loader, "batch_size", 1, "...") if isinstance(loader, ast.Call) else "..."

    def _optimizer(self, node: ast.Call) -> str:
        value = self._value(node, "optimizer")
        if not isinstance(value, ast.Call):
            return "learning.SGD(lr=...)"
        rest = [f"{k.arg}={ast.unparse(k.value)}" for k in value.keywords if k.arg not in (None, "params")]
        rest = [ast.unparse(a) for a in value.args[1:]] + rest
        return f"lambda parameters: {ast.unparse(value.func)}({', '.join(['parameters', *rest])})"

    def _loss(self) -> str:
        for name, value in self.values.items():
            if isinstance(value, ast.Call) and _call_name(value.func)[0].endswith("Loss"):
                return name
        calls = (n for n in ast.walk(self.tree) if isinstance(n, ast.Call))
        return next((ast.unparse(c.func) for c in calls if _is_loss(c)), "nn.CrossEntropyLoss()")

    def _epochs(self) -> str:
        """Return the number of passes: that of the first loop over a range in which an optimizer steps."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.For) and isinstance(node.iter, ast.Call):
                name = _call_name(node.iter.func)[0]
                arguments = node.iter.args
                if name == "range" and arguments and any(_has_step(inner) for inner in ast.walk(node)):
                    # In range(1, epochs + 1) no argument is the number of passes.
                    is_count = len(arguments) == 1
                    return ast.unparse(arguments[0]) if is_count else f"len({ast.unparse(node.iter)})"
        return "..."

    def _advise_loop(self, node: ast.For | ast.AsyncFor) -> Iterator[Advice]:
        """Advise on the innermost loop that takes a step."""
        inner = [n for n in ast.walk(node) if isinstance(n, ast.For) and n is not node]
        if not any(map(_has_step, ast.walk(node))) or any(
            _has_step(n) for loop in inner for n in ast.walk(loop)
        ):
            return
        ours = "run = trainer.start(data, entropy=Entropy()); with run: while not run.done: run.step()"
        theirs = f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}"
        yield Advice(node.lineno, theirs, ours, "or trainer(data, ...) for all; one step more is refused")
        for inside in ast.walk(node):
            if isinstance(inside, ast.Call) and _call_name(inside.func)[0] == "item" and not inside.args:
                why = "a loss on private examples is a release that nobody paid for: measure on a public set"
                yield _advice(inside, "progress=lambda p: print(p.step, p.steps)", why)


def _is_opacus(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == "opacus"


def _advice(node: ast.expr | ast.stmt, ours: str, why: str) -> Advice:
    """Return the advice for one node of the script."""
    return Advice(node.lineno, " ".join(ast.unparse(node).split()), ours, why)


def _call_name(function: ast.expr) -> tuple[str, str | None]:
    """Return the name of what is called, and of what it is an attribute."""
    if isinstance(function, ast.Name):
        return function.id, None
    if isinstance(function, ast.Attribute):
        holder = function.value
        return function.attr, ast.unparse(holder) if isinstance(holder, ast.Name | ast.Attribute) else ""
    return "", None


def _keyword(node: ast.Call, name: str, position: int | None, default: str) -> str:
    """Return an argument's source, by name or by position."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return ast.unparse(keyword.value)
    if position is not None and len(node.args) > position:
        return ast.unparse(node.args[position])
    return default


def _clip(node: ast.Call) -> str:
    """Return the clipping rule: Opacus's `max_grad_norm` and `clipping` are one argument here."""
    norm, kind = _keyword(node, "max_grad_norm", None, "1.0"), _keyword(node, "clipping", None, "'flat'")
    if "per_layer" in kind:
        total_norm = f"sum(c * c for c in {norm}) ** 0.5" if not _is_number(norm) else norm
        return f"learning.PerLayer(clip={total_norm})"
    if "adaptive" in kind:
        quantile = _keyword(node, "target_unclipped_quantile", None, "0.5")
        return f"learning.Adaptive(clip={norm}, quantile={quantile})"
    return norm


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _calibration(node: ast.Call) -> str:
    """Return the call that calibrates noise as Opacus's `get_noise_multiplier` does."""
    epsilon, delta = (
        _keyword(node, "target_epsilon", None, "..."),
        _keyword(node, "target_delta", None, "..."),
    )
    rate = _keyword(node, "sample_rate", None, "...")
    steps = _keyword(node, "steps", None, "...")
    if steps == "..." and (epochs := _keyword(node, "epochs", None, "")):
        steps = f"round({epochs} / {rate})"
    event = f"acc.Gaussian(noise_multiplier=s).sampled({rate}).repeated({steps})"
    return f"acc.calibrate(lambda s: {event}, epsilon={epsilon}, delta={delta})"


def _has_step(node: ast.AST) -> bool:
    """Return whether this is `optimizer.step()`, whatever the optimizer is called."""
    if not isinstance(node, ast.Call) or node.args:
        return False
    name, holder = _call_name(node.func)
    return name == "step" and holder is not None and "sched" not in holder.lower()


def _is_loss(node: ast.Call) -> bool:
    """Return whether a call is one of torch's functional losses."""
    name, holder = _call_name(node.func)
    return holder in ("F", "functional", "torch.nn.functional") and name in (
        "cross_entropy", "mse_loss", "nll_loss", "l1_loss", "huber_loss", "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
    )  # fmt: skip
