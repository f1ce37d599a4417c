"""The local reader's own promises: batches, memory, handles, windows, threads, forks, loading, counting."""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from surerag.errors import ConfigurationError, ContextLengthError, InputError, LogprobsError, ServiceError
from surerag.messages import SamplingParams
from surerag.readers.calls import CancelledWorkError, cancel_when
from surerag.readers.local import TransformersReader
from surerag.readers.local import model as local_model
from surerag.readers.protocol import BegunGeneration
from tests.readers.local.support import ONE, PROMPTS, SAMPLED, assert_same, reader_of, texts, traced, watched
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.waiting import eventually

CONTEXT = "Velm lies on the Orun, which springs in the hills of Tarn. " * 3
SHARING = [CONTEXT + question for question in ("Where?", "And where does it spring?", "Why?")]


@pytest.fixture
def reader() -> TransformersReader:
    return reader_of()


def out_of_memory(rows: int, passes: int = 10**6) -> Callable[[tuple[int, ...]], None]:
    """Return a check that fails beyond so many rows, or after so many passes."""
    made: list[int] = []

    def check(shape: tuple[int, ...]) -> None:
        made.append(1)
        if shape[0] > rows or len(made) > passes:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return check


@pytest.mark.parametrize("rows", [1, 2])
def test_out_of_memory_halves_the_batch_and_changes_nothing(reader: TransformersReader, rows: int) -> None:
    whole = reader.generate(PROMPTS, SAMPLED)
    with watched(tiny_model("llama"), out_of_memory(rows)):
        assert texts(reader.generate(PROMPTS, SAMPLED)) == texts(whole)
        finished = BegunGeneration.rest_of(reader.begin(PROMPTS, 2, SAMPLED))
    assert [answer.text for answer in finished] == [row[0].text for row in whole]


def test_too_little_memory_for_one_sequence_is_a_service_error(reader: TransformersReader) -> None:
    with watched(tiny_model("llama"), out_of_memory(0)), pytest.raises(ServiceError, match="single sequence"):
        reader.generate(PROMPTS, SAMPLED)


def test_other_failures_pass_unchanged(reader: TransformersReader) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("index out of range")

    with watched(tiny_model("llama"), fail), pytest.raises(RuntimeError, match="index out of range"):
        reader.generate(PROMPTS, SAMPLED)


