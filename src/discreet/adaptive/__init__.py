"""Adaptive analysis: many looks at one dataset, each chosen after seeing the last, without being fooled by it."""

from .discovery import (
    Addis,
    AlphaInvesting,
    Decisions,
    GeneralizedAlphaInvesting,
    Lord3,
    LordPlusPlus,
    Saffron,
    benjamini_hochberg,
)
from .spending import Javanmard, Listed, PowerLaw

__all__ = [
    "Addis",
    "AlphaInvesting",
    "Decisions",
    "GeneralizedAlphaInvesting",
    "Javanmard",
    "Listed",
    "Lord3",
    "LordPlusPlus",
    "PowerLaw",
    "Saffron",
    "benjamini_hochberg",
]
