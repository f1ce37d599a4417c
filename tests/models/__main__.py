"""``python -m tests.models FOLDER``: run every part with every kind of model, and write a page a house."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.models.page import page
from tests.models.parts import HOUSES
from tests.models.served import models
from tests.models.trying import try_model


def main() -> None:
    """Write the pages; tell on the way what fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--house", choices=HOUSES, action="append", help="default: all")
    parser.add_argument("--only", default="", help="models whose name holds this")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    for house in given.house or HOUSES:
        found = []
        for model in models(house):
            if given.only.lower() in model.name.lower():
                found.append((model, try_model(model)))
                fails = [f"{cell.part}: {cell.said}" for cell in found[-1][1] if cell.outcome == "fails"]
                print("\n  ".join([f"{house}: {model.name}", *fails]), file=sys.stderr)
        file = given.folder / f"{HOUSES[house]}.md"
        file.write_text(page(house, found), encoding="utf-8")


if __name__ == "__main__":
    main()
