"""Secrets that must not be written down: keys, and credentials in addresses and bodies."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit, urlunsplit

_SECRET_NAME = re.compile(
    r"(?i)(^|[_\-.])((api|access|auth|secret|private|session|refresh|id)?[_-]?(key|token)|secret|passw(or)?d"
    r"|authorization|auth|bearer|credentials?)$"
)
_LONG = 8
"""A secret of so many characters occurs nowhere by chance; a shorter one is masked as a word of its own."""


def without_credentials(url: str) -> str:
    """Return an address without user, password and query.

    Example:
        >>> without_credentials("https://user:pass@host:81/v1?token=t")
        'https://host:81/v1'
    """
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def secrets_of_url(url: str) -> Iterator[str]:
    """Yield what an address holds besides the way to a server: password, values of its query."""
    parts = urlsplit(url)
    yield from (unquote(secret) for secret in (parts.password, parts.username) if secret)
    yield from (value for _, value in parse_qsl(parts.query))


def secrets_of_body(body: Any, name: str = "") -> Iterator[str]:
    """Yield the texts that a body holds under names of secrets."""
    if isinstance(body, Mapping):
        for key, value in body.items():
            yield from secrets_of_body(value, name if _SECRET_NAME.search(name) else str(key))
    elif isinstance(body, list | tuple):
        for value in body:
            yield from secrets_of_body(value, name)
    elif isinstance(body, str) and _SECRET_NAME.search(name):
        yield body


def without_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body without the fields that hold secrets, also where they stand within others.

    Example:
        >>> without_secrets({"repeat_penalty": 1.0, "auth": {"api_key": "k"}, "max_tokens": 3})
        {'repeat_penalty': 1.0, 'max_tokens': 3}
    """
    return {
        key: without_secrets(value) if isinstance(value, Mapping) else value
        for key, value in body.items()
        if not _SECRET_NAME.search(key)
        and not (isinstance(value, list | tuple) and any(secrets_of_body(value)))
    }


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text with secrets taken out.

    Example:
        >>> masked("key abc, abcd, sk-123456", ["abc", "sk-123456"])
        'key [key], abcd, [key]'
    """
    for secret in sorted(set(secrets), key=len, reverse=True):
        if len(secret) >= _LONG:
            text = text.replace(secret, "[key]")
        elif secret:
            text = re.sub(rf"(?<![\w-]){re.escape(secret)}(?![\w-])", "[key]", text)
    return text
