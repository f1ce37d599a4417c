"""Shows L-RAG's answers after documents are added, changed and deleted, and after a restart.

    python cookbooks/documents_change_langchain.py             # every store that is installed
    python cookbooks/documents_change_langchain.py FAISS Qdrant

LangChain's own ``index`` updates two stores: the store of chunks, which the retriever searches, and the store
of summaries, from which L-RAG answers first. A record manager in a file records the contents of both stores.
So after a restart no unchanged document is added again, and the model writes the summary of a document only
once. Replace the model, the embeddings and the documents by your own.

Needs ``pip install 'surerag[langchain]' langchain-classic sqlalchemy``, and for the stores
``langchain-community faiss-cpu``, ``langchain-qdrant`` or ``langchain-chroma``.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from uuid import NAMESPACE_URL, uuid5

from langchain_classic.indexes import SQLRecordManager
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.indexing import index
from langchain_core.vectorstores import InMemoryVectorStore, VectorStore
from langchain_text_splitters import RecursiveCharacterTextSplitter

from langchain_surerag import LazyRetrievalChain, SummaryStore
from surerag import FakeReader
from surerag.encoders import HashingEncoder

DIMENSIONS = 256
QUESTION = "How long do customers have to get money back?"
REFUND = "Customers get money back within {days}. Write to the shop, and add the receipt of what you bought."
LUNCH = "Lunch is at noon in the hall. On Fridays there is fish, and the kitchen closes at two."
SUPPORT = "Support answers on weekdays from 9 to 17. Call the number on the receipt, or write an email."


class HashedWords(Embeddings):
    """An embedding model that needs no download: texts that share words have similar vectors."""

    def __init__(self) -> None:
        self._encoder = HashingEncoder(DIMENSIONS)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Return a vector for each text."""
        return [[float(value) for value in row] for row in self._encoder.encode(texts, "document")]

    def embed_query(self, text: str) -> list[float]:
        """Return the vector of a question."""
        return self.embed_documents([text])[0]


def answer_or_summarize(prompt: str) -> str:
    """Return the reply of a scripted model: the number of days in the prompt, or a summary of the prompt."""
    days = next((days for days in ("30 days", "14 days") if days in prompt), None)
    if "Summar" in prompt:
        return f"Customers get money back within {days}." if days else "About lunch or support."
    return days or "I do not know."


def identity_of(document: Document) -> str:
    """Return a UUID made from a document's text and metadata; LangChain's ``index`` compares the UUIDs."""
    return str(uuid5(NAMESPACE_URL, f"{sorted(document.metadata.items())}\n{document.page_content}"))


class Stores(NamedTuple):
    """A kind of vector store: how to open (or create) and close it in a folder, and the package it needs."""

    open: Callable[[Path, str], VectorStore]
    close: Callable[[VectorStore, Path, str], Any]
    package: str


def open_memory(folder: Path, name: str) -> VectorStore:
    """Load LangChain's store in memory from a file, or create an empty store."""
    path = folder / f"{name}.json"
    return (
        InMemoryVectorStore.load(str(path), HashedWords())
        if path.exists()
        else InMemoryVectorStore(HashedWords())
    )


def open_faiss(folder: Path, name: str) -> VectorStore:
    """Load a FAISS index from files, or create an empty index."""
    import faiss
    from langchain_community.docstore.in_memory import InMemoryDocstore
    from langchain_community.vectorstores import FAISS

    if (folder / f"{name}.faiss").exists():
        return FAISS.load_local(str(folder), HashedWords(), name, allow_dangerous_deserialization=True)
    return FAISS(HashedWords(), faiss.IndexFlatL2(DIMENSIONS), InMemoryDocstore(), {})


def open_qdrant(folder: Path, name: str) -> VectorStore:
    """Open or create a collection of Qdrant in a folder."""
    from langchain_qdrant import QdrantVectorStore
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(folder / name))
    if not client.collection_exists(name):
        vectors = models.VectorParams(size=DIMENSIONS, distance=models.Distance.COSINE)
        client.create_collection(name, vectors_config=vectors)
    return QdrantVectorStore(client, name, HashedWords())


def open_chroma(folder: Path, name: str) -> VectorStore:
    """Open or create a collection of Chroma in a folder."""
    from langchain_chroma import Chroma

    return Chroma(name, HashedWords(), persist_directory=str(folder / "chroma"))


