"""Tries on made-up examples whether a model keeps examples apart, before anything is charged."""
