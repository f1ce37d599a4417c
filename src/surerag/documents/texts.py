"""Read mail, notebooks, subtitles and TeX files as text, and detect the format of files without a suffix."""

from __future__ import annotations

import html
import io
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from email import message_from_bytes, policy
from email.message import EmailMessage, MIMEPart
from functools import wraps
from mailbox import mbox
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from surerag.documents.converted import html_as_markdown
from surerag.errors import InputError, SureragError
from surerag.records import json_records, parse_json
from surerag.text import decode

T = TypeVar("T")
R = TypeVar("R")


def _with_input_errors(read: Callable[[T], R]) -> Callable[[T], R]:
    """Decorate a parser so that any exception for a damaged file becomes an InputError."""

    @wraps(read)
    def reading(data: T) -> R:
        try:
            return read(data)
        except SureragError:
            raise
        except Exception as error:
            raise InputError(
                f"damaged: {' '.join(str(error).split())[:200] or type(error).__name__}"
            ) from error

    return reading


# Kinds

_BY_CONTENT = (
    (r"%PDF-", ".pdf"),
    (r"From [^\n]+\d{4}\r?\n[A-Za-z-]+: ", ".mbox"),
    (r"(?:[A-Z][A-Za-z-]*: [^\n]*\n(?:[ \t][^\n]*\n)*){2,}\r?\n", ".eml"),
    (r"\s*<(?:!doctype html|html)\b", ".html"),
    (r"\s*<\?xml\b", ".xml"),
    (r"\s*\{\s*\"(?:cells|nbformat|metadata)\"", ".ipynb"),
    (r"\s*[\[{]\s*[\"{\[\]}]", ".json"),
    (r"WEBVTT\b", ".vtt"),
    (r"(?:\s*%[^\n]*\n)*\s*\\documentclass\b", ".tex"),
)
"""Patterns of the beginning of a file, each with the suffix of its format; the first match counts."""
_MAIL = re.compile(r"^(?:From|Received|Return-Path|Subject|Date): ", re.MULTILINE)
_ARCHIVES = {"word/": ".docx", "xl/": ".xlsx", "ppt/": ".pptx", "META-INF/container.xml": ".epub"}
"""Suffixes of Office files and EPUB books, by a path that exists inside the ZIP archive."""
_BEGINNING = 4096


def kind_by_content(data: bytes) -> str:
    r"""Return the usual suffix of a file, detected by its contents; ``.txt`` if the format is unknown.

    Raises:
        InputError: If the file is a ZIP archive, but not an Office file or an EPUB book.

    Example:
        >>> kind_by_content(b"<!DOCTYPE html><p>Velm"), kind_by_content(b"Velm lies on the Orun.")
        ('.html', '.txt')
    """
    if data.startswith(b"PK\x03\x04"):
        try:
            names = zipfile.ZipFile(io.BytesIO(data)).namelist()
        except zipfile.BadZipFile as error:
            raise InputError("a damaged ZIP archive") from error
        for inside, suffix in _ARCHIVES.items():
            if any(name.startswith(inside) for name in names):
                return suffix
        raise InputError("a ZIP archive that is not an Office file or EPUB book")
    beginning = data[:_BEGINNING].decode("latin-1")
    for pattern, suffix in _BY_CONTENT:
        match = re.match(pattern, beginning, re.IGNORECASE if "doctype" in pattern else 0)
        is_kind = match and (suffix != ".eml" or len(_MAIL.findall(match[0])) > 1)
        if is_kind and (suffix not in (".ipynb", ".json") or _is_json(data)):
            return suffix
    return ".txt"


def _is_json(data: bytes) -> bool:
    try:
        json_records(decode(data).text, "the file")
    except InputError:
        return False
    return True


# Mail

_MAIL_HEADERS = ("From", "To", "Cc", "Date", "Subject")


class Mail(NamedTuple):
    """A mail message as text.

    Attributes:
        text: Sender, recipients, date and subject, a blank line, and the body.
        title: The subject.
        metadata: Values of the headers by lower-case name, without the subject.
        attachments: File name of each attachment, or its media type if it has no name.
    """

    text: str
    title: str
    metadata: dict[str, str]
    attachments: list[str]


