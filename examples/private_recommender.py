"""A recommender that learns from everybody's tastes and tells on nobody's (McSherry & Mironov 2009).

Likes of films, one row per person. The second moments of all rows are released with noise, once; the rest,
what goes with what, is post-processing, and each person's own likes stay on their own device.

Run: python examples/private_recommender.py
"""

import numpy as np

import discreet as dp
from discreet import tabular

FILMS, PEOPLE, TASTES = 40, 20_000, 4
random = np.random.default_rng(0)

# Made up: four tastes; each film is for one of them, each person has mostly one.
kind = np.arange(FILMS) % TASTES
taste = random.integers(0, TASTES, PEOPLE)
fame = random.uniform(0.05, 0.3, FILMS)
likes = random.random((PEOPLE, FILMS)) < fame + 0.45 * (taste[:, None] == kind)
names = [f"film_{i}" for i in range(FILMS)]

films = dp.open(
    {name: np.where(likes[:, i], 1.0, -1.0) for i, name in enumerate(names)},
    table="likes",
    unit=dp.rows(),
    schema={name: dp.Bounds(-1, 1, nullable=False) for name in names},
    budget=dp.Budget(epsilon=2, delta=1e-6),
    ledger=":memory:",
)
print(f"{PEOPLE:,} people, {FILMS} films; left to spend: epsilon {films.remaining:g}")
model = films.fit(tabular.PCA(n_components=TASTES - 1, epsilon=1, delta=5e-7))
print(f"learned for epsilon {films.spent:.3g}; all that follows is free\n")

# On a device: of ten films somebody has rated, guess the rest from what goes together.
tests, rated = 500, 10
fresh_taste = random.integers(0, TASTES, tests)
fresh = random.random((tests, FILMS)) < fame + 0.45 * (fresh_taste[:, None] == kind)
hits = {"private model": [], "most liked films": [], "by chance": []}
for likes_of_one in fresh:
    seen = random.permutation(FILMS)[:rated]
    unseen = np.setdiff1d(np.arange(FILMS), seen)
    own = np.where(likes_of_one[seen], 1.0, -1.0) - model.mean_[seen]
    basis = model.components_[:, seen].T
    # Ridge regression of the known likes on the components, then the guess for all others.
    weight = np.linalg.solve(basis.T @ basis + 0.3 * np.eye(TASTES - 1), basis.T @ own)
    guess = model.mean_ + weight @ model.components_
    hits["private model"].append(likes_of_one[unseen[np.argsort(-guess[unseen])[:5]]].mean())
    hits["most liked films"].append(likes_of_one[unseen[np.argsort(-model.mean_[unseen])[:5]]].mean())
    hits["by chance"].append(likes_of_one[unseen].mean())
print("of five films recommended, people like:")
for name, shares in hits.items():
    print(f"  {name:18} {np.mean(shares):.0%}")