def test_answers_that_ended_survive_a_later_batch_that_fails(reader: TransformersReader) -> None:
    small = reader_of(max_batch_tokens=1)
    expected = [row[0].text for row in reader.generate(PROMPTS, ONE)]
    with watched(tiny_model("llama")) as passes:
        BegunGeneration.rest_of(small.begin(PROMPTS, 2, ONE))
    begun = small.begin(PROMPTS, 2, ONE)
    needed = len(passes) - 2 * len(PROMPTS) - 1
    with watched(tiny_model("llama"), out_of_memory(9, needed // 2)), pytest.raises(ServiceError):
        BegunGeneration.rest_of(begun)
    with watched(tiny_model("llama")) as rest:
        assert [answer.text for answer in BegunGeneration.rest_of(begun)] == expected
    assert 0 < len(rest) < needed


@pytest.mark.parametrize("budget", [1, 40, 100])
def test_batches_of_any_size_give_the_same(reader: TransformersReader, budget: int) -> None:
    small = reader_of(max_batch_tokens=budget)
    prompts = [*PROMPTS, *SHARING, PROMPTS[1]]
    expected = texts(reader.generate(prompts, SAMPLED))
    assert texts(small.generate(prompts, SAMPLED)) == expected
    with watched(tiny_model("llama")) as passes:
        small.generate(PROMPTS, SAMPLED)
    assert max(rows for rows, _ in passes) <= max(1, budget // 13)
    finished = BegunGeneration.rest_of(small.begin(prompts, 2, SAMPLED))
    assert [answer.text for answer in finished] == [row[0] for row in expected]


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "bloom"])
def test_a_common_beginning_is_read_once(architecture: str) -> None:
    reader, tokenizer = reader_of(architecture), tiny_tokenizer()
    prefix = len(tokenizer(CONTEXT)["input_ids"])
    with watched(tiny_model(architecture)) as passes:
        together = reader.generate(SHARING, SAMPLED)
    lengths = [len(tokenizer(prompt)["input_ids"]) for prompt in SHARING]
    steps = sum(rows for rows, width in passes if width == 1)
    read = sum(rows * width for rows, width in passes) - steps
    assert prefix <= read <= prefix + 3 * (max(lengths) - prefix)
    for prompt, row in zip(SHARING, together, strict=True):
        for one, other in zip(row, reader.generate([prompt], SAMPLED)[0], strict=True):
            assert_same(one, other)


def test_samples_read_their_prompt_once_and_greedy_ones_are_generated_once(
    reader: TransformersReader,
) -> None:
    with watched(tiny_model("llama")) as passes:
        (row,) = reader.generate(SHARING[:1], SAMPLED)
    assert len({answer.text for answer in row}) > 1
    assert [shape for shape in passes if shape[1] > 1] == [
        (1, len(tiny_tokenizer()(SHARING[0])["input_ids"]) - 1)
    ]
    with watched(tiny_model("llama")) as passes:
        (row,) = reader.generate(PROMPTS[:1], SamplingParams(n=4, max_tokens=5))
    assert len(row) == 4
    assert {rows for rows, _ in passes} == {1}


def test_prompts_sampled_each_in_its_own_way_share_batches(reader: TransformersReader) -> None:
    ways = [
        SamplingParams(max_tokens=6),
        SamplingParams(n=3, temperature=1.0, seed=4, max_tokens=9),
        SamplingParams(n=2, temperature=0.7, seed=5, max_tokens=14, stop=("a",)),
        SamplingParams(n=2, max_tokens=3),
    ]
    with watched(tiny_model("llama")) as passes:
        together = reader.generate_each(PROMPTS[:4], ways)
    alone = [reader.generate([prompt], way)[0] for prompt, way in zip(PROMPTS, ways, strict=False)]
    assert texts(together) == texts(alone)
    assert len(passes) <= 1 + 14
    finished = BegunGeneration.rest_of(reader.begin_each(PROMPTS[:4], 2, ways))
    assert [answer.text for answer in finished] == [row[0].text for row in alone]


def test_ended_answers_leave_the_batch(reader: TransformersReader) -> None:
    many = replace(SAMPLED, n=12, max_tokens=20, stop=("a",))
    with watched(tiny_model("llama")) as passes:
        reader.generate(PROMPTS[:1], many)
    rows = [rows for rows, width in passes if width == 1]
    assert rows == sorted(rows, reverse=True)
    assert rows[-1] < rows[0] == 12


def keys_of(begun: Any) -> weakref.ref[torch.Tensor]:
    return weakref.ref(begun._handle.row.layers[0][0])


@pytest.mark.parametrize("end", ["close", "rest", "close stream", "drop"])
def test_the_memory_of_what_was_begun_is_freed(reader: TransformersReader, end: str) -> None:
    begun: list[Any] = list(reader.begin(PROMPTS[:1], 2, ONE))
    keys = keys_of(begun[0])
    if end == "close":
        begun[0].close()
    elif end == "rest":
        begun[0].rest()
    elif end == "close stream":
        stream = begun[0].chunks()
        next(stream)
        stream.close()  # type: ignore[attr-defined]  # a generator
    else:
        del begun
    gc.collect()
    assert keys() is None


def test_finishing_reads_nothing_again_and_keeps_the_order(reader: TransformersReader) -> None:
    whole = reader.generate(PROMPTS, ONE)
    begun = reader.begin(PROMPTS, 2, ONE)
    begun[0].close()
    begun[2].close()
    with watched(tiny_model("llama")) as passes:
        ended = BegunGeneration.rest_of([begun[4], begun[1], begun[3]])
    assert [answer.text for answer in ended] == [whole[i][0].text for i in (4, 1, 3)]
    assert {width for _, width in passes} == {1}
    assert len(passes) <= ONE.max_tokens - 2


def test_begun_answers_are_completed_or_closed_once(reader: TransformersReader) -> None:
    completed, closed, streamed = reader.begin(PROMPTS[:3], 2, ONE)
    completed.rest()
    closed.close()
    list(streamed.chunks())
    for begun, fate in ((completed, "completed"), (closed, "closed"), (streamed, "completed")):
        with pytest.raises(InputError, match=fate):
            begun.rest()
        with pytest.raises(InputError, match=fate):
            next(iter(begun.chunks()))
    (fresh,) = reader.begin(PROMPTS[:1], 2, ONE)
    with pytest.raises(InputError, match="twice"):
        BegunGeneration.rest_of([fresh, fresh])
    with pytest.raises(InputError, match="different readers"):
        BegunGeneration.rest_of([fresh, *reader_of("qwen3").begin(PROMPTS[:1], 2, ONE)])
    assert fresh.rest().text == reader.generate(PROMPTS[:1], ONE)[0][0].text


def test_begin_past_the_end_is_done(reader: TransformersReader) -> None:
    whole = [row[0] for row in reader.generate(PROMPTS, ONE)]
    begun = reader.begin(PROMPTS, 50, ONE)
    assert all(item.done for item in begun)
    assert [item.partial.text for item in begun] == [answer.text for answer in whole]
    assert [chunk.text for chunk in begun[0].chunks()] == [whole[0].text]
    assert [answer.text for answer in BegunGeneration.rest_of(begun[1:])] == [
        answer.text for answer in whole[1:]
    ]


def test_prompts_beyond_the_window_are_named(reader: TransformersReader) -> None:
    fits = "z" * (512 - 12)
    reader.generate([fits], ONE)
    with pytest.raises(ContextLengthError, match=r"prompt 1 has 503 tokens.*holds 512: 3 too many") as caught:
        reader.generate(["x", fits + "zzz"], ONE)
    assert caught.value.inputs == (fits + "zzz",)
    with pytest.raises(ContextLengthError, match="3 too many"):
        reader.begin([fits + "zzz"], 2, SAMPLED)
    with pytest.raises(ContextLengthError, match="holds 20"):
        reader_of(window=20).generate(["z" * 10], SAMPLED)


def test_bad_input_is_refused(reader: TransformersReader) -> None:
    with pytest.raises(InputError, match="no tokens"):
        reader.generate([""], ONE)
    with pytest.raises(ConfigurationError, match="n_tokens"):
        reader.begin(["x"], 0, SAMPLED)
    with pytest.raises(ConfigurationError, match="max_batch_tokens"):
        reader_of(max_batch_tokens=0)
    assert (reader.generate([], ONE), reader.begin([], 3, ONE), BegunGeneration.rest_of([])) == ([], [], [])


def test_a_lone_surrogate_is_read_as_a_replacement(reader: TransformersReader) -> None:
    assert reader.generate(["so \ud800 it"], ONE)[0][0].text == reader.generate(["so ? it"], ONE)[0][0].text


def test_a_tiny_temperature_is_greedy(reader: TransformersReader) -> None:
    cold = reader.generate(PROMPTS, SamplingParams(temperature=1e-38, max_tokens=6))
    for one, other in zip(cold, reader.generate(PROMPTS, SamplingParams(max_tokens=6)), strict=True):
        assert_same(one[0], other[0])


def test_logits_that_are_not_numbers_are_an_error(reader: TransformersReader) -> None:
    def spoil(module: Any, inputs: Any, output: Any) -> Any:
        output.logits = output.logits * float("nan")
        return output

    hook = tiny_model("llama").register_forward_hook(spoil)
    try:
        with pytest.raises(LogprobsError, match="not all numbers"):
            reader.generate(PROMPTS, ONE)
    finally:
        hook.remove()


def test_usage_counts_prompts_and_tokens(reader: TransformersReader) -> None:
    answers = reader.generate(PROMPTS, SAMPLED)
    assert reader.usage.requests == len(PROMPTS)
    assert reader.usage.prompt_tokens == sum(row[0].prompt_tokens for row in answers)
    assert reader.usage.completion_tokens == sum(a.completion_tokens for row in answers for a in row)
    before = reader.usage
    begun = reader.begin(PROMPTS[:2], 3, SAMPLED)
    BegunGeneration.rest_of(begun[:1])
    list(begun[1].chunks())
    assert reader.usage.requests == before.requests + 2
    spent = sum(row[0].completion_tokens for row in answers[:2])
    assert reader.usage.completion_tokens == before.completion_tokens + spent


def test_threads_are_served_one_after_the_other(reader: TransformersReader) -> None:
    expected = texts(reader.generate(PROMPTS, SAMPLED))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: reader.generate([prompt], SAMPLED)[0], PROMPTS * 2))
    assert texts(answers) == expected * 2


