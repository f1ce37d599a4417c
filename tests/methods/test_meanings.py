"""Which sampled answers mean the same: by words, by entailment, by a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag import Services, run
from surerag.entailment import ExactEntailer
from surerag.errors import ServiceError
from surerag.measures import same_answer
from surerag.messages import Generation, Pair
from surerag.methods.meanings import Meanings, meanings_of, typical

words = st.lists(st.sampled_from(["velm", "orun", "the", "tarn"]), max_size=4).map(" ".join)


def grouped(*texts: str, entailer: Any = None, same_meaning: Any = "words") -> Meanings:
    samples = [Generation(text) for text in texts]
    return run(meanings_of("Where?", samples, same_meaning), Services(entailer=entailer))


class Counting(ExactEntailer):
    def __init__(self) -> None:
        self.asked: list[Pair] = []

    def entail(self, pairs: Sequence[Pair]) -> Any:
        self.asked += pairs
        return super().entail(pairs)


def test_by_words_an_answer_means_what_its_short_form_means() -> None:
    assert grouped("Velm.", "in the town of Velm", "Orun", "velm", "").clusters == (0, 0, 1, 0, 2)


@given(words, words)
def test_sameness_by_words_is_symmetric_and_reflexive(first: str, second: str) -> None:
    assert same_answer(first, first)
    assert same_answer(first, second) == same_answer(second, first)


@given(st.lists(words, min_size=1, max_size=8), st.integers(1, 8))
def test_the_first_samples_are_grouped_as_if_there_were_no_others(texts: list[str], n: int) -> None:
    """So that gates with fewer samples read the same ones."""
    assert grouped(*texts).clusters[:n] == grouped(*texts[:n]).clusters


def test_by_entailment_distinct_answers_are_judged_both_ways_and_empty_ones_never() -> None:
    entailer = Counting()
    found = grouped("Velm", "Velm", "velm!", "", "Orun", entailer=entailer, same_meaning="entailment")
    assert found == Meanings((0, 0, 0, 1, 2), judgements=6)
    assert {pair[:2] for pair in entailer.asked} == {
        (a, b) for a in ("Velm", "velm!", "Orun") for b in ("Velm", "velm!", "Orun") if a != b
    }
    assert all(pair.question == "Where?" for pair in entailer.asked)


def test_entailment_in_one_direction_only_is_not_the_same_meaning() -> None:
    class OneWay:
        name = "one way"

        def entail(self, pairs: Sequence[Pair]) -> Any:
            return np.array([[0.0, 0.0, 1.0] if p.premise < p.hypothesis else [0.0, 1.0, 0.0] for p in pairs])

    assert grouped("a", "b", entailer=OneWay(), same_meaning="entailment").clusters == (0, 1)


def test_samples_that_all_say_the_same_need_no_judge() -> None:
    assert grouped("Velm", "Velm", same_meaning="entailment") == Meanings((0, 0), 0)


def test_an_entailer_that_answers_in_another_shape_is_found_out() -> None:
    class Wrong:
        name = "wrong"

        def entail(self, pairs: Sequence[Pair]) -> Any:
            return np.zeros((len(pairs), 2))

    with pytest.raises(ServiceError, match="rows of three probabilities"):
        grouped("a", "b", entailer=Wrong(), same_meaning="entailment")


def test_a_function_tells_meanings_in_its_own_way() -> None:
    assert grouped("abc", "xyz", "de", same_meaning=lambda a, b: len(a) == len(b)).clusters == (0, 0, 1)


def test_the_typical_answer_is_the_first_of_the_largest_cluster_and_ties_go_to_the_first() -> None:
    samples = [Generation(text) for text in "abcd"]
    assert typical(samples, [0, 1, 1, 2]).text == "b"
    assert typical(samples, [0, 1, 1, 0]).text == "a"
