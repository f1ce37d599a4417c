"""Algorithm 2 as a text splitter: verbatim, within its maximum, with true offsets, and truly async."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_classic.retrievers import ParentDocumentRetriever
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.runnables import RunnableLambda
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore
from langchain_text_splitters import TextSplitter

from langchain_surerag import AdaptiveSemanticSplitter
from surerag import SemanticChunker
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError, ServiceError
from tests.langchain.conftest import HashEmbeddings
from tests.methods.dense_rag.texts import ARABIC, CHINESE, CODE, PROSE, TABLE, TEXTS, byte_pairs

AGAIN = "Velm is old. Tin melts. Velm is old. Tin melts. Velm is old. Tin melts."


class Awaited(HashEmbeddings):
    """Embeds only where it is awaited; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        raise AssertionError("the event loop was blocked")

    async def aembed_documents(self, texts: list[str]) -> list[list[float]]:
        self.asked.append(texts)
        return super().embed_documents(texts)


def check(text: str, chunks: Sequence[Document], count: Callable[[str], int], t_max: int) -> None:
    """Chunks stand in their text, in order, and hold all of it but white space."""
    end = 0
    for chunk in chunks:
        start = chunk.metadata["start_index"]
        assert not text[end:start].strip(), "text is lost"
        assert start >= end, "chunks overlap"
        end = start + len(chunk.page_content)
        assert chunk.page_content == text[start:end] != ""
        assert count(chunk.page_content) <= t_max
    assert not text[end:].strip()


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize(("count", "t_max", "tau"), [(None, 12, 0.3), (len, 30, -1.0), (byte_pairs, 25, 0.3)])
async def test_any_script_and_any_layout(
    name: str, count: Callable[[str], int] | None, t_max: int, tau: float
) -> None:
    text, language = TEXTS[name]
    splitter = AdaptiveSemanticSplitter(
        HashingEncoder(64),
        similarity_threshold=tau,
        chunk_size=t_max,
        language=language,
        length_function=count,
        add_start_index=True,
    )
    chunks = splitter.create_documents([text])
    check(text, chunks, splitter.core.tokens, t_max)
    core = SemanticChunker(
        HashingEncoder(64), count, similarity_threshold=tau, chunk_size=t_max, language=language
    ).run(text)
    assert [(chunk.page_content, chunk.metadata["start_index"]) for chunk in chunks] == [
        (chunk.text, chunk.start) for chunk in core
    ]
    texts = [chunk.text for chunk in core]
    assert splitter.split_text(text) == await splitter.asplit_text(text) == texts
    assert await splitter.acreate_documents([text]) == chunks


@given(st.lists(st.sampled_from(["Velm is old. ", "Tin melts! ", "Ada\n\n", "x" * 9, "中。"]), max_size=12))
def test_offsets_are_right_however_often_a_chunk_is_repeated(pieces: list[str]) -> None:
    text = "".join(pieces)
    splitter = AdaptiveSemanticSplitter(
        HashingEncoder(16), similarity_threshold=0.9, chunk_size=4, add_start_index=True
    )
    check(text, splitter.create_documents([text]), splitter.core.tokens, 4)


def test_repeated_chunks_by_hand() -> None:
    splitter = AdaptiveSemanticSplitter(HashingEncoder(), add_start_index=True)
    found = splitter.create_documents([AGAIN])
    assert [chunk.page_content for chunk in found] == ["Velm is old.", "Tin melts."] * 3
    assert [chunk.metadata["start_index"] for chunk in found] == [0, 13, 24, 37, 48, 61]
    assert (
        "start_index" not in AdaptiveSemanticSplitter(HashingEncoder()).create_documents([AGAIN])[0].metadata
    )


def documents() -> list[Document]:
    return [
        Document(id=name, page_content=text, metadata={"source": name, "tags": ["x"], "start_index": 7})
        for name, text in {"prose": PROSE, "table": TABLE, "void": " ", "again": AGAIN}.items()
    ]


async def test_documents_keep_their_metadata_and_are_not_changed() -> None:
    given = documents()
    before = [document.model_dump_json() for document in given]
    embeddings = Awaited()
    splitter = AdaptiveSemanticSplitter(
        HashEmbeddings(), similarity_threshold=0.3, chunk_size=40, add_start_index=True
    )
    awaiting = AdaptiveSemanticSplitter(
        embeddings, similarity_threshold=0.3, chunk_size=40, add_start_index=True
    )
    found = splitter.split_documents(given)
    assert found == list(splitter.transform_documents(given))
    assert found == await awaiting.asplit_documents(given)
    assert found == list(await awaiting.atransform_documents(given))
    assert [len(texts) for texts in embeddings.asked] == [len(embeddings.asked[0])] * 2, "one call for all"
    for chunk in found:
        whole = next(document for document in given if document.id == chunk.metadata["source"])
        start = chunk.metadata["start_index"]
        assert whole.page_content[start:].startswith(chunk.page_content)
        assert chunk.id is None, "two chunks must not share an id"
        chunk.metadata["tags"].append("changed")
    assert [document.model_dump_json() for document in given] == before
    assert {chunk.metadata["source"] for chunk in found} == {"prose", "table", "again"}


async def test_many_documents_are_embedded_in_parts_and_come_back_in_order() -> None:
    embeddings = Awaited()
    texts = [f"Velm {number} is old. Tin melts." for number in range(130)]
    found = await AdaptiveSemanticSplitter(embeddings).acreate_documents(
        texts, [{"number": number} for number in range(130)]
    )
    assert [len(asked) for asked in embeddings.asked] == [128, 128, 4]
    assert [chunk.metadata["number"] for chunk in found] == [at for at in range(130) for _ in range(2)]


