"""What Opacus scripts are told: real-style loops, never run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from discreet import InvalidInput
from discreet.app.cli import app
from discreet.learning.migrate import Advice, advise

EPSILON = """
import torch
from torch import nn
from opacus import PrivacyEngine
from opacus.validators import ModuleValidator
from opacus.utils.batch_memory_manager import BatchMemoryManager

model = ModuleValidator.fix(resnet())
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, momentum=0.9)
train_loader = torch.utils.data.DataLoader(train_dataset, batch_size=512, shuffle=True)
criterion = nn.CrossEntropyLoss()
privacy_engine = PrivacyEngine(accountant="rdp")
model, optimizer, train_loader = privacy_engine.make_private_with_epsilon(
    module=model, optimizer=optimizer, data_loader=train_loader, epochs=20,
    target_epsilon=50.0, target_delta=1e-5, max_grad_norm=1.2)
for epoch in range(20):
    with BatchMemoryManager(data_loader=train_loader, max_physical_batch_size=128, optimizer=optimizer) as small:
        for images, target in small:
            optimizer.zero_grad()
            loss = criterion(model(images), target)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
    print(privacy_engine.get_epsilon(1e-5))
"""

NOISE = """
import opacus
from opacus import PrivacyEngine as Engine, GradSampleModule
from opacus.data_loader import DPDataLoader
import torch.nn.functional as F
sgd = torch.optim.SGD(net.parameters(), 0.05)
net = GradSampleModule(net)
loader = DPDataLoader.from_data_loader(plain)
engine = Engine(secure_mode=True)
net, sgd, loader = engine.make_private(module=net, optimizer=sgd, data_loader=loader, noise_multiplier=1.1,
    max_grad_norm=[0.5, 0.5], clipping="per_layer", poisson_sampling=False, grad_sample_mode="ew")
for epoch in range(1, EPOCHS):
    for x, y in loader:
        F.cross_entropy(net(x), y).backward()
        sgd.virtual_step()
        sgd.step()
        scheduler.step()
print(net.grad_sample)
"""

GHOST = """
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from opacus.layers import DPLSTM, DPMultiheadAttention
from opacus.grad_sample import register_grad_sampler
from opacus.distributed import DifferentiallyPrivateDistributedDataParallel as DPDDP
lstm = DPLSTM(10, 20)
sigma = get_noise_multiplier(target_epsilon=3, target_delta=1e-6, sample_rate=0.01, epochs=10)
model = DPDDP(model)
model, optimizer, criterion, loader = PrivacyEngine().make_private(
    module=model, optimizer=optimizer, data_loader=loader, criterion=criterion, noise_multiplier=sigma,
    max_grad_norm=1.0, clipping="adaptive", target_unclipped_quantile=0.3, grad_sample_mode="ghost")

@register_grad_sampler(Mine)
def compute(layer, activations, backprops):
    return {}

for x in loader:
    optimizer.step()
