"""Recording: what stands in a row, parts, kills, digests, failures."""

from __future__ import annotations

import multiprocessing
import random
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from surerag import LazyRAG, UncertaintyRewriter
from surerag.errors import ConfigurationError, InputError, RefusedError, TransientServiceError
from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader
from surerag.records import NotRecordedError, Trace, record
from surerag.types import EntropyTrace, Generation, Sampling, TokenTrace
from tests.evaluation.noting import NotingReader, notes_of
from tests.records.corpora import Dying, corpus, pipeline, questions
from tests.records.killed import recording


def test_a_row_holds_every_condition_with_costs_signals_and_measures(tmp_path: Path) -> None:
    reader = NotingReader(local=True)
    trace = record(pipeline(reader, 6), questions(6), tmp_path, part_size=4)
    rows = list(trace)
    assert [part.rows for part in trace.manifest] == [4, 2]
    assert trace.manifest.complete and len(trace) == 6
    row = rows[0]
    assert [one.condition for one in row.passes][:2] == ["none", "retrieval"]
    assert {"original", "verified", "compressed"} <= {one.condition for one in row.passes}
    retrieval = row.under("retrieval")
    assert retrieval is not None and retrieval.text is not None
    assert retrieval.correct == float("Velm" in retrieval.text)
    assert retrieval.retrieved[0].id == "p0" and retrieval.retrieved[0].score is not None
    assert len(retrieval.samples) == 5 and {"perplexity", "disagreement", "top_score"} <= set(
        retrieval.signals
    )
    assert retrieval.calls == 1 and retrieval.completion_tokens > 0 and retrieval.seconds is not None
    compressed = row.under("compressed")
    assert compressed is not None and compressed.calls > 1
    assert {"delta_seper", "compression_before", "compression_after", "rewritten_kept"} <= set(row.measures)
    own = trace.about["signals"]
    assert set(own.values()) == {"mean_entropy_8", "perplexity"} and pipeline(reader, 2)[1].signal in own
    [first, *_] = trace.decision_rows("original", "verified")
    assert first.signals[pipeline(reader, 2)[1].signal] == first.signals["perplexity"]
    assert trace.about["settings"]["lazy"]["top_n"] == 2 and trace.about["versions"]["surerag"]


class Bounded(NotingReader):
    """Knows entropies as intervals, and the energies of its steps."""

    TRACE = TokenTrace(
        ("in", " Velm"), (-0.1, -0.4), EntropyTrace((0.2, 0.5), (0.4, 0.5), exact=False), (9.5, 8.25)
    )

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(logprobs=True, entropy="bounded", energy=True)

    def generate(self, prompts: Any, sampling: Sampling) -> Any:
        self.asked += [str(prompt) for prompt in prompts]
        assert sampling.trace == "entropy"
        return [[Generation("in Velm", 9, self.TRACE, completion_tokens=2)] * sampling.n for _ in prompts]


def test_entropy_intervals_and_energies_survive(tmp_path: Path) -> None:
    reader = Bounded()
    trace = record(LazyRAG(reader, corpus(2), mode="standard"), questions(1), tmp_path, n_samples=0)
    [row] = trace
    one = row.under("none")
    assert one is not None
    assert one.trace == Bounded.TRACE
    assert one.signals["mean_entropy_8"] == pytest.approx(0.4)
    assert one.signals["energy"] == pytest.approx(-8.875)
    assert trace.reader().capabilities == replace(reader.capabilities, local=True)
    [[again]] = trace.reader().generate([reader.asked[0]], Sampling(max_tokens=256, trace="none"))
    assert again.trace == Bounded.TRACE


