"""Adds, changes and deletes documents in each installed vector store of LlamaIndex, and restarts.

    python cookbooks/documents_change_llama_index.py

Each step prints the summaries that an L-RAG engine shows to the model. The engine must not show the summary
of a document that was deleted or changed, even if the summaries were not updated. In this case the engine
searches.

LlamaIndex's ``persist`` saves stores in memory and FAISS indexes in a folder, and
``summary_index(…, persist_dir=…)`` saves the summaries. Qdrant and Chroma save their own data, and an
``IngestionPipeline`` with the strategy UPSERTS_AND_DELETE updates passages and summaries. The models are
fakes, so that the script runs in seconds: replace ``EMBED_MODEL`` and ``READER`` by your own models.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from llama_index.core import (
    Document,
    MockEmbedding,
    StorageContext,
    VectorStoreIndex,
    load_index_from_storage,
)
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore

from llama_index_surerag import DocumentSummarizer, LazyRetrievalQueryEngine, summary_index
from surerag import FakeReader
from surerag.messages import NO_SUMMARY

DIMENSIONS = 8
EMBED_MODEL = MockEmbedding(DIMENSIONS)
READER = FakeReader(default="An answer.", entropy=0.1)
QUESTION = "Within how many days may I return a kettle?"
REFUND = Document(id_="refund.md", text="Money back within 30 days. Bring the bill.")
CHANGED = Document(id_="refund.md", text="Money back within 14 days. Bring the bill.")
LUNCH = Document(id_="lunch.md", text="Lunch is at noon. It is hot.")
HOURS = Document(id_="hours.md", text="We open at nine. We close at five.")


class InMemory:
    """LlamaIndex's own store in memory, which ``persist`` saves."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = VectorStoreIndex.from_documents([REFUND, LUNCH], embed_model=EMBED_MODEL)
        self.summarize()

    def summarize(self) -> None:
        """Update the summaries. Only new and changed summaries are embedded."""
        self.summaries = summary_index(
            self.index, embed_model=EMBED_MODEL, persist_dir=self.folder / "summaries"
        )

    def hold(self, documents: list[Document]) -> None:
        """Add, change and delete documents, so that the index holds exactly these documents."""
        self.index.refresh_ref_docs(documents)
        kept = {document.id_ for document in documents}
        for name in self.index.ref_doc_info.keys() - kept:
            self.index.delete_ref_doc(name, delete_from_docstore=True)

    def restart(self) -> None:
        """Save the index, and load the index and the summaries from the folder."""
        self.index.storage_context.persist(self.folder / "index")
        stored = StorageContext.from_defaults(persist_dir=str(self.folder / "index"))
        self.index = load_index_from_storage(stored, embed_model=EMBED_MODEL)
        self.summarize()


class Faiss(InMemory):
    """A FAISS index. LlamaIndex's FAISS store cannot delete, so each change builds a new index."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hold([REFUND, LUNCH])
        self.summarize()

    def hold(self, documents: list[Document]) -> None:
        """Build a new index of the documents."""
        import faiss
        from llama_index.vector_stores.faiss import FaissVectorStore

        storage = StorageContext.from_defaults(vector_store=FaissVectorStore(faiss.IndexFlatIP(DIMENSIONS)))
        self.index = VectorStoreIndex.from_documents(
            documents, storage_context=storage, embed_model=EMBED_MODEL
        )

    def restart(self) -> None:
        """Save the index, and load the index and the summaries from the folder."""
        from llama_index.vector_stores.faiss import FaissVectorStore

        folder = str(self.folder / "index")
        self.index.storage_context.persist(folder)
        storage = StorageContext.from_defaults(
            persist_dir=folder, vector_store=FaissVectorStore.from_persist_dir(folder)
        )
        self.index = load_index_from_storage(storage, embed_model=EMBED_MODEL)
        self.summarize()


class Ingested:
    """A vector store that also stores texts. One pipeline adds passages, another adds summaries."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.documents = [REFUND, LUNCH]
        self.passages, self.of_summaries = self.pipelines()
        self.passages.run(documents=self.documents)
        self.summarize()

    def store(self, name: str) -> Any:
        """Open the store of this name, or create it."""
        raise NotImplementedError

    def pipelines(self) -> tuple[IngestionPipeline, IngestionPipeline]:
        """Return the pipelines of passages and of summaries. Each records its documents in a file."""
        made = []
        for name, transformations in (
            ("passages", [SentenceSplitter(), EMBED_MODEL]),
            ("summaries", [DocumentSummarizer(), EMBED_MODEL]),
        ):
            seen = self.folder / name / "docstore.json"
            made.append(
                IngestionPipeline(
                    transformations=transformations,
                    vector_store=self.store(name),
                    docstore=SimpleDocumentStore.from_persist_path(str(seen))
                    if seen.exists()
                    else SimpleDocumentStore(),
                    docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
                )
            )
        self.index, self.summaries = (
            VectorStoreIndex.from_vector_store(one.vector_store, embed_model=EMBED_MODEL) for one in made
        )
        return made[0], made[1]

    def summarize(self) -> None:
        """Update the summaries; only new and changed documents are summarized and embedded."""
        self.of_summaries.run(documents=self.documents)

    def hold(self, documents: list[Document]) -> None:
        """Add, change and delete passages, so that the store holds exactly these documents."""
        self.documents = documents
        self.passages.run(documents=documents)

    def restart(self) -> None:
        """Close both stores, and open both stores again."""
        for one, name in ((self.passages, "passages"), (self.of_summaries, "summaries")):
            one.docstore.persist(str(self.folder / name / "docstore.json"))
        self.close()
        self.passages, self.of_summaries = self.pipelines()

    def close(self) -> None:
        """Release the files that only one process at a time may open, if the store has such files."""


