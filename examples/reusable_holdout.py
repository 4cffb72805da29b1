"""Choose a model with the help of a holdout, and still believe what it says.

Run: python examples/reusable_holdout.py
"""

import numpy as np

import discreet as dp
from discreet.adaptive import Check, Thresholdout
from discreet.mechanisms import Sensitivity, Trusted
from discreet.tables import Memory

N, D = 10_000, 2_000
random = np.random.default_rng(1)
names = [f"x{i}" for i in range(D)]


def people() -> tuple[
    np.ndarray, np.ndarray
]:  # attributes and classes are coins: nothing can be learned, the truth is 0.5
    return random.integers(0, 2, (N, D), dtype=np.int8), random.integers(0, 2, N, dtype=np.int8)


def right(
    X: np.ndarray, y: np.ndarray
) -> np.ndarray:  # how often each attribute, taken as a prediction, is right
    return (y[:, None] == X).sum(axis=0)


class Vote:
    """Attributes vote, each as it is or turned round.

    Any estimator with `predict` will do, those of scikit-learn too.
    """

    def __init__(self, chosen: np.ndarray, turned: np.ndarray) -> None:
        self.chosen, self.turned = chosen, turned

    def predict(self, X: np.ndarray) -> np.ndarray:
        return ((np.asarray(X)[:, self.chosen] != self.turned[self.chosen]).mean(axis=1) > 0.5).astype(int)


(X, y), (kept, classes), (fresh, truth) = (
    people(),
    people(),
    people(),
)  # the training part is public; the holdout is not
seen = right(X, y) / N
turned = seen < 0.5


def choose(told: np.ndarray) -> Vote:  # what looks good on the training part and on the holdout alike
    return Vote(np.flatnonzero((seen < 0.5) == (told < 0.5)), turned)


plain = choose(right(kept, classes) / N)
promised = (plain.predict(kept) == classes).mean()
print(
    f"plain holdout:    promises {promised:.3f}, fresh people say "
    f"{(plain.predict(fresh) == truth).mean():.3f}"
)

public = dp.Public(schema={"y": dp.Categories([0, 1])}, neighbors=dp.REPLACE, size=N, table="holdout")
table = Memory({**{name: kept[:, i] for i, name in enumerate(names)}, "y": classes}, public)
session = dp.open(table, budget=dp.Budget(epsilon=3, delta=1e-6), ledger=":memory:")
holdout = session.start(Thresholdout.approximate(public, epsilon=2, delta=5e-7, budget=60, threshold=0.08))


def parts(source):  # the holdout as arrays: attributes and classes of one batch after another
    for batch in source.batches([*names, "y"]):
        rows = np.column_stack([column.to_numpy() for column in batch.columns])
        yield rows[:, :-1], rows[:, -1]


def counts(source) -> np.ndarray:
    return sum(right(X, y) for X, y in parts(source))


asked = Trusted(function=counts, claimed=Sensitivity(linf=1, l0=D), entries=D)
answer = holdout.answer(
    Check(statistic=asked, training=tuple(seen.tolist()))
).value  # 2,000 questions in one go
reusable = choose(np.array(answer.value))


def voted(source) -> int:  # how many people the vote gets right: one person moves it by 1 at most
    return sum(int((reusable.predict(X) == y).sum()) for X, y in parts(source))


last = Trusted(function=voted, claimed=Sensitivity(linf=1))
promised = holdout.answer(Check(statistic=last, training=(reusable.predict(X) == y).mean())).value.value
print(
    f"reusable holdout: promises {promised:.3f}, fresh people say "
    f"{(reusable.predict(fresh) == truth).mean():.3f}"
)
print(
    f"paid at the start: epsilon {session.spent:.2f}; {answer.left} of 60 findings were left for the "
    f"last question"
)
