"""Citations survive a compression: each of its characters is found in its sources, or marked."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from surerag.provenance import PROVENANCE_KEY, Stretch

from surerag import EDC2Result, Passage
from surerag.retrieval import split_sentences
from tests.methods.edc2.cases import AGAIN, BO, QUESTION, RIVER, compressor, passages

LONG = "Ada painted ships. Ada the painter was born in Velm. She had a dog and three cats at home."


def cited(passage: Passage, given: list[Passage]) -> list[tuple[str, str, str]]:
    """Return each stretch of a compressed passage with its match, and what its source has there."""
    sources = {one.id: one.text for one in given}
    ids = [source["id"] for source in passage.metadata["compressed_from"]]
    found = []
    for one in map(Stretch.from_dict, passage.metadata[PROVENANCE_KEY]):
        there = "" if one.source is None else sources[ids[one.source]][one.source_start : one.source_end]
        found.append((passage.text[one.start : one.end], one.match, there))
    return found


def test_a_compression_says_where_its_words_stand_in_which_source() -> None:
    reply = "Ada the painter was born in Velm. it was in Velm that Ada the painter was born."
    tool, _ = compressor([reply], first_cluster_size=2)
    given = passages(LONG, AGAIN)
    result = tool.run(QUESTION, given)
    [kept] = result.passages
    assert cited(kept, given) == [
        ("Ada the painter was born in Velm.", "exact", "Ada the painter was born in Velm."),
        (" ", "joining", ""),
        ("it was in Velm that Ada the painter was born.", "normalised", AGAIN),
    ]
    assert list(result.clusters[0].provenance) == [
        Stretch.from_dict(one) for one in kept.metadata[PROVENANCE_KEY]
    ]
    assert json.loads(json.dumps(kept.metadata[PROVENANCE_KEY])) == kept.metadata[PROVENANCE_KEY]


def test_what_the_model_reworded_is_marked() -> None:
    tool, _ = compressor(["So Ada the painter came into the world."], guard="off", refuse_longer=False)
    given = passages(LONG)
    [kept] = tool.run(QUESTION, given).passages
    assert cited(kept, given) == [
        ("So", "unsourced", ""),
        (" ", "joining", ""),
        ("Ada the painter", "exact", "Ada the painter"),
        (" ", "joining", ""),
        ("came into the world", "unsourced", ""),
        (".", "joining", ""),
    ]


def test_what_is_left_of_a_compression_maps_back_after_guard_and_budget() -> None:
    reply = "It was founded in 1913. Ada painted ships. She had a dog and three cats at home."
    tool, _ = compressor([reply], budget=5)
    given = passages(LONG)
    result = tool.run(QUESTION, given)
    assert result.clusters[0].removed == ("It was founded in 1913.",)
    assert cited(result.passages[0], given) == [("Ada painted ships.", "exact", "Ada painted ships.")]


def test_passages_that_go_through_have_nothing_added() -> None:
    tool, _ = compressor(pass_below=10_000)
    given = passages(LONG, BO)
    assert list(tool.run(QUESTION, given).passages) == given


def test_offsets_count_in_the_sources_own_text() -> None:
    tool, _ = compressor(["Ada painted ships."], own=lambda passage: passage.text.split(": ", 1)[1])
    result = tool.run(QUESTION, passages("Chapter one: " + LONG))
    assert result.clusters[0].provenance == (Stretch(0, 18, "exact", 0, 0, 18),)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_every_character_of_an_extractive_compression_maps_back(data: st.DataObject) -> None:
    given = passages(LONG, AGAIN, BO, RIVER)
    sentences = [s.text for passage in given for s in split_sentences(passage.text)]
    joined = data.draw(st.sampled_from([" ", "\n", "\n\n- "]))

    def extract(prompt: str) -> str:
        here = [sentence for sentence in sentences if sentence in prompt]
        return joined.join(data.draw(st.lists(st.sampled_from(here), min_size=1, max_size=4)))

    settings_: dict[str, Any] = {"guard": "off", "refuse_longer": False, "first_cluster_size": 2}
    result: EDC2Result = compressor(extract, **settings_)[0].run(QUESTION, given)
    assert any(report.outcome == "compressed" for report in result.clusters)
    for passage in result.passages:
        found = cited(passage, given)
        assert "".join(piece for piece, _, _ in found) == passage.text
        for piece, match, there in found:
            # Sentences that follow one another in their source are one stretch, whatever joins them here.
            assert {
                "exact": there == piece,
                "normalised": there.split() == piece.split(),
                "joining": not any(character.isalnum() for character in piece),
            }[match]
