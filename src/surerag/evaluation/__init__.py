"""Comparisons of a user's own systems, and studies on the closed world: what was run, and what it shows."""
