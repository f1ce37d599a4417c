"""A corpus is cut, summarised and embedded in batches, and found again by what the tables hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from surerag import Passage
from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.retrieval import DiskSummaryIndex, PassageIndex, chunk_documents, lead_summary
from surerag.scale import ChunkBatch, EmbedBatch, LazyRAGBatch, SummarizeBatch, embedded_passages

TEXTS = ["Ada was born in Velm. She paints. She sings in a choir.", "Bo was born in Orun. He swims."]
READER = {"factory": "tests.scale.makers:reader"}


def documents(*texts: str | None) -> pa.Table:
    rows = [{"lang": "en", "id": f"d{at}", "text": text} for at, text in enumerate(texts)]
    return pa.Table.from_pylist(rows, pa.schema([(name, pa.string()) for name in ("lang", "id", "text")]))


def column(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist()


def test_passages_are_those_of_chunk_documents() -> None:
    table = ChunkBatch(tokens=6, overlap=2)(documents(*TEXTS))
    expected = chunk_documents([Document(f"d{at}", text) for at, text in enumerate(TEXTS)], 6, 2)
    assert column(table, "id") == [one.id for one in expected]
    assert column(table, "text") == [one.text for one in expected]
    for name in ("document", "start", "end"):
        assert column(table, f"chunk_{name}") == [one.metadata[name] for one in expected]
    assert table.column_names[:3] == ["lang", "id", "text"]
    assert len(expected) > 2


def test_a_document_that_cannot_be_cut_keeps_its_row() -> None:
    table = ChunkBatch()(documents(TEXTS[0], None, " "))
    assert column(table, "id") == ["d0#0", "d1", "d2"]
    assert column(table, "text") == [TEXTS[0], None, None]
    assert [error is None for error in column(table, "chunk_error")] == [True, False, False]
    assert ChunkBatch()(documents()).schema == table.schema


def test_the_type_of_an_id_gives_way_to_the_passages_ids() -> None:
    given = pa.table({"id": [7, 8], "text": [TEXTS[0], None]})
    assert column(ChunkBatch()(given), "id") == ["7#0", "8"]


def test_summaries_are_first_sentences_or_what_a_reader_writes() -> None:
    lead = SummarizeBatch(sentences=1)(documents(*TEXTS, None))
    assert column(lead, "summary_text") == [lead_summary(text, 1) for text in TEXTS] + [None]
    assert column(lead, "summary_calls") == [0, 0, None]
    batch = SummarizeBatch(reader=READER, prompt="Shorter: {document}", max_characters=21)
    written = batch(documents(*TEXTS, "The line is down."))
    assert column(written, "summary_text") == ["Velm", "Orun", None]
    assert column(written, "summary_calls") == [1, 1, None]
    assert "overloaded" in column(written, "summary_error")[2]
    assert written.schema == lead.schema == batch(documents()).schema


def test_vectors_are_the_encoder_s() -> None:
    table = EmbedBatch(encoder="hashing")(documents(TEXTS[0], None, TEXTS[1]))
    vectors = column(table, "embed_vector")
    assert vectors[1] is None
    expected = HashingEncoder().encode(TEXTS, "document")
    assert np.array_equal(np.array([vectors[0], vectors[2]], np.float32), expected)
    assert column(table, "embed_encoder") == ["hashing-1024", None, "hashing-1024"]


def test_a_text_that_an_encoder_cannot_take_costs_the_others_nothing() -> None:
    table = EmbedBatch(encoder={"factory": "tests.scale.makers:picky"})(
        documents(TEXTS[0], "too long", TEXTS[1])
    )
    assert [vector is None for vector in column(table, "embed_vector")] == [False, True, False]
    assert column(table, "embed_error")[1] == "ValueError: too long"


@pytest.mark.parametrize(
    ("kind", "settings", "error", "told"),
    [
        (ChunkBatch, {"tokens": 5, "overlap": 5}, ConfigurationError, "cannot overlap"),
        (ChunkBatch, {"tokens": "5"}, ConfigurationError, "whole number"),
        (SummarizeBatch, {"sentences": 0}, ConfigurationError, "at least 1"),
        (SummarizeBatch, {"prompt": "{document}"}, ConfigurationError, "no option 'prompt'"),
        (SummarizeBatch, {"reader": READER, "sentences": 1}, ConfigurationError, "no option 'sentences'"),
        (SummarizeBatch, {"reader": READER, "prompt": "{text}"}, PromptError, "document"),
        (EmbedBatch, {}, MissingServiceError, '"minilm", "hashing"'),
        (EmbedBatch, {"encoder": "hashing", "kind": "passage"}, ConfigurationError, "document or query"),
    ],
)
def test_a_wrong_setting_raises_at_once(
    kind: type[Any], settings: dict[str, Any], error: type[Exception], told: str
) -> None:
    with pytest.raises(error) as caught:
        kind(**settings)
    assert told in str(caught.value)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder of two tables of passages with vectors."""
    embed, folder = EmbedBatch(encoder="hashing"), tmp_path / "passages"
    folder.mkdir()
    for at, text in enumerate(TEXTS):
        table = pa.table({"id": [f"d{at}"], "text": [text], "lang": ["en"]})
        parquet.write_table(embed(table), folder / f"{at}.parquet")
    return folder


