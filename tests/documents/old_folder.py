"""A folder as people have it: files of many kinds, encodings and decades; and what becomes of each."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Sequence
from email.message import EmailMessage
from pathlib import Path
from typing import Any

RUSSIAN = "Маяк на мысе Велм был построен в 1912 году. Смотрителем его была Ада Восс."
JAPANESE = "ヴェルムの灯台は一九一二年に建てられました。灯台守はエイダ・フォスでした。"
CHINESE = "维尔姆灯塔建于一九一二年。灯塔看守人是艾达·沃斯，她在那里住了三十年。"
GERMAN = "Zoë Møller wohnt in Zürich. Die Straße heißt Lindenweg, und François kam aus Besançon."

READ: dict[str, str] = {
    "1991/visit.txt": GERMAN + "\n",
    "1996/harbour.htm": "The harbour of Zürich was dredged in 1987 to a depth of nine metres.",
    "1998/crew.csv": "name: Zoë Møller\nship: Castor\nrank: captain\n\nname: José Peña\nship: Pollux\nrank:",
    "1999/lighthouse.txt": RUSSIAN,
    "2000/mail.txt": JAPANESE,
    "2001/lighthouse.txt": JAPANESE,
    "2002/lighthouse.txt": CHINESE,
    "2003/notes.txt": GERMAN,
    "2003/export.csv": "name: Zoë Møller\ntown: Velm\n\nname: Ada Voss\ntown: Orun",
    "2004/wide.txt": GERMAN,
    "2006/report.pdf": "The dredger Halcyon worked in Velm from March to June.",
    "2007/manual.docx": "Grease the winch of the Castor twice a year.",
    "2008/stock.xlsx": "part: Valve 7\nnumber: 12\nbought: 2008-05-01",
    "2010/site.html": "# The light of Velm\n\nThe lamp of the lighthouse was electrified in 1951.",
    "2011/feed.xml": "Velm has a new ferry.",
    "2012/post.md": "# The ferry\n\nThe ferry Castor sails on Mondays.\n",
    "2012/valve.md": "---\nNever open valve 7 under pressure.\n\n---\n\nClose valve 8 first.\n",
    "2014/guide.rst": "Guide to the museum\n===================\n\nThe museum of Orun keeps the old lamp.\n",
    "2016/articles.jsonl:1": "The Orun rises\u2028in the hills of Sarn.",
    "2016/articles.jsonl:2": "Sarn is a village of forty houses.",
    "2018/settings.json": "harbour.depth: 9\nharbour.pilots: Lund, Brandt",
    "2019/ships.json": "name: Castor\ncaptain: Mira Lund\n\nname: Pollux\ncaptain: Jon Brandt",
    "2020/prices.tsv": "item: ticket\nprice: 4,50\n\nitem: dog\nprice: 2,00",
    "2005/towns.pdf": "| 7 | Town7 | 1119 | M7 |",
    "2005/parts.pdf": "| Valve 7 | Closes the pipe of the upper tank in winter | 12.50 |",
    "2005/columns.pdf": "who kept it for thirty years until\nit was electrified in 1951. Since\n",
    "2009/ferry.eml": "+0000\nSubject: Größe der Fähre\n\nThe ferry is 80 m long.",
    "2009/page.eml": "Subject: Lamp\n\nThe **lamp** of Zürich is lit.",
    "2009/all.mbox:1": "From: Ada <ada@velm.example>\nSubject: Tide\n\nThe tide is low at six.",
    "2009/all.mbox:2": "From: Bo <bo@velm.example>\nSubject: Fog\n\nThe fog horn sounds twice a minute.",
    "2013/film.srt": "The lamp of Velm\nwas never dark.\n\nNot even in 1944.",
    "2013/talk.vtt": "Ada: We kept the oil & the wicks dry.",
    "2015/paper.tex": "# Light of Velm\n\nThe lamp burns 3 kg of oil a night—in Zürich less.\n\n$x_1 \\% y$",
    "2015/depth.ipynb": "# Depth\n\n```python\nprint(9)\n```\n\n```text\n9\n```",
    "2017/tide.py": "# At noon\ndef tide(hour):\n    return 9 - hour\n",
    "2017/pump.log": "2017-03-01 08:00:02 WARN pump 3: pressure 9 bar\n",
    "2017/README": "The pumps of Velm are tested on Fridays.\n",
    "2017/letter of 3.5.2019": "The gate of the lock was painted green.",
    "2017/page": "# The lock\n\nThe lock of Orun is 12 m wide.",
    "2017/print": "The crane of Velm lifts 40 tonnes.",
    "2017/wiki": "[[Velm]] lies on the {{river}} Orun.",
    "2017/list": "name: Castor\nseats: 40",
    "2017/words": "The winch of the Pollux was replaced in spring.",
}
"""The text of each document, or a part of it, by its id."""

TITLES = {
    "1991/visit.txt": "visit",
    "2010/site.html": "Light",
    "2012/post.md": "The ferry",
    "2014/guide.rst": "Guide to the museum",
    "2009/ferry.eml": "Größe der Fähre",
    "2009/all.mbox:2": "Fog",
    "2015/paper.tex": "Notes on the light",
    "2015/depth.ipynb": "Depth",
    "2017/tide.py": "tide",
    "2017/README": "README",
    "2016/articles.jsonl:2": "Sarn",
}
"""Titles of some documents."""

GUESSED = {
    "1991/visit.txt": "mac_roman",
    "1998/crew.csv": "cp1252",
    "1999/lighthouse.txt": "cp1251",
    "2001/lighthouse.txt": "cp932",
    "2002/lighthouse.txt": "gb18030",
    "2003/export.csv": "utf_16_le",
}
"""Encodings that only a guess can tell."""

SKIPPED = {
    "2021/empty.txt": "empty",
    "2021/core": "binary data",
    "2021/backup": "a ZIP archive that is not an Office file or EPUB book",
    "2021/silent.srt": "no subtitles",
    "2021/old.ipynb": "not a notebook",
    "2021/mail.msg": "files that end in .msg are not supported",
    "2021/noise.txt": "binary data",
    "2022/archive.csv": "ZIP archive",
    "2022/letter.docx": "before 2007, or one with a password",
    "2022/cut.pdf": "damaged",
    "2023/broken.jsonl": "line 2, column 10: not JSON",
    "2023/song.mp3": "files that end in .mp3 are not supported",
}
"""Reasons of what is skipped."""

UNSEEN = ("2022/~$manual.docx", "2022/.DS_Store", "2022/Thumbs.db", "2022/notes.txt~")
"""What is no content, and not mentioned."""


def make_folder(root: Path) -> Path:
    """Write the files, and return the folder."""
    page = "<html><head><title>{}</title>{}</head><body>{}</body></html>"
    navigation = (
        "<nav><ul><li><a href='/'>Home</a></li><li><a href='/a'>All ships of the coast</a></li></ul></nav>"
    )
    contents: dict[str, bytes] = {
        "1991/visit.txt": GERMAN.encode("mac_roman") + b"\r",
        "1996/harbour.htm": page.format(
            "Harbour",
            '<meta http-equiv="Content-Type" content="text/html; charset=iso-8859-1">',
            "<table><tr><td><a href='i.htm'>Home</a></td><td><font>Harbour</font>"
            "<p>The harbour of Zürich was dredged in 1987 to a depth of nine metres.</td></tr></table>",
        ).encode("latin-1"),
        "1998/crew.csv": "name;ship;rank\r\nZoë Møller;Castor;captain\r\nJosé Peña;Pollux;cook\r\n".encode(
            "cp1252"
        ),
        "1999/lighthouse.txt": RUSSIAN.encode("cp1251"),
        "2000/mail.txt": JAPANESE.encode("iso2022_jp"),
        "2001/lighthouse.txt": JAPANESE.encode("shift_jis"),
        "2002/lighthouse.txt": CHINESE.encode("gb18030"),
        "2003/notes.txt": GERMAN.encode("utf-16"),
        "2003/export.csv": "name,town\nZoë Møller,Velm\nAda Voss,Orun\n".encode("utf-16-le"),
        "2004/wide.txt": GERMAN.encode("utf-32"),
        "2006/report.pdf": pdf_of(
            [(72, 720, "The dredger Halcyon worked in Velm from March to June.")],
            [],
            [(72, 720, "It left on 2 July.")],
        ),
        "2007/manual.docx": _docx("Grease the winch of the Castor twice a year."),
        "2008/stock.xlsx": _xlsx(
            [["part", "number", "bought"], ["Valve 7", 12, "2008-05-01"], ["Rope", 3, None]]
        ),
        "2010/site.html": page.format(
            "Light",
            "<script>track()</script>",
            f"<header>Coast {navigation}</header><article><h1>The light of Velm</h1><p>The lamp of the light"
            "house was electrified in 1951.</p></article><aside>Subscribe</aside><footer>© Coast</footer>",
        ).encode(),
        "2011/feed.xml": b"<?xml version='1.0'?><rss version='2.0'><channel><title>News</title><item>"
        b"<title>Ferry</title><description>Velm has a new ferry.</description></item></channel></rss>",
        "2012/post.md": b"---\ntitle: The ferry\nyear: 2012\ncountry: NO\ntags: [ships, news]\n---\n"
        b"# The ferry\n\nThe ferry Castor sails on Mondays.\n",
        "2012/valve.md": READ["2012/valve.md"].encode(),
        "2014/guide.rst": READ["2014/guide.rst"].encode(),
        "2016/articles.jsonl": "\n".join(
            json.dumps({"title": title, "text": READ[f"2016/articles.jsonl:{line}"]}, ensure_ascii=False)
            for line, title in ((1, "Orun"), (2, "Sarn"))
        ).encode(),
        "2018/settings.json": b'{"harbour": {"depth": 9, "pilots": ["Lund", "Brandt"]}}',
        "2019/ships.json": b'[{"name": "Castor", "captain": "Mira Lund"}, '
        b'{"name": "Pollux", "captain": "Jon Brandt"}]',
        "2020/prices.tsv": b"\xef\xbb\xbfitem\tprice\nticket\t4,50\ndog\t2,00\n",
        **_further_files(page),
        "2021/empty.txt": b" \n",
        "2021/noise.txt": bytes(range(256)) * 9,
        "2022/archive.csv": _zip({"a.csv": "name,town"}),
        "2022/letter.docx": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(504),
        "2022/cut.pdf": b"%PDF-1.7 nothing",
        "2023/broken.jsonl": b'{"name": "Castor"}\n{"name": "Pol',
        "2023/song.mp3": b"ID3",
        **dict.fromkeys(UNSEEN, b"\x00\x05Ada"),
    }
    for name, data in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    return root


def _further_files(page: str) -> dict[str, bytes]:
    left = (
        "The lighthouse of Velm was built", "in 1912 by the engineer Ada Voss,",
        "who kept it for thirty years until", "it was electrified in 1951. Since",
        "then the tower has been empty.",
    )  # fmt: skip
    right = (
        "The harbour of Orun is older. It", "was dredged in 1987 to a depth of",
        "nine metres, so that the ferry can", "enter at low tide. The ferry sails",
        "on Mondays and on Fridays.",
    )  # fmt: skip
    towns = [(str(at), f"Town{at}", str(1000 + 17 * at), f"M{at}") for at in range(1, 9)]
    parts = [
        (72, 700, "Part"), (200, 700, "Use"), (400, 700, "Price"), (72, 680, "Valve 7"), (400, 680, "12.50"),
        (200, 680, "Closes the pipe of the"), (200, 666, "upper tank in winter"), (72, 646, "Rope"),
        (200, 646, "Holds the boat"), (400, 646, "3.00"), (72, 628, "Lamp"),
        (200, 628, "Lights the stairs of"), (200, 614, "the tower at night"), (400, 628, "7.25"),
    ]  # fmt: skip
    cells = [
        {"cell_type": "markdown", "source": ["# Depth\n"]},
        {"cell_type": "code", "source": "print(9)", "outputs": [{"output_type": "stream", "text": ["9\n"]}]},
    ]
    letter = EmailMessage()
    letter["From"], letter["Date"] = "Ada Voss <ada@velm.example>", "Mon, 04 May 2009 10:00:00 +0000"
    letter["Subject"] = "Größe der Fähre"
    letter.set_content("The ferry is 80 m long.")
    letter.add_alternative("<p>The ferry is <b>80 m</b> long.</p>", subtype="html")
    letter.add_attachment(b"%PDF-", maintype="application", subtype="pdf", filename="plan.pdf")
    return {
        "2005/towns.pdf": pdf_of(
            [(72, 740, "Towns of the coast")]
            + [
                (72 + (0, 30, 75, 115)[at], 700 - 14 * row, cell)
                for row, cells in enumerate(towns)
                for at, cell in enumerate(cells)
            ]
        ),
        "2005/parts.pdf": pdf_of(parts),
        "2005/columns.pdf": pdf_of(
            [
                (x, 700 - 14 * at, line)
                for x, lines in ((72, left), (320, right))
                for at, line in enumerate(lines)
            ]
        ),
        "2009/ferry.eml": bytes(letter),
        "2009/page.eml": b"Subject: Lamp\nContent-Type: text/html; charset=iso-8859-1\n"
        b"Content-Transfer-Encoding: 8bit\n\n<p>The <b>lamp</b> of Z\xfcrich is lit.</p>",
        "2009/all.mbox": b"From ada@velm.example Mon May  4 10:00:00 2009\nFrom: Ada <ada@velm.example>\n"
        b"Subject: Tide\n\nThe tide is low at six.\n\nFrom bo@velm.example Mon May  4 11:00:00 2009\n"
        b"From: Bo <bo@velm.example>\nSubject: Fog\n\nThe fog horn sounds twice a minute.\n",
        "2013/film.srt": b"1\r\n00:00:01,000 --> 00:00:03,000\r\n<i>The lamp of Velm</i>\r\n"
        b"was never dark.\r\n\r\n"
        b"2\r\n00:00:09,500 --> 00:00:12,000\r\n{\\an8}Not even in 1944.\r\n",
        "2013/talk.vtt": b"WEBVTT\n\nNOTE by nobody\n\n00:01.000 --> 00:04.000 align:start\n"
        b"<v Ada>We kept the oil &amp; the wicks dry.</v>\n",
        "2015/paper.tex": (
            r"\documentclass{article} % of 2015"
            "\n"
            r"\title{Notes on the \emph{light}}"
            "\n"
            r"\begin{document}\maketitle"
            "\n"
            r"\section{Light of \textbf{Velm}}\label{light}"
            "\n% no\n"
            r"The lamp burns 3\,kg of oil a night---in Z\"urich less.\cite{voss}"
            "\n\n"
            r"$x_1 \% y$"
            "\n"
            r"\end{document} after"
        )
        .replace(r"\cite{voss}", "")
        .encode(),
        "2015/depth.ipynb": json.dumps(
            {"nbformat": 4, "metadata": {"language_info": {"name": "python"}}, "cells": cells}
        ).encode(),
        "2017/tide.py": READ["2017/tide.py"].encode(),
        "2017/pump.log": READ["2017/pump.log"].encode() * 3,
        "2017/README": READ["2017/README"].encode(),
        "2017/letter of 3.5.2019": READ["2017/letter of 3.5.2019"].encode(),
        "2017/page": page.format("Lock", "", "<h1>The lock</h1><p>The lock of Orun is 12 m wide.").encode(),
        "2017/print": pdf_of([(72, 720, READ["2017/print"])]),
        "2017/wiki": READ["2017/wiki"].encode(),
        "2017/list": b'[{"name": "Castor", "seats": 40}]',
        "2017/words": _docx(READ["2017/words"]),
        "2021/core": bytes(range(256)) * 9,
        "2021/backup": _zip({"a.txt": "Ada"}),
        "2021/silent.srt": b"1\n\n2\n",
        "2021/old.ipynb": b"{}",
        "2021/mail.msg": b"\xd0\xcf\x11\xe0",
    }


def _zip(parts: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def _docx(text: str) -> bytes:
    office, word = "http://schemas.openxmlformats.org", "application/vnd.openxmlformats-officedocument"
    types = f"{office}/package/2006/content-types"
    relations, document = (
        f"{office}/package/2006/relationships",
        f"{office}/officeDocument/2006/relationships",
    )
    main = f"{office}/wordprocessingml/2006/main"
    part = f'PartName="/word/document.xml" ContentType="{word}.wordprocessingml.document.main+xml"'
    return _zip(
        {
            "[Content_Types].xml": f'<Types xmlns="{types}"><Default Extension="rels" ContentType='
            f'"application/vnd.openxmlformats-package.relationships+xml"/><Override {part}/></Types>',
            "_rels/.rels": f'<Relationships xmlns="{relations}"><Relationship Id="r1" '
            f'Type="{document}/officeDocument" Target="word/document.xml"/></Relationships>',
            "word/document.xml": f'<w:document xmlns:w="{main}"><w:body><w:p><w:r><w:t>{text}</w:t></w:r>'
            "</w:p></w:body></w:document>",
        }
    )


def _xlsx(rows: list[list[Any]]) -> bytes:
    from openpyxl import Workbook

    book, buffer = Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(row)
    book.save(buffer)
    return buffer.getvalue()


def pdf_of(*pages: Sequence[tuple[int, int, str]]) -> bytes:
    """Write a PDF with texts at places (x, y); a page without any has a drawn line, as a scan would."""
    first = 4
    kids = " ".join(f"{first + 2 * at} 0 R" for at in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, texts in enumerate(pages):
        lines = [f"BT /F1 10 Tf {x} {y} Td ({text}) Tj ET" for x, y, text in texts]
        stream = "\n".join(lines) or "72 720 m 200 720 l S"
        place, font = f"/Contents {first + 2 * at + 1} 0 R", "/Resources << /Font << /F1 3 0 R >> >>"
        objects += [
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] {place} {font} >>",
            f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream",
        ]
    data, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(data))
        data += f"{number} 0 obj\n{body}\nendobj\n".encode()
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    trailer = f"trailer\n<< /Size {len(places) + 1} /Root 1 0 R >>\nstartxref\n{len(data)}\n%%EOF\n"
    return data + f"xref\n0 {len(places) + 1}\n0000000000 65535 f \n{table}{trailer}".encode()
