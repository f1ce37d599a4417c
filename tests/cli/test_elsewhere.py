"""Commands that read from an S3 server and write to it, killed, and gone on with from the server alone."""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto")

from surerag import ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.evaluation.comparison.comparing import items_in
from surerag.records import Trace
from tests.cli.killed import evaluate_elsewhere
from tests.cli.times import CLOCK
from tests.evaluation.noting import NotingReader, notes_of, write_rows
from tests.stores import environment, memory, s3_server
from tests.waiting import eventually

QUESTIONS = 24


def asked_about(notes: Path) -> set[int]:
    return {int(number) for text in notes_of(notes) for number in re.findall(r"person (\d+)", text)}


@pytest.mark.timeout(300)
def test_a_run_in_a_store_is_killed_and_another_machine_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.cli.killed"])
    with s3_server(monkeypatch) as client:
        rows = gzip.compress(write_rows(tmp_path / "d.jsonl", questions=QUESTIONS).read_bytes())
        client.put_object(Bucket="bucket", Key="rows.jsonl.gz", Body=rows)
        settings = environment(client.meta.endpoint_url)

        def started(machine: str, output: str, seconds: float) -> multiprocessing.process.BaseProcess:
            work = tmp_path / machine
            work.mkdir()
            process = processes.Process(
                target=evaluate_elsewhere,
                args=(settings, work, "s3://bucket/rows.jsonl.gz", output, seconds),
            )
            process.start()
            return process

        def committed() -> set[int]:
            found = client.list_objects_v2(Bucket="bucket", Prefix="run/commits/00000/").get("Contents", ())
            return {int(one["Key"][-10:-5]) for one in found if one["Key"][-10:-5].isdigit()}

        first = started("first", "s3://bucket/run", 0.05)
        assert eventually(lambda: len(committed()) >= 2)
        os.kill(first.pid or 0, signal.SIGKILL)
        first.join()
        whole = committed()  # nothing else is left: the second machine has a disk of its own
        second = started("second", "s3://bucket/run", 0.0)
        second.join()
        calm = started("calm", "s3://bucket/calm", 0.0)
        calm.join()
        printed = (tmp_path / "second" / "printed.txt").read_text()
        assert (second.exitcode, calm.exitcode) == (0, 0), printed
        assert 2 <= len(whole) < QUESTIONS // 4

        here = {number for number in range(QUESTIONS) if number // 4 in whole}
        again = asked_about(tmp_path / "second" / "notes")
        assert again == set(range(QUESTIONS)) - here  # what was committed is not asked again, and all else is
        assert asked_about(tmp_path / "first" / "notes") >= here
        monkeypatch.setenv("SURERAG_WORK", str(tmp_path / "reader"))
        items = [(item.id, item.system) for item in items_in("s3://bucket/run")]
        assert items == [(f"q{n}", system) for n in range(QUESTIONS) for system in ("good", "poor")]

        def result(name: str) -> bytes:
            return CLOCK.sub(b"", client.get_object(Bucket="bucket", Key=name)["Body"].read())

        assert result("run/results.json") == result("calm/results.json")
        keys = {one["Key"] for one in client.list_objects_v2(Bucket="bucket", Prefix="run/")["Contents"]}
        assert {"run/manifest.jsonl", "run/report.html", "run/systems.svg", "run/distribution.svg"} <= keys
        assert not [key for key in keys if "commits" in key]
        assert "testing-secret-key" not in printed and "secret" not in result("run/manifest.jsonl").decode()


def test_compare_record_and_calibrate_write_elsewhere(surerag: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("SURERAG_WORK", str(tmp_path / "work"))
    monkeypatch.setattr("surerag.cli.compare_runs.packaged_minilm", HashingEncoder)
    place = memory()
    rows = [{"question": f"Where was person {n} born?", "answers": ["Velm"]} for n in range(12)]
    (place / "in" / "q.jsonl").write_bytes("".join(json.dumps(row) + "\n" for row in rows).encode())
    for n in range(3):
        (place / "docs" / f"{n}.txt").write_bytes(f"Person {n} was born in Velm. Person {n} paints.".encode())
    noting = NotingReader()
    command = (
        "compare", f"{place}/in/*.jsonl", "--documents", f"{place}/docs", "--systems", "plain,none",
        "--retrieval", "bm25", "--output", f"{place}/compared",
    )  # fmt: skip
    ran = surerag(*command, reader=noting)
    assert ran.code == 0, ran.err
    told, asked = (place / "compared" / "results.json").read_text(), len(noting.asked)
    shutil.rmtree(tmp_path / "work")  # another machine
    assert surerag(*command, reader=noting).code == 0
    assert (len(noting.asked), (place / "compared" / "results.json").read_text()) == (asked, told)
    assert {"report.html", "results.json", "baseline.parquet", "manifest.jsonl"} <= {
        one.name for one in (place / "compared").iterdir()
    }
    reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
    common = (f"{place}/in", "--documents", f"{place}/docs", "--retrieval", "bm25")
    ran = surerag("record", *common, "--n-samples", 0, "--output", f"{place}/trace", reader=reader)
    assert ran.code == 0, ran.err
    assert len(list(Trace(f"{place}/trace"))) == 12
    assert "It is what it says it is" in surerag("verify", f"{place}/trace").out
    ran = surerag("calibrate", "--trace", f"{place}/trace", "--output", f"{place}/calibrated")
    assert "Written to memory://" in ran.out, ran.err
    names = [one.relative_to(place / "calibrated") for one in (place / "calibrated").below()]
    assert "calibration.json" in names and [name for name in names if name.endswith("l-rag.policy.json")]
    ran = surerag("calibrate", *common, "--timed", 0, "--output", f"{place}/asked", reader=reader)
    assert len(list(Trace(f"{place}/asked/{reader.name}/trace"))) == 12, ran.err


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_asked(
    surerag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = NotingReader()
    file = write_rows(tmp_path / "d.jsonl")
    with s3_server(monkeypatch):
        monkeypatch.setenv("SURERAG_WORK", str(tmp_path / "work"))
        ran = surerag("evaluate", file, "--output", "s3://nobucket/run", reader=reader)
        assert ran.code == 1 and "s3://nobucket/run" in ran.err and "no such bucket" in ran.err
        ran = surerag("evaluate", file, "--output", "s4://bucket/run", reader=reader)
        assert ran.code == 1 and "s4:// is no protocol" in ran.err
    assert reader.asked == []
