from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError
from surerag.messages import Passage
from surerag.retrieval import chunk_documents, chunk_text
from surerag.retrieval.chunking import words_and_marks


@given(st.text(), st.integers(1, 12), st.data())
def test_chunks_are_verbatim_cover_every_token_and_overlap_as_told(
    text: str, tokens: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, tokens - 1))
    spans = words_and_marks(text)
    chunks = chunk_text(text, tokens, overlap)
    assert all(chunk.text == text[chunk.start : chunk.end] for chunk in chunks)
    held = [[span for span in spans if chunk.start <= span[0] and span[1] <= chunk.end] for chunk in chunks]
    assert sorted({span for chunk in held for span in chunk}) == spans
    assert all(len(chunk) == tokens for chunk in held[:-1])
    assert all(before[tokens - overlap :] == after[:overlap] for before, after in pairwise(held))
    assert not held or len(held) == 1 or overlap < len(held[-1]) <= tokens


def test_a_text_without_tokens_has_no_chunks() -> None:
    assert chunk_text(" \n ") == []


@pytest.mark.parametrize(("tokens", "overlap"), [(0, 0), (5, 5), (5, -1)])
def test_chunks_that_would_not_advance_are_refused(tokens: int, overlap: int) -> None:
    with pytest.raises(ConfigurationError, match="overlap"):
        chunk_text("a b c", tokens, overlap)


def test_ten_megabytes_are_cut() -> None:
    text = "It rains in Velm. " * 600_000
    chunks = chunk_text(text)
    assert chunks[-1].end == len(text.rstrip())
    assert chunks[1].text.split() == text[chunks[1].start :][: len(chunks[1].text)].split()


def test_passages_say_where_they_come_from() -> None:
    document = Document("notes/velm.md", "one two three four", "Velm", {"year": 1913})
    first, second = chunk_documents([document], tokens=3, overlap=1)
    assert (first.id, second.id) == ("notes/velm.md#0", "notes/velm.md#1")
    assert second.text == "three four"
    assert second.metadata == {
        "year": 1913,
        "document": "notes/velm.md",
        "title": "Velm",
        "start": 8,
        "end": 18,
    }


def test_rows_of_tables_stay_whole_and_have_their_header() -> None:
    rows = Document("a.csv", "\n\n".join(f"ship: S{n}\ncaptain: C{n}" for n in range(9)), rows=True)
    chunks = chunk_documents([rows], tokens=13, overlap=2)
    assert [chunk.text for chunk in chunks][:2] == [
        "ship: S0\ncaptain: C0\n\nship: S1\ncaptain: C1", "ship: S2\ncaptain: C2\n\nship: S3\ncaptain: C3"
    ]  # fmt: skip
    assert all(rows.text[c.metadata["start"] : c.metadata["end"]] == c.text for c in chunks)
    header = "| ship | captain |\n|---|---|\n"
    table = header + "".join(f"| S{n} | C{n} |\n" for n in range(9))
    text = f"The ships.\n\n{table}\nThey sail."
    first, *middle, last = chunk_documents([Document("a.md", text)], tokens=25, overlap=2)
    assert (first.text, last.text) == ("The ships.", "They sail.")
    assert len(middle) > 1
    assert all(chunk.text.startswith(header) for chunk in middle)
    cut = "".join(chunk.text.removeprefix(header) for chunk in middle)
    assert header + cut == table
    assert all(text[c.metadata["start"] : c.metadata["end"]] in c.text for c in (first, *middle, last))


def test_a_row_of_many_lines_is_cut() -> None:
    long = Document("a.csv", "note: " + "word " * 1000, rows=True)
    chunks = chunk_documents([long], tokens=100, overlap=0)
    assert len(chunks) == 11
    assert " ".join(chunk.text for chunk in chunks).split().count("word") == 1000


@pytest.mark.parametrize("documents", ["Velm", [Passage("Velm")]])
def test_what_is_no_document_is_named(documents: Any) -> None:
    with pytest.raises(InputError, match="expected a Document, got a"):
        chunk_documents(documents)


def test_a_document_without_a_text_is_refused() -> None:
    with pytest.raises(InputError, match="the text of document 'velm' is None"):
        Document("velm", None)  # type: ignore[arg-type]