async def test_it_is_a_text_splitter_wherever_langchain_wants_one() -> None:
    splitter = AdaptiveSemanticSplitter(HashEmbeddings(), similarity_threshold=0.9, add_start_index=True)
    assert isinstance(splitter, TextSplitter)
    store = InMemoryStore()
    retriever = ParentDocumentRetriever(
        vectorstore=InMemoryVectorStore(HashEmbeddings()), docstore=store, child_splitter=splitter
    )
    whole = [Document(PROSE, metadata={"source": "velm"}), Document(CODE)]
    retriever.add_documents(whole, ids=["velm", "code"])
    assert retriever.invoke("Who measured it twice?")[0] == whole[0]
    [chunk] = retriever.vectorstore.similarity_search("Ada Thorn was born there in 1913.", k=1)
    assert chunk.page_content == "Ada Thorn was born there in 1913."
    assert chunk.metadata == {
        "source": "velm",
        "doc_id": "velm",
        "start_index": PROSE.index("Ada Thorn"),
    }
    step: Any = RunnableLambda(splitter.split_documents, splitter.asplit_documents)
    assert step.invoke(whole) == await step.ainvoke(whole) == splitter.split_documents(whole)


@pytest.mark.parametrize(
    ("text", "language"), [(PROSE, "en"), (CHINESE, "zh"), (ARABIC, "ar"), (TABLE, "en")]
)
def test_the_maximum_holds_in_a_model_s_own_tokens(text: str, language: str) -> None:
    from tests.readers.tiny_models import tiny_tokenizer

    tokenizer = tiny_tokenizer()
    splitter = AdaptiveSemanticSplitter.from_huggingface_tokenizer(
        tokenizer,
        embeddings=HashEmbeddings(),
        similarity_threshold=-1.0,
        chunk_size=50,
        language=language,
        add_start_index=True,
    )
    found = splitter.create_documents([text])
    check(text, found, lambda chunk: len(tokenizer.tokenize(chunk)), 50)
    assert len(found) > 1


def test_tau_is_fitted_to_a_corpus() -> None:
    splitter = AdaptiveSemanticSplitter(
        HashEmbeddings(), similarity_threshold=1.0, chunk_size=99, add_start_index=True
    )
    fitted = splitter.with_quantile([Document(PROSE), AGAIN], 0.25)
    again = SemanticChunker(fitted.core.encoder).with_quantile([PROSE, AGAIN], 0.25)
    assert fitted.core.similarity_threshold == again.similarity_threshold < 1
    assert (fitted.core.chunk_size, splitter.core.similarity_threshold) == (99, 1.0)
    assert len(fitted.split_text(PROSE)) < len(splitter.split_text(PROSE))
    assert "start_index" in fitted.create_documents([PROSE])[0].metadata
    with pytest.raises(InputError, match="two sentences"):
        splitter.with_quantile([])


class Broken(Embeddings):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [[1.0]]

    def embed_query(self, text: str) -> list[float]:
        return [1.0]


def test_what_cannot_work_says_so() -> None:
    for change in ({"similarity_threshold": 2}, {"chunk_size": 0}):
        with pytest.raises(ConfigurationError):
            AdaptiveSemanticSplitter(HashEmbeddings(), **change)
    with pytest.raises(MissingServiceError, match="encoder"):
        AdaptiveSemanticSplitter(None)
    with pytest.raises(ServiceError, match="vectors"):
        AdaptiveSemanticSplitter(Broken()).split_text(PROSE)
    with pytest.raises(InputError, match="chunk_size"):
        AdaptiveSemanticSplitter(HashEmbeddings(), chunk_size=1, length_function=byte_pairs).split_text(
            "abcé中"
        )
    with pytest.raises(ValueError, match="zip"):
        AdaptiveSemanticSplitter(HashEmbeddings()).create_documents(["a", "b"], [{"x": 1}])


def test_it_can_be_pickled_and_shown() -> None:
    splitter = AdaptiveSemanticSplitter(
        HashEmbeddings(), similarity_threshold=0.3, chunk_size=9, add_start_index=True
    )
    again = pickle.loads(pickle.dumps(splitter))
    assert again.create_documents([PROSE]) == splitter.create_documents([PROSE])
    assert repr(again) == (
        "AdaptiveSemanticSplitter('HashEmbeddings()', similarity_threshold=0.3, chunk_size=9, language='en')"
    )


def test_options_are_those_of_the_core_and_take_effect_or_raise() -> None:
    splitter = AdaptiveSemanticSplitter(HashEmbeddings(), similarity_threshold=-1)
    with pytest.raises(ConfigurationError, match=r"'chunksize'.*chunk_size"):
        AdaptiveSemanticSplitter(HashEmbeddings(), chunksize=9)
    with pytest.raises(ConfigurationError, match="with_options"):
        splitter.chunk_size = 9
    smaller = splitter.with_options(chunk_size=9)
    assert (smaller.core.chunk_size, splitter.core.chunk_size) == (9, 512)
    assert len(smaller.split_text(PROSE)) > len(splitter.split_text(PROSE)) == 1
    copied = copy.deepcopy(smaller)
    assert (copied.core.to_dict(), copied.split_text(PROSE)) == (
        smaller.core.to_dict(),
        smaller.split_text(PROSE),
    )
