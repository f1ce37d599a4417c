"""A pipeline's own chains and retrievers as systems that ``surerag.compare`` asks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable

from langchain_surerag._counting import Count
from langchain_surerag.documents import passages_of
from langchain_surerag.services import RunnableRetriever
from surerag import SystemAnswer
from surerag.errors import InputError
from surerag.messages import Passage

_KEYS = ("input", "question", "query")
_ANSWERS = ("answer", "output", "result", "response", "text")
_CONTEXTS = ("context", "source_documents", "documents")


def as_system(given: Any, *, input_key: str | None = None) -> Any:
    """Return what ``surerag.compare`` asks in place of a LangChain object; None if it is no such object.

    A runnable gets the question in the form that it takes: under the one key of its input schema, or under
    ``input``, ``question`` or ``query``, or as messages; else as a text. Its answer is an output that is a
    text or a message, or what stands under ``answer``, ``output``, ``result`` or ``messages``; documents
    under ``context`` or ``source_documents`` are what was shown. Tokens are those that its models report
    through callbacks; where a model reports none, they are estimated from its messages. A retriever becomes
    a retriever of the core.

    Args:
        given: A runnable: a chain, a graph, a retriever.
        input_key: Under which key it takes the question; None finds out.
    """
    if isinstance(given, BaseRetriever):
        return RunnableRetriever(given)
    return _Asked(given, input_key) if isinstance(given, Runnable) else None


class _Asked:
    """Asks a runnable, and counts what its models report meanwhile."""

    def __init__(self, runnable: Runnable[Any, Any], input_key: str | None) -> None:
        self._runnable = runnable
        self._key = _key_of(runnable) if input_key is None else input_key

    def __call__(self, question: str) -> SystemAnswer:
        """Return the runnable's answer, and the documents that it tells of."""
        count = Count()
        output = self._runnable.invoke(self._input(question), config={"callbacks": [count]})
        decision = output.get("decision") if isinstance(output, Mapping) else None
        retrieved = decision.get("retrieve") if isinstance(decision, Mapping) else None
        return SystemAnswer(
            _text_of(output),
            _shown(output),
            count.costs,
            retrieved if isinstance(retrieved, bool) else None,
            count.model,
        )

    def _input(self, question: str) -> Any:
        if not self._key:
            return question
        return {self._key: [("user", question)] if self._key == "messages" else question}


def _key_of(runnable: Runnable[Any, Any]) -> str:
    """Return the key under which a runnable takes a question; empty where it takes a text."""
    try:
        schema = runnable.get_input_jsonschema()
    except Exception:
        # A runnable of one's own need not know its schema.
        return ""
    names = list(schema.get("properties") or {})
    wanted = list(schema.get("required") or names)
    if "messages" in names and not set(_KEYS) & set(names):
        return "messages"
    return next((name for name in _KEYS if name in names), wanted[0] if len(wanted) == 1 else "")


def _text_of(output: Any) -> str:
    if isinstance(output, str):
        return output
    if isinstance(output, BaseMessage):
        return str(output.text)
    if isinstance(output, Mapping):
        messages = output.get("messages")
        if isinstance(messages, list) and messages and isinstance(messages[-1], BaseMessage):
            return str(messages[-1].text)
        for name in _ANSWERS:
            if isinstance(output.get(name), str | BaseMessage):
                return _text_of(output[name])
    raise InputError(
        f"a chain answered with a {type(output).__name__}: {ascii(output)[:80]}",
        hint="end it in a text, a message, or a mapping with 'answer' (and 'context')",
    )


def _shown(output: Any) -> tuple[Passage, ...]:
    if not isinstance(output, Mapping):
        return ()
    found = next((output[name] for name in _CONTEXTS if output.get(name)), ())
    if isinstance(found, str):
        return (Passage(found),)
    return tuple(passages_of([one for one in found if hasattr(one, "page_content")]))
