"""What actors cost, and whether they make the same."""
