"""Tier 1 shows no summary of a document that the retriever would not find for its user."""

from __future__ import annotations

from contextvars import ContextVar
from functools import partial
from typing import Any

import faiss
import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MergerRetriever,
    MultiQueryRetriever,
    MultiVectorRetriever,
    ParentDocumentRetriever,
    RePhraseQueryRetriever,
    TimeWeightedVectorStoreRetriever,
)
from langchain_classic.retrievers.document_compressors import DocumentCompressorPipeline, EmbeddingsFilter
from langchain_community.docstore.in_memory import InMemoryDocstore
from langchain_community.retrievers import KNNRetriever
from langchain_community.vectorstores import FAISS
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import FakeListLLM
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    chain,
)
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore, VectorStoreRetriever
from langchain_text_splitters import CharacterTextSplitter

from langchain_surerag import (
    ClusterCompressor,
    LazyRetrievalChain,
    LazyRetrievalMiddleware,
    SummaryStore,
    UncertaintyRewriteRetriever,
    summaries_of,
)
from surerag import FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.retrieval import PassageIndex, StaleSummariesWarning, SummaryIndex
from tests.langchain.conftest import HashEmbeddings

pytestmark = pytest.mark.filterwarnings("ignore::surerag.retrieval.StaleSummariesWarning")
SECRET = "The secret of tenant B is Tarn."
DOCUMENTS = [
    Document(id="a", page_content="Ada was born in Velm. She left.", metadata={"tenant": "A"}),
    Document(id="b", page_content=SECRET, metadata={"tenant": "B"}),
]
USER: ContextVar[str] = ContextVar("user")
FIELD = ConfigurableField(id="search")


def of_tenant_a(document: Document) -> bool:
    return bool(document.metadata["tenant"] == "A")


def empty_faiss() -> FAISS:
    return FAISS(HashEmbeddings(), faiss.IndexFlatL2(64), InMemoryDocstore(), {})


def faiss_store() -> FAISS:
    store = empty_faiss()
    store.add_documents(DOCUMENTS)
    return store


def in_memory() -> InMemoryVectorStore:
    return InMemoryVectorStore.from_documents(DOCUMENTS, HashEmbeddings())


def plain(**search: Any) -> VectorStoreRetriever:
    return in_memory().as_retriever(search_kwargs=search)


def of_a() -> VectorStoreRetriever:
    return plain(filter=of_tenant_a)


def parents(kind: Any = MultiVectorRetriever, docstore: Any = None, **options: Any) -> Any:
    whole = InMemoryStore() if docstore is None else docstore
    whole.mset([(document.metadata["tenant"], document) for document in DOCUMENTS])
    return kind(vectorstore=in_memory(), docstore=whole, id_key="tenant", **options)


def compressed(*compressors: Any) -> Any:
    pipeline = DocumentCompressorPipeline(transformers=[*compressors])
    return ContextualCompressionRetriever(base_compressor=pipeline, base_retriever=of_a())


class AccessList(BaseDocumentCompressor):
    """Leaves out what a user may not see."""

    def compress_documents(self, documents: Any, query: str, callbacks: Any = None) -> Any:
        return [*filter(of_tenant_a, documents)]


class OfUser(BaseRetriever):
    """A retriever of an application's own, which filters by a field of its own."""

    user_id: str = "A"

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
        return [one for one in DOCUMENTS if one.metadata["tenant"] == self.user_id]


class OfTenant(VectorStoreRetriever):
    """A vector store's retriever that knows its tenant."""

    def _get_relevant_documents(self, query: str, *, run_manager: Any, **options: Any) -> list[Document]:
        return [*filter(of_tenant_a, super()._get_relevant_documents(query, run_manager=run_manager))]


class TenantStore(InMemoryVectorStore):
    """A store that filters by itself."""

    def similarity_search(self, query: str, k: int = 4, **options: Any) -> list[Document]:
        return super().similarity_search(query, k, filter=of_tenant_a)


class MaskedStore(InMemoryStore):
    """A store of whole documents that does not give out all."""


class MaskedDocstore(InMemoryDocstore):
    """The same for FAISS."""


def patched() -> Any:
    retriever = plain()
    retriever.vectorstore.similarity_search = partial(  # type: ignore[method-assign]
        retriever.vectorstore.similarity_search, filter=of_tenant_a
    )
    return retriever


