"""Folders of files as documents."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from surerag.documents import SkippedFilesWarning, _converter, load_documents
from surerag.errors import InputError, MissingExtraError


def test_a_folder_is_read_in_the_order_of_its_paths(tmp_path: Path) -> None:
    (tmp_path / "b.TXT").write_text("# About Velm.")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.md").write_text("# The Orun ##\n\nA river.")
    (tmp_path / "deep" / "b.md").write_text("---\ntitle: 'Ada'\n---\n# Other\n\nA painter.")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "note.txt").write_text("no")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load_documents(tmp_path)
    assert loaded.skipped == {}
    assert [(d.id, d.title, d.text) for d in loaded.documents] == [
        ("b.TXT", "b", "# About Velm."),
        ("deep/a.md", "The Orun", "# The Orun ##\n\nA river."),
        ("deep/b.md", "Ada", "# Other\n\nA painter."),
    ]
    assert loaded.documents[1].metadata == {"path": "deep/a.md"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
def test_encodings_are_told_apart(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "a.txt").write_bytes("Übrigens: “Velm”".encode(encoding))
    assert load_documents(tmp_path).documents[0].text == "Übrigens: “Velm”"


def test_other_kinds_are_converted_to_markdown(tmp_path: Path) -> None:
    pytest.importorskip("markitdown")
    (tmp_path / "page.html").write_text(
        "<html><head><title>The Orun</title><style>p {color: red}</style></head><body><h1>Orun</h1>"
        "<p>A <b>river</b> in Velm.</p><script>alert(1)</script></body></html>"
    )
    (tmp_path / "towns.csv").write_text("town,river\nVelm,Orun\n")
    page, towns = load_documents(tmp_path).documents
    assert (page.id, page.title) == ("page.html", "The Orun")
    assert "A **river** in Velm." in page.text and "alert" not in page.text and "color" not in page.text
    assert (towns.title, "| Velm | Orun |" in towns.text) == ("towns", True)


def test_a_missing_converter_names_the_pip_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markitdown", None)
    _converter.cache_clear()
    (tmp_path / "a.html").write_text("<p>Velm</p>")
    with pytest.raises(MissingExtraError, match=r"surerag\[documents\]"):
        load_documents(tmp_path)


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
    (folder / "song.mp3").write_bytes(b"x")
    with pytest.warns(SkippedFilesWarning, match="skipped 7 files: binary.txt"):
        loaded = load_documents(folder, max_bytes=40_000)
    assert [document.id for document in loaded.documents] == ["good.txt"]
    assert set(loaded.skipped) == {
        "link.txt", "loop.txt", "empty.md", "binary.txt", "large.txt", "damaged.pdf", "song.mp3",
    }  # fmt: skip
    assert loaded.skipped["large.txt"] == "more than 40,000 bytes"


def test_no_folder_and_nothing_to_read_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder not found"):
        load_documents(tmp_path / "nowhere")
    (tmp_path / "song.mp3").write_bytes(b"x")
    with pytest.raises(InputError, match=r"song.mp3 \(no known kind of file: .mp3\)"):
        load_documents(tmp_path)
