"""A gate for continuous integration: conditions on systems, tested and never a bare difference."""
