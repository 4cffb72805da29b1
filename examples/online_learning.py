"""A learner that never stops: a decision before each round, paid once, with its regret beside the bound and
beside the leader that sees everything."""

import numpy as np

import discreet as dp
from discreet import streaming

rng = np.random.default_rng(1)
ROUNDS, EACH = 60, 50
truth = np.array([0.6, -0.4])

people = dp.open(
    {"x": [0.0], "z": [0.0], "y": [0.0]},
    table="sales",
    schema={"x": dp.Bounds(-1, 1), "z": dp.Bounds(-1, 1), "y": dp.Bounds(-1, 1)},
    unit=dp.rows(),
    budget=dp.Budget(epsilon=4, delta=1e-6),
    ledger=":memory:",
)
loss = streaming.SquaredLoss(target="y", features=("x", "z"), intercept=False)
terms = {"horizon": ROUNDS, "batch": EACH, "clip": 1, "learner": "leader", "parameter": 0.3}

# What it costs and how much it may lose is known before: this is free.
expected = streaming.learner(people.public, loss, epsilon=2, delta=1e-7, **terms)
print(f"regret over {ROUNDS} rounds is expected to be below {expected.regret_bound():.1f}")

live = people.online(loss, epsilon=2, **terms)
print(f"paid once: epsilon {people.spent:.3g}, {people.remaining:.3g} left")

lost, inputs, outputs = 0.0, [], []
for _ in range(ROUNDS):
    x = rng.uniform(-1, 1, (EACH, 2))
    y = np.clip(x @ truth + 0.1 * rng.normal(size=EACH), -1, 1)
    lost += float(np.mean((x @ live.decision - y) ** 2) / 2)
    live.feed({"x": x[:, 0], "z": x[:, 1], "y": y})
    inputs.append(x)
    outputs.append(y)

x, y = np.concatenate(inputs), np.concatenate(outputs)
best = np.linalg.lstsq(x, y, rcond=None)[0]
without = float(np.sum((x @ best - y) ** 2) / 2 / EACH)
print(f"decision {np.round(live.decision, 2)}, of the best in hindsight {np.round(best, 2)}")
print(f"regret {streaming.regret(lost, without):.2f}; the ledger is whole: {people.curator.verify() == []}")
