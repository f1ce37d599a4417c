"""EDC²-RAG on a fake reader: what is asked, what comes out, and what a failure leaves."""

from __future__ import annotations

import math
import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from surerag import SOURCES_KEY, ClusterCompressor, FakeReader, OpenAIReader, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, MissingServiceError, RefusedError, ServiceError
from surerag.messages import Event, Pair
from surerag.methods.edc2.clusters import dynamic_cluster_sizes
from surerag.methods.edc2.guards import is_empty_extraction
from surerag.methods.edc2.overlap import names_in, overlap_support
from surerag.methods.edc2.result import SENTENCES_KEY
from surerag.readers import fake
from surerag.readers.parameters import LeftOutWarning
from surerag.text import estimated_tokens
from tests.methods.edc2.cases import ADA, AGAIN, BO, QUESTION, RIVER, compressor, passages, quoting
from tests.servers.fake_openai import FakeOpenAI


def warnings(events: list[Event]) -> list[str]:
    return [event.name.removeprefix("edc2.") for event in events if event.warning]


def test_each_cluster_is_compressed_for_the_question_in_one_call_to_the_reader() -> None:
    tool, reader = compressor(first_cluster_size=2)
    result = tool.run(QUESTION, passages(BO, ADA, RIVER, AGAIN))
    assert [call.verb for call in reader.history] == ["generate"]
    first, second = reader.prompts
    assert first.startswith(f"Documents:\n[1] {AGAIN}\n[2] {ADA}\nQuestion: {QUESTION}\nCopy from")
    assert f"[1] {BO}\n[2] {RIVER}\n" in second
    [passage] = result.passages
    assert (passage.text, passage.id, passage.score, passage.metadata["page"]) == (AGAIN, "p1", 0.9, 1)
    assert passage.metadata[SOURCES_KEY] == [
        {"id": "p1", "score": 0.9, "metadata": {"page": 1}},
        {"id": "p3", "score": 0.7, "metadata": {"page": 3}},
    ]
    assert [(item["text"], item["source"]) for item in passage.metadata[SENTENCES_KEY]] == [(AGAIN, "p3")]
    assert [(report.sources, report.outcome) for report in result.clusters] == [
        (("p3", "p1"), "compressed"),
        (("p0", "p2"), "dropped"),
    ]
    assert result.dropped == ("p0", "p2")
    assert (result.usage.requests, result.tokens_before, result.tokens_after) == (2, 54, 11)


def test_a_cluster_may_have_nothing_or_copies_what_helps_most() -> None:
    """Section 4.3 has the sentinel; prompts of one's own take the place of both."""
    for variant, asked in (("copy", False), ("paper", True)):
        tool, reader = compressor(variant=variant)
        tool.run(QUESTION, passages(ADA))
        assert ("reply: No content to extract" in reader.prompts[0]) is asked
        assert reader.prompts[0].startswith("Documents:\n[1] Ada") is not asked
        own = tool.with_options(prompts={"extract": "{passages} {question}"})
        own.run(QUESTION, passages(ADA))
        assert reader.prompts[1].startswith("[1] Ada")


def test_sentences_name_the_place_of_their_source_where_passages_have_no_ids() -> None:
    tool, _ = compressor(lambda _: f"{AGAIN} {BO}")
    [passage] = tool.run(QUESTION, [Passage(BO), Passage(ADA), Passage(AGAIN)]).passages
    sentences = passage.metadata[SENTENCES_KEY]
    assert [(item["text"], item["place"]) for item in sentences] == [(AGAIN, 2), (BO, 0)]


@pytest.mark.parametrize("reply", ["[2]", "Document [2].", "[2], [7]"])
def test_passages_that_a_reply_only_names_are_quoted(reply: str) -> None:
    result = compressor(lambda _: reply)[0].run(QUESTION, passages(BO, AGAIN, ADA))
    assert result.clusters[0].sources == ("p1", "p2", "p0")
    assert [passage.text for passage in result.passages] == [ADA]
    assert result.passages[0].metadata[SENTENCES_KEY] == [{"text": ADA, "source": "p2", "place": 2}]


def test_numbers_of_passages_in_a_reply_are_no_claims() -> None:
    copied = f"[1] {ADA}\n- Ada the painter is from Velm [2]."
    [passage] = compressor(lambda _: copied)[0].run(QUESTION, passages(ADA, AGAIN, BO)).passages
    assert passage.text == f"{ADA} {AGAIN}"


