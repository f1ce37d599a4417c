"""The words of the glossary as tooltips: each page explains a word where the word first appears."""

from __future__ import annotations

import re
from pathlib import Path

_ROW = re.compile(r"^\| (?P<word>[^|]+) \| (?P<meaning>[^|]+) \|$", re.MULTILINE)

_EVERYDAY = {
    "Calibrate",
    "Chunk",
    "Cluster",
    "Context",
    "Interval",
    "Reference",
    "Right",
    "Search",
    "System",
    "Token",
    "Trace",
    "word",
}
"""Rows without a tooltip: the table's own title, and words that pages also use in their everyday meaning."""


def tooltips(glossary: Path) -> str:
    """Return an abbreviation of Markdown (``*[word]: meaning``) for each spelling of each glossary word.

    The spellings are singular and plural, with a capital and without. The script ``docs/assets/tooltips.js``
    keeps the first tooltip of each word on a page.
    """
    lines = []
    for row in _ROW.finditer(glossary.read_text(encoding="utf-8")):
        word, meaning = row["word"].strip(), re.sub(r"[`*]", "", row["meaning"]).strip()
        if word in _EVERYDAY or word == "---":
            continue
        plural = word[:-1] + "ies" if word.endswith("y") else word + "s"
        spellings = {word, plural}
        if not word[1].isupper():
            spellings |= {text[0].lower() + text[1:] for text in (word, plural)}
        lines += [f"*[{spelling}]: {meaning}" for spelling in sorted(spellings)]
    return "\n".join(lines) + "\n"
