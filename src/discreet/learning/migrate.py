"""Reads an Opacus training script and says, line by line, what to change; `discreet migrate FILE.py`.

The file is parsed and never run. The names of Opacus's public interface (version 1.x) are recognized; calls
that a script hides behind functions of its own are not seen.

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

# The most characters of a script that is parsed, since parsing takes memory. Chosen by hand, far above the
# thousands of characters that training scripts have.
LARGEST = 5_000_000
NOTHING = "(nothing)"


@dataclass(frozen=True, slots=True)
class Advice:
    """Says what to do with one line of a script: `theirs` is the Opacus code there, `ours` the code of
    discreet that takes its place."""

    line: int
    theirs: str
    ours: str
    why: str


# For each of these functions, methods and classes of Opacus: the code that takes its place, and why. Calls
# whose arguments are carried over are handled in `_Reader._advise_call`.
SIMPLE: dict[str, tuple[str, str]] = {
    "GradSampleModule": (
        "model",
        "a model is given as it is; the trainer computes per-example gradients",
    ),
    "GradSampleModuleFastGradientClipping": ("model", "a model is given as it is"),
    "GradSampleModuleExpandedWeights": ("model", "a model is given as it is"),
    "DPLossFastGradientClipping": ("criterion", "the loss is given as it is, nn.CrossEntropyLoss() say"),
    "DPOptimizer": (
        "learning.SGD(lr=...)",
        "or a function that builds one of torch's; the trainer adds the noise",
    ),
    "DPOptimizerFastGradientClipping": ("learning.SGD(lr=...)", "the trainer clips and adds the noise"),
    "AdaClipDPOptimizer": (
        "clip=learning.Adaptive(clip=1.0)",
        "its count of unclipped gradients is paid for",
    ),
    "DPDataLoader": (
        "learning.Examples.of(dataset, public)",
        "the trainer draws Poisson batches itself, at rate batch / declared size",
    ),
    "UniformWithReplacementSampler": (NOTHING, "the trainer draws its batches"),
    "wrap_data_loader": ("microbatch=...", "an argument of the trainer; noise is still added once per step"),
    "virtual_step": ("microbatch=...", "an argument of the trainer; noise is still added once per step"),
    "signal_skip_step": ("microbatch=...", "an argument of the trainer; noise is still added once per step"),
    "validate": ("learning.routes(model)", "a trainer refuses a model that mixes examples when it is made"),
    "is_valid": ("learning.routes(model)", "a trainer refuses a model that mixes examples when it is made"),
    "DifferentiallyPrivateDistributedDataParallel": (
        "mechanism = learning.across_workers(trainer)",
        "in every worker, on its own part of the examples",
    ),
    "DPDDP": (
        "mechanism = learning.across_workers(trainer)",
        "in every worker, on its own part of the examples",
    ),
    "DPLSTM": ("nn.LSTM", "torch's own layer is supported; DPLSTM trains, too"),
    "DPGRU": ("nn.GRU", "torch's own layer is supported; DPGRU trains, too"),
    "DPRNN": ("nn.RNN", "torch's own layer is supported; DPRNN trains, too"),
    "DPMultiheadAttention": (
        "nn.MultiheadAttention",
        "torch's own layer is supported; Opacus's trains, too",
    ),
    "register_grad_sampler": (NOTHING, "a layer of your own runs example by example under vmap"),
    "save_checkpoint": (
        "people.train(trainer, checkpoint='run.ckpt', every=10)",
        "of a session, people = discreet.open(...); a checkpoint is signed and bound to its charge",
    ),
    "load_checkpoint": ("people.resume(trainer, 'run.ckpt')", "costs nothing, and no step is run twice"),
    "ExponentialNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "StepNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "LambdaNoise": (NOTHING, "one noise multiplier for all steps of a run; it sets the price"),
    "ExponentialGradClip": ("clip=learning.Adaptive(clip=1.0)", "or one clip for all steps"),
    "StepGradClip": ("clip=learning.Adaptive(clip=1.0)", "or one clip for all steps"),
    "PrivacyEngine": (
        NOTHING,
        "the trainer has the price; sampling and noise always use AES (secure_mode), accounting is PLD",
    ),
    "RDPAccountant": (
        "acc.epsilon(trainer.event, delta=..., accountant='rdp')",
        "computed from the event, at any time",
    ),
    "PRVAccountant": ("acc.epsilon(trainer.event, delta=...)", "by PLD, with proved bounds from both sides"),
    "GaussianAccountant": (
        "acc.epsilon(trainer.event, delta=..., accountant='gdp')",
        "an approximation, for comparison",
    ),
}
# Functions of `ModuleValidator` that replace layers.
_FIXES = ("fix", "fix_and_validate")
_VALIDATOR = "ModuleValidator"
# Methods that only objects of Opacus have, whatever a script calls these objects.
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
        # Opacus's own name of each thing that the script imported from it, by the script's name for it.
        self.names: dict[str, str] = {}
        # Whether there is a plain `import opacus`.
        self.has_opacus = False
        # The first expression that is assigned to each variable, by the variable's name.
        self.values: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and _is_opacus(node.module):
                self.names |= {a.asname or a.name: a.name for a in node.names}
            elif isinstance(node, ast.Import) and any(_is_opacus(a.name) for a in node.names):
                self.has_opacus = True
                self.names |= {a.asname: a.name for a in node.names if a.asname and _is_opacus(a.name)}
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
        """Yield what takes the place of a call, if it is one of Opacus.

        The `holder` is the object whose method is called, and `imported` Opacus's own name for it.
        """
        name, holder = _call_name(node.func)
        name = self.names.get(name, name) if holder is None else name
        imported = self.names.get(holder, holder) if holder else None
        if name in ("make_private", "make_private_with_epsilon"):
            yield from self._advise_make_private(node, name)
        elif name == "BatchMemoryManager":
            size = _keyword(node, "max_physical_batch_size", 1, "...")
            yield _advice(
                node, f"microbatch={size}", "an argument of the trainer; noise is still added once per step"
            )
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
        """Return whether a call of `name` is one of Opacus: of an imported name, or of a method of one of its
        objects. `holder` is Opacus's name of the object whose method is called, None for a plain call."""
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
            "all steps; a session's train(trainer) charges a ledger first",
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
        """Return the call of `learning.Trainer`, with what the script says about model, loss, optimizer,
        batch and number of passes; `...` where it says nothing."""
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
        """Return the value of a keyword; where it is a variable, the first value of that, if known."""
        value = next((k.value for k in node.keywords if k.arg == name), None)
        return self.values.get(value.id, value) if isinstance(value, ast.Name) else value

    def _batch(self, node: ast.Call) -> str:
        """Return the batch size of the data loader."""
        loader = self._value(node, "data_loader")
        return _keyword(loader, "batch_size", 1, "...") if isinstance(loader, ast.Call) else "..."

    def _optimizer(self, node: ast.Call) -> str:
        """Return the source of a function that builds the script's optimizer from the parameters, which were
        its first argument in the script."""
        value = self._value(node, "optimizer")
        if not isinstance(value, ast.Call):
            return "learning.SGD(lr=...)"
        keywords = [
            f"{k.arg}={ast.unparse(k.value)}" for k in value.keywords if k.arg not in (None, "params")
        ]
        arguments = ["parameters", *(ast.unparse(a) for a in value.args[1:]), *keywords]
        return f"lambda parameters: {ast.unparse(value.func)}({', '.join(arguments)})"

    def _loss(self) -> str:
        """Return the first variable that is set to a loss, or the first functional loss that is called."""
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
        yield Advice(
            node.lineno,
            theirs,
            ours,
            "or trainer(data, ...) for all steps; a step beyond the last is refused",
        )
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
    """Return the name that is called, and the source of the object whose attribute it is: None for a plain
    name, "" for an object that is itself computed."""
    if isinstance(function, ast.Name):
        return function.id, None
    if isinstance(function, ast.Attribute):
        holder = function.value
        return function.attr, ast.unparse(holder) if isinstance(holder, ast.Name | ast.Attribute) else ""
    return "", None


def _keyword(node: ast.Call, name: str, position: int | None, default: str) -> str:
    """Return the source of an argument, given by name or by position; `default` where it is not given."""
    for keyword in node.keywords:
        if keyword.arg == name:
            return ast.unparse(keyword.value)
    if position is not None and len(node.args) > position:
        return ast.unparse(node.args[position])
    return default


def _clip(node: ast.Call) -> str:
    """Return the trainer's `clip`, which stands for both `max_grad_norm` and `clipping` of Opacus.

    For clipping by layer, Opacus takes a list with one clipping norm per layer; `PerLayer` takes one number,
    the l2 norm of that list.
    """
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
    """Return whether this is `optimizer.step()`, whatever the optimizer is called; a learning-rate scheduler
    has a `step()`, too, and is known by "sched" in its name."""
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