@pytest.mark.parametrize("task", ["extract", "verify"])
@pytest.mark.parametrize("reply", ["Velm", "velm.", "The sentence is: “Ada the painter was born in Velm”"])
def test_a_copied_part_of_a_sentence_gives_way_to_the_whole_one(reply: str, task: Any) -> None:
    context = passages(f"{RIVER} {ADA}", BO)
    [passage] = compressor([reply], task=task)[0].run(QUESTION, context).passages
    assert passage.text == ADA
    assert passage.metadata[SENTENCES_KEY] == [{"text": ADA, "source": "p0", "place": 0}]


def test_every_sentence_with_a_copied_name_comes_once() -> None:
    context = passages(ADA, AGAIN, BO)
    [passage] = compressor(["Velm. Ada the painter."])[0].run(QUESTION, context).passages
    assert passage.text == f"{AGAIN} {ADA}"
    assert [item["source"] for item in passage.metadata[SENTENCES_KEY]] == ["p1", "p0"]


def test_a_reply_to_the_papers_prompt_and_an_answer_stay_in_their_own_words() -> None:
    paper = compressor(["Velm"], variant="paper")[0].run(QUESTION, passages(ADA, BO))
    assert paper.passages[0].text == "Velm"
    answer = compressor(["Velm"], task="answer")[0].run(QUESTION, passages(ADA, BO))
    assert answer.passages[0].text == "Velm"


def test_passages_come_in_the_order_of_their_best_member() -> None:
    def reply(prompt: str) -> str:
        return "Ada." if ADA in prompt else "Bo."

    tool, _ = compressor(reply, first_cluster_size=1, guard="off")
    assert [p.id for p in tool.run(QUESTION, passages(BO, RIVER, ADA)).passages] == ["p0", "p2"]


@given(st.lists(st.text(max_size=40), max_size=25), st.text(max_size=60), st.sampled_from(["overlap", "off"]))
def test_inputs_stay_as_they_are_and_every_output_names_its_sources(
    texts: list[str], reply: str, guard: Any
) -> None:
    context = passages(*texts)
    before = pickle.dumps([(p.text, p.id, p.score, dict(p.metadata)) for p in context])
    result = compressor(lambda _: reply, guard=guard)[0].run(QUESTION, context)
    assert pickle.dumps([(p.text, p.id, p.score, dict(p.metadata)) for p in context]) == before
    ids = {p.id for p in context}
    for passage in result.passages:
        sources = [source["id"] for source in passage.metadata.get(SOURCES_KEY, [{"id": passage.id}])]
        assert passage.id == sources[0] and set(sources) <= ids
    assert sorted(at for report in result.clusters for at in report.members) == list(range(len(context)))
    assert bool(result.passages) or not any(text.strip() for text in texts)


def test_five_hundred_passages_make_as_many_calls_as_the_sizes_say() -> None:
    tool, reader = compressor()
    result = tool.run(QUESTION, passages(*(f"{BO} {at}" for at in range(499)), ADA))
    assert len(reader.prompts) == len(dynamic_cluster_sizes(500))
    assert [p.text for p in result.passages] == [ADA]


@pytest.mark.parametrize("settings", [{"threshold": 22}, {"min_tokens": 1000}])
def test_short_contexts_and_clusters_stay_without_a_call(settings: dict[str, int]) -> None:
    tool, reader = compressor(first_cluster_size=1, **settings)
    context = passages(ADA, RIVER[:30])
    assert list(tool.run(QUESTION, context).passages) == context
    assert reader.history == []


def test_where_nothing_is_relevant_the_originals_stay_with_a_warning() -> None:
    events: list[Event] = []
    context = passages(BO, RIVER, "  ")
    result = compressor(on_event=events.append)[0].run(QUESTION, context)
    assert result.fell_back and {p.id for p in result.passages} == {"p0", "p1", "p2"}
    assert warnings(events) == ["fallback"]


def test_a_compression_longer_than_its_sources_gives_way_to_them() -> None:
    context = passages(ADA, BO[:20])
    longer = [f"{ADA} Ada, Ada the painter was born in Velm."]
    result = compressor(longer, variant="paper")[0].run(QUESTION, context)
    assert list(result.passages) == context
    assert result.clusters[0].reason == "longer than its sources"


