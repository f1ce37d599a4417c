"""Where the words of a text stand in its sources."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from surerag.provenance import Stretch, trace_back
from surerag.retrieval import split_sentences

WORDS = st.sampled_from("Ada Velm Orun river tin born painted 1815 the a of in 艾 达 café ไทย".split())
SENTENCES = st.lists(WORDS, min_size=6, max_size=12).map(lambda words: " ".join(words) + ".")
SOURCES = st.lists(st.lists(SENTENCES, min_size=1, max_size=4).map(" ".join), min_size=1, max_size=4)


def sentences_of(text: str) -> list[str]:
    return [sentence.text for sentence in split_sentences(text)]


def traced(text: str, *sources: str) -> list[tuple[str, str, str]]:
    """Return each stretch's text, its match, and what its source has there."""
    return [
        (
            text[one.start : one.end],
            one.match,
            "" if one.source is None else sources[one.source][one.source_start : one.source_end],
        )
        for one in trace_back(text, sources, sentences_of(text))
    ]


@given(SOURCES, st.data())
@settings(max_examples=60, deadline=None)
def test_every_character_of_what_was_extracted_maps_back(sources: list[str], data: st.DataObject) -> None:
    sentences = [sentence for source in sources for sentence in sentences_of(source)]
    kept = data.draw(st.lists(st.sampled_from(sentences), min_size=1, max_size=5))
    text = data.draw(st.sampled_from([" ", "\n", "\n- "])).join(kept)
    found = trace_back(text, sources, sentences_of(text))
    assert "".join(text[one.start : one.end] for one in found) == text
    for one in found:
        piece = text[one.start : one.end]
        if one.match == "joining":
            assert not any(character.isalnum() for character in piece)
        else:
            assert one.match in ("exact", "normalised"), (piece, one.match)
            assert one.source is not None
            there = sources[one.source][one.source_start : one.source_end]
            assert there.split() == piece.split()
            assert (there == piece) == (one.match == "exact")


@given(st.text(max_size=80), st.lists(st.text(max_size=80), max_size=3))
@settings(max_examples=100, deadline=None)
def test_stretches_are_the_text_and_survive_a_dictionary(text: str, sources: list[str]) -> None:
    found = trace_back(text, sources, sentences_of(text))
    assert "".join(text[one.start : one.end] for one in found) == text
    assert all(one.start < one.end for one in found)
    assert [Stretch.from_dict(one.to_dict()) for one in found] == list(found)
    for one in found:
        assert (one.source is None) == (one.match in ("joining", "unsourced"))


def test_white_space_case_and_quotation_marks_may_differ() -> None:
    source = "She said: “Tin  melts\nat 232 degrees.”"
    assert traced('tin melts at 232 degrees."', source) == [
        ('tin melts at 232 degrees."', "normalised", "Tin  melts\nat 232 degrees.”")
    ]


def test_what_was_reworded_is_marked_word_for_word() -> None:
    source = "In spring the old painter left the city of Velm for good."
    assert traced("Then the old painter moved away from the city of Velm.", source) == [
        ("Then", "unsourced", ""),
        (" ", "joining", ""),
        ("the old painter", "exact", "the old painter"),
        (" ", "joining", ""),
        ("moved away from", "unsourced", ""),
        (" ", "joining", ""),
        ("the city of Velm", "exact", "the city of Velm"),
        (".", "joining", ""),
    ]


def test_two_words_in_a_row_are_chance_and_a_whole_sentence_is_not() -> None:
    source = "Where did she go? To Velm. The river is old."
    assert traced("To Velm.", source) == [("To Velm.", "exact", "To Velm.")]
    # A mark that its source does not have joins it to nothing.
    assert traced("Velm.", "She went to Velm in spring.") == [("Velm", "exact", "Velm"), (".", "joining", "")]
    assert [match for _, match, _ in traced("Some went to Velm by boat.", source)] == ["unsourced", "joining"]


def test_the_source_that_says_it_letter_for_letter_is_named() -> None:
    loose, exact = "ADA WAS BORN IN VELM.", "They say Ada was born in Velm."
    [stretch] = trace_back("Ada was born in Velm.", [loose, exact])
    assert (stretch.match, stretch.source, stretch.source_start) == ("exact", 1, 9)


def test_scripts_without_spaces_map_back() -> None:
    source = "艾达是一位画家。她于一八一五年出生在维尔姆。河流很古老。"
    assert traced("她于一八一五年出生在维尔姆。", source) == [
        ("她于一八一五年出生在维尔姆。", "exact", "她于一八一五年出生在维尔姆。")
    ]


def test_a_source_that_repeats_itself_for_ever_is_followed_all_the_same() -> None:
    found = trace_back("a " * 2_001, ["a " * 20_000, "a b " * 5_000])
    assert [(one.match, one.source) for one in found] == [("exact", 0), ("joining", None)]