def masked_faiss() -> Any:
    store = FAISS(HashEmbeddings(), faiss.IndexFlatL2(64), MaskedDocstore(), {})
    store.add_documents(DOCUMENTS)
    return store.as_retriever()


@chain
def searching(query: str) -> list[Document]:
    return in_memory().similarity_search(query, filter=of_tenant_a)


def generating(queries: Any) -> Any:
    for query in queries:
        yield of_a().invoke(query)


MODEL = FakeListLLM(responses=["Who?\nWhere?"])
PASS: Any = {
    "a store": plain,
    "FAISS": lambda: faiss_store().as_retriever(),
    "what is about relevance": lambda: plain(k=2, fetch_k=9, lambda_mult=0.4),
    "another search type": lambda: in_memory().as_retriever(search_type="mmr"),
    "tags and a config": lambda: in_memory().as_retriever(tags=["mine"]).with_config(tags=["more"]),
    "retries": lambda: plain().with_retry(),
    "fallbacks": lambda: plain().with_fallbacks([plain()]),
    "a number bound": lambda: plain().bind(k=2),
    "an ensemble with a list": lambda: EnsembleRetriever(
        retrievers=[plain(), KNNRetriever.from_documents(DOCUMENTS, HashEmbeddings())]
    ),
    "merged": lambda: MergerRetriever(retrievers=[plain(), plain()]),
    "several queries": lambda: MultiQueryRetriever.from_llm(plain(), MODEL),
    "another query": lambda: RePhraseQueryRetriever.from_llm(plain(), MODEL),
    "a step before": lambda: RunnableLambda(str.upper) | plain(),
    "a branch": lambda: RunnableBranch((lambda _: True, plain()), plain()),
    "parents": parents,
    "DynQR": lambda: UncertaintyRewriteRetriever(reader(0.1), plain()),
    "a configurable number": lambda: plain().configurable_fields(tags=ConfigurableField(id="tags")),
}
FILTERED: Any = {
    "a function": of_a,
    "a function in FAISS": lambda: faiss_store().as_retriever(
        search_kwargs={"filter": lambda metadata: metadata["tenant"] == "A"}
    ),
    "a mapping": lambda: faiss_store().as_retriever(search_kwargs={"filter": {"tenant": "A"}}),
    "operators": lambda: faiss_store().as_retriever(search_kwargs={"filter": {"tenant": {"$nin": ["B"]}}}),
    "a filter bound": lambda: plain().bind(filter=of_tenant_a),
    "a filter bound over another": lambda: plain(filter=lambda _: True).bind(filter=of_tenant_a),
    "items of a mapping": lambda: plain(filter=lambda one: {"tenant": "A"}.items() <= one.metadata.items()),
    "a filter that asks what it is given": lambda: plain(
        filter=lambda one: not isinstance(one, Document) or of_tenant_a(one)
    ),
    "a config": lambda: of_a().with_config(tags=["mine"]),
    "retries": lambda: of_a().with_retry(),
    "fallbacks": lambda: of_a().with_fallbacks([of_a()]),
    "an ensemble": lambda: EnsembleRetriever(retrievers=[of_a(), of_a()]),
    "an ensemble with a list": lambda: EnsembleRetriever(
        retrievers=[of_a(), KNNRetriever.from_documents(DOCUMENTS[:1], HashEmbeddings())]
    ),
    "merged": lambda: MergerRetriever(retrievers=[of_a(), of_a()]),
    "several queries": lambda: MultiQueryRetriever.from_llm(of_a(), MODEL),
    "a step before": lambda: RunnablePassthrough() | of_a(),
    "a branch": lambda: RunnableBranch((lambda _: True, of_a()), of_a()),
    "alternatives": lambda: of_a().configurable_alternatives(ConfigurableField(id="x"), other=of_a()),
    "parents": lambda: parents(search_kwargs={"filter": of_tenant_a}),
    "parents of chunks": lambda: parents(
        ParentDocumentRetriever, search_kwargs={"filter": of_tenant_a}, child_splitter=CharacterTextSplitter()
    ),
    "DynQR": lambda: UncertaintyRewriteRetriever(reader(0.1), of_a()),
    "EDC²": lambda: compressed(ClusterCompressor(FakeReader(["Ada."]), HashingEncoder(), variant="copy")),
    "compression": lambda: compressed(EmbeddingsFilter(embeddings=HashEmbeddings(), k=3)),
}
REFUSED: Any = {
    "a function": lambda: RunnableLambda(lambda query: of_a().invoke(query)),
    "a method": lambda: RunnableLambda(of_a().invoke),
    "@chain": lambda: searching,
    "a part of a function": lambda: RunnableLambda(
        partial(in_memory().similarity_search, filter=of_tenant_a)
    ),
    "a generator": lambda: RunnableGenerator(generating),
    "a step behind": lambda: plain() | RunnableLambda(lambda found: [*filter(of_tenant_a, found)]),
    "a mapping of steps": lambda: RunnableParallel(found=plain()).pick("found"),
    "a retriever of one's own": OfUser,
    "a derived retriever": lambda: OfTenant(vectorstore=in_memory()),
    "a derived store": lambda: TenantStore.from_documents(DOCUMENTS, HashEmbeddings()).as_retriever(),
    "a patched store": patched,
    "one's own in an ensemble": lambda: EnsembleRetriever(retrievers=[plain(), OfUser()]),
    "one's own as a fallback": lambda: plain().with_fallbacks([OfUser()]),
    "one's own in a branch": lambda: RunnableBranch((lambda _: True, OfUser()), plain()),
    "different branches": lambda: RunnableBranch((lambda _: True, of_a()), plain()),
    "different alternatives": lambda: of_a().configurable_alternatives(
        ConfigurableField(id="x"), all=plain()
    ),
    "an alternative to be made": lambda: of_a().configurable_alternatives(
        ConfigurableField(id="x"), own=OfUser
    ),
    "different filters": lambda: EnsembleRetriever(retrievers=[of_a(), plain(filter=lambda _: True)]),
    "an access list": lambda: compressed(AccessList()),
    "a similarity of one's own": lambda: compressed(
        EmbeddingsFilter(embeddings=HashEmbeddings(), similarity_fn=lambda *_: [[0.0]])
    ),
    "a prompt of one's own": lambda: compressed(
        ClusterCompressor(
            FakeReader(["x"]),
            HashingEncoder(),
            variant="copy",
            prompts={"extract": "No secrets.\n{question}\n{passages}"},
        )
    ),
    "parents of one's own": lambda: parents(docstore=MaskedStore()),
    "a docstore of one's own": masked_faiss,
    "a list": lambda: KNNRetriever.from_documents(DOCUMENTS[:1], HashEmbeddings()),
    "an index of surerag": lambda: PassageIndex.from_passages(
        [Passage("Ada was born in Velm.")], HashingEncoder()
    ),
    "recent documents": lambda: TimeWeightedVectorStoreRetriever(vectorstore=in_memory()),
    "an argument of another store": lambda: plain(where_document={"$contains": "Ada"}),
    "a namespace": lambda: plain(namespace="a"),
    "an expression": lambda: plain(expr="tenant == 'A'"),
    "partitions": lambda: plain(partition_names=["a"]),
    "a filter that the store cannot apply": lambda: plain(filter={"tenant": "A"}),
    "a function of another store": lambda: plain(filter=lambda metadata: metadata["tenant"] == "A"),
    "a filter of texts": lambda: plain(filter=lambda document: "secret" not in document.page_content),
    "a filter of a document in words": lambda: plain(filter=lambda document: "secret" not in str(document)),
    "a filter of metadata in words": lambda: plain(
        filter=lambda document: "secret" not in str(document.metadata)
    ),
    "a filter that denies": lambda: plain(filter=lambda document: not document.metadata.get("secret")),
    "a filter that looks at everything": lambda: plain(
        filter=lambda document: "B" not in [*document.metadata]
    ),
    "operators that deny": lambda: faiss_store().as_retriever(
        search_kwargs={"filter": {"secret": {"$neq": True}}}
    ),
    "what is absent": lambda: faiss_store().as_retriever(search_kwargs={"filter": {"secret": None}}),
    "a configurable search": lambda: plain().configurable_fields(search_kwargs=FIELD),
    "a configurable store": lambda: plain().configurable_fields(vectorstore=ConfigurableField(id="store")),
    "a configured search": lambda: (
        plain()
        .configurable_fields(search_kwargs=FIELD)
        .with_config(configurable={"search": {"filter": of_tenant_a}})
    ),
    "listeners": lambda: plain().with_listeners(on_start=lambda _: None),
    "an argument bound to an ensemble": lambda: EnsembleRetriever(retrievers=[plain()]).bind(
        filter=of_tenant_a
    ),
}


