"""Features for private learning of images: most of them cost no privacy.

`Scattering` is the scattering transform, and `ScatteringRows` makes rows for a linear model of it;
`PatchRows` compares the patches of an image with those of procedural images, which suits photographs;
`JoinedRows` puts several kinds side by side;
`ProceduralNetwork` is a small network that learned from `ProceduralClasses`, images of random processes;
`ProceduralPrior` joins both, with a `Whitening` fitted to procedural images. What these give for one image
depends on that image alone, so the sensitivity of whatever is trained on it is that of the images themselves.
`PrivateWhitening` looks at private features, and pays; with `Directions`, public ones, it does so for the
part of the features that has the most variance.
"""

from .joined_rows import JoinedRows
from .network import ProceduralNetwork
from .partial_whitening import Directions, PartialWhitening
from .patch_rows import PatchRows
from .prior import ProceduralPrior
from .private_whitening import PaidWhitening, PrivateWhitening
from .procedural import ProceduralClasses
from .scattering import Scattering
from .scattering_rows import ScatteringRows
from .whitening import Whitening

__all__ = [
    "Directions",
    "JoinedRows",
    "PaidWhitening",
    "PartialWhitening",
    "PatchRows",
    "PrivateWhitening",
    "ProceduralClasses",
    "ProceduralNetwork",
    "ProceduralPrior",
    "Scattering",
    "ScatteringRows",
    "Whitening",
]
