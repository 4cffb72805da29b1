"""The matrix mechanism: many linear questions answered together, and noise that is correlated over time."""
