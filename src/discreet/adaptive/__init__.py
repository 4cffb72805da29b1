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
from .hypotheses import Binomial, Hypothesis, TruncatedExponential
from .paprika import Decision, Paprika
from .spending import Javanmard, Listed, PowerLaw

__all__ = [
    "Addis",
    "AlphaInvesting",
    "Binomial",
    "Decision",
    "Decisions",
    "GeneralizedAlphaInvesting",
    "Hypothesis",
    "Javanmard",
    "Listed",
    "Lord3",
    "LordPlusPlus",
    "Paprika",
    "PowerLaw",
    "Saffron",
    "TruncatedExponential",
    "benjamini_hochberg",
]
