"""Label public inputs with teachers on private data, and train a student for everybody (PATE).

Run it with `python examples/pate_labels.py`. The data are made up: three kinds of patients, by two measures.
"""

from __future__ import annotations

import numpy as np
from sklearn.linear_model import LogisticRegression

import discreet as dp
from discreet import learning
from discreet.learning.pate import Student, typical_examples

CENTERS = np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0]])


def patients(number: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    kind = rng.integers(0, 3, number)
    return (CENTERS[kind] + rng.normal(size=(number, 2))).astype(np.float32), kind


def main() -> None:
    private, kinds = patients(5000, seed=1)
    public, _ = patients(1000, seed=2)  # nobody knows their kinds
    people = dp.open(
        learning.Examples(private, kinds, dp.Public(table="patients")),
        budget=dp.Budget(epsilon=2, delta=1e-5),
        ledger=":memory:",
    )
    # All is paid here: 100 teachers on disjoint parts, and 40 answers.
    labeller = people.teach(
        LogisticRegression(), teachers=100, classes=3, epsilon=2, delta=1e-5, queries=40, workers=1
    )
    asked = typical_examples(public, 40)
    labels = np.full(len(public), -1)
    labels[asked] = labeller.label(public[asked])
    print(labeller.report())
    # What follows costs nothing: labels are spread to all public inputs, and a student learns from these.
    test, truth = patients(2000, seed=3)
    for name, semi in (("supervised", False), ("semi-supervised", True)):
        student = Student(3, semi=semi, reduce=None).fit(public, labels)
        print(f"student, {name}: {student.score(test, truth):.1%} right")


if __name__ == "__main__":
    main()
