"""The pictures that are committed are those that the script draws, and can be read."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree as ET

import pytest

from tests.snippets import ROOT
from tools.draw_pictures import FLOWS, FOLDER, MEASURED, WIDTH, pictures

DRAWN = pictures(json.loads(MEASURED.read_text(encoding="utf-8")))
SVG = "{http://www.w3.org/2000/svg}"
WIDEST = {"strong": 7.6, "small": 6.2}
"""Pixels of an average letter, at most, in the faces that pages fall back to."""


def test_the_files_are_what_the_script_draws() -> None:
    committed = {file.name: file.read_text(encoding="utf-8") for file in FOLDER.glob("*.svg")}
    assert committed == DRAWN, "run python -m tools.draw_pictures"


@pytest.mark.parametrize("name", sorted(DRAWN))
def test_no_text_leaves_its_picture_and_each_has_words_for_those_who_cannot_see(name: str) -> None:
    root = ET.fromstring(DRAWN[name])
    assert root.attrib["aria-label"] == root.findtext(f"{SVG}title")
    for text in root.iter(f"{SVG}text"):
        length = len(text.text or "") * WIDEST[text.attrib["class"].split()[0]]
        start = (
            float(text.attrib["x"])
            - {"start": 0, "middle": length / 2, "end": length}[text.attrib["text-anchor"]]
        )
        assert start >= 0 and start + length <= WIDTH, text.text
    assert "prefers-color-scheme: dark" in DRAWN[name]


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_every_box_is_reached(name: str) -> None:
    flow = FLOWS[name]
    boxes = {(row, at) for row, places in enumerate(flow.rows) for at, box in enumerate(places) if box}
    assert {end for _, end, _ in flow.arrows} == boxes - {(0, 0)}


@pytest.mark.parametrize("name", sorted(FLOWS))
def test_a_method_s_page_shows_its_picture(name: str) -> None:
    page = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert re.search(rf"!\[[^\]]+\]\(\.\./pictures/{name}\.svg\)", page)
