r"""Whether tokens spell a text, compared as bytes.

Servers write a token in different ways: as its text; with its ``bytes`` beside it; with escapes
(``bytes:\xe2\x80``) or replacement characters where it is part of a character; or as nothing at all.
A token may stand for any of these, and the text decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

_ESCAPED = re.compile(r"(?:bytes:)?((?:\\x[0-9a-fA-F]{2})+)")
_UNKNOWN = "�"
_WHITE = " \t\n\r\x0b\x0c"


class Spelled(NamedTuple):
    """How far tokens spell a text.

    Attributes:
        tokens: How many tokens it takes; the others stand behind its end.
        whole: Whether they spell it to its end.
        exact: Whether nothing but white space, or part of a character, stands behind its end.
    """

    tokens: int
    whole: bool
    exact: bool


class Token(NamedTuple):
    """A token as a server writes it.

    Attributes:
        text: Its text, as far as it has one.
        given: Its bytes, if the server sent them.
    """

    text: str
    given: bytes | None = None


def spelled(text: str, tokens: Sequence[Token]) -> Spelled | None:
    r"""Compare tokens with the text that they should spell; white space around it does not count.

    Returns:
        How far they spell it; None if they spell another text.

    Example:
        >>> spelled("am Fluß", [Token("am"), Token(" Flu"), Token("\\xc3", b"\xc3"), Token("�"), Token(".")])
        Spelled(tokens=4, whole=True, exact=False)
        >>> spelled("am Fluß", [Token("am")])
        Spelled(tokens=1, whole=False, exact=True)
        >>> spelled("am Fluß", [Token("im")]) is None
        True
    """
    wanted = text.strip(_WHITE).encode("utf-8", "replace")
    places = {0}
    ended: Spelled | None = None
    partial = False
    for count, token in enumerate(tokens, start=1):
        if ended is None and len(wanted) in places:
            ended = Spelled(count - 1, whole=True, exact=True)
        if ended is not None:
            # How many tokens share the last character is not known: all that may be part of it are.
            partial = partial and _is_partial(token)
            ended = Spelled(
                count if partial else ended.tokens, whole=True, exact=ended.exact and _is_nothing(token)
            )
            continue
        reached = {end for place in places for end in _ends(wanted, place, token)}
        if not reached:
            return None
        places = {end for end in reached if end <= len(wanted)}
        partial = _is_partial(token)
        if not places:
            # The token reaches over the end: into a stop text, say.
            ended = Spelled(count, whole=True, exact=False)
    return ended or Spelled(len(tokens), whole=len(wanted) in places, exact=True)


def spelled_by_first(text: str, tokens: Sequence[Token], count: int) -> str:
    """Return the beginning of a text that its first tokens spell, without a character that is cut in two."""
    lead = len(text) - len(text.lstrip(_WHITE))
    wanted = text.strip(_WHITE).encode("utf-8", "replace")
    places = {0}
    for token in tokens[:count]:
        places = {min(end, len(wanted)) for place in places for end in _ends(wanted, place, token)}
    return text[:lead] + wanted[: max(places, default=0)].decode("utf-8", "ignore")


def _ends(wanted: bytes, start: int, token: Token) -> set[int]:
    """Return where a token may end that begins at a place of the text; beyond its end by one at most."""
    ends: set[int] = set()
    for parts in _ways(token):
        places = {start}
        for part in parts:
            places = {end for place in places for end in _part_ends(wanted, place, part)}
        ends |= places
    return ends


def _part_ends(wanted: bytes, place: int, part: bytes | None) -> set[int]:
    if part is None:
        # Part of a character: up to three bytes that are not ASCII, none where the text leaves it out.
        most = place
        while most < min(place + 3, len(wanted)) and wanted[most] >= 0x80:
            most += 1
        return set(range(place, most + 1))
    if place == 0:
        part = part.lstrip(_WHITE.encode())
    if wanted.startswith(part, place):
        return {place + len(part)}
    rest = wanted[place:]
    if part.startswith(rest):
        beyond = part[len(rest) :]
        return {len(wanted)} if not beyond.strip(_WHITE.encode()) else {len(wanted) + 1}
    return set()


def _ways(token: Token) -> list[list[bytes | None]]:
    """Return the ways to read a token: known bytes, and None for each part that is not known."""
    ways: list[list[bytes | None]] = []
    known = _known(token)
    if known is not None:
        ways.append([known])
        if not token.text or _UNKNOWN in token.text:
            return ways
    if not token.text:
        return [[None]]
    escaped = _ESCAPED.fullmatch(token.text)
    if escaped:
        ways.append([bytes.fromhex(escaped[1].replace("\\x", ""))])
    parts: list[bytes | None] = []
    for text in token.text.split(_UNKNOWN):
        parts += [text.encode("utf-8", "replace"), None]
    return [*ways, parts[:-1]]


def _known(token: Token) -> bytes | None:
    """Return a token's bytes as the server sent them; some send those of a replacement character."""
    return token.given if token.given and _UNKNOWN.encode() not in token.given else None


def _is_nothing(token: Token) -> bool:
    """Whether a token can be white space, or part of a character that the text leaves out."""
    return any(
        not b"".join(part for part in parts if part).decode("utf-8", "ignore").strip()
        for parts in _ways(token)
    )


def _is_partial(token: Token) -> bool:
    """Whether all that is known of a token is that it is part of a character."""
    return _known(token) is None and not token.text.replace(_UNKNOWN, "")
