"""Server-sent events, as they come in: bytes to the data of events; no I/O."""

from __future__ import annotations


class EventParser:
    r"""Cuts a stream of bytes into events, and keeps of each its data.

    Comments, names and retry times of events are left out: a server of language models says nothing in
    them that a reader needs.

    Example:
        >>> parser = EventParser()
        >>> parser.feed(b": hello\ndata: {\"a\"")
        []
        >>> parser.feed(b": 1}\n\nevent: x\r\ndata: one\r\ndata: two\r\n\r\n")
        ['{"a": 1}', 'one\ntwo']
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._data: list[str] = []

    def feed(self, received: bytes) -> list[str]:
        """Take the next bytes and return the data of the events that they complete.

        Raises:
            UnicodeDecodeError: If a line is not UTF-8.
        """
        waits = self._rest.endswith(b"\r")
        self._rest += received
        if not waits and b"\n" not in received and b"\r" not in received:
            # A long line in many pieces is searched once.
            return []
        *lines, rest = _split(bytes(self._rest))
        self._rest = bytearray(rest)
        return [event for line in lines if (event := self._line(line)) is not None]

    def end(self) -> list[str]:
        """Return the data of an event that the end of the stream completes."""
        return self.feed(b"\n\n")

    def _line(self, line: bytes) -> str | None:
        if not line:
            data, self._data = self._data, []
            return "\n".join(data) if data else None
        if line.startswith(b"data:"):
            self._data.append(line[5:].removeprefix(b" ").decode())
        return None


def _split(received: bytes) -> list[bytes]:
    """Split at line ends; a carriage return at the very end may be half of one, and waits."""
    half = received.endswith(b"\r")
    text = received[:-1] if half else received
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    if half:
        lines[-1] += b"\r"
    return lines
