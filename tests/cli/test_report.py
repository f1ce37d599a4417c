"""``surerag report``: shards become one run, runs are compared, what does not belong together is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from surerag import LazyRAG, ScriptedReader  # noqa: E402
from surerag.entailment import ExactEntailer  # noqa: E402
from surerag.evaluation.comparison import compare_contexts  # noqa: E402
from surerag.evaluation.comparison.units import EVALUATION, row_schema  # noqa: E402
from surerag.evaluation.systems.comparing import compare  # noqa: E402
from surerag.evaluation.systems.rows import KIND as COMPARISON  # noqa: E402
from surerag.methods.seper.component import SePer  # noqa: E402
from surerag.records import Trace, record  # noqa: E402
from surerag.records.schema import TRACE  # noqa: E402
from surerag.runs import Run, read_manifest  # noqa: E402
from surerag.runs.manifest import Kind  # noqa: E402
from surerag.types import Passage  # noqa: E402
from tests.cli.times import CLOCK  # noqa: E402
from tests.evaluation.noting import NotingReader, write_rows  # noqa: E402
from tests.stores import memory  # noqa: E402

TOWNS = ("Velm", "Orun", "Toren", "Sarl")
QUESTIONS = [(f"Where was person {n} born?", [TOWNS[n % 4]]) for n in range(20)]


@pytest.fixture(autouse=True)
def small_units(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("inputs.dataset", "comparison.comparing", "systems.units"):
        monkeypatch.setattr(f"surerag.evaluation.{module}.UNIT", 4)
    monkeypatch.setenv("SURERAG_WORK", str(tmp_path / "work"))


def sharded(whole: Path, kind: Kind, of: int, at: Callable[[int], Any]) -> list[Any]:
    """Write the units of a run as its shards would be."""
    manifest = read_manifest(whole, kind)
    first = next(iter(manifest))
    tables = {table: file for table, file in first.files.items() if table != "answers"}
    schemas = {table: pq.read_schema(whole / file.name) for table, file in tables.items()}
    places = [at(number) for number in range(1, of + 1)]
    for number, place in enumerate(places, 1):
        with Run.open(place, {**manifest.about, "shard": f"{number}/{of}"}, schemas, kind=kind) as run:
            for part in manifest:
                if part.unit % of == number - 1:
                    run.adopt(
                        part, {table: (whole / one.name).read_bytes() for table, one in part.files.items()}
                    )
            run.finish()
    return places


def seper() -> SePer:
    return SePer(NotingReader(), ExactEntailer(), n_samples=3)


def good(question: str) -> list[str]:
    number = int(re.findall(r"\d+", question)[0])
    return [f"Person {number} was born in {TOWNS[number % 4]}."]


def answering(says: Callable[[int], str]) -> Callable[[str], str]:
    return lambda question: says(int(re.findall(r"\d+", question)[0]))


SYSTEMS = {
    "plain": answering(lambda n: TOWNS[n % 4]),
    "worse": answering(lambda n: TOWNS[n % 4] if n % 3 else "Nowhere"),
}


def test_the_report_of_the_shards_of_an_evaluation_is_that_of_the_whole(surerag: Any, tmp_path: Path) -> None:
    file = write_rows(tmp_path / "rows.jsonl", questions=20)
    options = ("--model", "m", "--entailment", "exact", "--n-samples", "3", "--extremes", "0")
    ran = surerag("evaluate", file, "--output", tmp_path / "whole", *options, reader=NotingReader())
    assert ran.code == 0, ran.err
    place = memory()
    shards = [tmp_path / "s1", place / "s2", tmp_path / "s3"]
    for number, shard in enumerate(shards, 1):
        part = ("--shard", f"{number}/3", "--output", shard)
        assert surerag("evaluate", file, *part, *options, reader=NotingReader()).code == 0
    ran = surerag("report", *reversed(shards), "--output", tmp_path / "report")
    assert ran.code == 0, ran.err
    told = (tmp_path / "whole" / "results.json").read_text()
    reports = [(tmp_path / name / "results.json").read_bytes() for name in ("whole", "report")]
    assert CLOCK.sub(b"", reports[0]) == CLOCK.sub(b"", reports[1])
    page = (tmp_path / "report" / "report.html").read_text()
    assert "Put together from 3 shards" in page and "40 rows of 2 systems" in page
    # The same of one folder, and into a store.
    ran = surerag("report", tmp_path / "whole", "--output", f"{place}/report")
    assert (place / "report/results.json").read_text() == told
    assert {"report.html", "systems.svg"} <= {one.name for one in (place / "report").iterdir()}


def test_the_reduced_report_equals_the_one_in_memory(surerag: Any, tmp_path: Path) -> None:
    systems = {"good": good, "none": lambda question: ["Bo paints."]}
    whole = compare_contexts(systems, QUESTIONS, seper())
    compare_contexts(systems, QUESTIONS, seper(), folder=tmp_path / "kept")
    shards = sharded(tmp_path / "kept", EVALUATION, 2, lambda n: tmp_path / f"s{n}")
    assert surerag("report", *shards, "--output", tmp_path / "report").code == 0
    reduced = json.loads((tmp_path / "report" / "results.json").read_text())
    in_memory = json.loads(whole.to_json())
    for one in (reduced, in_memory):
        one["costs"].pop("seconds")
    assert reduced == in_memory


def test_the_report_of_the_shards_of_a_comparison_is_that_of_the_whole(surerag: Any, tmp_path: Path) -> None:
    whole = compare(SYSTEMS, QUESTIONS, tmp_path / "whole")
    shards = sharded(tmp_path / "whole", COMPARISON, 2, lambda n: tmp_path / f"s{n}")
    ran = surerag("report", *shards, "--output", tmp_path / "report")
    assert ran.code == 0, ran.err
    assert json.loads((tmp_path / "report" / "results.json").read_text()) == json.loads(whole.to_json())
    baseline = pq.read_table(tmp_path / "report" / "baseline.parquet")
    assert baseline.num_rows == 40 and {"id", "system", "accuracy", "seconds"} <= set(baseline.column_names)
    assert "Put together from 2 shards" in (tmp_path / "report" / "report.html").read_text()


def test_runs_over_the_same_questions_are_compared(surerag: Any, tmp_path: Path) -> None:
    compare({"plain": SYSTEMS["plain"]}, QUESTIONS, tmp_path / "monday")
    compare({"plain": SYSTEMS["worse"]}, QUESTIONS, tmp_path / "friday")
    ran = surerag("report", tmp_path / "monday", tmp_path / "friday", "--output", tmp_path / "report")
    assert ran.code == 0, ran.err
    found = json.loads((tmp_path / "report" / "results.json").read_text())
    both = compare({"a": SYSTEMS["plain"], "b": SYSTEMS["worse"]}, QUESTIONS)
    [difference] = [one for one in found["differences"] if one["measure"] == "accuracy"]
    expected = both.difference("b", "accuracy")
    assert (difference["system"], difference["baseline"]) == ("friday/plain", "monday/plain")
    assert (difference["n"], difference["value"], difference["p"]) == (20, expected.value, expected.p)
    assert found["about"]["runs"].keys() == {"monday", "friday"}


def test_evaluations_of_other_contexts_are_compared(surerag: Any, tmp_path: Path) -> None:
    nothing = {"it": lambda question: ["Bo paints."], "more": good}
    compare_contexts({"it": good}, QUESTIONS, seper(), folder=tmp_path / "bm25")
    compare_contexts(nothing, QUESTIONS, seper(), folder=tmp_path / "minilm")
    both = ("report", tmp_path / "bm25", tmp_path / "minilm", "--output", tmp_path / "report")
    assert surerag(*both, "--baseline", "bm25/it").code == 0
    found = json.loads((tmp_path / "report" / "results.json").read_text())
    whole = compare_contexts({"it": good, **nothing, "bm25": good}, QUESTIONS, seper(), baseline="bm25")
    deltas = {row["system"]: row["delta"]["value"] for row in found["systems"]}
    assert deltas == {
        "bm25/it": whole["bm25"].delta.value,
        "minilm/it": whole["it"].delta.value,
        "minilm/more": whole["more"].delta.value,
    }
    assert len(found["tests"]) == 2
    compare_contexts({"it": good}, QUESTIONS, seper().with_options(n_samples=4), folder=tmp_path / "more")
    ran = surerag("report", tmp_path / "bm25", tmp_path / "more", "--output", tmp_path / "report")
    assert ran.code == 1 and "cannot be compared: n_samples was 3 and is 4" in ran.err
    compare_contexts({"it": good}, QUESTIONS[1:], seper(), folder=tmp_path / "others")
    ran = surerag("report", tmp_path / "bm25", tmp_path / "others", "--output", tmp_path / "report")
    assert ran.code == 1 and "they hold other questions, from 'Where was person 0 born?' on" in ran.err


def test_the_shards_of_a_trace_become_one_trace(surerag: Any, tmp_path: Path) -> None:
    class Corpus:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return [Passage(good(query)[0], id="a", score=0.9)]

    reader = ScriptedReader(
        lambda prompt: next((town for town in TOWNS if f"born in {town}" in prompt), "Orun")
    )
    rag = LazyRAG(reader, Corpus(), mode="standard")
    record(rag, QUESTIONS, tmp_path / "whole", part_size=4)
    shards = sharded(tmp_path / "whole", TRACE, 2, lambda n: tmp_path / f"s{n}")
    ran = surerag("report", *shards, "--output", tmp_path / "trace")
    assert ran.code == 0 and "20 questions of 2 shards are one trace" in ran.out, ran.err
    assert list(Trace(tmp_path / "trace")) == list(Trace(tmp_path / "whole"))
    assert "shard" not in Trace(tmp_path / "trace").about
    assert surerag("verify", tmp_path / "trace").code == 0


def test_what_does_not_belong_together_is_named(surerag: Any, tmp_path: Path) -> None:
    def refused(*runs: Any) -> str:
        ran = surerag("report", *runs, "--output", tmp_path / "report")
        assert ran.code == 1
        return ran.err

    compare(SYSTEMS, QUESTIONS, tmp_path / "whole")
    one, two, three = sharded(tmp_path / "whole", COMPARISON, 3, lambda n: tmp_path / f"s{n}")
    assert "shards 2/3 of the run in" in refused(one, three)
    assert "both hold shard 1/3" in refused(one, two, three, one)
    assert "both hold the same run" in refused(tmp_path / "whole", tmp_path / "whole")
    assert "others are shards of 1, 3" in refused(one, two, three, tmp_path / "whole")
    compare(
        SYSTEMS, [(text + "?", golds) for text, golds in QUESTIONS], tmp_path / "other", rule="exact_match"
    )
    assert "rule was 'contains' and is 'exact_match'" in refused(tmp_path / "whole", tmp_path / "other")
    compare({"plain": SYSTEMS["plain"]}, QUESTIONS[:16], tmp_path / "fewer")
    assert "other questions, from unit 4 on" in refused(tmp_path / "whole", tmp_path / "fewer")
    compare_contexts({"good": good}, QUESTIONS, seper(), folder=tmp_path / "evaluation")
    assert "holds comparison, and" in refused(tmp_path / "whole", tmp_path / "evaluation")
    with Run.open(tmp_path / "begun", {"systems": []}, row_schema(), kind=EVALUATION):
        pass
    assert "is not complete: 0 units" in refused(tmp_path / "begun")
    assert "no manifest.jsonl" in refused(tmp_path / "nowhere")
    for file in two.glob("rows-*"):
        file.write_bytes(b"changed")
    assert "is not the file that was recorded" in refused(one, two, three)
