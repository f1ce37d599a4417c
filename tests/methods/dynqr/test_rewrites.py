"""What is taken out of a rewriter's reply, and what is no rewrite."""

from __future__ import annotations

import time

import pytest

from surerag.messages import Generation
from surerag.methods.dynqr.rewrites import read_rewrite

ASKED = "Where was she born?"
WANTED = "Where was Ada Lund born?"


@pytest.mark.parametrize(
    "reply",
    [
        WANTED,
        f"Rewritten query: {WANTED}",
        f"**Rewritten Query:** {WANTED}",
        f"**Rewritten Query: {WANTED}**",
        f'Sure! Here is the rewritten query: "{WANTED}"',
        f"Sure! Here's a clearer version of your query:\n\n{WANTED}",
        f"Sure, here is the rewritten query:\n\n**{WANTED}**\n\nThis rewrite adds the name.",
        f"The rewritten query is: {WANTED}",
        f"1. {WANTED}\n2. Birthplace of Ada Lund\n3. Ada Lund, born where?",
        f"Here are some rewrites:\n1. {WANTED}\n2. Birthplace of Ada",
        f"- {WANTED}",
        f"```\n{WANTED}\n```",
        f"### Rewritten Query\n{WANTED}",
        f"{WANTED}\n\nExplanation: I added the name.",
        f"{WANTED}\nI replaced the pronoun.",
        f"{WANTED} (Note: I added the name.)",
        f'"{WANTED}" This rewrite is clearer.',
        f"<think>She? Ada Lund.</think>\n\n{WANTED}",
        f"<think>\n\n</think>\n\n{WANTED}",
        f"«{WANTED}»",
        "Where was\nAda Lund born?",
    ],
)
def test_a_query_is_taken_out_of_what_stands_around_it(reply: str) -> None:
    assert read_rewrite(Generation(reply), ASKED, 64) == (WANTED, None)


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
    assert read_rewrite(Generation(query), ASKED, 64) == (query, None)


@pytest.mark.parametrize(
    ("reply", "trouble"),
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
        ("where was  she born", "unchanged"),
        (f"Rewritten query: {ASKED}", "unchanged"),
        ("word " * 65, "too long"),
    ],
)
def test_what_is_no_rewrite_says_why(reply: str, trouble: str) -> None:
    found = read_rewrite(Generation(reply), ASKED, 64)
    assert found.trouble == trouble
    found.text.encode()


def test_a_query_that_begins_like_a_refusal_may_be_rewritten_so() -> None:
    found = read_rewrite(Generation("I cannot log in to the company VPN"), "I can't log in", 64)
    assert found == ("I cannot log in to the company VPN", None)


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
    read_rewrite(Generation(reply), ASKED, 64)
    # Hundredths of a second; where time grows with the square, minutes.
    assert time.process_time() - started < 5
