"""Adaptive analysis: many looks at one dataset, each chosen after seeing the last, without being fooled by it."""
