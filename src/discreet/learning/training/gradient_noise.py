"""Draws Gaussian noise for gradients, as fast as an ordinary generator, from the same keyed stream of bits as
all other noise.

Model weights are floats, and so is this noise: it is the one noise in releases of discreet that is not an
exact integer (docs/learning.md says what that leaves open); `Trainer(noise="discrete")` draws integers
instead. Its bits are cryptographic, and its tails reach beyond ten standard deviations.

Adds exact noise to gradients: clipped gradients on an integer grid, added up without rounding, plus the
exact discrete Gaussian.

With floats the guarantee holds up to rounding (docs/learning.md); on the grid it is exact. A sum of integers
does not depend on the order, the noise has exactly the distribution that is priced, and the norm of each
example's summand is compared with the sensitivity after it was rounded to the grid. For this, per-example
gradients must be built, which is slower.

Draws noise that is correlated over time: DP-FTRL by the matrix mechanism, as a source of noise for the
trainer.

The noise of step t is row t of C⁻¹ Z, where the rows of Z are independent and the strategy C is lower
triangular: noise that is added in one step is partly subtracted in later ones, so that the *sum* of all
gradients so far, which decides the weights, has little noise. In return the steps in which an example takes
part must be fixed in advance, and there is no amplification by sampling. The strategies C are those of
`mechanisms.matrix`; `schedules.Cyclic` computes the sensitivity.
"""

from __future__ import annotations

import math
from collections import deque
from fractions import Fraction
from typing import Annotated, Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ... import _require, sampling
from ..._errors import InvalidInput
from ..._public import Neighbors
from ..._registry import described
from ..._require import EXACT, POSITIVE, at_least
from ...accounting import Event, VectorDiscreteGaussian
from ...mechanisms.matrix.triangular import IDENTITY, Buffered, Dense, Toeplitz, blt, sensitivity, square_root
from ...mechanisms.matrix.triangular import Triangular as Strategy
from ...sampling import Entropy, EntropyStream
from ..clipping import taps

__all__ = [
    "Buffered",
    "CorrelatedSource",
    "Dense",
    "IDENTITY",
    "NoiseSource",
    "Strategy",
    "Toeplitz",
    "blt",
    "sensitivity",
    "square_root",
]

# Entries that are filled together: so many that torch is called few times, and no more than 2 MB of floats,
# which about fit a core's cache (measured; to be measured again on a machine with other caches).
_CHUNK = 1 << 19
# A uniform number U (see `fill_gaussian`) of fewer than this many units `_UNIFORM_UNIT` gets more bits.
_SMALL = 1 << 10
# The unit of U. It is a little below 2**-31, so that the largest U, of 2**31 units, is the largest float32
# below one: U = 1 would have a radius of zero, and so no noise.
_UNIFORM_UNIT = 2.0**-31 * (1 - 2.0**-24)
# The unit of angles: signed words of 32 bits make a full turn.
_ANGLE_UNIT = math.pi * 2.0**-31
_ZERO = torch.tensor(0.0, device="cpu")
# Added to all angles, so that none is zero, where the sine would be no noise either.
_HALF_ANGLE_UNIT = torch.tensor(_ANGLE_UNIT / 2, device="cpu")
# With up to this many threads of torch, numpy's logarithm, sine and cosine of float32 are faster than
# torch's, which use all threads: 0.4 to 0.5 ns per number against torch's 1.0 to 1.3 on one thread (measured,
# AVX2).
_MAX_THREADS_FOR_NUMPY = 2
# Deviations whose square float32 holds in full precision; for others, noise of deviation 1 is multiplied.
_SQUARABLE = (1e-15, 1e15)


