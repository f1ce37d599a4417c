from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from pypdf import PdfReader, PdfWriter

from surerag.documents import SkippedFilesWarning, load_documents
from surerag.errors import InputError
from tests.documents.pdfs import write_pdf


def only(folder: Path) -> tuple[str, str]:
    (document,) = load_documents(folder).documents
    return document.text, document.title


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b.TXT").write_text("About Velm.")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# The Orun ##\n\nA river.")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "note.txt").write_text("no")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_documents(tmp_path)
    assert loaded.skipped == ()
    documents = loaded.documents
    assert [(d.id, d.title, d.text) for d in documents] == [
        ("b.TXT", "b", "About Velm."),
        ("deep/a.md", "The Orun", "# The Orun ##\n\nA river."),
    ]
    assert documents[1].metadata == {"path": "deep/a.md"}


def test_of_a_page_only_what_one_sees_is_read(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        "<html><head><title>The  Orun</title><style>p {color: red}</style></head><body><nav>Home</nav>"
        "<h1>Orun</h1><p>A <b>ri</b>ver\nin Velm.</p><script>alert(1)</script>"
        "<ul><li>wet<li>long</ul></body></html>"
    )
    assert only(tmp_path) == ("Orun\n\nA river in Velm.\n\nwet\n\nlong", "The Orun")


def test_a_fragment_of_a_page_is_a_page(tmp_path: Path) -> None:
    (tmp_path / "page.htm").write_text("<p>Wet &amp; long</p>")
    assert only(tmp_path) == ("Wet & long", "page")


def test_a_pdf_is_read_page_by_page(tmp_path: Path) -> None:
    write_pdf(tmp_path / "orun.pdf", "Velm lies on the Orun.", "It is old.", title="Orun")
    assert only(tmp_path) == ("Velm lies on the Orun.\n\nIt is old.", "Orun")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_told_apart(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("Übrigens: “Velm”".encode(encoding))
    assert only(tmp_path)[0] == "Übrigens: “Velm”"


def test_what_cannot_be_read_is_skipped_and_listed(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "outside.txt").write_text("secret")
    (folder / "good.txt").write_text("About Velm.")
    (folder / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "empty.md").write_text(" \n")
    (folder / "binary.txt").write_bytes(b"a\0b")
    (folder / "broken.txt").write_bytes(b"\xff\xfea")
    (folder / "large.txt").write_text("x" * 50_000)
    (folder / "damaged.pdf").write_bytes(b"%PDF-1.7 nothing")
    write_pdf(folder / "pictures.pdf", "")
    write_pdf(folder / "locked.pdf", "Hidden.", password="velm")
    assert PdfReader(folder / "locked.pdf").is_encrypted
    with pytest.warns(SkippedFilesWarning, match="skipped 8 of the files") as caught:
        loaded = load_documents(folder, max_bytes=40_000)
    assert [document.id for document in loaded.documents] == ["good.txt"]
    message = str(caught[0].message)
    assert message.endswith("; ".join(f"{file.path} ({file.reason})" for file in loaded.skipped))
    for name, reason in {
        "link.txt": "a link that leads out",
        "empty.md": "no text",
        "binary.txt": "binary data",
        "broken.txt": "not the utf-16",
        "large.txt": "50,000 bytes, more than 40,000",
        "damaged.pdf": "damaged PDF",
        "pictures.pdf": "no text layer",
        "locked.pdf": "encrypted",
    }.items():
        assert f"{name} ({reason}" in message


def test_a_pdf_with_an_empty_password_is_read(tmp_path: Path) -> None:
    path = tmp_path / "open.pdf"
    write_pdf(path, "Velm.", password="velm")
    writer = PdfWriter(clone_from=PdfReader(path, password="velm"))
    writer.encrypt("", owner_password="velm", algorithm="RC4-128")
    writer.write(path)
    assert only(tmp_path)[0] == "Velm."


def test_no_folder_and_an_empty_one_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is no folder"):
        load_documents(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"no file that could be read.*\.pdf"):
        load_documents(tmp_path)
    (tmp_path / "empty.txt").touch()
    with pytest.raises(InputError, match=r"empty\.txt \(no text\)"):
        load_documents(tmp_path)


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("Velm.")
    (tmp_path / "b.txt").symlink_to(tmp_path / "a.txt")
    assert [document.id for document in load_documents(str(tmp_path)).documents] == ["a.txt", "b.txt"]


def test_ten_megabytes_are_read(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("It rains in Velm. " * 600_000)
    assert len(only(tmp_path)[0]) == 10_800_000