def test_the_papers_own_algorithm_leaves_replies_as_they_are() -> None:
    """Section 4.3 has no guard, no smallest cluster and no longest reply."""
    reply = "Ada did not die in Paris in 1990, but in Tarn, as is said in the book about her that Cy wrote."
    result = compressor([reply], variant="paper", guard="off", min_tokens=0)[0].run(
        QUESTION, passages("Ada.")
    )
    assert [passage.text for passage in result.passages] == [reply]
    assert result.tokens_after > result.tokens_before and not result.clusters[0].removed


def test_sentences_without_a_source_are_removed() -> None:
    made_up = "Ada was born in Velm. Ada died in Paris."
    result = compressor([made_up], variant="paper")[0].run(QUESTION, passages(ADA, BO))
    assert result.passages[0].text == "Ada was born in Velm."
    assert result.clusters[0].removed == ("Ada died in Paris.",)
    off = compressor([made_up], variant="paper", guard="off")[0].run(QUESTION, passages(ADA, BO)).passages[0]
    assert off.text == made_up
    assert [item["source"] for item in off.metadata[SENTENCES_KEY]] == ["p0", None]


def test_a_title_in_quotation_marks_makes_no_sentence_a_quotation() -> None:
    made_up = 'Bo starred in "Tin Roofs", as the painter was born in Velm.'
    for task in ("extract", "verify"):
        tool, _ = compressor([made_up], task=task)
        context = passages(f"{ADA} They wrote of Bo.", AGAIN)
        assert list(tool.run(QUESTION, context).passages) == context


def test_a_compression_that_no_source_supports_gives_way_to_its_passages() -> None:
    events: list[Event] = []
    context = passages(f"{ADA} She was born in 1815.", AGAIN, BO)
    tool, _ = compressor(["Ada was born in Velm in 1816."], variant="paper", on_event=events.append)
    result = tool.run(QUESTION, context)
    assert list(result.passages) == context
    [report] = result.clusters
    assert (report.outcome, report.removed) == ("passed", ("Ada was born in Velm in 1816.",))
    assert not result.fell_back and warnings(events) == ["not_compressed"]


class LastWord:
    """A statement entails what ends in its last word."""

    name = "last word"

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        same = [float(p.premise.rstrip(".").endswith(p.hypothesis.rstrip(".").split()[-1])) for p in pairs]
        return np.array([[1 - value, 0, value] for value in same])


def test_an_entailer_may_be_the_guard_and_its_failure_keeps_the_originals() -> None:
    reader = FakeReader(lambda _: "She lived all her life. She left.")
    tool = ClusterCompressor(
        reader, HashingEncoder(), LastWord(), variant="paper", guard="entailment", min_tokens=0
    )
    result = tool.run(QUESTION, passages(ADA, BO))
    assert result.passages[0].text == "She lived all her life."
    assert result.passages[0].metadata[SENTENCES_KEY][0]["source"] == "p1"

    class Down(LastWord):
        def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
            raise ServiceError("down")

    events: list[Event] = []
    context = passages(ADA, BO)
    failing = tool.with_options(entailer=Down(), on_event=events.append)
    assert list(failing.run(QUESTION, context).passages) == context
    assert warnings(events) == ["not_compressed"]


def test_each_cluster_may_answer_with_evidence() -> None:
    """Appendix C.2: the answer stays, in the reader's own words; quotations are checked."""
    told = 'Yes. The text says "Ada the painter was born in Velm". It adds "Ada the painter left for Tarn".'
    tool, reader = compressor(
        lambda prompt: told if "Ada the" in prompt else "The documents do not mention it."
    )
    tool = tool.with_options(task="answer", first_cluster_size=2, min_tokens=1000)
    result = tool.run(QUESTION, passages(ADA, AGAIN, BO, RIVER))
    assert reader.prompts[0].startswith("Answer the question from the documents, and quote the evidence")
    [passage] = result.passages
    assert passage.text == 'Yes. The text says "Ada the painter was born in Velm".'
    assert [item["source"] for item in passage.metadata[SENTENCES_KEY]] == [None, "p1"]
    assert [report.outcome for report in result.clusters] == ["compressed", "dropped"]
    assert result.clusters[0].removed == ('It adds "Ada the painter left for Tarn".',)


