"""The command line: ``surerag demo | doctor | compare | evaluate | calibrate | train-rewriter``."""

from surerag.cli.app import main

__all__ = ["main"]
