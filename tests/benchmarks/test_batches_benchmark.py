"""The benchmark of batch callables runs, in a toy size; what it measures is not tested."""

from __future__ import annotations

import pytest

from benchmarks import batches


def test_every_callable_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    reader = '{"factory": "tests.scale.makers:reader"}'
    costs = batches.main(["--rows", "4", "--size", "2", "--reader", reader, "--entailer", '"exact"'])
    assert [cost.name for cost in costs] == [
        "LazyRAGBatch",
        "SePerBatch",
        "CompressBatch",
        "DenseBatch",
        "RewriteBatch",
        "ChunkBatch",
        "SummarizeBatch",
        "EmbedBatch",
    ]
    assert all(cost.rate > 0 and cost.bytes_out > 0 for cost in costs)
    assert "LazyRAGBatch" in capsys.readouterr().out
