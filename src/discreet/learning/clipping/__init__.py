"""Bounds the gradient of each example: taps on layers, routes for layers without one, clipping rules."""
