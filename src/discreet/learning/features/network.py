"""Trains a small network on procedural images (images of random processes, `procedural`), which gives
features of other images."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ... import _require
from ..._errors import InvalidInput
from .. import files
from .image_batches import as_images, image_batches
from .procedural import ProceduralClasses

# Settings of the training on procedural images (batch size, learning rate and weight decay of AdamW, steps of
# warm-up) and of the features (units before the classes, side of the grid of averages). They were fixed for
# benchmarks/vision before a test image was read, and cost no privacy. Another value gives other features.
_BATCH, _RATE, _DECAY, _WARMUP = 256, 4e-3, 1e-4, 30
_EMBEDDING, _POOLED = 256, 4
# Called after each step of training with the number of finished steps and of all.
Progress = Callable[[int, int], Any]


class ProceduralNetwork(nn.Module):
    """Computes features of images by a network that was trained to tell procedural classes apart.

    It has five convolutions with batch normalization, of `width` times 1, 2, 2, 4 and 4 channels. Features
    are the maps of the last convolution, averaged to a grid of 4 x 4, and the 256 units before the scores of
    the classes. `trained` trains a network, or reads it from a file; the constructor alone gives random
    weights. The same arguments give the same network on the same machine and version of torch.

    Guarantee: the row of an image depends on that image alone, up to the rounding of floats. So computing
               rows costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     the weights and the stored statistics of batch normalization depend on the arguments, with
               their `seed`, alone; features are computed without statistics of the batch (`train`).
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 28, 28),
        *,
        width: int = 16,
        classes: int = 1024,
        seed: int = 0,
    ) -> None:
        super().__init__()
        _require.integer(width=width, at_least=1)
        self.procedural = ProceduralClasses(classes, shape, seed)
        self.shape, self.width, self.classes, self.seed = self.procedural.shape, int(width), classes, seed
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            w = self.width
            self.maps = nn.Sequential(
                *_block(shape[0], w, 1), *_block(w, 2 * w, 2), *_block(2 * w, 2 * w, 1),
                *_block(2 * w, 4 * w, 2), *_block(4 * w, 4 * w, 1),
            )  # fmt: skip
            self.embedding = nn.Sequential(
                nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(4 * w * 3**2, _EMBEDDING, bias=False),
                nn.BatchNorm1d(_EMBEDDING), nn.ReLU(),
            )  # fmt: skip
            self.scores = nn.Linear(_EMBEDDING, classes)
        self.eval()

    @classmethod
    def trained(
        cls,
        shape: tuple[int, int, int] = (1, 28, 28),
        *,
        width: int = 16,
        classes: int = 1024,
        steps: int = 200,
        seed: int = 0,
        cache: str | Path | None = None,
        progress: Progress | None = None,
    ) -> ProceduralNetwork:
        """Return a network after `steps` batches of 256 procedural images.

        It is read from the file `cache` if that exists (a file of a network with other arguments is refused),
        and otherwise trained and written to that file.
        """
        _require.integer(steps=steps, at_least=1)
        network = cls(shape, width=width, classes=classes, seed=seed)
        arguments = {"shape": list(shape), "width": width, "classes": classes, "steps": steps, "seed": seed}
        if cache is not None and Path(cache).exists():
            return network._load_cache(Path(cache), arguments)
        if cache is not None and not Path(cache).parent.is_dir():
            raise InvalidInput(f"the folder of {cache} does not exist. Nothing was trained. Make it first.")
        network._train(steps, progress)
        if cache is not None:
            # Renamed when complete: `cache` is never half-written, even if this process is stopped meanwhile.
            unfinished = Path(f"{cache}.{os.getpid()}")
            unfinished.write_bytes(files.dump(network._weights(), {"features": json.dumps(arguments)}))
            unfinished.replace(cache)
        return network

    def train(self, mode: bool = True) -> ProceduralNetwork:
        """Stay in evaluation mode, whatever `mode` is: features must not depend on statistics of the batch,
        also where this network is part of a model that is put into training mode."""
        return super().train(False)

    @property
    def size(self) -> int:
        """Return the number of features of one image."""
        return 4 * self.width * _POOLED**2 + _EMBEDDING

    def forward(self, images: Tensor) -> Tensor:
        """Return one row of features for each image of a batch (n, channels, height, width)."""
        if tuple(images.shape[1:]) != tuple(self.shape) or not images.is_floating_point():
            raise InvalidInput(
                f"images must be floats of the shape (n, {', '.join(map(str, self.shape))}), from 0 to 1; "
                f"got {tuple(images.shape)} of {images.dtype}. Nothing was computed."
            )
        maps = self.maps(images)
        pooled = nn.functional.adaptive_avg_pool2d(maps, _POOLED).flatten(1)
        return torch.cat([pooled, self.embedding(maps)], 1)

    @torch.no_grad()
    def features(self, images: Any, *, batch: int = 256) -> Tensor:
        """Return one row of features for each image, computed in batches. Images have the shape (n, channels,
        height, width), or (n, height, width) for one channel, and values from 0 to 1; bytes (uint8) are
        divided by 255."""
        _require.integer(batch=batch, at_least=1)
        array = as_images(images, self.shape)
        rows = [self(part) for _, part in image_batches(array, batch)]
        return torch.cat(rows) if rows else torch.zeros(0, self.size)

    def _train(self, steps: int, progress: Progress | None) -> None:
        """Train all weights to predict the classes of procedural images."""
        generator = torch.Generator().manual_seed(self.seed + 1)
        optimizer = torch.optim.AdamW(self.parameters(), lr=_RATE, weight_decay=_DECAY)
        # not `self.train`, which stays in evaluation mode
        super().train()
        for step in range(steps):
            warmup = min(1.0, (step + 1) / _WARMUP)
            optimizer.param_groups[0]["lr"] = _RATE * warmup * (1 + math.cos(math.pi * step / steps)) / 2
            images, labels = self.procedural.images(_BATCH, generator)
            # The convolutions run in bfloat16, which saves a third of the time; the loss is in float32.
            with torch.autocast("cpu", torch.bfloat16):
                embedded = self.embedding(self.maps(images.to(memory_format=torch.channels_last)))
            scores = self.scores(embedded.float())
            optimizer.zero_grad()
            torch.autograd.backward(nn.functional.cross_entropy(scores, labels))
            optimizer.step()
            if progress is not None:
                progress(step + 1, steps)
        self.eval()

    def _weights(self) -> dict[str, Tensor]:
        """Return all weights and statistics but batch normalization's count of batches, which is not used."""
        state = self.state_dict()
        return {name: value for name, value in state.items() if not name.endswith("num_batches_tracked")}

    def _load_cache(self, path: Path, arguments: dict[str, Any]) -> ProceduralNetwork:
        """Return this network with the weights of a file; a file of a network with other `arguments` is
        refused."""
        try:
            tensors, texts = files.load(path.read_bytes())
        except InvalidInput as error:
            raise InvalidInput(f"{path} holds no network: {error} Remove it.") from None
        if json.loads(texts.get("features", "null")) != arguments:
            raise InvalidInput(
                f"{path} holds a network with other arguments than {arguments}. Nothing was loaded. Give "
                f"another file, or remove this one."
            )
        if {name: t.shape for name, t in tensors.items()} != {
            name: t.shape for name, t in self._weights().items()
        }:
            raise InvalidInput(
                f"{path} does not hold all weights of its network. Nothing was loaded. Remove it."
            )
        # Not strict, because the counts of batches are not stored.
        self.load_state_dict(tensors, strict=False)
        return self.eval()


def _block(in_channels: int, out_channels: int, stride: int) -> list[nn.Module]:
    """Return a convolution with batch normalization and ReLU."""
    convolution = nn.Conv2d(in_channels, out_channels, 3, stride, 1, bias=False)
    return [convolution, nn.BatchNorm2d(out_channels), nn.ReLU()]