@pytest.mark.parametrize("guard", ["off", "overlap", "entailment"])
@pytest.mark.parametrize(
    "reply",
    [
        "Ada was not born in Velm.",
        "Ada hated Velm, where a painter was born.",
        "Ada the painter left for Velm with Bo the sculptor.",
        "It says that Ada, born in Velm, died in 1990. Bo was a sculptor, born in Tarn.",
    ],
)
def test_a_copy_has_sentences_of_its_sources_and_nothing_else(reply: str, guard: Any) -> None:
    context = passages(f"{RIVER} {ADA}", BO, AGAIN)
    result = compressor([reply], guard=guard, entailer=LastWord())[0].run(QUESTION, context)
    assert result.passages and reply not in [passage.text for passage in result.passages]
    for passage in result.passages:
        sentences = [item["text"] for item in passage.metadata.get(SENTENCES_KEY, ())]
        assert passage in context or passage.text == " ".join(sentences)
        assert set(sentences) <= {RIVER, ADA, BO, AGAIN}


LIFE = (
    "Ada, a painter, was born in Velm in 1815 and moved to Orun with her brother Bo. "
    "Velm has a harbour and two schools, which were built after the fire of 1790."
)


@pytest.mark.parametrize(
    "reply",
    [
        "Ada was not born in Velm.",
        "Ada wasn't a painter.",
        "Velm has no harbour.",
        "Ada moved to Velm with her brother.",
        "Bo moved to Orun with his sister Ada.",
        "Ada was born in Velm in 1790.",
        "The schools of Velm were built after the fire of 1815.",
        "Velm has three schools.",
        "Ada hated Velm and burned its harbour.",
        "Cy was born in Velm.",
    ],
)
def test_denials_and_swapped_names_and_numbers_have_no_source(reply: str) -> None:
    context = passages(LIFE, BO)
    result = compressor([reply], variant="paper")[0].run(QUESTION, context)
    assert list(result.passages) == context
    assert result.clusters[0].removed == (reply,)


@pytest.mark.parametrize(
    "reply",
    [
        "Ada was born in Velm.",
        "The painter Ada was born in Velm in 1815.",
        "Ada moved to Orun with her brother.",
        "In Velm two schools were built after the fire of 1790.",
        "She moved to Orun.",
    ],
)
def test_paraphrases_of_a_source_stay(reply: str) -> None:
    [passage] = compressor([reply], variant="paper")[0].run(QUESTION, passages(LIFE, BO)).passages
    assert passage.text == reply


@pytest.mark.parametrize(
    ("reply", "source", "supports"),
    [
        ("Ada wurde nicht in Velm geboren.", "Ada wurde in Velm geboren.", False),
        ("Ada n'est pas née à Velm.", "Ada est née à Velm.", False),
        ("Ада не родилась в Велме.", "Ада родилась в Велме.", False),
        ("艾达没出生在维尔姆", "艾达出生在维尔姆。", False),
        ("波出生在维尔姆", "艾达出生在维尔姆。波来了。", False),
        ("エイダはヴェルムで生まれなかった。", "エイダはヴェルムで生まれた。", False),
        ("艾达出生在维尔姆", "书上说艾达出生在维尔姆。", True),
        ("Ada taught Bo.", "Bo taught Ada.", False),
        ("Ada was born in Velm.", "Ada was not born in Velm.", False),
        ("Ada was born in Velm.", "Ada, who never married, was born in Velm.", True),
        ("Ada was born in Velm.", "Ada was a painter. She was born in Velm.", True),
        ("She was born in 1850 and died in 1815.", "She was born in 1815 and died in 1850.", False),
        ("It stars Anna Berg, Bo Lind and Cy Moss.", "The film stars Anna Berg, Bo Lind and Cy Moss.", True),
    ],
)
def test_a_source_supports_what_it_says(reply: str, source: str, supports: bool) -> None:
    assert (overlap_support(reply, source) > 0) is supports


@pytest.mark.parametrize("reply", ["Yes.", "No", "Yes, both of them were Americans.", "1815", "Velm"])
def test_a_bare_answer_stays_an_answer(reply: str) -> None:
    result = compressor([reply], task="answer")[0].run(QUESTION, passages(ADA, BO))
    assert [passage.text for passage in result.passages] == [reply]
    assert result.clusters[0].outcome == "compressed"


def test_an_answer_may_be_longer_than_its_sources_and_needs_none() -> None:
    long = "Ada was born in Velm. " * 9
    context = passages("Ada was born in Velm.", BO)
    tool = compressor(lambda _: long)[0].with_options(task="answer", first_cluster_size=1)
    result = tool.run(QUESTION, context)
    assert result.passages[0].text == long.strip()
    assert result.passages[1].text == long.strip()  # of an answer quotations alone are checked


