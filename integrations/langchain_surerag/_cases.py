"""What an evaluation is about, found in the mappings in which LangSmith hands it over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document

from langchain_surerag.documents import passages_of
from surerag.components.seper import Case
from surerag.errors import InputError
from surerag.types import Passage

Key = str | Callable[[Mapping[str, Any]], Any]
"""A key of a mapping, or a function that takes the value out of it."""

_QUESTIONS = ("question", "input", "query")
_CONTEXTS = ("documents", "contexts", "context", "source_documents", "output")
_GOLDS = ("answers", "answer", "reference", "expected", "output")
_TEXTS = ("page_content", "text", "content")


@dataclass(frozen=True)
class CaseKeys:
    """Where to look; None looks under the usual keys, in this order.

    Attributes:
        question: In the inputs: ``question``, ``input``, ``query``.
        contexts: In the outputs, then in the inputs: ``documents``, ``contexts``, ``context``,
            ``source_documents``, ``output``; a list, and under the second and third also one text.
        gold: In the reference outputs: ``answers``, ``answer``, ``reference``, ``expected``, ``output``.
    """

    question: Key | None = None
    contexts: Key | None = None
    gold: Key | None = None

    def case(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        reference_outputs: Mapping[str, Any],
    ) -> Case:
        """Return question, gold answers and passages.

        Raises:
            InputError: If one is not there, or is of a kind that cannot be read.
        """
        question = _found(self.question, _QUESTIONS, inputs)
        if not isinstance(question, str):
            raise _missing("question", "question_key", question, inputs)
        golds = _found(self.gold, _GOLDS, reference_outputs)
        golds = [golds] if isinstance(golds, str) else golds
        if not isinstance(golds, list | tuple) or not all(isinstance(gold, str) for gold in golds):
            raise _missing("gold answer", "gold_key", golds, reference_outputs)
        return Case(question, golds, self._passages(outputs, inputs))

    def _passages(self, outputs: Mapping[str, Any], inputs: Mapping[str, Any]) -> list[Passage]:
        given = self._contexts(outputs)
        if given is None and not callable(self.contexts):
            given = self._contexts(inputs)
        items = [given] if isinstance(given, str | Document) else given
        if not isinstance(items, list | tuple):
            raise _missing("list of documents", "contexts_key", given, {**inputs, **outputs})
        passages = [passage for passage in map(_passage, items) if passage.text.strip()]
        if not passages:
            raise InputError("there is no document with text", hint="evaluate runs that retrieved something")
        return passages

    def _contexts(self, given: Mapping[str, Any]) -> Any:
        if self.contexts is not None:
            return _found(self.contexts, (), given)
        # A text under "output" is an answer.
        lists = {name for name in _CONTEXTS if isinstance(given.get(name), list | tuple)}
        return _found(None, [name for name in _CONTEXTS if name in lists | {"contexts", "context"}], given)


def _found(key: Key | None, usual: Iterable[str], given: Mapping[str, Any]) -> Any:
    if callable(key):
        return key(given)
    names = usual if key is None else (key,)
    return next((given[name] for name in names if given.get(name) is not None), None)


def _missing(what: str, setting: str, found: Any, given: Mapping[str, Any]) -> InputError:
    where = f"among {sorted(map(str, given))}" if found is None else f"but a {type(found).__name__}"
    return InputError(f"there is no {what} {where}", hint=f"say where it is with {setting}=…")


def _passage(item: Any) -> Passage:
    """Read a document, its text, or what JSON has made of it."""
    if isinstance(item, str):
        return Passage(item)
    if isinstance(item, Document):
        return passages_of([item])[0]
    fields = item.get("kwargs", item) if isinstance(item, Mapping) else {}
    text = _found(None, _TEXTS, fields)
    if not isinstance(text, str):
        raise InputError(
            f"a {type(item).__name__} among the documents has no text",
            hint=f"give documents, texts, or mappings with one of {list(_TEXTS)}",
        )
    return Passage(text, id=str(fields.get("id") or ""))
