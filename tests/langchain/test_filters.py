"""A filter on the retriever holds for the summaries as well."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

import pytest
from langchain_classic.retrievers import (
    ContextualCompressionRetriever,
    EnsembleRetriever,
    MultiVectorRetriever,
)
from langchain_core.documents import Document
from langchain_core.runnables import (
    ConfigurableField,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnablePassthrough,
    RunnablePick,
)
from langchain_core.stores import InMemoryStore
from langchain_core.vectorstores import InMemoryVectorStore

from langchain_surerag import ClusterCompressor, LazyRetrievalChain, summaries_of
from surerag import FakeReader
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from tests.langchain.conftest import HashEmbeddings

UUID_TEXT = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
SECRET = "The secret of tenant B is Tarn."
DOCUMENTS = [
    Document(id="a", page_content="Ada was born in Velm. She left.", metadata={"tenant": "A"}),
    Document(id="b", page_content=SECRET, metadata={"tenant": "B"}),
]


def of_tenant_a(document: Document) -> bool:
    return document.metadata["tenant"] == "A"


class DictStore(InMemoryVectorStore):
    """A store whose filter is a mapping, as most have it."""

    def _similarity_search_with_score_by_vector(self, *args: Any, filter: Any = None, **kwargs: Any) -> Any:
        condition = None if filter is None else lambda document: filter.items() <= document.metadata.items()
        return super()._similarity_search_with_score_by_vector(*args, filter=condition, **kwargs)


def store_of(kind: type[InMemoryVectorStore] = InMemoryVectorStore) -> InMemoryVectorStore:
    return kind.from_documents(DOCUMENTS, HashEmbeddings())


def prompts_of(chain: Any) -> str:
    reader = chain.core.reader
    chain.invoke("What is the secret of tenant B?")
    return "\n".join(reader.prompts)


class Service:
    """Holds a retriever, as an application's own classes do."""

    def __init__(self, retriever: Any) -> None:
        self.retriever = retriever

    def search(self, query: str) -> Any:
        return self.retriever.invoke(query)

    __call__ = search


def search_with(retriever: Any, query: str) -> Any:
    return retriever.invoke(query)


def generating(retriever: Any) -> Any:
    def generate(queries: Iterator[str]) -> Iterator[Any]:
        yield from (retriever.invoke(query) for query in queries)

    async def agenerate(queries: AsyncIterator[str]) -> AsyncIterator[Any]:
        async for query in queries:
            yield await retriever.ainvoke(query)

    return RunnableGenerator(generate, agenerate)


def helping(retriever: Any) -> Any:
    service = Service(retriever)

    def helper(query: str) -> Any:
        return service.search(query)

    return lambda query: helper(query)


def in_globals(retriever: Any) -> Any:
    names: dict[str, Any] = {"retriever": retriever}
    exec("def search(query): return [one for text in [query] for one in retriever.invoke(text)]", names)
    return names["search"]


AROUND: Any = {
    "config": lambda retriever: retriever.with_config(tags=["mine"]),
    "ensemble": lambda retriever: EnsembleRetriever(retrievers=[retriever, retriever]),
    "sequence": lambda retriever: RunnablePassthrough() | retriever | RunnableLambda(lambda found: found),
    "mapping": lambda retriever: {"found": retriever} | RunnablePick("found"),
    "branch": lambda retriever: RunnableBranch((lambda _: True, retriever), retriever),
    "function": lambda retriever: RunnableLambda(lambda query: retriever.invoke(query)),
    "method": lambda retriever: RunnableLambda(retriever.invoke, afunc=retriever.ainvoke),
    "partial": lambda retriever: RunnableLambda(partial(search_with, retriever)),
    "default": lambda retriever: RunnableLambda(lambda query, inner=retriever: inner.invoke(query)),
    "service": lambda retriever: RunnableLambda(Service(retriever).search),
    "callable": lambda retriever: RunnableLambda(Service(retriever)),
    "helper": lambda retriever: RunnableLambda(helping(retriever)),
    "globals": lambda retriever: RunnableLambda(in_globals(retriever)),
    "generator": generating,
}
FILTERS: Any = [(InMemoryVectorStore, of_tenant_a), (DictStore, {"tenant": "A"})]


