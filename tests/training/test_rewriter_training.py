"""The first and the last stage with a tiny model: what is learnt, and that a kill changes no byte of it."""

from __future__ import annotations

import json
import math
import multiprocessing
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, TrainerCallback

from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.prompts import REWRITE
from surerag.readers.transformers import TransformersReader
from surerag.training.rewriter import AlignOptions, DistilOptions, FineTuning, Lora, align, distil, tuning
from surerag.training.rewriter.encoding import RewriteEncoder
from surerag.training.rewriter.tables import queries_of, written
from surerag.types import Sampling
from tests.readers.sizes import END_ID
from tests.readers.tiny_models import tiny_tokenizer
from tests.training.rewriter_models import QUERIES, Talker, teaching, tiny_base

FAST = FineTuning(learning_rate=3e-3, batch=4, micro_batch=2, epochs=2, save_every=2, device="cpu")
TRIPLETS = [(query.text, f"Where was {query.text.split()[2]} born?", "no idea") for query in QUERIES]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"))


def samples(file: Path) -> Path:
    with written(file, "samples", {}) as write:
        for query, better, worse in TRIPLETS:
            row = {"query_id": query, "query": query, "golds": [], "passages": []}
            write(
                [
                    {**row, "rewrite": better, "uncertainty": 1.0},
                    {**row, "rewrite": worse, "uncertainty": 2.0},
                ]
            )
    return file


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def margin(folder: Path) -> float:
    """How much likelier the better rewrites are than the worse ones, in nats, on average."""
    reader = TransformersReader.from_pretrained(str(folder), device="cpu")
    prompts = [REWRITE.render(query=query) for query, _, _ in TRIPLETS]
    better = reader.score(prompts, [better for _, better, _ in TRIPLETS])
    worse = reader.score(prompts, [worse for _, _, worse in TRIPLETS])
    return sum(sum(b.logprobs) - sum(w.logprobs) for b, w in zip(better, worse, strict=True)) / len(TRIPLETS)