def test_a_stream_leaves_the_model_to_others_between_its_pieces(reader: TransformersReader) -> None:
    expected = reader.generate(PROMPTS[:1], ONE)[0][0].text
    stream = reader.stream(PROMPTS[0], ONE)
    pieces = [next(stream).text]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(reader.generate, PROMPTS[1:], SAMPLED).result(timeout=60)
    assert "".join([*pieces, *(chunk.text for chunk in stream)]) == expected


class Pace:
    """Lets the model make some passes, then holds it."""

    def __init__(self, passes: int = 5) -> None:
        self.made, self._passes = 0, passes
        self.there, self.go = threading.Event(), threading.Event()

    def __call__(self, shape: object) -> None:
        self.made += 1
        if self.made == self._passes:
            self.there.set()
            assert self.go.wait(20)


@pytest.mark.parametrize("architecture", ["llama", "mamba"])
def test_a_cancelled_call_stops_within_a_step(architecture: str) -> None:
    reader, pace, stop = reader_of(architecture), Pace(), threading.Event()
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            with cancel_when(stop.is_set):
                reader.generate(["Where was Ada born?"], SamplingParams(n=8, temperature=1.0, max_tokens=400))
        except CancelledWorkError as error:
            outcome.append(error)

    with watched(tiny_model(architecture), pace):
        thread = threading.Thread(target=work)
        thread.start()
        assert pace.there.wait(20)
        stop.set()
        pace.go.set()
        thread.join(20)
    assert len(outcome) == 1
    assert pace.made <= 6
    assert reader.generate(PROMPTS[:1], SamplingParams(max_tokens=2))[0][0].completion_tokens == 2


