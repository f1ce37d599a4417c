"""Answers by consensus, and judgements on statements, from compressed evidence."""

from __future__ import annotations

import time

import pytest

from surerag import ClusterCompressor, FakeReader, Passage, SelectedPieces
from surerag.encoders import HashingEncoder
from surerag.messages import Event
from surerag.prompts import NOTHING_TO_EXTRACT

FOUND = [
    Passage("Ada the painter was born in Velm.", id="a"),
    Passage("Bo sculpts; Tarn is home.", id="b"),
    Passage("They say that Ada came from Velm.", id="c"),
]


def tool(*replies: str, **settings: object) -> tuple[ClusterCompressor, FakeReader]:
    reader = FakeReader(replies)
    return ClusterCompressor(reader, HashingEncoder(), first_cluster_size=1, **settings), reader  # type: ignore[arg-type]


def test_candidates_are_sampled_and_the_consensus_is_greedy() -> None:
    compressor, reader = tool(
        "Velm, as the text says.", "I cannot find it.", "Reasoning: one answer.\nSelected_Answer: Velm"
    )
    result = compressor.answer("Where was Ada born?", FOUND)
    assert (result.answer, result.reasoning) == ("Velm", "one answer.")
    assert result.candidates == ("Velm, as the text says.",)
    assert [call.sampling.temperature for call in reader.history if call.sampling] == [0.7, 0.0]
    assert "Answers:\n[1] Velm, as the text says.\nQuestion: Where was Ada born?" in reader.prompts[-1]


def test_without_any_candidate_the_documents_are_asked_about_all_at_once() -> None:
    events: list[Event] = []
    compressor, reader = tool("", "", "Velm.", "Velm it is.")
    result = compressor.with_options(on_event=events.append).answer("Where was Ada born?", FOUND)
    assert all(passage.text in reader.prompts[2] for passage in FOUND)
    assert (result.answer, result.candidates) == ("Velm it is.", ("Velm.",))
    assert "cluster_compression.no_candidates" in [event.name for event in events]


@pytest.mark.parametrize(
    ("reply", "label", "reasoning", "sources"),
    [
        ("Reasoning: [1] says Velm.\nAnswer: Factual", "factual", "[1] says Velm.", ("a", "c")),
        ("Reasoning: wrong [1] [7].\n**Answer**: Non-factual.", "nonfactual", "wrong [1] [7].", ("a", "c")),
        ('"Nonfactual"', "nonfactual", "", ("a", "c", "b")),
        ("Hard to say; it is not factual or is it?", "unclear", "", ("a", "c", "b")),
    ],
)
def test_a_judgement_has_label_reasoning_and_the_sources_it_cites(
    reply: str, label: str, reasoning: str, sources: tuple[str, ...]
) -> None:
    reader = FakeReader(lambda p: reply if p.startswith("Check") else ("Bo" if "Bo" in p else "Ada"))
    compressor = ClusterCompressor(reader, HashingEncoder(), first_cluster_size=2, pass_below=0)
    result = compressor.judge("Ada was born in Velm.", FOUND)
    assert (result.label, result.reasoning, result.sources) == (label, reasoning, sources)
    assert "Statement: Ada was born in Velm.\nDocuments:\n[1] Ada\n[2] Bo" in reader.prompts[-1]
    assert reader.prompts[0].startswith("Collect")


async def test_async_answers_and_judgements_are_the_same() -> None:
    replies = ("Velm.", NOTHING_TO_EXTRACT, "Selected_Answer: Velm")
    assert (await tool(*replies)[0].aanswer("Where?", FOUND)) == tool(*replies)[0].answer("Where?", FOUND)
    replies = ("Ada is from Velm.", "Bo.", "Answer: Factual")
    settings = {"pass_below": 0}
    assert (await tool(*replies, **settings)[0].ajudge("Ada is from Velm.", FOUND)) == tool(
        *replies, **settings
    )[0].judge("Ada is from Velm.", FOUND)


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("answer" + ":" * 20_000, "unclear"),
        ("answer" + ":" * 20_000 + "factual", "factual"),
        ("**Answer** -- : **non-factual**", "nonfactual"),
        ("answer factual", "unclear"),
        ("answer: [" + "9" * 5_000 + "]", "unclear"),
    ],
)
def test_no_reply_takes_long_to_read(reply: str, label: str) -> None:
    reader = FakeReader(lambda prompt: reply if prompt.startswith("Check") else "Ada")
    compressor = ClusterCompressor(reader, HashingEncoder(), first_cluster_size=2, pass_below=0)
    start = time.perf_counter()
    assert compressor.judge("Ada was born in Velm.", FOUND).label == label
    assert time.perf_counter() - start < 2


