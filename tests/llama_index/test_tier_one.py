"""Tier 1 shows what the search is known to show: a table of retrievers, stores and postprocessors."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import faiss
import pytest
from llama_index.core import (
    Document,
    DocumentSummaryIndex,
    QueryBundle,
    SimpleKeywordTableIndex,
    StorageContext,
    SummaryIndex,
    TreeIndex,
    VectorStoreIndex,
)
from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.indices.query.query_transform.base import IdentityQueryTransform
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.llms import MockLLM
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.postprocessor import (
    FixedRecencyPostprocessor,
    KeywordNodePostprocessor,
    LLMRerank,
    LongContextReorder,
    MetadataReplacementPostProcessor,
    PrevNextNodePostprocessor,
    SimilarityPostprocessor,
)
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.retrievers import (
    AutoMergingRetriever,
    QueryFusionRetriever,
    RecursiveRetriever,
    TransformRetriever,
    VectorIndexRetriever,
)
from llama_index.core.schema import IndexNode, NodeRelationship, NodeWithScore, RelatedNodeInfo, TextNode
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQueryMode,
    VectorStoreQueryResult,
)
from llama_index.retrievers.bm25 import BM25Retriever
from llama_index.vector_stores.faiss import FaissVectorStore

from llama_index_surerag import (
    ClusterCompressorPostprocessor,
    LazyRetrievalQueryEngine,
    summary_index,
    summary_nodes,
)
from llama_index_surerag.visibility import matches
from surerag import FakeReader
from surerag.errors import ConfigurationError
from tests.llama_index import corpus
from tests.llama_index.corpus import KNOWN, UNKNOWN, HashEmbedding, knowing
from tests.llama_index.llms import Own


def one_filter(key: str, operator: str, value: Any = None) -> MetadataFilter:
    return MetadataFilter(key=key, value=value, operator=FilterOperator(operator))


def filters(*conditions: Any, condition: str = "and") -> MetadataFilters:
    parts = [one if isinstance(one, MetadataFilters) else one_filter(*one) for one in conditions]
    return MetadataFilters(filters=parts, condition=FilterCondition(condition))


def secrets() -> VectorStoreIndex:
    """Three documents; of Ada's two chunks one is secret, of the Orun's both are, of Tarn's none says so."""
    nodes = corpus.nodes()
    for name, secret in {"ada-0": "no", "ada-1": "yes", "orun-0": "yes", "orun-1": "yes"}.items():
        [node] = [one for one in nodes if one.node_id == name]
        node.metadata["secret"] = secret
    return VectorStoreIndex(nodes, embed_model=HashEmbedding())


class OwnRetriever(BaseRetriever):
    """Leaves out what it likes."""

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        return []


class Tenants(VectorIndexRetriever):
    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        found: list[NodeWithScore] = super()._retrieve(query_bundle)
        return [one for one in found if one.node.metadata["tenant"] == "a"]


class OwnIndex(VectorStoreIndex):
    """May filter."""


class OwnStore(SimpleVectorStore):
    """May filter, too."""


def patched(index: Any) -> Any:
    retriever = index.as_retriever()
    retriever._retrieve = lambda bundle: []
    return retriever


def with_a_patched_store(index: Any) -> Any:
    object.__setattr__(index.vector_store, "query", lambda *_, **__: VectorStoreQueryResult())
    return index


def with_objects(index: Any) -> Any:
    retriever = index.as_retriever()
    retriever.object_map = {"ada": IndexNode(index_id="ada", text="Something else.")}
    return retriever


def of_kind(make: Callable[..., Any], **settings: Any) -> Callable[[Any], Any]:
    return lambda index: make(corpus.nodes(), llm=MockLLM(), embed_model=HashEmbedding(), **settings)


def over(store: Any) -> Callable[[Any], Any]:
    def make(index: Any) -> Any:
        storage = StorageContext.from_defaults(vector_store=store())
        return VectorStoreIndex(corpus.nodes(), storage_context=storage, embed_model=HashEmbedding())

    return make


def search(**settings: Any) -> Callable[[Any], Any]:
    return lambda index: index.as_retriever(**settings)