@pytest.mark.parametrize(
    ("settings", "temperature"),
    [
        ({}, 0.0),
        ({"task": "verify"}, 0.0),
        ({"task": "answer"}, 0.7),
        ({"task": "answer", "temperature": 0}, 0.0),
        ({"temperature": 0.3}, 0.3),
    ],
)
def test_answers_are_sampled_as_the_paper_does_unless_a_temperature_is_set(
    settings: dict[str, Any], temperature: float
) -> None:
    tool, reader = compressor(**settings)
    tool.run(QUESTION, passages(ADA))
    sampling = reader.history[0].sampling
    assert sampling is not None and sampling.temperature == temperature


def test_a_statement_is_checked_and_may_be_about_a_person() -> None:
    """Appendices C.1.1 and C.1.2."""
    tool, reader = compressor(lambda _: AGAIN, task="verify", first_cluster_size="auto")
    statement = "Ada was born in Tarn."
    result = tool.run(statement, passages(BO, AGAIN, RIVER))
    assert [report.sources for report in result.clusters] == [("p1",), ("p0", "p2")]
    assert f"[1] {AGAIN}\nStatement: {statement}\nCopy from" in reader.prompts[0]
    assert "Person:" not in reader.prompts[0]
    about, reader = compressor(lambda _: AGAIN, task="verify", person="Ada {question}")
    about.run(statement, passages(AGAIN))
    assert f"Person: Ada {{question}}\nStatement: {statement}\nCopy" in reader.prompts[0]
    assert "the statement about the person" in reader.prompts[0]
    about.with_options(variant="paper").run(statement, passages(AGAIN))
    assert reader.prompts[1].startswith("Extract from the documents only what directly supports, refutes or")
    assert f"Person: Ada {{question}}\nStatement: {statement}\nDocuments:" in reader.prompts[1]
    assert "reply: No content to extract" in reader.prompts[1]
    with pytest.raises(ConfigurationError, match='person is for task="verify"'):
        tool.with_options(task="extract", person="Ada")


def judging(prompt: str) -> str:
    """Find whatever mentions Ada relevant, and quote it."""
    if prompt.startswith("Passage: "):
        return "Yes" if "Ada" in prompt.splitlines()[0] else "No"
    return quoting(prompt)


def test_the_most_relevant_passages_stay_and_each_text_is_judged_once() -> None:
    tool, reader = compressor(judging, top_n=2)
    given = passages(BO, ADA, "", RIVER, RIVER, AGAIN)
    result = tool.run(QUESTION, given)
    judged = [prompt for prompt in reader.prompts if str(prompt).startswith("Passage: ")]
    assert len(judged) == 4  # not the empty one, and the river once
    assert judged[0].endswith("Does the passage help to answer the question? Reply only with yes or no.")
    [compressed] = [passage for passage in result.passages if passage.text]
    assert [source["id"] for source in compressed.metadata[SOURCES_KEY]] == ["p1", "p5"]
    assert result.dropped == ("p0", "p3", "p4")
    assert result.clusters[-1].reason.startswith("less relevant than the kept passages")
    assert not result.fell_back


def test_a_chunk_that_stands_in_another_one_takes_no_place() -> None:
    tool, reader = compressor(judging, top_n=2, variant="whole")
    longer = f"{ADA}\n {RIVER}"
    result = tool.run(QUESTION, passages(ADA.upper(), longer, RIVER, AGAIN, BO))
    assert len(reader.prompts) == 3  # two chunks stand in the longer one, whatever their case and spaces
    assert [passage.id for passage in result.passages] == ["p1", "p3"]
    assert result.dropped == ("p0", "p2", "p4")


@pytest.mark.parametrize(
    ("person", "shown"), [(None, "She lived."), ("Ada {passage}", "Ada {passage}: She lived.")]
)
def test_a_passage_is_judged_by_a_statement_as_such(person: str | None, shown: str) -> None:
    tool, reader = compressor(judging, top_n=1, task="verify", person=person)
    tool.run("She lived.", passages(BO, ADA))
    asked = "Does the passage help to support or refute the statement? Reply only with yes or no."
    assert reader.prompts[:2] == [f"Passage: {text}\nStatement: {shown}\n{asked}" for text in (BO, ADA)]
    own = {"relevant_to_statement": "Passage: {passage}\nYes or no: {statement}"}
    tool.with_options(prompts=own).run("She lived.", passages(BO, ADA))
    assert reader.prompts[-2] == f"Passage: {ADA}\nYes or no: {shown}"


