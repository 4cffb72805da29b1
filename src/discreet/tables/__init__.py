"""Data as mechanisms see it: sources, and the engines behind them."""

from .source import Memory, Source

__all__ = ["Memory", "Source"]