@_with_input_errors
def read_mail(data: bytes) -> Mail:
    r"""Parse a mail message; if the message has only an HTML body, convert the body to Markdown.

    Example:
        >>> read_mail(b"From: Ada\nSubject: Lamp\n\nIt is lit.").text
        'From: Ada\nSubject: Lamp\n\nIt is lit.'
    """
    message = message_from_bytes(data, _class=EmailMessage, policy=policy.default)
    headers = {name: value for name in _MAIL_HEADERS if (value := _header(message, name))}
    body = message.get_body(("plain", "html"))
    text = "" if body is None else _body_text(body)
    shown = "\n".join(f"{name}: {value}" for name, value in headers.items())
    attachments = [part.get_filename() or part.get_content_type() for part in message.iter_attachments()]
    metadata = {name.lower(): value for name, value in headers.items() if name != "Subject"}
    return Mail(f"{shown}\n\n{text}".strip(), headers.get("Subject", ""), metadata, attachments)


def read_mailbox(path: Path) -> Iterator[Mail]:
    """Yield each message of a file in mbox format."""
    box = mbox(path, create=False)
    try:
        for key in box.keys():  # noqa: SIM118  # iterating would parse each message twice
            yield read_mail(box.get_bytes(key))
    finally:
        box.close()


def _header(message: EmailMessage, name: str) -> str:
    try:
        value = str(message[name] or "")
    except (ValueError, LookupError, AttributeError):  # the parser fails on some broken headers
        value = next((str(raw) for key, raw in message.raw_items() if key.lower() == name.lower()), "")
    return " ".join(value.split())


def _body_text(body: MIMEPart) -> str:
    content = body.get_payload(decode=True)
    text = decode(content, body.get_content_charset("")).text if isinstance(content, bytes) else ""
    if body.get_content_subtype() == "html":
        return html_as_markdown(text)[0]
    return text.replace("\r\n", "\n").strip()


# Notebooks


@_with_input_errors
def read_notebook(text: str) -> str:
    """Return a Jupyter notebook as Markdown, with its texts, its code, and the output of the code.

    Args:
        text: The notebook file's JSON.

    Raises:
        InputError: If the text is not the JSON of a notebook.
    """
    book = parse_json(text, "the file")
    sheets = [book, *book.get("worksheets", ())] if isinstance(book, dict) else []
    cells = [cell for sheet in sheets for cell in sheet.get("cells", ())]
    if not sheets or "nbformat" not in book:
        raise InputError("not a notebook")
    information = book.get("metadata", {}).get("language_info", {})
    language = str(information.get("name", ""))
    parts: list[str] = []
    for cell in cells:
        source = _joined(cell.get("source", cell.get("input")))
        is_code = cell.get("cell_type") == "code"
        parts.append(_fenced(source, language) if is_code else source)
        parts += [_fenced(_output(output), "text") for output in cell.get("outputs", ())]
    return "\n\n".join(part.strip() for part in parts if part.strip())


def _joined(lines: Any) -> str:
    return "".join(map(str, lines)) if isinstance(lines, list) else str(lines or "")


def _output(output: Any) -> str:
    if output.get("output_type") == "error":
        return f"{output.get('ename', '')}: {output.get('evalue', '')}"
    return _joined(output.get("text") or output.get("data", {}).get("text/plain"))


def _fenced(text: str, language: str) -> str:
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}" if text.strip() else ""


# Subtitles

_TIMES = re.compile(r"\s*((?:\d+:)?\d+:\d\d)[.,](\d{1,3})\s+-->\s+((?:\d+:)?\d+:\d\d)[.,](\d{1,3})")
_SPEAKER = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAGS = re.compile(r"</?[A-Za-z0-9][^>\n]{0,99}>|\{\\[^}\n]{0,99}\}")
_PAUSE = 4.0
"""Seconds without subtitles after which a new paragraph begins."""


def read_subtitles(text: str) -> str:
    r"""Return the words of SubRip or WebVTT subtitles; after four seconds of silence a new paragraph begins.

    Raises:
        InputError: If the text has no subtitles.

    Example:
        >>> read_subtitles("1\n00:00:01,000 --> 00:00:02,500\n<i>The lamp</i>\nis lit.\n")
        'The lamp\nis lit.'
    """
    spoken_lines: list[str] = []
    ended, before = 0.0, ""
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        at = next((at for at, line in enumerate(lines) if _TIMES.match(line)), None)
        if at is None:
            continue
        times = _TIMES.match(lines[at])
        assert times is not None  # noqa: S101  # it was found above
        if spoken_lines and _seconds(times[1], times[2]) - ended > _PAUSE:
            spoken_lines.append("")
        ended = _seconds(times[3], times[4])
        for line in lines[at + 1 :]:
            words = html.unescape(_TAGS.sub("", _SPEAKER.sub(r"\1: ", line))).strip()
            if words and words != before:  # rolling captions show each line twice
                spoken_lines.append(words)
                before = words
    if not spoken_lines:
        raise InputError("the file has no subtitles")
    return "\n".join(spoken_lines)


