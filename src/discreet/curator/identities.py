"""What a long run is known by when it is gone on with: a fingerprint of everything that it was begun with.

The price alone does not tell two runs apart. A search over other candidates may cost the same, and the
theorem of its price is about runs that are all alike: one that began with some candidates and ends with
others is no run that anybody has priced.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .. import _registry
from .._errors import DescriptionError, InvalidInput
from .entries import canonical


def identity_of(mechanism: Any) -> str | None:
    """Return the fingerprint of a mechanism's complete description; of trusted code, which has none, that of
    its own `identity` (what JSON can hold); None where it has neither.

    No data are in it: a description is public, and so must an `identity` be.
    """
    try:
        facts = _registry.to_json(mechanism)
    except DescriptionError:
        facts = getattr(mechanism, "identity", None)
    except (RecursionError, ValueError):
        raise InvalidInput(
            "this is nested too deep, or has a number with too many digits, to be described. Nothing was "
            "charged."
        ) from None
    if facts is None:
        return None
    return hashlib.sha256(canonical([type(mechanism).__name__, facts]).encode()).hexdigest()
