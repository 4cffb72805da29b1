"""The models of `benchmarks.learning` in JAX, with a step of jax-privacy: clipped gradients by vmap, noise,
SGD, all in one compiled function."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax_privacy.clipping
import jax_privacy.noise_addition
import numpy as np
from jax import lax

Apply = Callable[[Any, Any], Any]


class _Weights:
    """Weights of the usual sizes, drawn in the order they are asked for."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)

    def __call__(self, *shape: int) -> Any:
        return jnp.asarray(self._draw.normal(size=shape) / math.sqrt(math.prod(shape[:-1]) or 1), jnp.float32)

    def dense(self, inside: int, outside: int) -> Any:
        return {"w": self(inside, outside), "b": jnp.zeros(outside)}

    def conv(self, size: int, inside: int, outside: int) -> Any:
        return {"w": self(size, size, inside, outside), "b": jnp.zeros(outside)}


def _dense(p: Any, x: Any) -> Any:
    return x @ p["w"] + p["b"]


def _conv(p: Any, x: Any, stride: int, padding: int) -> Any:
    pad = [(padding, padding)] * 2
    out = lax.conv_general_dilated(
        x, p["w"], (stride, stride), pad, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return out + p["b"]


def _pool(x: Any, stride: int) -> Any:
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, stride, stride, 1), "VALID")


def _normed(p: Any, x: Any) -> Any:
    centered = x - x.mean(-1, keepdims=True)
    return centered * lax.rsqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def _mlp(widths: tuple[int, ...]) -> tuple[Any, Apply]:
    w = _Weights()
    params = [w.dense(a, b) for a, b in itertools.pairwise(widths)]

    def apply(params: Any, x: Any) -> Any:
        for p in params[:-1]:
            x = jax.nn.relu(_dense(p, x))
        return _dense(params[-1], x)

    return params, apply


def _mnist() -> tuple[Any, Apply]:
    w = _Weights()
    params = [w.conv(8, 1, 16), w.conv(4, 16, 32), w.dense(512, 32), w.dense(32, 10)]

    def apply(params: Any, x: Any) -> Any:
        x = _pool(jnp.tanh(_conv(params[0], x.transpose(0, 2, 3, 1), 2, 3)), 1)
        x = _pool(jnp.tanh(_conv(params[1], x, 2, 0)), 1)
        return _dense(params[3], jnp.tanh(_dense(params[2], x.reshape(len(x), -1))))

    return params, apply


def _cifar() -> tuple[Any, Apply]:
    w = _Weights()
    sizes = ((3, 32), (32, 32), (32, 64), (64, 64), (64, 128), (128, 128))
    params = [w.conv(3, a, b) for a, b in sizes] + [w.dense(2048, 128), w.dense(128, 10)]

    def apply(params: Any, x: Any) -> Any:
        x = x.transpose(0, 2, 3, 1)
        for i in range(0, 6, 2):
            x = jnp.tanh(_conv(params[i + 1], jnp.tanh(_conv(params[i], x, 1, 1)), 1, 1))
            x = _pool(x, 2)
        return _dense(params[7], jnp.tanh(_dense(params[6], x.reshape(len(x), -1))))

    return params, apply


def _transformer() -> tuple[Any, Apply]:
    w, d = _Weights(), 128

    def norm() -> Any:
        return {"w": jnp.ones(d), "b": jnp.zeros(d)}

    def layer() -> Any:
        return {
            "qkv": w.dense(d, 3 * d),
            "out": w.dense(d, d),
            "n1": norm(),
            "up": w.dense(d, 512),
            "down": w.dense(512, d),
            "n2": norm(),
        }

    params = {"in": w.dense(32, d), "layers": [layer(), layer()], "head": w.dense(d, 10)}

    def attend(p: Any, x: Any) -> Any:
        b, t, _ = x.shape
        q, k, v = jnp.moveaxis(_dense(p["qkv"], x).reshape(b, t, 3, 4, d // 4), 2, 0)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(d // 4))
        return _dense(p["out"], jnp.einsum("bhqk,bkhd->bqhd", scores, v).reshape(b, t, d))

    def apply(params: Any, x: Any) -> Any:
        x = _dense(params["in"], x)
        for p in params["layers"]:
            x = _normed(p["n1"], x + attend(p, x))
            x = _normed(p["n2"], x + _dense(p["down"], jax.nn.relu(_dense(p["up"], x))))
        return _dense(params["head"], x.mean(1))

    return params, apply


def _embedding() -> tuple[Any, Apply]:
    w = _Weights()
    return [w(10_000, 16), w.dense(16, 10)], lambda params, x: _dense(params[1], params[0][x].mean(1))


def _lstm() -> tuple[Any, Apply]:
    w = _Weights()
    params = {"x": w.dense(64, 512), "h": w.dense(128, 512), "head": w.dense(128, 10)}

    def apply(params: Any, x: Any) -> Any:
        gates = jnp.swapaxes(_dense(params["x"], x), 0, 1)
        zero = jnp.zeros((x.shape[0], 128))

        def step(state: Any, gate: Any) -> Any:
            h, c = state
            i, f, g, o = jnp.split(gate + _dense(params["h"], h), 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

        (h, _), _ = lax.scan(step, (zero, zero), gates)
        return _dense(params["head"], h)

    return params, apply


MODELS: dict[str, Callable[[], tuple[Any, Apply]]] = {
    "logistic": lambda: _mlp((784, 10)),
    "mlp": lambda: _mlp((784, 256, 256, 10)),
    "mnist-cnn": _mnist,
    "cifar-cnn": _cifar,
    "transformer": _transformer,
    "embedding": _embedding,
    "lstm": _lstm,
}


def stepper(name: str, batch: int, lr: float) -> Callable[[Any, Any], None]:
    """A private step on numpy arrays; the best that jax-privacy offers on CPU: one compiled function,
    everything inside."""
    params, apply = MODELS[name]()

    def loss(params: Any, x: Any, y: Any) -> Any:
        logits = apply(params, x)
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1).sum()

    clipped = jax_privacy.clipping.clipped_grad(loss, l2_clip_norm=1.0, batch_argnums=(1, 2))
    privatizer = jax_privacy.noise_addition.gaussian_privatizer(stddev=1.0, prng_key=jax.random.key(0))

    @jax.jit
    def update(params: Any, state: Any, x: Any, y: Any) -> Any:
        noisy, state = privatizer.update(clipped(params, x, y), state)
        return jax.tree.map(lambda p, g: p - lr / batch * g, params, noisy), state

    held = [params, privatizer.init(params)]

    def step(x: Any, y: Any) -> None:
        held[:] = update(*held, jnp.asarray(x), jnp.asarray(y))
        jax.block_until_ready(held[0])

    return step
