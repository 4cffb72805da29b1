"""Digits by PATE: teachers on disjoint parts of the images vote, a student learns from what they say.

Run: python examples/mnist_pate.py [folder with mnist.npz]. Without a folder it takes scikit-learn's 1,797
small digits, which come with that package: few images per teacher, so that labels cost more there.
"""

import os
import sys
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import discreet as dp
from discreet import learning
from discreet.learning.pate import Student, typical_examples


def halved(x: np.ndarray) -> np.ndarray:
    """14 x 14 pixels are enough for a straight line, and quick."""
    return x.reshape(-1, 14, 2, 14, 2).mean((2, 4)).reshape(len(x), -1).astype(np.float32) / 255


def images(folder: str | None) -> tuple[np.ndarray, ...]:
    """Private images with their digits; then others, half for the student, half for the test."""
    if folder:
        data = np.load(Path(folder) / "mnist.npz")
        return (
            halved(data["x_train"]),
            data["y_train"].astype(int),
            halved(data["x_test"]),
            data["y_test"].astype(int),
        )
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order]
    return x[:1200], y[:1200], x[1200:], y[1200:]


folder = (
    sys.argv[1] if len(sys.argv) > 1 and "ipykernel" not in sys.modules else os.environ.get("DISCREET_DATA")
)
x, y, others, truth = images(folder)
large = len(x) > 10_000
half = len(others) // 2
public, test, expected = others[:half], others[half:], truth[half:]

epsilon, teachers, queries = (2, 250, 200) if large else (8, 40, 60)
people = dp.open(
    learning.Examples(x, y, dp.Public(table="digits")),
    budget=dp.Budget(epsilon=10, delta=2e-5),
    ledger=":memory:",
)
# All is paid here: the teachers, and so many answers.
labeller = people.teach(
    LogisticRegression(max_iter=200), teachers=teachers, classes=10, queries=queries, epsilon=epsilon,
    delta=1e-5, workers=1,
)  # fmt: skip
print(f"{teachers} teachers on {len(x):,} images, {len(x) // teachers} each; {queries} answers")
asked = typical_examples(public, queries)
labels = np.full(len(public), -1)
labels[asked] = labeller.label(public[asked])
agree = np.mean(labels[asked] == truth[:half][asked])
print(f"the noisy majority is right about {agree:.1%} of the {queries} images it was asked about")

# The student is everybody's: it has seen public images and what the votes said of some, nothing else.
for name, semi in (("labelled images only", False), ("and what is like them", True)):
    student = Student(10, semi=semi, reduce=None).fit(public, labels)
    print(f"student, {name}: {student.score(test, expected):.1%} of unseen digits right")
print(f"spent {people.spent:.3g} of 10, however often the student is asked")
