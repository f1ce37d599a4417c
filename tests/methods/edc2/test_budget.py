"""The token budget: counted as the reader counts, and never an empty context in silence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from surerag.provenance import PROVENANCE_KEY, Stretch

from surerag import ClusterCompressor, FakeReader, Passage
from surerag.encoders import HashingEncoder
from surerag.messages import Event
from surerag.text import estimated_tokens
from tests.languages import PROSE
from tests.methods.edc2.cases import ADA, BO, QUESTION, compressor, passages
from world import embedded_reader


@dataclass
class Told:
    """Events, as they were told."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    def warnings(self) -> list[str]:
        return [event.name for event in self.events if event.warning]


def unasked(**settings: Any) -> tuple[ClusterCompressor, Told]:
    """Return a compressor that compresses nothing, so that originals have to fit."""
    told = Told()
    return compressor(pass_below=10_000, on_event=told, **settings)[0], told


def test_a_budget_that_nothing_fits_gives_the_first_sentences_of_the_best() -> None:
    tool, told = unasked(budget=8)
    long = "Ada the painter was born. " + "She lived in Velm all her life and sold her works. " * 3
    result = tool.run(QUESTION, passages(long, BO + BO))
    [kept] = result.passages
    assert (kept.text, kept.id) == ("Ada the painter was born.", "p0")
    assert kept.metadata["page"] == 0
    assert [source["id"] for source in kept.metadata["compressed_from"]] == ["p0"]
    assert [Stretch.from_dict(one) for one in kept.metadata[PROVENANCE_KEY]] == [
        Stretch(0, len(kept.text), "exact", 0, 0, len(kept.text))
    ]
    assert result.tokens_after == 6 == estimated_tokens(kept.text)
    assert told.warnings() == ["cluster_compression.budget_too_small"]
    assert result.clusters[0].reason == "cut to the token budget"
    assert result.dropped == ((("p1",), "over the token budget"),)


def test_the_best_that_has_a_sentence_that_fits_comes_before_words_of_a_better_one() -> None:
    tool, _ = unasked(budget=6)
    endless = "Ada painted " + "and painted " * 20 + "for ever."
    assert [p.id for p in tool.run(QUESTION, passages(endless, "Bo was in Tarn. " + BO)).passages] == ["p1"]
    [words] = tool.run(QUESTION, passages(endless)).passages
    assert words.text == "Ada painted and painted and painted"


def test_a_script_without_spaces_is_cut_between_characters() -> None:
    tool, told = unasked(budget=12)
    [kept] = tool.run("委员会?", passages(PROSE["Chinese"].split("。")[0])).passages
    assert kept.text == PROSE["Chinese"][:12]
    assert told.warnings() == ["cluster_compression.budget_too_small"]


def test_a_compression_that_does_not_fit_is_cut_too() -> None:
    said = "Ada the painter was born in Velm and lived there all her long life."
    tool, _ = compressor([said], budget=4, guard="off", refuse_longer=False)
    result = tool.run(QUESTION, passages(ADA))
    assert [p.text for p in result.passages] == ["Ada the painter was"] == [result.clusters[0].text]


def test_a_passage_without_words_is_no_context() -> None:
    tool, told = unasked(budget=4)
    result = tool.run(QUESTION, passages("", ADA, "  ", BO))
    assert [(p.id, p.text) for p in result.passages] == [
        ("p0", ""),
        ("p1", "Ada the painter was"),
        ("p2", "  "),
    ]
    assert told.warnings() == ["cluster_compression.budget_too_small"]


def test_passages_without_ids_are_told_apart() -> None:
    tool, _ = unasked(budget=4)
    result = tool.run(QUESTION, [Passage(ADA), Passage(BO), Passage(ADA + BO)])
    assert [p.text for p in result.passages] == ["Ada the painter was"]
    assert result.dropped == ((("", ""), "over the token budget"),)


def test_where_not_even_a_character_fits_that_is_told() -> None:
    tool, told = unasked(budget=3, show=lambda passage: "much ado about " + passage.text)
    result = tool.run(QUESTION, passages(ADA, BO))
    assert result.passages == ()
    assert told.warnings() == ["cluster_compression.budget_too_small"]
    assert result.dropped == ((("p0", "p1"), "over the token budget"),)


@given(
    st.lists(st.sampled_from([*PROSE.values(), ADA, BO, "Yes."]), min_size=1, max_size=5),
    st.integers(1, 90),
    st.booleans(),
)
def test_the_budget_holds_in_every_script_and_something_is_always_there(
    texts: list[str], budget: int, compress: bool
) -> None:
    tool, _ = compressor(lambda _: texts[0], budget=budget, guard="off", pass_below=0 if compress else 10_000)
    result = tool.run(QUESTION, passages(*texts))
    assert result.passages
    assert result.tokens_after == sum(estimated_tokens(p.text) for p in result.passages) <= budget


def test_a_model_at_hand_counts_with_its_own_tokenizer() -> None:
    reader = embedded_reader()
    assert reader.count_tokens(PROSE["Chinese"]) != estimated_tokens(PROSE["Chinese"])
    tool = ClusterCompressor(reader, HashingEncoder(), pass_below=10_000, budget=40)
    result = tool.run(QUESTION, passages(*[PROSE["Chinese"]] * 3))
    assert result.tokens_after == sum(reader.count_tokens(p.text) for p in result.passages) <= 40


def test_a_reader_of_ones_own_is_asked_how_it_counts() -> None:
    class Least:
        """No more than the protocol asks for, and a counter."""

        def __init__(self) -> None:
            self._reader = FakeReader([""])
            self.name, self.capabilities, self.generate, self.score = (
                self._reader.name, self._reader.capabilities, self._reader.generate, self._reader.score,
            )  # fmt: skip

        def count_tokens(self, text: str) -> int:
            return len(text)

    tool = ClusterCompressor(Least(), HashingEncoder())
    assert tool.measure(passages(ADA)[0]) == len(ADA)
