"""Ray Data maps the callables as a plain loop does: equal bytes, also where an actor is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from surerag.world import World
from tests.snippets import ROOT

pytest.importorskip("ray", reason="of the extra `ray`")
pytestmark = pytest.mark.timeout(900)  # Ray starts a dozen processes, on a busy machine too
pytestmark = pytest.mark.timeout(900)

PATHS = [str(ROOT), *(str(ROOT / name) for name in ("src", "integrations", "studies"))]


def run(*arguments: str) -> str:
    """Run Ray in a process of its own: it leaves threads and hooks behind."""
    told = {
        # One thread everywhere: with another number of them, the last digits of a model's numbers differ.
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(PATHS),
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **told}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ray")
    run(str(ROOT / "tests" / "scale" / "on_ray.py"), str(folder))
    written: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return written


@pytest.mark.parametrize("name", ["one", "two"])
def test_blocks_are_byte_equal_to_a_plain_loop_s_whatever_the_number_of_actors(
    found: dict[str, Any], name: str
) -> None:
    assert [(block["equal"], block["errors"]) for block in found[name]] == [(True, 0)] * 3


def test_a_killed_actor_loses_no_row_and_doubles_none(found: dict[str, Any]) -> None:
    assert found["died"]
    assert [row for block in found["killed"] for row in block["rows"]] == list(range(24))
    assert [(block["equal"], block["errors"]) for block in found["killed"]] == [(True, 0)] * 3


def test_the_example_answers_and_measures(tmp_path: Path) -> None:
    world = World(seed=0)
    documents = [{"id": one.id, "text": one.text} for one in world.documents[:24]]
    questions = [
        {
            "question": "Where was Maela born?",
            "answers": ["Drafstad"],
            "contexts": ["Maela was born in Drafstad."],
        }
    ] * 6
    parquet.write_table(pa.Table.from_pylist(documents), tmp_path / "documents.parquet")
    parquet.write_table(pa.Table.from_pylist(questions), tmp_path / "questions.parquet")
    arguments = [f"--{name}={tmp_path / name}.parquet" for name in ("documents", "questions")]
    printed = run(
        str(ROOT / "examples" / "ray_pipeline.py"), *arguments, f"--output={tmp_path / 'out'}", "--actors=1"
    )
    assert "6 questions\n" in printed
    answers = parquet.read_table(tmp_path / "out" / "answers")
    assert [answers.column(name).null_count for name in ("lazy_rag_error", "seper_error")] == [6, 6]
    assert [answers.column(name).null_count for name in ("lazy_rag_answer", "seper_delta")] == [0, 0]
    passages = parquet.read_table(tmp_path / "out" / "passages")
    assert passages.num_rows >= 24 and passages.column("embed_error").null_count == passages.num_rows
