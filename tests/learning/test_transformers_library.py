"""BERT and GPT-2 of Hugging Face with all their weights, unchanged: clipped sums as in the naive loop.

Runs where transformers is installed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe

from .zoo import naive

T, WORDS = 6, 30


class Scores(nn.Module):
    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=ids).logits
        return scores


def bert() -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    drops = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return Scores(
        BertForSequenceClassification(BertConfig(**sizes, **drops, intermediate_size=24, num_labels=2))
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": WORDS, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    drops = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0}
    return Scores(GPT2LMHeadModel(GPT2Config(**sizes, **drops)))


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) * targets[:, None]).pow(2).sum(1)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("build", [bert, gpt2])
def test_all_weights_train_as_in_a_loop_of_single_examples(
    build: Callable[[], nn.Module], isolate: bool
) -> None:
    torch.manual_seed(0)
    model, ids, y = build(), torch.randint(0, WORDS, (2 * T, T)), torch.logspace(-1, 1, 2 * T)
    truth = naive(model, ids, y, loss)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss, isolate=isolate)
    with engine.attached():
        for size in (1, T - 1, T, 2 * T):
            got = engine.clipped_sum(ids[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip
    probe(ClippingEngine(model, loss, isolate=isolate), made_up(ids), made_up(y))


class Masked(nn.Module):
    """BERT with the mask of its padding as a second input; checkpointed where that was switched on."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=ids, attention_mask=mask).logits
        return scores


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("build", [bert, gpt2])
def test_masks_and_gradient_checkpoints_give_the_sum_of_single_examples(
    build: Callable[[], nn.Module], checkpointing: bool
) -> None:
    torch.manual_seed(0)
    inner: Any = build().inner
    if checkpointing:
        inner.gradient_checkpointing_enable({"use_reentrant": False})
    model = Masked(inner).train()
    ids, y = torch.randint(0, WORDS, (9, T)), torch.logspace(-1, 1, 9)
    mask = (torch.arange(T) < torch.randint(2, T + 1, (9, 1))).long()
    truth = torch.cat(
        [naive_pair(model, ids[i : i + 1], mask[i : i + 1], y[i : i + 1]).unsqueeze(0) for i in range(9)]
    )
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        for size in (1, T, 9):
            got = engine.clipped_sum((ids[:size], mask[:size]), y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip


def opt() -> nn.Module:
    """It folds texts and positions into one dimension."""
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    return Scores(
        OPTForCausalLM(OPTConfig(**sizes, ffn_dim=24, word_embed_proj_dim=16, dropout=0.0, use_cache=False))
    )


def bart() -> nn.Module:
    """Its embeddings are subclasses, with a padding row, and positions that are the same for all texts."""
    from transformers import BartConfig, BartForSequenceClassification

    depths = {"encoder_layers": 1, "decoder_layers": 1}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    widths = {"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "dropout": 0.0}
    tokens = {"vocab_size": WORDS, "pad_token_id": 5, "eos_token_id": 3, "bos_token_id": 0}
    config = BartConfig(
        **depths,
        **heads,
        **widths,
        **tokens,
        decoder_start_token_id=0,
        forced_eos_token_id=3,
        use_cache=False,
    )
    return Scores(BartForSequenceClassification(config))


class Both(nn.Module):
    """T5 as a model of one argument: its bias of positions is added to the scores of attention."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import T5Config, T5ForConditionalGeneration

        config = T5Config(
            vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0,
            use_cache=False,
        )  # fmt: skip
        self.inner = T5ForConditionalGeneration(config)

    def forward(self, ids: Tensor) -> Tensor:
        scores: Tensor = self.inner(input_ids=ids, decoder_input_ids=ids.flip(1)).logits
        return scores


@pytest.mark.parametrize("build", [opt, Both], ids=["OPT", "T5"])
def test_folded_texts_and_biases_of_positions_train_as_single_examples(
    build: Callable[[], nn.Module],
) -> None:
    torch.manual_seed(0)
    model, ids, y = build(), torch.randint(2, WORDS, (2 * T, T)), torch.logspace(-1, 1, 2 * T)
    truth = naive(model, ids, y, loss)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss)
    probe(engine, made_up(ids), made_up(y), batch=2 * T)
    with engine.attached():
        for size in (1, T, 2 * T):
            got = engine.clipped_sum(ids[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip


def test_the_padding_row_of_a_subclass_stays() -> None:
    """BART scales its words in an embedding of its own, and has its positions in another."""
    torch.manual_seed(0)
    model: Any = bart()
    words = model.inner.model.shared
    assert type(words) is not nn.Embedding
    model = Calls(model.inner.model.encoder)
    ids, y = torch.randint(6, WORDS, (9, T)), torch.logspace(-1, 1, 9)
    ids[::2, -2:] = 5
    truth = naive(model, ids, y, loss)
    engine = ClippingEngine(model, loss)
    probe(engine, made_up(ids), made_up(y))
    with engine.attached():
        got = engine.clipped_sum(ids, y, clip=1e6)
    assert (got - truth.sum(0)).norm() <= 1e-4 * float(truth.norm(dim=1).sum())
    place = list(dict(model.named_parameters())).index("encoder.embed_tokens.weight")
    part = list(engine.parts(got).values())[place]
    assert part[5].abs().max() == 0


class Calls(nn.Module):
    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, ids: Tensor) -> Tensor:
        states: Tensor = self.encoder(input_ids=ids).last_hidden_state
        return states


def test_gradient_checkpoints_leave_the_table_of_words_tapped() -> None:
    """`transformers` puts a hook on it: a table for each example would be as large as many models."""
    from discreet.learning import routes

    model: Any = gpt2().inner
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert set(routes(model).values()) == {"tapped"}


def test_a_mask_works_example_by_example_too() -> None:
    """Its library asks whether all of the mask is true, which vmap does not run: a loop does."""
    torch.manual_seed(0)
    model = Masked(bert().inner)
    ids, y = torch.randint(0, WORDS, (4, T)), torch.logspace(-1, 1, 4)
    mask = (torch.arange(T) < torch.randint(2, T + 1, (4, 1))).long()
    truth = torch.stack(
        [naive_pair(model, ids[i : i + 1], mask[i : i + 1], y[i : i + 1]) for i in range(4)]
    ).sum(0)
    engine = ClippingEngine(model, loss, isolate=True)
    with engine.attached():
        got = engine.clipped_sum((ids, mask), y, clip=1e6)
    assert (got - truth).norm() <= 1e-4 * truth.norm()


def naive_pair(model: nn.Module, ids: Tensor, mask: Tensor, y: Tensor) -> Tensor:
    parameters = [p for p in model.parameters() if p.requires_grad]
    parts = torch.autograd.grad(loss(model(ids, mask), y).sum(), parameters, allow_unused=True)
    pairs = zip(parameters, parts, strict=True)
    return torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for p, g in pairs])


def test_a_tiny_bert_starts_after_few_passes_and_shows_progress() -> None:
    """Of the library itself: 2 layers, 128 wide, 30,522 words."""
    from transformers import BertConfig, BertForSequenceClassification

    from discreet import Public, learning
    from discreet.sampling import Entropy

    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, num_labels=2
    )
    public = Public(size=64)
    trainer = learning.Trainer(
        Scores(BertForSequenceClassification(config)), nn.CrossEntropyLoss(), public=public,
        noise_multiplier=1.0, batch=8, steps=2,
    )  # fmt: skip
    data = learning.Examples(torch.randint(0, 30_000, (64, 64)), torch.randint(0, 2, (64,)), public)
    rows: list[int] = []
    trainer.model.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    run = trainer.start(data, entropy=Entropy())
    assert len(rows) < 60
    assert sum(rows) < 300
    seen = []
    with run:
        while not run.done:
            run.step()
            seen.append((run.progress.step, run.progress.steps))
    assert seen == [(1, 2), (2, 2)]
