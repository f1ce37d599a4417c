"""Vectors on disk: each text is encoded once, whoever asks; a broken file is no harm."""

from __future__ import annotations

import asyncio
import multiprocessing
import sqlite3
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from surerag.drivers import arun
from surerag.effects import Embed, perform
from surerag.encoders import CachedEncoder, EmbeddingCacheWarning, HashingEncoder
from surerag.errors import ConfigurationError
from surerag.messages import Passage
from surerag.retrieval import PassageIndex
from surerag.services import Services

TEXTS = [f"Ship {number} sails from Velm." for number in range(700)]


class Counting(HashingEncoder):
    """An encoder that records the texts it encodes; ``other`` changes its vectors."""

    def __init__(self, *, other: bool = False) -> None:
        super().__init__(64)
        self.texts: list[str] = []
        self._other = other

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        self.texts += texts
        vectors = super().encode(texts, kind)
        return vectors[:, ::-1] if self._other else vectors


def encoded(
    path: Path, texts: Sequence[str] = TEXTS, *, other: bool = False
) -> tuple[NDArray[np.float32], int]:
    """Return vectors, and how many texts were encoded for them; one is the probe."""
    inner = Counting(other=other)
    vectors = CachedEncoder(inner, path).encode(texts, "document")
    assert (vectors == Counting(other=other).encode(texts, "document")).all()
    return vectors, len(inner.texts) - 1


def test_each_text_is_encoded_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "e.db"
    assert encoded(path)[1] == 700
    assert encoded(path)[1] == 0
    assert encoded(path, [*TEXTS[:3], "new", "new"])[1] == 1
    assert path.stat().st_mode & 0o077 == 0, "only the user reads it"


def test_queries_are_not_kept(tmp_path: Path) -> None:
    inner = Counting()
    encoder = CachedEncoder(inner, tmp_path / "e.db")
    for _ in range(2):
        encoder.encode(["Who?"], "query")
    assert inner.texts == ["Who?", "Who?"]
    assert encoder.encode([], "document").shape == (0, 64)
    assert (encoder.name, encoder.dimensions) == (inner.name, 64)


def test_other_vectors_under_the_same_name_are_another_encoder(tmp_path: Path) -> None:
    encoded(tmp_path / "e.db")
    assert encoded(tmp_path / "e.db", other=True)[1] == 700
    assert encoded(tmp_path / "e.db")[1] == encoded(tmp_path / "e.db", other=True)[1] == 0


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + b"x" * 5000])
def test_a_broken_file_is_passed_over_with_one_warning(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "e.db").write_bytes(content)
    encoder = CachedEncoder(Counting(), tmp_path / "e.db")
    with pytest.warns(EmbeddingCacheWarning, match=r"e.db' cannot be used .*SURERAG_CACHE=off"):
        vectors = encoder.encode(TEXTS, "document")
    assert (vectors == Counting().encode(TEXTS, "document")).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        encoder.encode(TEXTS, "document")
    assert (tmp_path / "e.db").read_bytes() == content


def test_a_folder_that_cannot_be_written_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(EmbeddingCacheWarning, match="cannot be used"):
        encoded(tmp_path / "file" / "e.db")


@pytest.mark.parametrize("blob", [b"", b"123", bytes(256), np.ones(64, dtype="<f4").tobytes(), "text", None])
def test_damaged_vectors_are_encoded_anew(tmp_path: Path, blob: object) -> None:
    encoded(tmp_path / "e.db")
    with sqlite3.connect(tmp_path / "e.db") as connection:
        connection.execute("UPDATE OR REPLACE vectors SET vector = coalesce(?, 'x')", (blob,))
    assert encoded(tmp_path / "e.db")[1] == 700
    assert encoded(tmp_path / "e.db")[1] == 0


def _fill(path: Path, first: int) -> None:
    warnings.simplefilter("error")
    encoder = CachedEncoder(HashingEncoder(64), path)
    for start in range(first, 700, 10):
        encoder.encode(TEXTS[start : start + 10], "document")


def test_processes_share_a_file(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(tmp_path / "e.db", 5 * at)) for at in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    assert encoded(tmp_path / "e.db")[1] == 0
    with sqlite3.connect(tmp_path / "e.db") as connection:
        assert connection.execute("SELECT count(*) FROM encoders").fetchone() == (1,)


def test_the_environment_says_where_and_whether(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SURERAG_CACHE", str(tmp_path))
    CachedEncoder(Counting()).encode(TEXTS[:1], "document")
    assert (tmp_path / "embeddings.db").exists()
    monkeypatch.setenv("SURERAG_CACHE", "off")
    inner = Counting()
    CachedEncoder(inner).encode(TEXTS[:1], "document")
    assert inner.texts == TEXTS[:1]
    monkeypatch.delenv("SURERAG_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    CachedEncoder(Counting()).encode(TEXTS[:1], "document")
    assert (tmp_path / ".cache" / "surerag" / "embeddings.db").exists()
    with pytest.raises(ConfigurationError, match="must be an Encoder, got a str"):
        CachedEncoder("minilm")  # type: ignore[arg-type]


def test_an_index_is_made_once_and_reports_progress(tmp_path: Path) -> None:
    passages, done = [Passage(text) for text in TEXTS], []
    for _ in range(2):
        inner = Counting()
        index = PassageIndex.from_passages(
            passages, CachedEncoder(inner, tmp_path / "e.db"), progress=lambda *at: done.append(at)
        )
        assert index.retrieve("Ship 77", 1)[0].text == TEXTS[77]
    assert inner.texts[1:] == ["Ship 77"]
    assert done == [(256, 700), (512, 700), (700, 700)] * 2
    assert (index.vectors == PassageIndex.from_passages(passages, Counting()).vectors).all()


def test_an_index_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    class Stopped(Counting):
        def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> Any:
            if len(self.texts) > 300:
                raise KeyboardInterrupt
            return super().encode(texts, kind)

    passages = [Passage(text) for text in TEXTS]
    with pytest.raises(KeyboardInterrupt):
        PassageIndex.from_passages(passages, CachedEncoder(Stopped(), tmp_path / "e.db"))
    inner = Counting()
    encoder = CachedEncoder(inner, tmp_path / "e.db")
    assert encoder.count_new(TEXTS + TEXTS) == len(TEXTS) - 512
    PassageIndex.from_passages(passages, encoder)
    assert len(inner.texts) - 1 == len(TEXTS) - 512


def test_vectors_are_kept_in_async_programs_too(tmp_path: Path) -> None:
    class Remote(Counting):
        local = False

        async def aencode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> Any:
            return self.encode(texts, kind)

    inner = Remote()
    services = Services(encoder=CachedEncoder(inner, tmp_path / "e.db"))
    for _ in range(2):
        asyncio.run(arun(perform(Embed(TEXTS, "document")), services))
    assert len(inner.texts) - 1 == len(TEXTS)
