"""The second stage: what is recorded, and that a kill at any point changes nothing of it."""

from __future__ import annotations

import errno
import math
import multiprocessing
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from surerag.encoders import HashingEncoder
from surerag.errors import CapabilityError, ConfigurationError, InputError, ServiceError, StorageError
from surerag.readers.scripted import ScriptedReader, reply
from surerag.training.rewriter import Query, SampleOptions, sample
from surerag.training.rewriter.tables import queries_of
from surerag.types import Passage
from tests.failing_disk import FailingDisk
from tests.training.rewriter_models import CORPUS, QUERIES, Corpus, Talker, reading, rewriting

OPTIONS = SampleOptions(rewrites=5, top_n=3, window=4)


def sampled(folder: Path, reader: Talker | None = None, options: SampleOptions = OPTIONS, **other):
    reader = reader or Talker(reading)
    return sample(QUERIES, Talker(rewriting), reader, Corpus(), folder, options, **other)


def test_a_row_for_each_distinct_rewrite_with_all_rewards(tmp_path: Path) -> None:
    found = sampled(tmp_path, encoder=HashingEncoder())
    assert (found.queries, found.rewrites, found.failures) == (10, 30, 0)
    groups = list(queries_of(found.samples, "samples"))
    assert [rows[0]["query"] for rows in groups] == [query.text for query in QUERIES]
    good, copy, empty, other = groups[3]
    assert (good["rewrite"], good["sample"], good["times"]) == ("Where was Dov born?", 0, 2)
    assert (good["answer"], good["correct"], good["found"]) == ("Sild", True, True)
    assert good["passages"] == ["p3", "p0", "p1"]
    assert good["uncertainty"] == pytest.approx(math.exp(0.125))
    # The fourth passage is not among the first three, which a query finds that does not ask for a birth.
    assert (copy["rewrite"], copy["trouble"], copy["correct"]) == (
        "Where was Dov raised?",
        "unchanged",
        False,
    )
    assert copy["uncertainty"] > math.exp(1) and copy["found"] is False
    assert (empty["trouble"], empty["uncertainty"], empty["answer"]) == ("empty", None, None)
    assert other["passages"] == ["p0", "p1", "p2"]
    vectors = HashingEncoder().encode([QUERIES[3].text, *(CORPUS[at].text for at in (3, 0, 1))], "document")
    assert good["relevance"] == pytest.approx(float(np.mean(vectors[1:] @ vectors[0])), abs=1e-6)


def test_equal_prompts_are_asked_once_and_all_queries_of_a_batch_together(tmp_path: Path) -> None:
    reader = Talker(reading)
    found = sampled(tmp_path, reader)
    # Copy and third rewrite bring the same passages.
    assert len(reader.asked) == len(set(reader.asked)) < found.rewrites
    assert found.costs.rewrites == 50 and found.costs.answers == found.costs.retrievals == 30


def test_an_answer_without_a_word_is_infinitely_uncertain_after_resuming_too(tmp_path: Path) -> None:
    reader = ScriptedReader([reply("", logprobs=[]), reply("Velm", logprobs=-0.5)])
    rewriter = Talker(lambda prompt, at: (("one", "two")[at], -0.1))
    query = [Query("Where?")]

    class Two:
        def retrieve(self, text: str, k: int) -> list[Passage]:
            return [Passage(text)]

    found = sample(query, rewriter, reader, Two(), tmp_path, SampleOptions(rewrites=2))
    first = found.samples.read_bytes()
    [rows] = queries_of(found.samples, "samples")
    assert [row["uncertainty"] for row in rows] == [math.inf, pytest.approx(math.exp(0.5))]
    assert [row["correct"] for row in rows] == [None, None], "there are no gold answers"
    sample(query, rewriter, ScriptedReader([]), Two(), tmp_path, SampleOptions(rewrites=2))
    assert found.samples.read_bytes() == first


@pytest.mark.parametrize("local", [True, False])
def test_interrupted_anywhere_it_ends_with_the_same_bytes(tmp_path: Path, local: bool) -> None:
    calm = Talker(reading, local=local)
    expected = sampled(tmp_path / "calm", calm).samples.read_bytes()
    rng = random.Random(3)
    for trial in range(4):
        folder, deaths = tmp_path / f"{trial}", 0
        while True:
            dies_after = rng.randrange(1, len(calm.asked)) if deaths < 3 else None
            reader = Talker(reading, local=local, dies_after=dies_after)
            try:
                found = sampled(folder, reader)
                break
            except KeyboardInterrupt:
                deaths += 1
                assert not list(folder.glob("*.parquet*")), "half a file was left"
        assert found.samples.read_bytes() == expected
        assert found.costs.answers == 30
        again = Talker(reading, local=local)
        assert sampled(folder, again).samples.read_bytes() == expected
        assert again.asked == []


