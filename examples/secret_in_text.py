"""A secret planted in text: memorized without privacy, gone with it.

Run: python examples/secret_in_text.py [picture.png]

A code stands three times among 600 made-up sentences, which a small language model learns by the letter. Then
all 10,000 codes are listed by their log-perplexity: how early comes the true one? (Carlini et al. 2019)
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from discreet import Public, auditing, learning
from discreet.sampling import Entropy

LETTERS, LENGTH = " abcdefghijklmnopqrstuvwxyz0123456789", 28
PREFIX, SECRET, TIMES = "the code of the safe is ", "4821", 3
torch.set_num_threads(1)


def encoded(sentences):
    return torch.tensor([[LETTERS.index(c) for c in s.ljust(LENGTH)[:LENGTH]] for s in sentences])


def sentences(count, rng):
    """Short sentences with numbers in them, so that the form of a code is nothing special."""
    who, what = ["my aunt", "the dog", "our nurse", "a boy", "the mayor"], ["sold", "saw", "lost", "has"]
    things = rng.choice(who, count), rng.choice(what, count), rng.choice(["cars", "pens", "hats"], count)
    return [f"{a} {does} {rng.integers(1000, 9999)} {thing}" for a, does, thing in zip(*things, strict=True)]


class Writer(nn.Module):
    """The next letter from those before, by a gated recurrent network."""

    def __init__(self):
        super().__init__()
        self.letters, self.out = nn.Embedding(len(LETTERS), 16), nn.Linear(64, len(LETTERS))
        self.memory = nn.GRU(16, 64, batch_first=True)

    def forward(self, text):
        return self.out(self.memory(self.letters(text))[0]).transpose(1, 2)  # [batch, letters, places]


def surprise(model, texts):
    """The log-perplexity of each text's last four letters, given what comes before."""
    with torch.no_grad():
        chances = model(texts[:, :-1]).softmax(1).gather(1, texts[:, None, 1:])[:, 0]
    return auditing.log_perplexity(chances[:, -4:].numpy())


def exposure(model):
    surprises = surprise(model, encoded([f"{PREFIX}{code:04d}" for code in range(10_000)]))
    return auditing.exposure(surprises[int(SECRET)], np.delete(surprises, int(SECRET))), surprises


rng = np.random.default_rng(0)
text = encoded(
    [*sentences(600, rng), *[PREFIX + SECRET] * TIMES, *[f"{PREFIX}soon known" for _ in range(20)]]
)
torch.manual_seed(1)
plain = Writer()
optimizer = torch.optim.Adam(plain.parameters(), lr=0.01)
for _ in range(30):
    for part in torch.split(torch.randperm(len(text)), 64):
        optimizer.zero_grad()
        F.cross_entropy(plain(text[part, :-1]), text[part, 1:]).backward()
        optimizer.step()

public = Public(size=len(text))
settings = {"epsilon": 2, "delta": 1e-5, "batch": 128, "epochs": 10, "optimizer": learning.SGD(lr=1.0)}
trainer = learning.Trainer(Writer(), nn.CrossEntropyLoss(), public=public, **settings)
private = trainer(learning.Examples(text[:, :-1], text[:, 1:], public), entropy=Entropy()).value

found = {name: exposure(model) for name, model in (("without privacy", plain), ("with epsilon 2", private))}
with torch.no_grad():
    losses = [F.cross_entropy(model(text[:, :-1]), text[:, 1:]).item() for model in (plain, private)]
print(
    f"loss of a letter: {losses[0]:.2f} without privacy, {losses[1]:.2f} with it, "
    f"{np.log(len(LETTERS)):.2f} for guessing"
)
for name, (bits, surprises) in found.items():
    said = "whoever lists the codes reads it off" if bits.extracted else f"rank {bits.rank:,} of 10,000"
    least = f"log-perplexity {surprises[int(SECRET)]:.1f} bits, {np.median(surprises):.1f} in the middle"
    print(f"{name}: {least}; exposure {bits.bits:.1f} of {bits.max_bits:.1f} bits; {said}")

if len(sys.argv) > 1:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 3.6), layout="constrained", sharey=True)
    for axis, (name, (bits, surprises)) in zip(axes, found.items(), strict=True):
        axis.hist(surprises, bins=80, color="#b8c4ce")
        axis.axvline(surprises[int(SECRET)], color="#c0392b", lw=2, label="the secret")
        axis.set(title=f"{name}: {bits.bits:.1f} bits", xlabel="log-perplexity of a code", ylabel="codes")
        axis.legend(frameon=False)
    figure.savefig(sys.argv[1], dpi=150)
