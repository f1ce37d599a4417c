"""Documents come, change and go: the first tier follows, and what was deleted never answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from llama_index.core import Document, SummaryIndex, VectorStoreIndex
from llama_index.core.indices.query.query_transform.base import HyDEQueryTransform
from llama_index.core.query_engine import TransformQueryEngine
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeRelationship, NodeWithScore, QueryBundle, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_surerag import LazyRetrievalQueryEngine, _living, summaries_of
from surerag.errors import InputError
from surerag.retrieval import LeadSummaries
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, HashEmbedding, Knowing
from tests.llama_index.models import Scripted
from tests.waiting import eventually

VELM = "Ada was born in Velm"


@pytest.fixture(autouse=True, params=["small", "large"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A large index is compared in full once, and then not for ages."""
    if request.param == "large":
        monkeypatch.setattr(_living, "_CHEAP", -1.0)
        monkeypatch.setattr(_living, "_SELDOM", 1e9)
    return str(request.param)


def changing() -> VectorStoreIndex:
    return VectorStoreIndex.from_documents(corpus.documents(), embed_model=HashEmbedding())


def engine(source: Any, **settings: Any) -> LazyRetrievalQueryEngine:
    return LazyRetrievalQueryEngine.from_args(
        source, Knowing(corpus.answer), **{"top_n": 1, "n_summaries": 1, **settings}
    )


def ways(lazy: LazyRetrievalQueryEngine) -> list[Callable[[str], Any]]:
    return [lazy.query, lambda question: asyncio.run(lazy.aquery(question))]  # type: ignore[arg-type, return-value]  # a coroutine


def delete(index: Any, in_docstore: bool) -> None:
    index.delete_ref_doc("ada", delete_from_docstore=in_docstore)


def delete_nodes(index: Any, in_docstore: bool) -> None:
    ids = [name for name, info in index.ref_doc_info.items() if name == "ada" for name in info.node_ids]
    index.delete_nodes(ids, delete_from_docstore=in_docstore)


def adelete(index: Any, in_docstore: bool) -> None:
    asyncio.run(index.adelete_ref_doc("ada", delete_from_docstore=in_docstore))


def summary_nodes() -> list[TextNode]:
    return [
        TextNode(
            id_=f"about-{name}",
            text=text,
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=name)},
        )
        for name, text in corpus.LEADS.items()
    ]


TIERS: dict[str, Callable[[], dict[str, Any]]] = {
    "following": dict,
    "documents": lambda: {"summaries": corpus.documents()},
    "an index of summaries": lambda: {
        "summaries": VectorStoreIndex(summary_nodes(), embed_model=HashEmbedding())
    },
    "a retriever of summaries": lambda: {
        "summaries": VectorStoreIndex(summary_nodes(), embed_model=HashEmbedding()).as_retriever(
            similarity_top_k=1
        )
    },
}


@pytest.mark.parametrize("deleting", [delete, delete_nodes, adelete])
@pytest.mark.parametrize("in_docstore", [False, True])
@pytest.mark.parametrize("tier", TIERS)
def test_a_deleted_document_never_answers_again(tier: str, in_docstore: bool, deleting: Any) -> None:
    index = changing()
    lazy = engine(index, **TIERS[tier]())
    for ask in ways(lazy):
        assert VELM in ask(KNOWN).source_nodes[0].get_content()
    deleting(index, in_docstore)
    for ask in ways(lazy):
        response = ask(KNOWN)
        assert response.metadata["retrieve"] is True
        assert not [node for node in response.source_nodes if "Velm" in node.get_content()]


@pytest.mark.parametrize("source", ["index", "retriever", "summary index"])
def test_what_is_inserted_answers_and_nothing_else_is_embedded_again(source: str) -> None:
    seen: list[str] = []

    class Counting(HashEmbedding):
        def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
            seen.extend(texts)
            return super()._vectors(texts)

    model = Counting()
    kept = [document for document in corpus.documents() if document.node_id != "ada"]
    index: Any = (
        SummaryIndex.from_documents(kept)
        if source == "summary index"
        else VectorStoreIndex.from_documents(kept, embed_model=model)
    )
    seen.clear()
    lazy = engine(index.as_retriever() if source == "retriever" else index, embed_model=model)
    assert seen == []
    for insert, name in ((index.insert, "ada"), (None, "ada")):
        if insert:
            assert lazy.query(KNOWN).metadata["retrieve"] is True
            insert(next(one for one in corpus.documents() if one.node_id == name))
        seen.clear()
        for ask in ways(lazy):
            assert ask(KNOWN).metadata["summary_ids"] == ["ada:summary"]
        assert sum(text == corpus.LEADS["ada"] for text in seen) == (1 if insert else 0)
        assert not [text for text in seen if text in (corpus.LEADS["orun"], corpus.LEADS["tarn"])]


