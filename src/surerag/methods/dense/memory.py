"""The memory of DENSE: rephrasings of chunks and links between answers, which need not be asked for again."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from threading import Lock
from typing import Any, TypeVar

from surerag.errors import ConfigurationError
from surerag.messages import Pair, Prompt

V = TypeVar("V")


class Newest(MutableMapping[str, V]):
    """A mapping that forgets its oldest entry where it would exceed its limit. Thread-safe.

    Args:
        limit: Entries to keep at most.

    Raises:
        ConfigurationError: If ``limit`` is less than 1.

    Example:
        >>> known = Newest(2)
        >>> known["a"], known["b"], known["c"] = 1, 2, 3
        >>> list(known)
        ['b', 'c']
    """

    def __init__(self, limit: int = 100_000) -> None:
        if limit < 1:
            raise ConfigurationError(f"limit must be at least 1, got {limit}")
        self.limit = limit
        self._entries: dict[str, V] = {}
        self._lock = Lock()

    def __getitem__(self, key: str) -> V:
        return self._entries[key]

    def __setitem__(self, key: str, value: V) -> None:
        with self._lock:
            self._entries[key] = value
            while len(self._entries) > self.limit:
                del self._entries[next(iter(self._entries))]

    def __delitem__(self, key: str) -> None:
        with self._lock:
            del self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "_entries": dict(self._entries)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock())


@dataclass(frozen=True, slots=True)
class DenseCache:
    """Keeps rephrasings and links. Give one to several components, or fill it once for a corpus.

    Keys are digests of all that an entry depends on: the model's name, the prompt or the statements. Values
    are plain, so that any mapping of texts will do, such as a database's: then nothing is ever asked twice.

    Attributes:
        rephrasings: From a digest to a chunk in other words.
        links: From a digest to whether one answer entails another.
    """

    rephrasings: MutableMapping[str, str] = field(default_factory=Newest[str], repr=False)
    links: MutableMapping[str, bool] = field(default_factory=Newest[bool], repr=False)


@dataclass(frozen=True, slots=True)
class Memory:
    """A cache, and the models whose words it holds: another model's entries are never found.

    Attributes:
        cache: The entries.
        reader: Name of the reader.
        entailer: Name of the entailer.
    """

    cache: DenseCache = field(default_factory=DenseCache)
    reader: str = ""
    entailer: str = ""

    def rephrasing_key(self, prompt: Prompt, max_tokens: int) -> str:
        """Return where the reader's reply to a prompt is kept."""
        turns = [prompt] if isinstance(prompt, str) else [part for turn in prompt for part in turn]
        return key_of("rephrasing", self.reader, str(max_tokens), *turns)

    def link_key(self, pair: Pair, threshold: float | None) -> str:
        """Return where it is kept whether the first of two answers entails the second."""
        return key_of("link", self.entailer, str(threshold), pair.question, pair.premise, pair.hypothesis)


def key_of(*parts: str) -> str:
    """Return a digest of several texts that no other texts have.

    Example:
        >>> key_of("ab", "c") == key_of("a", "bc")
        False
    """
    digest = sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