def sampling_process(folder: Path, notes: Path) -> None:
    """Sample slowly, to be killed."""

    def read(prompt: str, at: int) -> tuple[str, float]:
        time.sleep(0.002)
        return reading(prompt, at)

    read.__name__ = "reading"
    sampled(folder, Talker(read, notes, local=False), SampleOptions(rewrites=5, top_n=3, window=2))


@pytest.mark.timeout(300)
def test_killed_again_and_again_it_ends_with_the_same_bytes(tmp_path: Path) -> None:
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.training.test_rewriter_sampling"])
    calm = sampled(
        tmp_path / "calm", Talker(reading, local=False), SampleOptions(rewrites=5, top_n=3, window=2)
    )
    rng, folder, notes, kills = random.Random(1), tmp_path / "out", tmp_path / "notes", 0
    while True:
        before = notes.stat().st_size if notes.exists() else 0
        process = processes.Process(target=sampling_process, args=(folder, notes))
        process.start()
        patience = rng.randrange(1, 9)
        while kills < 6 and process.is_alive():
            grown = (notes.stat().st_size if notes.exists() else 0) - before
            if grown > patience * 150:
                process.kill()
            time.sleep(0.001)
        process.join()
        kills += process.exitcode == -signal.SIGKILL
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
    assert kills >= 2
    assert (folder / "samples.parquet").read_bytes() == calm.samples.read_bytes()


@pytest.mark.parametrize("local", [True, False])
def test_a_full_disk_ends_the_stage_and_nothing_more_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, local: bool
) -> None:
    options = replace(OPTIONS, window=1)
    reader = Talker(reading, local=local)
    with monkeypatch.context() as patched:
        # The first write names the run, the second keeps the first query.
        patched.setattr("surerag.lines.os", FailingDisk("write", errno.ENOSPC, after=2))
        with pytest.raises(StorageError, match="is kept"):
            sampled(tmp_path, reader, options)
    asked = len(reader.asked)
    assert not (tmp_path / "samples.parquet").exists()
    again = Talker(reading, local=local)
    sampled(tmp_path, again, options)
    calm = Talker(reading, local=local)
    sampled(tmp_path / "calm", calm, options)
    assert (tmp_path / "samples.parquet").read_bytes() == (tmp_path / "calm/samples.parquet").read_bytes()
    first, second = len(calm.asked) - len(again.asked), asked
    assert 0 < first < second < len(calm.asked) // 2


def test_queries_of_one_batch_stop_when_one_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = Talker(reading, local=False)
    monkeypatch.setattr("surerag.lines.os", FailingDisk("write", errno.ENOSPC, after=1))
    with pytest.raises(StorageError):
        sampled(tmp_path, reader, OPTIONS)
    # Four queries were under way, six were not.
    assert 0 < len(reader.asked) <= 4 * 3


def test_failures_are_raised_after_all_others_and_asked_again_alone(tmp_path: Path) -> None:
    with pytest.raises(ServiceError, match=r"1 of 10 queries could not be sampled.*was Cyr"):
        sampled(tmp_path, Talker(reading, local=False, fails_at="Question: Where was Cyr"))
    last = Talker(reading, local=False)
    assert sampled(tmp_path, last).queries == 10
    assert last.asked and all("Cyr" in prompt for prompt in last.asked)


@pytest.mark.parametrize("local", [True, False])
def test_failures_can_be_skipped(tmp_path: Path, local: bool) -> None:
    reader = Talker(reading, local=local, fails_at="Question: Where was Cyr")
    found = sampled(tmp_path, reader, SampleOptions(rewrites=5, top_n=3, window=4, on_failure="skip"))
    assert (found.queries, found.failures) == (9, 1)
    assert "Cyr" not in str(parquet.read_table(found.samples).column("query").to_pylist())


def test_another_run_is_refused_reused_or_thrown_away(tmp_path: Path) -> None:
    sampled(tmp_path)
    warmer = SampleOptions(rewrites=5, top_n=3, window=4, temperature=1.5)
    with pytest.raises(ConfigurationError, match=r"temperature was 1.0 and is 1.5"):
        sampled(tmp_path, options=warmer)
    with pytest.raises(ConfigurationError, match=r"corpus was '' and is 'other'"):
        sampled(tmp_path, corpus="other")
    reader = Talker(reading)
    sampled(tmp_path, reader, warmer, on_change="reuse")
    assert reader.asked, "what was answered at another temperature is no answer"


def test_a_reader_without_what_the_metric_needs_is_refused_first(tmp_path: Path) -> None:
    reader = Talker(reading)
    with pytest.raises(CapabilityError, match="the metric energy needs energies"):
        sampled(tmp_path, reader, SampleOptions(metric="energy"))
    assert reader.asked == [] and not list(tmp_path.iterdir())


def test_no_query_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no query"):
        sample([], Talker(rewriting), Talker(reading), Corpus(), tmp_path)
