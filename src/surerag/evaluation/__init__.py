"""Comparisons of a user's own systems, and studies on the closed world: what was run, what it shows, how sure."""
