"""Forty models of torchvision, timm and transformers, with random weights: one verdict of the probe in ten runs.

Runs where the three libraries are installed; docs/learning.md has the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import DiscreetError, NotPrivate, Unsupported
from discreet.learning import without_batch_norm
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

RUNS, WORDS, TOKENS = 10, 100, 12
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
DECODER = {**SMALL, "num_key_value_heads": 1, "head_dim": 16}


class Scores(nn.Module):
    """A model of transformers as one from ids to scores of classes."""

    def __init__(self, inner: Any, **options: Any) -> None:
        super().__init__()
        self.inner, self.options = inner, options

    def forward(self, ids: Tensor) -> Tensor:
        out = self.inner(input_ids=ids, **self.options).logits
        return out if out.dim() == 2 else out[:, -1]  # type: ignore[no-any-return]


def vision(name: str, **options: Any) -> nn.Module:
    """A model of torchvision, its batch normalization replaced."""
    import torchvision

    return without_batch_norm(getattr(torchvision.models, name)(num_classes=10, **options))


def blocks(kind: str, **options: Any) -> nn.Module:
    """A ResNet of torchvision with two blocks of a kind (`BasicBlock`, `Bottleneck`) instead of four stages."""
    from torchvision.models import resnet

    return without_batch_norm(resnet.ResNet(getattr(resnet, kind), [1, 1, 1, 1], num_classes=10, **options))


def timm(name: str, **options: Any) -> nn.Module:
    import timm

    return without_batch_norm(timm.create_model(name, num_classes=10, **options))


def text(kind: str, head: str = "ForSequenceClassification", options: Any = None, **sizes: Any) -> nn.Module:
    """A small model of transformers, whose class of settings is `kind` + Config."""
    import transformers

    config = getattr(transformers, kind + "Config")(vocab_size=WORDS, pad_token_id=0, **sizes)
    return Scores(getattr(transformers, kind + head)(config), **(options or {}))


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "resnet18": lambda: vision("resnet18"),
    "resnet50, a block a stage": lambda: blocks("Bottleneck"),
    "resnext, a block a stage": lambda: blocks("Bottleneck", groups=8, width_per_group=8),
    "densenet, 2 layers a block": lambda: vision_densenet(),
    "mobilenet_v2": lambda: vision("mobilenet_v2"),
    "mobilenet_v3_small": lambda: vision("mobilenet_v3_small"),
    "efficientnet_b0": lambda: vision("efficientnet_b0"),
    "regnet_x_400mf": lambda: vision("regnet_x_400mf"),
    "regnet_y_400mf": lambda: vision("regnet_y_400mf"),
    "shufflenet_v2_x0_5": lambda: vision("shufflenet_v2_x0_5"),
    "mnasnet0_5": lambda: vision("mnasnet0_5"),
    "googlenet": lambda: vision("googlenet", aux_logits=False, init_weights=False),
    "squeezenet1_1": lambda: vision("squeezenet1_1"),
    "convnext, 32 wide": lambda: vision_convnext(),
    "swin_t, 24 wide": lambda: vision_swin(),
    "VisionTransformer, 32 wide": lambda: vision_vit(),
    "timm BiT (resnetv2), a block a stage": lambda: timm_bit(),
    "timm resnet": lambda: timm("test_resnet"),
    "timm ViT": lambda: timm("test_vit", img_size=32, patch_size=8),
    "timm ConvNeXt": lambda: timm("test_convnext"),
    "timm EfficientNet": lambda: timm("test_efficientnet"),
    "timm NFNet": lambda: timm("test_nfnet"),
    "timm DeiT": lambda: timm("deit_tiny_patch16_224", img_size=32, embed_dim=48, depth=2),
    "timm BEiT": lambda: timm("beit_base_patch16_224", img_size=32, embed_dim=48, depth=2, num_heads=2),
    "timm Mixer": lambda: timm_mixer(),
    "timm RegNet": lambda: timm("regnetx_002"),
}
TEXTS: dict[str, Callable[[], nn.Module]] = {
    "BERT": lambda: text("Bert", **SMALL),
    "RoBERTa": lambda: text("Roberta", **SMALL),
    "ALBERT": lambda: text("Albert", embedding_size=16, **SMALL),
    "DistilBERT": lambda: text("DistilBert", dim=32, n_layers=2, n_heads=2, hidden_dim=64),
    "ELECTRA": lambda: text("Electra", embedding_size=16, **SMALL),
    "DeBERTa v2": lambda: text("DebertaV2", **SMALL),
    "MPNet": lambda: text("MPNet", **SMALL),
    "GPT-2": lambda: text("GPT2", "LMHeadModel", {"use_cache": False}, n_embd=32, n_layer=2, n_head=2),
    "OPT": lambda: text(
        "OPT", "ForCausalLM", {"use_cache": False}, ffn_dim=64, word_embed_proj_dim=32, **SMALL
    ),
    "Llama": lambda: text("Llama", "ForCausalLM", {"use_cache": False}, **DECODER),
    "Mistral": lambda: text("Mistral", "ForCausalLM", {"use_cache": False}, **DECODER),
    "Qwen2": lambda: text("Qwen2", "ForCausalLM", {"use_cache": False}, num_key_value_heads=1, **SMALL),
    "Gemma": lambda: text("Gemma", "ForCausalLM", {"use_cache": False}, **DECODER),
    "Mamba": lambda: text("Mamba", "ForCausalLM", {"use_cache": False}, hidden_size=32, num_hidden_layers=2),
}


def vision_densenet() -> nn.Module:
    from torchvision.models import DenseNet

    return without_batch_norm(
        DenseNet(growth_rate=16, block_config=(2, 2, 2, 2), num_init_features=32, num_classes=10)
    )


def vision_convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    settings = [CNBlockConfig(32, 64, 2), CNBlockConfig(64, None, 2)]
    return ConvNeXt(settings, stochastic_depth_prob=0.1, num_classes=10)


def vision_swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 24, [2, 2], [2, 4], [4, 4], stochastic_depth_prob=0.1, num_classes=10)


def vision_vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=64, num_classes=10)


def timm_bit() -> nn.Module:
    from timm.models.resnetv2 import ResNetV2

    return ResNetV2(layers=(1, 1, 1, 1), channels=(128, 256, 256, 256), num_classes=10, stem_type="fixed")


def timm_mixer() -> nn.Module:
    from timm.models.mlp_mixer import MlpMixer

    return MlpMixer(img_size=32, patch_size=8, embed_dim=48, num_blocks=2, num_classes=10)


MODELS = IMAGES | TEXTS


def verdict(name: str, seed: int) -> str:
    """What the probe says of the model with the random weights of a seed."""
    torch.manual_seed(seed)
    side = 64 if name in ("timm NFNet", "squeezenet1_1") else 32
    inputs = torch.zeros(1, 3, side, side) if name in IMAGES else torch.zeros(1, TOKENS, dtype=torch.long)
    model = MODELS[name]()
    examples = made_up(inputs), made_up(torch.zeros(1, dtype=torch.long))
    try:
        probe(ClippingEngine(model, "cross_entropy", expected=16), *examples, batch=16)
    except (NotPrivate, Unsupported) as error:
        return f"{type(error).__name__}: {error}"
    except DiscreetError as error:
        return str(error)
    return "ok"


@pytest.mark.parametrize("name", MODELS)
def test_one_model_has_one_verdict_in_ten_runs(name: str) -> None:
    for library in ("torchvision", "timm", "transformers"):
        pytest.importorskip(library)
    assert Counter(verdict(name, seed) for seed in range(RUNS)) == {"ok": RUNS}
