"""Semantic chunking as a node parser, alone and in an ingestion pipeline."""

from __future__ import annotations

import asyncio
import pickle
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, Settings
from llama_index.core.ingestion import IngestionCache, IngestionPipeline
from llama_index.core.schema import ImageDocument

from llama_index_surerag import SemanticNodeParser
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from tests.llama_index.corpus import KEY, HashEmbedding

TEXT = "Ada was born in Velm. Ada left Velm in spring. Tin melts easily.\n\nAda was born in Velm."


def parser(**options: Any) -> SemanticNodeParser:
    return SemanticNodeParser(HashEmbedding(), **{"similarity_threshold": 0.3, **options})


def document(text: str = TEXT, **fields: Any) -> Document:
    return Document(id_="book", text=text, metadata={"year": 1900}, **fields)


async def test_chunks_are_verbatim_with_offsets_and_relations() -> None:
    nodes = parser().get_nodes_from_documents([document()])
    assert [node.text for node in nodes] == [
        "Ada was born in Velm. Ada left Velm in spring.",
        "Tin melts easily.",
        "Ada was born in Velm.",
    ]
    assert [node.start_char_idx for node in nodes] == [0, 47, 66]
    for node in nodes:
        assert TEXT[node.start_char_idx : node.end_char_idx] == node.text
        assert node.ref_doc_id == "book"
        assert node.metadata == {"year": 1900}
    assert nodes[0].next_node.node_id == nodes[1].node_id
    again = await parser().aget_nodes_from_documents([document()])
    assert [node.text for node in again] == [node.text for node in nodes]


def test_a_chunk_never_has_more_tokens() -> None:
    nodes = parser(similarity_threshold=-1, chunk_size=6, tokenizer=str.split).get_nodes_from_documents(
        [document(" ".join(["Ada was born in Velm."] * 5) + " " + "word " * 40)]
    )
    assert max(len(node.text.split()) for node in nodes) <= 6


def test_documents_without_words_have_no_chunks() -> None:
    assert parser().get_nodes_from_documents([document(" \n")]) == []
    assert len(parser().get_nodes_from_documents([ImageDocument(id_="p", image="aGk=")])) == 1


def test_a_documents_own_vector_is_not_that_of_its_chunks() -> None:
    [first, *_] = parser().get_nodes_from_documents([document(embedding=[1.0])])
    assert first.embedding is None


def test_fits_the_threshold_to_the_documents() -> None:
    fitted = parser().with_quantile([document()])
    assert fitted.similarity_threshold != 0.3
    by_core = fitted.core.with_quantile([document().text])
    assert fitted.similarity_threshold == by_core.similarity_threshold  # one default
    assert fitted.core.similarity_threshold == fitted.similarity_threshold


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"similarity_threshold": 0.9},
        {"chunk_size": 9},
        {"language": "de"},
        {"include_metadata": False},
        {"tokenizer": str.split},
        {"embed_model": HashEmbedding(model_name="other")},
    ],
    ids=lambda change: next(iter(change), "nothing"),
)
def test_the_pipelines_cache_is_renewed_by_every_setting(change: dict[str, Any]) -> None:
    cache = IngestionCache()
    first = parser()
    IngestionPipeline(transformations=[first], cache=cache).run(documents=[document()])
    changed = SemanticNodeParser(**{"embed_model": HashEmbedding(), "similarity_threshold": 0.3, **change})
    before = len(cache.cache.get_all(collection=cache.collection))
    IngestionPipeline(transformations=[changed], cache=cache).run(documents=[document()])
    assert len(cache.cache.get_all(collection=cache.collection)) == before + bool(change)


async def test_runs_in_a_pipeline_sync_async_and_in_processes() -> None:
    pipeline = IngestionPipeline(transformations=[parser()], disable_cache=True)
    expected = [node.text for node in pipeline.run(documents=[document()])]
    assert [node.text for node in await pipeline.arun(documents=[document()])] == expected
    copied = pickle.loads(pickle.dumps(parser()))
    assert [node.text for node in copied.get_nodes_from_documents([document()])] == expected


def test_settings_are_written_and_read(tmp_path: Path) -> None:
    written = parser(chunk_size=99).to_dict()
    assert written["chunk_size"] == 99
    assert KEY not in str(written)
    again = SemanticNodeParser.from_dict(written, embed_model=HashEmbedding())
    assert again.to_dict() == written


def test_takes_the_settings_embedding_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "_embed_model", HashEmbedding())
    assert SemanticNodeParser(similarity_threshold=0.3).get_nodes_from_documents([document()])


def test_refuses_what_is_no_option() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean similarity_threshold"):
        parser(similarity_treshold=0.5)
    with pytest.raises(ConfigurationError, match="embedding model of LlamaIndex, got an int"):
        SemanticNodeParser(7)
    assert len(SemanticNodeParser.model_fields) <= 15


async def test_the_event_loop_goes_on() -> None:
    class Slow(HashEmbedding):
        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            import time

            time.sleep(0.2)
            return super()._get_text_embeddings(texts)

    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.01)

    ticker = asyncio.create_task(tick())
    await SemanticNodeParser(Slow()).aget_nodes_from_documents([document()])
    ticker.cancel()
    assert ticks > 5


def test_encoders_of_surerag_pass() -> None:
    assert SemanticNodeParser(HashingEncoder()).to_dict()["encoder"] == HashingEncoder().name


def test_it_is_built_as_llama_indexs_parsers_are() -> None:
    made = SemanticNodeParser.from_defaults(HashEmbedding(), chunk_size=20, include_prev_next_rel=False)
    assert (made.chunk_size, made.include_prev_next_rel) == (20, False)
    with pytest.raises(ConfigurationError, match="with_quantile"):
        SemanticNodeParser.from_defaults(embed_model=HashEmbedding(), breakpoint_percentile_threshold=95)