def _seconds(clock: str, fraction: str) -> float:
    seconds = 0.0
    for part in clock.split(":"):
        seconds = 60 * seconds + int(part)
    return seconds + float(f"0.{fraction}")


# TeX

_COMMENT = re.compile(r"^[ \t]*%[^\n]*\n|(?<!\\)%[^\n]*", re.MULTILINE)
_TITLE = re.compile(r"\\title(?:\[[^\]]*\])?\{((?:[^{}]|\{[^{}]*\})*)\}")
_BODY = re.compile(r"\\begin\{document\}(.*?)(?:\\end\{document\}|\Z)", re.DOTALL)
_LEVELS = ("part", "chapter", "section", "subsection", "subsubsection", "paragraph")
_HEADING = re.compile(rf"\\({'|'.join(_LEVELS)})\*?(?:\[[^\]]*\])?\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}")
_FRAME = re.compile(
    r"\\(?:begin|end)\{(?:itemize|enumerate|description|abstract|center|quote|quotation|figure|table)\*?\}"
    r"(?:\[[^\]]*\])?|\\(?:label|vspace|hspace|includegraphics|bibliographystyle)\*?(?:\[[^\]]*\])?\{[^{}]*\}"
    r"|\\(?:maketitle|tableofcontents|centering|noindent|newpage|clearpage|bigskip|medskip|smallskip)\b"
)
_STYLED = re.compile(r"\\(?:emph|text(?:bf|it|tt|sc|rm|sf)|underline|caption|footnote|mbox)\{([^{}]*)\}")
_ACCENT = re.compile(r"\\(?:([\"'`^~=.])\s*\{?\\?([A-Za-z])\}?|([cvuHkr])\{([A-Za-z])\})")
_COMBINING = dict(
    zip(
        "\"'`^~=.cvuHkr",
        "\u0308\u0301\u0300\u0302\u0303\u0304\u0307\u0327\u030c\u0306\u030b\u0328\u030a",
        strict=True,
    )
)
_LETTERS = {
    "ss": "ß",
    "ae": "æ",
    "AE": "Æ",
    "oe": "œ",
    "OE": "Œ",
    "o": "ø",
    "O": "Ø",
    "aa": "å",
    "AA": "Å",
    "l": "ł",
    "L": "Ł",
}
_LETTER = re.compile(rf"\\({'|'.join(sorted(_LETTERS, key=len, reverse=True))})(?:\{{\}}|\s+|(?![A-Za-z]))")
_MATH = re.compile(r"(\$\$?.+?\$\$?|\\\[.+?\\\]|\\\(.+?\\\))", re.DOTALL)


def read_tex(text: str) -> tuple[str, str]:
    r"""Return the text of a TeX file with Markdown headings, and the file's title; formulas stay in TeX.

    Example:
        >>> read_tex(r"\title{Velm}\begin{document}\section{Light}\emph{It} burns 3\,kg.\end{document}")
        ('# Light\n\nIt burns 3 kg.', 'Velm')
    """
    text = _COMMENT.sub("", text)
    title = _TITLE.search(text)
    body = _BODY.search(text)
    parts = _MATH.split(body[1] if body else text)
    shown = "".join(part if at % 2 else _without_commands(part) for at, part in enumerate(parts))
    shown = re.sub(r"[ \t]+\n", "\n", shown)
    return re.sub(r"\n{3,}", "\n\n", shown).strip(), _without_commands(title[1]).strip() if title else ""


def _without_commands(text: str) -> str:
    text = _ACCENT.sub(_accented, text)
    text = _LETTER.sub(lambda found: _LETTERS[found[1]], text)
    text = _HEADING.sub(_heading, text)
    text = _FRAME.sub("", text)
    while (plain := _STYLED.sub(r"\1", text)) != text:
        text = plain
    text = re.sub(r"\\item\b(?:\[([^\]]*)\])?\s*", lambda found: f"- {found[1] or ''}".rstrip() + " ", text)
    text = (
        text.replace("``", "“").replace("''", "”").replace("---", "—").replace("\\,", " ").replace("~", " ")
    )
    return re.sub(r"\\([&%$#_{} ])", r"\1", text.replace("\\\\", "\n"))


def _heading(found: re.Match[str]) -> str:
    level = max(_LEVELS.index(found[1]) - 1, 1)
    return f"\n\n{'#' * level} {found[2]}\n\n"


def _accented(found: re.Match[str]) -> str:
    accent, letter = found[1] or found[3], found[2] or found[4]
    return unicodedata.normalize("NFC", letter + _COMBINING[accent])
