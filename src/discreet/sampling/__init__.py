"""Exact samplers: the distribution of what is drawn is the stated one, with no rounding hidden in it.

Most samplers take the number of draws and a stream of random bits (`Entropy`), and return a numpy array; the
selections (`argmax_...`) return an index. Parameters are rationals; a float is taken at its binary value.
docs/proofs/sampling.md explains how draws are both exact and fast.
"""

from ._bernoulli import bernoulli, binomial, poisson_subset, poisson_subsets
from ._entropy import Entropy, EntropyStream, SeededEntropy, exp_neg
from ._noise import discrete_gaussian, discrete_laplace, geometric
from ._select import (
    argmax_exponential,
    argmax_gumbel,
    argmax_laplace,
    top_k_gumbel,
    top_k_gumbel_rows,
    weighted_softmax,
)
from ._uniform import categorical, permutation, subset, uniform_below

__all__ = [
    "Entropy",
    "SeededEntropy",
    "EntropyStream",
    "argmax_exponential",
    "argmax_gumbel",
    "argmax_laplace",
    "bernoulli",
    "binomial",
    "categorical",
    "discrete_gaussian",
    "discrete_laplace",
    "exp_neg",
    "geometric",
    "permutation",
    "poisson_subset",
    "poisson_subsets",
    "subset",
    "top_k_gumbel",
    "top_k_gumbel_rows",
    "uniform_below",
    "weighted_softmax",
]