def test_the_most_relevant_passages_may_come_as_they_are() -> None:
    tool, reader = compressor(judging, top_n=2, variant="whole")
    given = passages(BO, ADA, RIVER, AGAIN)
    result = tool.run(QUESTION, given)
    assert list(result.passages) == [given[1], given[3]]
    assert result.usage.requests == len(reader.prompts) == 4


def test_a_yes_that_came_without_log_probabilities_is_no_surer_than_others() -> None:
    tool, _ = compressor(
        lambda prompt: fake.reply("Yes", logprobs=None if RIVER in prompt else -0.1), top_n=1, variant="whole"
    )
    assert tool.run(QUESTION, passages(RIVER, ADA)).passages[0].text == ADA


def test_by_default_a_third_of_the_passages_and_three_at_least_come_whole() -> None:
    reader = FakeReader(judging)
    tool = ClusterCompressor(reader, HashingEncoder())
    many = passages(*(f"{BO} {at}" for at in range(10)), AGAIN, ADA)
    assert [passage.id for passage in tool.run(QUESTION, many).passages][-2:] == ["p10", "p11"]
    assert len(tool.run(QUESTION, many).passages) == 4
    for few in (many[:3], many[:1], [], passages("", " ", "\n", "\t")):
        result = ClusterCompressor(reader).run(QUESTION, few)  # with no call, and no encoder
        assert (list(result.passages), result.usage.requests, result.fell_back) == (few, 0, False)
        assert not any(report.warning for report in result.clusters)


@pytest.mark.parametrize(
    "options", [{"min_tokens": 0}, {"guard": "off"}, {"prompts": {"extract": "{passages} {question}"}}]
)
def test_options_of_compressions_are_refused_where_passages_come_whole(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match='is for compressions, but variant="whole" keeps'):
        ClusterCompressor(FakeReader(), **options)
    ClusterCompressor(FakeReader(), task="answer", **options)
    ClusterCompressor(FakeReader(), variant="copy", **options)


def test_a_text_that_comes_again_takes_no_place_of_another() -> None:
    tool, reader = compressor(judging, top_n=2, variant="whole")
    given = passages(ADA, f" {ADA.upper()}", BO, AGAIN, RIVER, AGAIN)
    assert list(tool.run(QUESTION, given).passages) == [given[0], given[3]]
    assert len(reader.prompts) == 4
    few = passages(ADA, ADA, AGAIN)
    assert list(tool.run(QUESTION, few).passages) == [few[0], few[2]]
    assert len(reader.prompts) == 4  # two texts are few enough


@pytest.mark.parametrize("top_n", [None, 4, 9])
def test_few_enough_passages_are_not_judged(top_n: int | None) -> None:
    tool, reader = compressor(judging, top_n=top_n)
    tool.run(QUESTION, passages(BO, ADA, RIVER, AGAIN))
    assert not any(str(prompt).startswith("Passage: ") for prompt in reader.prompts)


def test_an_unsure_no_is_never_more_relevant_than_a_yes() -> None:
    def judged(prompt: str) -> Any:
        relevant = "market" in prompt.splitlines()[0]
        return fake.reply("Yes" if relevant else "No", logprobs=math.log(0.55 if relevant else 0.2))

    # The other one is more like the question; of a tie the first passage stays.
    tool, _ = compressor(judged, top_n=1, variant="whole")
    result = tool.run("Where was Bo the sculptor born?", passages("A market stands in Tarn.", BO))
    assert result.dropped == ("p1",)


@pytest.mark.parametrize("lack", [{"refuses": ("logprobs",)}, {"no_logprobs": True}])
def test_a_server_without_log_probabilities_says_what_is_relevant(
    lack: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    with FakeOpenAI(judging, **lack) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0)
        tool = ClusterCompressor(reader, HashingEncoder(), top_n=2)
        result = tool.run(QUESTION, passages(BO, ADA, AGAIN))
        asked = len(server.requests)
        assert tool.run(QUESTION, passages(BO, ADA, AGAIN)).passages == result.passages
    assert [passage.id for passage in result.passages] == ["p1", "p2"]
    # What is refused costs nothing, and is sent again; what is answered is paid once.
    assert (asked, len(server.requests) - asked) == (6 if "refuses" in lack else 3, 3)
    assert [one.category for one in recwarn] == [LeftOutWarning]