STORES = {
    "InMemory": Stores(
        open_memory, lambda one, folder, name: one.dump(str(folder / f"{name}.json")), "langchain_core"
    ),  # type: ignore[attr-defined]
    "FAISS": Stores(open_faiss, lambda one, folder, name: one.save_local(str(folder), name), "faiss"),  # type: ignore[attr-defined]
    "Qdrant": Stores(open_qdrant, lambda one, folder, name: one.client.close(), "langchain_qdrant"),  # type: ignore[attr-defined]
    "Chroma": Stores(open_chroma, lambda one, folder, name: None, "langchain_chroma"),
}


class Application:
    """An L-RAG chain with its store of chunks and its store of summaries, both in a folder."""

    def __init__(self, stores: Stores, folder: Path, reader: FakeReader) -> None:
        self._stores, self._folder = stores, folder
        self._chunks = stores.open(folder, "chunks")
        self._held = stores.open(folder, "summaries")
        self.summaries = SummaryStore(self._held, summarize=reader)
        self.chain = LazyRetrievalChain(reader, self._chunks.as_retriever(), self.summaries)
        address = f"sqlite:///{folder / 'records.db'}"
        self._records = {name: SQLRecordManager(name, db_url=address) for name in ("chunks", "summaries")}
        for records in self._records.values():
            records.create_schema()

    def update(self, documents: Sequence[Document]) -> None:
        """Update both stores, so that they hold exactly these documents."""
        splitter = RecursiveCharacterTextSplitter(chunk_size=60, chunk_overlap=0)
        settings: Any = {"cleanup": "full", "source_id_key": "source", "key_encoder": identity_of}
        index(splitter.split_documents(documents), self._records["chunks"], self._chunks, **settings)
        index(documents, self._records["summaries"], self.summaries, **settings)

    def close(self) -> None:
        """Save and close both stores."""
        self._stores.close(self._chunks, self._folder, "chunks")
        self._stores.close(self._held, self._folder, "summaries")


class Row(NamedTuple):
    """The state after a step.

    Attributes:
        step: What was done.
        summaries: Number of summaries in the store.
        written: Number of summaries that the model has written since the start.
        answer: L-RAG's answer.
        searched: Whether L-RAG searched.
    """

    step: str
    summaries: int
    written: int
    answer: str
    searched: bool


def documents(*texts: str) -> list[Document]:
    """Return a document for each text. The document's source is named after the first word of the text."""
    return [Document(text, metadata={"source": f"{text.split()[0].lower()}.md"}) for text in texts]


def run(name: str, folder: Path) -> list[Row]:
    """Add, change and delete documents, restart in between, and return a row for each step."""
    reader = FakeReader(answer_or_summarize, entropy=0.1)
    rows: list[Row] = []
    application = Application(STORES[name], folder, reader)

    def after(step: str) -> None:
        written = sum("Summar" in str(prompt) for prompt in reader.prompts)
        output = application.chain.invoke(QUESTION)
        held = application.summaries.similarity_search(QUESTION, 99)
        rows.append(Row(step, len(held), written, output["answer"], output["decision"]["retrieve"]))

    application.update(documents(REFUND.format(days="30 days"), LUNCH))
    after("two documents")
    application.update(documents(REFUND.format(days="30 days"), LUNCH, SUPPORT))
    after("one added")
    application.update(documents(REFUND.format(days="14 days"), LUNCH, SUPPORT))
    after("one changed")
    application.close()
    application = Application(STORES[name], folder, reader)
    application.update(documents(REFUND.format(days="14 days"), LUNCH, SUPPORT))
    after("a restart")
    application.update(documents(LUNCH, SUPPORT))
    after("one deleted")
    application.close()
    return rows


def main(names: Sequence[str]) -> None:
    """Print a table of steps for each named store; without names, for each installed store."""
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    for name in names or [name for name, stores in STORES.items() if find_spec(stores.package)]:
        print(f"{name:<15} summaries  written  searched  answer")
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            for row in run(name, Path(folder)):
                searched = "yes" if row.searched else "no"
                print(f"{row.step:<15} {row.summaries:>9} {row.written:>8} {searched:>9}  {row.answer}")
        print()


if __name__ == "__main__":
    main(sys.argv[1:])