async def test_a_cancelled_task_stops_its_generation(reader: TransformersReader) -> None:
    pace = Pace()
    with watched(tiny_model("llama"), pace):
        many = SamplingParams(n=8, temperature=1.0, max_tokens=400)
        task = asyncio.ensure_future(reader.agenerate(PROMPTS, many))
        assert await asyncio.to_thread(pace.there.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        pace.go.set()
        assert await asyncio.to_thread(reader._lock.acquire, timeout=20)
    assert pace.made <= 6


LEFT = """
import asyncio, threading, time
from surerag.messages import SamplingParams
from surerag.readers.local.engine import Batch
from surerag.readers.protocol import _stepped
from tests.readers.local.support import reader_of

begun, step = threading.Event(), Batch.step

def slow_step(batch):
    begun.set()
    time.sleep(0.3)
    step(batch)

def chunks(reader):
    try:
        yield from reader.stream("Where?", SamplingParams(max_tokens=400))
    finally:
        time.sleep(0.3)  # stands for the time in which tensors are freed
        print("freed", flush=True)

async def read():
    async for _ in _stepped(chunks(reader_of())):
        pass

async def main():
    reading = asyncio.create_task(read())
    while not begun.is_set():
        await asyncio.sleep(0.01)

Batch.step = slow_step
asyncio.run(main())
"""


def test_a_process_ends_after_the_step_of_a_stream_that_nobody_reads() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "freed\n", "the thread was killed while it used the model"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_lock_held_by_another_thread_does_not_hang_a_forked_child(reader: TransformersReader) -> None:
    pace = Pace(3)
    with watched(tiny_model("llama"), pace):
        thread = threading.Thread(target=reader.generate, args=(PROMPTS, ONE))
        thread.start()
        assert pace.there.wait(20)
        child = os.fork()
        if child == 0:
            text = reader.generate(PROMPTS[:1], SamplingParams(max_tokens=3))[0][0].text
            os._exit(0 if text and reader.usage.requests else 1)
        pace.go.set()
        thread.join(20)
    ended: list[int] = []

    def over() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([os.waitstatus_to_exitcode(status)] if pid else [])
        return bool(pid)

    if not eventually(over, patience=20):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == [0]


def test_the_name_is_that_of_the_weights(reader: TransformersReader) -> None:
    assert reader.name == reader_of(chat=True).name
    assert reader.name != reader_of("qwen3").name
    assert reader.name in repr(reader)
    assert copy.deepcopy({"reader": reader})["reader"] is reader
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        pickle.dumps(reader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(path)
    tiny_tokenizer(chat=True).save_pretrained(path)
    return path


def load(folder: Path, **options: Any) -> TransformersReader:
    return TransformersReader.from_pretrained(str(folder), device="cpu", **options)


def test_loaded_readers_pickle_by_their_settings(folder: Path) -> None:
    loaded = load(folder, window=256, chat_template=False, attn_implementation="eager")
    assert loaded.name.startswith("tiny-llama@")
    assert str(folder.parent) not in repr(loaded)
    data = pickle.dumps(loaded)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert again.name == loaded.name
    assert texts(again.generate(PROMPTS, SAMPLED)) == texts(loaded.generate(PROMPTS, SAMPLED))
    with pytest.raises(ContextLengthError, match="holds 256"):
        again.generate(["z" * 300], SAMPLED)


@pytest.mark.parametrize(
    ("weights", "native", "dtype"),
    [
        (torch.bfloat16, True, torch.bfloat16),
        (torch.float16, True, torch.bfloat16),
        (torch.float32, True, torch.float32),
        (torch.bfloat16, False, torch.float32),
        (torch.float16, False, torch.float32),
    ],
)
def test_a_processor_with_bfloat16_keeps_weights_of_16_bits_small(
    weights: torch.dtype, native: bool, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy.deepcopy(tiny_model("llama")).to(weights).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    monkeypatch.setattr(local_model, "has_native_bfloat16", lambda: native)
    loaded = TransformersReader.from_pretrained(str(tmp_path), device="cpu")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    wanted = TransformersReader.from_pretrained(str(tmp_path), device="cpu", dtype="float32")
    assert wanted.model.dtype == torch.float32


@pytest.mark.parametrize(
    ("machine", "instructions", "mkldnn", "native"),
    [
        ("x86_64", {"_is_avx512_bf16_supported"}, True, True),
        ("AMD64", {"_is_amx_tile_supported"}, True, True),
        ("x86_64", {"_is_avx512_supported"}, True, False),  # mkldnn emulates it
        ("aarch64", set(), True, True),
        ("arm64", set(), False, False),
    ],
)
def test_only_a_processors_own_bfloat16_counts(
    machine: str, instructions: set[str], mkldnn: bool, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_model.platform, "machine", lambda: machine)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in instructions, raising=False)
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: mkldnn, raising=False)
    assert local_model.has_native_bfloat16() is native


def test_loading_holds_the_weights_once(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=64_000, hidden_size=512, intermediate_size=1024, num_hidden_layers=1, num_attention_heads=8
    )
    model = LlamaForCausalLM(config).bfloat16()
    model.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    script = (
        "import resource, sys\n"
        "from surerag.readers.local.model import load\n"
        "import transformers.models.llama.modeling_llama\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "model, _ = load(sys.argv[1], 'cpu', 'bfloat16', True)\n"
        "sum(float(one.float().sum()) for name, one in model.named_parameters() if 'layers' in name)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    grown = int(
        subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, capture_output=True).stdout
    )
    assert 1024 * grown < 1.6 * sum(2 * one.numel() for one in model.parameters())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_are_float32_in_every_dtype(folder: Path, dtype: str) -> None:
    loaded = load(folder, dtype=dtype)
    assert loaded.capabilities.begin == "native"
    (answer,) = loaded.generate(["Where?"], SamplingParams(max_tokens=3))[0]
    assert {str(parameter.dtype) for parameter in loaded._model.model.parameters()} == {f"torch.{dtype}"}
    # Values that half precision could not hold.
    assert any(value != torch.tensor(value).bfloat16().item() for value in traced(answer).logprobs)