def reader(entropy: float) -> FakeReader:
    return FakeReader(lambda _: "?", entropy=entropy)


TIERS: Any = {
    "memory": lambda: summaries_of(DOCUMENTS, embeddings=HashEmbeddings()),
    "in memory": lambda: summaries_of(DOCUMENTS, store=InMemoryVectorStore(HashEmbeddings())),
    "FAISS": lambda: summaries_of(DOCUMENTS, store=empty_faiss()),
    "plain": in_memory,
}


def shown_by(chain: Any, question: str = "What is the secret of tenant B?") -> str:
    chain.core.reader.history.clear()
    chain.invoke(question)
    return "\n".join(str(one) for one in chain.core.reader.prompts)


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", PASS)
def test_where_nothing_is_left_out_all_summaries_are_shown(name: str, tier: str) -> None:
    assert SECRET in shown_by(LazyRetrievalChain(reader(0.1), PASS[name](), TIERS[tier]()))


@pytest.mark.parametrize("tier", TIERS)
@pytest.mark.parametrize("name", FILTERED)
async def test_summaries_are_filtered_as_the_retriever_is(name: str, tier: str) -> None:
    for entropy in (0.1, 2.0):
        lazy = LazyRetrievalChain(reader(entropy), FILTERED[name](), TIERS[tier]())
        prompts = shown_by(lazy)
        assert "secret of tenant B is" not in prompts
        assert "Ada was born in Velm." in prompts
        output = await lazy.ainvoke("What is the secret of tenant B?")
        assert SECRET not in str(output["context"])


