"""A private model of a table: charged before it is trained, stopped in the middle, resumed for nothing.

Run: python examples/train_and_resume.py
"""

import contextlib
import tempfile
from pathlib import Path

import numpy as np

import discreet as dp
from discreet import learning

rng = np.random.default_rng(0)
age, ward = rng.uniform(0, 100, 4000), rng.choice(["east", "west"], 4000)
ill = rng.uniform(size=4000) < np.where(ward == "east", age / 100, 0.3)

folder = Path(tempfile.mkdtemp())
people = dp.open(
    {"age": age, "ward": ward, "ill": ill},
    unit=dp.rows(),
    schema={"age": dp.Bounds(0, 100), "ward": dp.Categories(["east", "west"]), "ill": dp.Boolean()},
    size=4000,  # declared: under add_remove the number of people is private
    budget=dp.Budget(epsilon=4, delta=1e-6),
    ledger=folder / "people.ledger",
)

# In one go: what scikit-learn would read off the data comes from the schema.
model = people.fit(learning.DPClassifier(epsilon=1, hidden=[8], batch=400, epochs=5), target="ill")
chances = model.predict_proba({"age": [10.0, 90.0, 90.0], "ward": ["east", "east", "west"]})[:, 1]
print(f"ill, of a child and of an old person in the east, of one in the west: {chances.round(2)}")
print(f"spent {people.spent:.3g} of 4\n")

# The same, stopped after 25 steps: the run goes on from its last checkpoint, with the steps that are left.
estimator = learning.DPClassifier(epsilon=1, hidden=[8], batch=400, epochs=5)
trainer = estimator.mechanism(people.public, target="ill", delta=1e-6)


def stop(progress: learning.Progress) -> None:
    if progress.step == 25:
        raise KeyboardInterrupt


with contextlib.suppress(KeyboardInterrupt):
    people.train(trainer, checkpoint=folder / "run.ckpt", every=20, progress=stop)
old = (folder / "run.ckpt").read_bytes()
assert trainer.length > 25, "it was stopped before its end"
print(f"stopped at step 25 of {trainer.length}; spent {people.spent:.3g}")
model = estimator.adopt(people.resume(trainer, folder / "run.ckpt"), trainer)
print(f"resumed from step 20, without the segment that was lost; spent {people.spent:.3g}")

(folder / "run.ckpt").write_bytes(old)
try:
    people.resume(trainer, folder / "run.ckpt")
except dp.LedgerError as refusal:
    print(f"refused: {refusal}")
print(f"the ledger: {people.ledger.anchor.seq} entries, problems: {people.curator.verify()}")
