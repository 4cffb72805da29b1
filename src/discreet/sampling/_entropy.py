"""Provides random bits: a keyed AES-256-CTR stream, seeded by the operating system.

`Entropy()` is for releases; `SeededEntropy(seed)` repeats itself, is for tests and simulations, and says so
with `private == False`. Neither can be copied or pickled: two copies would draw the same noise, which cancels
in the difference of their answers.

Encloses the numbers with which samplers compare a uniform U, certified, between integers.

A number y in [0, 1] is described by a function `digits(bits)` that returns integers (low, high) with
low <= 2**bits * y <= high and high - low at most a few units. `below` then decides U < y exactly, for a
uniform U of which only the first bits are known (its prefix, as an integer), by drawing more bits of U until
the interval of U and the interval of y are disjoint.
"""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR, GCM
from mpmath import libmp

from .. import _require, _system

# Bytes encrypted per call of the cipher: few calls, and buffers that stay in the processor's caches.
_PIECE = 1 << 18
_ZEROS = memoryview(bytes(_PIECE))
# Bytes drawn under one key: 2**28 blocks of AES (16 bytes each), far below the 2**64 at which the stream can
# be told from uniform bits.
_REKEY_AFTER = 1 << 32
# The cipher's `update_into` requires a buffer longer than its output by one AES block less one byte.
_CIPHER_MARGIN = 15


class Entropy:
    """Yields a stream of independent uniform bits, private to this process.

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
        """Return another stream whose draws do not advance this one: with a key of its own from the operating
        system or, for a seeded stream, from the seed and the purpose."""
        return Entropy()

    def bytes(self, n: int) -> bytes:
        """Return `n` uniform bytes."""
        _require.integer(n=n, at_least=0)
        return self._take(int(n))[: int(n)].tobytes()

    def words(self, n: int) -> npt.NDArray[np.uint64]:
        """Return `n` uniform 64-bit words, in a fresh writable array."""
        _require.integer(n=n, at_least=0)
        # as a Python integer: a numpy integer could wrap
        size = 8 * int(n)
        return self._take(size)[:size].view(np.uint64)

    def shorts(self, n: int) -> npt.NDArray[np.uint16]:
        """Return `n` uniform 16-bit words, in a fresh writable array."""
        _require.integer(n=n, at_least=0)
        size = 2 * int(n)
        return self._take(size)[:size].view(np.uint16)

    def fill(self, out: npt.NDArray[Any]) -> None:
        """Overwrite a contiguous array with uniform bits, in place."""
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
        _require.integer(bits=bits, at_least=0)
        size = -(-int(bits) // 8)
        return int.from_bytes(self.bytes(size), "little") >> (8 * size - int(bits))

    def integers(self, bits: int, n: int) -> npt.NDArray[np.object_]:
        """Return `n` uniform integers of `bits` bits, as Python integers."""
        _require.integer(bits=bits, n=n, at_least=0)
        bits, n = int(bits), int(n)
        size = -(-bits // 8)
        raw, excess = self.bytes(n * size), 8 * size - bits
        numbers = (int.from_bytes(raw[i * size : (i + 1) * size], "little") >> excess for i in range(n))
        return np.fromiter(numbers, dtype=object, count=n)

    def _take(self, size: int) -> npt.NDArray[np.uint8]:
        """Return a new array that begins with `size` fresh bytes, and has `_CIPHER_MARGIN` more."""
        out = np.empty(size + _CIPHER_MARGIN, np.uint8)
        self._pour(memoryview(out.data), size)
        return out

    def _pour(self, buffer: memoryview, size: int) -> None:
        """Write the next `size` bytes of the stream to the beginning of the buffer. The cipher writes into
        the buffer itself as far as `_CIPHER_MARGIN` more bytes follow there; the last bytes are copied."""
        with self._lock:
            # true after a fork that bypassed Python's hooks, or in which no new key could be obtained
            if self._pid != os.getpid():
                self._forked()
            for start in range(0, size, _PIECE):
                length = min(_PIECE, size - start)
                direct = max(0, min(length, len(buffer) - _CIPHER_MARGIN - start))
                if direct:
                    self._stream.update_into(_ZEROS[:direct], buffer[start:])
                if direct < length:
                    buffer[start + direct : start + length] = self._stream.update(_ZEROS[direct:length])
                self._spent += length
                if self._spent >= _REKEY_AFTER:
                    self._rekey()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._rekey()
        self._pid = os.getpid()

    def _rekey(self) -> None:
        """Begin a stream under a new key."""
        self._stream = _keystream(os.urandom(32))
        self._spent = 0

    def _forked(self) -> None:
        """Give a forked child a stream of its own: the parent keeps the old one.

        `_pid` must be set last: if no new key can be obtained, the next draw tries again, and fails again,
        rather than draw the same bits as the parent.
        """
        self._rekey()
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"{type(self).__name__}(private={self.private})"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an entropy stream must not be copied or pickled: the same noise drawn twice cancels")


class SeededEntropy(Entropy):
    """Yields the same stream for the same seed: for tests and simulations, never for a release.

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
        """Keep the stream: it repeats by design, and a child continues where its parent was."""
        self._pid = os.getpid()


