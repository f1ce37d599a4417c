"""Places that users name: paths, URLs, and patterns of either."""

from __future__ import annotations

import glob
import hashlib
import re
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

from surerag.remote import Remote

_URL = re.compile(r"([a-z][a-z0-9+.-]+):/(/?)", re.IGNORECASE)

Anywhere: TypeAlias = Path | Remote
"""A place on this machine's disk, or elsewhere."""


def place_of(place: str | Path | Remote) -> Anywhere:
    """Return a place: a path, or what a URL names.

    A URL that was made a path before has lost a slash, which it is given again.

    Raises:
        ConfigurationError: If the URL holds a password, or its protocol is not known.
        MissingExtraError: If fsspec, or the protocol's own package, is not installed.

    Example:
        >>> place_of("data/rows.jsonl"), place_of("file:///data/rows.jsonl")
        (PosixPath('data/rows.jsonl'), PosixPath('/data/rows.jsonl'))
    """
    if isinstance(place, Remote):
        return place
    text = str(place)
    found = _URL.match(text)
    if found is None or not (found[2] or isinstance(place, Path)) or (not found[2] and Path(text).exists()):
        return Path(place)
    rest = text[found.end() :]
    if found[1].lower() in ("file", "local"):
        return Path(unquote("/" + rest.lstrip("/") if found[1].lower() == "file" else rest))
    return Remote(f"{found[1]}://{rest}")


def is_pattern(place: Anywhere) -> bool:
    """Whether a place names several files by ``*``, ``?`` or ``[…]``."""
    return place.is_pattern if isinstance(place, Remote) else glob.has_magic(str(place))


def matching(pattern: Anywhere) -> tuple[Anywhere, ...]:
    """Return the files that a pattern names, in order of their names."""
    if isinstance(pattern, Remote):
        return tuple(pattern.glob())
    named = glob.glob(str(pattern), recursive=True)  # noqa: PTH207 (Path.glob takes none from the root)
    return tuple(file for file in map(Path, sorted(named)) if file.is_file())


def is_there(place: Anywhere) -> bool:
    """Whether there is such a file or folder, or a file that a pattern names."""
    return place.exists() or (is_pattern(place) and bool(matching(place)))


def folder_before(pattern: Anywhere) -> Anywhere:
    """Return the last folder of a pattern that it names without a mark."""
    parts = re.split(r"[*?\[]", str(pattern), maxsplit=1)
    return place_of(parts[0].rpartition("/")[0] or ("/" if parts[0].startswith("/") else "."))


def key_of(place: Anywhere) -> str:
    """Return sixteen letters that stand for a place, without telling what its URL holds."""
    return hashlib.sha256(str(place).rstrip("/").encode("utf-8", "surrogatepass")).hexdigest()[:16]