def test_a_refreshed_document_answers_with_its_new_text() -> None:
    index = changing()
    lazy = engine(index)
    assert str(lazy.query(KNOWN)).startswith("She was born in Velm")
    changed = corpus.documents()
    changed[0] = Document(id_="ada", text="Ada was born in Orun, they say now. She paints.")
    assert index.refresh_ref_docs(changed) == [True, False, False]
    [source] = engine(index, mode="strong").query(KNOWN).source_nodes[-1:]
    assert "born in Orun" in source.get_content()
    for ask in ways(lazy):
        assert not [node for node in ask(KNOWN).source_nodes if "Velm" in node.get_content()]


def test_a_text_that_is_overwritten_in_place_never_answers_again() -> None:
    index = changing()
    lazy = engine(index)
    assert str(lazy.query(KNOWN)).startswith("She was born in Velm")
    for name in index.ref_doc_info["ada"].node_ids:
        node: Any = index.docstore.get_node(name)
        changed = node.model_copy(update={"text_resource": None})
        changed.set_content("Ada was born in Orun, they say now. She paints.")
        index.docstore.add_documents([changed], allow_update=True)
    for ask in ways(lazy):
        shown = [node.get_content() for node in ask(KNOWN).source_nodes]
        assert shown
        assert not [text for text in shown if "Velm" in text]


