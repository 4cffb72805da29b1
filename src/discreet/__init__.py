"""Discreet answers questions about people without telling on anyone."""

__version__ = "0.1.0"
