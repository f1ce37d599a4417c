"""Servers in this process, for tests."""