class EntropyStream(Entropy):
    """Yields a stream of AES-256 in counter mode under a key drawn from another stream, `source`: for long
    noise, as it is twice as fast as `Entropy`.

    It is GCM without its tag, which is counter mode with faster code in OpenSSL. Locks, forks and new keys
    are handled as in every `Entropy`, but after a fork the child takes its key from the operating system, and
    so depends on no other stream; if the source is seeded, the child continues as in `SeededEntropy`.
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
        # a seeded stream repeats by design, and continues
        if self.private:
            self._use(os.urandom(32))
        self._pid = os.getpid()

    def _use(self, key: bytes) -> None:
        """Begin a stream under this key."""
        self._stream, self._spent = Cipher(AES(key), GCM(bytes(12))).encryptor(), 0


# More draws fit into no memory.
_MAX_DRAWS = 1 << 40


def draws(n: int, entropy: Entropy) -> int:
    """Return the number of draws as a Python integer, after checking it and the stream; nothing is drawn."""
    _require.integer(n=n, at_least=0)
    _require.must(n <= _MAX_DRAWS, "the number of draws", n, "at most 2**40")
    stream(entropy)
    return int(n)


def stream(entropy: Entropy) -> Entropy:
    """Return the stream itself; raise an error if it is no `Entropy`."""
    _require.must(isinstance(entropy, Entropy), "entropy", type(entropy).__name__, "a sampling.Entropy")
    return entropy


def _keystream(key: bytes) -> CipherContext:
    return Cipher(AES(key), CTR(bytes(16))).encryptor()


# all streams of the process, for `_after_fork_in_child`
_ALIVE: weakref.WeakSet[Entropy] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    """Give every stream of the process a new lock and, unless it is seeded, a new key."""
    alive = list(_ALIVE)
    for entropy in alive:
        # another thread of the parent may have held the old lock, and does not exist here
        entropy._lock = threading.Lock()
        # The stream belongs to no process yet: whatever fails below, no inherited stream is drawn from.
        entropy._pid = None
    for entropy in alive:
        # An error here would only be printed, as in every fork hook. The next draw calls `_forked` again, and
        # raises it.
        with suppress(Exception):
            entropy._forked()


_system.at_fork(after_in_child=_after_fork_in_child)


# From a number of bits to (low, high); see above.
Digits = Callable[[int], tuple[int, int]]

# How many more bits mpmath computes with than are used. Its last 30 bits are assumed to be wrong (2**30 units
# in the last place, far more than mpmath's errors).
_SPARE = 40


def exp_neg(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= 2**bits * exp(-x) <= high and high - low <= 3, for x >= 0.

    Proof:   the argument is at most `bits`, so rounding it to `working` bits moves exp(-x) by less than
             2**-(bits+38); 2**30 units in the last of `working` bits are less than 2**-(bits+9). Together
             they move 2**bits * exp(-x) by less than 1, and `to_fixed` rounds to an integer by less than 1.
    Assumes: mpmath's exp is right to within 2**30 units in the last place.
    """
    if x == 0:
        return 1 << bits, 1 << bits
    # exp(-x) < 2**-bits
    if x > bits:
        return 0, 1
    working = bits + _SPARE + bits.bit_length()
    argument = libmp.from_rational(-x.numerator, x.denominator, working)
    value = int(libmp.to_fixed(libmp.mpf_exp(argument, working), bits))
    return max(value - 1, 0), min(value + 2, 1 << bits)


def log(x: Fraction, bits: int) -> tuple[int, int]:
    """Return integers (low, high) with low <= 2**bits * ln(x) <= high and high - low <= 3, for x > 0.

    Proof:   rounding the argument to `working` bits moves ln(x) by less than 2**-(bits+38); and |ln(x)| is
             below `magnitude`, so 2**30 units in the last of `working` bits are less than 2**-(bits+13).
    Assumes: mpmath's log is right to within 2**30 units in the last place.
    """
    magnitude = max(x.numerator.bit_length(), x.denominator.bit_length())
    working = bits + _SPARE + magnitude.bit_length() + 4
    argument = libmp.from_rational(x.numerator, x.denominator, working)
    value = int(libmp.to_fixed(libmp.mpf_log(argument, working), bits))
    return value - 1, value + 2


def minus_log(prefix: int, length: int, bits: int) -> tuple[int, int] | None:
    """Return integers around 2**bits * -ln(U) for all U in [prefix, prefix + 1) / 2**length; None if U may be
    zero."""
    if prefix == 0:
        return None
    low = -log(Fraction(prefix + 1, 1 << length), bits)[1]
    high = -log(Fraction(prefix, 1 << length), bits)[0]
    return max(low, 0), high


def rational(p: Fraction) -> Digits:
    """Return the digits of a rational number."""

    def digits(bits: int) -> tuple[int, int]:
        low, rest = divmod(p.numerator << bits, p.denominator)
        return low, low + (rest > 0)

    return digits


def exponential(x: Fraction) -> Digits:
    """Return the digits of exp(-x)."""
    return lambda bits: exp_neg(x, bits)


def below(prefix: int, bits: int, digits: Digits, entropy: Entropy) -> bool:
    """Return whether U < y, for U uniform on [0, 1) whose first `bits` bits are `prefix`.

    Proof: U lies in [prefix, prefix + 1) / 2**bits. If prefix + 1 <= low then U < y; if prefix >= high then U
           >= y; otherwise 64 more bits are appended. A further round is needed with probability about 2**-62.
    """
    while True:
        low, high = digits(bits)
        if prefix + 1 <= low:
            return True
        if prefix >= high:
            return False
        prefix = prefix << 64 | entropy.integer(64)
        bits += 64