@pytest.mark.parametrize("local", [True, False])
@pytest.mark.parametrize("last", [0, 1, 3, 7, 12])
def test_killed_anywhere_it_goes_on_and_asks_nothing_again(tmp_path: Path, local: bool, last: int) -> None:
    whole = NotingReader(local=local)
    expected = list(record(pipeline(whole, 7), questions(7), tmp_path / "whole", part_size=3))
    dying = Dying(last, local=local)
    with pytest.raises(KeyboardInterrupt):
        record(pipeline(dying, 7), questions(7), tmp_path / "killed", part_size=3)
    again = NotingReader(local=local)
    rows = list(record(pipeline(again, 7), questions(7), tmp_path / "killed", part_size=3))
    assert [without_times(row) for row in rows] == [without_times(row) for row in expected]
    assert sorted(dying.asked + again.asked) == sorted(whole.asked)
    assert not list((tmp_path / "killed").glob("open*"))


@pytest.mark.parametrize("local", [True, False])
def test_processes_that_are_killed_for_good(tmp_path: Path, local: bool) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.records.killed"])

    def started(name: str, seconds: float) -> multiprocessing.process.BaseProcess:
        (tmp_path / name).mkdir(exist_ok=True)
        process = processes.Process(
            target=recording, args=(tmp_path / name / "t", tmp_path / name / "notes", seconds, local)
        )
        process.start()
        return process

    calm = started("calm", 0.0)
    calm.join()
    once = notes_of(tmp_path / "calm" / "notes")
    assert calm.exitcode == 0 and len(once) > 100
    rng, notes = random.Random(3), tmp_path / "killed" / "notes"
    kills = 0
    while kills < 8:
        process = started("killed", 0.004)
        reach = len(notes_of(notes)) + rng.randrange(1, 40)
        while process.is_alive() and len(notes_of(notes)) < reach:
            time.sleep(0.001)
        time.sleep(rng.random() * 0.004)
        alive = process.is_alive()
        process.kill()
        process.join()
        if not alive:
            break
        kills += 1
    last = started("killed", 0.0)
    last.join()
    assert last.exitcode == 0 and kills >= 3
    asked = notes_of(notes)
    assert set(asked) == set(once)
    # What a kill costs is what was being asked: a batch of a local model, or the requests under way.
    assert len(asked) - len(once) <= kills * (12 if local else 4)
    rows, calm_rows = list(Trace(tmp_path / "killed" / "t")), list(Trace(tmp_path / "calm" / "t"))
    assert [without_times(row) for row in rows] == [without_times(row) for row in calm_rows]


def test_a_reader_without_log_probabilities_is_recorded_and_replayed(tmp_path: Path) -> None:
    reader = NotingReader(local=True, logprobs=False)
    found = corpus(4)
    rag = LazyRAG(reader, found, "Towns lie on rivers.", gate="disagreement", top_n=2, max_tokens=8)
    rewriter = UncertaintyRewriter(reader, found, metric="disagreement", n_samples=5, top_n=2, max_tokens=8)
    trace = record([rag, rewriter], questions(4), tmp_path)
    row = next(iter(trace))
    assert {one.condition for one in row.passes} >= {"none", "summaries", "retrieval", "strong", "original"}
    assert all(one.trace is None and "perplexity" not in one.signals for one in row.passes)
    again = LazyRAG(
        trace.reader(),
        trace.retriever(),
        trace.retriever("summaries"),
        gate="disagreement",
        top_n=2,
        max_tokens=8,
    )
    texts = [text for text, _ in questions(4)]
    live, replayed = rag.run_many(texts), again.run_many(texts)
    assert [one.decision for one in replayed] == [one.decision for one in live]
    assert [one.answer for one in replayed] == [one.answer for one in live]


def without_times(row: Any) -> Any:
    return replace(row, passes=tuple(replace(one, seconds=None) for one in row.passes))


