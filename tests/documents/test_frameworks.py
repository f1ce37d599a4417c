"""A folder of thirty years in the pipelines of both frameworks: what is searched, and what is shown of it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from surerag import FakeReader
from surerag.cli import app, compare, models
from surerag.documents import Document, FileNotesWarning, SkippedFilesWarning, load_documents
from surerag.encoders import HashingEncoder
from surerag.evaluation import EvaluationRun
from surerag.retrieval import MissingSummariesWarning
from tests.documents import old_folder

TABLES = {
    "1998/crew.csv", "2003/export.csv", "2008/stock.xlsx", "2018/settings.json", "2019/ships.json",
    "2020/prices.tsv", "2017/list",
}  # fmt: skip
WITHOUT_PROSE = {*TABLES, "2005/parts.pdf", "2015/depth.ipynb"}
"""Documents that no sentence sums up, so that questions on them are searched for."""


@pytest.fixture
def documents(tmp_path: Path) -> Sequence[Document]:
    pytest.importorskip("markitdown")
    with pytest.warns((SkippedFilesWarning, FileNotesWarning)):
        return load_documents(old_folder.make_folder(tmp_path)).documents


def outcomes(documents: Sequence[Document], answer: Any) -> dict[str, tuple[bool, str]]:
    """Return for each document whether a question on it was searched for, and what was shown of it."""
    return {document.id: answer(" ".join(document.text.split())) for document in documents}


def check(documents: Sequence[Document], answers: dict[str, tuple[bool, str]]) -> None:
    assert {name for name, (searched, _) in answers.items() if searched} == WITHOUT_PROSE
    for document in documents:
        first = document.text.replace("\u2028", " ").strip().split("\n\n")[0] if document.rows else ""
        assert first in answers[document.id][1], "a row with its header"
    assert {document.id for document in documents if document.rows} == TABLES


def test_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("markitdown")
    folder = old_folder.make_folder(tmp_path / "docs")
    with pytest.warns((SkippedFilesWarning, FileNotesWarning)):
        texts = {one.id: " ".join(one.text.split()) for one in load_documents(folder).documents}
    rows = [{"question": text[:300], "answers": [name], "id": name} for name, text in texts.items()]
    (tmp_path / "questions.json").write_text(json.dumps(rows))
    monkeypatch.setattr(compare, "load_reader", lambda *_, **__: FakeReader(lambda prompt: "Velm"))
    monkeypatch.setattr(models, "load_encoder", lambda: HashingEncoder(4096))
    monkeypatch.chdir(tmp_path)
    command = ("compare", "questions.json", "--documents", "docs", "--systems", "plain")
    with pytest.warns((SkippedFilesWarning, FileNotesWarning)) as told:
        result = CliRunner().invoke(app.app, command)
    assert result.exit_code == 0, result.output
    said = " ".join(str(one.message) for one in told)
    assert [name for name in old_folder.SKIPPED if name not in said] == []
    with EvaluationRun("run.db") as run:
        shown = {
            row.question.id: " ".join(" ".join(row.answer.contexts).split()) for row in run.rows if row.answer
        }
    assert shown.keys() == old_folder.READ.keys()
    beginnings = {name: " ".join(text.split()[:8]) for name, text in old_folder.READ.items()}
    assert [name for name, text in beginnings.items() if text not in shown[name]] == []


def test_langchain(documents: Sequence[Document]) -> None:
    pytest.importorskip("langchain_core")
    from langchain_core.documents import Document as LangChainDocument
    from langchain_core.embeddings import Embeddings
    from langchain_core.vectorstores import InMemoryVectorStore
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    from langchain_surerag import LazyRetrievalChain

    class Hashing(Embeddings):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return HashingEncoder(4096).encode(texts, "document").tolist()

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    mine = [LangChainDocument(one.text, id=one.id, metadata={**one.metadata}) for one in documents]
    store = InMemoryVectorStore(Hashing())
    store.add_documents(RecursiveCharacterTextSplitter(chunk_size=300, chunk_overlap=0).split_documents(mine))
    with pytest.warns(MissingSummariesWarning, match="of 43 documents have no summary"):
        chain = LazyRetrievalChain.from_documents(
            mine,
            FakeReader(lambda prompt: "Velm", entropy=0.0),
            store.as_retriever(search_kwargs={"k": 2}),
            Hashing(),
        )

    def answer(question: str) -> tuple[bool, str]:
        output = chain.invoke(question)
        return output["decision"]["retrieve"], "\n\n".join(one.page_content for one in output["context"])

    check(documents, outcomes(documents, answer))


def test_llama_index(documents: Sequence[Document]) -> None:
    pytest.importorskip("llama_index.core")
    from llama_index.core import Document as LlamaIndexDocument
    from llama_index.core import VectorStoreIndex

    from llama_index_surerag import LazyRetrievalQueryEngine
    from tests.llama_index.corpus import HashEmbedding

    mine = [LlamaIndexDocument(id_=one.id, text=one.text, metadata={**one.metadata}) for one in documents]
    index = VectorStoreIndex.from_documents(mine, embed_model=HashEmbedding())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MissingSummariesWarning)
        engine = LazyRetrievalQueryEngine.from_args(index, FakeReader(lambda prompt: "Velm", entropy=0.0))
    assert [one for one in caught if issubclass(one.category, MissingSummariesWarning)]

    def answer(question: str) -> tuple[bool, str]:
        response = engine.query(question)
        return response.metadata["retrieve"], "\n\n".join(one.node.text for one in response.source_nodes)

    check(documents, outcomes(documents, answer))
