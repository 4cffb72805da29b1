"""Computes the procedural prior: scattering coefficients and the features of a network that is trained on
procedural images (images of random processes), mapped to whitened principal components, which are fitted to
procedural images too.
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
    """Computes `components` features of each image, in rows of norm 1, by maps that are fitted to procedural
    images alone.

    The features are scattering coefficients, each channel standardized over the image's own positions, and
    the features of a `ProceduralNetwork` with `width` and `steps`. Both are scaled to the same total variance
    on procedural images. Their principal components are computed on `procedural` such images (on
    `components` + 1 at least), and each is divided by its standard deviation to the power `power`
    (`Whitening`). With a `cache`, a folder, the network is trained once and its file kept there.

    Guarantee: the row of an image depends on that image alone, up to the rounding of floats. So computing
               rows costs no privacy, and neighboring sets of images give neighboring sets of rows.
    Proof:     scattering coefficients, the network's features and the `Whitening` of a row depend on one
               image alone, and everything that is fitted is fitted to procedural images.
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
        # n images span at most n - 1 directions around their mean.
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
        """Return one row for each image. Images have the shape (n, channels, height, width), or (n, height,
        width) for one channel, and values from 0 to 1; bytes (uint8) are divided by 255.

        `coefficients` are those of `Scattering` for these images, if they were computed before.
        """
        _require.integer(batch=batch, at_least=1)
        rows = []
        for positions, images_batch in image_batches(as_images(images, self.shape), batch):
            parts = self._parts(images_batch, None if coefficients is None else coefficients[positions])
            rows.append(self.whitening(self._joined(parts)))
        return torch.cat(rows) if rows else torch.zeros(0, self.whitening.matrix.shape[1])

    @torch.no_grad()
    def _parts(self, images: Tensor, coefficients: Any = None) -> list[Tensor]:
        """Return two blocks of features, before they are scaled: scattering coefficients and the
        network's."""
        network = self.network(images)
        if coefficients is None:
            maps = self.scattering(images)
        else:
            sides = (side >> self.scattering.J for side in self.shape[1:])
            maps = torch.as_tensor(np.asarray(coefficients, np.float32))
            maps = maps.reshape(len(images), self.shape[0], self.scattering.channels, *sides)
        return [standardized(maps).flatten(1), network]

    def _joined(self, blocks: list[Tensor]) -> Tensor:
        """Return both blocks side by side, each multiplied by its scale."""
        return torch.cat([block * scale for block, scale in zip(blocks, self.scales, strict=True)], 1)
