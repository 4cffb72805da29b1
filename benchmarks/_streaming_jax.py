"""jax-privacy's generator of BLT noise: CPU seconds a step of a 1,000-dimensional stream, compiled, warmed
up.

Runs in an environment of its own; prints what it measured, the number of seconds last.
"""

from __future__ import annotations

import time

import jax
import jax.numpy as jnp
from jax_privacy.matrix_factorization import buffered_toeplitz

STEPS, DIMENSION = 20_000, 1000


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    blt = buffered_toeplitz.BufferedToeplitz.from_rational_approx_to_sqrt_x(num_buffers=4)
    inverse = blt.inverse_as_streaming_matrix()
    state = inverse.init_multiply(jax.ShapeDtypeStruct((DIMENSION,), jnp.float64))

    def step(carry, key):
        state, total = carry
        row, state = inverse.multiply_next(jax.random.normal(key, (DIMENSION,), jnp.float64), state)
        return (state, total + row), None

    run = jax.jit(lambda carry, keys: jax.lax.scan(step, carry, keys)[0])
    start = (state, jnp.zeros(DIMENSION))
    keys = jax.random.split(jax.random.key(1), STEPS)
    jax.block_until_ready(run(start, keys))
    begun = time.process_time()
    jax.block_until_ready(run(start, jax.random.split(jax.random.key(2), STEPS)))
    seconds = (time.process_time() - begun) / STEPS
    print(f"jax-privacy, {STEPS:,} steps in one compiled scan: CPU seconds a step {seconds:.3e}")


if __name__ == "__main__":
    main()
