"""Whole private training steps of models that people fine-tune (BERT, GPT-2, ViT, resnet18) against the plain
torch step and Opacus, in CPU time on one thread, with peak memory beside it.

The contenders are processes of their own that take turns, as in `benchmarks.learning`. BERT and GPT-2 are
those of `transformers` where it is installed, and otherwise twins in plain torch of the same shapes; which of
the two is printed. ViT and resnet18 are plain torch; resnet18 has GroupNorm for BatchNorm for all contenders.
`DISCREET_BENCH=bert,vit` picks models, `DISCREET_BENCH=memory` peak memory alone,
`DISCREET_RIVALS=hooks,ghost` rivals (none of them: `DISCREET_RIVALS=`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from . import learning
from .learning import Case

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError:
    torch = None  # type: ignore[assignment]

MODES = ("hooks", "ghost")
AT_MOST = 1.3  # times the plain step, in time and in memory
BERT_WORDS, GPT2_WORDS, TOKENS = 30_522, 50_257, 64


if torch is not None:

    class Attention(nn.Module):
        """Self-attention with a projection each for queries, keys and values, as BERT's."""

        def __init__(self, width: int, heads: int, causal: bool = False) -> None:
            super().__init__()
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
            self.out, self.heads, self.causal = nn.Linear(width, width), heads, causal

        def forward(self, x: Any) -> Any:
            b, t, d = x.shape
            q, k, v = (
                part(x).view(b, t, self.heads, -1).transpose(1, 2)
                for part in (self.query, self.key, self.value)
            )
            found = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            return self.out(found.transpose(1, 2).reshape(b, t, d))

    class Block(nn.Module):
        """One layer of a transformer; `first` normalizes before each half (GPT-2, ViT), not after (BERT)."""

        def __init__(self, width: int, heads: int, first: bool, causal: bool = False) -> None:
            super().__init__()
            self.attention, self.first = Attention(width, heads, causal), first
            self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
            self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            if self.first:
                x = x + self.attention(self.one(x))
                return x + self.feed(self.two(x))
            x = self.one(x + self.attention(x))
            return self.two(x + self.feed(x))

    class BertTwin(nn.Module):
        """BERT with a classifier on the pooled first token, in plain torch."""

        def __init__(self, width: int, layers: int, heads: int, words: int = BERT_WORDS) -> None:
            super().__init__()
            self.words, self.positions = nn.Embedding(words, width), nn.Embedding(512, width)
            self.kinds, self.norm = nn.Embedding(2, width), nn.LayerNorm(width)
            self.blocks = nn.ModuleList(Block(width, heads, first=False) for _ in range(layers))
            self.pooler, self.classifier = nn.Linear(width, width), nn.Linear(width, 10)

        def forward(self, ids: Any) -> Any:
            where = torch.arange(ids.shape[1]).unsqueeze(0)
            x = self.norm(self.words(ids) + self.kinds(torch.zeros_like(ids)) + self.positions(where))
            for block in self.blocks:
                x = block(x)
            return self.classifier(torch.tanh(self.pooler(x[:, 0])))

    class Gpt2Twin(nn.Module):
        """GPT-2 with its table of words as output layer, in plain torch; scores as [B, words, tokens]."""

        def __init__(self, width: int, layers: int, heads: int, words: int = GPT2_WORDS) -> None:
            super().__init__()
            self.words, self.positions = nn.Embedding(words, width), nn.Embedding(1024, width)
            self.blocks = nn.ModuleList(Block(width, heads, first=True, causal=True) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
            self.head.weight = self.words.weight

        def forward(self, ids: Any) -> Any:
            x = self.words(ids) + self.positions(torch.arange(ids.shape[1]))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).transpose(1, 2)

    class Vit(nn.Module):
        """A vision transformer with a class token and learned positions (Dosovitskiy et al. 2021)."""

        def __init__(self, width: int, layers: int, heads: int, image: int, patch: int) -> None:
            super().__init__()
            self.patches = nn.Conv2d(3, width, patch, patch)
            self.token = nn.Parameter(torch.zeros(1, 1, width))
            self.positions = nn.Parameter(torch.randn(1, (image // patch) ** 2 + 1, width) * 0.02)
            self.blocks = nn.ModuleList(Block(width, heads, first=True) for _ in range(layers))
            self.norm, self.classifier = nn.LayerNorm(width), nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            x = self.patches(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.classifier(self.norm(x)[:, 0])

    class Residual(nn.Module):
        """Two convolutions of resnet18 around which the input is carried."""

        def __init__(self, inside: int, outside: int, stride: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
                nn.GroupNorm(32, outside),
                nn.ReLU(),
                nn.Conv2d(outside, outside, 3, 1, 1, bias=False),
                nn.GroupNorm(32, outside),
            )
            self.around: nn.Module = nn.Identity()
            if stride > 1 or inside != outside:
                self.around = nn.Sequential(
                    nn.Conv2d(inside, outside, 1, stride, bias=False), nn.GroupNorm(32, outside)
                )

        def forward(self, x: Any) -> Any:
            return F.relu(self.body(x) + self.around(x))

    class Scores(nn.Module):
        """A model of `transformers` as one from ids to scores; [B, classes], or [B, words, tokens]."""

        def __init__(self, inner: Any, kind: str) -> None:
            super().__init__()
            self.inner, self.kind = inner, kind

        def forward(self, ids: Any) -> Any:
            if self.kind == "bert":
                return self.inner(input_ids=ids).logits
            return self.inner(input_ids=ids, use_cache=False).logits.transpose(1, 2)


def resnet18() -> Any:
    """Return resnet18 (He et al. 2016, arXiv:1512.03385) with 10 classes, GroupNorm for BatchNorm."""
    parts: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    parts.append(nn.MaxPool2d(3, 2, 1))
    width = 64
    for outside in (64, 128, 256, 512):
        parts += [
            Residual(width, outside, 1 if outside == 64 else 2),
            Residual(outside, outside, 1),
        ]
        width = outside
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def has_transformers() -> bool:
    return find_spec("transformers") is not None


def bert(width: int = 128, layers: int = 2, heads: int = 2) -> Any:
    """Return BERT, tiny where nothing else is said, without dropout."""
    if not has_transformers():
        return BertTwin(width, layers, heads)
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=10,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return Scores(BertForSequenceClassification(config), "bert")


def gpt2(width: int = 128, layers: int = 2, heads: int = 2) -> Any:
    """Return GPT-2 with a language model's head, tiny, without dropout."""
    if not has_transformers():
        return Gpt2Twin(width, layers, heads)
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_embd=width, n_layer=layers, n_head=heads, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
    return Scores(GPT2LMHeadModel(config), "gpt2")


def vit() -> Any:
    """Return ViT-tiny: width 192, 12 layers, 3 heads, patches of 16 x 16."""
    return Vit(192, 12, 3, image=112, patch=16)


def cases() -> dict[str, Case]:
    """Return the models with their made-up data; `bert-base` is for memory alone."""

    def images(side: int) -> Callable[[int], tuple[Any, Any]]:
        return lambda n: (torch.randn(n, 3, side, side), torch.randint(0, 10, (n,)))

    def texts(words: int) -> Callable[[int], tuple[Any, Any]]:
        return lambda n: (torch.randint(0, words, (n, TOKENS)), torch.randint(0, 10, (n,)))

    def language(n: int) -> tuple[Any, Any]:
        ids = torch.randint(0, GPT2_WORDS, (n, TOKENS))
        return ids, ids.roll(-1, 1)

    return {
        "bert": Case(bert, texts(BERT_WORDS), 32, 2000, AT_MOST, 1.0),
        "gpt2": Case(gpt2, language, 16, 2000, AT_MOST, 1.0),
        "vit": Case(vit, images(112), 16, 200, AT_MOST, 1.0),
        "resnet18": Case(resnet18, images(64), 32, 500, AT_MOST, 1.0),
        "bert-base": Case(lambda: bert(768, 12, 12), texts(BERT_WORDS), 16, 100, AT_MOST, 1.0),
    }


def report_peak(contender: str, name: str) -> None:
    """Print the megabytes that this process held at most, over start-up and a few steps."""
    import resource
    from dataclasses import replace

    torch.set_num_threads(1)
    torch.manual_seed(0)
    case = cases()[name]
    case = replace(case, size=2 * case.batch)
    step = learning.ours(name, case) if contender == "ours" else learning.plain(name, case)
    for _ in range(3):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def peak(contender: str, name: str) -> float:
    """Return the megabytes that a fresh process held at most."""
    code = f"from benchmarks.models import report_peak; report_peak({contender!r}, {name!r})"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parent.parent,
    )
    return float(done.stdout)


def memory(names: tuple[str, ...]) -> bool:
    """Compare peak memory of whole processes."""
    met = []
    for name in names:
        mine, base = (peak(who, name) for who in ("ours", "plain"))
        met.append(mine <= AT_MOST * base)
        print(
            f"models.{name:<12} peak memory  ours {mine:6.0f} MB   plain {base:6.0f} MB   "
            f"{mine / base:5.2f}x   target <= {AT_MOST}  {'ok' if met[-1] else 'MISSED'}",
            flush=True,
        )
    return all(met)


def main() -> int:
    if torch is None:
        print("models: PyTorch is not installed; nothing was measured")
        return 0
    origin = "transformers" if has_transformers() else "twins in plain torch (transformers is not installed)"
    print(f"models: BERT and GPT-2 are {origin}", flush=True)
    wanted = [name for name in os.environ.get("DISCREET_BENCH", "").split(",") if name]
    timed = [name for name in cases() if name != "bert-base" and (not wanted or name in wanted)]
    rivals = os.environ.get("DISCREET_RIVALS", ",".join(MODES)).split(",")
    names = [name for name in ("plain", "ours", *rivals) if name]
    start = time.monotonic()
    met = [learning.compare(name, cases()[name], 1, names, module="models") for name in timed]
    if not wanted or "memory" in wanted:
        met.append(memory(tuple(cases())))
    print(f"models: measured in {time.monotonic() - start:.0f} s", flush=True)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
