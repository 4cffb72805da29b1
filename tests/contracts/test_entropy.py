"""The contract of entropy, the same for every kind: what a mechanism may rely on without knowing which one it
was given."""

from __future__ import annotations

import copy
import os
import pickle
import threading
from collections.abc import Callable

import numpy as np
import pytest

from discreet import InvalidInput
from discreet.sampling import Entropy, SeededEntropy
from discreet.sampling._entropy import EntropyStream

KINDS: dict[str, Callable[[], Entropy]] = {
    "private": Entropy,
    "seeded": lambda: SeededEntropy(7),
    "private stream": lambda: EntropyStream(Entropy()),
    "seeded stream": lambda: EntropyStream(SeededEntropy(7)),
}
each_kind = pytest.mark.parametrize("make", KINDS.values(), ids=list(KINDS))


def descendants(cls: type) -> set[type]:
    """All classes that are made from one, itself included."""
    return {cls}.union(*(descendants(made) for made in cls.__subclasses__()))


def test_every_kind_of_entropy_is_here() -> None:
    ours = {cls for cls in descendants(Entropy) if cls.__module__.startswith("discreet.")}
    assert ours == {type(make()) for make in KINDS.values()}


@each_kind
def test_it_gives_as_much_as_was_asked_for(make: Callable[[], Entropy]) -> None:
    entropy = make()
    for n in (0, 1, 7, 1000):
        assert len(entropy.bytes(n)) == n
        assert entropy.words(n).shape == entropy.shorts(n).shape == (n,)
        assert len(entropy.integers(70, n)) == n
    assert entropy.words(3).dtype == np.uint64
    assert entropy.words(3).flags.writeable
    assert all(0 <= value < 2**70 for value in entropy.integers(70, 100))
    with pytest.raises(InvalidInput):
        entropy.bytes(-1)


@each_kind
def test_no_part_of_the_stream_is_given_twice(make: Callable[[], Entropy]) -> None:
    entropy, drawn, lock = make(), [], threading.Lock()

    def draw() -> None:
        mine = [entropy.bytes(16) for _ in range(200)]
        with lock:
            drawn.extend(mine)

    threads = [threading.Thread(target=draw) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    room = np.zeros((5, 16), np.uint8)
    entropy.fill(room)
    drawn += [row.tobytes() for row in room]
    assert len(set(drawn)) == len(drawn) == 805


@each_kind
def test_every_bit_is_uniform(make: Callable[[], Entropy]) -> None:
    """20,000 draws of each of 64 bits, within 7 standard deviations: a false alarm in 10^9 for all of
    them."""
    words = make().words(20_000)
    ones = np.array([int(((words >> np.uint64(bit)) & np.uint64(1)).sum()) for bit in range(64)])
    assert np.abs(ones - 10_000).max() < 7 * np.sqrt(20_000) / 2


@each_kind
def test_it_cannot_be_copied(make: Callable[[], Entropy]) -> None:
    entropy = make()
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(entropy)


@each_kind
def test_what_is_private_does_not_repeat_and_what_repeats_says_so(make: Callable[[], Entropy]) -> None:
    first, second = make(), make()
    assert (first.bytes(32) == second.bytes(32)) == (not first.private)


@each_kind
def test_a_fork_of_private_entropy_gives_other_bits(make: Callable[[], Entropy]) -> None:
    entropy = make()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writer, entropy.bytes(32))
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    with os.fdopen(reader, "rb") as file:
        child = file.read()
    # A seeded stream is refused in a child, or repeats itself there; only a private one must be another.
    if entropy.private:
        assert len(child) == 32
        assert child != entropy.bytes(32)
    else:
        assert len(child) in (0, 32)
