"""The published methods: one file each, a generator that reads like the paper's algorithm."""