@pytest.mark.parametrize(("kind", "condition"), FILTERS)
@pytest.mark.parametrize("entropy", [0.1, 2.0])
@pytest.mark.parametrize("around", ["bare", *AROUND, "compression", "multi-vector"])
@pytest.mark.parametrize("tier", ["memory", "store", "retriever"])
async def test_no_summary_is_shown_that_the_filter_excludes(
    kind: Any, condition: Any, entropy: float, around: str, tier: str
) -> None:
    retriever: Any = store_of(kind).as_retriever(search_kwargs={"filter": condition})
    if around in AROUND:
        retriever = AROUND[around](retriever)
    elif around == "compression":
        compressor = ClusterCompressor(FakeReader(["Ada."]), HashingEncoder(), variant="copy")
        retriever = ContextualCompressionRetriever(base_compressor=compressor, base_retriever=retriever)
    elif around == "multi-vector":
        whole = InMemoryStore()
        whole.mset([(document.metadata["tenant"], document) for document in DOCUMENTS])
        retriever = MultiVectorRetriever(
            vectorstore=store_of(kind),
            docstore=whole,
            id_key="tenant",
            search_kwargs={"filter": condition},
        )
    summaries: Any = summaries_of(DOCUMENTS, embeddings=HashEmbeddings())
    if tier != "memory":
        summaries = summaries_of(DOCUMENTS, store=kind(HashEmbeddings()))
    if tier == "retriever":
        summaries = summaries.as_retriever(search_kwargs={"filter": condition})
    reader = FakeReader(lambda _: "?", entropy=entropy)
    chain = LazyRetrievalChain(reader, retriever, summaries)
    assert "secret of tenant B is" not in prompts_of(chain)
    assert "Ada was born in Velm." in prompts_of(chain)
    output = await chain.ainvoke("What is the secret of tenant B?")
    assert SECRET not in str(output["context"])


def test_a_function_over_many_vectors_is_not_read_number_by_number() -> None:
    class Number:
        """Stands for a number, and tells when it is looked at."""

        @property
        def __class__(self) -> type:
            raise AssertionError("one of the numbers was looked at")

    vectors = [[Number()] * 3] * 2
    function = RunnableLambda(lambda query: vectors and [])
    assert LazyRetrievalChain(FakeReader(["?"]), function, summaries_of(DOCUMENTS, store=store_of()))


def test_without_a_filter_all_summaries_are_shown() -> None:
    reader = FakeReader(lambda _: "?", entropy=0.1)
    chain = LazyRetrievalChain.from_documents(DOCUMENTS, reader, store_of().as_retriever(), HashEmbeddings())
    assert SECRET in prompts_of(chain)


@pytest.mark.parametrize(
    "arguments",
    [
        {"filter": {"$or": [{"tenant": "A"}]}},
        {"pre_filter": {"tenant": "A"}},
        {"namespace": "a"},
        {"expr": "x"},
        {"partition_names": ["a"]},
        {"filter": lambda metadata: metadata["tenant"] == "A"},  # as FAISS takes it
    ],
)
def test_where_it_cannot_be_known_it_raises(arguments: Any) -> None:
    retriever = store_of().as_retriever(search_kwargs=arguments)
    in_memory = summaries_of(DOCUMENTS, embeddings=HashEmbeddings())
    unfiltered = store_of().as_retriever()
    for summaries in (in_memory, unfiltered):
        with pytest.raises(ConfigurationError, match="cannot be known which summaries"):
            LazyRetrievalChain(FakeReader(["?"]), retriever, summaries)


