"""The stream of bits: fresh, private to a process and a call, never duplicated."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import threading

import numpy as np
import pytest

from discreet.sampling import Entropy, EntropyStream, SeededEntropy, _entropy

from ..loops import for_each
from .checks import assert_frequency

FORKS = """
import os, sys
from discreet.sampling import Entropy, SeededEntropy
entropy, seeded = Entropy(), SeededEntropy(1)
entropy.words(3)

def child_draws(stream, hooks=True):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        if not hooks:  # as after a fork from C: a stale process number and nothing else changed
            stream._pid = -1
        os.write(write, stream.bytes(64))
        os._exit(0)
    os.close(write)
    found = os.read(read, 64)
    os.waitpid(pid, 0)
    return found

drawn = [child_draws(entropy), child_draws(entropy), child_draws(entropy, hooks=False), entropy.bytes(64)]
assert len(set(drawn)) == 4 and all(len(d) == 64 for d in drawn), "a fork repeats its parent's stream"
assert child_draws(seeded) == seeded.bytes(64), "a seeded stream must repeat"

entropy._lock.acquire()  # as if another thread of the parent were drawing at the time of the fork
assert len(child_draws(entropy)) == 64
"""


def test_forked_children_never_repeat_the_parents_stream():
    assert subprocess.run([sys.executable, "-c", FORKS], check=False, timeout=600).returncode == 0


NO_KEY = """
import os
from discreet.sampling import Entropy
from discreet.sampling._entropy import EntropyStream
source = Entropy()
streams = [source, Entropy(), EntropyStream(source)]
for stream in streams:
    stream.words(3)
real = os.urandom

def broken(n):
    raise OSError("no entropy")

for hooks in (True, False):
    read, write = os.pipe()
    os.urandom = broken  # while the hook runs, and after it
    pid = os.fork()
    if pid == 0:
        refused = 0
        for stream in streams:
            if not hooks:
                stream._pid = -1
            for _ in range(2):  # trying again is no way around
                try:
                    stream.bytes(64)
                except OSError:
                    refused += 1
        os.urandom = real  # once there is entropy again, all goes on
        fresh = [stream.bytes(64) for stream in streams]
        os.write(write, bytes([refused]) + b"".join(fresh))
        os._exit(0)
    os.urandom = real
    os.close(write)
    said = os.read(read, 1000)
    os.waitpid(pid, 0)
    own = [stream.bytes(64) for stream in streams]
    assert said[0] == 6, said[0]
    assert len({said[1 + 64 * i : 65 + 64 * i] for i in range(3)} | set(own)) == 6
"""


def test_a_forked_child_that_gets_no_key_draws_nothing():
    done = subprocess.run(
        [sys.executable, "-c", NO_KEY], check=False, timeout=600, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_threads_never_share_words():
    entropy, found = Entropy(), []
    start = threading.Barrier(8)

    def draw():
        start.wait()
        found.extend(entropy.words(257) for _ in range(40))

    threads = [threading.Thread(target=draw) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    everything = np.concatenate(found)
    assert len(everything) == 8 * 40 * 257
    assert len(np.unique(everything)) == len(everything)  # a false alarm has probability below 2**-30


def test_two_streams_differ_and_bits_are_fair():
    a, b = Entropy(), Entropy()
    assert not np.array_equal(a.words(4), b.words(4))
    bits = np.unpackbits(np.frombuffer(a.bytes(125_000), np.uint8))
    assert_frequency(int(bits.sum()), len(bits), 0.5)


@pytest.mark.parametrize("make", [Entropy, lambda: SeededEntropy(3)])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_stream_cannot_be_duplicated(make, duplicate):
    with pytest.raises(TypeError, match="must not be copied"):
        duplicate(make())


def test_repr_shows_no_key_and_private_is_read_only():
    assert repr(Entropy()) == "Entropy(private=True)"
    assert repr(SeededEntropy(12345)) == "SeededEntropy(private=False)"
    with pytest.raises(AttributeError, match="has no setter"):
        SeededEntropy(1).private = True


def test_seeded_streams_repeat_and_do_not_depend_on_the_split():
    whole = SeededEntropy(b"x").bytes(200_000)
    stream = SeededEntropy(b"x")
    assert whole == b"".join(stream.bytes(n) for n in (0, 1, 15, 16, 17, 65_536, 134_415))
    assert SeededEntropy(1).bytes(8) != SeededEntropy(2).bytes(8)


def test_the_key_changes_before_it_is_worn_out(monkeypatch):
    monkeypatch.setattr(_entropy, "_REKEY_AFTER", 1 << 16)
    entropy = SeededEntropy(1)
    keys = {entropy._key}
    blocks = set()
    for _ in range(4):
        blocks.add(entropy.bytes(1 << 16))
        keys.add(entropy._key)
    assert len(keys) == 5
    assert len(blocks) == 4


def test_arrays_are_fresh_and_writable():
    entropy = Entropy()
    first = entropy.words(5)
    kept = first.copy()
    second = entropy.words(5)
    second[:] = 0
    assert (first == kept).all()
    assert entropy.shorts(3).dtype == np.uint16
    assert entropy.integer(0) == 0
    assert 0 <= entropy.integer(3) < 8
    assert all(0 <= value < 2**70 for value in entropy.integers(70, 50))


@for_each("shape", [0, 1, 15, 16, 17, 32_768, 65_537, (7, 11), 100_003])
@for_each("dtype", [np.uint8, np.int32, np.float64])
@for_each("make", [SeededEntropy, lambda seed: EntropyStream(SeededEntropy(seed))])
def test_filling_an_array_gives_the_next_bytes_of_the_stream_and_no_others(shape, dtype, make):
    room = np.zeros((3, *np.shape(np.empty(shape))), dtype)
    before, after = room[0].tobytes(), room[2].tobytes()
    stream, twin = make(7), make(7)
    stream.fill(room[1])
    assert room[1].tobytes() == twin.bytes(room[1].nbytes)
    assert stream.bytes(20) == twin.bytes(20)
    assert (room[0].tobytes(), room[2].tobytes()) == (before, after), "nothing is written beside the array"


def _fixed(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "bad", [[1, 2], None, np.zeros((4, 4))[:, 1], np.array([None]), _fixed(np.zeros(3)), b"bytes", 5]
)
def test_what_cannot_be_filled_is_refused(bad):
    with pytest.raises(ValueError, match="contiguous, writable"):
        Entropy().fill(bad)


@pytest.mark.parametrize("bad", [-1, 1.5, "3", None, True])
def test_bad_sizes_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        Entropy().words(bad)


@pytest.mark.parametrize("bad", [1.5, "seed", None, True])
def test_bad_seeds_are_refused(bad):
    with pytest.raises(ValueError, match="must be"):
        SeededEntropy(bad)


def test_numbers_of_numpys_own_types_do_not_wrap():
    assert len(SeededEntropy(1).words(np.int8(100))) == len(SeededEntropy(1).shorts(np.int8(100))) == 100
    assert SeededEntropy(1).integer(np.int8(100)) == SeededEntropy(1).integer(100)
    assert len(SeededEntropy(1).integers(np.int8(100), np.int8(100))) == 100


def test_what_is_put_aside_from_a_stream_is_as_private_as_its_source():
    first, second = (EntropyStream(SeededEntropy(1)).aside("a purpose") for _ in range(2))
    assert not first.private
    assert (first.words(4) == second.words(4)).all()
    assert EntropyStream(Entropy()).aside("a purpose").private
