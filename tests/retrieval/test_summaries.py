from __future__ import annotations

import pytest

from surerag import FakeReader
from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, PromptError
from surerag.prompts import PromptTemplate
from surerag.retrieval import LeadSummaries, MetadataSummaries, ModelSummaries, each, lead_summary, summaries
from surerag.retrieval.summaries import identity_of

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


def test_a_stream_of_any_length_is_not_remembered_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summaries, "REMEMBERED", 2)
    reader = FakeReader(["one", "two", "three", "one again"])
    summarize = ModelSummaries(reader)
    one, two, three = (Document(name, f"{name} is here.") for name in ("Velm", "Orun", "Ada"))
    assert summarize([one, two, three]) == ["one", "two", "three"]
    assert summarize([two, three]) == ["two", "three"]
    assert summarize([one]) == ["one again"]


def test_ways_to_summarize_are_told_apart_by_their_settings() -> None:
    reader = FakeReader([])
    ways = [
        LeadSummaries(), LeadSummaries(1), MetadataSummaries("abstract"), ModelSummaries(reader),
        ModelSummaries(reader, max_tokens=9), each(lead_of), each(title_of), lead_summary,
    ]  # fmt: skip
    assert len({identity_of(way) for way in ways}) == len(ways)
    assert identity_of(each(lead_of)).endswith("test_summaries.lead_of")
    assert identity_of(ModelSummaries(reader)) == identity_of(ModelSummaries(reader)), "in any process"


def lead_of(document: Document) -> str:
    return lead_summary(document.text)


def title_of(document: Document) -> str:
    return document.title


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
