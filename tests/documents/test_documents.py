"""Folders of files as documents."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from surerag.documents import (
    FileNotesWarning,
    SkippedFilesWarning,
    load_documents,
    split_front_matter,
)
from surerag.documents.converted import converter
from surerag.errors import InputError, MissingExtraError
from surerag.framing import as_data, labels
from surerag.retrieval import chunk_documents, lead_summary
from surerag.text import decode, printable
from tests.documents import old_folder


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b.TXT").write_text("# About Velm.")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# The Orun ##\n\nA river.")
    (tmp_path / "deep" / "b.md").write_text("---\ntitle: 'Ada'\n---\n# Other\n\nA painter.")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "note.txt").write_text("no")
    done: list[tuple[int, int | None]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_documents(tmp_path, progress=lambda *at: done.append(at))
    assert loaded.skipped == {} and done == [(1, 3), (2, 3), (3, 3)]
    assert [(d.id, d.title, d.text) for d in loaded.documents] == [
        ("b.TXT", "b", "# About Velm."),
        ("deep/a.md", "The Orun", "# The Orun ##\n\nA river."),
        ("deep/b.md", "Ada", "# Other\n\nA painter."),
    ]
    assert loaded.documents[1].metadata == {"path": "deep/a.md"}


TEXTS = {
    "cp1252": "name;town\nZoë Møller;Zürich\n",
    "latin-1": "Le phare de Velm a été construit en 1912. Sa gardienne y a vécu.",
    "cp1251": "Маяк на мысе Велм был построен в 1912 году.",
    "koi8-r": "Маяк на мысе Велм был построен в 1912 году.",
    "cp1250": "Příliš žluťoučký kůň úpěl ďábelské ódy. Maják ve Velmu byl postaven v roce 1912.",
    "shift_jis": "ヴェルムの灯台は一九一二年に建てられました。",
    "iso2022_jp": "ヴェルムの灯台は一九一二年に建てられました。",
    "gb18030": "维尔姆灯塔建于一九一二年。灯塔看守人是艾达。",
    **dict.fromkeys(
        (
            "utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be",
        ),
        "Übrigens: “Velm” hat 30 €.",
    ),
}  # fmt: skip
CERTAIN = {"utf-8", "utf-8-sig", "utf-16", "utf-32", "iso2022_jp"}


@pytest.mark.parametrize("encoding", TEXTS)
@pytest.mark.parametrize("kind", ["txt", "md", "html", "csv", "json"])
def test_encodings_are_told_apart_in_every_kind_of_text(tmp_path: Path, encoding: str, kind: str) -> None:
    text = TEXTS[encoding].strip()
    if kind == "html":
        pytest.importorskip("markitdown")
    frames = {"html": "<p>{}</p>", "csv": 'text,number\n"{}",1\n', "json": '{{"text": "{}"}}'}
    text = text.replace("\n", " ")
    (tmp_path / f"a.{kind}").write_bytes(frames.get(kind, "{}").format(text).encode(encoding))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loaded = load_documents(tmp_path)
    assert loaded.documents[0].text == text
    assert {warning.category for warning in caught} == (set() if encoding in CERTAIN else {FileNotesWarning})
    assert list(loaded.notes) == ([] if encoding in CERTAIN else [f"a.{kind}"])


THIRTY_YEARS = {
    "Die Zündkerze muß geprüft werden. Öl nachfüllen, Kühlwasser wechseln; größte Sorgfalt ist nötig.": (
        "cp1252", "cp850", "cp437", "mac_roman",
    ),
    "Le café est fermé à Noël. Où est l'élève ? Ça coûte très cher, garçon.": (
        "cp1252", "cp850", "cp437", "mac_roman",
    ),
    "El niño comió en la cocina. ¿Dónde está el baño? ¡Mañana será!": ("cp1252", "cp850", "mac_roman"),
    "A manutenção da máquina é obrigatória. Não há solução fácil, João.": ("cp1252", "cp850", "mac_roman"),
    "Søren spiste blåbærgrød på Ærø. Hvor er færgen?": ("cp1252", "cp850", "cp865", "mac_roman"),
    "Räksmörgås på Åland är världens bästa.": ("cp1252", "cp850", "cp437", "mac_roman"),
    "Það er gott veður í Reykjavík. Þórður fór heim.": ("cp1252", "cp850"),
    "Perché la città è così bella? È già mezzanotte, andrò a casa.": ("cp1252", "cp850", "mac_roman"),
    "Zażółć gęślą jaźń. Łódź jest piękna, a Kraków stary.": ("cp1250", "iso8859_2", "cp852"),
    "Příliš žluťoučký kůň úpěl ďábelské ódy.": ("cp1250", "iso8859_2", "cp852"),
    "Árvíztűrő tükörfúrógép. Őszi erdő Győr mellett.": ("cp1250", "iso8859_2", "cp852"),
    "Kış aylarında rüzgâr öyle sert eserdi ki kapılar kendiliğinden açılır, pencereler gıcırdardı.": (
        "cp1254", "iso8859_9", "cp857",
    ),
    "Mühendisler temelin sağlam olduğunu, yalnızca dış duvarların yenilenmesi gerektiğini söylüyorlar. Köyün "
    "çocukları bekçiye sık sık ekmek ve peynir getirirlerdi; o da onlara eski gemileri anlatırdı. "
    "İstanbul'dan gelen bir gazeteci uzun bir söyleşi yaptı. Sözleşmenin yürürlüğe girdiği tarihten itibaren "
    "otuz gün içinde ödeme yapılması gerekmektedir.": ("cp1254", "iso8859_9", "cp857"),
    "A mérnökök szerint az alap biztos, csak a külső falakat kell megújítani. Az őr felment a lépcsőn, és a "
    "gyűjtőből olajat töltött a lámpába.": ("cp1250", "iso8859_2", "cp852"),
    "Iarna vântul bătea atât de tare, încât uşile se deschideau singure. Copiii îi aduceau deseori pâine şi "
    "brânză, iar el le spunea poveşti despre corăbii vechi.": ("cp1250", "iso8859_2", "cp852"),
    "Djeca iz sela često su mu donosila kruh i sir, a on im je pričao priče o starim brodovima. Šteta što "
    "nitko ne zna za đaka: općina će čuvati žarulje.": ("cp1250", "cp852"),
    "zeszłym roku pieniądze na naprawę, lecz prace jeszcze się nie zaczęły. Inżynierowie twierdzą": (
        "cp1250", "iso8859_2", "cp852",
    ),
    "id;name\n1;Søren Kjær\n2;José Núñez\n3;François Lefèvre\n4;Zoë Groß\n": ("cp1252", "mac_roman", "cp850"),
    "Капитан Орлов родился в Москве в 1815 году. Он был художником.": ("cp1251", "koi8_r", "cp866"),
    "Η Αθήνα είναι η πρωτεύουσα της Ελλάδας.": ("cp1253", "iso8859_7"),
    "ירושלים היא עיר הבירה של ישראל. היא נולדה בשנת 1815 ולמדה ציור אצל אביה.": ("cp1255",),
    "日本の首都は東京です。アダはヴェルムで生まれました。": ("cp932", "euc_jp"),
    "한국의 수도는 서울입니다. 에이다는 벨름에서 태어났습니다.": ("cp949",),
    "She said “no” – and left… it cost €5.": ("cp1252", "mac_roman"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "encoding"), [(text, encoding) for text, all_ in THIRTY_YEARS.items() for encoding in all_]
)
def test_texts_of_thirty_years_are_told_apart(text: str, encoding: str) -> None:
    """What DOS, Windows, Unix and the Macintosh wrote, in several languages."""
    assert decode(text.encode(encoding)).text == text


@pytest.mark.parametrize(
    "text", ["Zoë", "name,town\nZoë Møller,Velm", "id;name\n1;Ärger\n", "“Ada” – 30 €", "naïve"]
)
def test_short_western_texts_are_read_as_windows_wrote_them(text: str) -> None:
    assert decode(text.encode("cp1252")).text == text


def test_a_page_says_its_encoding(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    (tmp_path / "a.html").write_bytes('<meta charset="iso8859-2"><p>Ř</p>'.encode("iso8859-2"))
    (tmp_path / "b.html").write_bytes('<meta charset="latin-1"><p>Ř “saved anew”</p>'.encode())
    assert [document.text for document in load_documents(tmp_path).documents] == ["Ř", "Ř “saved anew”"]
    for name in ("rss", "note"):
        body = f"<{name}><channel><title>Велм</title></channel></{name}>"
        xml = f'<?xml version="1.0" encoding="windows-1251"?>{body}'
        (tmp_path / "c.xml").write_bytes(xml.encode("cp1251"))
        assert "Велм" in load_documents(tmp_path).documents[2].text


def test_a_damaged_utf_8_stays_utf_8() -> None:
    text, encoding, guessed = decode("é è à ü ö ä ß".encode() + b"\xff")
    assert (text, encoding, guessed) == ("é è à ü ö ä ß\ufffd", "utf-8", True)


def test_a_long_text_is_judged_by_what_is_not_ascii() -> None:
    text = "plain line\n" * 9000 + "Маяк на мысе Велм был построен в 1912 году.\n" + "plain line\n" * 9000
    assert decode(text.encode("cp1251")).text == text
    line = "[" + "维尔姆灯塔建于一九一二年。" * 6000 + "]"  # no line end to cut at
    assert decode(line.encode("gb18030")).text == line


@pytest.mark.parametrize(
    ("front", "metadata"),
    [
        ("title: Ada\nyear: 1912\ndraft: false\nshare: 0.5", {"year": 1912, "draft": False, "share": 0.5}),
        (
            "title: Ada\ncountry: NO\ndate: 1912-05-01\nid: 007",
            {"country": "NO", "date": "1912-05-01", "id": "007"},
        ),
        ("title: Ada\ntags: [a, b]\nauthor:\n  name: Jon\nnothing:", {"tags": "a, b"}),
        ("title: Ada\nsubtitle: Part 1: Velm", {"subtitle": "Part 1: Velm"}),
        ("title: Ada\npath: elsewhere", {}),
        ("title: Ada\nzip: \"12345\"\nversion: '1.10'", {"zip": "12345", "version": "1.10"}),
        ("title: Ada\ncommit: 7e12345\nsign: +5", {"commit": "7e12345", "sign": 5}),
    ],
)
def test_front_matter_becomes_metadata(tmp_path: Path, front: str, metadata: dict[str, Any]) -> None:
    (tmp_path / "a.md").write_text(f"---\n{front}\n---\nA painter.", encoding="utf-8")
    [document] = load_documents(tmp_path).documents
    assert (document.title, document.text, document.metadata) == (
        "Ada",
        "A painter.",
        {**metadata, "path": "a.md"},
    )


def test_an_rtf_file_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("{\\rtf1\\ansi Hello \\b World\\b0 .}")
    (tmp_path / "b.txt").write_text("Velm")
    assert "an RTF file" in load_documents(tmp_path).skipped["a.txt"]


@pytest.mark.parametrize(
    "text",
    [
        "---\nNever open valve 7 under pressure.\n\n---\n",
        "---\n- one\n- two\n---\n",
        "---\n[[[[\n---\nText.",
        "---\ntitle: no end",
        "---\n" + "a: b\n" * 9000 + "---\nText.",
        "----\ntitle: a\n---\n",
    ],
)
def test_a_text_between_rules_is_no_front_matter(text: str) -> None:
    assert split_front_matter(text) == ({}, text)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a.csv", "name,town\nAda,Velm\nJon,\n", "name: Ada\ntown: Velm\n\nname: Jon"),
        ("a.csv", 'sep=;\nname;note\nAda;"two\nlines; one cell"\n', "name: Ada\nnote: two lines; one cell"),
        ("a.csv", "name|price\nAda|1,5\nJon|2,5\n", "name: Ada\nprice: 1,5\n\nname: Jon\nprice: 2,5"),
        ("a.csv", "Report;;\n;;\n;a;a\n1;2;3\n", "column 1: Report\n\ncolumn 1: 1\na: 2\na (column 3): 3"),
        ("a.csv", "name,inch\nAda,5\"\n\"Jon,6\n", 'name: Ada\ninch: 5"\n\nname: "Jon\ninch: 6'),
        ("a.csv", "Ada,Velm\n", "column 1: Ada\ncolumn 2: Velm"),
        ("a.json", '{"ships": [{"a": 1}, {"a": {"b": [true, {"c": 2}]}}], "of": "Velm"}',
         "of: Velm\n\na: 1\n\na.b.1: True\na.b.2.c: 2"),
        ("a.json", '{"a": 1}\n{"a": 2}\n', "a: 1\n\na: 2"),
        ("a.json", '["one", 2, null]', "one\n\n2"),
    ],
)  # fmt: skip
def test_each_row_is_a_paragraph_with_its_header(tmp_path: Path, name: str, text: str, expected: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8", newline="")
    [document] = load_documents(tmp_path).documents
    assert document.rows
    assert document.text == expected


def test_rows_with_a_column_of_texts_are_documents(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("title,text,year\nVelm,A town.,1200\nOrun,,1300\n")
    assert [(d.id, d.title, d.text, d.metadata["year"]) for d in load_documents(tmp_path).documents[:1]] == [
        ("a.csv:2", "Velm", "A town.", "1200")
    ]
    assert load_documents(tmp_path).documents[1].text == "title: Orun\nyear: 1300"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("<div class='navbar'><a>Products</a> <a>Support</a></div><p>Close valve 7.</p>", "Close valve 7."),
        ("<header>Coast</header><main><p>Text of it, long.</p></main><p>Cookies!</p>", "Text of it, long."),
        ("<article><header><p>By Jon.</p></header><p>Text.</p></article>", "By Jon.\n\nText."),
        ("<div class='menu'><p>Soup, bread and wine.</p></div>", "Soup, bread and wine."),
        ("<nav><a href='a'>Only links</a></nav>", "[Only links](a)"),
    ],
)
def test_a_page_is_read_without_its_navigation(tmp_path: Path, body: str, expected: str) -> None:
    pytest.importorskip("markitdown")
    (tmp_path / "a.html").write_text(f"<html><title>T</title><body>{body}</body></html>")
    assert load_documents(tmp_path).documents[0].text.strip() == expected


def test_pages_of_a_pdf_without_text_are_named(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    text = [(72, 720, "Text.")]
    (tmp_path / "a.pdf").write_bytes(old_folder.pdf_of(text, [], text, []))
    with pytest.warns(FileNotesWarning, match=r"a.pdf \(no text on page 2, 4"):
        loaded = load_documents(tmp_path)
    assert loaded.documents[0].metadata["pages_without_text"] == "2, 4"
    (tmp_path / "a.pdf").write_bytes(old_folder.pdf_of([], []))
    with pytest.raises(InputError, match="no text on page 1, 2"):
        load_documents(tmp_path)


def test_a_folder_of_thirty_years(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    with pytest.warns((SkippedFilesWarning, FileNotesWarning)):
        loaded = load_documents(old_folder.make_folder(tmp_path))
    texts = {document.id: document.text for document in loaded.documents}
    assert texts.keys() == old_folder.READ.keys()
    titles = {document.id: document.title for document in loaded.documents}
    assert [titles[name] for name in old_folder.TITLES] == [*old_folder.TITLES.values()]
    assert [name for name, text in old_folder.READ.items() if text not in texts[name]] == []
    assert loaded.skipped.keys() == old_folder.SKIPPED.keys()
    assert [name for name, why in old_folder.SKIPPED.items() if why not in loaded.skipped[name]] == []
    assert {name: note.rpartition(" ")[2] for name, note in loaded.notes.items() if "guess" in note} == (
        old_folder.GUESSED
    )


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (
            "a.eml",
            b"From: \xff\xfe <@\nContent-Type: multipart/mixed; boundary=x\n\n--x\nContent-Type: text/html",
        ),
        ("a.eml", b"Content-Type: text/plain; charset=no-such\nContent-Transfer-Encoding: base64\n\n!!!"),
        ("a.mbox", b"From \nFrom \nFrom x"),
        ("a.ipynb", b'{"nbformat": 4, "metadata": null, "cells": ["x", {"outputs": 3}]}'),
        ("a.ipynb", b'{"nbformat": 4'),
        ("a.srt", b"00:00:01,000 --> 00:00:02,000"),
        ("a.tex", rb"\begin{document}\section{\emph{"),
    ],
)
def test_damaged_files_of_any_kind_stop_nothing(tmp_path: Path, name: str, data: bytes) -> None:
    pytest.importorskip("markitdown")
    (tmp_path / name).write_bytes(data)
    (tmp_path / "good.txt").write_text("About Velm.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loaded = load_documents(tmp_path)
    read = {document.metadata["path"] for document in loaded.documents} | set(loaded.skipped)
    assert read == {name, "good.txt"}


@pytest.mark.parametrize(
    ("gaps", "rows"),
    [((0, 30, 75, 115), 8), ((0, 140, 280, 400), 3), ((0, 25, 74, 114), 30)],
)
def test_tables_of_a_pdf_without_lines_keep_their_rows(
    tmp_path: Path, gaps: Sequence[int], rows: int
) -> None:
    pytest.importorskip("markitdown")
    prose = "The lighthouse of Velm was built in 1912 by the engineer Ada Voss, who kept it for thirty years."
    table = [[str(at), f"Town{at}", str(1000 + 17 * at), f"M{at}"] for at in range(1, rows + 1)]
    lines = [(72, 760 - 14 * at, prose) for at in range(8)]
    cells = [
        (72 + x, 620 - 14 * at, cell)
        for at, row in enumerate(table)
        for x, cell in zip(gaps, row, strict=True)
    ]
    (tmp_path / "a.pdf").write_bytes(old_folder.pdf_of(lines + cells, lines))
    [document] = load_documents(tmp_path).documents
    read = [[cell.strip() for cell in line.strip("| ").split("|")] for line in document.text.split("\n")]
    assert [row for row in table if row not in read] == []
    assert document.text.count(prose) == 16


LONG = 100_000
SHAPES = {
    "spaces in a heading": "# a" + " " * LONG + "b",
    "marks of a heading": "# a" + " #" * LONG,
    "spaces in a title": "---\ntitle: a" + " " * 18_000 + "b\n---\na",
    "rules of a table": "|" + "-" * LONG + "x",
    "bars": "| - " * (LONG // 4) + "x",
    "links": "[a](" * (LONG // 4),
    "pictures": "![](a)" * (LONG // 6) + "x",
    "brackets": "[" * LONG,
    "stars": "* " * (LONG // 2) + "x",
    "tags": "<" * LONG,
    "equals": "=" * LONG + "x",
    "colons": "a:" * (LONG // 2),
    "fences": "```\n" * (LONG // 4),
    "lines": "a\n" * (LONG // 2),
    "carriage returns": "\r" * LONG + "a",
    "quotes": '"' * LONG + "a",
    "semicolons": ";" * LONG + "a",
    "escapes": "\x1b[" * (LONG // 2),
    "titles of a screen": "\x1b]" * (LONG // 2),
    "braces": "{" * LONG,
    "signs": "*_" * (LONG // 2) + "Question:",
    "numbers": "[1" * (LONG // 2),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("shape", SHAPES)
def test_no_shape_of_a_text_takes_long(tmp_path: Path, shape: str) -> None:
    text = SHAPES[shape]
    for kind in ("md", "rst", "csv"):
        (tmp_path / f"a.{kind}").write_text(text)
    documents = load_documents(tmp_path).documents
    assert len(documents) == 3
    assert lead_summary(text) is not None
    assert chunk_documents(documents)
    assert printable(text) is not None
    assert as_data("Question: {text} A:", {"text": text})["text"].endswith(text[-1])
    assert labels(text) is not None


def test_a_missing_converter_names_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markitdown", None)
    converter.cache_clear()
    (tmp_path / "a.html").write_text("<p>Velm</p>")
    with pytest.raises(
        MissingExtraError, match=r"a.html cannot be read: .*'markitdown'.*surerag\[documents\]"
    ):
        load_documents(tmp_path)


def test_a_name_that_is_no_utf_8_is_replaced(tmp_path: Path) -> None:
    for name, text in (
        (b"Z\xfcrich.txt", b"On the Limmat."),
        (b"B\xfchl.csv", b"text,place\nA town.,Baden\n"),
    ):
        Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_bytes(text)
    rows, text = load_documents(tmp_path).documents
    assert (text.id, text.title, text.text) == ("Z\\xfcrich.txt", "Z\\xfcrich", "On the Limmat.")
    assert rows.id == "B\\xfchl.csv:2"
    json.dumps([asdict(rows), asdict(text)], ensure_ascii=False).encode()  # no lone surrogate in it


def test_what_cannot_be_read_is_skipped_and_listed(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "good.txt").write_text("About Velm.")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "empty.md").write_text(" \n")
    (folder / "binary.txt").write_bytes(b"a\0b")
    (folder / "large.txt").write_text("x" * 50_000)
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.7 nothing")
    (folder / "cut.docx").write_bytes(b"PK\x03\x04an office file without its end")
    (folder / "song.mp3").write_bytes(b"x")
    with pytest.warns(SkippedFilesWarning, match="skipped 8 files: binary.txt"):
        loaded = load_documents(folder, max_bytes=40_000)
    assert [document.id for document in loaded.documents] == ["good.txt"]
    assert set(loaded.skipped) == {
        "link.txt", "loop.txt", "empty.md", "binary.txt", "large.txt", "damaged.pdf", "cut.docx",
        "song.mp3",
    }  # fmt: skip
    assert loaded.skipped["large.txt"] == "more than 40,000 bytes"


LOCKED = b"""%PDF-1.4
1 0 obj << /Type /Catalog /Pages 2 0 R >> endobj
2 0 obj << /Type /Pages /Kids [] /Count 0 >> endobj
3 0 obj << /Filter /Standard /V 1 /R 2 /O <11> /U <22> /P -44 >> endobj
trailer << /Size 4 /Root 1 0 R /Encrypt 3 0 R /ID [<33> <33>] >>
%%EOF"""


def test_a_file_that_cannot_be_converted_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pdf = pytest.importorskip("markitdown.converters._pdf_converter")
    (tmp_path / "good.txt").write_text("About Velm.")
    (tmp_path / "cut.docx").write_bytes(b"PK\x03\x04an office file without its end")
    (tmp_path / "locked.pdf").write_bytes(LOCKED)
    with pytest.warns(SkippedFilesWarning):
        skipped = load_documents(tmp_path).skipped
    assert skipped == {
        "cut.docx": "damaged: File is not a zip file",
        "locked.pdf": "it needs a password",
    }
    error = ModuleNotFoundError("no pdfminer", name="pdfminer")
    monkeypatch.setattr(pdf, "_dependency_exc_info", (type(error), error, None))
    with pytest.raises(MissingExtraError, match=r"locked\.pdf cannot be read: the package 'pdfminer' is not"):
        load_documents(tmp_path)


def test_a_page_that_closes_no_paragraph_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "book.html").write_text("".join(f"<p>Paragraph {n} of it.\n" for n in range(1500)))
    [document] = load_documents(tmp_path).documents
    assert document.text.split("\n\n") == [f"Paragraph {n} of it." for n in range(1500)]


def test_no_folder_and_nothing_to_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder not found"):
        load_documents(tmp_path / "nowhere")
    for unset in ("", " "):  # as a variable that is not set has it, which means no folder
        with pytest.raises(InputError, match="folder not found"):
            load_documents(unset)
    (tmp_path / "song.mp3").write_bytes(b"x")
    with pytest.raises(InputError, match=r"song.mp3 \(files that end in .mp3 are not supported\)"):
        load_documents(tmp_path)


def test_folders_that_are_not_entered_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mine/closed", "other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "b.txt").write_text("Bo was born in Orun.")
    (tmp_path / "mine/a.txt").write_text("Ada was born in Velm.")
    (tmp_path / "mine/link.d").symlink_to(tmp_path / "other")
    scandir = os.scandir

    def refuse(folder: str) -> Any:
        if str(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.warns(SkippedFilesWarning, match="skipped 2 files"):
        loaded = load_documents(tmp_path / "mine")
    assert [document.id for document in loaded.documents] == ["a.txt"]
    assert loaded.skipped == {"link.d": "a link to a folder", "closed": "a folder that cannot be read"}
