"""Features for private learning of images: most of them cost no privacy.

`Scattering` is the scattering transform; `ProceduralNetwork` a small network that learned from
`ProceduralClasses`, images of random processes; `ProceduralPrior` both together, with a `Whitening` fitted to
procedural images. What these give for one image depends on that image alone, so the sensitivity of whatever
is trained on it is that of the images themselves. `PrivateWhitening` looks at private features, and pays.
"""

from .network import ProceduralNetwork
from .prior import ProceduralPrior
from .private_whitening import PaidWhitening, PrivateWhitening
from .procedural import ProceduralClasses
from .scattering import Scattering
from .whitening import Whitening

__all__ = [
    "PaidWhitening",
    "PrivateWhitening",
    "ProceduralClasses",
    "ProceduralNetwork",
    "ProceduralPrior",
    "Scattering",
    "Whitening",
]