FUSION: dict[str, Any] = {"llm": MockLLM(), "num_queries": 1, "use_async": False}
SHOWN: dict[str, Callable[[Any], Any]] = {
    "an index": lambda index: index,
    "its retriever": search(similarity_top_k=2, verbose=False),
    "another mode": search(vector_store_query_mode=VectorStoreQueryMode.MMR, alpha=0.5),
    "FAISS": over(lambda: FaissVectorStore(faiss_index=faiss.IndexFlatIP(256))),
    "a list": of_kind(SummaryIndex),
    "keywords": of_kind(SimpleKeywordTableIndex),
    "a DocumentSummaryIndex": of_kind(DocumentSummaryIndex),
}
ALIKE: dict[str, Callable[[Any], Any]] = {
    "==": search(filters=filters(("secret", "==", "no"))),
    "!=": search(filters=filters(("secret", "!=", "yes"))),
    "in": search(filters=filters(("secret", "in", ["no", "maybe"]))),
    "nin": search(filters=filters(("secret", "nin", ["yes"]))),
    "empty": search(filters=filters(("secret", "is_empty"))),
    "text": search(filters=filters(("secret", "text_match", "no"))),
    "none of": search(filters=filters(("secret", "==", "yes"), condition="not")),
    "or": search(filters=filters(("secret", "==", "no"), ("size", ">", 99), condition="or")),
    "of one document": search(filters=filters(("doc_id", "==", "tarn"))),
    "doc_ids": search(doc_ids=["tarn"]),
    "node_ids": lambda index: VectorIndexRetriever(index, node_ids=["ada-0", "tarn-0", "tarn-1"]),
    "a filter set later": lambda index: set_later(index.as_retriever(), filters(("secret", "!=", "yes"))),
}
REFUSED: dict[str, Callable[[Any], Any]] = {
    "vector_store_kwargs": search(vector_store_kwargs={"where": {"tenant": "a"}}),
    "a subclass": lambda index: Tenants(index),
    "a class of one's own": lambda index: OwnRetriever(),
    "a replaced method": patched,
    "a replaced method of the store": with_a_patched_store,
    "an object_map": with_objects,
    "fusion": lambda index: QueryFusionRetriever([index.as_retriever()], **FUSION),
    "merging": lambda index: AutoMergingRetriever(index.as_retriever(), index.storage_context),
    "a transform": lambda index: TransformRetriever(index.as_retriever(), IdentityQueryTransform()),
    "recursion": lambda index: RecursiveRetriever("vector", {"vector": index.as_retriever()}),
    "BM25": lambda index: BM25Retriever.from_defaults(nodes=corpus.nodes()),
    "keywords' retriever": lambda index: of_kind(SimpleKeywordTableIndex)(index).as_retriever(),
    "an index of one's own": of_kind(OwnIndex),
    "a tree": lambda index: TreeIndex(corpus.nodes(), llm=MockLLM()),
    "a store of one's own": over(OwnStore),
}


def set_later(retriever: Any, found: MetadataFilters) -> Any:
    """The test sets the filter when the engine is built."""
    retriever.later = found
    return retriever


def built(index: Any, source: Any, **settings: Any) -> tuple[LazyRetrievalQueryEngine, FakeReader]:
    reader = knowing()
    summaries = settings.pop("summaries", None) or summary_index(index, embed_model=HashEmbedding())
    later = vars(source).pop("later", None)
    lazy = LazyRetrievalQueryEngine.from_args(source, reader, summaries=summaries, threshold=9, **settings)
    if later is not None:
        source._filters = later
    return lazy, reader


def asked(lazy: LazyRetrievalQueryEngine) -> list[Any]:
    questions = (KNOWN, UNKNOWN, "What are the gates of Tarn?")
    return [response for text in questions for response in (lazy.query(text), asyncio.run(lazy.aquery(text)))]


def shown_in(responses: list[Any]) -> list[Any]:
    return [node.node for one in responses for node in one.source_nodes if node.metadata.get("is_summary")]


@pytest.mark.parametrize("make", SHOWN.values(), ids=SHOWN)
def test_summaries_are_shown_beside_a_search_of_all(make: Callable[[Any], Any]) -> None:
    index = corpus.index()
    lazy, _ = built(index, make(index))
    assert {node.ref_doc_id for node in shown_in(asked(lazy))} == {"ada", "orun", "tarn"}


@pytest.mark.parametrize("make", ALIKE.values(), ids=ALIKE)
def test_summaries_are_filtered_as_the_search_is(make: Callable[[Any], Any]) -> None:
    index = secrets()
    source = make(index)
    lazy, _ = built(index, source)
    responses = asked(lazy)
    source._similarity_top_k = 99
    found = {one.node_id for text in (KNOWN, UNKNOWN) for one in source.retrieve(text)}
    if source._doc_ids:
        # LlamaIndex's own store in memory does not look at them.
        found = {name for name in found if name.split("-")[0] in source._doc_ids}
    shown = shown_in(responses)
    assert shown
    assert {one.node_id for node in shown for one in node.child_nodes} <= found