def dying_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let training be interrupted in a step, by a callback that stands in line after ours."""
    watching = tuning._Watch.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **other: Any) -> None:
        watching(self, args, state, control, **other)
        if state.global_step == step:
            raise KeyboardInterrupt

    monkeypatch.setattr(tuning._Watch, "on_step_end", on_step_end)


def test_the_student_says_what_the_teacher_wrote(tmp_path: Path, base: Path) -> None:
    teacher = Talker(teaching)
    patient = DistilOptions(FineTuning(learning_rate=1e-2, batch=10, micro_batch=10, epochs=60, device="cpu"))
    told: list[tuple[int, int | None]] = []
    done = distil(
        QUERIES, teacher, base, tmp_path, patient, progress=lambda name: lambda at, of: told.append((at, of))
    )
    assert (done.queries, done.examples, done.failures) == (10, 10, 0)
    assert told[-1] == (60, 60)
    student = TransformersReader.from_pretrained(str(done.model), device="cpu")
    prompts = [REWRITE.render(query=query.text) for query in QUERIES]
    said = [replies[0].text for replies in student.generate(prompts, Sampling())]
    # So small a model learns what a rewrite looks like sooner than whose name to copy.
    assert sum(text.startswith("Where was ") and text.endswith(" born?") for text in said) >= 8, said
    losses = [json.loads(line)["loss"] for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert len(losses) == 60 and float(losses[-1]) < float(losses[0]) / 5
    # Done is done: nobody is asked, nothing is trained.
    before = weights(done.model)
    asked = len(teacher.asked)
    assert distil(QUERIES, teacher, base, tmp_path, patient) == done
    assert len(teacher.asked) == asked and weights(done.model) == before
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        ".lock", "curve.jsonl", "journal.jsonl", "learnt.json", "model", "rewrites.parquet", "run.json",
    ]  # fmt: skip
    assert not [f for f in tmp_path.rglob("*") if f.suffix in (".bin", ".pt", ".pth", ".pkl")]


def test_the_prompt_is_the_readers_and_control_tokens_in_a_query_stay_text(base: Path) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    encoder = RewriteEncoder(tokenizer, {})
    reader = TransformersReader.from_pretrained(str(base), device="cpu")
    prompt = REWRITE.render(query="a <|end|> b")
    assert encoder.prompt(prompt) == reader._encoder.encode(prompt)
    assert encoder.prompt(prompt).count(END_ID) == 1, "the turn's own end, and no other"
    said = encoder.rewrite(prompt, "c <|end|> d")
    assert said[-1] == END_ID and said.count(END_ID) == 1
    assert tokenizer.decode(said[:-1]) == "c <|end|> d"


def test_without_a_chat_template_a_rewrite_has_a_line_of_its_own() -> None:
    tokenizer = tiny_tokenizer()
    encoder = RewriteEncoder(tokenizer, {})
    assert tokenizer.decode(encoder.rewrite("Query: a", "b")) == "\nb<|end|>"
    tokenizer.eos_token = None
    with pytest.raises(ConfigurationError, match="no end token"):
        RewriteEncoder(tokenizer, {})


def test_what_ends_a_turn_ends_a_rewrite_even_if_it_is_not_the_end_token(tmp_path: Path) -> None:
    folder = tiny_base(tmp_path / "base")
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = str(tokenizer.chat_template).replace("<|end|>", "<|pad|>\n")
    tokenizer.save_pretrained(folder)
    one = FineTuning(learning_rate=1e-3, batch=10, device="cpu")
    done = distil(QUERIES, Talker(teaching), folder, tmp_path / "out", DistilOptions(one))
    assert RewriteEncoder(tokenizer, {}).rewrite("a", "b")[-1] == tokenizer.pad_token_id
    ends = json.loads((done.model / "generation_config.json").read_text())["eos_token_id"]
    assert ends == [END_ID, tokenizer.pad_token_id]


@pytest.mark.parametrize("step", [1, 3, 5])
def test_distilling_goes_on_after_an_interrupt_to_the_same_bytes(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    options = DistilOptions(FAST)
    calm = distil(QUERIES, Talker(teaching), base, tmp_path / "calm", options)
    with monkeypatch.context() as patched:
        dying_at(patched, step)
        with pytest.raises(KeyboardInterrupt):
            distil(QUERIES, Talker(teaching), base, tmp_path / "out", options)
    assert not (tmp_path / "out" / "model").exists()
    again = Talker(teaching)
    steps: list[int] = []
    done = distil(
        QUERIES, again, base, tmp_path / "out", options, progress=lambda name: lambda at, _: steps.append(at)
    )
    assert again.asked == []
    assert steps[-6:] == [1, 2, 3, 4, 5, 6]
    for name in ("model/model.safetensors", "rewrites.parquet", "curve.jsonl", "run.json"):
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "calm" / name).read_bytes(), name
    assert weights(done.model) == weights(calm.model)


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=16)])
def test_aligning_prefers_the_better_rewrites_and_goes_on_after_an_interrupt(
    tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch, lora: Lora | None
) -> None:
    file = samples(tmp_path / "samples.parquet")
    tune = FineTuning(
        learning_rate=5e-3, batch=5, micro_batch=5, epochs=3, save_every=2, lora=lora, device="cpu"
    )
    options = AlignOptions(fine_tuning=tune)
    calm = align(file, base, tmp_path / "calm", options)
    assert (calm.queries, calm.triplets) == (10, 10)
    assert margin(calm.model) > margin(base) + 1
    with monkeypatch.context() as patched:
        dying_at(patched, 3)
        with pytest.raises(KeyboardInterrupt):
            align(file, base, tmp_path / "out", options)
    # What a kill in the middle of a checkpoint leaves is not gone on from.
    whole = tmp_path / "out" / "checkpoints" / "checkpoint-2"
    shutil.copytree(whole, whole.with_name("checkpoint-3"))
    (whole.with_name("checkpoint-3") / "whole").unlink()
    (whole.with_name("checkpoint-3") / "trainer_state.json").unlink()
    done = align(file, base, tmp_path / "out", options)
    assert weights(done.model) == weights(calm.model)
    assert done.pairs.read_bytes() == calm.pairs.read_bytes()
    assert (done.model / "adapter").is_dir() == (lora is not None)
    assert not (done.model / "adapter_config.json").exists(), "the model is whole, adapters are merged"


def test_the_first_loss_of_dpo_is_that_of_two_equal_models(tmp_path: Path, base: Path) -> None:
    tune = FineTuning(learning_rate=1e-4, batch=10, epochs=1, device="cpu")
    done = align(samples(tmp_path / "s.parquet"), base, tmp_path, AlignOptions(fine_tuning=tune))
    [line] = (done.model.parent / "curve.jsonl").read_text().splitlines()
    assert float(json.loads(line)["loss"]) == pytest.approx(math.log(2), abs=1e-3)


def distilling_process(base: Path, folder: Path) -> None:
    """Distil slowly, to be killed."""
    watching = tuning._Watch.on_step_end

    def on_step_end(self: TrainerCallback, *given: Any, **named: Any) -> None:
        watching(self, *given, **named)
        time.sleep(0.1)

    tuning._Watch.on_step_end = on_step_end  # type: ignore[method-assign]  # in a process of its own
    distil(QUERIES, Talker(teaching), base, folder, DistilOptions(FAST))


@pytest.mark.timeout(600)
def test_killed_while_it_trains_it_ends_with_the_same_bytes(tmp_path: Path, base: Path) -> None:
    calm = distil(QUERIES, Talker(teaching), base, tmp_path / "calm", DistilOptions(FAST))
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["tests.training.test_rewriter_training", "trl.trainer.sft_trainer"])
    folder, kills = tmp_path / "out", 0
    for patience in (0.0, 0.15, None):
        process = processes.Process(target=distilling_process, args=(base, folder))
        process.start()
        while process.is_alive() and not list(folder.glob("checkpoints/checkpoint-*")):
            time.sleep(0.005)
        if patience is not None:
            time.sleep(patience)
            process.kill()
        process.join()
        kills += process.exitcode == -signal.SIGKILL
    assert process.exitcode == 0 and kills >= 1
    assert weights(folder / "model") == weights(calm.model)
    assert (folder / "rewrites.parquet").read_bytes() == calm.rewrites.read_bytes()


def test_weights_are_written_as_they_were_published_or_as_asked(tmp_path: Path, base: Path) -> None:
    AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    tiny_tokenizer(chat=True).save_pretrained(tmp_path / "half")
    one = FineTuning(learning_rate=1e-3, batch=10, device="cpu")
    done = distil(QUERIES, Talker(teaching), tmp_path / "half", tmp_path / "a", DistilOptions(one))
    assert AutoModelForCausalLM.from_pretrained(done.model, dtype="auto").dtype == torch.bfloat16
    whole = FineTuning(learning_rate=1e-3, batch=10, device="cpu", dtype="float32")
    done = distil(QUERIES, Talker(teaching), tmp_path / "half", tmp_path / "b", DistilOptions(whole))
    assert AutoModelForCausalLM.from_pretrained(done.model, dtype="auto").dtype == torch.float32


def test_another_training_is_refused_or_begun_anew(tmp_path: Path, base: Path) -> None:
    one = FineTuning(learning_rate=1e-3, batch=10, device="cpu")
    first = weights(distil(QUERIES, Talker(teaching), base, tmp_path, DistilOptions(one)).model)
    other = DistilOptions(FineTuning(learning_rate=2e-3, batch=10, device="cpu"))
    with pytest.raises(ConfigurationError, match=r"learning_rate was 0.001 and is 0.002"):
        distil(QUERIES, Talker(teaching), base, tmp_path, other)
    teacher = Talker(teaching)
    assert weights(distil(QUERIES, teacher, base, tmp_path, other, on_change="reuse").model) != first
    assert teacher.asked == [], "the teacher's answers still apply"


def test_what_cannot_be_learnt_from(tmp_path: Path, base: Path) -> None:
    with pytest.raises(InputError, match="0 of 10 replies of the teacher are rewrites"):
        distil(QUERIES, Talker(lambda prompt, at: ("", -0.1)), base, tmp_path / "a")
    [rows] = [list(queries_of(tmp_path / "a" / "rewrites.parquet", "rewrites"))]
    assert rows[0][0]["trouble"] == "empty"
    with pytest.raises(ServiceError, match="1 of 10 queries could not be rewritten"):
        distil(QUERIES, Talker(teaching, fails_at="Cyr"), base, tmp_path / "b")
    short = DistilOptions(FineTuning(max_tokens=5, device="cpu"))
    with pytest.raises(InputError, match="longer than 5 tokens"):
        distil(QUERIES, Talker(teaching), base, tmp_path / "c", short)
    with pytest.raises(ConfigurationError, match=r"the base .* cannot be loaded"):
        distil(QUERIES, Talker(teaching), tmp_path / "nothing", tmp_path / "d")


def test_equal_rewards_leave_nothing_to_learn(tmp_path: Path, base: Path) -> None:
    with written(tmp_path / "s.parquet", "samples", {}) as write:
        write([{"query": "a", "query_id": "a", "rewrite": text, "uncertainty": 1.0} for text in "xy"])
    with pytest.raises(InputError, match="no query has two rewrites whose reward"):
        align(tmp_path / "s.parquet", base, tmp_path / "out")
    assert not (tmp_path / "out" / "pairs.parquet").exists()


def test_curves_for_tensorboard_stay_when_the_checkpoints_go(tmp_path: Path, base: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    options = DistilOptions(replace(FAST, report_to="tensorboard"))
    distil(QUERIES, Talker(teaching), base, tmp_path, options)
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    losses = [point.value for point in curves.Scalars("train/loss")]
    noted = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert losses == pytest.approx([line["loss"] for line in noted if "loss" in line], abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (replace(FAST, lora=Lora(), four_bit=True), "four bits need CUDA"),
        (replace(FAST, trainer={"fsdp": "full_shard"}), "several processes, each with a GPU.*torchrun"),
    ],
)
def test_what_this_machine_cannot_do_is_refused_before_a_teacher_is_asked(
    tmp_path: Path, base: Path, settings: FineTuning, said: str
) -> None:
    teacher = Talker(teaching)
    with pytest.raises(ConfigurationError, match=said):
        distil(QUERIES, teacher, base, tmp_path / "distil", DistilOptions(settings))
    with pytest.raises(ConfigurationError, match=said):
        align(TRIPLETS, base, tmp_path / "align", AlignOptions(fine_tuning=settings))
    assert not teacher.asked
