"""What a chain is asked, in the forms in which LangChain's pipelines ask it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel, Field

from langchain_surerag.documents import passages_of
from surerag.errors import InputError
from surerag.types import Passage

ChainInput = str | dict[str, Any]
_KEYS = ("question", "input", "query")


class QuestionInput(BaseModel):
    """Arguments of a chain that is used as a tool."""

    question: str = Field(description="question to answer")


class Question(NamedTuple):
    """A question, and gold passages where mode ``"oracle"`` needs them."""

    text: str
    oracle: list[Passage] | None = None


def question_of(given: Any) -> Question:
    """Read a question from a text, a mapping or an arguments model.

    Raises:
        InputError: If there is none, or it is no text.
    """
    if isinstance(given, BaseModel):
        given = given.model_dump()
    if isinstance(given, str):
        return Question(given)
    if not isinstance(given, Mapping):
        raise InputError(
            f"expected a question, got {type(given).__name__}", hint='pass a str or {"question": …}'
        )
    key = next((name for name in _KEYS if name in given), None)
    if key is None:
        raise InputError(
            f"there is no question among {sorted(map(str, given))}", hint='pass it under the key "question"'
        )
    if not isinstance(given[key], str):
        raise InputError(f"the question is a {type(given[key]).__name__}", hint="pass a str")
    documents = given.get("documents")
    return Question(given[key], None if documents is None else passages_of(documents))


def joined(chunks: list[Any]) -> Any:
    """Put an input together that came in chunks, as LangChain's own runnables do.

    Raises:
        InputError: If nothing came.
    """
    if not chunks:
        raise InputError("there is no question", hint="pass a str or a mapping")
    whole, *more = chunks
    for chunk in more:
        try:
            whole = whole + chunk
        except TypeError:
            whole = chunk
    return whole
