"""Benchmarks against named rivals.

`python -m benchmarks` runs all; each module here with a `main()` is one.
"""
