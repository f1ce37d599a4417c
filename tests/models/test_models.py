"""The pages of models say what happens: some of their rows, tried again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.page import SIGNS
from tests.models.parts import HOUSES, House
from tests.models.served import models
from tests.models.trying import try_model

PAGES = Path(__file__).parents[2] / "docs" / "models"
TRIED = ("gpt-5", "vllm-qwen3", "groq")
"""One that refuses and warns, one that thinks and measures, one that refuses."""


def row_of(house: House, model: str) -> list[str]:
    lines = (PAGES / f"{HOUSES[house]}.md").read_text(encoding="utf-8").splitlines()
    [row] = [line for line in lines if line.startswith(f"| {model} |")]
    return row.strip("| ").split(" | ")[1:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("house", HOUSES)
def test_pages_of_models_say_what_happens(house: House) -> None:
    for model in models(house):
        if model.name.endswith(tuple(f": {name}" for name in TRIED)) and "(" not in model.name:
            cells = try_model(model)
            assert [SIGNS[cell.outcome] for cell in cells] == row_of(house, model.name), cells


@pytest.mark.parametrize("house", HOUSES)
def test_no_part_fails_with_any_model(house: House) -> None:
    assert "fails" not in (PAGES / f"{HOUSES[house]}.md").read_text(encoding="utf-8").split("## What was")[0]
