"""Files that are damaged, disguised or slow on purpose: each is reported and skipped, the rest is read."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pypdf
import pytest

from surerag.documents import LoadedDocuments, SkippedFilesWarning, load_documents
from surerag.documents.formats import read_file
from surerag.errors import ConfigurationError, InputError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.txt").write_text("About Velm.")
    return tmp_path


def loaded(folder: Path, **options: Any) -> LoadedDocuments:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkippedFilesWarning)
        return load_documents(folder, **options)


def skipped(folder: Path, **options: Any) -> dict[str, str]:
    found = loaded(folder, **options)
    assert "good.txt" in [document.id for document in found.documents]
    return {file.path: file.reason for file in found.skipped}


@pytest.mark.parametrize("max_seconds", [20.0, None])
def test_a_page_that_its_parser_rejects(folder: Path, max_seconds: float | None) -> None:
    (folder / "page.html").write_text("<p>a</p><![foo]>")
    (folder / "deep.html").write_text("<div>" * 3_000 + "deep")
    reasons = skipped(folder, max_seconds=max_seconds)
    assert reasons.keys() == {"page.html"}
    assert reasons["page.html"].startswith("damaged HTML: ParserRejectedMarkup")


@pytest.mark.parametrize(
    "error",
    [AttributeError("a"), AssertionError(), NotImplementedError("b"), RecursionError(), MemoryError()],
)
def test_a_pdf_that_its_parser_stumbles_over(
    folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def stumbles(*_: object) -> None:
        raise error

    (folder / "a.pdf").write_bytes(b"%PDF-1.7")
    monkeypatch.setattr(pypdf, "PdfReader", stumbles)
    assert skipped(folder, max_seconds=None) == {
        "a.pdf": f"damaged PDF: {type(error).__name__}: {error}".rstrip(": ")
    }


def test_no_mutation_of_a_pdf_ends_the_run(folder: Path) -> None:
    from tests.documents.pdfs import pdf

    whole = pdf("Velm lies on the Orun.", title="Orun")
    for place in range(0, len(whole), 29):
        for byte in (0, 47):
            mutated = whole[:place] + bytes([byte]) + whole[place + 1 :]
            (folder / f"{place}-{byte}.pdf").write_bytes(mutated)
    found = loaded(folder)
    assert len(found.documents) + len(found.skipped) == len(list(folder.iterdir()))
    assert found.skipped and len(found.documents) > len(found.skipped)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names themselves")
def test_a_name_that_is_not_utf8(folder: Path) -> None:
    (folder / os.fsdecode(b"caf\xe9.txt")).write_text("About Orun.")
    assert skipped(folder) == {"caf\\xe9.txt": "its name is not UTF-8"}


def test_a_folder_that_may_not_be_entered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    closed.mkdir()
    (closed / "a.txt").write_text("Hidden.")
    scandir = os.scandir

    def refusing(path: Any) -> Iterator[Any]:
        if Path(path) == closed:  # root may enter all folders, and runs some of our tests
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    assert skipped(folder) == {"closed": "Permission denied"}


def test_other_kinds_of_files_and_links(folder: Path) -> None:
    (folder / "guide.rst").write_text("Guide\n=====")
    (folder / "NOTES").write_text("Notes.")
    (folder / "deep").mkdir()
    (folder / "deep" / "a.png").write_bytes(b"\x89PNG")
    (folder / "linked").symlink_to(folder / "deep")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "nowhere.txt").symlink_to(folder / "gone.txt")
    os.mkfifo(folder / "pipe.txt")
    reasons = skipped(folder)
    assert list(reasons) == sorted(reasons, key=lambda name: name.split("/"))
    assert reasons.pop("loop.txt")
    assert reasons == {
        "guide.rst": "no known kind of file: .rst",
        "NOTES": "no known kind of file: it has no suffix",
        "deep/a.png": "no known kind of file: .png",
        "linked": "a link to a folder",
        "nowhere.txt": "No such file or directory",
        "pipe.txt": "not a regular file",
    }


def test_a_long_list_is_whole_in_the_result_and_cut_in_the_warning(folder: Path) -> None:
    for number in range(100):
        (folder / f"{number:03}.png").touch()
    with pytest.warns(SkippedFilesWarning, match=r"skipped 100 of the files: 000\.png.*; and 80 more$"):
        found = load_documents(folder)
    assert len(found.skipped) == 100
    (folder / "good.txt").unlink()
    with pytest.raises(InputError, match="and 80 more"):
        load_documents(folder)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", "# a" + " " * 2_000 + "b"),
        ("a.md", "#" + " \t" * 100_000 + "\nb"),
        ("a.md", "# " + "#" * 200_000 + " b"),
        ("a.html", "<p>a" + " " * 100_000 + "b"),
        ("a.html", "<p>a" + " \n" * 100_000 + "b"),
        ("a.html", "a" + "<!--" * 50_000),
        ("a.html", "a" + "<script>" * 50_000),
        ("a.html", "a" + "<STYLE>" * 50_000),
    ],
)
def test_reading_is_linear(name: str, text: str) -> None:
    start = time.process_time()
    assert read_file(Path(name).suffix, text.encode()).text
    assert time.process_time() - start < 3


def test_what_takes_too_long_is_ended_and_the_next_file_is_read(folder: Path) -> None:
    # Of start tags that never end, html.parser reads each to the end of the file.
    (folder / "a.html").write_text("<a " * 200_000)
    (folder / "b.html").write_text("<p>Wet &amp; long</p>")
    start = time.perf_counter()
    found = loaded(folder, max_seconds=3)
    assert time.perf_counter() - start < 20
    assert [(file.path, file.reason) for file in found.skipped] == [("a.html", "took longer than 3 seconds")]
    assert [document.text for document in found.documents] == ["Wet & long", "About Velm."]


def test_a_parser_that_crashes_takes_nothing_with_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = "import os; from surerag.documents import parsing; parsing.read_file = lambda *_: os._exit(3)"
    monkeypatch.setattr("surerag.documents.parsing._COMMAND", f"{dying}; parsing.serve()")
    (folder / "a.html").write_text("<p>Velm</p>")
    (folder / "b.pdf").write_bytes(b"%PDF-1.7")
    assert skipped(folder) == dict.fromkeys(("a.html", "b.pdf"), "its parser crashed")


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_bound_that_is_none(folder: Path, seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="must be positive or None"):
        load_documents(folder, max_seconds=seconds)


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("# C#", "C#"),
        ("#  Velm ##  \r\n\r\ntext", "Velm"),
        ("# ##\n\n## Velm", "Velm"),
        ("#Velm\n# Orun", "Orun"),
        ("####### Velm", ""),
    ],
)
def test_headings(text: str, title: str) -> None:
    assert read_file(".md", text.encode()).title == title


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<p>a</p><!-- <p>b</p> --><p>c</p>", "a\n\nc"),
        ("<p>a</p><!-- never ends <p>b</p>", "a\n\nnever ends\n\nb"),
        ("<script>x = '<!--';</script><p>a</p>", "a"),
        ("<STYLE>p {}</Style ><p>a</p><scripture>b</scripture>", "a\n\nb"),
        ("<p>a</p><script>never ends<p>b</p>", "a"),
    ],
)
def test_what_is_not_seen_is_not_read(markup: str, text: str) -> None:
    assert read_file(".html", markup.encode()).text == text
