"""JSON lines, and lists in JSON files, which are read element by element."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any, Final

from surerag.errors import InputError
from surerag.evaluation.inputs.entries import Choose, Entry, Place, Start
from surerag.evaluation.inputs.streams import opened
from surerag.places import Anywhere

LISTS: Final = (
    "data", "rows", "examples", "test_cases", "testCases", "goldens", "samples", "results", "questions",
    "runs",
)  # fmt: skip
"""Under which names a JSON file may hold its list."""
_CHUNK = 1 << 16


def json_lines(file: Anywhere, start: Start, _: Choose | None = None) -> Iterator[Entry]:
    """Yield the objects of a file of JSON lines.

    Raises:
        InputError: If a line is none, or not UTF-8.
    """
    offset, number = start.offset, start.number - 1
    with opened(file) as lines:
        lines.seek(offset)
        for line in lines:
            number += 1
            here, offset = offset, offset + len(line)
            if line.strip():
                place = Place(file, "line", number)
                yield Entry(Start(here, number), place, _parsed(line, place, first=here == 0))


def json_list(file: Anywhere, start: Start, choose: Choose | None = None) -> Iterator[Entry]:
    """Yield the elements of the list that a JSON file is, or holds under one of the names in ``LISTS``.

    A file of JSON lines that was given another name is read as such.

    Raises:
        InputError: If it holds no such list, or is not JSON.
    """
    with opened(file) as stream:
        if start.offset == 0:
            found = _Scanner(stream, file, 0)
            if not found.to_list():
                yield from json_lines(file, start, choose)
                return
        else:
            stream.seek(start.offset)
            found = _Scanner(stream, file, start.offset)
        number = start.number
        while found.more():
            offset = found.offset
            yield Entry(Start(offset, number), Place(file, "element", number), found.value())
            number += 1


class _Scanner:
    """Takes values out of a JSON text that is read piece by piece."""

    def __init__(self, stream: IO[bytes], file: Anywhere, offset: int) -> None:
        self._stream, self._file, self._base = stream, file, offset
        encoding = "utf-8" if offset else "utf-8-sig"
        self._decode = codecs.getincrementaldecoder(encoding)().decode
        self._text, self._at, self._size, self._ended = "", 0, _CHUNK, False
        self._counted = 0
        self._mark = b"" if offset else stream.read(3)
        if self._mark:
            stream.seek(0)
        self._base += 3 if self._mark == codecs.BOM_UTF8 else 0

    @property
    def offset(self) -> int:
        """Bytes before the next value."""
        self._base += len(self._text[self._counted : self._at].encode())
        self._counted = self._at
        return self._base

    def to_list(self) -> bool:
        """Go to the first element; False if this is a file of JSON lines."""
        opening = self._peek()
        if opening == "[":
            self._at += 1
            return True
        if opening != "{":
            raise self._broken("a list or an object was expected")
        self._at += 1
        names: list[str] = []
        while self._peek() == '"':
            names.append(str(self.value()))
            self._expect(":")
            if names[-1] in LISTS and self._peek() == "[":
                self._at += 1
                return True
            self.value()
            if self._peek() == ",":
                self._at += 1
        self._expect("}")
        if self._peek() == "{" or self._is_one_line():
            return False
        raise InputError(
            f"{self._file} holds no list of questions; found {', '.join(map(repr, names)) or 'nothing'}",
            hint=f"give a list of objects, or one under a name such as {', '.join(map(repr, LISTS[:4]))}",
        )

    def _is_one_line(self) -> bool:
        self._stream.seek(0)
        return not self._stream.readline().endswith(b"{\n")

    def more(self) -> bool:
        """Go to the next element, if there is one."""
        found = self._peek()
        if found == ",":
            self._at += 1
            found = self._peek()
        return found not in ("]", "")

    def value(self) -> Any:
        """Take the next value."""
        self._peek()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self._text, self._at)
            except (json.JSONDecodeError, IndexError) as error:
                if self._fill():
                    continue
                raise self._broken(getattr(error, "msg", "it ends too early")) from error
            except RecursionError as error:
                raise self._broken("lists or objects within one another, too deep to read") from error
            except ValueError as error:  # of a number, Python reads 4,300 digits
                raise self._broken(str(error).partition(";")[0]) from error
            # A number may go on in the next piece.
            if end == len(self._text) and self._fill():
                continue
            self._at = end
            return value

    def _expect(self, char: str) -> None:
        if self._peek() != char:
            raise self._broken(f"{char!r} was expected")
        self._at += 1

    def _peek(self) -> str:
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text):
                self._size = _CHUNK
                return self._text[self._at]
            if not self._fill():
                return ""

    def _fill(self) -> bool:
        if self._ended:
            return False
        _ = self.offset
        data = self._stream.read(self._size)
        self._ended = not data
        try:
            more = self._decode(data, final=self._ended)
        except UnicodeDecodeError as error:
            raise InputError(f"{self._file}: the text is not UTF-8 ({error.reason})") from error
        self._text = self._text[self._at :] + more
        self._at = self._counted = 0
        self._size *= 2  # a long value is looked at from its beginning each time
        return True

    def _broken(self, why: str) -> InputError:
        return InputError(f"{self._file}, byte {self.offset}: not JSON ({why})", hint="write it again")


def _parsed(line: bytes, place: Place, *, first: bool) -> Any:
    try:
        # Editors on Windows put a byte-order mark before the first line.
        return json.loads(line.decode("utf-8-sig" if first else "utf-8"))
    except UnicodeDecodeError as error:
        raise InputError(f"{place}: the text is not UTF-8 ({error.reason})") from error
    except json.JSONDecodeError as error:
        raise _not_json(place, f"{error.msg} at column {error.colno}") from error
    except RecursionError as error:
        raise _not_json(place, "lists or objects within one another, too deep to read") from error
    except ValueError as error:  # of a number, Python reads 4,300 digits
        raise _not_json(place, str(error).partition(";")[0]) from error


def _not_json(place: Place, why: str) -> InputError:
    return InputError(f"{place}: not a JSON object ({why})", hint="write one JSON object on each line")
