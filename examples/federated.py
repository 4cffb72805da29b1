"""Averaging across simulated clients at user level: DP-FedAvg (independent noise, sampled clients) and
DP-FTRL (correlated noise, every client once a pass), each with its price."""

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

terms = {"epsilon": 4, "delta": 1e-5, "clip": 1.0, "batch": 60, "epochs": 6}
for name, how in (
    ("DP-FedAvg, sampled clients", {"sampling": "poisson"}),
    ("DP-FTRL, square root", {"sampling": "cyclic", "strategy": "square_root"}),
    ("DP-FTRL, four buffers", {"sampling": "cyclic", "strategy": "blt"}),
):
    model = torch.nn.Linear(8, 2)
    torch.nn.init.zeros_(model.weight)
    trainer = learning.Trainer(
        model, "cross_entropy", public=public, optimizer=learning.SGD(lr=0.5), **terms, **how
    )
    trained = trainer(data, entropy=Entropy()).value
    right = float((trained(torch.tensor(x)).argmax(1).numpy() == y).mean())
    price = accounting.epsilon(trainer.event, delta=1e-5)
    print(f"{name}: accuracy {right:.3f} at epsilon {price:.2f} for a client with all rows")
