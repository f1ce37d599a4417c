"""What a newcomer passes by mistake: told what was expected, what was found, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from surerag import AdaptiveChunker, ClusterCompressor, Dense, LazyRAG, Passage, ScriptedReader, SePer
from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError
from surerag.retrieval import DiskSummaryIndex, PassageIndex, SummaryIndex

TEXT = "Ada was born in Velm."
PASSAGE, DOCUMENT = Passage(TEXT, id="a"), Document("a", TEXT)
ENCODER = HashingEncoder()
READER = ScriptedReader(lambda _: "Velm", entropy=0.1)

OF_PASSAGES: dict[str, Callable[[Any, Path], Any]] = {
    "PassageIndex": lambda given, _: PassageIndex.from_passages(given, ENCODER),
    "SummaryIndex": lambda given, _: SummaryIndex.from_passages(given, ENCODER),
    "DiskSummaryIndex": lambda given, folder: DiskSummaryIndex.from_passages(folder, given, ENCODER),
    "ClusterCompressor": lambda given, _: ClusterCompressor(READER, ENCODER).run("Where?", given),
    "Dense": lambda given, _: Dense(READER).run("Where?", given),
    "SePer": lambda given, _: SePer(READER, ExactEntailer()).run("Where?", ["Velm"], given),
    "AdaptiveChunker": lambda given, _: AdaptiveChunker(ENCODER).passages(given),
}
OF_DOCUMENTS: dict[str, Callable[[Any, Path], Any]] = {
    "SummaryIndex": lambda given, _: SummaryIndex.from_documents(given, ENCODER),
    "DiskSummaryIndex": lambda given, folder: DiskSummaryIndex.from_documents(folder, given, ENCODER),
}


@pytest.mark.parametrize("part", OF_PASSAGES)
@pytest.mark.parametrize(
    ("given", "found"),
    [([TEXT], "str"), (TEXT, "str"), ([DOCUMENT], "Document"), ([PASSAGE, None], "NoneType"), ([{}], "dict")],
)
def test_what_is_no_passage_is_named(part: str, given: Any, found: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"[Pp]assage.*a {found}"):
        OF_PASSAGES[part](given, tmp_path)


@pytest.mark.parametrize("part", [name for name in OF_PASSAGES if name != "AdaptiveChunker"])
def test_nothing_is_no_list_of_passages(part: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"[Pp]assage.*NoneType"):
        OF_PASSAGES[part](None, tmp_path)


@pytest.mark.parametrize("part", OF_DOCUMENTS)
@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([TEXT], "str"),
        (TEXT, "str"),
        ([PASSAGE], "Passage"),
        ([DOCUMENT, None], "NoneType"),
        (None, "NoneType"),
    ],
)
def test_what_is_no_document_is_named(part: str, given: Any, found: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"Document, got a {found}.*from_passages takes summaries"):
        OF_DOCUMENTS[part](given, tmp_path)


@pytest.mark.parametrize("part", ["ClusterCompressor", "Dense", "SePer"])
def test_passages_that_can_be_gone_through_once_are_not_lost(part: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"this is a generator\. Pass list\(passages\)"):
        OF_PASSAGES[part]((one for one in [PASSAGE]), tmp_path)


def test_what_is_found_late_in_a_stream_leaves_what_was_made(tmp_path: Path) -> None:
    documents = [Document(f"d{at}", TEXT) for at in range(4)]
    with pytest.raises(InputError, match="at place 4"):
        DiskSummaryIndex.from_documents(tmp_path, [*documents, PASSAGE], ENCODER, batch_size=2)  # type: ignore[list-item]
    assert len(DiskSummaryIndex.from_documents(tmp_path, documents, ENCODER, batch_size=2)) == 4


@pytest.mark.parametrize("query", [None, 5, ["Where?"], b"Where?"])
def test_what_is_no_query_is_named(query: Any) -> None:
    index = PassageIndex.from_passages([PASSAGE], ENCODER)
    with pytest.raises(InputError, match=f"a query is a text, and this is a {type(query).__name__}"):
        index.retrieve(query)
    with pytest.raises(InputError, match=f"a question is a text, and this is a {type(query).__name__}"):
        LazyRAG(READER, index, SummaryIndex.from_passages([PASSAGE], ENCODER)).run(query)


@pytest.mark.parametrize(
    ("golds", "said"),
    [
        ("Velm", "a list, and this is a text"),
        (5, "a list, and this is a int"),
        ([5], "texts, and one is a int"),
        (["Velm", None], "texts, and one is a NoneType"),
        (None, "one is missing or empty"),
        ([], "one is missing or empty"),
    ],
)
def test_what_are_no_gold_answers_is_named(golds: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        SePer(READER, ExactEntailer()).run("Where?", golds, [PASSAGE])


@pytest.mark.parametrize("text", [None, 5, [TEXT], PASSAGE])
def test_what_is_no_text_to_cut_is_named(text: Any) -> None:
    with pytest.raises(InputError, match=f"expected a str to cut, got a {type(text).__name__}"):
        AdaptiveChunker(ENCODER).run(text)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: Passage(None, id="a"), "the text of passage 'a' is a NoneType"),  # type: ignore[arg-type]
        (lambda: Passage("x", id="a", metadata=None), "the metadata of passage 'a' are a NoneType"),  # type: ignore[arg-type]
    ],
)
def test_a_passage_that_is_none_is_not_made(made: Callable[[], Passage], said: str) -> None:
    with pytest.raises(InputError, match=said):
        made()


@pytest.mark.parametrize("encoder", [None, "all-MiniLM-L6-v2", len, 5])
def test_what_is_no_encoder_is_named(encoder: Any, tmp_path: Path) -> None:
    said = f"encoder must be an Encoder, got a {type(encoder).__name__}"
    for make in (
        lambda: PassageIndex.from_passages([PASSAGE], encoder),
        lambda: SummaryIndex.from_documents([DOCUMENT], encoder),
        lambda: DiskSummaryIndex.from_documents(tmp_path, [DOCUMENT], encoder),
        lambda: DiskSummaryIndex(tmp_path, encoder),
    ):
        with pytest.raises(ConfigurationError, match=said):
            make()


@pytest.mark.parametrize("folder", [None, 5, ""])
def test_what_is_no_folder_is_named(folder: Any) -> None:
    for make in (
        lambda: DiskSummaryIndex.from_passages(folder, [PASSAGE], ENCODER),
        lambda: DiskSummaryIndex(folder, ENCODER),
    ):
        with pytest.raises(ConfigurationError, match="folder must be a path"):
            make()


@pytest.mark.parametrize("k", ["3", 2.5, True])
def test_what_is_no_number_of_passages_is_named(k: Any) -> None:
    with pytest.raises(ConfigurationError, match="k must be a whole number"):
        PassageIndex.from_passages([PASSAGE], ENCODER).retrieve("Where?", k)


def test_what_are_no_cases_is_named() -> None:
    index = PassageIndex.from_passages([PASSAGE], ENCODER)
    for given, said in ((None, "a NoneType"), ("Where?", "a str")):
        with pytest.raises(InputError, match=f"queries are a list, and this is {said}"):
            index.retrieve_many(given)  # type: ignore[arg-type]
    compressor = ClusterCompressor(READER, ENCODER)
    for cases, said in (
        (None, "cases are a list, and this is a NoneType"),
        ("Where?", "cases are a list, and this is a text"),
        (["Where?"], r"a case of ClusterCompressor is \(query, passages\), and this one has 1 parts"),
        ([("Where?", [PASSAGE], None, 3, 4, 5)], "this one has 6 parts"),
    ):
        with pytest.raises(InputError, match=said):
            compressor.run_many(cases)  # type: ignore[arg-type]
