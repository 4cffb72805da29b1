"""Data as mechanisms see it: sources, the engines behind them, and a real table to try things on."""

from .bundled import rand_hie
from .source import Memory, Source

__all__ = ["Memory", "Source", "rand_hie"]
