"""One function for each kind of file: from bytes to text and title, our own part of it in linear time."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import NamedTuple

from surerag.errors import MissingExtraError
from surerag.extras import extra

_HEADING = re.compile(r"^#{1,6}[ \t](.*)$", re.MULTILINE)
_UNSEEN = re.compile(r"<!--|<(script|style)\b", re.IGNORECASE)
_BLOCKS = (
    "p",
    "div",
    "br",
    "li",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "section",
    "article",
    "blockquote",
    "pre",
)
_CLOSING = {name: re.compile(f"</{name}\\b", re.IGNORECASE) for name in ("script", "style")}
_REASON = 200
_UNREAD = ("script", "style", "noscript", "template", "nav")
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class UnreadableFileError(Exception):
    """A file that holds no text for us; its message is the reason."""


class Contents(NamedTuple):
    """Text and title of a file; the title is empty where the file states none."""

    text: str
    title: str


def read_text(data: bytes) -> Contents:
    """Read plain text: by its byte-order mark, else UTF-8, else Windows-1252."""
    return Contents(_decode(data), "")


def read_markdown(data: bytes) -> Contents:
    """Read Markdown, markup and all; its title is the first heading."""
    text = _decode(data)
    headings = (_without_closing(heading.group(1)) for heading in _HEADING.finditer(text))
    return Contents(text, next(filter(None, headings), ""))


def read_html(data: bytes) -> Contents:
    """Read the visible text of a page, one paragraph for each block; scripts and navigation are left out."""
    with extra("documents"):
        from bs4 import BeautifulSoup
        from bs4.dammit import UnicodeDammit
    markup = UnicodeDammit(data, is_html=True).unicode_markup
    if markup is None:
        raise UnreadableFileError("no known encoding")
    page = BeautifulSoup(_without_unseen(markup), "html.parser")
    title = " ".join(page.title.get_text().split()) if page.title else ""
    body = page.body or page
    for element in body.find_all(_UNREAD):
        element.decompose()
    for element in body.find_all(_BLOCKS):
        element.insert_before("\n\n")
        element.insert_after("\n\n")
    if page.title:
        page.title.decompose()
    lines = body.get_text().split("\n")
    blocks = (list(block) for seen, block in groupby(lines, lambda line: bool(line.strip())) if seen)
    return Contents("\n\n".join(" ".join(" ".join(block).split()) for block in blocks), title)


def read_pdf(data: bytes) -> Contents:
    """Read the text layer of a PDF, page by page.

    Raises:
        UnreadableFileError: If it is encrypted or holds pictures only.
        Exception: If it is damaged, whatever that makes the parser stumble over.
    """
    with extra("documents"):
        from pypdf import PasswordType, PdfReader
        from pypdf.errors import DependencyError
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
            raise UnreadableFileError("encrypted")
        text = "\n\n".join(page.extract_text().strip() for page in reader.pages)
        title = (reader.metadata.title if reader.metadata else None) or ""
    except DependencyError as error:
        raise UnreadableFileError("encrypted") from error
    if not text.strip():
        raise UnreadableFileError("no text layer")
    return Contents(_encodable(text.strip()), _encodable(str(title)))


_READERS: Mapping[str, Callable[[bytes], Contents]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
}
SUFFIXES = tuple(_READERS)
"""What can be read, in lower case."""


def read_file(suffix: str, data: bytes) -> Contents:
    """Read a file of a known kind.

    Raises:
        UnreadableFileError: If it holds no text for us, or is damaged in any way.
        MissingExtraError: If its parser is not installed.
    """
    try:
        return _READERS[suffix](data)
    except (UnreadableFileError, MissingExtraError):
        raise
    # Parsers of damaged files stop at whatever they stumble over: assertions, attributes, a full stack.
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")
        raise UnreadableFileError(f"damaged {suffix[1:].upper()}: {reason[:_REASON]}") from error


def _without_closing(heading: str) -> str:
    """Take blanks and a closing row of ``#`` from a heading."""
    heading = heading.strip(" \t\r")
    bare = heading.rstrip("#")
    return bare.rstrip(" \t") if bare[-1:] in ("", " ", "\t") else heading


def _without_unseen(markup: str) -> str:
    """Take comments, scripts and styles out: html.parser takes quadratic time for those that never end.

    A script or style that never ends reaches to the end, as in browsers. Of such a comment, nothing but its
    beginning is taken out: it may be a typing error, and what follows is text.
    """
    kept: list[str] = []
    place = 0
    last_comment_ends = markup.rfind("-->")
    while found := _UNSEEN.search(markup, place):
        kept.append(markup[place : found.start()])
        place = found.end()
        if element := found.group(1):
            closing = _CLOSING[element.lower()].search(markup, place)
            place = markup.find(">", closing.end()) + 1 if closing else 0
            if not place:
                return "".join(kept)
        elif place <= last_comment_ends:
            place = markup.index("-->", place) + 3
    return "".join(kept) + markup[place:]


def _encodable(text: str) -> str:
    """Mend surrogate pairs and replace lone surrogates."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _decode(data: bytes) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return _decode_as(data, encoding)
    if b"\0" in data:
        raise UnreadableFileError("binary data")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="replace")


def _decode_as(data: bytes, encoding: str) -> str:
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableFileError(f"not the {encoding} that its first bytes announce") from error
