"""The command line: ``surerag doctor | compare | evaluate | calibrate | train-rewriter``."""

from surerag.cli.app import main

__all__ = ["main"]
