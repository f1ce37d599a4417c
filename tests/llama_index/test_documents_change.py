"""Documents change: summaries follow the index, are kept in a folder of their own, and are written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage
from llama_index.core.ingestion import DocstoreStrategy, IngestionPipeline
from llama_index.core.node_parser import SentenceSplitter
from llama_index.core.storage.docstore import SimpleDocumentStore
from llama_index.core.vector_stores import SimpleVectorStore

from cookbooks import documents_change_llama_index as documents_change
from llama_index_surerag import DocumentSummarizer, LazyRetrievalQueryEngine, summary_index
from llama_index_surerag.summaries import summary_id
from surerag import FakeReader
from surerag.errors import ConfigurationError
from tests.llama_index import corpus
from tests.llama_index.corpus import KEY, HashEmbedding, like
from tests.servers.fake_openai import FakeOpenAI


def contents(folder: Path) -> dict[str, bytes]:
    if folder.is_file():
        return {folder.name: folder.read_bytes()}
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def an_index(folder: Path) -> None:
    corpus.index().storage_context.persist(str(folder))


def notes(folder: Path) -> None:
    folder.mkdir()
    (folder / "notes.md").write_text("Mine.")


def summaries_and_notes(folder: Path) -> None:
    summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=folder)
    (folder / "notes.md").write_text("Mine.")


def summaries_under_an_index(folder: Path) -> None:
    """An index was kept in the folder of summaries later."""
    summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=folder)
    an_index(folder)


def two_indices(folder: Path) -> None:
    storage = StorageContext.from_defaults()
    for index_id in ("surerag-summaries", "mine"):
        index = VectorStoreIndex(corpus.nodes(), storage_context=storage, embed_model=HashEmbedding())
        index.set_index_id(index_id)
    storage.persist(str(folder))


def broken(folder: Path) -> None:
    folder.mkdir()
    (folder / "index_store.json").write_text("{")


@pytest.mark.parametrize(
    "make",
    [an_index, notes, summaries_and_notes, summaries_under_an_index, two_indices, broken, Path.touch],
)
def test_a_folder_that_holds_anything_else_is_refused(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "storage"
    make(folder)
    before = contents(folder)
    with pytest.raises(ConfigurationError, match=r"would be lost.*summaries in another folder"):
        summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=folder)
    assert contents(folder) == before
    assert [file.name for file in tmp_path.iterdir()] == ["storage"]


def test_a_folder_beside_an_index_takes_summaries(tmp_path: Path) -> None:
    an_index(tmp_path)
    summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=tmp_path / "summaries")
    stored = StorageContext.from_defaults(persist_dir=str(tmp_path))
    assert load_index_from_storage(stored, embed_model=HashEmbedding()).docstore.docs.keys() == {
        node.node_id for node in corpus.nodes()
    }


class Turned(HashEmbedding):
    """Another model of the same size."""

    def _vectors(self, texts: Any) -> list[list[float]]:
        return [row[::-1] for row in super()._vectors(texts)]


def test_another_embedding_model_embeds_all_summaries_anew(tmp_path: Path) -> None:
    reader, one = FakeReader(default="In short."), HashEmbedding(model_name="one")
    summary_index(corpus.documents(), reader, embed_model=one, persist_dir=tmp_path)
    asked = len(reader.history)
    for model in (Turned(model_name="two", embedded=[]), Turned(model_name="two", embedded=[])):
        summaries = summary_index(corpus.documents(), reader, embed_model=model, persist_dir=tmp_path)
        assert len(reader.history) == asked  # the texts are as good as they were
        vectors = summaries.vector_store.data.embedding_dict  # type: ignore[attr-defined]  # in memory
        for name, node in summaries.docstore.docs.items():
            assert vectors[name] == model._vectors([node.get_content()])[0]
    assert model.embedded == []  # at a restart


def test_a_model_writes_a_summary_once(tmp_path: Path) -> None:
    def prompts(reader: FakeReader) -> int:
        return sum(len(call.prompts) for call in reader.history)

    documents, reader = corpus.documents(), FakeReader(default="In short.")
    for _ in range(3):
        summary_index(documents, reader, embed_model=HashEmbedding(), persist_dir=tmp_path)
    assert prompts(reader) == 3
    changed = [Document(id_="ada", text="Ada was born in Mir."), *documents[1:]]
    index = VectorStoreIndex.from_documents(changed, embed_model=HashEmbedding())
    for source in (changed, index, index):
        summaries = summary_index(source, reader, embed_model=HashEmbedding(), persist_dir=tmp_path)
    # What chunks are made of is not known to be what documents were made of.
    assert prompts(reader) == 3 + 1 + 3
    other = FakeReader(default="Otherwise.", name="other")
    summaries = summary_index(index, other, embed_model=HashEmbedding(), persist_dir=tmp_path)
    assert {node.get_content() for node in summaries.docstore.docs.values()} == {"Otherwise."}
    assert set(summaries.docstore.docs) == {summary_id(name) for name in corpus.LEADS}


def test_what_a_model_has_written_is_kept_where_it_fails_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_index_surerag.summaries._N_AT_ONCE", 1)

    def reply_to(prompt: str) -> str:
        if "Tarn is an old city" in prompt and failing:
            raise RuntimeError("the server went away")
        return "In short."

    failing, reader = True, FakeReader(reply_to)
    with pytest.raises(RuntimeError):
        summary_index(corpus.documents(), reader, embed_model=HashEmbedding(), persist_dir=tmp_path)
    failing, before = False, len(reader.history)
    summary_index(corpus.documents(), reader, embed_model=HashEmbedding(), persist_dir=tmp_path)
    assert len(reader.history) - before == 1


def test_a_folder_of_which_a_part_was_written_is_mended(tmp_path: Path) -> None:
    summary_index(corpus.documents()[:1], embed_model=HashEmbedding(), persist_dir=tmp_path)
    vectors = (tmp_path / "default__vector_store.json").read_bytes()
    summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=tmp_path)
    (tmp_path / "default__vector_store.json").write_bytes(vectors)
    summaries = summary_index(corpus.documents(), embed_model=HashEmbedding(), persist_dir=tmp_path)
    assert len(summaries.vector_store.data.embedding_dict) == 3  # type: ignore[attr-defined]  # in memory


# What is deleted or changed leaves tier 1, by LlamaIndex's own ways, whatever the summaries were made of.

SECRET = "The safe opens at nine. Its code is 4711."
REST = "Guests come in by the gate. They leave by the door."


def with_a_secret() -> VectorStoreIndex:
    """A document of two chunks, and another one."""
    splitter = SentenceSplitter(chunk_size=20, chunk_overlap=0, tokenizer=str.split)
    return VectorStoreIndex.from_documents(
        secret_documents(), transformations=[splitter], embed_model=HashEmbedding()
    )


def secret_documents() -> list[Document]:
    return [Document(id_="house", text=f"{SECRET}\n\n{REST} " * 2), *corpus.documents()]


def chunks_with_the_code(index: Any) -> list[str]:
    return [name for name, node in index.docstore.docs.items() if "4711" in node.get_content()]


def nodes_deleted(index: Any) -> None:
    index.delete_nodes(chunks_with_the_code(index))


def nodes_deleted_everywhere(index: Any) -> None:
    index.delete_nodes(chunks_with_the_code(index), delete_from_docstore=True)


def document_deleted(index: Any) -> None:
    index.delete_ref_doc("house")


def document_deleted_everywhere(index: Any) -> None:
    index.delete_ref_doc("house", delete_from_docstore=True)


def document_updated(index: Any) -> None:
    index.update_ref_doc(Document(id_="house", text=REST))


def documents_refreshed(index: Any) -> None:
    index.refresh_ref_docs([Document(id_="house", text=REST)])


def node_replaced(index: Any) -> None:
    for name in chunks_with_the_code(index):
        index.insert_nodes([index.docstore.docs[name].model_copy(update={"text": REST})])


def deleted_in_the_store(index: Any) -> None:
    index.vector_store.delete_nodes(chunks_with_the_code(index))


CHANGES = [
    nodes_deleted,
    nodes_deleted_everywhere,
    document_deleted,
    document_deleted_everywhere,
    document_updated,
    documents_refreshed,
    node_replaced,
    deleted_in_the_store,
]


@pytest.mark.parametrize("made_of", ["nothing", "the index", "documents", "a retriever"])
@pytest.mark.parametrize("change", CHANGES)
async def test_what_was_deleted_or_changed_is_not_answered_from(
    change: Any, made_of: str, caplog: pytest.LogCaptureFixture
) -> None:
    if (change, made_of) == (node_replaced, "documents"):
        pytest.skip("a chunk that is written over by hand still names the document as it was")
    index = with_a_secret()
    summaries: Any = None
    if made_of != "nothing":
        summaries = summary_index(
            secret_documents() if made_of == "documents" else index, embed_model=HashEmbedding()
        )
    if made_of == "a retriever":
        summaries = summaries.as_retriever(similarity_top_k=3)
    reader = FakeReader(default="x", entropy=0.1)
    lazy = LazyRetrievalQueryEngine.from_args(index, reader, summaries=summaries, threshold=9)
    question = "When does the safe open, and what is its code?"
    assert "4711" in shown_to(reader, lazy.query(question))
    change(index)
    for response in (lazy.query(question), await lazy.aquery(question)):
        assert "4711" not in shown_to(reader, response)
    assert ("summary_outdated" in caplog.text) is (made_of != "nothing")
    assert "4711" not in caplog.text and question not in caplog.text


def shown_to(reader: FakeReader, response: Any) -> str:
    """What the reader was shown for its last answers, and the response names."""
    shown = [str(prompt) for call in reader.history for prompt in call.prompts]
    reader.history.clear()
    return "\n".join([*shown, *(node.text for node in response.source_nodes)])


def test_a_pipeline_of_summaries_asks_a_model_for_what_is_new_alone() -> None:
    reader = FakeReader(lambda prompt: "In short: " + prompt.split("Document:")[-1].strip()[:20])
    pipeline = IngestionPipeline(
        transformations=[DocumentSummarizer(reader), HashEmbedding()],
        docstore=SimpleDocumentStore(),
        vector_store=SimpleVectorStore(),
        docstore_strategy=DocstoreStrategy.UPSERTS_AND_DELETE,
    )
    first, *others = corpus.documents()
    for documents, expected in (
        ([first, *others], 3),
        ([first, *others], 3),
        ([Document(id_=first.id_, text="Ada was born in Mir."), *others], 4),
        (others, 4),
    ):
        pipeline.run(documents=documents)
        assert sum(len(call.prompts) for call in reader.history) == expected
        held = pipeline.vector_store.data.text_id_to_ref_doc_id.values()  # type: ignore[union-attr]  # in memory
        assert set(held) == {document.id_ for document in documents}


def test_a_summarizer_in_a_pipeline_is_written_with_its_settings_and_no_key() -> None:
    with FakeOpenAI() as server:
        written = [DocumentSummarizer(how).to_dict() for how in (2, 3, "abstract", like(server), len)]
    assert len({str(one["summarize"]) for one in written}) == 5
    assert KEY not in str(written)
    with pytest.raises(ConfigurationError, match="summarize must be a number of sentences"):
        DocumentSummarizer(2.5)  # type: ignore[arg-type]  # that is what is tested


@pytest.mark.parametrize("name", documents_change.STORES)
def test_documents_change_over_the_stores_that_are_installed(name: str, tmp_path: Path) -> None:
    module, make = documents_change.STORES[name]
    if not documents_change.is_installed(module):
        pytest.skip(f"{module} is not installed")
    seen = list(documents_change.steps(make, tmp_path))
    assert len(seen) == 8
    for step, shown, expected in seen:
        assert shown == sorted(expected), step
