"""Finds out which documents a LangChain retriever can return; a filter, for example, hides documents.

L-RAG may show a summary only if the retriever could return the summarized document. So we accept a retriever
only if its class (not a subclass) is listed below, and if each setting that the user changed is listed with
the class. Any other retriever may hide documents in a way that we cannot see: through a function, a user's
class, or an argument of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from langchain_core.documents import Document
from pydantic import BaseModel

from surerag.errors import kind_of, with_article

Condition = Callable[[Any], Any]
"""A filter, as a function of a document's metadata."""


class UnknownVisibilityError(Exception):
    """A retriever has a component or setting that we cannot analyse, and that may hide documents."""


@dataclass(frozen=True)
class Visibility:
    """Describes which documents a retriever can return.

    Attributes:
        filter: The filter, in the format of the vector store; None if the search may find every document.
        store: Full name of the class of the vector store that applies the filter; empty without a filter.
        at_call: Name and id of each configurable field that the caller's config may set in a call.
        stores: Stores in this process that hold the documents; empty if any document is kept elsewhere.
        is_list: Whether the retriever (BM25, say) searches its own list of documents, which may be partial.
    """

    filter: Any = None
    store: str = ""
    at_call: tuple[tuple[str, str], ...] = ()
    stores: tuple[Any, ...] = field(default=(), compare=False)
    is_list: bool = False

    @property
    def hides_documents(self) -> bool:
        """Whether the search may hide a document."""
        return self.filter is not None or bool(self.at_call)

    @property
    def condition(self) -> Condition | None:
        """The filter as a function of metadata; None without a filter, or if only the store can apply it."""
        match self.store:
            case "langchain_core.vectorstores.in_memory.InMemoryVectorStore":
                condition: Condition = self.filter
                return lambda metadata: condition(_Document(metadata))
            case "langchain_community.vectorstores.faiss.FAISS":
                from langchain_community.vectorstores import FAISS

                return FAISS._create_filter_func(self.filter)
            case "langchain_chroma.vectorstores.Chroma" if all(
                isinstance(one, str | int | float | bool) for one in self.filter.values()
            ):
                values: Mapping[str, Any] = self.filter
                return lambda metadata: all(metadata[key] == value for key, value in values.items())
            case _:
                return None


class _Document:
    """A document that has only metadata; all else that a filter reads is noted in ``metadata.missing``."""

    __class__: Any = Document  # for filters that call isinstance

    def __init__(self, metadata: _WatchedMetadata) -> None:
        self.metadata = metadata

    def __repr__(self) -> str:
        self.metadata.missing.add("text")
        return "Document()"

    def __getattr__(self, name: str) -> Any:
        self.metadata.missing.add(name)
        raise AttributeError(f"a summary does not have its document's {name}")

    def __getitem__(self, key: Any) -> Any:
        self.metadata.missing.add(f"document[{key!r}]")
        raise TypeError("a document is not a mapping")


class _WatchedMetadata(Mapping[Any, Any]):
    """Metadata; the set ``missing`` collects the names of absent values that a filter tries to read."""

    def __init__(self, values: Mapping[Any, Any], missing: set[str]) -> None:
        self._values, self.missing = values, missing

    def __getitem__(self, key: Any) -> Any:
        if key not in self._values:
            self.missing.add(str(key))
        value = self._values[key]
        return _WatchedMetadata(value, self.missing) if isinstance(value, Mapping) else value

    def __getattr__(self, name: str) -> Any:
        self.missing.add(name)
        raise AttributeError(f"metadata have no attribute {name}")

    def __iter__(self) -> Iterator[Any]:
        self.missing.add("all keys")
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(dict(self))


def apply_filter(condition: Condition, metadata: Mapping[str, Any]) -> tuple[bool, set[str]]:
    """Return whether a filter certainly admits a document, and which absent metadata the filter reads.

    A summary has only the metadata of its document. The document's chunks may have further keys. If a filter
    reads a key that the summary lacks, the summary is not admitted, whatever the filter returns.
    """
    missing: set[str] = set()
    try:
        admitted = bool(condition(_WatchedMetadata(metadata, missing)))
    except Exception:
        if not missing:
            raise
        admitted = False
    return admitted and not missing, missing


