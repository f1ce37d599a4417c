"""One function for each kind of file: from bytes to text and title."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from surerag.extras import extra

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t]*#*[ \t]*$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\s*\n\s*\n\s*")
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
    heading = _HEADING.search(text)
    return Contents(text, heading.group(1) if heading else "")


def read_html(data: bytes) -> Contents:
    """Read the visible text of a page, one paragraph for each block; scripts and navigation are left out."""
    with extra("documents"):
        from bs4 import BeautifulSoup
    page = BeautifulSoup(data, "html.parser")
    title = " ".join(page.title.get_text().split()) if page.title else ""
    body = page.body or page
    for element in body.find_all(_UNREAD):
        element.decompose()
    for element in body.find_all(_BLOCKS):
        element.insert_before("\n\n")
        element.insert_after("\n\n")
    if page.title:
        page.title.decompose()
    paragraphs = (" ".join(block.split()) for block in _BLANK_LINES.split(body.get_text()))
    return Contents("\n\n".join(filter(None, paragraphs)), title)


def read_pdf(data: bytes) -> Contents:
    """Read the text layer of a PDF, page by page.

    Raises:
        UnreadableFileError: If it is encrypted, damaged or holds pictures only.
    """
    with extra("documents"):
        from pypdf import PasswordType, PdfReader
        from pypdf.errors import DependencyError, PyPdfError
    try:
        reader = PdfReader(io.BytesIO(data))
        if reader.is_encrypted and reader.decrypt("") is PasswordType.NOT_DECRYPTED:
            raise UnreadableFileError("encrypted")
        text = "\n\n".join(page.extract_text().strip() for page in reader.pages)
        title = (reader.metadata.title if reader.metadata else None) or ""
    except DependencyError as error:
        raise UnreadableFileError("encrypted") from error
    except (PyPdfError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UnreadableFileError(f"damaged PDF: {error}") from error
    if not text.strip():
        raise UnreadableFileError("no text layer")
    return Contents(text.strip(), str(title))


READERS: Mapping[str, Callable[[bytes], Contents]] = {
    ".txt": read_text,
    ".md": read_markdown,
    ".markdown": read_markdown,
    ".html": read_html,
    ".htm": read_html,
    ".pdf": read_pdf,
}
"""How to read a file, by its suffix in lower case."""


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