engine.save_checkpoint(path="x")
"""


def ours(advice: list[Advice], words: str) -> str:
    """Return our code beside the Opacus code that has these words."""
    texts = [one.ours for one in advice if words in one.theirs]
    assert texts, words
    return " | ".join(texts)


def test_a_target_epsilon_becomes_a_trainer_with_everything_the_script_says() -> None:
    advice = advise(EPSILON)
    assert ours(advice, "make_private_with_epsilon").split(" | ")[0] == (
        "trainer = learning.Trainer(model, criterion, public=Public(size=...), epsilon=50.0, delta=1e-05, "
        "epochs=20, clip=1.2, batch=512, optimizer=lambda parameters: torch.optim.RMSprop(parameters, "
        "lr=0.001, momentum=0.9))"
    )
    assert ours(advice, "ModuleValidator.fix") == "learning.without_batch_norm(resnet())"
    assert ours(advice, "BatchMemoryManager(") == "microbatch=128"
    assert ours(advice, "privacy_engine.get_epsilon(") == "acc.epsilon(trainer.event, delta=1e-05)"
    assert "run.step()" in ours(advice, "for (images, target) in small")
    assert "progress" in ours(advice, "loss.item()")
    assert [one.line for one in advice] == sorted(one.line for one in advice)
    assert not any(one.theirs.startswith("for epoch") for one in advice)


def test_shuffling_layers_and_modes_are_told() -> None:
    advice = advise(NOISE)
    trainer = ours(advice, "engine.make_private(")
    assert "noise_multiplier=1.1, epochs=len(range(1, EPOCHS))" in trainer
    assert "learning.PerLayer(clip=sum(c * c for c in [0.5, 0.5]) ** 0.5)" in trainer
    assert "lambda parameters: torch.optim.SGD(parameters, 0.05)" in trainer
    assert "F.cross_entropy" in trainer
    assert ours(advice, "poisson_sampling=False").endswith(" | sampling='balls_in_bins'")
    assert "(nothing)" in ours(advice, "grad_sample_mode='ew'").split(" | ")
    assert ours(advice, "GradSampleModule(net)") == "model"
    assert "Examples.of" in ours(advice, "DPDataLoader.from_data_loader")
    assert "microbatch" in ours(advice, "virtual_step")
    assert "ClippingEngine" in ours(advice, "net.grad_sample")
    assert ours(advice, "Engine(secure_mode=True)") == "(nothing)"


def test_ghost_clipping_accountants_and_workers_are_told() -> None:
    advice = advise(GHOST)
    assert "learning.Adaptive(clip=1.0, quantile=0.3)" in ours(advice, ".make_private(")
    assert ours(advice, "DPLSTM(10, 20)") == "nn.LSTM"
    assert ours(advice, "get_noise_multiplier(") == (
        "acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s).sampled(0.01).repeated(round(10 / 0.01)), "
        "epsilon=3, delta=1e-06)"
    )
    assert "across_workers" in ours(advice, "DPDDP(model)")
    assert ours(advice, "register_grad_sampler(Mine)") == "(nothing)"
    assert "checkpoint" in ours(advice, "save_checkpoint")


def test_what_is_told_of_a_method_of_another_library_is_nothing() -> None:
    advice = advise("import opacus\nother.validate(x)\nmodel.fix(y)\nDPLSTM(1)\nmine.step()\n")
    assert [one.line for one in advice] == [1]


def test_our_code_is_python() -> None:
    import ast

    for script in (EPSILON, NOISE, GHOST):
        for one in advise(script):
            if one.ours != "(nothing)" and "while" not in one.ours and not one.ours.startswith("microbatch"):
                ast.parse(one.ours)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("print(1)", "no import of opacus"),
        ("def (", "not Python that can be parsed"),
        ("import opacus\0", "not Python"),
        ("(" * 5000, "not Python"),
        ("x" * 5_000_001, "more than 5000000"),
    ],
)
def test_other_files_are_refused(source: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        advise(source)


def test_on_the_shell_nothing_is_run(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    trace = tmp_path / "ran"
    script.write_text(EPSILON + f"\nopen({str(trace)!r}, 'w')\nraise SystemExit(7)\n")
    done = CliRunner().invoke(app, ["migrate", str(script)])
    assert done.exit_code == 0, done.output
    assert "line 13: " in done.output
    assert not trace.exists()
    again = CliRunner().invoke(app, ["migrate", str(script), "--json"])
    lines = [one["line"] for one in json.loads(again.output)["advice"]]
    assert lines == sorted(lines)
    (tmp_path / "latin").write_bytes(b"# \xe9\xff")
    for bad in ("latin", "missing.py"):
        refused = CliRunner().invoke(app, ["migrate", str(tmp_path / bad)])
        assert isinstance(refused.exception, InvalidInput) or refused.exit_code == 2


def test_opacus_under_another_name_is_recognized() -> None:
    source = "import opacus as o\nimport opacus.layers as l\nnet = o.GradSampleModule(net)\nlstm = l.DPLSTM(2, 3)\n"
    assert {advice.ours for advice in advise(source)} >= {"model", "nn.LSTM"}
