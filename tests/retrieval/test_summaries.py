from __future__ import annotations

import pytest

from surerag import FakeReader, LazyRAG
from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, PromptError
from surerag.methods.dense.options import SemanticChunkerOptions
from surerag.prompts import PromptTemplate
from surerag.retrieval import (
    LeadSummaries,
    MissingSummariesWarning,
    ModelSummaries,
    PassageIndex,
    SummaryIndex,
    chunk_documents,
    lead_summary,
    prose,
)

TEXT = "Dr. Voss was born in Velm. She paints.\nShe sings!\n\nVelm lies on the Orun. It is old. It is small."


def test_the_lead_is_the_first_two_sentences() -> None:
    assert lead_summary(TEXT) == "Dr. Voss was born in Velm. She paints."


def test_the_lead_of_each_paragraph() -> None:
    assert lead_summary(TEXT, 1, per_paragraph=True) == "Dr. Voss was born in Velm. Velm lies on the Orun."


def test_fewer_sentences_than_asked_for_are_all_taken() -> None:
    assert lead_summary("Only one.", 5) == "Only one."
    assert lead_summary("  \n\n ", 2) == ""


def test_a_text_without_marks_is_cut_and_a_long_one_is_no_matter() -> None:
    assert len(lead_summary("velm " * 2_000_000)) <= 1000
    assert lead_summary("It rains in Velm. " * 600_000) == "It rains in Velm. It rains in Velm."


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("# T\n\n## S\n\nThe first one. The second. A third.", "The first one. The second."),
        ("---\ntitle: T\ntags: [a, b]\n---\n# H\nBody of it. More.", "Body of it. More."),
        ("Title\n=====\n\nBody of it.", "Body of it."),
        ("| a | b |\n|---|---|\n| 1 | 2 |\n\nText here. More.", "Text here. More."),
        ("a | b\n--- | ---\n1 | 2\n\nText here.", "Text here."),
        ("```\ncode. x. y\n```\nAfter. It.", "After. It."),
        (
            "![A map.](map.png)\n\n[![x](y)](z)\nSee [Velm](velm.md). It is old.",
            "See [Velm](velm.md). It is old.",
        ),
        ("* * *\n\nBody | with a bar.", "Body | with a bar."),
        ("# Only a heading", ""),
        ("Issue #3 is open. It is old.", "Issue #3 is open. It is old."),
    ],
)
def test_headings_front_matter_tables_and_code_are_no_summary(text: str, summary: str) -> None:
    assert lead_summary(text) == summary
    assert prose("Plain text.\n\nStays.") == "Plain text.\n\nStays."


TITLE_PAGE = "ANNUAL REPORT 2019\n\nVelm Shipping Ltd.\n\n12 Harbour Road\nwww.velm.example\n\n" * 3
ROWS = "\n\n".join(f"ship: Castor {place}\ncaptain: Mira Lund" for place in range(20))


@pytest.mark.parametrize(
    ("text", "summary"),
    [
        ("* [Home](/)\n* [All](/a)\n\n[A](a) | [B](b)\n\nThe Castor is a ferry.", "The Castor is a ferry."),
        ("* [Home](/)\n* [Ships](/ships)", ""),
        (TITLE_PAGE + "The Castor sails to Orun.", "The Castor sails to Orun."),
        (TITLE_PAGE, ""),
        ("Velm Shipping Ltd.", "Velm Shipping Ltd."),
        (ROWS, ""),
        (ROWS + "\n\nThese ships belong to Velm.", "These ships belong to Velm."),
        ("From: Ada\nTo: Jon\n\nThe Castor sails today.", "The Castor sails today."),
        ("Guide\n~~~~~\n\n.. image:: a.png\n\nThe lamp is old.", "The lamp is old."),
        ("1.1 The harbour of the town of Velm ........ 3\n" * 9 + "\nIt was dredged in the year 1987.",
         "It was dredged in the year 1987."),
        ("維爾姆燈塔建於一九一二年。" * 20, "維爾姆燈塔建於一九一二年。 維爾姆燈塔建於一九一二年。"),
        ("so we went down to the harbour and " * 9, ("so we went down to the harbour and " * 9).strip()),
    ],
)  # fmt: skip
def test_lists_title_pages_and_rows_are_no_summary(text: str, summary: str) -> None:
    assert lead_summary(text) == summary