def fill_gaussian(vector: Tensor, deviation: float, entropy: Entropy) -> Tensor:
    """Overwrite a vector with independent N(0, deviation²) noise.

    Guarantee: entries are the Box-Muller transform of fresh bits of `entropy`: r cos(a) and r sin(a), with r
               = deviation sqrt(-2 ln U), rounded to the vector's type. U is uniform in (0, 1), with 31 bits,
               and another 52 where the first 21 of them are zero: the tail goes on to 10.8 deviations, where
               generators with 24 bits end at 5.8. The angle a is one of 2**32. No entry is exactly zero, for
               a deviation of at least 2**-100.
    Proof:     Box & Muller 1958, for the transform; the bits are those of the stream.
    Assumes:   `entropy` yields independent uniform bits. The vector is of float32 or float64, on the host.
               Floats are not reals: the distribution is that of a Gaussian up to this rounding.
    """
    _require.non_negative(deviation=deviation)
    _fill_all(vector, deviation, entropy)
    return vector


def _fill_all(vector: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a vector with noise in chunks of equal size."""
    size = vector.numel()
    chunks = max(1, -(-size // _CHUNK))
    # Chunks of equal size, and an even one: a short chunk at the end would cost as many calls as a full one.
    chunk_size = 2 * -(-size // (2 * chunks))
    scale = deviation if _SQUARABLE[0] <= deviation <= _SQUARABLE[1] else 1.0
    for start in range(0, size, max(1, chunk_size)):
        _fill(vector[start : start + chunk_size], scale, entropy)
    if scale != deviation:
        vector.mul_(deviation)


def _fill(out: Tensor, deviation: float, entropy: Entropy) -> None:
    """Fill a chunk with Box-Muller noise: the absolute value of a signed 32-bit word, in units of
    `_UNIFORM_UNIT`, is U, and another word is the angle; U and the angle make two entries.

    The first half of the chunk becomes the cosines, the second the sines. Each operation on the whole chunk
    is one in-place call, which torch splits among its threads.
    """
    cosine_count, sine_count = -(-out.numel() // 2), out.numel() // 2
    fits = out.dtype == torch.float32 and cosine_count == sine_count
    buffer = out if fits else torch.empty(2 * cosine_count, dtype=torch.float32, device="cpu")
    words = buffer.view(torch.int32)
    entropy.fill(words.numpy())
    values = buffer.copy_(words) if out.dtype == torch.float32 else words.to(out.dtype)
    # `uniforms`, `squares`, `logs` and `radii` are one piece of memory, which each step overwrites; so are
    # `angles` and `sines`.
    uniforms, angles = values[:cosine_count], values[cosine_count:]
    # U², in one pass: the absolute value and the unit would take two. The logarithm of U² is 2 ln U.
    squares = torch.addcmul(_ZERO, uniforms, uniforms, value=_UNIFORM_UNIT**2, out=uniforms)
    extended_logs = (
        _extend_small_uniforms(squares, entropy) if squares.amin() < (_SMALL * _UNIFORM_UNIT) ** 2 else {}
    )
    logs = _log(squares)
    for position, log in extended_logs.items():
        logs[position] = log
    radii = logs.mul_(-(deviation**2)).sqrt_()
    torch.add(_HALF_ANGLE_UNIT, angles, alpha=_ANGLE_UNIT, out=angles)
    cosines, sines = _cosines_and_sines(angles)
    sines.mul_(radii)
    radii.mul_(cosines)
    if values is not out:
        torch.cat((radii, sines[:sine_count]), out=out)


def _is_faster_in_numpy(values: Tensor) -> bool:
    """Return whether numpy is faster than torch; the results of both are right to a few units in the last
    place."""
    return values.dtype == torch.float32 and torch.get_num_threads() <= _MAX_THREADS_FOR_NUMPY


def _log(values: Tensor) -> Tensor:
    """Replace numbers by their logarithms, in place, and return them; that of zero is minus infinity."""
    if not _is_faster_in_numpy(values):
        return values.log_()
    array = values.numpy()
    with np.errstate(divide="ignore"):
        np.log(array, out=array)
    return values


def _cosines_and_sines(angles: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and the sines of angles; the sines take the place of the angles."""
    if not _is_faster_in_numpy(angles):
        cosines = angles.cos()
        return cosines, angles.sin_()
    array = angles.numpy()
    cosines = torch.from_numpy(np.cos(array))
    np.sin(array, out=array)
    return cosines, angles


def _extend_small_uniforms(squares: Tensor, entropy: Entropy) -> dict[int, float]:
    """Draw 52 more bits for each U of fewer than `_SMALL` units, and return ln U² by position in `squares`,
    which holds U².

    A word of absolute value k stands for all U between k - 1/2 and k + 1/2 units, and 0 for those below 1/2,
    which are half as likely. The fraction is an odd multiple of 2**-53 between -1/2 and 1/2, exactly, so that
    U is not zero. The logarithm is returned because U² itself may be too small for a float32.
    """
    logs = {}
    for position in torch.nonzero(squares < (_SMALL * _UNIFORM_UNIT) ** 2).flatten().tolist():
        units = round(math.sqrt(squares[position]) / _UNIFORM_UNIT)
        fraction = (2 * entropy.integer(52) + 1) * 2.0**-53 - 0.5
        logs[position] = 2 * math.log(abs(units + fraction) * _UNIFORM_UNIT)
    return logs


class NoiseBuffer:
    """Supplies the noise vectors of a run. Short vectors are drawn several at a time, because one call for
    many is much cheaper than one call for each.

    Every vector is used once: noise that is used twice could be subtracted. Vectors stay in the memory of
    this process, and are never stored.
    """

    def __init__(self, size: int, dtype: torch.dtype, deviation: float, entropy: Entropy) -> None:
        _require.non_negative(deviation=deviation)
        # Noise vectors of `size` entries, one in each row; the first `_used` of them are spent.
        rows = max(1, _CHUNK // max(1, size))
        self._block = torch.empty(rows, size, dtype=dtype, device="cpu")
        # Memory of the host for one long vector, from which an accelerator copies, and the end of that copy.
        self._host: Tensor | None = None
        self._copied: Any = None
        self._deviation, self._entropy, self._used = deviation, EntropyStream(entropy), len(self._block)

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next noise vector."""
        if len(self._block) == 1:
            if taps.on_host(vector):
                _fill_all(vector, self._deviation, self._entropy)
            else:
                self._copy_into(vector)
            return
        if self._used == len(self._block):
            _fill_all(self._block.view(-1), self._deviation, self._entropy)
            self._used = 0
        vector.copy_(self._block[self._used])
        self._used += 1

    def _copy_into(self, vector: Tensor) -> None:
        """Overwrite a vector of an accelerator with noise that is drawn on the host."""
        if self._host is None:
            is_cuda = vector.device.type == "cuda"
            self._host = torch.empty(vector.shape, dtype=vector.dtype, device="cpu", pin_memory=is_cuda)
        # The last copy must have ended: its noise is overwritten, and noise is never used twice.
        if self._copied is not None:
            self._copied.synchronize()
        _fill_all(self._host, self._deviation, self._entropy)
        vector.copy_(self._host, non_blocking=self._host.is_pinned())
        if self._host.is_pinned():
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(vector.device))


# With the step of `GradientGrid.of`, rounding adds at most clip / 64 to the norm of a gradient, so that the
# noise is less than 2% larger than without rounding.
_INVERSE_LENGTHENING = 64
# Squares are added up in float32 within blocks of this many, as the rounding error grows with their number,
# and the blocks in float64.
_BLOCK = 256
# Squared norms, in squared steps, are below this. Then every entry is below 2**24 and exact in float32, and
# sums of up to 2**29 entries are exact in float64.
_LARGEST = 1 << 48


@described("learning.Grid")
class GradientGrid:
    """Rounds vectors of `size` numbers and of l2 norm at most `clip` to integer multiples of `step`.

    Guarantee: each example's summand, divided by the step, is an integer vector of squared l2 norm at most
               `l2_squared`, the integer part of (clip / step + sqrt(size) / 2)².
    Proof:     rounding to the nearest multiple moves each entry by at most half a step, hence the vector by
               at most sqrt(size) / 2 steps; add clip / step (triangle inequality). This does not rest on how
               floats were rounded before: the norm of the integer vector is bounded from above (`_lengths`),
               or computed exactly, and a vector above the bound counts as zero (`rounded`).
    """

    clip: Annotated[float, POSITIVE]
    size: Annotated[int, at_least(1)]
    step: Annotated[Fraction, EXACT, POSITIVE]

    def __post_init__(self) -> None:
        if self.l2_squared >= _LARGEST:
            raise InvalidInput(
                f"a step of {float(self.step):g} is too fine: squared norms, in steps, would need more than "
                "48 bits. GradientGrid.of(clip, size) chooses a step."
            )

    @classmethod
    def of(cls, clip: float, size: int) -> GradientGrid:
        """Return the grid whose step is the largest power of two that adds at most a 64th to the
        sensitivity."""
        largest_step = 2 * clip / (_INVERSE_LENGTHENING * math.sqrt(size))
        return cls(clip=clip, size=size, step=Fraction(2) ** math.floor(math.log2(largest_step)))

    @property
    def l2_squared(self) -> int:
        """Return the squared l2 sensitivity in squared steps, exactly.

        With clip / step = p / q, (p / q + sqrt(size) / 2)² is (4 p² + size q² + sqrt(16 p² q² size)) / 4 q²;
        taking the integer part of the root first does not change the integer part of the fraction.
        """
        clip_in_steps = _require.exact(self.clip, "clip") / self.step
        p, q = clip_in_steps.numerator, clip_in_steps.denominator
        return (4 * p * p + self.size * q * q + math.isqrt(16 * p * p * q * q * self.size)) // (4 * q * q)

    def variance(self, noise_multiplier: float) -> int:
        """Return the variance of the noise in squared steps: noise_multiplier² times `l2_squared`, rounded
        up."""
        return math.ceil(_require.exact(noise_multiplier, "noise_multiplier") ** 2 * self.l2_squared)

    def event(self, noise_multiplier: float, neighbors: Neighbors, changes: int = 1) -> Event:
        """Return the price of one noisy sum that neighbors move by at most `changes` times the clip: 1 where
        a summand is added or removed, 2 where one is replaced by another."""
        return VectorDiscreteGaussian(
            variance=self.variance(noise_multiplier),
            l2_squared=self.l2_squared * changes**2,
            neighbors=neighbors,
        )

    def rounded(self, rows: Tensor, weights: Tensor) -> Tensor:
        """Multiply rows [B, size] by weights ([B, 1] or [B, size]), the clipping factors, and round them to
        integer numbers of steps, in place; a row whose squared norm is above `l2_squared` becomes zero.

        The integers are exact in float32: those of a row that is kept are below 2**24.
        """
        rows.mul_((weights.double() / float(self.step)).to(rows.dtype)).round_()
        within_bound = _lengths(rows) <= math.sqrt(self.l2_squared) * (1 - 2.0**-40)
        if not bool(within_bound.all()):
            # The bounds of `_lengths` are too coarse where the step is very fine. This comparison is exact:
            # sums of squares of integers are exact in float64 up to `_LARGEST`, and rounding never takes a
            # larger sum below it. NaN is not within the bound.
            within_bound = rows.double().square_().sum(1) <= self.l2_squared
            rows.copy_(torch.where(within_bound.unsqueeze(1), rows, 0.0))
        return rows

    def total(self, rows: Tensor) -> Tensor:
        """Return the exact sum of rounded rows, as integers: added up in float32 where it must be below
        2**24, else in float64."""
        fits_float32 = len(rows) * (math.isqrt(self.l2_squared) + 1) < 1 << 24
        return rows.sum(0, dtype=rows.dtype if fits_float32 else torch.float64).long()


def _lengths(rows: Tensor) -> Tensor:
    """Return upper bounds, in float64, on the l2 norms of rows of integers.

    Squares are added up in float32 in blocks of 256, with a relative error of at most 264 roundings of 2**-24
    each (256 and a few for the root), which is below 2**-15; the blocks are added up in float64.
    """
    in_blocks = rows.shape[1] - rows.shape[1] % _BLOCK
    blocks = torch.linalg.vector_norm(
        rows[:, :in_blocks].reshape(len(rows), in_blocks // _BLOCK, _BLOCK), dim=2
    ).double()
    remainder = torch.linalg.vector_norm(rows[:, in_blocks:], dim=1).double()
    return torch.hypot(torch.linalg.vector_norm(blocks, dim=1), remainder) * (1 + 2.0**-15)


class GridSum:
    """Adds up the rounded gradients of one step, and noise, in integers; only the noisy sum becomes a float
    vector."""

    def __init__(
        self, grid: GradientGrid, noise_multiplier: float, entropy: Entropy, device: Any = "cpu"
    ) -> None:
        self.grid, self._variance, self._entropy = grid, grid.variance(noise_multiplier), entropy
        self._sum = torch.zeros(grid.size, dtype=torch.int64, device=device)

    def add(self, rows: Tensor, weights: Tensor) -> None:
        """Add the rows times their weights, on the grid; `rows` is overwritten."""
        self._sum += self.grid.total(self.grid.rounded(rows, weights))

    def release(self, into: Tensor) -> None:
        """Overwrite the vector `into` with the noisy sum, and begin a new sum."""
        noise = sampling.discrete_gaussian(
            sigma_squared=self._variance, n=self.grid.size, entropy=self._entropy
        )
        total = self._sum.cpu().numpy() + np.asarray(noise, dtype=np.int64)
        into.copy_(torch.from_numpy(total.astype(np.float64) * float(self.grid.step)))
        self._sum.zero_()


class NoiseSource(Protocol):
    """Supplies noise vectors, one per call."""

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with noise."""


class CorrelatedSource:
    """Supplies the rows y_t of C⁻¹ Z, one per call, from the independent rows z_t of Z, by forward
    substitution: y_t = (z_t - sum of C[t, s] y_s over s < t) / C[t, t].

    The last rows y_s are held, one fewer than C has bands; for a buffered strategy (BLT), its few buffers
    instead. They are secret, and in no checkpoint: such a run cannot be resumed.
    """

    def __init__(self, independent: NoiseSource, strategy: Strategy) -> None:
        self._independent, self._strategy, self._step = independent, strategy, 0
        self._past: deque[Tensor] = deque(maxlen=0 if isinstance(strategy, Buffered) else strategy.bands - 1)
        self._buffers: list[Tensor] = []

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next row of noise."""
        self._independent.into(vector)
        if isinstance(self._strategy, Buffered):
            self._subtract_buffers(vector, self._strategy)
            return
        # C[t, t], C[t, t - 1], ...: backwards from the diagonal, as `_past` begins with the last row.
        row: Any = self._strategy.row(self._step).tolist()
        for coefficient, past in zip(row[1:], self._past, strict=False):
            if coefficient:
                vector.sub_(past, alpha=coefficient)
        vector.div_(row[0])
        self._step += 1
        if self._past.maxlen:
            self._past.appendleft(vector.clone())

    def _subtract_buffers(self, vector: Tensor, strategy: Buffered) -> None:
        """Turn z_t in `vector` into y_t = z_t - sum of omega_j b_j, then set each b_j to theta_j b_j + y_t.

        omega_j are the strategy's `outputs`, theta_j its `decays`, b_j the buffers, which begin with zeros.
        """
        self._step += 1
        if not self._buffers:
            self._buffers = [vector.clone() for _ in strategy.decays]
            return
        for weight, buffer in zip(strategy.outputs, self._buffers, strict=True):
            vector.sub_(buffer, alpha=weight)
        for decay, buffer in zip(strategy.decays, self._buffers, strict=True):
            buffer.mul_(decay).add_(vector)
