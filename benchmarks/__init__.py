"""Benchmarks, run as modules from the root of a clone."""