SHIPS = Document(
    "ships.csv", "ship: Castor\ncaptain: Mira Lund\n\nship: Pollux\ncaptain: Jon Brandt", "ships", rows=True
)
TOWN = Document("velm.md", "Velm is a town on the river Orun. It is old.", "Velm")


def test_documents_without_a_summary_are_counted_and_held_by_their_beginning() -> None:
    with pytest.warns(MissingSummariesWarning, match=r"1 of 2 documents have no summary \(ships.csv\)"):
        index = SummaryIndex.from_documents([SHIPS, TOWN], HashingEncoder())
    ships, town = index.passages
    assert (ships.text, ships.metadata["no_summary"]) == (
        "ships ship: Castor captain: Mira Lund ship: Pollux captain: Jon Brandt", True
    )  # fmt: skip
    assert (town.text, "no_summary" in town.metadata) == (TOWN.text, False)


def test_where_the_nearest_document_has_no_summary_it_is_searched_for() -> None:
    reader = FakeReader(["Mira Lund"], entropy=0.0)
    passages = PassageIndex.from_passages(chunk_documents([SHIPS, TOWN]), HashingEncoder(), k=1)
    with pytest.warns(MissingSummariesWarning):
        summaries = SummaryIndex.from_documents([SHIPS, TOWN], HashingEncoder())
    result = LazyRAG(reader, passages, summaries, n_summaries=2).run("Who is captain of the ship Castor?")
    assert (result.decision.retrieve, result.decision.reason) == (True, "the nearest document has no summary")
    assert [summary.id for summary in result.summaries] == ["velm.md"]
    assert [passage.metadata["document"] for passage in result.passages] == ["ships.csv"]
    assert len(reader.prompts) == 1
    sure = LazyRAG(FakeReader(["Orun"], entropy=0.0), passages, summaries, n_summaries=2)
    assert not sure.run("Velm is a town on which river?").decision.retrieve


def test_a_model_summarizes_tables_too_and_reports_progress() -> None:
    done: list[tuple[int, int | None]] = []
    write = ModelSummaries(
        FakeReader(["Captains of ships."] * 2),
        batch_size=1,
        progress=lambda *at: done.append(at),
        max_characters=20,
    )
    assert write([SHIPS, TOWN]) == ["Captains of ships."] * 2
    assert done == [(1, 2), (2, 2)]


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sentences"):
        lead_summary("One.", 0)


def test_lead_summaries_pass_their_settings_on() -> None:
    assert LeadSummaries(1, per_paragraph=True)([Document("d", TEXT)]) == [
        lead_summary(TEXT, 1, per_paragraph=True)
    ]


def test_a_model_writes_each_summary_once_in_batches() -> None:
    reader = FakeReader(["On Velm.", "On Orun.", "On Ada."])
    summarize = ModelSummaries(reader, batch_size=2)
    velm, orun, ada = (Document(name, f"{name} is here.") for name in ("Velm", "Orun", "Ada"))
    assert summarize([velm, orun, velm]) == ["On Velm.", "On Orun.", "On Velm."]
    assert summarize([ada, orun]) == ["On Ada.", "On Orun."]
    assert [len(call.prompts) for call in reader.history] == [2, 1]
    assert "Velm is here." in reader.history[0].prompts[0]


def test_a_model_that_writes_nothing_leaves_the_lead() -> None:
    assert ModelSummaries(FakeReader([""]))([Document("d", TEXT)]) == [lead_summary(TEXT)]


def test_a_model_may_be_shown_the_beginning_only() -> None:
    reader = FakeReader(["Short."])
    ModelSummaries(reader, max_characters=8)([Document("d", "Dr. Voss was born in Velm.")])
    assert "Dr. Voss" in reader.history[0].prompts[0]
    assert "born" not in reader.history[0].prompts[0]


def test_a_prompt_with_other_slots_is_refused() -> None:
    with pytest.raises(PromptError, match="document"):
        ModelSummaries(FakeReader([]), prompt=PromptTemplate("mine", "Sum up {text}"))


@pytest.mark.parametrize("language", ["german", "DE", "", "de AT"])
def test_a_language_that_the_splitter_does_not_know_is_refused(language: str) -> None:
    for build in (
        lambda: LeadSummaries(language=language),
        lambda: lead_summary(TEXT, language=language),
        lambda: SemanticChunkerOptions(language=language),
    ):
        with pytest.raises(ConfigurationError, match=r'an ISO 639 code.*[wW]rite "de" for German'):
            build()
    assert lead_summary(TEXT, 1, language="pt-br")
