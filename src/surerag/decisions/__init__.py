"""Decisions that hold: thresholds with a promise, gates fitted to benefit, an answer or none, a watch."""