class Qdrant(Ingested):
    """Qdrant in a folder. In production, connect to a server with ``QdrantClient(url=…)``."""

    client: Any = None

    def store(self, name: str) -> Any:
        """Return the collection of this name."""
        from llama_index.vector_stores.qdrant import QdrantVectorStore
        from qdrant_client import QdrantClient

        if self.client is None:
            self.client = QdrantClient(path=str(self.folder / "qdrant"))
        return QdrantVectorStore(name, client=self.client)

    def close(self) -> None:
        """Close the client, so that another client can open the folder."""
        self.client.close()
        self.client = None


class Chroma(Ingested):
    """Chroma in a folder. In production, connect to a server with ``chromadb.HttpClient(…)``."""

    def store(self, name: str) -> Any:
        """Return the collection of this name."""
        import chromadb
        from chromadb.config import Settings
        from llama_index.vector_stores.chroma import ChromaVectorStore

        quiet = Settings(anonymized_telemetry=False)
        client = chromadb.PersistentClient(str(self.folder / "chroma"), quiet)
        return ChromaVectorStore(chroma_collection=client.get_or_create_collection(name))


STORES: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "in memory": ("llama_index.core", InMemory),
    "FAISS": ("llama_index.vector_stores.faiss", Faiss),
    "Qdrant": ("llama_index.vector_stores.qdrant", Qdrant),
    "Chroma": ("llama_index.vector_stores.chroma", Chroma),
}
"""For the name of each store: the module to install, and the class that holds passages and summaries."""


def is_installed(module: str) -> bool:
    """Return whether a module of LlamaIndex is installed."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def shown(held: Any) -> list[str]:
    """Return the summaries that an L-RAG engine shows to the model, in alphabetical order."""
    engine = LazyRetrievalQueryEngine.from_args(held.index, READER, summaries=held.summaries, n_summaries=9)
    found = engine.core.services.summaries.retrieve(QUESTION, 9)
    return sorted(one.text for one in found if NO_SUMMARY not in one.metadata)


def steps(make: Callable[[Path], Any], folder: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield for each step: its name, the summaries shown after the step, and the expected summaries."""
    held = make(folder)
    refund, changed, lunch, hours = (one.text for one in (REFUND, CHANGED, LUNCH, HOURS))
    yield "two documents", shown(held), [lunch, refund]
    held.hold([REFUND, LUNCH, HOURS])
    yield "one is added", shown(held), [lunch, refund]
    held.summarize()
    yield "  and summarized", shown(held), [lunch, refund, hours]
    held.hold([CHANGED, LUNCH, HOURS])
    yield "one is changed", shown(held), [lunch, hours]
    held.summarize()
    yield "  and summarized", shown(held), [lunch, changed, hours]
    held.hold([CHANGED, HOURS])
    yield "one is deleted", shown(held), [changed, hours]
    held.restart()
    yield "after a restart", shown(held), [changed, hours]
    held.hold([HOURS])
    held.summarize()
    yield "one is left", shown(held), [hours]


def main() -> int:
    """Run all steps with each store. Return 1 if a step showed wrong summaries, else 0."""
    logging.getLogger("surerag").setLevel(logging.ERROR)  # hide warnings about outdated summaries
    failed = False
    for name, (module, make) in STORES.items():
        print(f"\n{name}" if is_installed(module) else f"\n{name}: {module} is not installed")
        if not is_installed(module):
            continue
        with tempfile.TemporaryDirectory() as folder:
            for step, found, expected in steps(make, Path(folder)):
                is_right = found == sorted(expected)
                failed = failed or not is_right
                print(f"  {'ok   ' if is_right else 'WRONG'} {step:16} {' | '.join(found)}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
