"""Where random bits come from: a keyed AES-256-CTR stream, seeded by the operating system.

`Entropy()` is for releases; `SeededEntropy(seed)` repeats itself, is for tests and simulations, and says so
with `private == False`. Neither can be copied or pickled: noise drawn twice from one stream cancels.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM

from .. import _require

# bytes encrypted per call: few calls, within the caches
_BLOCK = 1 << 18
_ZEROS = memoryview(bytes(_BLOCK))
# bytes under one key; far below where AES-CTR is distinguishable from uniform
_REKEY_AFTER = 1 << 32
# update_into wants room for one more AES block
_CIPHER_MARGIN = 15


class Entropy:
    """A stream of independent uniform bits, private to this process.

    Guarantee: no two calls, threads, or forked processes are given the same part of the stream; what one
               caller has seen tells nothing computable about what another will see.
    Proof:     AES-256-CTR under a 256-bit key from `os.urandom`; a lock around the stream; a fresh key in
               every forked child and after each 4 GiB.
    Assumes:   AES is a pseudorandom permutation and the operating system's generator is sound. A virtual
               machine that is snapshotted and resumed twice repeats its stream: nothing in the process can
               notice.

    >>> Entropy().words(3).dtype
    dtype('uint64')
    """

    _pid: int | None

    def __init__(self) -> None:
        self._start()
        _ALIVE.add(self)

    @property
    def private(self) -> bool:
        """Whether what is drawn may protect real data."""
        return True

    def aside(self, purpose: str) -> Entropy:
        """Return another stream, whose use leaves this one where it is: with a key of its own from the
        operating system, or from the seed and the purpose where this one repeats itself."""
        return Entropy()

    def bytes(self, n: int) -> bytes:
        """Return `n` uniform bytes."""
        _require.integer(n=n, at_least=0)
        return self._take(int(n))[: int(n)].tobytes()

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """Return `n` uniform 64-bit words, in a fresh writable array."""
        _require.integer(n=n, at_least=0)
        # a number of numpy's could wrap
        size = 8 * int(n)
        return self._take(size)[:size].view(np.uint64)

    def shorts(self, n: int) -> npt.NDArray[np.uint16]:
        """Return `n` uniform 16-bit words, in a fresh writable array."""
        _require.integer(n=n, at_least=0)
        size = 2 * int(n)
        return self._take(size)[:size].view(np.uint16)

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Overwrite an array with uniform bits, in place: all of its memory must be in one piece."""
        if (
            not isinstance(out, np.ndarray)
            or out.dtype.hasobject
            or not out.flags.c_contiguous
            or not out.flags.writeable
        ):
            raise _require.fail("out", type(out).__name__, "a contiguous, writable numpy array of numbers")
        if out.size:
            self._pour(memoryview(out.reshape(-1).view(np.uint8).data), out.nbytes)

    def integer(self, bits: int) -> int:
        """Return one uniform integer of `bits` bits."""
        return int(self.integers(bits, 1)[0])

    def integers(self, bits: int, n: int) -> npt.NDArray[np.object_]:
        """Return `n` uniform integers of `bits` bits, as Python integers."""
        _require.integer(bits=bits, n=n, at_least=0)
        bits, n = int(bits), int(n)
        size = -(-bits // 8)
        raw, excess = self.bytes(n * size), 8 * size - bits
        numbers = (int.from_bytes(raw[i * size : (i + 1) * size], "little") >> excess for i in range(n))
        return np.fromiter(numbers, dtype=object, count=n)

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return at least `size` fresh bytes at the front of a new array."""
        out = np.empty(size + _CIPHER_MARGIN, np.uint8)
        self._pour(memoryview(out.data), size)
        return out

    def _pour(self, room: memoryview, size: int) -> None:
        """Write the next `size` bytes to the front of the buffer; where it ends too soon after them, the last
        few come by way of a copy."""
        with self._lock:
            # a fork that bypassed Python's hooks
            if self._pid != os.getpid():
                self._forked()
            for start in range(0, size, _BLOCK):
                length = min(_BLOCK, size - start)
                direct = max(0, min(length, len(room) - _CIPHER_MARGIN - start))
                if direct:
                    self._stream.update_into(_ZEROS[:direct], room[start:])
                if direct < length:
                    room[start + direct : start + length] = self._stream.update(_ZEROS[direct:length])
                self._spent += length
                if self._spent >= _REKEY_AFTER:
                    self._rekey()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._rekey()
        self._pid = os.getpid()

    def _rekey(self) -> None:
        self._stream = _keystream(os.urandom(32))
        self._spent = 0

    def _forked(self) -> None:
        """Give a forked child a stream of its own: the parent keeps the old one.

        The process is remembered last: if no new key can be had, the next draw tries again, and fails again,
        rather than draw what the parent draws.
        """
        self._rekey()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(private={self.private})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an entropy stream must not be copied or pickled: the same noise drawn twice cancels")


class SeededEntropy(Entropy):
    """The same stream for the same seed: for tests and simulations, never for a release.

    >>> bool((SeededEntropy(7).words(4) == SeededEntropy(7).words(4)).all())
    True
    >>> SeededEntropy(7).private
    False
    """

    def __init__(self, seed: int | bytes) -> None:
        if not isinstance(seed, bytes):
            _require.integer(seed=seed)
            seed = b"%d" % int(seed)
        self._key = self._origin = hashlib.sha256(b"discreet.SeededEntropy:" + seed).digest()
        super().__init__()

    @property
    def private(self) -> bool:
        return False

    def aside(self, purpose: str) -> SeededEntropy:
        return SeededEntropy(b"aside:" + purpose.encode() + b":" + self._origin)

    def _rekey(self) -> None:
        self._spent = 0
        self._stream = _keystream(self._key)
        self._key = hashlib.sha256(b"next:" + self._key).digest()

    def _forked(self) -> None:
        """Do nothing: a seeded stream repeats by design, and a child continues where its parent was."""
        self._pid = os.getpid()


class Stream(Entropy):
    """AES-256 in counter mode under a key that another stream gives: for long noise, twice as fast.

    It is GCM whose tag is never asked for, which is counter mode with code of its own in OpenSSL. Threads,
    forks and the age of a key are looked after as in every `Entropy`; a forked child takes a key of its own
    from the operating system, as what it was forked from may be in use.
    """

    def __init__(self, source: Entropy) -> None:
        self._source = source
        super().__init__()

    @property
    def private(self) -> bool:
        return self._source.private

    def aside(self, purpose: str) -> Entropy:
        return self._source.aside(purpose)

    def _rekey(self) -> None:
        self._use(self._source.bytes(32))

    def _forked(self) -> None:
        # else it repeats itself by design
        if self.private:
            self._use(os.urandom(32))
        self._pid = os.getpid()

    def _use(self, key: bytes) -> None:
        self._stream, self._spent = Cipher(AES(key), GCM(bytes(12))).encryptor(), 0


# more fit no memory
_MAX_DRAWS = 1 << 40


def draws(n: int, entropy: Entropy) -> int:
    """Return the number of draws, after checking that it and the stream are usable; nothing is drawn
    before."""
    _require.integer(n=n, at_least=0)
    if n > _MAX_DRAWS:
        raise _require.fail("the number of draws", n, "at most 2**40")
    stream(entropy)
    return int(n)


def stream(entropy: Entropy) -> Entropy:
    """Return the stream itself, or an error if it is none."""
    if not isinstance(entropy, Entropy):
        raise _require.fail("entropy", type(entropy).__name__, "a sampling.Entropy")
    return entropy


def _keystream(key: bytes) -> CipherContext:
    return Cipher(AES(key), CTR(bytes(16))).encryptor()


_ALIVE: weakref.WeakSet[Entropy] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    alive = list(_ALIVE)
    for entropy in alive:
        # another thread of the parent may have held the old one
        entropy._lock = threading.Lock()
        # not yet this process's: whatever fails below, nothing is drawn from an inherited stream
        entropy._pid = None
    for entropy in alive:
        # what fails here fails again, and is heard, at the next draw; an error in a hook would only be
        # printed
        with suppress(Exception):
            entropy._forked()


# not on Windows, which does not fork
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
