"""What changes the result is another run; what does not is gone on with, and asks nothing again."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from surerag.errors import ConfigurationError, ContextLengthError, ServiceError, StorageError
from surerag.training.rewriter import (
    AlignOptions,
    DistilOptions,
    FineTuning,
    Query,
    SampleOptions,
    align,
    distil,
    sample,
    tuning,
)
from surerag.training.rewriter.locking import locked
from surerag.training.rewriter.tables import queries_of
from tests.training.rewriter_models import QUERIES, Corpus, Talker, reading, rewriting, teaching, tiny_base

FAST = FineTuning(3e-3, batch=4, micro_batch=4, epochs=3, validation=0, save_every=2, device="cpu")
OPTIONS = SampleOptions(rewrites=5, top_n=3, window=4)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


def failing_at(monkeypatch: pytest.MonkeyPatch, step: int, error: BaseException) -> None:
    watching = tuning._Watch.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **other: Any) -> None:
        watching(self, args, state, control, **other)
        if state.global_step == step:
            raise error

    monkeypatch.setattr(tuning._Watch, "on_step_end", on_step_end)


def test_out_of_memory_says_what_to_lower_and_goes_on_there(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm = distil(QUERIES, Talker(teaching), base, tmp_path / "calm", DistilOptions(FAST))
    with monkeypatch.context() as patched:
        failing_at(patched, 5, torch.OutOfMemoryError("out of memory"))
        with pytest.raises(ServiceError, match=r"too little memory.*--micro-batch"):
            distil(QUERIES, Talker(teaching), base, tmp_path / "out", DistilOptions(FAST))
    steps: list[int] = []
    with monkeypatch.context() as patched:
        watching = tuning._Watch.on_step_end

        def on_step_end(self: Any, args: Any, state: Any, control: Any, **other: Any) -> None:
            steps.append(state.global_step)
            watching(self, args, state, control, **other)

        patched.setattr(tuning._Watch, "on_step_end", on_step_end)
        lower = DistilOptions(replace(FAST, micro_batch=1, gradient_checkpointing=True))
        done = distil(QUERIES, Talker(teaching), base, tmp_path / "out", lower)
    assert steps == [5, 6, 7, 8, 9], "four steps had been kept"
    one, two = (load_file(model / "model.safetensors") for model in (calm.model, done.model))
    assert max(float((one[name] - two[name]).abs().max()) for name in one) < 1e-4


def test_a_full_disk_ends_training_with_a_sentence(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for error in (
        OSError(28, "No space left on device", "checkpoint"),
        RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0"),
    ):
        with monkeypatch.context() as patched:
            failing_at(patched, 3, error)
            with pytest.raises(StorageError, match=r"No space left.*last checkpoint.*Free some space"):
                distil(QUERIES, Talker(teaching), base, tmp_path, DistilOptions(FAST))
    again = Talker(teaching)
    assert distil(QUERIES, again, base, tmp_path, DistilOptions(FAST)).model.is_dir()
    assert again.asked == []


@pytest.mark.parametrize("local", [True, False])
def test_other_gold_answers_ask_nobody_and_are_judged_anew(tmp_path: Path, local: bool) -> None:
    first = sample(QUERIES, Talker(rewriting), Talker(reading, local=local), Corpus(), tmp_path, OPTIONS)
    before = [row for rows in queries_of(first.samples, "samples") for row in rows]
    changed = [replace(QUERIES[0], golds=("Orun",), id="other"), *QUERIES[1:]]
    reader, rewriter = Talker(reading, local=local), Talker(rewriting)
    done = sample(changed, rewriter, reader, Corpus(), tmp_path, OPTIONS)
    assert reader.asked == rewriter.asked == []
    after = [row for rows in queries_of(done.samples, "samples") for row in rows]
    assert [row["uncertainty"] for row in after] == [row["uncertainty"] for row in before]
    good = after[0]
    assert (good["query_id"], good["golds"]) == ("other", ["Orun"])
    # The third passage that is found tells of Orun.
    assert (good["correct"], good["found"]) == (False, True)
    assert before[0]["correct"] is True and after[4:] == before[4:]


def test_gold_answers_are_none_of_the_first_stages_business(tmp_path: Path, base: Path) -> None:
    distil(QUERIES, Talker(teaching), base, tmp_path, DistilOptions(FAST))
    again = Talker(teaching)
    distil([Query(query.text) for query in QUERIES], again, base, tmp_path, DistilOptions(FAST))
    assert again.asked == []


@pytest.mark.parametrize("local", [True, False])
def test_concurrency_is_no_other_run(tmp_path: Path, local: bool) -> None:
    first = sample(QUERIES, Talker(rewriting), Talker(reading, local=local), Corpus(), tmp_path, OPTIONS)
    before, reader = first.samples.read_bytes(), Talker(reading, local=local)
    sample(QUERIES, Talker(rewriting), reader, Corpus(), tmp_path, replace(OPTIONS, window=7))
    assert reader.asked == [] and first.samples.read_bytes() == before


def test_a_query_more_is_asked_alone(tmp_path: Path) -> None:
    sample(QUERIES[:9], Talker(rewriting), Talker(reading), Corpus(), tmp_path, OPTIONS)
    reader = Talker(reading)
    done = sample(QUERIES, Talker(rewriting), reader, Corpus(), tmp_path, OPTIONS, on_change="reuse")
    assert done.queries == 10 and all("Jan" in prompt.rpartition("Question")[2] for prompt in reader.asked)


def test_a_folder_belongs_to_one_process(tmp_path: Path, base: Path) -> None:
    with locked(tmp_path):
        teacher = Talker(teaching)
        with pytest.raises(ConfigurationError, match="another process is writing"):
            distil(QUERIES, teacher, base, tmp_path, DistilOptions(FAST))
        with pytest.raises(ConfigurationError, match="another process is writing"):
            align([("a", "b", "c")], base, tmp_path, AlignOptions(fine_tuning=FAST))
        assert teacher.asked == []


class Short(Talker):
    """Reads no prompt that names Cyr."""

    def generate(self, prompts: Any, sampling: Any) -> Any:
        if long := [prompt for prompt in prompts if "Cyr" in str(prompt)]:
            raise ContextLengthError("a prompt of 9,000 tokens does not fit", inputs=long)
        return super().generate(prompts, sampling)


@pytest.mark.parametrize("local", [True, False])
def test_one_query_that_is_too_long_costs_only_itself(
    tmp_path: Path, base: Path, caplog: pytest.LogCaptureFixture, local: bool
) -> None:
    caplog.set_level(logging.WARNING, "surerag")
    done = distil(QUERIES, Short(teaching, local=local), base, tmp_path / "a", DistilOptions(FAST))
    assert (done.examples, done.failures) == (9, 1)
    assert "1 of 10 queries do not fit" in caplog.text
    found = sample(QUERIES, Short(rewriting, local=local), Talker(reading), Corpus(), tmp_path / "b", OPTIONS)
    assert (found.queries, found.failures) == (9, 1)


def test_without_a_metric_any_reader_will_do(tmp_path: Path) -> None:
    done = sample(
        QUERIES, Talker(rewriting), Talker(reading), Corpus(), tmp_path, replace(OPTIONS, metric=None)
    )
    rows = next(queries_of(done.samples, "samples"))
    assert (rows[0]["answer"], rows[0]["correct"], rows[0]["found"], rows[0]["uncertainty"]) == (
        "Velm", True, True, None,
    )  # fmt: skip