def test_a_filter_that_the_config_decides_needs_summaries_that_it_decides_too() -> None:
    field = ConfigurableField(id="search")
    retriever = store_of().as_retriever().configurable_fields(search_kwargs=field)
    for summaries in (store_of(), store_of().as_retriever()):
        with pytest.raises(ConfigurationError, match="configurable field search"):
            LazyRetrievalChain(FakeReader(["?"]), retriever, summaries)
    reader = FakeReader(lambda _: "?", entropy=0.1)
    tier = store_of().as_retriever().configurable_fields(search_kwargs=field)
    chain = LazyRetrievalChain(reader, retriever, tier)
    chain.invoke("Tarn?", {"configurable": {"search": {"filter": of_tenant_a}}})
    assert SECRET not in reader.prompts[0]


# Summaries.


def test_summaries_in_a_store_are_embedded_once_for_each_change() -> None:
    embeddings = HashEmbeddings()
    store = InMemoryVectorStore(embeddings)
    texts = ["Ada was born in Velm. Bo came later. She stayed.", "Cy is new. He is here. He is old."]
    summaries_of([Document(texts[0], id="ada"), Document(texts[1])], store=store)
    assert embeddings.texts == ["Ada was born in Velm. Bo came later.", "Cy is new. He is here."]
    more = [Document(texts[0], id="ada"), Document(texts[1]), Document("Di is far.", id="di")]
    summaries_of(iter(more), store=store)
    assert embeddings.texts[2:] == ["Di is far."]
    changed = Document("Ada lives in Tarn.", id="ada", metadata={"tenant": "A"})
    for tenant, embedded in (("A", 1), ("A", 0), ("B", 1)):
        before = len(embeddings.texts)
        changed.metadata["tenant"] = tenant
        summaries_of([changed], store=store)
        [summary] = store.get_by_ids(["ada"])
        assert (summary.page_content, summary.metadata["tenant"]) == ("Ada lives in Tarn.", tenant)
        assert len(embeddings.texts) - before == embedded
    # Stores such as Qdrant take UUIDs alone.
    assert {key for key in store.store if UUID_TEXT.fullmatch(key)} == set(store.store) - {"ada", "di"}


class EmbedsAnything(HashEmbeddings):
    def embed_query(self, text: str) -> list[float]:
        return super().embed_query(text.replace("\ud800", ""))


def test_no_document_is_lost_for_its_text_or_metadata() -> None:
    store = InMemoryVectorStore(EmbedsAnything())
    lived = "Ada lived in Velm. She left."
    tenants = [Document(lived, metadata={"tenant": tenant, 1: object}) for tenant in ("A", "B", "B")]
    summaries_of([*tenants, Document("Bo \ud800 sang. He left.")], store=store)
    assert sorted(item["metadata"].get("tenant", "") for item in store.store.values()) == ["", "A", "B"]
    index: Any = summaries_of([Document("Bo \ud800 sang. He left.")], embeddings=HashEmbeddings())
    assert index.retrieve("Bo", 1)


@pytest.mark.parametrize(
    ("summarize", "expected"),
    [
        (1, "Ada was born in Velm."),
        ("abstract", "About Ada."),
        (lambda document: document.page_content[:3], "Ada"),
        (FakeReader(["A model's."]), "A model's."),
    ],
)
def test_ways_to_summarize(summarize: Any, expected: str) -> None:
    document = Document("Ada was born in Velm. She left.", metadata={"abstract": "About Ada."})
    index: Any = summaries_of([document], summarize=summarize, embeddings=HashEmbeddings())
    assert index.retrieve("Ada", 1)[0].text == expected


def test_summaries_of_nothing_are_refused() -> None:
    for documents, settings, error in (
        ([], {"embeddings": HashEmbeddings()}, InputError),
        ([Document(" ")], {"embeddings": HashEmbeddings()}, InputError),
        (DOCUMENTS, {}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": True}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": 2.5}, ConfigurationError),
        (DOCUMENTS, {"store": store_of().as_retriever()}, ConfigurationError),
        (DOCUMENTS, {"embeddings": HashEmbeddings(), "summarize": "none"}, InputError),
    ):
        with pytest.raises(error):
            summaries_of(documents, **settings)  # type: ignore[arg-type]
