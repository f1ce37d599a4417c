"""``python -m tests.models FILE``: run every part with every kind of model, and write the page."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.models.page import page
from tests.models.served import models
from tests.models.trying import try_model


def main() -> None:
    """Write the page; tell on the way what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--only", default="", help="models whose name holds this")
    given = parser.parse_args()
    found = []
    for model in models():
        if given.only.lower() in f"{model.house} {model.name}".lower():
            found.append((model, try_model(model)))
            fails = [f"{cell.part}: {cell.said}" for cell in found[-1][1] if cell.outcome == "fails"]
            print("\n  ".join([f"{model.house}: {model.name}", *fails]), file=sys.stderr)
    given.file.parent.mkdir(parents=True, exist_ok=True)
    given.file.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
