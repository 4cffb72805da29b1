"""Runs private training: trainer, schedules of batches, noise, checkpoints, workers, and data."""
