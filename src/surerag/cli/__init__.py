"""The command line: ``surerag doctor | compare | evaluate | calibrate | train-rewriter``."""

from surerag.cli.main import main

__all__ = ["main"]
