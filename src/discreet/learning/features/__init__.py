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

from typing import TYPE_CHECKING

from ... import _registry

if TYPE_CHECKING:
    from .image_rows import JoinedRows as JoinedRows
    from .image_rows import PatchRows as PatchRows
    from .image_rows import ScatteringRows as ScatteringRows
    from .procedural import ProceduralClasses as ProceduralClasses
    from .scattering import Scattering as Scattering
    from .whitening import Directions as Directions
    from .whitening import PaidWhitening as PaidWhitening
    from .whitening import PartialWhitening as PartialWhitening
    from .whitening import PrivateWhitening as PrivateWhitening

__all__, __getattr__, __dir__ = _registry.exports(__name__)
