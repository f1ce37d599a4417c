"""What counts as nothing, and what does not."""

from __future__ import annotations

import pytest

from surerag.methods.edc2.guards import says_nothing
from surerag.methods.edc2.options import NothingRule
from surerag.retrieval import split_sentences

RULES: tuple[NothingRule, ...] = ("sentinel", "anchored", "legacy")


def rules_that_hear_nothing(text: str) -> set[str]:
    def split(text: str) -> list[str]:
        return [sentence.text for sentence in split_sentences(text)]

    return {rule for rule in RULES if says_nothing(text, rule, split)}


@pytest.mark.parametrize("text", ["", "  \n", '""', "No content to extract", "**No content to extract.**"])
def test_the_agreed_words_and_an_empty_reply_mean_nothing_to_every_rule(text: str) -> None:
    assert rules_that_hear_nothing(text) == set(RULES)


@pytest.mark.parametrize(
    "text",
    [
        "NO CONTENT TO EXTRACT!",
        "There is no relevant information in the provided documents.",
        "The documents do not mention where Ada was born. There is no information about her.",
        "None of the passages mention Ada.",
        "I couldn't find anything about Ada.",
        "The text contains no information on this.",
        "None.",
    ],
)
def test_refusals_mean_nothing_when_they_are_all_there_is(text: str) -> None:
    assert "anchored" in rules_that_hear_nothing(text)
    assert "anchored" not in rules_that_hear_nothing(f"{text} Ada was born in Velm.")


@pytest.mark.parametrize(
    "text",
    [
        "Ada was born in Velm.",
        "No evidence of life was found on Mars.",
        "There is no bridge over the Orun.",
        "The texts of Ada do survive.",
        "Nothing compares to Velm.",
        "I know Velm.",
    ],
)
def test_content_is_heard(text: str) -> None:
    assert rules_that_hear_nothing(text) == set()


def test_the_legacy_rule_takes_a_question_mark_anywhere_for_nothing() -> None:
    assert rules_that_hear_nothing("Ada wrote 'Where to?' in Velm.") == {"legacy"}
    assert rules_that_hear_nothing("Ada said: I'm sorry. She left Velm.") == {"legacy"}
