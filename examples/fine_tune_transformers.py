"""BERT and GPT-2 of Hugging Face, fine-tuned privately in the manner of their own `Trainer`.

Run: pip install transformers, then python examples/fine_tune_transformers.py
"""

import sys
import tempfile

try:
    import transformers
except ImportError:
    print("this example needs a package that discreet does not: pip install transformers")
    print("it fine-tunes a tiny BERT and a tiny GPT-2, made up on the spot;")
    print("nothing was downloaded, read or trained.")
    sys.exit()

import torch

import discreet as dp
from discreet import learning

torch.manual_seed(0)
torch.set_num_threads(1)
transformers.logging.set_verbosity_error()

# Made-up reviews of 3 to 20 words, as a tokenizer leaves them; word 7 makes a reader happy, word 9 does not.
PEOPLE, WORDS, LENGTH = 2000, 100, 12
sizes = torch.randint(3, 21, (PEOPLE,)).tolist()
happy = torch.randint(0, 2, (PEOPLE,)).tolist()
reviews = []
for size, label in zip(sizes, happy, strict=True):
    ids = [7 if label else 9, *torch.randint(10, WORDS, (size - 1,)).tolist()]
    reviews.append({"input_ids": ids, "attention_mask": [1] * size, "labels": label})

public = dp.Public(table="reviews", size=PEOPLE)  # the number of people, as it is declared
args = {"per_device_train_batch_size": 200, "num_train_epochs": 3, "learning_rate": 5e-3, "warmup_steps": 5}

# 1. A classifier: every text is cut and padded to a declared length; the price is known before training.
config = transformers.BertConfig(
    vocab_size=WORDS, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
)
bert = learning.TransformersTrainer(
    transformers.BertForSequenceClassification(config),
    args,
    reviews,
    public=public,
    max_length=LENGTH,
    epsilon=8,
    delta=1e-5,
)
people = dp.open(bert.examples, budget=dp.Budget(epsilon=8, delta=1e-5), ledger=":memory:")
bert.train(people)
print(f"BERT: epsilon spent {people.spent:.2f} of 8")

folder = tempfile.mkdtemp()
bert.save_pretrained(folder)
again = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
with torch.no_grad():
    scores = again(input_ids=torch.tensor([[7, 20, 30], [9, 20, 30]])).logits
print(f"loaded again; a happy and an unhappy review score {scores[:, 1].round(decimals=2).tolist()}")

# 2. A language model on the same texts, without labels: the loss of a text is the mean over its own tokens.
texts = [{name: row[name] for name in ("input_ids", "attention_mask")} for row in reviews]
config = transformers.GPT2Config(
    vocab_size=WORDS, n_embd=32, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
)
gpt2 = learning.TransformersTrainer(
    transformers.GPT2LMHeadModel(config),
    args | {"gradient_checkpointing": True, "num_train_epochs": 1},
    texts,
    public=public,
    max_length=LENGTH,
    noise_multiplier=1.0,
)
gpt2.train()
print(f"GPT-2: epsilon {dp.accounting.epsilon(gpt2.event, delta=1e-5):.2f} at delta 1e-5")
print(f"what was trained is a {type(gpt2.model).__name__}, as its library has it")