def test_what_was_embedded_is_found_without_embedding_it_again(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from surerag.scale.batch_passages import passage_index

    asked: list[str] = []
    encode = HashingEncoder.encode
    monkeypatch.setattr(HashingEncoder, "encode", lambda *given: asked.append(given[2]) or encode(*given))
    index = passage_index(str(corpus), HashingEncoder(), k=1)
    [found] = index.retrieve("Where was Ada born?")
    assert (found.id, found.text, dict(found.metadata)) == ("d0", TEXTS[0], {"lang": "en"})
    assert asked == ["query"]
    assert isinstance(index, PassageIndex) and len(index) == 2


def test_a_pipeline_searches_in_what_was_embedded(corpus: Path) -> None:
    batch = LazyRAGBatch(
        reader=READER, retriever={"passages": str(corpus), "k": 1}, encoder="hashing", mode="standard"
    )
    table = batch(pa.table({"question": ["Where was Ada born?", "Where was Bo born?"]}))
    assert column(table, "lazy_rag_context_ids") == [["d0"], ["d1"]]
    assert column(table, "lazy_rag_answer") == ["Velm", "Orun"]


def test_passages_are_read_from_a_store(corpus: Path) -> None:
    from surerag.scale.batch_passages import passage_index

    files = fsspec.filesystem("memory")
    for file in corpus.iterdir():
        files.pipe_file(f"/batches/{file.name}", file.read_bytes())
    whole, one = (
        passage_index(f"memory://batches{named}", HashingEncoder(), k=2) for named in ("", "/0.parquet")
    )
    assert [found.id for found in whole.retrieve("Where was Bo born?")] == ["d1", "d0"]
    assert [passage.id for passage in one.passages] == ["d0"]


def test_summaries_are_a_tier_of_their_own(corpus: Path, tmp_path: Path) -> None:
    summarised = SummarizeBatch(sentences=1)(documents(*TEXTS))
    embedded = EmbedBatch(encoder="hashing", columns={"text": "summary_text"})(summarised)
    parquet.write_table(embedded, tmp_path / "summaries.parquet")
    batch = LazyRAGBatch(
        reader=READER,
        retriever={"passages": str(corpus)},
        summaries={"passages": str(tmp_path / "summaries.parquet"), "columns": {"text": "summary_text"}},
        encoder="hashing",
        n_summaries=1,
    )
    table = batch(pa.table({"question": ["Where was Ada born?"]}))
    assert column(table, "lazy_rag_summary_ids") == [["d0"]]
    assert column(table, "lazy_rag_retrieved") == [False]


def test_what_was_embedded_becomes_an_index_on_the_disk(corpus: Path, tmp_path: Path) -> None:
    encoder, folder = HashingEncoder(), tmp_path / "index"
    made = DiskSummaryIndex.from_vectors(folder, embedded_passages(str(corpus), encoder), encoder)
    assert len(made) == 2
    batch = LazyRAGBatch(
        reader=READER, retriever={"index": str(folder), "k": 1}, encoder="hashing", mode="standard"
    )
    table = batch(pa.table({"question": ["Where was Ada born?", "Where was Bo born?"]}))
    assert column(table, "lazy_rag_context_ids") == [["d0"], ["d1"]]
    bare = tmp_path / "bare.parquet"
    parquet.write_table(documents(*TEXTS), bare)
    with pytest.raises(InputError, match="holds no vectors"):
        list(embedded_passages(str(bare), encoder))


def test_vectors_of_another_encoder_and_missing_ones_are_refused(corpus: Path, tmp_path: Path) -> None:
    question = pa.table({"question": ["Where was Ada born?"]})
    said = {"reader": READER, "mode": "standard", "retriever": {"passages": str(corpus)}}
    other = LazyRAGBatch(**said, encoder={"factory": "tests.scale.makers:picky"})
    with pytest.raises(ConfigurationError, match=r"vectors by hashing-1024.*encoded by picky"):
        other(question)
    file = tmp_path / "holes.parquet"
    parquet.write_table(EmbedBatch(encoder="hashing")(documents(TEXTS[0], None)), file)
    with pytest.raises(InputError, match="1 passages have no vector"):
        LazyRAGBatch(**{**said, "retriever": {"passages": str(file)}}, encoder="hashing")(question)
    with pytest.raises(InputError, match="none is no file"):
        LazyRAGBatch(**{**said, "retriever": {"passages": str(tmp_path / "none")}}, encoder="hashing")(
            question
        )
    with pytest.raises(ConfigurationError, match="Did you mean text"):
        LazyRAGBatch(**{**said, "retriever": {"passages": "p", "columns": {"txt": "t"}}}, encoder="hashing")


def test_summaries_that_were_made_in_batches_are_searched_on_the_disk(tmp_path: Path) -> None:
    made = EmbedBatch(encoder="hashing", columns={"text": "summary_text"})(
        SummarizeBatch()(documents(*TEXTS))
    )
    found = [Passage(*row) for row in zip(column(made, "summary_text"), column(made, "id"), strict=True)]
    rows = np.array(column(made, "embed_vector"))
    DiskSummaryIndex.from_vectors(tmp_path, [(found, rows)], HashingEncoder())
    folder = {"index": str(tmp_path), "k": 1}
    asked = pa.table({"question": ["Where was Bo born?"]})
    batch = LazyRAGBatch(reader=READER, retriever=folder, encoder="hashing", summaries=folder, n_summaries=1)
    table = batch(asked)
    assert column(table, "lazy_rag_summary_ids") == [["d1"]]
    assert column(table, "lazy_rag_answer") == ["Orun"]
    with pytest.raises(MissingServiceError, match="needs: encoder"):
        LazyRAGBatch(reader=READER, retriever=folder, summaries={"text": TEXTS[0]})
    with pytest.raises(ConfigurationError, match="n_probes"):
        LazyRAGBatch(reader=READER, retriever={**folder, "n_probes": 3}, encoder="hashing", mode="standard")
