"""A competition on labels that stay private: a board that cannot be climbed by luck.

Run: python examples/leaderboard.py
"""

import numpy as np

import discreet as dp
from discreet.adaptive import ShakyLadder
from discreet.leaderboard import Leaderboard

ROWS, TRIES = 4000, 200
random = np.random.default_rng(0)
truth = random.integers(0, 2, ROWS)  # nobody but the board sees these
names = np.array(["cat", "dog"])

holdout = dp.open(
    {"row": np.arange(ROWS), "label": names[truth]},
    table="holdout",
    unit=dp.rows(),
    schema={"row": dp.Bounds(0, ROWS - 1), "label": dp.Categories(["cat", "dog"])},
    neighbors="replace",  # how many images there are is known to everybody who takes part
    size=ROWS,
    budget=dp.Budget(epsilon=2, delta=1e-6),
    ledger=":memory:",
)
board = Leaderboard.open(
    holdout.curator,
    ShakyLadder(
        public=holdout.public, target="label", id="row", epsilon=1, delta=5e-7, step=0.05, submissions=TRIES
    ),
)
print(f"paid once, for the whole competition: epsilon {holdout.spent:.3g}")


def submission(right: float) -> np.ndarray:
    """Predictions that are right with this chance."""
    return np.where(random.random(ROWS) < right, truth, 1 - truth)


def submitted(team: str, guesses: np.ndarray) -> float:
    return board.submit(team, dict(enumerate(names[guesses].tolist()))).score


# An honest team gets better, and sees it.
for right in (0.6, 0.75, 0.9):
    score = submitted("team blue", submission(right))
    print(f"team blue, right about {right:.0%}: the board says {score:.3f}")

# A team without any model submits coins, and keeps what the board calls better: boosting against the board.
# On a board that shows exact scores, the majority of lucky coins looks far better than a coin.
coins = random.integers(0, 2, (TRIES - 10, ROWS))
exact = (coins == truth).mean(axis=1)
lucky = (coins[exact > 0.5].mean(axis=0) > 0.5).astype(int)
print(f"\nboosted against exact scores: {np.mean(lucky == truth):.3f} on these labels, 0.5 on any others")
shown = [submitted("team luck", coin) for coin in coins[:20]]
print(f"the board shows the same for 20 of these coins: {len(set(shown)) == 1} ({shown[0]:.3f}, the best)")
best = max(board.standings(), key=lambda standing: standing[1].score)
print(f"leader: {best[0]} with {best[1].score:.3f}; spent in the end: {holdout.spent:.3g}")
