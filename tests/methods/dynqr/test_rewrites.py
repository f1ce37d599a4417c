"""What is taken out of a rewriter's reply, and what is no rewrite."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.messages import Generation, Passage
from surerag.methods.dynqr.rewrites import alternated, read_rewrite

QUESTION = "Where was she born?"
QUERY = "Where was Ada Lund born?"


@pytest.mark.parametrize(
    "reply",
    [
        QUERY,
        f"Rewritten query: {QUERY}",
        f"**Rewritten Query:** {QUERY}",
        f"**Rewritten Query: {QUERY}**",
        f'Sure! Here is the rewritten query: "{QUERY}"',
        f"Sure! Here's a clearer version of your query:\n\n{QUERY}",
        f"Sure, here is the rewritten query:\n\n**{QUERY}**\n\nThis rewrite adds the name.",
        f"The rewritten query is: {QUERY}",
        f"1. {QUERY}\n2. Birthplace of Ada Lund\n3. Ada Lund, born where?",
        f"Here are some rewrites:\n1. {QUERY}\n2. Birthplace of Ada",
        f"- {QUERY}",
        f"```\n{QUERY}\n```",
        f"### Rewritten Query\n{QUERY}",
        f"{QUERY}\n\nExplanation: I added the name.",
        f"{QUERY}\nI replaced the pronoun.",
        f"{QUERY} (Note: I added the name.)",
        f'"{QUERY}" This rewrite is clearer.',
        f"<think>She? Ada Lund.</think>\n\n{QUERY}",
        f"<think>\n\n</think>\n\n{QUERY}",
        f"«{QUERY}»",
        "Where was\nAda Lund born?",
    ],
)
def test_a_query_is_taken_out_of_what_stands_around_it(reply: str) -> None:
    assert read_rewrite(Generation(reply), QUESTION, 64) == (QUERY, None)


@pytest.mark.parametrize(
    "query",
    [
        "What genre is it: jazz or rock?",
        "Great Britain: who ruled it?",
        "What are the notes: C or D?",
        "Unfortunately named band members",
        "2**3 in Python",
        "Who was the 3. Earl of Mar?",
        "birthplace Ada Lund",
    ],
)
def test_queries_that_look_like_frames_stay(query: str) -> None:
    assert read_rewrite(Generation(query), QUESTION, 64) == (query, None)


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        ("I'm sorry, but I can't help with that.", "a refusal"),
        ("I cannot determine who she is.", "a refusal"),
        ("As an AI language model, I do not know her.", "a refusal"),
        ("Please provide more context.", "a refusal"),
        ("Unfortunately, there is not enough context.", "a refusal"),
        ("<think>Hm, she? That may be", "thoughts"),
        ("<think>Hm.</think>", "thoughts"),
        ("\udce9 where", "unreadable"),
        ("  ", "empty"),
        ("where was  she born", "the question again"),
        (f"Rewritten query: {QUESTION}", "the question again"),
        ("word " * 65, "too long"),
    ],
)
def test_what_is_no_rewrite_says_why(reply: str, problem: str) -> None:
    rewrite = read_rewrite(Generation(reply), QUESTION, 64)
    assert rewrite.problem == problem
    rewrite.text.encode()


def test_a_query_that_begins_like_a_refusal_may_be_rewritten_so() -> None:
    rewrite = read_rewrite(Generation("I cannot log in to the company VPN"), "I can't log in", 64)
    assert rewrite == ("I cannot log in to the company VPN", None)


@pytest.mark.parametrize(
    "reply",
    [
        "**a" * 30_000,
        "__a " * 30_000,
        "# a" + " " * 50_000 + "b",
        "a:\n" * 20_000,
        "? _" * 40_000,
        "(note a" * 20_000,
    ],
)
def test_reading_takes_time_in_proportion(reply: str) -> None:
    started = time.process_time()
    read_rewrite(Generation(reply), QUESTION, 64)
    # Hundredths of a second; where time grows with the square, minutes.
    assert time.process_time() - started < 5


@given(
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.lists(st.sampled_from("abcdef"), unique=True),
    st.integers(1, 8),
)
def test_alternation(first: list[str], second: list[str], k: int) -> None:
    texts = [p.text for p in alternated([Passage(t) for t in first], [Passage(t) for t in second], k)]
    assert len(texts) == len(set(texts)) == min(k, len({*first, *second}))
    # Texts of one list alone stay in its order.
    for mine, other in ((first, second), (second, first)):
        own = [text for text in texts if text in mine and text not in other]
        assert own == [text for text in mine if text not in other][: len(own)]
    if first and second and first[0] != second[0]:
        assert texts[:2] == [first[0], second[0]][:k]