def visibility_of(retriever: Any, keywords: Mapping[str, Any] | None = None) -> Visibility:
    """Return which documents a retriever can return.

    Args:
        retriever: The retriever.
        keywords: Search arguments that are bound to the retriever.

    Raises:
        UnknownVisibilityError: If the retriever has a component or a setting that we cannot analyse.
    """
    name, keywords = type(retriever).__name__, keywords or {}
    read, known = _RETRIEVERS.get(path_of(retriever), (None, ""))
    visibility: Visibility
    if read is None:
        raise UnknownVisibilityError(f"{with_article(name)} may hide documents")
    if unknown := _unknown_settings(retriever, {*known.split(), "name", "tags", "metadata"}):
        raise UnknownVisibilityError(f"{with_article(name)} with {', '.join(unknown)} may hide documents")
    if read in _WITH_KEYWORDS:
        visibility = read(retriever, keywords)
    elif keywords:
        raise UnknownVisibilityError(
            f"{with_article(name)} with the bound argument {', '.join(keywords)} may hide documents"
        )
    else:
        visibility = read(retriever)
    return visibility


def path_of(value: object) -> str:
    """Return the full name of a class, or of a value's class."""
    kind = value if isinstance(value, type) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def _unknown_settings(value: Any, known: set[str]) -> list[str]:
    if not isinstance(value, BaseModel):
        return []
    fields = type(value).model_fields
    if "*" in known:
        # We know all settings of surerag's components, except prompts: a user's prompt may tell the model to
        # leave out confidential documents.
        known = {*known, *fields} - ({"prompts"} - known)
    given = (name for name in value.model_fields_set - known if name in fields)
    changed = [
        name for name in given if getattr(value, name) != fields[name].get_default(call_default_factory=True)
    ]
    return sorted([*changed, *(vars(value).keys() - fields.keys())])


# Stores.

_HARMLESS = {"k", "score_threshold", "fetch_k", "lambda_mult"}
"""Search arguments that affect only relevance and the number of results, never access rights."""
_COMPARISONS = {"$eq", "$in", "$gt", "$gte", "$lt", "$lte"}
"""Operators of Chroma's filters that match only documents that have the tested key."""


def _visibility_of_vector_store(retriever: Any, keywords: Mapping[str, Any]) -> Visibility:
    return _visibility_of_search(retriever.vectorstore, {**retriever.search_kwargs, **keywords})


def _visibility_of_search(store: Any, arguments: Mapping[str, Any]) -> Visibility:
    inner = getattr(store, "inner", store) if path_of(store) == _SUMMARY_STORE else store
    read = _STORES.get(path_of(inner))
    name = type(inner).__name__
    replaced_methods = [one for one in vars(inner) if callable(getattr(type(inner), one, None))]
    if read is None or replaced_methods:
        raise UnknownVisibilityError(f"the store {name} may hide documents")
    limiting = {key: value for key, value in arguments.items() if value is not None and key not in _HARMLESS}
    condition = limiting.pop("filter", None)
    if limiting:
        names = ", ".join(sorted(limiting))
        raise UnknownVisibilityError(f"a search in {name} with {names} may hide documents")
    can_analyse, stores_of = read
    if condition is not None and not can_analyse(condition):
        raise UnknownVisibilityError(
            f"the filter of a search in {name} may admit documents that lack the keys of the filter"
        )
    return Visibility(condition, path_of(inner) if condition is not None else "", stores=stores_of(inner))


def _is_faiss_filter(condition: Any) -> bool:
    from langchain_community.vectorstores import FAISS

    try:
        return callable(FAISS._create_filter_func(condition))
    except ValueError:
        return False


def _requires_keys_in_chroma(condition: Any) -> bool:
    """Whether every document that a Chroma filter admits has all keys that the filter tests."""
    if not isinstance(condition, Mapping):
        return False
    for key, value in condition.items():
        if key in ("$and", "$or"):
            if not all(map(_requires_keys_in_chroma, value)):
                return False
        elif key.startswith("$") or (isinstance(value, Mapping) and not value.keys() <= _COMPARISONS):
            return False
    return True


