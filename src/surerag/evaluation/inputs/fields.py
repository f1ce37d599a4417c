"""What may stand in a field, and what is said of what may not."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from surerag.errors import InputError
from surerag.types import Passage

_SHOWN = 60
_DEEPEVAL = re.compile(r"^deepeval_source=.*?,deepeval_context=", re.DOTALL)
TEXTS: Final = ("text", "page_content", "content", "paragraph_text", "passage", "contents", "chunk")
"""Under which names a passage that is an object holds its text."""


def text_field(value: Any, name: str, place: Any) -> str:
    """Return a field that must be a text.

    Raises:
        InputError: If it is none, or empty.
    """
    if not isinstance(value, str) or not value.strip():
        raise unfit(place, f"the field {name!r}", "texts that are not empty", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise unfit(place, f"the field {name!r}", "text without lone surrogates", value) from error
    return value


def golds_field(value: Any, place: Any, *, cells: bool = False) -> tuple[str, ...]:
    """Return gold answers: a text, or a list of at least one; or SQuAD's object that holds such a list.

    Args:
        value: What stands in the field.
        place: Where, for messages.
        cells: Whether a text may be a list, as JSON or as Python writes it.

    Raises:
        InputError: If it is something else.
    """
    if cells:
        value = from_cell(value)
    if isinstance(value, Mapping) and isinstance(value.get("text"), list):
        value = list(dict.fromkeys(value["text"]))
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list) or not given:
        raise unfit(place, "the field 'answers'", "a text or a list of at least one text", value)
    return tuple(text_field(gold, "answers", place) for gold in given)


def contexts_field(
    value: Any, place: Any, *, cells: bool = False, single: bool = False
) -> tuple[tuple[Passage, ...], ...]:
    """Return contexts, a tuple a step: a list of texts, or of such lists; passages may be objects, too.

    Args:
        value: What stands in the field.
        place: Where, for messages.
        cells: Whether a text may be a list, as JSON or as Python writes it.
        single: Whether a text is one passage, because the column is called ``context``.

    Raises:
        InputError: If it is something else.
    """
    if cells:
        value = from_cell(value)
    if single and isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        raise unfit(place, "the field 'contexts'", "a list of texts, or of lists of texts", value)
    steps = value if value and all(isinstance(step, list) for step in value) else [value]
    return tuple(
        tuple(Passage(text_field(_text_of(text), "contexts", place)) for text in step) for step in steps
    )


def from_cell(value: Any) -> Any:
    """Return the list or object that a cell holds as JSON, or as Python prints it; else the cell."""
    if not isinstance(value, str) or value[:1] not in ("[", "{"):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        pass
    try:
        found = ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return value
    return found if isinstance(found, list | dict) else value


def from_deepeval(value: Any) -> Any:
    """Return passages as DeepEval had them, before it wrote them to a file.

    In CSV and JSON lines it joins them by a bar, and a passage with a source it writes as a pair.

    Example:
        >>> from_deepeval("One.|deepeval_source=two.txt,deepeval_context=Two.")
        ['One.', 'Two.']
    """
    if isinstance(value, str) and value[:1] != "[":
        value = value.split("|")
    if not isinstance(value, list):
        return value
    return [_DEEPEVAL.sub("", one) if isinstance(one, str) else one for one in value]


def name_field(value: Any, name: str, place: Any) -> str:
    """Return an id: a text, or a whole number.

    Raises:
        InputError: If it is something else.
    """
    whole = isinstance(value, int) and not isinstance(value, bool)
    return text_field(str(value) if whole else value, name, place)


def _text_of(passage: Any) -> Any:
    if isinstance(passage, Mapping):
        node = passage.get("node")
        inner = node if isinstance(node, Mapping) else passage
        text = next((inner[name] for name in TEXTS if isinstance(inner.get(name), str)), None)
        if text is not None:
            title = inner.get("title")
            return f"{title}\n{text}" if isinstance(title, str) and title else text
    return passage


def unfit(place: Any, what: str, expected: str, found: Any) -> InputError:
    """Say what was expected of a field, and what was found."""
    try:
        shown = ascii(found)
    except RecursionError:
        shown = f"{type(found).__name__} of many levels"
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
    return InputError(f"{place}: {what} must be {expected}; found {shown}")
