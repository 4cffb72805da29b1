"""Models of Hugging Face, with LoRA adapters and with tied weights: clipped sums as in the naive loop.

Runs where transformers and peft are installed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

pytest.importorskip("transformers")
pytest.importorskip("peft")

from discreet.learning import routes
from discreet.learning.clipping.engine import ClippingEngine

from .zoo import naive


class Scores(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(input_ids=ids).logits


def lora() -> nn.Module:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {
        "vocab_size": 30,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    base = BertForSequenceClassification(
        BertConfig(**sizes, num_labels=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    )
    settings = LoraConfig(
        r=2, target_modules=["query", "value"], modules_to_save=["classifier"], init_lora_weights=False
    )
    return Scores(get_peft_model(base, settings))


def tied() -> nn.Module:
    from transformers import GPT2Config, LlamaConfig, LlamaForCausalLM

    assert GPT2Config().tie_word_embeddings, "as many of them are"
    sizes = {
        "vocab_size": 20,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    assert model.lm_head.weight is model.model.embed_tokens.weight
    return Scores(model)


def next_word(scores: Tensor, ids: Tensor) -> Tensor:
    """One loss for each text."""
    return F.cross_entropy(scores[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none").mean(1)


def check(model: nn.Module, loss: Any, inputs: Tensor, targets: Tensor) -> None:
    model.train(False)
    engine = ClippingEngine(model, loss)
    rows = naive(model, inputs, targets, loss if loss is next_word else F.cross_entropy)
    norms = rows.norm(dim=1)
    clip = float(norms.median())
    want = (rows * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
    with engine.attached():
        got = engine.clipped_sum(inputs, targets, clip=clip)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
    assert want.norm() > 0


def test_lora_adapters_take_the_book_keeping_path_and_match_the_naive_loop() -> None:
    torch.manual_seed(0)
    model = lora()
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert all("lora_" in name or "classifier" in name for name in trained)
    ways = routes(model)
    owners = {name.rpartition(".")[0] for name in trained}
    assert owners <= ways.keys()
    assert {ways[name] for name in owners} == {"tapped"}
    check(model, nn.CrossEntropyLoss(), torch.randint(0, 30, (6, 5)), torch.randint(0, 2, (6,)))


def test_tied_word_embeddings_match_the_naive_loop() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 20, (5, 7))
    check(tied(), next_word, ids, ids)