def _requires_keys_in_qdrant(condition: Any) -> bool:
    """Whether every document that a Qdrant filter admits has all keys that the filter tests."""
    match type(condition).__name__:
        case "Filter":
            if condition.must_not:
                return False
            least = condition.min_should.conditions if condition.min_should else []
            parts = [_as_list(condition.must), _as_list(condition.should), least]
            return all(_requires_keys_in_qdrant(one) for part in parts for one in part)
        case "FieldCondition":
            tests = {name for name, value in vars(condition).items() if value is not None} - {"key"}
            matched = type(condition.match).__name__ in ("MatchValue", "MatchAny", "NoneType")
            return condition.key.startswith("metadata.") and tests <= {"match", "range"} and matched
        case _:
            return False


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, Sequence) else [] if value is None else [value]


def _local_stores(store: Any) -> tuple[Any, ...]:
    return (store,)


def _local_faiss_stores(store: Any) -> tuple[Any, ...]:
    if path_of(store.docstore) != "langchain_community.docstore.in_memory.InMemoryDocstore":
        raise UnknownVisibilityError(f"the docstore {type(store.docstore).__name__} may hide documents")
    return (store,)


_SUMMARY_STORE = "langchain_surerag.stores.SummaryStore"
IN_MEMORY = "langchain_core.vectorstores.in_memory.InMemoryVectorStore"
FAISS = "langchain_community.vectorstores.faiss.FAISS"
CHROMA = "langchain_chroma.vectorstores.Chroma"
_STORES: Mapping[str, tuple[Callable[[Any], bool], Callable[[Any], tuple[Any, ...]]]] = {
    IN_MEMORY: (callable, _local_stores),
    FAISS: (_is_faiss_filter, _local_faiss_stores),
    CHROMA: (_requires_keys_in_chroma, lambda store: ()),
    "langchain_qdrant.qdrant.QdrantVectorStore": (_requires_keys_in_qdrant, lambda store: ()),
    "langchain_surerag.stores.MemoryStore": (callable, lambda store: ()),
}
"""For each class of vector stores: a function that returns whether we can analyse a filter, and a function
that returns the local stores of the documents."""


# Retrievers that contain other retrievers.


def _visibility_of_parents(retriever: Any) -> Visibility:
    visibility = _visibility_of_search(retriever.vectorstore, retriever.search_kwargs)
    match path_of(retriever.docstore):
        case "langchain_core.stores.InMemoryStore":
            held = (retriever.docstore,) if visibility.stores else ()
            return replace(visibility, stores=(*visibility.stores, *held))
        case "langchain_classic.storage.encoder_backed.EncoderBackedStore" if (
            retriever.byte_store is not None
        ):
            if path_of(retriever.byte_store) in _BYTE_STORES:
                return replace(visibility, stores=())
    raise UnknownVisibilityError(f"the docstore {type(retriever.docstore).__name__} may hide documents")


_BYTE_STORES = (
    "langchain_core.stores.InMemoryByteStore",
    "langchain_classic.storage.file_system.LocalFileStore",
)


def _visibility_of_merged(retriever: Any) -> Visibility:
    """Return which documents can come from a retriever that merges the results of inner retrievers.

    Raise an error if the filters of the inner retrievers differ.
    """
    parts = [visibility_of(one) for one in retriever.retrievers]
    limited = [one for one in parts if one.hides_documents]
    if limited:
        return _common_visibility(limited, parts)
    searched = [one for one in parts if not one.is_list]
    return _common_visibility(searched or parts, parts)


def _common_visibility(equal: Sequence[Visibility], parts: Sequence[Visibility] = ()) -> Visibility:
    """Return the visibility that all visibilities in ``equal`` share; raise an error if they differ.

    The stores of the result are the stores of all ``parts`` (by default, of ``equal``). If a part has no
    stores, the result has no stores.
    """
    if any(one != equal[0] for one in equal):
        raise UnknownVisibilityError("the inner retrievers do not all return the same documents")
    groups = [one.stores for one in parts or equal]
    local = all(groups)
    return replace(equal[0], stores=tuple(one for stores in groups for one in stores) if local else ())