def test_where_no_reply_is_yes_or_no_similarity_ranks_with_a_warning() -> None:
    events: list[Event] = []
    tool, _ = compressor(
        lambda prompt: "Perhaps" if prompt.startswith("Passage") else quoting(prompt), top_n=1
    )
    result = tool.with_options(on_event=events.append).run(QUESTION, passages(RIVER, AGAIN, BO))
    assert warnings(events) == ["unclear_relevance"]
    assert [passage.id for passage in result.passages] == ["p1"]


def test_where_all_that_stayed_is_dropped_every_original_comes_back() -> None:
    tool, _ = compressor(lambda prompt: "Yes" if prompt.startswith("Passage") else "Nothing.", top_n=1)
    given = passages(ADA, BO)
    result = tool.run(QUESTION, given)
    assert result.fell_back
    assert list(result.passages) == given


def test_the_first_cluster_is_of_one_where_passages_are_few() -> None:
    """Appendix B.2: τ = 1 for ten passages at most."""
    for n, first in ((10, 1), (11, 3)):
        context = passages(*(f"{ADA} {at}" for at in range(n)))
        result = compressor(first_cluster_size="auto")[0].run(QUESTION, context)
        assert len(result.clusters[0].members) == first


@pytest.mark.parametrize(
    ("text", "empty"),
    [
        ("", True),
        ("**No content to extract.**", True),
        ("[No content to extract。]", True),
        ("There is no relevant information in the provided documents.", True),
        ("The documents do not mention where Ada was born. There is no information about her.", True),
        ("I couldn't find anything about Ada.", True),
        ("I'm sorry, but I cannot find anything about Ada.", True),
        ("The documents do not mention Ada, but there is no information on Velm, either.", True),
        ("The documents do not mention her birth; however, they say that she lived in Velm.", False),
        ("None of the passages mention Ada. Ada was born in Velm.", False),
        ("No evidence of life was found on Mars.", False),
        ("There is no bridge over the Orun.", False),
        ("I know Velm.", False),
    ],
)
def test_what_counts_as_an_empty_extraction(text: str, empty: bool) -> None:
    assert is_empty_extraction(text) is empty


@pytest.mark.parametrize(
    "text", ["1. Mai 1815 ist der Tag, an dem Ada zur Welt kam.", "- 5 °C sind es in Velm."]
)
def test_an_ordinal_or_sign_of_the_source_is_no_mark_of_a_list(text: str) -> None:
    result = compressor(lambda _: text, guard="off")[0].run(QUESTION, passages(f"{text} Das steht im Buch."))
    assert [passage.text for passage in result.passages] == [text]


def test_letters_are_compared_in_whichever_way_they_are_written() -> None:
    composed, apart = "It lies in Ch\u00e2tel.", "Ada's inn lies in Cha\u0302tel."
    assert overlap_support(composed, apart) == 1
    assert names_in(apart) == names_in(composed) == {"ch\u00e2tel"}


def failing(prompt: str) -> Any:
    return ServiceError("busy") if "Bo" in prompt else quoting(prompt)


def test_one_failing_cluster_keeps_its_passages_and_the_others_are_compressed() -> None:
    events: list[Event] = []
    tool, _ = compressor(failing, first_cluster_size=1, on_event=events.append)
    context = passages(BO, f"{ADA} {RIVER}")
    result = tool.run(QUESTION, context)
    assert [report.outcome for report in result.clusters] == ["compressed", "passed"]
    assert result.passages[0] is context[0]
    assert warnings(events) == ["not_compressed"]
    with pytest.raises(ServiceError, match="busy"):
        tool.with_options(on_failure="raise").run(QUESTION, context)


def test_a_failing_encoder_keeps_the_context_and_a_refusal_raises() -> None:
    class Down(HashingEncoder):
        def encode(self, texts: Any, kind: Any) -> Any:
            raise ServiceError("down")

    events: list[Event] = []
    tool = ClusterCompressor(FakeReader(quoting), Down(), variant="copy", on_event=events.append)
    context = passages(ADA, BO)
    assert list(tool.run(QUESTION, context).passages) == context
    assert warnings(events) == ["not_compressed"]
    with pytest.raises(RefusedError):
        compressor(lambda _: RefusedError("no such model"))[0].run(QUESTION, context)


def test_a_compression_that_is_cut_gives_way_to_its_passages() -> None:
    events: list[Event] = []
    tool, _ = compressor(max_tokens=3, on_event=events.append)
    context = passages(ADA, BO)
    assert list(tool.run(QUESTION, context).passages) == context
    assert [event.data["reason"] for event in events if event.warning] == [
        "the compression was cut off at max_tokens=3"
    ]