@pytest.mark.parametrize("given", ["an index", "nothing"])
@pytest.mark.parametrize("make", REFUSED.values(), ids=REFUSED)
def test_what_is_not_understood_is_refused_with_two_remedies(make: Callable[[Any], Any], given: str) -> None:
    index = corpus.index()
    source = make(index)
    summaries = summary_index(index, embed_model=HashEmbedding())
    with pytest.raises(ConfigurationError, match=r"cannot know.*summaries=RETRIEVER.*are_public=True"):
        LazyRetrievalQueryEngine.from_args(
            source, knowing(), summaries=None if given == "nothing" else summaries
        )
    own, _ = built(index, source, summaries=summaries.as_retriever())
    public, _ = built(index, source, summaries=summaries, summaries_are_public=True)
    for lazy in (own, public):
        assert lazy.query(KNOWN).metadata["summary_ids"]
    assert built(index, source, summaries="Ada was born in Velm.")


class DropSecrets(BaseNodePostprocessor):
    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        return [node for node in nodes if node.node.metadata.get("secret") != "yes"]


def compressor() -> Any:
    return ClusterCompressorPostprocessor(FakeReader(), HashEmbedding())


@pytest.mark.parametrize(
    ("make", "effect"),
    [
        (lambda: LLMRerank(llm=Own(reply_to=lambda prompt: 1 / 0)), "none"),
        (LongContextReorder, "none"),
        (lambda: PrevNextNodePostprocessor(docstore=corpus.index().docstore), "none"),
        (lambda: MetadataReplacementPostProcessor("window"), "none"),
        (compressor, "none"),
        (lambda: SimilarityPostprocessor(similarity_cutoff=2), "alike"),
        (DropSecrets, "refused"),
        (lambda: KeywordNodePostprocessor.model_construct(exclude_keywords=["Velm"]), "refused"),
        (lambda: MetadataReplacementPostProcessor("redacted"), "refused"),
        (FixedRecencyPostprocessor, "refused"),
    ],
)
def test_postprocessors_of_chunks_and_summaries(make: Callable[[], Any], effect: str) -> None:
    index, part = secrets(), make()
    if effect != "refused":
        lazy, _ = built(index, index, node_postprocessors=[part])
        assert bool(lazy.core.services.summaries.retrieve(KNOWN, 3)) is (effect == "none")
        return
    summaries = summary_index(index, embed_model=HashEmbedding())
    with pytest.raises(ConfigurationError, match=r"cannot know.*are_public=True.*summary_postprocessors"):
        built(index, index, node_postprocessors=[part])
    for settings in ({"summaries_are_public": True}, {"summary_postprocessors": []}):
        assert built(index, index, node_postprocessors=[part], **settings)
    assert built(index, index, node_postprocessors=[part], summaries=summaries.as_retriever())


def test_a_list_of_what_is_denied_holds_for_summaries() -> None:
    index = secrets()
    lazy, reader = built(index, index, summary_postprocessors=[DropSecrets()])
    assert {node.text for node in shown_in(asked(lazy))} <= {corpus.LEADS["ada"], corpus.LEADS["tarn"]}
    assert all(corpus.LEADS["orun"] not in str(call.prompts[0]) for call in reader.history if call.prompts)


@pytest.mark.parametrize(
    ("metadata", "condition", "expected"),
    [
        ({"a": "x"}, filters(("a", "==", "x")), True),
        ({"a": "x"}, filters(("a", "!=", "y"), ("doc_id", "==", "ada")), True),
        ({}, filters(("a", "!=", "y")), None),
        ({"a": 4}, filters(("a", "!=", "4")), None),
        ({"a": 4}, filters(("a", ">", 3.5)), True),
        ({"a": "x"}, filters(("a", "nin", ["y", "z"])), True),
        ({"a": "x"}, filters(("a", "contains", "x")), None),
        ({"a": "x"}, filters(("a", "==", "y"), ("b", "==", "y")), None),
        ({"a": "x"}, filters(("a", "==", "x"), ("b", "==", "y"), condition="or"), True),
        ({"a": "x"}, filters(("a", "==", "y"), condition="not"), True),
        ({"a": "x"}, filters(("a", "==", "x"), condition="not"), False),
        ({}, filters(("a", "==", "x"), condition="not"), None),
        ({"a": "x"}, filters(filters(("a", "==", "x")), filters(("a", "!=", "z"))), True),
    ],
)
def test_a_filter_matches_where_no_store_differs(
    metadata: dict[str, Any], condition: MetadataFilters, expected: bool | None
) -> None:
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="ada")}
    assert matches(TextNode(text="x", metadata=metadata, relationships=source), condition) is expected