def _visibility_of_compression(retriever: Any) -> Visibility:
    _check_compressor(retriever.base_compressor)
    return visibility_of(retriever.base_retriever)


def _check_compressor(compressor: Any) -> None:
    """Raise an error if a compressor may hide documents from some users, as any unknown class may."""
    known = _COMPRESSORS.get(path_of(compressor))
    if known is None or (unknown := _unknown_settings(compressor, set(known.split()))):
        by = "" if known is None else f" with {', '.join(unknown)}"
        raise UnknownVisibilityError(f"{kind_of(compressor)}{by} may hide documents")
    for one in getattr(compressor, "transformers", ()):
        _check_compressor(one)


def _visibility_of_binding(binding: Any, keywords: Mapping[str, Any]) -> Visibility:
    if binding.config.get("configurable"):
        raise UnknownVisibilityError("the config that is bound to the retriever may set a filter")
    if binding.config_factories:
        raise UnknownVisibilityError(
            "a function that is bound to the retriever (by with_listeners, say) may change its search. Pass "
            'listeners with the call instead, as callbacks: chain.invoke(question, {"callbacks": […]})'
        )
    return visibility_of(binding.bound, {**binding.kwargs, **keywords})


def _visibility_of_configurable(retriever: Any, keywords: Mapping[str, Any]) -> Visibility:
    if (retriever.config or {}).get("configurable"):
        raise UnknownVisibilityError("the config that is bound to the retriever may set a filter")
    ids = {name: one.id for name, one in retriever.fields.items()}
    changed = ids.keys() - {"name", "tags", "metadata", "search_type", "weights", "c", "id_key"}
    is_search = path_of(retriever.default) == "langchain_core.vectorstores.base.VectorStoreRetriever"
    if changed - ({"search_kwargs"} if is_search else set()):
        raise UnknownVisibilityError(f"the configurable field {ids[min(changed)]} may hide documents")
    visibility = visibility_of(retriever.default, keywords)
    return replace(
        visibility, at_call=(*visibility.at_call, *((name, ids[name]) for name in sorted(changed)))
    )


def _visibility_of_alternatives(retriever: Any, keywords: Mapping[str, Any]) -> Visibility:
    if (retriever.config or {}).get("configurable"):
        raise UnknownVisibilityError("the config that is bound to the retriever may choose a filter")
    visibility = _common_visibility(
        [visibility_of(one, keywords) for one in (retriever.default, *retriever.alternatives.values())]
    )
    if visibility.at_call:
        names = ", ".join(name for _, name in visibility.at_call)
        raise UnknownVisibilityError(f"the configurable field {names} of an alternative may hide documents")
    return visibility


_WITH_KEYWORDS: tuple[Any, ...] = (
    _visibility_of_vector_store,
    _visibility_of_binding,
    _visibility_of_configurable,
    _visibility_of_alternatives,
)


def _visibility_of_list(_: Any) -> Visibility:
    return Visibility(is_list=True)


def _visibility_of_inner(retriever: Any) -> Visibility:
    return visibility_of(retriever.retriever)


def _visibility_of_fallbacks(retriever: Any) -> Visibility:
    return _common_visibility([visibility_of(one) for one in retriever.runnables])


def _visibility_of_branches(retriever: Any) -> Visibility:
    return _common_visibility(
        [visibility_of(one) for one in (retriever.default, *(one for _, one in retriever.branches))]
    )


def _visibility_of_sequence(sequence: Any) -> Visibility:
    """Return which documents a sequence's last step can return; the earlier steps only produce the query."""
    return visibility_of(sequence.last)