@given(
    st.lists(st.sampled_from([ADA, BO, "Ada. " * 9, "维尔姆位于奥伦河畔" * 3]), min_size=1, max_size=8),
    st.integers(1, 60),
    st.booleans(),
)
def test_the_token_limit_holds_and_something_is_always_there(
    texts: list[str], limit: int, short: bool
) -> None:
    tool, _ = compressor(
        lambda _: "Ada. Bo. Velm was here. ", token_limit=limit, guard="off", min_tokens=999 * short
    )
    result = tool.run(QUESTION, passages(*texts))
    assert 0 < sum(estimated_tokens(p.text) for p in result.passages) == result.tokens_after <= limit


def test_of_what_does_not_fit_first_sentences_stay() -> None:
    two = "Ada was born. They say it was long ago."
    tool, _ = compressor([two, BO], variant="paper", first_cluster_size=1, token_limit=5, guard="off")
    result = tool.run(QUESTION, passages(ADA, BO))
    assert ([p.text for p in result.passages], result.dropped) == (["Ada was born."], ("p1",))
    words = compressor(token_limit=6, min_tokens=999)[0].run(QUESTION, passages("Ada painted " * 20))
    assert words.passages[0].text == "Ada painted Ada painted Ada painted"
    shown = compressor(token_limit=3, show=lambda passage: "much ado about " + passage.text)[0]
    with pytest.raises(ConfigurationError, match="no text fits token_limit=3"):
        shown.run(QUESTION, passages(ADA))


def test_the_words_that_fit_of_a_long_passage_are_found_in_few_counts() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text.split())

    tool = compressor(token_limit=50, min_tokens=9999, count_tokens=count)[0]
    [passage] = tool.run(QUESTION, passages("Ada painted " * 2000)).passages
    assert (passage.text, len(counted) < 40) == (" ".join(["Ada painted"] * 25), True)


@pytest.mark.parametrize("vector", [np.array([0.6, 0.8]), [0.6, 0.8]])
def test_a_passage_may_come_with_an_array_as_its_vector(vector: Any) -> None:
    texts = [Passage(text, embedding=vector) for text in (ADA, BO)]
    reader = FakeReader(["no", "yes"])
    result = ClusterCompressor(reader, top_n=1).run(QUESTION, texts, [0.6, 0.8])
    assert (result.passages, texts[0].embedding) == ((texts[1],), (0.6, 0.8))


class CountingEncoder(HashingEncoder):
    """An encoder that records its calls."""

    def __init__(self, dimensions: int = 64) -> None:
        super().__init__(dimensions)
        self.calls: list[tuple[str, int]] = []

    def encode(self, texts: Sequence[str], kind: Any) -> NDArray[np.float32]:
        self.calls.append((kind, len(texts)))
        return super().encode(texts, kind)


def test_vectors_of_passages_are_used_if_all_have_one_that_fits() -> None:
    vectors = np.eye(3, 2).tolist()
    context = [
        Passage(text, id=str(at), embedding=tuple(vectors[at])) for at, text in enumerate((ADA, BO, RIVER))
    ]
    encoder, events = CountingEncoder(2), list[Event]()
    tool = ClusterCompressor(
        FakeReader(quoting),
        encoder,
        variant="copy",
        first_cluster_size=1,
        min_tokens=0,
        on_event=events.append,
    )
    assert tool.run(QUESTION, context, query_vector=[0.0, 1.0]).clusters[0].sources == ("1",)
    assert encoder.calls == []
    tool.run(QUESTION, context)
    assert encoder.calls == [("query", 1)]
    other = CountingEncoder()
    tool.with_options(encoder=other).run(QUESTION, context)
    assert ("document", 3) in other.calls and "embedded_again" in warnings(events)
    with pytest.raises(MissingServiceError, match="encoder"):
        ClusterCompressor(FakeReader(), top_n=1).run(QUESTION, passages(ADA, BO))


def test_what_is_no_question_or_context_is_refused() -> None:
    tool, _ = compressor()
    for case in (("", passages(ADA)), (QUESTION, [ADA]), (QUESTION, iter(passages(ADA)))):
        with pytest.raises(InputError):
            tool.run(*case)
    with pytest.raises(MissingServiceError, match="entailer"):
        ClusterCompressor(FakeReader(), variant="copy", guard="entailment")
