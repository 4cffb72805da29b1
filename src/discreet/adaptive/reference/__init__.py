"""Keeps boards without a privacy guarantee, for comparison: the curator refuses them on protected data."""

from .boards import Ladder, ParameterFreeLadder, PlainBoard

__all__ = ["Ladder", "ParameterFreeLadder", "PlainBoard"]