@pytest.mark.parametrize("name", REFUSED)
def test_what_may_leave_documents_out_unseen_is_refused(name: str) -> None:
    for summaries in (TIERS["memory"](), in_memory().as_retriever()):
        with pytest.raises(ConfigurationError, match=r"cannot know which summaries.*summaries_are_public"):
            LazyRetrievalChain(FakeReader(["?"]), REFUSED[name](), summaries)
    public = LazyRetrievalChain(
        reader(0.1), REFUSED[name](), TIERS["memory"](), summaries_are_public=True, threshold=9.0
    )
    assert SECRET in shown_by(public)
    own = RunnableLambda(lambda query: DOCUMENTS[:1])
    assert "Ada was born" in shown_by(LazyRetrievalChain(reader(0.1), REFUSED[name](), own, threshold=9.0))


def test_a_retriever_of_ones_own_goes_with_a_filtered_one_of_summaries() -> None:
    summaries = in_memory().as_retriever(search_kwargs={"filter": of_tenant_a})
    assert SECRET not in shown_by(LazyRetrievalChain(reader(0.1), OfUser(), summaries))


def test_what_is_filtered_in_part_is_filtered_so() -> None:
    ensemble = EnsembleRetriever(retrievers=[of_a(), plain()])
    assert SECRET not in shown_by(LazyRetrievalChain(reader(0.1), ensemble, TIERS["memory"]()))


def test_the_middleware_has_the_same_rule() -> None:
    for summaries in (TIERS["memory"](), in_memory().as_retriever()):
        with pytest.raises(ConfigurationError, match="cannot know which summaries"):
            LazyRetrievalMiddleware(OfUser(), summaries)
    assert LazyRetrievalMiddleware(OfUser(), TIERS["memory"](), summaries_are_public=True)


@pytest.mark.parametrize("tier", [*TIERS, "retriever"])
def test_a_summary_is_not_shown_where_a_chunk_may_be_denied(tier: str) -> None:
    """A filter that denies asks for a key, which chunks may have where the summary lacks it."""
    documents = [
        *DOCUMENTS,
        Document("Cy has a secret in Orun.", id="c", metadata={"tenant": "C", "secret": False}),
    ]
    summaries: Any = summaries_of(documents, embeddings=HashEmbeddings())
    if tier in ("in memory", "FAISS"):
        summaries = summaries_of(
            documents, store=InMemoryVectorStore(HashEmbeddings()) if tier == "in memory" else empty_faiss()
        )
    retriever = plain(filter=lambda document: document.metadata.get("secret") is not True)
    prompts = shown_by(LazyRetrievalChain(reader(0.1), retriever, summaries))
    assert "Cy has a secret" in prompts
    assert SECRET not in prompts


def test_a_filter_may_ask_who_the_user_is_at_each_question() -> None:
    retriever = plain(filter=lambda document: document.metadata["tenant"] == USER.get())
    lazy = LazyRetrievalChain(reader(0.1), retriever, TIERS["memory"]())
    for user, sees in (("A", False), ("B", True)):
        USER.set(user)
        assert (SECRET in shown_by(lazy)) == sees


