"""Questions and rows from URLs, patterns, folders of several files, and compressed files."""

from __future__ import annotations

import gzip
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fsspec")

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

from surerag.cli.trace_runs import documents_in
from surerag.documents import load_documents
from surerag.errors import ConfigurationError, InputError, MissingExtraError, SureragError
from surerag.evaluation.inputs import (
    check_questions,
    check_rows,
    read_questions,
    read_records,
    read_rows,
)
from surerag.evaluation.inputs.streams import opened
from surerag.places import place_of
from surerag.remote import Remote
from tests.stores import memory, s3_server

pa = pytest.importorskip("pyarrow")


def row(number: int) -> dict[str, Any]:
    return {
        "id": f"q{number}",
        "question": f"Wo ist Übersee {number}?",
        "answers": ["Velm"],
        "contexts": ["Velm."],
    }


def lines(start: int, end: int) -> bytes:
    return "".join(json.dumps(row(n), ensure_ascii=False) + "\n" for n in range(start, end)).encode()


def packed(data: bytes, suffix: str) -> bytes:
    if suffix == ".gz":  # two members, as `cat a.gz b.gz` makes them
        return gzip.compress(data[:5000]) + gzip.compress(data[5000:])
    return (
        data
        if not suffix
        else pa.compress(data[:5000], "zstd", asbytes=True) + pa.compress(data[5000:], "zstd", asbytes=True)
    )


def numbers(rows: Any) -> list[int]:
    return [int(one.id[1:]) for one in rows]


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_file_is_read_from_any_unit_on_wherever_it_is_and_however_it_is_packed(
    tmp_path: Path, suffix: str, elsewhere: bool
) -> None:
    place: Any = memory() if elsewhere else tmp_path
    file = place / f"rows.jsonl{suffix}"
    file.write_bytes(packed(lines(0, 600), suffix))
    data = check_rows(str(file), folder=tmp_path / "checked")
    assert (data.rows, data.units, data.form, data.path) == (600, 3, "JSON lines", file)
    for unit in (2, 0, 1):
        assert numbers(data.unit(unit)) == list(range(256 * unit, min(256 * unit + 256, 600)))
    asked = check_questions(file, size=64, folder=tmp_path / "checked")
    assert [len(group.read()) for group in asked.groups()] == [64] * 9 + [24]
    assert list(asked.groups())[7].read()[0].id == "q448"
    assert numbers(pickle.loads(pickle.dumps(data)).unit(2))[0] == 512  # for a worker that reads its own unit


@pytest.mark.parametrize("kind", ["parquet", "csv.gz", "json.gz"])
def test_other_formats_are_read_elsewhere_as_well(tmp_path: Path, kind: str) -> None:
    rows = [row(n) for n in range(600)]
    if kind == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "d", row_group_size=100)
        content = (tmp_path / "d").read_bytes()
    elif kind == "csv.gz":
        cells = [f'{one["id"]},{one["question"]},Velm,"[""Velm.""]"' for one in rows]
        content = gzip.compress("\n".join(["id,question,answers,contexts", *cells]).encode())
    else:
        content = gzip.compress(json.dumps({"data": rows}).encode())
    file = memory() / f"d.{kind}"
    file.write_bytes(content)
    data = check_rows(file)
    assert numbers(data.unit(2)) == list(range(512, 600)) and data.rows == 600
    assert data.digest == check_rows(written(tmp_path / "same.jsonl", lines(0, 600))).digest


