"""Draws images from random processes: classes of random characters and of random objects, which show nothing
real.

A class is drawn at random: the strokes of a character, or the parts of an object. An image of the class has
the same strokes or parts, each moved a little, under a random affine map, with a random width of the pen,
random shades and textures. Features that are fitted to such images (`Directions`, `PatchRows`) have seen no
private image, nor any real one. The idea is that of Baradad et al. 2021, arXiv:2106.05963 (networks learn
from noise), used for private learning by Tang et al. 2023, arXiv:2306.06076.

The numbers in the code (deviations of positions, angles and shades) were chosen by hand, not tuned one by
one. Any change of them, or of the order of random draws, changes all images and the features that are fitted
to them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch
from torch import Tensor

from ... import _require
from ..._require import at_least

# The most strokes of a character, the number of points by which a stroke is drawn, and the most parts of an
# object: fixed together with the settings of benchmarks/vision.
_STROKES, _POINTS, _PARTS = 3, 22, 6
# A coordinate so far outside the image that nothing drawn there is visible; the image is [-1, 1] x [-1, 1].
_OUTSIDE = 1e3


@_require.checked
@dataclass(frozen=True, eq=False)
class ProceduralClasses:
    """Draws images of `classes` random classes: those with even numbers are characters, the others objects.

    `shape` is (channels, height, width), with one channel or three. The same `seed` gives the same classes.
    `_facts` holds random numbers of each class by name: "control" (points of curves) and "strokes" (which
    strokes a character has); "parts" (which parts an object has), and of each part "center", "half" (half
    axes), "angle", "mirrored", "square" (a superellipse, not an ellipse), "shades" and "stripes" (angle,
    frequency and depth).

    Guarantee: classes and images depend on the arguments alone: no data are read.
    """

    classes: Annotated[int, at_least(2)] = 1024
    shape: tuple[int, int, int] = (1, 28, 28)
    seed: Annotated[int, at_least(0)] = 0
    _facts: dict[str, Tensor] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        sizes = tuple(_require.listed(shape=self.shape))
        if len(sizes) != 3 or sizes[0] not in (1, 3) or any(type(s) is not int or s < 1 for s in sizes):
            raise _require.fail("shape", self.shape, "(channels, height, width) with 1 channel or 3")
        object.__setattr__(self, "_facts", _draw_classes(self.classes, self.shape[0], self.seed))

    def images(self, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return n images, with values from 0 to 1, and the number of the class of each."""
        _require.integer(n=n, at_least=1)
        labels = torch.randint(self.classes, (n,), generator=generator, device="cpu")
        out = torch.empty(n, *self.shape, device="cpu")
        are_characters = labels % 2 == 0
        for chosen, draw in ((are_characters, self._characters), (~are_characters, self._objects)):
            if chosen.any():
                out[chosen] = draw(labels[chosen], generator)
        return out, labels

    def _characters(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images of characters: cubic Bezier curves, drawn with a round pen."""
        control = self._facts["control"][labels]
        control = control + 0.07 * torch.randn(control.shape, generator=generator, device="cpu")
        steps = torch.linspace(0, 1, _POINTS, device="cpu")
        weights = torch.stack(
            [(1 - steps) ** 3, 3 * steps * (1 - steps) ** 2, 3 * steps**2 * (1 - steps), steps**3]
        )
        # n images, s strokes, k control points, p points of the curve, c coordinates
        points = torch.einsum("kp,nskc->nspc", weights, control)
        points = torch.where(self._facts["strokes"][labels][:, :, None, None], points, _OUTSIDE).flatten(1, 2)
        grid = self._grid(len(labels), generator).flatten(1, 2)
        distance = torch.cdist(grid, points).amin(2)
        pen = 0.06 + 0.12 * torch.rand(len(labels), 1, generator=generator, device="cpu")
        ink = torch.sigmoid((pen - distance) * 25).view(-1, 1, *self.shape[1:])
        if self.shape[0] == 1:
            return ink
        background = self._background(len(labels), generator)
        return background + ink * (_uniform((len(labels), 3, 1, 1), generator) - background)

    def _objects(self, labels: Tensor, generator: torch.Generator) -> Tensor:
        """Return images of objects: ellipses and superellipses |u|^4 + |v|^4 <= 1, painted over each other,
        each with its shade and its stripes."""
        facts = {name: values[labels] for name, values in self._facts.items()}
        n = len(labels)
        grid = self._grid(n, generator)[:, None]
        center = facts["center"] + 0.05 * torch.randn(n, _PARTS, 2, generator=generator, device="cpu")
        half_axes = facts["half"] * torch.exp(
            0.12 * torch.randn(n, _PARTS, 2, generator=generator, device="cpu")
        )
        angle = facts["angle"] + 0.12 * torch.randn(n, _PARTS, generator=generator, device="cpu")
        x, y = grid[..., 0], grid[..., 1]
        # A mirrored part appears on the left and on the right.
        x = torch.where(facts["mirrored"][:, :, None, None], x.abs(), x)
        x, y = x - center[..., 0, None, None], y - center[..., 1, None, None]
        cos, sin = torch.cos(angle)[..., None, None], torch.sin(angle)[..., None, None]
        u = (x * cos + y * sin) / half_axes[..., 0, None, None]
        v = (y * cos - x * sin) / half_axes[..., 1, None, None]
        round_, square = u**2 + v**2, u**4 + v**4
        # at most 1 inside the part
        squared_radius = torch.where(facts["square"][:, :, None, None], square.sqrt(), round_)
        cover = torch.sigmoid((1 - squared_radius) * 6) * facts["parts"][:, :, None, None]
        stripe_angle = facts["stripes"][..., 0, None, None]
        # 6.3 is about 2 pi: a random phase.
        wave = torch.sin(
            facts["stripes"][..., 1, None, None] * (u * torch.cos(stripe_angle) + v * torch.sin(stripe_angle))
            + 6.3 * _uniform((n, _PARTS, 1, 1), generator)
        )
        depth = facts["stripes"][..., 2, None, None] * 2 * _uniform((n, _PARTS, 1, 1), generator)
        shades = facts["shades"] * (1 + 0.25 * torch.randn(n, 1, 1, generator=generator, device="cpu"))
        shades = shades + 0.08 * torch.randn(shades.shape, generator=generator, device="cpu")
        out = (
            self._background(n, generator)
            if self.shape[0] == 3
            else torch.zeros(n, *self.shape, device="cpu")
        )
        for part in range(_PARTS):
            paint = shades[:, part, :, None, None] * (1 + depth * wave)[:, part, None]
            out = out + cover[:, part, None] * (paint - out)
        # Grain is added to painted pixels, not to a black background.
        grain = (
            0.06
            * _uniform((n, 1, 1, 1), generator)
            * torch.randn(out.shape, generator=generator, device="cpu")
        )
        return (out + grain * (out > 0.05)).clamp(0, 1)

    def _grid(self, n: int, generator: torch.Generator) -> Tensor:
        """Return the coordinates (n, height, width, 2) of all pixels in the plane in which the class is
        drawn, after a random affine map for each image."""
        _, height, width = self.shape
        rows = (torch.arange(height, device="cpu") + 0.5) * 2 / height - 1
        columns = (torch.arange(width, device="cpu") + 0.5) * 2 / width - 1
        angle = 0.22 * torch.randn(n, generator=generator, device="cpu")
        cos, sin = torch.cos(angle), torch.sin(angle)
        shear = 0.2 * torch.randn(n, generator=generator, device="cpu")
        size = torch.exp(0.15 * torch.randn(n, 2, generator=generator, device="cpu"))
        # The rows of the map's matrices: diag(size) times a rotation times a shear.
        first = torch.stack([cos * size[:, 0], (shear * cos - sin) * size[:, 0]], 1)
        second = torch.stack([sin * size[:, 1], (shear * sin + cos) * size[:, 1]], 1)
        pixels = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
        moved = torch.einsum("nij,hwj->nhwi", torch.stack([first, second], 1), pixels)
        return moved + 0.08 * torch.randn(n, 1, 1, 2, generator=generator, device="cpu")

    def _background(self, n: int, generator: torch.Generator) -> Tensor:
        """Return backgrounds whose colors change smoothly: random colors at 2 x 2 and at 8 x 8 points, both
        interpolated and mixed."""
        _, height, width = self.shape
        parts = [
            torch.nn.functional.interpolate(
                _uniform((n, 3, side, side), generator), (height, width), mode="bilinear"
            )
            for side in (2, 8)
        ]
        mix = _uniform((n, 1, 1, 1), generator) * 0.6
        return parts[0] * (1 - mix) + parts[1] * mix


def _uniform(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator, device="cpu")


def _draw_classes(classes: int, channels: int, seed: int) -> dict[str, Any]:
    """Return the random numbers of all classes (`ProceduralClasses._facts`): for each class the curves of a
    character and the parts of an object, though a class is only one of the two. The order of draws must not
    change."""
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        return low + (high - low) * torch.rand(*shape, generator=generator, device="cpu")

    control = uniform(classes, _STROKES, 4, 2, low=-0.75, high=0.75)
    for stroke in range(1, _STROKES):
        # Half of the strokes start where the stroke before ended.
        joined = uniform(classes) < 0.5
        control[joined, stroke, 0] = control[joined, stroke - 1, 3]
    stroke_count = torch.randint(1, _STROKES + 1, (classes, 1), generator=generator, device="cpu")
    control = _fit_to_frame(control, torch.arange(_STROKES, device="cpu")[None] < stroke_count)
    part_count = torch.randint(1, _PARTS + 1, (classes, 1), generator=generator, device="cpu")
    # The first parts are larger.
    half_axes = torch.linspace(0.7, 0.25, _PARTS, device="cpu").view(1, -1, 1)
    mirrored = uniform(classes, _PARTS) < 0.6
    center = uniform(classes, _PARTS, 2, low=-0.6, high=0.6)
    center[:, 0] *= 0.2
    stripes = torch.stack(
        [
            uniform(classes, _PARTS, high=math.pi),
            uniform(classes, _PARTS, low=2.0, high=12.0),
            uniform(classes, _PARTS, high=0.5) * (uniform(classes, _PARTS) < 0.5),
        ],
        -1,
    )
    return {
        "control": control,
        "strokes": torch.arange(_STROKES, device="cpu")[None] < stroke_count,
        "parts": torch.arange(_PARTS, device="cpu")[None] < part_count,
        "center": center,
        "half": half_axes * uniform(classes, _PARTS, 2, low=0.35, high=1.2),
        "angle": uniform(classes, _PARTS, low=-0.5, high=0.5),
        "mirrored": mirrored,
        "square": uniform(classes, _PARTS) < 0.5,
        "shades": uniform(classes, _PARTS, channels, low=0.0, high=1.0).clamp(0.1),
        "stripes": stripes,
    }


def _fit_to_frame(control: Tensor, used: Tensor) -> Tensor:
    """Return control points moved and resized such that the `used` strokes of each character reach from -0.7
    to 0.7 along the longer side of their bounding box."""
    low = torch.where(used[:, :, None, None], control, _OUTSIDE).amin((1, 2), keepdim=True)
    high = torch.where(used[:, :, None, None], control, -_OUTSIDE).amax((1, 2), keepdim=True)
    longest = (high - low).amax(3, keepdim=True).clamp(0.1)
    return (control - (low + high) / 2) * 1.4 / longest