def test_memory_does_not_grow_with_rows(tmp_path: Path) -> None:
    def many(n: int) -> Iterator[tuple[str, list[str]]]:
        yield from questions(n)

    class Forgetful(NotingReader):
        def _note(self, texts: Any) -> None:
            pass

    peaks = []
    for n in (8, 100, 400):  # the first one warms up what is made once
        rag = LazyRAG(Forgetful(local=True), corpus(2), mode="standard", top_n=1, max_tokens=8)
        tracemalloc.start()
        record(rag, many(n), tmp_path / str(n), part_size=8, n_samples=0)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < 1.4 * peaks[1]


def test_digests_stand_in_place_of_texts(tmp_path: Path) -> None:
    reader = NotingReader(local=True)
    trace = record(pipeline(reader, 4), questions(4), tmp_path, hash_texts=True)
    plain = list(record(pipeline(reader, 4), questions(4), tmp_path / "plain"))
    told = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    table = "".join(str(pq.read_table(file).to_pylist()) for file in tmp_path.glob("*.parquet"))
    for text in ("Person", "Velm", "Orun", "born"):
        assert text.encode() not in told and text not in table
    rows = list(trace)
    assert [row.question for row in rows] == [None] * 4 and rows[0].golds is None
    assert [one.signals for row in rows for one in row.passes] == [
        one.signals for row in plain for one in row.passes
    ]
    assert [row.correct_with for row in trace.decision_rows()] == [
        row.under("retrieval").correct
        for row in plain  # type: ignore[union-attr]
    ]
    # Equal texts have equal digests, and nobody can find out which text by hashing candidates.
    assert rows[0].under("retrieval").retrieved[0].sha256 == rows[0].under("original").retrieved[0].sha256  # type: ignore[union-attr]
    assert rows[0].sha256 != plain[0].sha256
    assert not (tmp_path / "open.key").exists()
    with pytest.raises(ConfigurationError, match="holds digests in place of texts"):
        trace.reader()