def test_an_index_of_chunks_is_no_index_of_summaries() -> None:
    index = corpus.index()
    theirs = DocumentSummaryIndex(corpus.nodes(), llm=MockLLM(), embed_model=HashEmbedding())
    for summaries, message in (
        (theirs, r"summary_index\(index, document_summary_index"),
        (SummaryIndex(corpus.nodes()), "must be a VectorStoreIndex, got a SummaryIndex"),
        (index, "but it is the index of chunks"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            built(index, index.as_retriever(), summaries=summaries)


def test_summaries_that_llama_index_wrote_are_taken() -> None:
    index, llm = corpus.index(), Own(reply_to=lambda prompt: "Ada, in short.")
    theirs = DocumentSummaryIndex(corpus.nodes(), llm=llm, embed_model=HashEmbedding())
    assert [node.text for node in summary_nodes(index, theirs)] == ["Ada, in short."] * 3
    lazy, _ = built(index, index, summaries=summary_index(index, theirs, embed_model=HashEmbedding()))
    assert {node.text for node in shown_in(asked(lazy))} == {"Ada, in short."}


def test_a_passage_that_a_summary_repeats_stands_in_the_prompt_once() -> None:
    text = "The Orun is long, says the atlas."
    index = VectorStoreIndex.from_documents(
        [Document(id_="orun", text=text, metadata={"page": 7})], embed_model=HashEmbedding()
    )
    reader = FakeReader(default="x", entropy=5)
    response = LazyRetrievalQueryEngine.from_args(index, reader).query("How long is the Orun?")
    assert response.metadata["retrieve"]
    assert str(reader.history[-1].prompts[0]).count(text) == 1
    of_passage, of_summary = [node.metadata for node in response.source_nodes]
    assert (of_passage, of_summary) == ({"page": 7}, {"page": 7, "is_summary": True})


def in_qdrant() -> Any:
    store = pytest.importorskip("llama_index.vector_stores.qdrant")
    client = pytest.importorskip("qdrant_client").QdrantClient(":memory:")
    return store.QdrantVectorStore("chunks", client=client)


def in_chroma() -> Any:
    store = pytest.importorskip("llama_index.vector_stores.chroma")
    client = pytest.importorskip("chromadb").EphemeralClient()
    return store.ChromaVectorStore(chroma_collection=client.get_or_create_collection(uuid4().hex))


@pytest.mark.parametrize("made_of", ["chunks", "documents"])
@pytest.mark.parametrize("store", [in_qdrant, in_chroma])
def test_summaries_are_filtered_as_a_store_that_holds_the_texts(store: Any, made_of: str) -> None:
    documents = [
        Document(id_=name, text=f"The {name} has a tower. It is high.", metadata={"tenant": tenant})
        for name, tenant in {"town": "a", "city": "b", "lake": "b"}.items()
    ]
    documents.append(Document(id_="hill", text="The hill has no tower. It is high."))
    pipeline = IngestionPipeline(
        transformations=[SentenceSplitter(), HashEmbedding()],
        vector_store=store(),
        docstore=SimpleDocumentStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )
    chunks = pipeline.run(documents=documents)
    index = VectorStoreIndex.from_vector_store(pipeline.vector_store, embed_model=HashEmbedding())
    summaries = summary_index(documents if made_of == "documents" else chunks, embed_model=HashEmbedding())

    def shown(**settings: Any) -> set[str]:
        lazy, _ = built(index, index.as_retriever(**settings), summaries=summaries, n_summaries=9)
        found = lazy.core.services.summaries.retrieve("Which has a tower?", 9)
        return {one.origin.node.ref_doc_id for one in found if "no_summary" not in one.metadata}

    assert shown() == {"town", "city", "lake", "hill"}
    assert shown(filters=filters(("tenant", "==", "a"))) == {"town"}
    assert shown(filters=filters(("tenant", "!=", "b"))) == {"town"}  # stores differ where there is no tenant
    assert shown(filters=filters(("tenant", "in", ["b"]))) == {"city", "lake"}
    assert shown(filters=filters(("tenant", "==", "a"), ("tenant", "==", "b"), condition="or")) == {
        "town",
        "city",
        "lake",
    }
    assert shown(doc_ids=["lake"]) == {"lake"}
    with pytest.raises(ConfigurationError, match=r"cannot know.*'text_match'"):
        shown(filters=filters(("tenant", "text_match", "a")))
    if made_of == "documents":
        # Tier 1 follows the documents of the pipeline's own docstore.
        storage = StorageContext.from_defaults(pipeline.docstore, vector_store=pipeline.vector_store)
        index = VectorStoreIndex([], storage_context=storage, embed_model=HashEmbedding())
        lazy = LazyRetrievalQueryEngine.from_args(index, knowing(), n_summaries=9)
        followed = lazy.core.services.summaries.retrieve("Which has a tower?", 9)
        assert {one.origin.node.ref_doc_id for one in followed} == {"town", "city", "lake", "hill"}
    pipeline.run(documents=documents[:2])
    assert shown() == {"town", "city"}
    if made_of == "documents":
        followed = lazy.core.services.summaries.retrieve("Which has a tower?", 9)
        assert {one.origin.node.ref_doc_id for one in followed} == {"town", "city"}
    index.delete_nodes([chunk.node_id for chunk in chunks if chunk.ref_doc_id == "town"])
    assert shown() == {"city"}
