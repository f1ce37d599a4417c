"""Tables and JSON of the study: complete and consistent."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace

import pytest

from surerag.evaluation.serialise import to_json
from surerag_studies.lazy_rag.results import LazyRagStudy
from surerag_studies.lazy_rag.tables import study_tables
from tests.evaluation.gate.imagined import imagined_records
from tests.studies.lazy_rag.imagined import imagined_study
from tests.studies.showing import numbers, shown


@pytest.fixture(scope="module")
def study() -> LazyRagStudy:
    return imagined_study()


def test_every_number_shown_is_in_the_json(study: LazyRagStudy) -> None:
    stored = json.loads(to_json(study))
    del stored["records"]
    # Shown figures are rounded, shares as percentages: compare as they are written.
    known = {
        text
        for number in numbers(stored)
        for scale in (1, 100)
        for text in (*(f"{abs(number) * scale:.{digits}f}" for digits in range(5)), f"{number:.1e}")
    }
    body = re.sub(r"L-RAG|seed \d+|Tables? I+|\(cf\.[^)]*\)", "", shown(study_tables(study))).replace(",", "")
    missing = [token for token in re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", body) if token not in known]
    assert missing == []


@pytest.mark.parametrize("width", [80, 100])
def test_tables_fit_the_terminal(study: LazyRagStudy, width: int) -> None:
    text = shown(study_tables(study), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text


def test_json_writes_null_for_what_json_lacks() -> None:
    records = imagined_records()
    silent = replace(records[0], entropy=math.inf, first=replace(records[0].first, correct=False))
    stored = json.loads(to_json(imagined_study([silent, *records[1:]])), parse_constant=pytest.fail)
    assert stored["records"][0]["entropy"] is None
    assert stored["n"] == 600


def test_study_of_a_reader_that_is_always_wrong_can_be_shown() -> None:
    wrong = [replace(one, first=replace(one.first, correct=False)) for one in imagined_records(60)]
    study = imagined_study(wrong)
    assert "too few right" in shown(study_tables(study))
