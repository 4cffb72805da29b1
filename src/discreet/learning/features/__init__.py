"""Computes features for private learning of images: most of them cost no privacy.

- `Scattering` is the scattering transform, and `ScatteringRows` makes rows for a linear model from it.
- `ProceduralClasses` draws procedural images: images of random processes, which show nothing real.
- `PatchRows` compares the patches of an image with patches of procedural images, which suits photographs.
- `JoinedRows` concatenates rows of several kinds.

The features of an image by any of these depend on that image alone: one person's image changes one row of
features, and computing features costs no privacy. `PrivateWhitening` reads private features and has a price:
it releases a `PaidWhitening`, the linear map that makes their second moments about equal in all directions.
With `Directions`, which are public, it is limited to a few directions in which features vary most; the map is
then a `PartialWhitening`.
"""

from .image_rows import JoinedRows, PatchRows, ScatteringRows
from .procedural import ProceduralClasses
from .scattering import Scattering
from .whitening import Directions, PaidWhitening, PartialWhitening, PrivateWhitening

__all__ = [
    "Directions",
    "JoinedRows",
    "PaidWhitening",
    "PartialWhitening",
    "PatchRows",
    "PrivateWhitening",
    "ProceduralClasses",
    "Scattering",
    "ScatteringRows",
]
