"""Attacks that are given what they cannot use say so, by the name of the argument, and never pass something
as safe instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from discreet import auditing
from discreet._errors import InvalidInput

from ..loops import for_each

TABLE = {"zip": ["1", "1", "2"], "age": [1, 2, 3], "ill": ["flu", "flu", "gout"]}
RATINGS = auditing.made_up_ratings(20, 30, seed=1)
LOSSES = np.ones((4, 2))
HALF = [True, True, False, False]
CASES: dict[str, tuple[str, Callable[[], Any]]] = {
    "columns as one word": ("must be a list", lambda: auditing.k_anonymity(TABLE, "zip")),
    "the same, for a class": ("must be a list", lambda: auditing.homogeneity(TABLE, "zip", "ill")),
    "the same, for an anonymizer": ("must be a list", lambda: auditing.mondrian(TABLE, "age", 2)),
    "words as losses": ("members must be numbers", lambda: auditing.by_loss(["high"], [1.0])),
    "a confidence of 2": ("between 0 and 1", lambda: auditing.logit_scaled([0.5, 2.0])),
    "a confidence that is NaN": ("between 0 and 1", lambda: auditing.logit_scaled([np.nan])),
    "a shadow asked about its half only": (
        "about all 40 examples",
        lambda: auditing.train_shadows(np.zeros_like, 40),
    ),
    "a shadow that answers in words": (
        "scores must be numbers",
        lambda: auditing.train_shadows(lambda _: "high", 40),
    ),
    "a score that is NaN": ("some are NaN", lambda: auditing.audit_one_run([np.nan, 1.0], [True, False])),
    "answers in words": ("answers must be numbers", lambda: auditing.reconstruct(lambda group: "many", 20)),
    "no answers": ("one finite number", lambda: auditing.reconstruct(lambda group: float("nan"), 20)),
    "a user who is not there": ("users are 0 to 19", lambda: auditing.side_knowledge(RATINGS, 20)),
    "nothing known": ("items", lambda: auditing.side_knowledge(RATINGS, 1, items=0)),
    "a hidden value that is none": (
        "truth",
        lambda: auditing.attribute_inference(LOSSES, [0, 1, 2, 0], HALF),
    ),
    "three truths for four": ("truth", lambda: auditing.attribute_inference(LOSSES, [0, 1, 1], HALF)),
    "no labels": ("runs", lambda: auditing.epsilon_of_labels([], [])),
    "a level of 2": ("level", lambda: auditing.epsilon_of_labels(["a"] * 9, ["b"] * 9, level=2)),
    "the last bits of words": (
        "look at numbers",
        lambda: auditing.precision_attack(lambda x: "a", 1.0, 0.0, claim=1.0),
    ),
    "the last bits of nothing": (
        "look at numbers",
        lambda: auditing.floating_point_attack(lambda x: [], 1.0, 0.0, scale=1, claim=1.0),
    ),
    "a column named as one of ours": (
        "'__N' has a name",
        lambda: auditing.t_closeness({"__N": [1, 1, 2], "ill": TABLE["ill"]}, ["__N"], "ill"),
    ),
    "no columns to generalize": ("identifiers", lambda: auditing.mondrian(TABLE, [], 1)),
    "a class below 0": ("0 to 2", lambda: auditing.margins([[1.0, 2.0, 3.0]], [-1])),
    "a class that is none": ("0 to 2", lambda: auditing.margins([[1.0, 2.0, 3.0]], [3])),
    "a confidence of 2 in one run": (
        "got 2",
        lambda: auditing.audit_one_run([1.0, 2.0], [True, False], confidence=2),
    ),
    "a claim for one run": (
        "no option 'claim'",
        lambda: auditing.audit_one_run([1.0, 2.0], [True, False], claim=1.0),
    ),
    "coins that are no coins": (
        "True or False",
        lambda: auditing.audit_one_run([1.0, 2.0], [0.2, 1.0]),
    ),
    "coins in words": (
        "included must be numbers",
        lambda: auditing.audit_one_run([1.0, 2.0], ["in", "out"]),
    ),
    "one score for all": ("two lists", lambda: auditing.audit_one_run(1.0, [True, False])),
}


@for_each("name", CASES)
def test_it_is_refused_by_name(name: str) -> None:
    word, call = CASES[name]
    with pytest.raises(InvalidInput, match=word):
        call()


def test_a_shadow_may_answer_at_once_or_through_a_function() -> None:
    at_once = auditing.train_shadows(
        lambda chosen: np.isin(np.arange(40), chosen).astype(float), 40, models=4, seed=1
    )
    later = auditing.train_shadows(
        lambda chosen: lambda: np.isin(np.arange(40), chosen).astype(float), 40, models=4, seed=1
    )
    assert np.array_equal(at_once.scores, later.scores)
    assert np.array_equal(at_once.scores[:, :, 0] == 1, at_once.included)
