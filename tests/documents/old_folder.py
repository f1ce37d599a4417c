"""A folder as people have it: files of many kinds, encodings and decades; and what becomes of each."""

from __future__ import annotations

import io
import json
import zipfile
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
}
"""The text of each document, or a part of it, by its id."""

TITLES = {
    "1991/visit.txt": "visit",
    "2010/site.html": "Light",
    "2012/post.md": "The ferry",
    "2014/guide.rst": "Guide to the museum",
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
    "2021/noise.txt": "binary data",
    "2022/archive.csv": "ZIP archive",
    "2022/letter.docx": "before 2007, or one with a password",
    "2022/cut.pdf": "damaged",
    "2023/broken.jsonl": "line 2, column 10: not JSON",
    "2023/song.mp3": "no known kind of file: .mp3",
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
        "2006/report.pdf": _pdf(
            "The dredger Halcyon worked in Velm from March to June.", "", "It left on 2 July."
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


def _pdf(*pages: str) -> bytes:
    """Write a PDF with a line of text on each page; a page without one has a drawn line, as a scan would."""
    first = 4
    kids = " ".join(f"{first + 2 * at} 0 R" for at in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for at, text in enumerate(pages):
        stream = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else "72 720 m 200 720 l S"
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
