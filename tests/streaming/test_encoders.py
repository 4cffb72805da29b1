"""What a unit moves is what the noise is priced for, whatever the pattern of its participations; and noise that is
zero leaves exact sums."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

from discreet.mechanisms.matrix.triangular import Dense, Toeplitz
from discreet.mechanisms.protocols import Sensitivity
from discreet.streaming import NAMES, named
from discreet.streaming.encoders import Encoder, encoder

STEPS = 7
ONE = Sensitivity(linf=1)


def measured(part: Encoder, stream: Any) -> Any:
    """All measurements of a stream, without noise, through states as they are stored."""
    state, rows = part.begin(stream.shape[1]), []
    for t, x in enumerate(stream, 1):
        state, now = part.encode(json.loads(json.dumps(state)), x, t)
        rows += [np.asarray(r, dtype=object) for r in now]
    return np.concatenate(rows)


def patterns(times: int, separation: int) -> list[tuple[int, ...]]:
    chosen = itertools.chain.from_iterable(
        itertools.combinations(range(STEPS), k) for k in range(1, times + 1)
    )
    return [p for p in chosen if all(b - a >= separation for a, b in itertools.pairwise(p))]


def largest(part: Encoder, times: int, separation: int, seed: int = 1) -> tuple[int, int, int]:
    """The largest l1, squared l2 and l-infinity distance over all patterns and signs, on a stream of many rows."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 1000, (STEPS, 1))
    before = measured(part, base)
    worst = [0, 0, 0]
    for pattern in patterns(times, separation):
        for signs in itertools.product((1, -1), repeat=len(pattern)):
            other = base.copy()
            other[list(pattern), 0] += signs
            d = [abs(int(v)) for v in measured(part, other) - before]
            norms = (sum(d), sum(v * v for v in d), max(d))
            worst = [max(a, b) for a, b in zip(worst, norms, strict=True)]
    return worst[0], worst[1], worst[2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("times", "separation"), [(1, 1), (2, 1), (2, 3), (3, 2)])
def test_no_pattern_of_participations_moves_more_than_is_priced(
    name: str, times: int, separation: int
) -> None:
    part = encoder(named(name, STEPS), STEPS)
    moved = part.sensitivity(times, separation, ONE)
    l1, l2, linf = largest(part, times, separation)
    assert l1 <= (moved.l1 or 0)
    assert l2 <= (moved.l2_squared or 0)
    assert linf <= moved.linf
    # It is the truth, nearly, for one participation.
    if times == 1:
        assert (moved.l2_squared or 0) <= 1.001 * l2
        assert (moved.l1 or 0) <= 1.01 * l1


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("times", "separation"), [(1, 1), (2, 1), (2, 3), (4, 2)])
def test_no_unit_that_changes_other_entries_at_every_step_moves_more_than_is_priced(
    name: str, times: int, separation: int
) -> None:
    """All four norms, on random pairs of streams of vectors: a unit may be in another group at each step. `l0`
    was that of a unit in one group. Every pair must hold, so that no false alarm is possible."""
    part, width, rng = encoder(named(name, STEPS), STEPS), 4, np.random.default_rng()
    step = Sensitivity(linf=2, l0=2)
    moved = part.sensitivity(times, separation, step)
    possible = patterns(times, separation)
    for _ in range(40):
        base = rng.integers(0, 1000, (STEPS, width))
        other = base.copy()
        for t in possible[rng.integers(len(possible))]:
            other[t, rng.choice(width, 2, replace=False)] += rng.integers(-2, 3, 2)
        d = [abs(int(v)) for v in measured(part, other) - measured(part, base)]
        norms = {
            "l0": sum(v > 0 for v in d),
            "l1": sum(d),
            "l2_squared": sum(v * v for v in d),
            "linf": max(d),
        }
        assert [name for name, norm in norms.items() if norm > getattr(moved, name)] == []


@pytest.mark.parametrize("name", ["tree", "blt", "square_root"])
def test_a_sensitivity_that_forgets_the_second_participation_is_noticed(name: str) -> None:
    part = encoder(named(name, STEPS), STEPS)
    assert largest(part, 2, 1)[1] > (part.sensitivity(1, 1, ONE).l2_squared or 0)


def test_rounding_of_buffers_adds_to_what_is_moved_and_is_counted() -> None:
    part = encoder(named("blt", STEPS), STEPS)
    ideal = part.scale**2 * float(np.square(part.diagonals()).sum())  # type: ignore[attr-defined]
    assert ideal < (part.sensitivity(1, 1, ONE).l2_squared or 0) <= ideal * (1 + 1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("steps", [1, 2, 7, 20])
def test_without_noise_the_sums_are_exact(name: str, steps: int) -> None:
    part = encoder(named(name, steps), steps)
    stream = np.random.default_rng(2).integers(0, 10**6, (steps, 3))
    state = part.begin(3)
    for t, x in enumerate(stream, 1):
        state, rows = part.encode(json.loads(json.dumps(state)), x, t)
        state, total = part.decode(state, rows, t)
        assert np.allclose(total, stream[:t].sum(axis=0), rtol=0, atol=0.01)


@pytest.mark.parametrize("name", NAMES)
def test_the_predicted_variance_is_that_of_the_decoder(name: str) -> None:
    """The decoder is linear in the measurements: unit vectors give its matrix."""
    steps = 11
    part = encoder(named(name, steps), steps)
    counts = [
        len(part.encode(part.begin(1), np.zeros(1, int), t)[1]) if name in ("tree", "honaker") else 1
        for t in range(1, steps + 1)
    ]
    total = sum(counts)
    columns = []
    for k in range(total):
        state, at, out = part.begin(1), 0, []
        for t in range(1, steps + 1):
            rows = [np.array([part.scale if at + i == k else 0], dtype=object) for i in range(counts[t - 1])]
            at += counts[t - 1]
            state, estimate = part.decode(state, rows, t)
            out.append(float(estimate[0]))
        columns.append(out)
    variances = np.square(np.array(columns)).sum(axis=0) / part.scale**2
    assert np.allclose(variances, part.variances(), rtol=1e-5)


def test_states_are_small_where_they_should_be() -> None:
    for name, most in (("tree", 2 * 21), ("honaker", 2 * 21), ("blt", 2 * 4 + 1), ("fresh", 1)):
        part = encoder(named(name, 1 << 20), 1 << 20)
        state = part.begin(1)
        for t in range(1, 40):
            state, rows = part.encode(state, np.ones(1, int), t)
            state, _ = part.decode(state, rows, t)
        numbers = json.dumps(state).count(",") + 1
        assert numbers <= most + 4, name


def test_strategies_of_other_kinds_keep_their_bands() -> None:
    part = encoder(Toeplitz(coefficients=(1.0, 0.5, 0.25)), 9)
    state = part.begin(1)
    for t in range(1, 9):
        state, _ = part.encode(state, np.ones(1, int), t)
    assert len(state["secret"]) == 2
    assert isinstance(named("optimal", 4), Dense)


def test_the_l1_norm_of_a_long_column_is_not_rounded_down() -> None:
    """Odd integers that add up beyond 2**53, where a float holds every other one."""
    coefficients = (2.0**20, *[(2**40 - 1) / 2**20] * 16383)
    part = encoder(Toeplitz(coefficients=coefficients), len(coefficients))
    assert part.sensitivity(1, 1, ONE).l1 == 2**40 + 16383 * (2**40 - 1)
