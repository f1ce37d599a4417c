"""Documents change: summaries follow the index, are kept in a folder of their own, and are written once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, StorageContext, VectorStoreIndex, load_index_from_storage

from llama_index_surerag import summary_index
from llama_index_surerag.summaries import summary_id
from surerag import FakeReader
from surerag.errors import ConfigurationError
from tests.llama_index import corpus
from tests.llama_index.corpus import HashEmbedding


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
    with pytest.raises(ConfigurationError, match=r"would be lost.*summaries in a folder of their own"):
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
    monkeypatch.setattr("llama_index_surerag.summaries._WRITTEN_AT_ONCE", 1)

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
