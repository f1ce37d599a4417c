"""Sources: recorded questions as they stand in a file, and simulated ones with a known truth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from surerag.decisions.rows import DecisionRow
from surerag.errors import InputError
from surerag_studies.decisions.sources import KINDS, Kind, one_wording, recorded, simulated, source_of


def record(data: str, answer: str, other: str, retrieved: str, **changes: Any) -> dict[str, Any]:
    signals = {"perplexity": 1.5, "ln_entropy": 0.5, "energy": 20.0, "eigen_score": 0.1}
    answers = {"answer": answer, "answer_no_retrieval": other, "answer_one_retrieval": retrieved}
    return {"dataset": data, "golds": ["Velm"], **answers, **signals, **changes}


def test_a_trace_is_a_source_for_each_data_set(tmp_path: Path) -> None:
    rows = [
        record("a", "in Velm", "Orun", "Velm"),
        record("a", "Orun", "Velm", "the town of Velm", perplexity=3.0),
        record("b", "Orun", "Orun", "Orun"),
    ]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "t.parquet")
    first, second = recorded(tmp_path / "t.parquet")
    assert (first.name, second.name, first.simulated) == ("a", "b", False)
    assert first.without.tolist() == [1.0, 0.0] and first.with_.tolist() == [1.0, 1.0]
    assert first.signals[:, 0].tolist() == [1.5, 3.0]
    assert first.rows([1]) == [
        DecisionRow(dict(zip(first.names, first.signals[1].tolist(), strict=True)), 0.0, 1.0)
    ]
    # In one wording, the answer of the other one is a sample to agree with.
    same, agreed = one_wording(tmp_path / "t.parquet")
    assert same.without.tolist() == [0.0, 1.0]
    assert same.signals[:, same.names.index("wordings disagree")].tolist() == [1.0, 1.0]
    assert agreed.signals[0, agreed.names.index("wordings disagree")] == 0.0


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    parquet.write_table(pa.table({"dataset": ["a"]}), tmp_path / "t.parquet")
    with pytest.raises(InputError, match="has no answer, answer_no_retrieval, answer_one_retrieval, eigen"):
        recorded(tmp_path / "t.parquet")


def test_rows_become_a_source_with_the_signal_to_calibrate_first() -> None:
    source = source_of("world", [DecisionRow({"length": 2.0, "perplexity": 1.5}, True, False)], "perplexity")
    assert source.names == ("perplexity", "length")
    assert (source.signals.tolist(), source.without.tolist(), source.with_.tolist()) == (
        [[1.5, 2.0]],
        [1.0],
        [0.0],
    )


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_simulated_questions_have_the_shares_that_were_asked_for(kind: Kind) -> None:
    drawn = simulated(kind, 40_000, np.random.default_rng(0))
    wrong = drawn.without == 0
    assert 1 - wrong.mean() == pytest.approx(kind.right, abs=0.02)
    assert drawn.with_[wrong].mean() == pytest.approx(kind.mends, abs=0.02)
    assert 1 - drawn.with_[~wrong].mean() == pytest.approx(kind.spoils, abs=0.02)
    doubt = drawn.signals[:, 0]
    stayed = wrong & (drawn.with_ == 0)
    assert doubt[stayed].mean() - doubt[~wrong].mean() == pytest.approx(kind.doubt, abs=0.05)
