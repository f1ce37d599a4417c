"""Evaluation of a user's own systems and gates: data, runs that resume, statistics, comparison and report."""
