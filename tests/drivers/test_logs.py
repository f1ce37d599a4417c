"""Log lines: one event, one line, one sentence; nobody's words forge another."""

from __future__ import annotations

import ast
import asyncio
import json
import logging
import sys
from collections.abc import Callable
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from surerag import (
    ClusterCompressor,
    DenseEvaluator,
    FakeReader,
    LazyRAG,
    Passage,
    SePer,
    UncertaintyRewriter,
)
from surerag.drivers.session import sentence_of
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import TransientServiceError
from surerag.messages import EVENT_SENTENCES, Event
from surerag.methods import methods_by_name
from tests.methods.lazy_rag.corpus import Corpus

ROOT = Path(__file__).parents[2]
FORGED = "Where?\n2026-11-28 04:30 CRITICAL auth: root logged in \x1b[31m\r\u202e\u2028\x85\u2066\x00"


class Nothing:
    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return []


def test_a_question_forges_no_line(caplog: pytest.LogCaptureFixture) -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm", entropy=3.0), Nothing(), summaries="x")
    with caplog.at_level(logging.DEBUG, "surerag"):
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
    nodes = [
        node
        for path in [*(ROOT / "src").rglob("*.py"), *(ROOT / "integrations").rglob("*.py")]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    ]
    emitted = {
        str(node.args[0].value).partition(".")[0]
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "emit"
        if node.args and isinstance(node.args[0], ast.Constant)
    }
    texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    parts = [(text, *text.partition(".")) for text in texts]
    return {text for text, head, dot, tail in parts if dot and head in emitted and tail.isidentifier()}


def test_every_event_has_a_sentence() -> None:
    methods_by_name()  # loads the methods, which add the sentences of their events
    import_module("langchain_surerag.inputs")
    elsewhere = {"certainty.unknown", "certainty.feedback_failed", "certainty.unreadable"}
    assert _names() - set(EVENT_SENTENCES) - elsewhere == set()
    for method in ("dense", "dense_refiner"):
        assert f"{method}.out_of_calls" in EVENT_SENTENCES


def test_fields_stand_in_the_sentence() -> None:
    event = Event("edc2.unclear_relevance", {"query": "Who?", "replies": 2, "of": 10})
    assert sentence_of(event) == (
        "2 of 10 replies do not say whether their passage is relevant; query: Who? [edc2.unclear_relevance]"
    )
    assert sentence_of(Event("lazy_rag.cut_off")).startswith("The answer was cut off after some tokens")


def test_an_answer_is_logged_where_decisions_are(caplog: pytest.LogCaptureFixture) -> None:
    rag = LazyRAG(FakeReader(["Velm"], entropy=0.1), Corpus(), summaries="Ada was born in Velm.")
    with caplog.at_level(logging.DEBUG, "surerag"):
        rag.run("Where?")
    assert [record.levelname for record in caplog.records] == ["DEBUG", "DEBUG", "INFO"]
    assert "entropy 0.1 at or below threshold" in caplog.text


SECRET = "Where does Ms Voss live?"


def _decisions(
    caplog: pytest.LogCaptureFixture, level: int, run: Callable[[], object]
) -> list[dict[str, Any]]:
    caplog.clear()
    with caplog.at_level(level, "surerag"):
        run()
    told = [record for record in caplog.records if hasattr(record, "decision")]
    for record in told:
        assert record.levelno == logging.INFO
        assert json.loads(record.message.removeprefix("decision ")) == record.decision
    return [record.decision for record in told]


def _runs() -> dict[str, tuple[Callable[[], object], dict[str, Any]]]:
    reader = FakeReader(lambda prompt: "entailment" if "ntail" in prompt else "Velm", entropy=0.1)
    passages = [
        Passage("Ada was born in Velm. It is a town.", id="a"),
        Passage("Velm lies on the Orun.", id="b"),
    ]
    lazy = LazyRAG(reader, Corpus(), summaries="Ada was born in Velm.")
    rewriter = UncertaintyRewriter(reader, Corpus(), threshold=5.0)
    compressor = ClusterCompressor(reader, HashingEncoder())
    dense, seper = DenseEvaluator(reader, ExactEntailer()), SePer(reader, ExactEntailer())
    return {
        "LazyRAG": (lambda: lazy.run(SECRET), {"retrieve": False, "score": 0.1, "abstained": False}),
        "DynQR": (lambda: rewriter.run(SECRET), {"acted": False, "rewritten": False, "threshold": 5.0}),
        "EDC2": (lambda: compressor.run(SECRET, passages), {"passages": 2, "fell_back": False}),
        "Dense": (lambda: dense.run(SECRET, passages), {"certain": True, "passages": 2}),
        "SePer": (lambda: seper.run(SECRET, ["Velm"], passages), {"delta": 0.0}),
    }


@pytest.mark.parametrize("method", ["LazyRAG", "DynQR", "EDC2", "Dense", "SePer"])
def test_each_decision_is_one_record_without_the_users_words(
    method: str, caplog: pytest.LogCaptureFixture
) -> None:
    run, expected = _runs()[method]
    [decision] = _decisions(caplog, logging.INFO, run)
    assert decision == {**decision, **expected}
    assert decision["seconds"] > 0 and isinstance(decision["requests"], int)
    for words in ("Ms Voss", "Velm"):
        assert words not in caplog.text
    [asked] = _decisions(caplog, logging.DEBUG, run)
    assert asked["question"] == SECRET
    assert _decisions(caplog, logging.WARNING, run) == []


def test_warnings_show_the_users_words_where_they_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    rag = LazyRAG(FakeReader(lambda prompt: "Velm", entropy=3.0), Nothing(), summaries="x")
    for level, shown in ((logging.INFO, False), (logging.DEBUG, True)):
        caplog.clear()
        with caplog.at_level(level, "surerag"):
            rag.run(SECRET)
        assert "The retriever returned no passages" in caplog.text and (SECRET in caplog.text) == shown


def test_the_open_span_of_opentelemetry_gets_the_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    span: ContextVar[dict[str, Any]] = ContextVar("span")
    open_span = lambda: SimpleNamespace(set_attributes=span.get().update)  # noqa: E731
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", SimpleNamespace(get_current_span=open_span))
    rag = LazyRAG(FakeReader(["Velm"] * 9, entropy=0.1), Corpus(), summaries="Ada was born in Velm.")

    async def ask() -> dict[str, Any]:
        span.set({})
        await rag.arun(SECRET)
        return span.get()

    async def ask_both() -> list[dict[str, Any]]:
        return await asyncio.gather(ask(), ask())

    for attributes in asyncio.run(ask_both()):
        assert attributes["surerag.LazyRAG.retrieve"] is False
        assert attributes["surerag.LazyRAG.requests"] == 1
        assert all(isinstance(value, bool | int | float) for value in attributes.values())
    span.set({})
    list(rag.stream(SECRET))
    assert span.get()["surerag.LazyRAG.score"] == pytest.approx(0.1)
