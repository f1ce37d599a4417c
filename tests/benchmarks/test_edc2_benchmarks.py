"""The benchmarks of clustering and compression run, in a toy size; what they measure is not tested."""

from __future__ import annotations

import pytest

from benchmarks import clustering, compression


def test_clustering_is_compared_with_both_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["benchmark", "--tiny", "--turns", "1"])
    clustering.main()
    printed = capsys.readouterr().out
    assert "Agglomer" in printed
    assert "Embeddin" in printed


def test_compression_asks_once_a_cluster_where_its_peer_asks_once_a_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compression, "LATENCY", 0.0)
    monkeypatch.setattr("sys.argv", ["benchmark", "--top-k", "6"])
    compression.main()
    rows = {line.split("│")[1].strip(): line.split("│")[2].strip() for line in _rows(capsys)}
    assert rows == {
        "LLMChainExtractor": "6",
        "LLMChainExtractor, async": "6",
        "ClusterCompressor": "2",
        "ClusterCompressor, async": "2",
    }


def _rows(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
