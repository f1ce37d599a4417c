"""Log lines: one event, one line, one sentence; nobody's words forge another."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

from surerag import FakeReader, LazyRAG, Passage
from surerag.drivers.session import _HAPPENED, sentence_of
from surerag.errors import TransientServiceError
from surerag.messages import Event
from tests.methods.lazy_rag.corpus import Corpus

ROOT = Path(__file__).parents[2]
FORGED = "Where?\n2026-11-28 04:30 CRITICAL auth: root logged in \x1b[31m\r\u202e\u2028\x85\u2066\x00"


class Nothing:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return []


def test_a_question_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm", entropy=3.0), Nothing(), summaries="x")
    with caplog.at_level(logging.INFO, "surerag"):
        rag.run(FORGED)
    assert len(caplog.messages) >= 2
    for line in caplog.messages:
        assert line.isprintable(), line
    assert "\\n2026-11-28 04:30 CRITICAL" in "".join(caplog.messages)


def test_whatever_is_logged_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("surerag").warning("a reply %s", FORGED)
    assert caplog.messages[0].isprintable()


def test_a_failure_is_told_to_operators_and_not_to_users(caplog: pytest.LogCaptureFixture) -> None:
    def fails(prompt: str) -> str:
        raise TransientServiceError("gpt at 10.0.0.7:8000 answered 503", hint="raise max_retries")

    events: list[Event] = []
    rag = LazyRAG(FakeReader(fails, entropy=0.1), Nothing(), summaries="x", on_event=events.append)
    with pytest.raises(TransientServiceError):
        rag.run("Where?")
    told = " ".join(str(dict(event.data)) for event in events)
    assert "TransientServiceError" in told
    assert not any(word in told for word in ("10.0.0.7", "8000", "max_retries"))
    assert "10.0.0.7:8000" in caplog.text


def _names() -> set[str]:
    """Return the names of events in the source; methods' own are in place of an f-string's field."""
    names = set()
    for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                head, dot, tail = node.value.partition(".")
                if dot and head in METHODS and tail.isidentifier():
                    names.add(node.value)
    return names


METHODS = ("lazy_rag", "dynqr", "dense", "dense_refiner", "edc2", "seper", "certainty", "conversation")


def test_every_event_has_a_sentence() -> None:
    elsewhere = {"certainty.unknown", "certainty.feedback_failed", "certainty.unreadable"}
    assert _names() - set(_HAPPENED) - elsewhere == set()
    for method in ("dense", "dense_refiner"):
        assert f"{method}.out_of_calls" in _HAPPENED


def test_fields_stand_in_the_sentence() -> None:
    event = Event("edc2.unclear_relevance", {"query": "Who?", "replies": 2, "of": 10})
    assert sentence_of(event) == (
        "2 of 10 replies do not say whether their passage is relevant; query: Who? [edc2.unclear_relevance]"
    )
    assert sentence_of(Event("lazy_rag.cut_off")).startswith("The answer was cut off after some tokens")


def test_an_answer_is_logged_where_decisions_are(caplog: pytest.LogCaptureFixture) -> None:
    rag = LazyRAG(FakeReader(["Velm"], entropy=0.1), Corpus(), summaries="Ada was born in Velm.")
    with caplog.at_level(logging.INFO, "surerag"):
        rag.run("Where?")
    assert [record.levelname for record in caplog.records] == ["INFO", "INFO"]
    assert "entropy 0.1 at or below threshold" in caplog.text