def written(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


@pytest.mark.parametrize("elsewhere", [False, True])
def test_patterns_and_folders_are_read_as_one_in_the_order_of_names(tmp_path: Path, elsewhere: bool) -> None:
    place: Any = memory() if elsewhere else tmp_path
    if not elsewhere:
        (place / "in").mkdir()
    for number, name in enumerate(("a.jsonl", "b.jsonl.gz", "c.ndjson")):
        content = lines(200 * number, 200 * (number + 1))
        (place / "in" / name).write_bytes(packed(content, ".gz" if name.endswith("gz") else ""))
    (place / "in" / "README.md").write_bytes(b"what this is")
    for named in (place / "in", f"{place}/in/*.*json*"):
        data = check_rows(named, folder=tmp_path / "checked")
        assert data.rows == 600 and numbers(data.unit(1)) == list(range(256, 512))
        assert numbers(data.unit(2)) == list(range(512, 600)) and numbers(read_rows(named)) == list(
            range(600)
        )
    (place / "in" / "b.jsonl.gz").write_bytes(gzip.compress(lines(200, 399) + b'{"question": 7}\n'))
    with pytest.raises(InputError, match=r"in/b\.jsonl\.gz, line 200: .*question"):
        list(read_questions(place / "in"))
    (place / "in" / "d.csv").write_bytes(b"question\nWhere?\n")
    with pytest.raises(InputError, match=r"two formats: a\.jsonl \(JSON lines\) and d\.csv \(CSV\)"):
        check_rows(place / "in")
    with pytest.raises(InputError, match=r"no file is named by .*/in/\*\.parquet"):
        check_rows(f"{place}/in/*.parquet")


def test_a_changed_file_elsewhere_is_read_again_and_an_unchanged_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = memory() / "rows.jsonl"
    file.write_bytes(lines(0, 10))
    first = check_rows(file, folder=tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr("surerag.evaluation.inputs.dataset.parsed", None)
        assert check_rows(file, folder=tmp_path) == first
    file.write_bytes(lines(10, 20))  # as long as before
    assert check_rows(file, folder=tmp_path).digest != first.digest


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_was_cut_short_or_is_not_packed_is_named(tmp_path: Path, suffix: str) -> None:
    file = written(tmp_path / f"d.jsonl{suffix}", packed(lines(0, 600), suffix)[:-40])
    with pytest.raises(InputError, match=r"d\.jsonl\.\w+ cannot be"):
        check_rows(file)
    written(file, lines(0, 3))
    with pytest.raises(InputError, match=r"d\.jsonl\.\w+ cannot be"):
        check_rows(file)


def test_a_packed_file_goes_forward_and_back(tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    with opened(written(tmp_path / "d.zst", packed(content, ".zst"))) as stream:
        for place in (300_000, 17, 511_999, 0, 70_000):
            stream.seek(place)
            assert stream.read(3) == content[place : place + 3]


def test_documents_come_from_elsewhere_too() -> None:
    place = memory()
    for name, text in {
        "a.md": "# Ada\n\nBorn.",
        "sub/b.txt": "Bo.",
        ".hidden/c.txt": "no",
        "sub/big.txt": "x" * 99,
    }.items():
        (place / name).write_bytes(text.encode())
    with pytest.warns(UserWarning, match="skipped 1 of the files"):
        found = load_documents(str(place), max_bytes=50)
    assert [(one.id, one.title) for one in found.documents] == [("a.md", "Ada"), ("sub/b.txt", "b")]
    assert [one.id for one in load_documents(f"{place}/**/*.txt", max_bytes=1000).documents] == [
        "sub/b.txt",
        "sub/big.txt",
    ]
    (place / "rows" / "p1.jsonl").write_bytes(b'{"text": "one"}\n')
    (place / "rows" / "p2.jsonl").write_bytes(b'{"text": "two"}\n')
    for named in (place / "rows", place_of(f"{place}/rows/p*.jsonl")):
        assert [one.text for one in documents_in(named)] == ["one", "two"]
    assert [one.id for one in documents_in(place_of(f"{place}/*.md"))] == ["a.md"]


def test_what_cannot_be_reached_is_said_at_once_and_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(place: str, kind: type[SureragError], words: str) -> None:
        with pytest.raises(kind, match=words) as found:
            check_rows(place)
        assert "hunter2" not in str(found.value) and "swordfish" not in str(found.value)

    told("s4://bucket/rows.jsonl", ConfigurationError, r"s4:// is no protocol that is known here")
    told("memori://bucket/rows.jsonl", ConfigurationError, "write memory://")
    told("s3://me:hunter2@bucket/rows.jsonl", ConfigurationError, "holds a password")
    told("memory://nowhere/rows.jsonl", InputError, "memory://nowhere/rows.jsonl is no file")
    told("az://container/rows.jsonl", MissingExtraError, r"the package 'adlfs'.*surerag\[remote\]\" adlfs")

    class Refusing(MemoryFileSystem):
        protocol = "refusing"
        error: Exception = PermissionError(
            "https://host/bucket?X-Amz-Signature=hunter2 with swordfish-key is forbidden"
        )

        def info(self, path: str, **more: Any) -> Any:
            raise self.error

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "swordfish-key")
    told("refusing://bucket/rows.jsonl", InputError, "may not .*is forbidden")

    class NoCredentialsError(Exception):
        """As a client calls it."""

    Refusing.error = NoCredentialsError("Unable to locate credentials")
    told("refusing://bucket/rows.jsonl", ConfigurationError, "no credentials for refusing://bucket")
    Refusing.error = ConnectionError("cannot connect")
    told("refusing://bucket/rows.jsonl", InputError, "cannot be read: cannot connect")


def test_a_signed_address_is_nowhere_written_down(tmp_path: Path) -> None:
    signed = Remote("https://host/data/rows.jsonl?sig=hunter2")
    for shown in (
        str(signed),
        repr(signed),
        signed.name,
        str(place_of("https://host/data/rows.jsonl?sig=hunter2")),
    ):
        assert "hunter2" not in shown and "rows.jsonl" in shown


def test_paths_and_urls_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert place_of("rows.jsonl") == Path("rows.jsonl") and place_of("C:/rows") == Path("C:/rows")
    assert place_of(f"file://{tmp_path}/my%20rows") == tmp_path / "my rows"
    assert place_of(Path("memory://bucket/a/b")) == Remote(
        "memory://bucket/a/b"
    )  # what Path() took it gives back
    odd = written(tmp_path / "a[1]*.jsonl", lines(0, 2))
    assert numbers(read_rows(odd)) == [0, 1]  # a file of that name is no pattern
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s3:").mkdir()
    assert place_of(Path("s3:/x")) == Path("s3:/x") or not Path("s3:/x").exists()


def test_what_is_local_never_imports_fsspec(tmp_path: Path) -> None:
    file = written(tmp_path / "d.jsonl.gz", gzip.compress(lines(0, 3)))
    code = (
        "import sys; import pyarrow as pa; from surerag.evaluation.inputs import check_rows\n"
        "from surerag.runs import Run\n"
        f"check_rows({str(file)!r}, folder=__import__('pathlib').Path({str(tmp_path)!r}))\n"
        f"Run.open({str(tmp_path / 'run')!r}, {{'a': 1}}, pa.schema([('id', pa.string())])).close()\n"
        "assert not {'fsspec', 's3fs'} & set(sys.modules), 'imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_of_an_s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch) as client:
        for number in range(3):
            body = gzip.compress(lines(100 * number, 100 * number + 100))
            client.put_object(Bucket="bucket", Key=f"in/part-{number}.jsonl.gz", Body=body)
        for named in ("s3://bucket/in", "s3://bucket/in/part-*.jsonl.gz"):
            data = check_rows(named, folder=tmp_path)
            assert data.rows == 300 and numbers(data.unit(1)) == list(range(256, 300))
        [first, *_] = json.loads((tmp_path / "input.json").read_text())["stamp"][3]
        assert first[0] == "part-0.jsonl.gz" and first[2].strip('"').isalnum()  # size and tag
        assert [place.number for place, _ in read_records("s3://bucket/in/part-1.jsonl.gz")][-1] == 100
        for gone in ("s3://bucket/none.jsonl", "s3://nobucket/rows.jsonl"):
            with pytest.raises(InputError, match=f"{gone} is no file"):
                check_rows(gone)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(ConfigurationError, match=r"no credentials for s3://bucket/in.*AWS_PROFILE"):
        check_rows("s3://bucket/in")