def test_broken_checkpoints_are_refused(folder: Path, tmp_path: Path) -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    with pytest.raises(ConfigurationError, match="no such folder"):
        load(tmp_path / "nowhere")
    for name in ("pickled", "cut", "lacking"):
        model.config.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    torch.save(model.state_dict(), tmp_path / "pickled" / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="safetensors"):
        load(tmp_path / "pickled")
    whole = (folder / "model.safetensors").read_bytes()
    (tmp_path / "cut" / "model.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigurationError, match="cannot be loaded") as caught:
        load(tmp_path / "cut")
    assert caught.value.__cause__ is not None
    state = {name: value for name, value in model.state_dict().items() if "layers.1." not in name}
    model.save_pretrained(tmp_path / "lacking", state_dict=state)
    with pytest.raises(ConfigurationError, match=r"lacks weights: model\.layers\.1"):
        load(tmp_path / "lacking")


def test_what_cannot_be_loaded_says_why_on_whatever_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("The repository contains custom code.\nPlease pass trust_remote_code=True")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", fail)
    with pytest.raises(ConfigurationError, match=r"custom code\. Please pass trust_remote_code=True"):
        load(folder)


def test_model_and_tokenizer_are_there_for_pipelines_of_frameworks() -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    reader = TransformersReader(model, tokenizer)
    assert (reader.model, reader.tokenizer) == (model, tokenizer)
