"""Convert HTML, PDF and office files to Markdown with markitdown.

The tables that markitdown extracts from PDF files are corrected.
"""

from __future__ import annotations

import io
import re
from datetime import datetime
from functools import cache
from typing import Any

from surerag.documents.pdf import page_with_tables
from surerag.errors import InputError, extra
from surerag.records import Record, csv_records, row_text

CONVERTED = frozenset({".pdf", ".docx", ".pptx", ".xlsx", ".epub"})
"""Suffixes of the binary files that can be converted."""

_NAVIGATION_NAMES = {
    "nav", "navbar", "navigation", "menu", "sidebar", "breadcrumb", "breadcrumbs", "footer", "header",
    "related",
}  # fmt: skip
_NOT_WORD = re.compile(r"[\W_]+")


def html_as_markdown(text: str) -> tuple[str, str]:
    """Return an HTML page as Markdown without navigation, and the page's title."""
    text, title = _main_html(text)
    return convert(text.encode("utf-8", "replace"), ".html", charset="utf-8"), title


def _main_html(text: str) -> tuple[str, str]:
    """Return the HTML of a page's main part, and the page's title.

    Navigation is removed, and tables that only arrange the layout become ``div`` elements.
    """
    with extra("documents"):
        from bs4 import BeautifulSoup
    soup = BeautifulSoup(text, "lxml")  # closes tags that old pages do not close, such as <p> and <li>
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    for tag in soup(["script", "style", "noscript", "template"]):
        tag.decompose()
    whole = str(soup)
    for tag in soup(_is_navigation):
        tag.decompose()
    for table in soup("table"):
        if not table.find("th") and table.find(["p", "table", "h1", "h2", "h3", "div", "font"]):
            for tag in [table, *table(["tbody", "tr", "td"])]:
                tag.name = "div"
    body, main = soup.body or soup, soup("main")
    if len(main) == 1 and 2 * len(main[0].get_text()) > len(body.get_text()):
        body = main[0]
    return (str(body) if body.get_text().strip() else whole), title


def _is_navigation(tag: Any) -> bool:
    if tag.decomposed:
        return False
    if tag.name in ("nav", "aside") or tag.get("role") in ("navigation", "banner", "contentinfo", "search"):
        return True
    if tag.name in ("header", "footer"):
        return tag.find_parent(["article", "main", "section"]) is None
    names = {
        part for name in (tag.get("id") or "", *(tag.get("class") or ())) for part in re.split(r"[-_]", name)
    }
    if not names & _NAVIGATION_NAMES:
        return False
    links = sum(len(link.get_text()) for link in tag("a"))
    return 2 * links > len(tag.get_text(strip=True))


@cache
def converter(suffix: str) -> Any:
    """Return the markitdown converter for files with a suffix; it refuses a damaged binary file."""
    with extra("documents"):
        from markitdown import MarkItDown, converters
    if suffix not in CONVERTED:
        return MarkItDown(enable_plugins=False)
    converter = MarkItDown(enable_builtins=False, enable_plugins=False)
    converter.register_converter(getattr(converters, f"{suffix[1:].capitalize()}Converter")())
    return converter


def convert(data: bytes, suffix: str, **info: str) -> str:
    """Convert a file's contents to Markdown; ``info`` are further fields of markitdown's ``StreamInfo``.

    Raises:
        InputError: If the file is damaged or needs a password.
    """
    markitdown = converter(suffix)
    from markitdown import MissingDependencyException, StreamInfo

    try:
        text = markitdown.convert_stream(
            io.BytesIO(data), stream_info=StreamInfo(extension=suffix, **info)
        ).text_content
    except Exception as error:  # a parser may raise anything for a damaged file
        attempts = getattr(error, "attempts", None)
        cause = attempts[-1].exc_info[1] if attempts else error
        if isinstance(cause, MissingDependencyException):
            with extra("documents"):
                raise cause.__cause__ or cause from None
        raise InputError(_what_is_wrong(cause)) from error
    return str(text.replace("\f", "\n\n").encode("utf-8", "replace").decode())


def _what_is_wrong(error: BaseException) -> str:
    if type(error).__name__ == "PDFPasswordIncorrect":
        return "it needs a password"
    return f"damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"


def read_pdf(data: bytes) -> tuple[str, list[int]]:
    """Return the text of a PDF file, and the numbers of its pages without text, counted from 1.

    If markitdown split the rows of a table, the page's text comes from :func:`page_with_tables`.
    """
    with extra("documents"):
        import pypdfium2
    try:
        pdf = pypdfium2.PdfDocument(data)
    except pypdfium2.PdfiumError:  # convert may still read the file, or raises an error with the reason
        return convert(data, ".pdf"), []
    with pdf:
        text = convert(data, ".pdf")
        blank = [number for number, page in enumerate(pdf, 1) if not _page_text(page).strip()]
        tables = {at: table for at, page in enumerate(pdf) if (table := page_with_tables(page))}
        lines = {_NOT_WORD.sub(" ", line).strip() for line in text.split("\n")}
        if all(
            _NOT_WORD.sub(" ", " ".join(row)).strip() in lines for _, rows in tables.values() for row in rows
        ):
            return text, blank
        pages = [tables[at][0] if at in tables else _one_page(pdf, at) for at in range(len(pdf))]
    return "\n\n".join(filter(None, map(str.strip, pages))), blank


def _page_text(page: Any) -> str:
    text: str = page.get_textpage().get_text_range()
    return text


def _one_page(pdf: Any, at: int) -> str:
    import pypdfium2

    file = io.BytesIO()
    with pypdfium2.PdfDocument.new() as single:
        single.import_pages(pdf, [at])
        single.save(file)
    return convert(file.getvalue(), ".pdf")


def read_workbook(data: bytes) -> str:
    """Return the text of an Excel workbook, with a paragraph for each row of each sheet.

    If there are several sheets, each sheet begins with its title as a heading.
    """
    sheets = workbook_rows(data)
    parts = []
    for title, rows in sheets.items():
        text = "\n\n".join(row_text(record.value) for record in csv_records(rows))
        parts += [f"## {title}" if len(sheets) > 1 and text else "", text]
    return "\n\n".join(filter(None, parts))


def workbook_rows(data: bytes) -> dict[str, list[Record]]:
    """Return the non-empty rows of each sheet of an Excel workbook by the sheet's title; cells are texts.

    Raises:
        InputError: If the file is damaged.
    """
    with extra("documents"):
        from openpyxl import load_workbook
    try:
        book = load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        return {
            sheet.title: [
                Record(number, [_cell_text(cell) for cell in row])
                for number, row in enumerate(sheet.iter_rows(values_only=True), 1)
                if any(cell is not None for cell in row)
            ]
            for sheet in book.worksheets
        }
    except Exception as error:  # a parser may raise anything for a damaged file
        raise InputError(_what_is_wrong(error)) from error


def _cell_text(cell: Any) -> str:
    if isinstance(cell, datetime) and not (cell.hour or cell.minute or cell.second):
        return cell.date().isoformat()
    return "" if cell is None else str(cell).strip()
