"""A transformer of Hugging Face, fine-tuned by LoRA with a price on it.

Run: pip install transformers peft, then python examples/fine_tune_lora.py
"""

import sys

try:
    from peft import LoraConfig, get_peft_model
    from transformers import BertConfig, BertForSequenceClassification
except ImportError as missing:
    print(
        f"this example needs packages that discreet does not: pip install transformers peft "
        f"({missing.name} is missing)"
    )
    print("it fine-tunes a tiny BERT, made up on the spot, by LoRA;")
    print("nothing was downloaded, read or trained.")
    sys.exit()

import torch
from torch import nn

import discreet as dp
from discreet import learning

torch.manual_seed(0)
torch.set_num_threads(1)

# Made-up reviews of 12 words; word 7 makes a reader happy, word 9 does not.
words = torch.randint(10, 200, (2000, 12))
happy = torch.randint(0, 2, (2000,))
words[torch.arange(2000), torch.randint(0, 12, (2000,))] = torch.where(happy == 1, 7, 9)


class Scores(nn.Module):
    """The model's scores as a plain tensor, which is what a loss wants."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.inner(input_ids=ids).logits


base = BertForSequenceClassification(
    BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=2,
    )
)
lora = LoraConfig(
    r=8, lora_alpha=32, target_modules=["query", "value", "dense"], modules_to_save=["classifier"]
)
model = Scores(get_peft_model(base, lora))  # frozen but for the adapters and the classifier
learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
print(f"{learned:,} of {sum(p.numel() for p in model.parameters()):,} numbers are learned")
ways = learning.routes(model)
print(f"ways of clipping, for {len(ways)} parts: {sorted(set(ways.values()))}")

people = dp.open(
    learning.Examples(words[:1600], happy[:1600], dp.Public(table="reviews", size=1600)),
    budget=dp.Budget(epsilon=12, delta=1e-5),
    ledger=":memory:",
)
trainer = learning.Trainer(
    model, nn.CrossEntropyLoss(), public=people.public, epsilon=8, delta=1e-5, clip=1.0, batch=200, epochs=15,
    optimizer=learning.Adam(lr=5e-3, noise_aware=False),
)  # fmt: skip
print(
    f"price: epsilon 8 at delta 1e-05, {trainer.length} steps, noise {trainer.noise_multiplier:.2f} "
    f"times the clip"
)
tuned = people.train(trainer).value

with torch.no_grad():
    accuracy = (tuned(words[1600:]).argmax(1) == happy[1600:]).float().mean()
print(f"right about {accuracy:.0%} of reviews it has not seen (chance: 50%); spent {people.spent:.3g} of 12")
