"""Noise on gradients: its law, its tails, and that no vector is given twice."""

from __future__ import annotations

import copy
import math
import os

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from discreet.learning.training import gradient_noise
from discreet.learning.training.gradient_noise import NoiseBuffer, fill_gaussian
from discreet.sampling import Entropy, EntropyStream, SeededEntropy

from .test_trainer import assert_normal


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_are_normal_with_the_stated_deviation(dtype: torch.dtype) -> None:
    draws = (
        fill_gaussian(torch.empty(200_001, dtype=dtype, device="cpu"), 3.0, SeededEntropy(1)).double().numpy()
        / 3
    )
    assert_normal(draws)
    half = len(draws) // 2
    assert_normal(
        (draws[:half] + draws[half : 2 * half]) / math.sqrt(2)
    )  # the two ends of a pair are independent
    for mutant in (draws * 1.05, draws + 0.03, np.clip(draws, -2, 2)):
        with pytest.raises(AssertionError):
            assert_normal(mutant)


def test_tails_are_those_of_a_gaussian() -> None:
    """Clopper-Pearson would do; Chernoff is simpler: 4 million draws, beyond 4 deviations 253 are expected;
    false alarm < 1e-9."""
    draws = fill_gaussian(torch.empty(4_000_000, device="cpu"), 1.0, SeededEntropy(2)).abs()
    expected = 4e6 * math.erfc(4 / math.sqrt(2))
    count = int((draws > 4).sum())
    assert abs(count - expected) <= 6.6 * math.sqrt(expected) + 15


class Same(Entropy):
    """The same word over and over."""

    def __init__(self, word: int) -> None:
        super().__init__()
        self._word = word

    def fill(self, out: np.ndarray) -> None:
        out.view(np.uint64)[:] = self._word


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_rarest_words_get_more_bits_and_stay_finite(dtype: torch.dtype) -> None:
    draws = fill_gaussian(torch.empty(501, dtype=dtype, device="cpu"), 1.0, Same(0))
    assert draws.isfinite().all()
    assert draws.abs().max() > 6.7, "beyond what 32 bits can give"


class Rarest(Same):
    """And the bits after it the rarest, too."""

    def integer(self, bits: int) -> int:
        return 1 << (bits - 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_tail_goes_on_to_where_it_is_said_to_end(dtype: torch.dtype) -> None:
    """U = 2**-84, whose square no float32 holds."""
    draws = fill_gaussian(torch.empty(2, dtype=dtype, device="cpu"), 1.0, Rarest(0))
    assert float(draws.norm()) == pytest.approx(math.sqrt(2 * 84 * math.log(2)), rel=1e-5)


def test_small_words_are_what_they_would_be_with_all_their_bits() -> None:
    """Sizes around the border at which more bits are tossed: |r| is sqrt(-2 ln U) with U = size 2**-31, up to
    the half that the toss may add."""
    for size in (1, 2, 3, 500, 1023, 1024, 1025, 70_000):
        for word in (size, 2**32 - size):
            radius = float(fill_gaussian(torch.empty(2, device="cpu"), 1.0, Same(word)).norm())
            low, high = (math.sqrt(-2 * math.log((size + half) * 2.0**-31)) for half in (0.5, -0.5))
            assert low * (1 - 1e-6) <= radius <= high * (1 + 1e-6), (size, word)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "word", [0, 2**64 - 1, 2**63 - 1, 2**31 - 1, 2**31, 0xFFFFFF80FFFFFF80, 0xFFFFFFFF00000000]
)
def test_no_word_gives_no_noise_at_all(dtype: torch.dtype, word: int) -> None:
    """A radius of zero, or an angle at which a sine is: one person's gradient would be seen as it is, as
    often as the word comes up."""
    for odd in (6, 7):
        draws = fill_gaussian(torch.empty(odd, dtype=dtype, device="cpu"), 1.0, Same(word))
        assert draws.isfinite().all()
        assert (draws != 0).all()


@pytest.mark.parametrize("deviation", [1e-30, 1e-20, 1e-3, 1e20, 1e30])
def test_deviations_whose_squares_leave_the_floats_are_what_they_are(deviation: float) -> None:
    draws = (
        fill_gaussian(torch.empty(20_000, device="cpu"), deviation, SeededEntropy(3)).double().numpy()
        / deviation
    )
    assert_normal(draws)


@pytest.mark.parametrize("size", [1, 2, 3, 65_535, 65_537, 131_072, 300_001])
def test_every_entry_is_drawn_whatever_the_length(size: int) -> None:
    vector = fill_gaussian(torch.zeros(size, device="cpu"), 1.0, SeededEntropy(4))
    assert (vector != 0).all()
    assert len(vector.unique()) > 0.99 * size


def test_no_vector_is_handed_out_twice() -> None:
    buffer, seen = NoiseBuffer(100, torch.float32, 1.0, Entropy()), set()
    for _ in range(1500):  # more than one block
        vector = torch.empty(100, device="cpu")
        buffer.into(vector)
        seen.add(tuple(vector[:4].tolist()))
    assert len(seen) == 1500


def test_the_runs_own_stream_is_counter_mode_under_a_key_from_the_given_one() -> None:
    """The third block on, of AES from counter zero; the same for the same seed; a fork goes another way where
    it matters."""
    key = SeededEntropy(6).bytes(32)
    plain = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(200_032))[32:]
    assert EntropyStream(SeededEntropy(6)).bytes(200_000) == plain
    assert not EntropyStream(SeededEntropy(6)).private
    assert EntropyStream(Entropy()).private
    assert EntropyStream(Entropy()).bytes(32) != EntropyStream(Entropy()).bytes(32)
    with pytest.raises(TypeError, match="must not be copied"):
        copy.deepcopy(EntropyStream(Entropy()))


def test_a_forked_process_has_noise_of_its_own() -> None:
    """Parent and child go on from one buffer: the same noise on two gradients would cancel."""
    buffer, vector = NoiseBuffer(300_000, torch.float32, 1.0, Entropy()), torch.empty(300_000, device="cpu")
    buffer.into(vector)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - in the child
        os.write(write, buffer._entropy.bytes(64))
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(read, 64)
    os.close(read)
    os.close(write)
    assert len(theirs) == 64
    assert theirs != buffer._entropy.bytes(64)


def test_no_deviation_is_no_noise() -> None:
    assert fill_gaussian(torch.ones(3, device="cpu"), 0.0, Entropy()).abs().sum() == 0


@pytest.mark.parametrize("seed", [5, 6, 7])
def test_noise_is_the_same_by_numpy_and_by_torch(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Up to a few units in the last place: with few threads it is numpy's sines and logarithms."""
    vectors = []
    for threads in (0, 1 << 20):
        monkeypatch.setattr(gradient_noise, "_MAX_THREADS_FOR_NUMPY", threads)
        vectors.append(fill_gaussian(torch.empty(200_001, device="cpu"), 1.0, SeededEntropy(seed)))
    torch.testing.assert_close(*vectors, rtol=1e-5, atol=1e-6)
