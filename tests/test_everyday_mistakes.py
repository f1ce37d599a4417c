"""What people get wrong in their first hour: each raises at once, in words that tell what to do instead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.documents import Document as LangChainDocument
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.vectorstores import InMemoryVectorStore
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index.core.llms import MockLLM

import langchain_surerag as lc
import llama_index_surerag as li
from surerag import ClusterCompressor, LazyRAG, Passage, ScriptedReader, SePer, TransformersReader
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import SureragError
from surerag.readers.openai import OpenAIReader
from tests.snippets import ROOT

READER = ScriptedReader(["Velm"] * 9, entropy=2.0)
TEXT = "Ada was born in Velm. Ada plays the harp."


class Corpus:
    """A retriever of one's own that finds what it is given."""

    def __init__(self, *found: Any) -> None:
        self._found = found

    def retrieve(self, query: str, k: int | None) -> list[Any]:
        return list(self._found)


def lazy(*found: Any, **options: Any) -> LazyRAG:
    return LazyRAG(READER, Corpus(*found), "Ada paints.", **options)


def engine(index: Any = None, llm: Any = READER, **options: Any) -> Any:
    embed_model = MockEmbedding(8)
    index = index or VectorStoreIndex.from_documents([Document(text=TEXT)], embed_model=embed_model)
    return li.LazyRetrievalQueryEngine.from_args(index, llm, embed_model=embed_model, **options)


def chain(documents: Any = None, llm: Any = READER, *, store: bool = False, **options: Any) -> Any:
    embeddings = DeterministicFakeEmbedding(size=8)
    given = [LangChainDocument(TEXT)]
    found = InMemoryVectorStore.from_documents(given, embeddings)
    retriever: Any = found if store else found.as_retriever()
    source = given if documents is None else documents
    return lc.LazyRetrievalChain.from_documents(source, llm, retriever, embeddings, **options)


MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    "a list as a question": (lambda: lazy().run(["a", "b"]), "several with run_many"),  # type: ignore[arg-type]
    "a text as cases": (lambda: lazy().run_many("Where?"), r"pass \[question\]"),
    "an empty question": (lambda: lazy().run(" "), "ask something"),
    "a retriever of texts": (lambda: lazy("Ada.").run("Where?"), r"return surerag\.Passage\(text"),
    "a list as a retriever": (lambda: LazyRAG(READER, [], "Ada."), "must be a Retriever, got list"),  # type: ignore[arg-type]
    "no retriever": (lambda: LazyRAG(READER, None, "Ada."), "pass retriever="),
    "a text as passages": (
        lambda: ClusterCompressor(READER, HashingEncoder()).run("Where?", "Ada."),  # type: ignore[arg-type]
        r"surerag\.Passage\(text\)",
    ),
    "a text as gold answers": (
        lambda: SePer(READER, ExactEntailer()).run("Where?", "Velm", [Passage("Ada.")]),
        r"\[answer\]",
    ),
    "a name as a reader": (lambda: LazyRAG("gpt-4o", Corpus(), "Ada."), r"OpenAIReader\('gpt-4o'\)"),  # type: ignore[arg-type]
    "a folder that is not there": (lambda: TransformersReader.from_pretrained("./none"), "no such folder"),
    "no key": (lambda: OpenAIReader("gpt-4o", api_key=""), "set OPENAI_API_KEY"),
    "a slip of the pen": (lambda: lazy(treshold=0.5), "did you mean threshold"),
    "the paper's symbol": (lambda: lazy(tau=0.5), "did you mean threshold"),
    "no number": (lambda: lazy(threshold="0.5"), "must be a number"),
    "LlamaIndex: a list as an index": (lambda: engine([Document(text=TEXT)]), "expected .* index, got list"),
    "LlamaIndex: a name as an LLM": (lambda: engine(llm="gpt-4o"), "does not tell who serves it"),
    "LlamaIndex: no log-probabilities": (lambda: engine(llm=MockLLM()), 'gate="disagreement"'),
    "LlamaIndex: its own word for an option": (lambda: engine(similarity_top_k=3), "did you mean top_n"),
    "LlamaIndex: not from_args": (
        lambda: li.LazyRetrievalQueryEngine(MockLLM()),  # type: ignore[arg-type]
        r"build it with from_args",
    ),
    "LlamaIndex: one document": (lambda: engine(summaries=Document(text=TEXT)), "pass a list of documents"),
    "LlamaIndex: no entailer": (lambda: li.DeltaSePerEvaluator(READER), r"JudgeEntailer\(reader\)"),
    "LangChain: a store as a retriever": (lambda: chain(store=True), r"as_retriever\(\)"),
    "LangChain: one document": (lambda: chain(LangChainDocument(TEXT)), "pass a list of documents"),
    "LangChain: texts as documents": (lambda: chain(["Ada."]), "pass LangChain documents"),
    "LangChain: no documents": (lambda: chain([]), "pass documents that have text"),
    "LangChain: a name as a model": (lambda: chain(llm="gpt-4o"), "pass the model itself"),
    "LangChain: its own word for an option": (lambda: chain(k=3), "did you mean top_n"),
    "LangChain: another's word for the model": (
        lambda: lc.ClusterCompressor(model=READER),
        "did you mean llm",
    ),
    "LangChain: texts to compress": (
        lambda: lc.ClusterCompressor(READER, DeterministicFakeEmbedding(size=8)).compress_documents(
            ["Ada."], "Q"
        ),  # type: ignore[list-item]
        "pass LangChain documents",
    ),
}


@pytest.fixture(autouse=True)
def _without_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_with_what_to_do_instead(mistake: str) -> None:
    make, told = MISTAKES[mistake]
    with pytest.raises(SureragError, match=f"(?i){told}"):
        make()


async def test_cases_that_are_a_text_are_told_whichever_way_they_are_asked() -> None:
    rag = lazy()
    for wrong in (rag.iter_many, rag.aiter_many):
        with pytest.raises(SureragError, match="cases are a list"):
            wrong("Where?")
    with pytest.raises(SureragError, match="cases are a list"):
        await rag.arun_many("Where?")


async def test_a_retriever_of_texts_is_told_by_a_coroutine_too() -> None:
    class Later(Corpus):
        async def aretrieve(self, query: str, k: int | None) -> list[Any]:
            return self.retrieve(query, k)

    rag = LazyRAG(READER, Later("Ada."), "Ada paints.")
    with pytest.raises(SureragError, match=r"Return surerag\.Passage"):
        await rag.arun("Where?")


def test_the_messages_that_troubleshooting_quotes_are_said() -> None:
    page = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8")
    section = page.partition("## In the words that you see")[2].partition("\n## ")[0]
    quoted = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    assert len(quoted) > 10
    said = []
    for make, _ in MISTAKES.values():
        with pytest.raises(SureragError) as raised:
            make()
        said.append(str(raised.value))
    patterns = {text: re.escape(text).replace("…", ".+") for text in quoted}
    assert [text for text, told in patterns.items() if not any(re.search(told, one) for one in said)] == []