_CORE, _CLASSIC = "langchain_core.", "langchain_classic.retrievers."
_COMMUNITY = "langchain_community."
_PARENTS = "vectorstore byte_store docstore id_key search_kwargs search_type"
_BINDING = "bound kwargs config config_factories"
_RETRY = "retry_exception_types wait_exponential_jitter exponential_jitter_params max_attempt_number"
_NEAREST = "embeddings index texts metadatas k relevancy_threshold"
_RETRIEVERS: Mapping[str, tuple[Any, str]] = {
    f"{_CORE}vectorstores.base.VectorStoreRetriever": (
        _visibility_of_vector_store,
        "vectorstore search_type search_kwargs",
    ),
    f"{_CLASSIC}multi_vector.MultiVectorRetriever": (_visibility_of_parents, _PARENTS),
    f"{_CLASSIC}parent_document_retriever.ParentDocumentRetriever": (
        _visibility_of_parents,
        f"{_PARENTS} child_splitter parent_splitter child_metadata_fields",
    ),
    f"{_CLASSIC}ensemble.EnsembleRetriever": (_visibility_of_merged, "retrievers weights c id_key"),
    f"{_CLASSIC}merger_retriever.MergerRetriever": (_visibility_of_merged, "retrievers"),
    f"{_CLASSIC}multi_query.MultiQueryRetriever": (
        _visibility_of_inner,
        "retriever llm_chain verbose parser_key include_original",
    ),
    f"{_CLASSIC}re_phraser.RePhraseQueryRetriever": (_visibility_of_inner, "retriever llm_chain"),
    f"{_CLASSIC}contextual_compression.ContextualCompressionRetriever": (
        _visibility_of_compression,
        "base_compressor base_retriever",
    ),
    "langchain_surerag.rewriting.UncertaintyRewriteRetriever": (_visibility_of_inner, "* prompts"),
    f"{_CORE}runnables.base.RunnableBinding": (_visibility_of_binding, _BINDING),
    f"{_CORE}runnables.retry.RunnableRetry": (_visibility_of_binding, f"{_BINDING} {_RETRY}"),
    f"{_CORE}runnables.configurable.RunnableConfigurableFields": (
        _visibility_of_configurable,
        "default fields config",
    ),
    f"{_CORE}runnables.configurable.RunnableConfigurableAlternatives": (
        _visibility_of_alternatives,
        "default which alternatives default_key prefix_keys config",
    ),
    f"{_CORE}runnables.fallbacks.RunnableWithFallbacks": (
        _visibility_of_fallbacks,
        "runnable fallbacks exceptions_to_handle exception_key",
    ),
    f"{_CORE}runnables.branch.RunnableBranch": (_visibility_of_branches, "branches default"),
    f"{_CORE}runnables.base.RunnableSequence": (_visibility_of_sequence, "first middle last"),
    f"{_COMMUNITY}retrievers.bm25.BM25Retriever": (_visibility_of_list, "vectorizer docs k preprocess_func"),
    f"{_COMMUNITY}retrievers.tfidf.TFIDFRetriever": (_visibility_of_list, "vectorizer docs tfidf_array k"),
    f"{_COMMUNITY}retrievers.knn.KNNRetriever": (_visibility_of_list, _NEAREST),
    f"{_COMMUNITY}retrievers.svm.SVMRetriever": (_visibility_of_list, _NEAREST),
}
"""For each class of retrievers or of wrappers around a retriever: the function that returns the
retriever's visibility, and the names of the settings that we can analyse."""
_COMPRESSORS: Mapping[str, str] = {
    "langchain_surerag.compressors.ClusterCompressor": "*",
    "langchain_surerag.compressors.DenseRefiner": "*",
    f"{_CLASSIC}document_compressors.base.DocumentCompressorPipeline": "transformers",
    f"{_CLASSIC}document_compressors.embeddings_filter.EmbeddingsFilter": "embeddings k similarity_threshold",
    f"{_CLASSIC}document_compressors.cross_encoder_rerank.CrossEncoderReranker": "model top_n",
    f"{_COMMUNITY}document_transformers.embeddings_redundant_filter.EmbeddingsRedundantFilter": (
        "embeddings similarity_threshold"
    ),
    f"{_COMMUNITY}document_transformers.long_context_reorder.LongContextReorder": "",
}
"""For each class of compressors that select by relevance only: the names of the settings that we can
analyse (``*`` stands for all settings except prompts)."""
