"""Recorded answers, as systems."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from surerag import compare
from surerag.errors import ConfigurationError
from surerag.evaluation.systems.traced import TracedSystems
from surerag.records import import_table
from surerag.records.importing import Columns


@pytest.fixture
def trace(tmp_path: Path):
    file = tmp_path / "table.jsonl"
    rows = [
        {
            "id": f"q{at}",
            "question": f"Q{at}?",
            "answers": [f"a{at}"],
            # Sure of what it knows: every other question; retrieval finds all but each tenth.
            "closed": f"a{at}" if at % 2 else "no",
            "open": f"a{at}" if at % 10 else "no",
            "doubt": 1.1 if at % 2 else 3.0,
        }
        for at in range(200)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    columns = Columns(
        {"none": "closed", "retrieval": "open"}, id="id", signals={"none": {"perplexity": "doubt"}}
    )
    return import_table(file, tmp_path / "trace", columns, reader="some-model")


def test_what_was_recorded_is_compared_at_once(trace):
    traced = TracedSystems(trace, "perplexity", 2.0)
    assert traced.names == ("plain", "lazy", "none")
    report = compare(traced.systems(), traced.questions())
    right = {one.name: one.measures["accuracy"].value for one in report.systems}
    assert right == {"plain": 0.9, "lazy": 0.9, "none": 0.5}
    assert report.system("lazy").retrieved == 0.5
    # Nobody told what they cost, or how long they took.
    assert report.system("plain").costs["seconds"] == 0.0


def test_what_is_not_recorded_is_named(trace):
    with pytest.raises(ConfigurationError, match=r"does not hold compressed.*plain, none"):
        TracedSystems(trace).systems(("plain", "compressed"))
    with pytest.raises(ConfigurationError, match="give a signal and a threshold"):
        TracedSystems(trace).systems(("lazy",))