def test_a_large_index_is_compared_in_full_only_now_and_then(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = changing()
    lazy = engine(index)
    lazy.query(KNOWN)
    read = []
    hashes = index.docstore.get_all_document_hashes
    monkeypatch.setattr(type(index.docstore), "get_all_document_hashes", lambda _: read.append(1) or hashes())
    for ask in ways(lazy):
        ask(KNOWN)
    if size == "large":
        assert not read
        monkeypatch.setattr(_living, "_SELDOM", 0)
        index.insert(Document(id_="new", text="Zed was born in Tarn."))
        lazy.query(KNOWN)
        assert read == [1]
        # With the next one a comparison is due.
        lazy.query(KNOWN)
        assert eventually(lambda: lazy.query(KNOWN) and len(read) > 1)


def test_an_index_may_lose_all_and_begin_with_nothing() -> None:
    index = VectorStoreIndex([], embed_model=HashEmbedding())
    lazy = engine(index, mode="strong")
    assert lazy.query(KNOWN).source_nodes == []
    index.insert(corpus.documents()[0])
    assert lazy.query(KNOWN).metadata["summary_ids"] == ["ada:summary"]
    index.delete_ref_doc("ada")
    assert lazy.query(KNOWN).metadata["summary_ids"] == []


def test_a_docstore_alone_is_followed_too() -> None:
    docstore = SimpleDocumentStore()
    docstore.add_documents(corpus.nodes())

    class Kept(BaseRetriever):
        def __init__(self) -> None:
            super().__init__()
            self.docstore = docstore

        def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
            return []

    lazy = engine(Kept(), mode="strong", embed_model=HashEmbedding())
    assert lazy.query(KNOWN).metadata["summary_ids"] == ["ada:summary"]
    docstore.delete_ref_doc("ada")
    assert lazy.query(KNOWN).metadata["summary_ids"] != ["ada:summary"]


def test_summaries_of_what_was_never_indexed_stay() -> None:
    other = VectorStoreIndex.from_documents(corpus.documents()[1:], embed_model=HashEmbedding())
    lazy = engine(other, summaries=corpus.documents())
    other.delete_ref_doc("tarn")
    assert lazy.query(KNOWN).metadata["summary_ids"] == ["ada:summary"]


async def test_of_many_first_questions_one_embeds_the_summaries() -> None:
    batches: list[int] = []

    class Awaiting(HashEmbedding):
        async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            batches.append(len(texts))
            await asyncio.sleep(0.01)
            return self._vectors(texts)

    lazy = engine(changing(), embed_model=Awaiting())
    await asyncio.gather(*(lazy.aquery(KNOWN) for _ in range(8)))
    assert batches == [3]


def test_several_loops_and_threads_share_one_engine() -> None:
    lazy = engine(changing())

    async def several() -> list[Any]:
        return await asyncio.gather(*(lazy.aquery(KNOWN) for _ in range(3)))

    for _ in range(3):
        assert {response.metadata["retrieve"] for response in asyncio.run(several())} == {False}
    assert lazy.query(KNOWN).metadata["retrieve"] is False


async def test_the_event_loop_goes_on_while_the_first_tier_is_made() -> None:
    class Slow(HashEmbedding):
        async def _aget_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            await asyncio.sleep(0.05)
            return self._vectors(texts)

        async def _aget_query_embedding(self, query: str) -> list[float]:
            await asyncio.sleep(0.05)
            return self._vectors([query])[0]

    lazy = engine(changing(), embed_model=Slow())
    asking = asyncio.create_task(lazy.aquery(KNOWN))
    ticks = 0
    while not asking.done():
        await asyncio.sleep(0.001)
        ticks += 1
    assert ticks > 20


def test_a_query_is_embedded_once_for_both_tiers() -> None:
    asked: list[str] = []

    class Counting(HashEmbedding):
        def _get_query_embedding(self, query: str) -> list[float]:
            asked.append(query)
            return super()._get_query_embedding(query)

    index = VectorStoreIndex.from_documents(corpus.documents(), embed_model=Counting())
    lazy = engine(index)
    question = QueryBundle(corpus.UNKNOWN)
    for ask in ways(lazy):
        asked.clear()
        assert ask(question).metadata["retrieve"] is True
        assert asked == [corpus.UNKNOWN]
    assert question.embedding is None


def test_another_models_vector_is_not_used_for_the_summaries() -> None:
    class Other(HashEmbedding):
        def _vectors(self, texts: Sequence[str]) -> list[list[float]]:
            return [row[::-1] for row in super()._vectors(texts)]

    lazy = engine(changing(), embed_model=Other())
    assert lazy.query(corpus.UNKNOWN).metadata["passage_ids"]
    assert lazy.query(KNOWN).metadata["retrieve"] is False


def test_a_transforms_own_strings_serve_both_tiers() -> None:
    hyde = HyDEQueryTransform(llm=Scripted(texts=[corpus.LEADS["tarn"]]), include_original=False)
    response = TransformQueryEngine(engine(changing(), mode="strong"), hyde).query("Gates?")
    assert response.metadata["summary_ids"] == ["tarn:summary"]


def test_lead_summaries_follow_offsets_not_the_order_of_the_store() -> None:
    text = "Ada was born in Velm. She paints rivers. Her pictures hang in Tarn."
    [end, middle, start] = [(41, 67), (10, 40), (0, 21)]
    nodes = [
        TextNode(
            id_=str(first),
            text=text[first:last],
            start_char_idx=first,
            end_char_idx=last,
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id="ada")},
        )
        for first, last in (end, middle, start)
    ]
    tier = summaries_of(nodes, embed_model=HashEmbedding())
    [found] = tier.retrieve(KNOWN, 1)  # type: ignore[union-attr]  # no text
    assert found.text == "Ada was born in Velm. She paints rivers."


def test_a_language_is_a_setting_of_the_summaries() -> None:
    text = "Ada wurde am 3. Mai geboren. Sie singt."
    for summaries, expected in (
        (LeadSummaries(1, language="de"), "Ada wurde am 3. Mai geboren."),
        (LeadSummaries(1), "Ada wurde am 3."),
    ):
        tier = summaries_of([Document(text=text)], summarize=summaries, embed_model=HashEmbedding())
        [found] = tier.retrieve("Wann wurde Ada geboren?", 1)  # type: ignore[union-attr]  # no text
        assert found.text == expected


def test_a_summary_without_words_is_refused_at_construction() -> None:
    with pytest.raises(InputError, match="summary of document 'ada' has no text"):
        engine(changing(), summarize=lambda node: "" if node.ref_doc_id == "ada" else "words")


async def test_a_tier_may_be_made_ahead() -> None:
    for ahead in ("refresh", "arefresh"):
        tier: Any = summaries_of(corpus.documents(), embed_model=HashEmbedding())
        made = getattr(tier, ahead)()
        if made is not None:
            await made
        assert len(tier) == 3
