"""Computes the identity of a long run: a fingerprint of everything that it was started with, compared when it
is resumed.

The price alone does not tell two runs apart. A search over other candidates may cost the same, but the
theorem behind its price assumes that all trials are drawn from the same candidates. A run that starts with
some candidates and ends with others has no proved price.
"""

from __future__ import annotations

import hashlib
from typing import Any

from .. import _registry
from .._errors import DescriptionError, InvalidInput
from .entries import canonical


def identity_of(mechanism: Any) -> str | None:
    """Return the fingerprint of a mechanism's complete description. Trusted code has no description: its
    `identity` (any value that JSON can hold) is used instead. None if the mechanism has neither.

    The fingerprint stands in the ledger and must not depend on data: a description is public, and an
    `identity` must be.
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
