"""What the tests of DENSE in LangChain share: documents of one letter, and a retriever that finds them."""

from __future__ import annotations

from typing import Any

from langchain_core.callbacks import BaseCallbackHandler, CallbackManagerForRetrieverRun
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from langchain_surerag import DenseRefiner
from surerag.entailment import ExactEntailer
from tests.methods.dense_rag.script import LETTERS, MENDED, Letters, passages, script


def documents(letters: str = LETTERS) -> list[Document]:
    """Documents of one letter each, with the ids and metadata that the core's passages have."""
    return [
        Document(id=one.id, page_content=one.text, metadata={**one.metadata, "tags": ["x"]})
        for one in passages(letters)
    ]


def tool(reader: Any = None, **settings: Any) -> DenseRefiner:
    """A refiner to whom b is noise, c is needed and not understood, and e is what c lacks."""
    services = script(MENDED) if reader is None else reader, settings.pop("embeddings", Letters())
    return DenseRefiner(*services, **{"entailer": ExactEntailer(), "top_n": 3, **settings})


def texts(found: Any) -> str:
    """The letters of documents."""
    return "".join(document.page_content for document in found)


class Store(BaseRetriever):
    """Finds the first k documents."""

    k: int = 6

    def _get_relevant_documents(
        self, query: str, *, run_manager: CallbackManagerForRetrieverRun, k: int | None = None
    ) -> list[Document]:
        return documents()[: k or self.k]


class Heard(BaseCallbackHandler):
    """Remembers custom events."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.data: list[Any] = []

    def on_custom_event(self, name: str, data: Any, **_: Any) -> None:
        self.names.append(name)
        self.data.append(data)
