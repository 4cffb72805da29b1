"""Federated averaging across simulated clients at user level, each with its price: DP-FedSGD (one gradient a
round), DP-FedAvg (local epochs, sampled clients) and DP-FTRL (local epochs, correlated noise, every client
once a pass)."""

import numpy as np
import torch

from discreet import Public, Unit, accounting, learning
from discreet.sampling import Entropy

rng = np.random.default_rng(1)
CLIENTS, ROWS = 600, 5
truth = rng.normal(size=8)
x = rng.normal(size=(CLIENTS * ROWS, 8)).astype(np.float32)
y = (x @ truth + 0.3 * rng.normal(size=len(x)) > 0).astype(np.int64)
client = np.repeat(np.arange(CLIENTS), ROWS)
public = Public(table="phones", unit=Unit("client", rows=ROWS), size=CLIENTS)
data = learning.Examples(torch.tensor(x), torch.tensor(y), public, people=torch.tensor(client))

# A client sends how far local training has moved the model, no further than the clip; the server adds it up.
local = learning.LocalSGD(epochs=3, batch=5, lr=0.5)
average = {"local": local, "optimizer": learning.SGD(lr=1.0)}
gradient = {"optimizer": learning.SGD(lr=0.5)}
terms = {"epsilon": 4, "delta": 1e-5, "clip": 1.0, "batch": 60, "epochs": 2}

for name, how in (
    ("DP-FedSGD, sampled clients", gradient | {"sampling": "poisson"}),
    ("DP-FedAvg, 3 local epochs, sampled clients", average | {"sampling": "poisson"}),
    ("DP-FTRL, 3 local epochs, four buffers", average | {"sampling": "cyclic", "strategy": "blt"}),
):
    model = torch.nn.Linear(8, 2)
    torch.nn.init.zeros_(model.weight)
    trainer = learning.Trainer(model, "cross_entropy", public=public, **terms, **how)
    trained = trainer(data, entropy=Entropy()).value
    right = float((trained(torch.tensor(x)).argmax(1).numpy() == y).mean())
    price = accounting.epsilon(trainer.event, delta=1e-5)
    rounds = trainer.schedule.steps
    print(
        f"{name}: accuracy {right:.3f} after {rounds} rounds, epsilon {price:.2f} for a client with all rows"
    )