@pytest.mark.parametrize("tier", [*TIERS, "retriever"])
def test_a_filter_that_is_set_later_holds_from_then_on(tier: str) -> None:
    """Some applications set it for each request."""
    retriever = plain()
    summaries: Any = in_memory().as_retriever() if tier == "retriever" else TIERS[tier]()
    for entropy in (0.1, 2.0):
        lazy = LazyRetrievalChain(reader(entropy), retriever, summaries)
        assert SECRET in shown_by(lazy)
        retriever.search_kwargs["filter"] = of_tenant_a
        if tier == "retriever":
            with pytest.raises(ConfigurationError, match="cannot know which summaries"):
                shown_by(lazy)
        else:
            prompts = shown_by(lazy)
            assert SECRET not in prompts
            assert "Ada was born" in prompts
        retriever.search_kwargs = {}
        assert SECRET in shown_by(lazy)


@pytest.mark.parametrize("tier", TIERS)
def test_a_mapping_that_is_changed_later_holds_as_it_is(tier: str) -> None:
    condition = {"tenant": "B"}
    retriever = faiss_store().as_retriever(search_kwargs={"filter": condition})
    lazy = LazyRetrievalChain(reader(0.1), retriever, TIERS[tier]())
    assert SECRET in shown_by(lazy)
    condition["tenant"] = "A"
    assert SECRET not in shown_by(lazy)


@pytest.mark.parametrize("make", [in_memory, faiss_store])
@pytest.mark.parametrize("tier", ["memory", "in memory", "FAISS"])
def test_a_document_that_is_given_to_another_tenant_is_filtered_as_it_is(tier: str, make: Any) -> None:
    """Its text stays, so that the metadata alone tell."""
    search = {"tenant": "B"} if make is faiss_store else (lambda one: one.metadata["tenant"] == "B")
    retriever = make().as_retriever(search_kwargs={"filter": search})
    summaries = TIERS[tier]()
    lazy = LazyRetrievalChain(reader(0.1), retriever, summaries)
    assert SECRET in shown_by(lazy)
    moved = Document(id="b", page_content=SECRET, metadata={"tenant": "C"})
    retriever.vectorstore.delete(["b"])
    retriever.vectorstore.add_documents([moved])
    assert SECRET not in shown_by(lazy)
    retriever.search_kwargs = {}
    summaries.add_documents([moved])
    assert SECRET in str(lazy.invoke("The secret?")["context"][0])


def test_a_filter_that_the_config_decides_needs_summaries_that_it_decides_too() -> None:
    retriever = plain().configurable_fields(search_kwargs=FIELD)
    tier = plain().configurable_fields(search_kwargs=FIELD)
    model = reader(0.1)
    lazy = LazyRetrievalChain(model, retriever, tier)
    lazy.invoke("Tarn?", {"configurable": {"search": {"filter": of_tenant_a}}})
    assert SECRET not in str(model.prompts[0])
    other = plain().configurable_fields(search_kwargs=ConfigurableField(id="other"))
    with pytest.raises(ConfigurationError, match="configurable field search"):
        LazyRetrievalChain(model, retriever, other)
    with pytest.raises(ConfigurationError, match="configurable field search"):
        LazyRetrievalChain(model, retriever, in_memory())


def test_summaries_of_another_filter_are_refused() -> None:
    for retriever, summaries in (
        (of_a(), plain()),
        (plain(), of_a()),
        (of_a(), plain(filter=lambda _: True)),
    ):
        with pytest.raises(ConfigurationError, match="cannot know which summaries"):
            LazyRetrievalChain(reader(0.1), retriever, summaries)
    with pytest.raises(ConfigurationError, match="the summaries do not have the same"):
        LazyRetrievalChain(
            reader(0.1),
            of_a(),
            SummaryIndex.from_passages(TIERS["memory"]().inner.passages, HashingEncoder()),
        )


def test_a_store_of_summaries_is_filtered_where_it_is_searched_by_itself() -> None:
    for tier in ("memory", "in memory"):
        store: SummaryStore = TIERS[tier]()
        [found] = store.as_retriever(search_kwargs={"filter": of_tenant_a}).invoke("the secret of tenant B")
        assert (found.id, found.metadata) == ("a", {"tenant": "A"})