def test_hashed_trace_goes_on_after_a_kill_with_the_same_key(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        record(pipeline(Dying(9, local=True), 6), questions(6), tmp_path, part_size=2, hash_texts=True)
    rows = list(
        record(pipeline(NotingReader(local=True), 6), questions(6), tmp_path, part_size=2, hash_texts=True)
    )
    digests = {one.sha256 for row in rows for one in row.passes}
    assert len(digests) < len([one for row in rows for one in row.passes])  # towns come again across parts


def test_what_was_not_recorded_is_refused_with_the_reason(tmp_path: Path) -> None:
    trace = record(pipeline(NotingReader(local=True), 2), questions(2), tmp_path)
    rag = LazyRAG(trace.reader(), trace.retriever(), mode="standard", top_n=2, max_tokens=8)
    assert rag.run(questions(1)[0][0]).answer == next(iter(trace)).under("retrieval").text  # type: ignore[union-attr]
    with pytest.raises(NotRecordedError, match="another sampling: max_tokens=8; asked: max_tokens=9"):
        rag.with_options(max_tokens=9).run(questions(1)[0][0])
    with pytest.raises(NotRecordedError, match="does not hold what 'retriever' found for 'Who"):
        rag.run("Who else?")
    prompt = "Where was Person 0 born?"
    samples = Sampling(n=5, temperature=1.0, max_tokens=8)
    recorded = first_prompt(rag, prompt)
    assert [one.text for one in trace.reader().generate([recorded], replace(samples, n=3))[0]] == [
        one.text
        for one in next(iter(trace)).under("none").samples[:3]  # type: ignore[union-attr]
    ]
    with pytest.raises(NotRecordedError, match=r"another sampling: n=5; asked: n=6"):
        trace.reader().generate([recorded], replace(samples, n=6))
    with pytest.raises(ConfigurationError, match="holds no answers of 'other'"):
        trace.reader("other")


def first_prompt(rag: LazyRAG, question: str) -> Any:
    """Return the prompt without context, as the reader gets it."""
    seen: list[Any] = []

    class Seeing(NotingReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            seen.extend(prompts)
            return super().generate(prompts, sampling)

    rag.with_options(mode="none", reader=Seeing(local=True)).run(question)
    return seen[0]


def test_other_settings_or_questions_are_refused_and_restart_begins_anew(tmp_path: Path) -> None:
    reader = NotingReader(local=True)
    record(pipeline(reader, 4), questions(4), tmp_path, part_size=2)
    with pytest.raises(ConfigurationError, match="n_samples was 5 and is 3"):
        record(pipeline(reader, 4), questions(4), tmp_path, part_size=2, n_samples=3)
    with pytest.raises(InputError, match="other questions in part 1"):
        record(pipeline(reader, 4), [*questions(2), *questions(4)[:2]], tmp_path, part_size=2)
    with pytest.raises(InputError, match="complete with 4 questions"):
        record(pipeline(reader, 4), questions(6), tmp_path, part_size=2)
    trace = record(pipeline(reader, 4), questions(2), tmp_path, part_size=2, on_change="restart")
    assert len(trace) == 2 and len(list(tmp_path.glob("questions-*.parquet"))) == 1


def test_a_failing_question_stands_in_its_row_and_a_failing_service_ends_the_run(tmp_path: Path) -> None:
    class Failing(NotingReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            if any("Person 1 born" in str(prompt) for prompt in prompts):
                raise TransientServiceError("overloaded")
            return super().generate(prompts, sampling)

    trace = record(pipeline(Failing(), 4), questions(4), tmp_path / "one")
    rows = list(trace)
    assert rows[1].passes == () and "none: TransientServiceError: overloaded" in rows[1].error
    assert all(row.passes and not row.error for row in (rows[0], rows[2], rows[3]))

    class Down(NotingReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            raise TransientServiceError("down")

    with pytest.raises(TransientServiceError):
        record(pipeline(Down(), 4), questions(4), tmp_path / "all")
    assert not Trace(tmp_path / "all").manifest.parts

    class Refusing(NotingReader):
        def generate(self, prompts: Any, sampling: Any) -> Any:
            if any("Person 1 born" in str(prompt) for prompt in prompts):
                raise RefusedError("no such model")
            return super().generate(prompts, sampling)

    with pytest.raises(RefusedError):
        record(pipeline(Refusing(), 4), questions(4), tmp_path / "refused")


def test_what_cannot_be_recorded_is_refused_at_once(tmp_path: Path) -> None:
    reader = NotingReader()
    with pytest.raises(ConfigurationError, match="ScriptedReader cannot be recorded"):
        record(ScriptedReader(["x"]), questions(1), tmp_path)
    with pytest.raises(ConfigurationError, match="no part that answers"):
        record(pipeline(reader, 2)[2:3], questions(1), tmp_path)
    with pytest.raises(ConfigurationError, match="judge must be"):
        record(pipeline(reader, 2), questions(1), tmp_path, judge="bleu")
    with pytest.raises(InputError, match="must be a list, got a text"):
        record(pipeline(reader, 2), [("Where?", "Velm")], tmp_path)
    with pytest.raises(InputError, match="no questions"):
        record(pipeline(reader, 2), [], tmp_path / "none")
    assert reader.asked == []


def test_a_changed_file_or_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    trace = record(pipeline(NotingReader(local=True), 3), questions(3), tmp_path / "t")
    file = tmp_path / "t" / trace.manifest.parts[0].files["questions"].name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(InputError, match="not the file that was recorded"):
        list(Trace(tmp_path / "t"))
    file.unlink()
    with pytest.raises(InputError, match="is missing"):
        list(Trace(tmp_path / "t"))
    with pytest.raises(InputError, match="holds no trace"):
        Trace(tmp_path)
    manifest = tmp_path / "t" / "manifest.jsonl"
    manifest.write_text(manifest.read_text().replace('"version":1', '"version":2', 1))
    with pytest.raises(InputError, match="version 2 of the format, and version 1 is known"):
        Trace(tmp_path / "t")
