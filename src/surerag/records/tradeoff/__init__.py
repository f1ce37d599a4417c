"""What a threshold saves and what it costs, from a trace: every point of the curve, a promise, a page."""
