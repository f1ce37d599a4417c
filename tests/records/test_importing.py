"""Tables that others recorded: two real ones, where they are, and any other by its columns."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from surerag.decisions.calibrating import calibrate
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.statistics import auroc
from surerag.records import ADARAGUE_2WIKI, ADARAGUE_SINGLE_HOP, Columns, Trace, import_table
from tests.records.real_data import shared

DATA = shared("traces")
real = pytest.mark.skipif(DATA is None, reason="the recorded traces are not there: ../shared/data/traces")


@real
@pytest.mark.parametrize(("dataset", "wrong", "helps"), [("nq", 0.63, 0.56), ("triviaqa", 0.74, 0.63)])
def test_a_real_readers_records(tmp_path: Path, dataset: str, wrong: float, helps: float) -> None:
    assert DATA is not None
    trace = import_table(
        DATA / "single_hop.parquet",
        tmp_path,
        ADARAGUE_SINGLE_HOP,
        reader="Llama-3.1-8B-Instruct",
        judge="in_accuracy",
        where={"dataset": dataset},
    )
    rows = list(trace.decision_rows("none", "retrieval"))
    assert len(trace) == len(rows) == 500
    doubt = np.array([row.signals["perplexity"] for row in rows])
    right = np.array([bool(row.correct_without) for row in rows])
    helped = np.array([row.benefit > 0 for row in rows])
    assert auroc(doubt[~right], doubt[right]).value == pytest.approx(wrong, abs=0.005)
    assert auroc(doubt[helped], doubt[~helped]).value == pytest.approx(helps, abs=0.005)
    with_ = np.mean([float(row.correct_with or 0) for row in rows])
    assert with_ == pytest.approx({"nq": 0.49, "triviaqa": 0.616}[dataset])
    policy = calibrate("perplexity", rows, max_loss=0.02)
    assert policy.n == 500 and policy.verdict != "no promise"


@real
def test_answers_without_uncertainties(tmp_path: Path) -> None:
    assert DATA is not None
    trace = import_table(DATA / "2wiki.parquet", tmp_path, ADARAGUE_2WIKI, reader="Llama-3.1-8B-Instruct")
    rows = list(Trace(tmp_path))
    assert len(rows) == 500 and rows[0].question == "Who is the father-in-law of Queen Hyojeong?"
    assert all(not row.signals for row in trace.decision_rows())
    with pytest.raises(ConfigurationError, match="does not hold what was asked"):
        trace.retriever()


def table(folder: Path) -> Path:
    row = {
        "q": "Where?",
        "gold": ["Velm"],
        "plain": "Orun",
        "rag": "in Velm",
        "ppl": 2.5,
        "ok": 0.5,
    }
    file = folder / "mine.parquet"
    pq.write_table(pa.Table.from_pylist([row, {**row, "plain": "Velm", "ppl": None}]), file)
    return file


COLUMNS = Columns(
    {"none": "plain", "retrieval": "rag"},
    golds="gold",
    question="q",
    signals={"none": {"perplexity": "ppl"}},
    correct={"retrieval": "ok"},
)


def test_any_table_by_its_columns(tmp_path: Path) -> None:
    first, second = import_table(table(tmp_path), tmp_path / "t", COLUMNS, reader="mine")
    assert (first.id, first.question, first.golds) == ("1", "Where?", ("Velm",))
    assert [(one.condition, one.text, one.correct) for one in first.passes] == [
        ("none", "Orun", 0.0),
        ("retrieval", "in Velm", 0.5),
    ]
    assert first.passes[0].signals == {"perplexity": 2.5} and second.passes[0].signals == {}
    with pytest.raises(ConfigurationError, match="holds a trace already"):
        import_table(table(tmp_path), tmp_path / "t", COLUMNS, reader="mine")


def test_jsonl_is_a_table_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    row = {"q": "Where?", "gold": "Velm", "plain": "Orun", "rag": "Velm", "ppl": 1, "ok": 1}
    file.write_text(json.dumps(row) + "\n" + json.dumps({**row, "q": "Who?"}) + "\n")
    trace = import_table(file, tmp_path / "t", COLUMNS, reader="mine", where={"q": "Who?"})
    assert [row.question for row in trace] == ["Who?"]


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"row 1: the column 'nope' is missing. The table has 'q', 'gold'"):
        import_table(
            table(tmp_path), tmp_path / "a", Columns({"none": "nope"}, golds="gold", question="q"), reader="m"
        )
    file = tmp_path / "bad.jsonl"
    file.write_text(json.dumps({"q": "?", "gold": "V", "plain": "", "rag": "", "ppl": "high", "ok": 1}))
    with pytest.raises(InputError, match="the column 'ppl' must be a number, found 'high'"):
        import_table(file, tmp_path / "b", COLUMNS, reader="m")
    with pytest.raises(ConfigurationError, match="signals names conditions without answers: summaries"):
        Columns({"none": "a"}, signals={"summaries": {"perplexity": "p"}})
    with pytest.raises(InputError, match="holds no row"):
        import_table(table(tmp_path), tmp_path / "c", COLUMNS, reader="m", where={"q": "other"})
