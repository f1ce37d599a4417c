"""What servers send, as text and as JSON; no I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from surerag.errors import ServiceError

Json = Mapping[str, Any]


def mended(text: str) -> str:
    r"""Return a text that can be encoded: pairs of surrogates joined, single ones replaced.

    Example:
        >>> mended("\ud83d\ude00"), mended("a\ud83d")
        ('😀', 'a�')
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def json_of(text: str) -> Any:
    """Parse what a server sent.

    Raises:
        ServiceError: If it is no JSON, or none that can be read: too deep, or with numbers of thousands of
            digits.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise malformed(text) from None


def malformed(answer: object) -> ServiceError:
    """Return the error for an answer that is no OpenAI-compatible one."""
    found = "an empty answer" if answer in (None, "", {}) else f"the answer {shown(answer)!r}"
    return ServiceError(
        f"the server returned {found}, where a JSON object with choices was expected",
        hint="check that base_url ends with the API's root, such as http://localhost:8000/v1",
    )


def shown(value: object) -> str:
    """Return the beginning of a value for an error's message; some cannot be written at all."""
    try:
        return mended(str(value)[:120])
    except (ValueError, RecursionError):
        return f"a {type(value).__name__} too large to show"
