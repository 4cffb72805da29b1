"""Features that cost no privacy: fixed functions of one image, which look at no private data.

`Scattering` is the scattering transform. What it gives for one image depends on that image alone, so the
sensitivity of whatever is trained on it is that of the images themselves.
"""

from .scattering import Scattering

__all__ = ["Scattering"]