def test_a_majority_of_equal_words_costs_no_call_and_takes_the_first_of_equals() -> None:
    compressor, reader = tool("Orun.", "The Velm", "velm", consensus="majority")
    result = compressor.with_options(clustering="single").answer("Where was Ada born?", FOUND)
    assert (result.answer, result.calls, len(reader.prompts)) == ("The Velm", 3, 3)
    tied, _ = tool("Orun.", "Velm", NOTHING_TO_EXTRACT, consensus="majority")
    assert tied.with_options(clustering="single").answer("Where?", FOUND).answer == "Orun."


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("Reasoning: two of\nthree.\nSelected_Answer: **Velm**\nDone.", "Velm"),
        ("Selected Answer:   Velm on the Orun  ", "Velm on the Orun"),
        ("Velm it is. ", "Velm it is."),
        ("Selected_Answer: **", "Selected_Answer: **"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_what_is_shown_while_a_reply_is_written_is_the_selected_answer(
    reply: str, answer: str, size: int
) -> None:
    pieces = SelectedPieces()
    shown = [pieces.feed(reply[at : at + size]) for at in range(0, len(reply), size)]
    assert "".join([*shown, pieces.rest()]) == answer
    compressor, _ = tool("Velm.", reply)
    assert compressor.answer("Where?", FOUND[:1]).answer == answer


def test_a_stream_is_of_the_consensus_and_tells_the_clusters_first() -> None:
    compressor, _ = tool("Velm.", "Selected_Answer: Velm")
    with compressor.stream_answer("Where was Ada born?", FOUND[:1]) as stream:
        assert stream.announced.clusters[0].sources == ("a",)
        assert "".join(stream) == "Selected_Answer: Velm"
        assert stream.result == tool("Velm.", "Selected_Answer: Velm")[0].answer(
            "Where was Ada born?", FOUND[:1]
        )


def test_a_statement_about_someone_is_judged_by_prompts_that_name_them() -> None:
    compressor, reader = tool("Ada is from Velm.", "Answer: Factual", clustering="single", pass_below=0)
    assert compressor.judge("She was born in Velm.", FOUND[:1], "Ada").label == "factual"
    assert ["about Ada" in prompt for prompt in reader.prompts] == [True, True]
    plain, reader = tool("Ada is from Velm.", "Answer: Factual", clustering="single", pass_below=0)
    plain.judge("She was born in Velm.", FOUND[:1])
    assert not any("about Ada" in prompt for prompt in reader.prompts)


@pytest.mark.parametrize(
    ("replies", "both", "chosen"),
    [
        (("Reasoning: Velm.\nChoice: Answer 2",), False, 1),
        (('#Choice#: "Answer 1"',), False, 0),
        (("2",), False, 1),
        (("Neither.",), False, None),
        (("Choice: Answer 2", "Choice: Answer 1"), True, 1),
        (("Choice: Answer 1", "Choice: Answer 1"), True, None),
    ],
)
def test_one_of_two_answers_is_chosen(replies: tuple[str, ...], both: bool, chosen: int | None) -> None:
    compressor, reader = tool(*replies)
    result = compressor.choose("Where was Ada born?", ("Orun", "Velm"), FOUND[:1], both_orders=both)
    assert (result.chosen, len(result.generations)) == (chosen, len(replies))
    assert "Answer 1: Orun\nAnswer 2: Velm" in reader.prompts[0]
    if both:
        assert "Answer 1: Velm\nAnswer 2: Orun" in reader.prompts[1]
        bounded = tool(*replies)[0].with_options(max_calls=1)
        assert len(bounded.choose("Where?", ("Orun", "Velm"), FOUND[:1], both_orders=True).generations) == 1
