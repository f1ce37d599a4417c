from __future__ import annotations

import pytest

from surerag import FakeReader
from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, PromptError
from surerag.prompts import PromptTemplate
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, lead_summary, prose

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


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="sentences"):
        lead_summary("One.", 0)
    with pytest.raises(ConfigurationError, match="max_characters"):
        lead_summary("One.", max_characters=0)


def test_lead_summaries_pass_their_settings_on() -> None:
    assert LeadSummaries(1, per_paragraph=True)([Document("d", TEXT)]) == [
        lead_summary(TEXT, 1, per_paragraph=True)
    ]


def test_a_metadata_key() -> None:
    documents = [
        Document("a", "…", metadata={"abstract": "On Velm."}),
        Document("b", "…", metadata={"year": 1913}),
    ]
    assert MetadataSummaries("abstract")(documents[:1]) == ["On Velm."]
    with pytest.raises(InputError, match=r"'b'.*'abstract'.*year"):
        MetadataSummaries("abstract")(documents)


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
