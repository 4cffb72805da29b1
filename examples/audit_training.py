"""Is training as private as it says? One run with 10,000 canaries inside. Run: python
examples/audit_training.py"""

import numpy as np
from torch import nn

from discreet import accounting as acc
from discreet import auditing, learning
from discreet.sampling import Entropy

CANARIES, RATE, STEPS = 10_000, 0.1, 100


def family(noise):
    return acc.Gaussian(noise_multiplier=noise).sampled(RATE).repeated(STEPS)


# A model with one number for each canary, and a linear loss: an example's gradient is one coordinate, as long
# as the clip allows.
trainer = learning.Trainer(
    nn.Embedding(CANARIES, 1),
    lambda outputs, targets: outputs[:, 0] * targets,
    epsilon=4,
    delta=1e-5,
    clip=1,
    rate=RATE,
    batch=100,
    steps=STEPS,
    optimizer=learning.SGD(lr=1.0),
)

included = np.random.default_rng().random(CANARIES) < 0.5
members = np.flatnonzero(included)
examples = learning.Examples(members, np.full(len(members), 1000.0, np.float32))

sums = []
with trainer.start(examples, entropy=Entropy()) as run:
    before = run.model.weight.detach().numpy().ravel()
    while not run.done:
        run.step()
        after = run.model.weight.detach().numpy().ravel()
        sums.append(
            (before - after) * trainer.schedule.divisor
        )  # this step's noisy sum, in units of the clip
        before = after

noise = trainer.noise_multiplier
print(f"{STEPS} steps with {noise:.3g} times the clip as noise, {len(members):,} of {CANARIES:,} canaries in")
scores = auditing.step_scores(sums, noise_multiplier=noise, rate=RATE)
honest = auditing.audit_canaries(scores, included, family=family, noise_multiplier=noise, confidence=0.999)
print(f"the trainer, claiming {honest.claimed:.2f}: {honest}")

# The same run, sold as if its noise were twice as large:
lying = auditing.audit_canaries(scores, included, family=family, noise_multiplier=2 * noise, confidence=0.999)
print(f"a liar, claiming {lying.claimed:.2f}: {lying}")
