"""The procedural prior as one function: scattering coefficients and a network's features, whitened on
procedural images.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ... import _require
from .image_batches import as_images, image_batches
from .network import ProceduralNetwork, Progress
from .scattering import Scattering, standardized
from .whitening import Whitening


class ProceduralPrior:
    """Computes `components` features of each image, in rows of length 1, from what was learned on procedural
    images alone.

    Scattering coefficients, each channel standardized over the image's own positions, and the features of a
    `ProceduralNetwork`, both with the same total variance on procedural images; then their principal
    components on `procedural` such images, divided by deviations to the `power`. With a `cache`, a
    folder, the network is trained once and kept there.

    Guarantee: a function of each image by itself, up to the rounding of floats: computing it costs nothing,
               and neighbors stay neighbors.
    Proof:     the parts are such functions, and what was fitted was fitted to procedural images.
    """

    def __init__(
        self,
        shape: tuple[int, int, int] = (1, 28, 28),
        *,
        components: int = 600,
        power: float = 0.75,
        width: int = 16,
        steps: int = 200,
        procedural: int = 3000,
        seed: int = 0,
        cache: str | Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        _require.integer(components=components, procedural=procedural, at_least=1)
        _require.probability(power=power)
        file = None
        if cache is not None:
            size = "x".join(str(side) for side in shape)
            file = Path(cache) / f"discreet-procedural-{size}-{width}-{steps}-{seed}.safetensors"
        self.network = ProceduralNetwork.trained(
            shape, width=width, steps=steps, seed=seed, cache=file, progress=progress
        )
        self.shape, self.scattering = self.network.shape, Scattering(shape[1:])
        generator = torch.Generator().manual_seed(seed + 2)
        number = max(procedural, components + 1)
        parts = [
            self._parts(self.network.procedural.images(min(500, number - start), generator)[0])
            for start in range(0, number, 500)
        ]
        blocks = [torch.cat([part[i] for part in parts]) for i in range(2)]
        self.scales = tuple(
            1 / float((block - block.mean(0)).square().sum(1).mean().sqrt()) for block in blocks
        )
        self.whitening = Whitening.fit(self._joined(blocks), components=components, power=power)

    @torch.no_grad()
    def features(self, images: Any, *, batch: int = 500, coefficients: Any = None) -> Tensor:
        """Return one row for each image (n, channels, height, width), or (n, height, width) of one channel,
        with values from 0 to 1. With bytes (uint8), 255 counts as 1.

        `coefficients` are those of `Scattering` for these images, where they were computed before.
        """
        _require.integer(batch=batch, at_least=1)
        rows = []
        for positions, images_batch in image_batches(as_images(images, self.shape), batch):
            parts = self._parts(images_batch, None if coefficients is None else coefficients[positions])
            rows.append(self.whitening(self._joined(parts)))
        return torch.cat(rows) if rows else torch.zeros(0, self.whitening.matrix.shape[1])

    @torch.no_grad()
    def _parts(self, images: Tensor, coefficients: Any = None) -> list[Tensor]:
        network = self.network(images)
        if coefficients is None:
            maps = self.scattering(images)
        else:
            sides = (side >> self.scattering.J for side in self.shape[1:])
            maps = torch.as_tensor(np.asarray(coefficients, np.float32))
            maps = maps.reshape(len(images), self.shape[0], self.scattering.channels, *sides)
        return [standardized(maps).flatten(1), network]

    def _joined(self, blocks: list[Tensor]) -> Tensor:
        return torch.cat([block * scale for block, scale in zip(blocks, self.scales, strict=True)], 1)
