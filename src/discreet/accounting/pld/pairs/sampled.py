"""Defines the dominating pair (P, Q) of a Poisson-sampled Gaussian (`cells.DominatingPair`); rate 1 is the
plain Gaussian.

Theorem (Zhu, Dong & Wang 2022, arXiv:2106.08567, Theorem 11; Gaussian pair N(1, s²) against N(0, s²)):
removing a unit is dominated by (1-q) N(0,s²) + q N(1,s²) against N(0,s²), adding one by N(0,s²) against that
mixture. The first distribution of each pair is P, the second Q; s is the noise multiplier `sigma` and q the
sampling rate. A cell is an interval of losses, and its ref is the loss c at which P - e^c Q is computed.

In the code x is an outcome; n0 and n1 are the masses of a cell under N(0, s²) and N(1, s²), e0 and e1 bounds
on their errors; U is the unit roundoff 2^-53.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from .arrays import Array, U, between
from .cells import LossCells, Nodes

# Points of the quadrature of the loss, which is for planning only: certified bounds use `measure`.
_NODES = 400


@dataclass(frozen=True, slots=True)
class SampledGaussian:
    """Is the pair of a Poisson-sampled Gaussian; `removing` says which of the two directions; with rate 1
    they agree. Losses are continuous: they lie on no lattice and are not finitely many."""

    sigma: float
    rate: float
    removing: bool = True

    @property
    def lattice(self) -> tuple[float, float] | None:
        return None

    def _loss(self, x: Array) -> Array:
        """Return the log of the mixture's density divided by that of N(0, s²), at x; it increases with x."""
        exponent = (x - 0.5) / self.sigma**2
        if self.rate == 1:
            return exponent
        big = exponent > 30
        small = np.log1p(self.rate * np.expm1(np.where(big, 0.0, exponent)))
        large = (
            exponent
            + np.log(self.rate)
            + np.log1p((1 - self.rate) / self.rate * np.exp(-np.where(big, exponent, 30.0)))
        )
        return np.where(big, large, small)

    def _where(self, loss: Array) -> tuple[Array, Array]:
        """Return the x whose `_loss` is `loss` (minus infinity below the range of losses), and a bound on the
        rounding error of x, expressed as an error of the loss.

        Proof: d loss / d log is `share`. The summands of the bound, in this order, are the rounding of x, of
               `log` and of the argument of log1p, that of q and of `loss`, and that of `ratio`, whose
               relative error is at most 3 U: share |ratio| / (1 + ratio) = |1 - e^-loss|.
        """
        if self.rate == 1:
            x = self.sigma**2 * loss + 0.5
            return x, 8 * U * (np.abs(np.where(np.isfinite(loss), loss, 0.0)) + 0.5 / self.sigma**2)
        q = self.rate
        big = loss > 30
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            ratio = np.expm1(np.where(big, 0.0, loss)) / q
            log = np.where(
                big,
                loss - np.log(q) + np.log1p(-(1 - q) * np.exp(-np.where(big, loss, 30.0))),
                np.log1p(np.maximum(ratio, -1.0)),
            )
            # the share of q N(1, s²) in the mixture's density at x
            share = np.where(
                big, 1.0, np.maximum(np.expm1(np.where(big, 0.0, loss)) + q, 0.0) * np.exp(-loss)
            )
            x = self.sigma**2 * log + 0.5
            loss_error = share * (np.abs(x) / self.sigma**2 + np.abs(log) + 1) + q + np.abs(loss)
            loss_error += np.where(ratio > -1, np.abs(np.expm1(-loss)), 0.0)
        return x, 8 * U * np.where(np.isfinite(loss_error), loss_error, 0.0)

    @property
    def discrete(self) -> bool:
        return False

    def span(self, tail: float) -> tuple[float, float]:
        """Return an interval of x outside which P has about `tail` of its mass on either side."""
        z = -float(ndtri(max(tail / 2, 1e-300)))
        if not self.removing:
            return -z * self.sigma, z * self.sigma
        shifted = -float(ndtri(min(max(tail / (2 * self.rate), 1e-300), 0.4)))
        return -z * self.sigma, max(z * self.sigma if self.rate < 1 else 0.0, 1 + shifted * self.sigma)

    def nodes(self, tail: float) -> Nodes:
        low, high = self.span(tail)
        x = np.linspace(low, high, _NODES)
        loss = self._loss(x)
        weight = np.exp(-0.5 * (x / self.sigma) ** 2)
        if self.removing:
            weight = weight * np.exp(np.minimum(loss, 700.0))
            return Nodes(loss, weight / weight.sum())
        return Nodes(-loss[::-1], weight[::-1] / weight.sum())

    def measure(self, edges: Array, refs: Array) -> LossCells:
        with np.errstate(over="ignore"):
            x, edge_errors = self._where(edges if self.removing else -edges[::-1])
        n0, e0 = between(x / self.sigma)
        n1, e1 = between((x - 1) / self.sigma)
        loss_error = np.maximum(edge_errors[:-1], edge_errors[1:])
        if not self.removing:
            n0, e0, n1, e1, loss_error = n0[::-1], e0[::-1], n1[::-1], e1[::-1], loss_error[::-1]
        return self._cells(n0, e0, n1, e1, loss_error, refs)

    def _cells(self, n0: Array, e0: Array, n1: Array, e1: Array, loss_error: Array, refs: Array) -> LossCells:
        """Return the cells, with P - e^c Q (c the ref of a cell) computed without cancellation: the mixture
        differs from N(0, s²) by q (n1 - n0) only.

        The losses of the computed cell lie between the edges up to `loss_error`. A hockey-stick divergence
        changes by at most the change of a loss times its P-mass, so that times the mass is added to the
        error."""
        q = self.rate
        shift, shift_error = q * (n1 - n0), q * (e0 + e1)
        if self.removing:
            mass, mass_error = n0 + shift, (1 - q) * e0 + q * e1
            first, first_error = shift, shift_error
        else:
            mass, mass_error = n0, e0
            scale = np.exp(refs)
            first, first_error = -scale * shift, scale * shift_error
        second = np.expm1(refs) * n0
        error = (
            first_error
            + np.abs(np.expm1(refs)) * e0
            + 16 * U * (np.abs(first) + np.abs(second))
            + loss_error * mass
        )
        return LossCells(mass, mass_error + 4 * U * mass, first - second, error)
