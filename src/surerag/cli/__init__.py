"""The command line: the composition root, which alone may import everything, and does so when it must."""

from surerag.cli.main import main

__all__ = ["main"]