def test_without_a_place_to_look_at_the_user_is_told_that_memory_does_not_follow() -> None:
    search = RunnableLambda(lambda query: DOCUMENTS)
    with pytest.warns(StaleSummariesWarning, match="in memory become outdated"):
        LazyRetrievalChain(reader(0.1), search, TIERS["memory"](), summaries_are_public=True)


def test_filters_of_chroma_and_qdrant_go_to_stores_of_the_same_kind() -> None:
    chroma = pytest.importorskip("langchain_chroma")
    embeddings = HashEmbeddings()
    chunks = chroma.Chroma("chunks", embeddings)
    chunks.add_documents(DOCUMENTS)
    summaries = summaries_of(DOCUMENTS, store=chroma.Chroma("summaries", embeddings))
    for condition in ({"tenant": "A"}, {"$and": [{"tenant": {"$in": ["A"]}}, {"tenant": {"$eq": "A"}}]}):
        retriever = chunks.as_retriever(search_kwargs={"filter": condition})
        prompts = shown_by(LazyRetrievalChain(reader(0.1), retriever, summaries))
        assert "Ada was born" in prompts
        assert SECRET not in prompts
    retriever = chunks.as_retriever(search_kwargs={"filter": {"tenant": "A"}})
    assert SECRET not in shown_by(LazyRetrievalChain(reader(0.1), retriever, TIERS["memory"]()))
    for search, tier in (
        ({"filter": {"tenant": {"$ne": "B"}}}, summaries),
        ({"filter": {"$or": [{"tenant": "A"}, {"tenant": {"$nin": ["B"]}}]}}, summaries),
        ({"where_document": {"$contains": "Ada"}}, summaries),
        ({"filter": {"tenant": {"$in": ["A"]}}}, TIERS["memory"]()),
        ({"filter": {"tenant": "A"}}, TIERS["plain"]().as_retriever()),
    ):
        with pytest.raises(ConfigurationError, match="cannot know which summaries"):
            LazyRetrievalChain(reader(0.1), chunks.as_retriever(search_kwargs=search), tier)


def test_filters_of_qdrant_that_name_what_they_admit() -> None:
    pytest.importorskip("langchain_qdrant")
    from langchain_qdrant import QdrantVectorStore
    from qdrant_client import models

    tenant = models.FieldCondition(key="metadata.tenant", match=models.MatchValue(value="A"))
    other = models.FieldCondition(key="metadata.tenant", match=models.MatchExcept(**{"except": ["B"]}))
    text = models.FieldCondition(key="page_content", match=models.MatchText(text="Ada"))
    empty = models.IsEmptyCondition(is_empty=models.PayloadField(key="metadata.secret"))

    def store(documents: Any) -> Any:
        made = QdrantVectorStore.from_texts(["x"], HashEmbeddings(), location=":memory:", ids=[1])
        made.delete([1])
        return summaries_of(documents, store=made)

    chunks, summaries = store(DOCUMENTS).inner, store(DOCUMENTS)
    for condition in (models.Filter(must=[tenant]), models.Filter(must=models.Filter(should=[tenant]))):
        retriever = chunks.as_retriever(search_kwargs={"filter": condition})
        prompts = shown_by(LazyRetrievalChain(reader(0.1), retriever, summaries))
        assert "Ada was born" in prompts
        assert SECRET not in prompts
        with pytest.raises(ConfigurationError, match="vector store of the same class"):
            LazyRetrievalChain(reader(0.1), retriever, TIERS["memory"]())
    for condition in (
        models.Filter(must_not=[tenant]),
        models.Filter(must=[tenant], should=[other]),
        models.Filter(must=[text]),
        models.Filter(must=[empty]),
        models.Filter(must=[models.HasIdCondition(has_id=[1])]),
        models.Filter(must=models.Filter(must_not=[tenant])),
    ):
        retriever = chunks.as_retriever(search_kwargs={"filter": condition})
        with pytest.raises(ConfigurationError, match="cannot know which summaries"):
            LazyRetrievalChain(reader(0.1), retriever, summaries)


def test_of_a_retriever_with_listeners_it_is_said_what_is_wrong_and_how_to_mend_it() -> None:
    listening = plain().with_listeners(on_start=lambda _: None)
    with pytest.raises(ConfigurationError, match=r"with_listeners.*Pass listeners with the call instead"):
        LazyRetrievalChain(reader(0.1), listening, TIERS["memory"]())
