"""Behavior is frozen: end-to-end stories do what they did. README.md says when which file is written anew."""

from __future__ import annotations

import re
from fractions import Fraction
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest

from discreet import _registry, accounting, sampling
from discreet.mechanisms import IntegerLaplace

from . import files
from .pricing import ACCOUNTANTS, EVENTS
from .stage import Stage, differences, normalized, play
from .stories import STORIES

pytest.importorskip("torch")
pytest.importorskip("sklearn")
pytest.importorskip("fastapi")

# What these packages write or compute is part of layer B, and of the OpenAPI document.
WRITERS = ("duckdb", "fastapi", "numpy", "pydantic", "rich", "scikit-learn", "scipy", "torch", "typer")


def other_versions() -> list[str]:
    """The writers that are installed in another version than `make test` has (as in `make test-newest`)."""
    pinned = (Path(__file__).parents[2] / "constraints.txt").read_text()
    wanted = dict(re.findall(r"^([\w.-]+)==([\w.]+)", pinned, re.MULTILINE))
    installed = {name: version(name).partition("+")[0] for name in WRITERS}
    return [f"{name} {found}" for name, found in installed.items() if found != wanted[name]]


needs_these_versions = pytest.mark.skipif(
    bool(other_versions()), reason=f"written with the versions of constraints.txt, not {other_versions()}"
)
WITHOUT_NOISE = [
    pytest.param(name, marks=needs_these_versions if name == "http_document" else ()) for name in STORIES
]


@pytest.mark.parametrize("name", WITHOUT_NOISE)
def test_a_story_without_noise_is_what_was_decided(name):
    """Layer A: written anew only by a decision (`python -m tests.frozen --decided`)."""
    found = files.layer_a(name, play(STORIES[name], noise=False))
    assert not found, "\n".join(found[:40])


@needs_these_versions
@pytest.mark.parametrize("name", STORIES)
def test_a_story_with_noise_repeats_itself_and_says_what_it_said(name):
    """Layer B and messages: written anew in commits that do nothing else (`python -m tests.frozen`)."""
    found = files.layer_b(name, play(STORIES[name], noise=True))
    assert not found, "\n".join(found[:60])


@pytest.mark.parametrize("layer", ["a", "b", "messages"])
def test_every_file_is_of_a_story(layer):
    assert {path.stem for path in (files.HERE / layer).iterdir()} <= set(STORIES)


def test_every_event_and_every_accountant_is_in_the_table_of_prices():
    written = str([event.to_json() for event in EVENTS.values()])
    for tag, cls in _registry.registered().items():
        if isinstance(cls, type) and issubclass(cls, accounting.Event):
            assert f"'{tag}'" in written, tag
    from discreet.accounting.pricing import ACCOUNTANTS as known

    assert {*known, "tightest"} == set(ACCOUNTANTS)


def test_noise_that_is_off_is_on_again_after_a_story():
    def story(stage: Stage) -> None:
        noise = IntegerLaplace(scale=Fraction(10**9), sensitivity=1)
        entropy = sampling.Entropy()
        assert entropy.private
        stage.exactly(drawn=noise(np.zeros(3, np.int64), entropy=entropy))

    off, on, again = (play(story, noise=noise).facts["drawn"] for noise in (False, True, True))
    assert off == [0, 0, 0]
    # three zeros at this scale: 1e-28
    assert on == again != off
    # as many bits as a key has: outside of a story streams do not repeat themselves
    assert sampling.Entropy().bytes(32) != sampling.Entropy().bytes(32)


def test_a_difference_is_named_by_its_path_and_prices_may_only_fall():
    old = {"rows": [[1, "a"]], "prices": {"n": 1.0, "m": "inf"}, "gone": 1}
    assert differences(old, {"rows": [[2, "a"]], "prices": old["prices"], "gone": 1}) == [
        "/rows/0/0: 1 became 2"
    ]
    assert differences(old, {**old, "prices": {"n": 0.5, "m": 3.0}}) == []
    assert differences(old, {**old, "prices": {"n": 1.00009, "m": "inf"}}) == []
    assert differences(old, {**old, "prices": {"n": 1.0002, "m": "inf"}}) == ["/prices/n: 1.0 became 1.0002"]
    assert differences(old, {**old, "prices": {"n": "unsupported", "m": "inf"}}) != []
    fewer = {name: old[name] for name in ("rows", "prices")}
    assert differences(old, fewer) == ["/gone: 1 is gone"]
    assert differences(fewer, old) == ["/gone: 1 is new"]
    assert differences({"n": 1}, {"n": True}) == ["/n: 1 became true"]
    long, other = "SELECT " + "x + " * 100 + "1", "SELECT " + "x + " * 100 + "2"
    (line,) = differences({"sql": long}, {"sql": other})
    assert line.endswith('x + x + 2"')
    assert len(line) < 110


def test_what_is_new_in_every_run_is_taken_out():
    entry = {"time": "2026-11-18T10:15:45.293+00:00", "hash": "2ff6781f06d464bf0174e60849dec1a3", "n": 1 / 3}
    assert normalized(entry) == {"time": "<time>", "hash": "<hex>", "n": 0.333333333}
    assert normalized({"fraction": "1/3"}) == {"fraction": "1/3"}
    # a long number is none of them
    assert normalized("5.9604644775390625e-08") == "5.9604644775390625e-08"
    assert normalized("in /tmp/x/people.csv", folder="/tmp/x") == "in <folder>/people.csv"
