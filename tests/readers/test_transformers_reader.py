"""The reader's conduct: handles, memory, errors, threads, pickling, counting."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from surerag.errors import ConfigurationError, ContextLengthError, InputError, ServiceError
from surerag.messages import Generation, SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "A longer prompt about hills", "Who is the mayor of Velm?", "x"]
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=12, seed=8)


@pytest.fixture
def reader() -> TransformersReader:
    return TransformersReader(tiny_model("llama"), tiny_tokenizer())


def texts(rows: list[list[Generation]]) -> list[list[str]]:
    return [[answer.text for answer in row] for row in rows]


@pytest.fixture
def small_device() -> Iterator[Callable[[int, str], list[int]]]:
    """Make the tiny model run out of memory beyond so many rows."""
    model = tiny_model("llama")
    hooks = []

    def limit(rows: int, message: str = "CUDA out of memory") -> list[int]:
        passed: list[int] = []

        def check(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
            if len(keywords["input_ids"]) > rows:
                raise RuntimeError(message)
            passed.append(len(keywords["input_ids"]))

        hooks.append(model.register_forward_pre_hook(check, with_kwargs=True))
        return passed

    yield limit
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_out_of_memory_halves_the_batch_and_changes_nothing(
    reader: TransformersReader, small_device: Any, rows: int
) -> None:
    whole = reader.generate(PROMPTS, SAMPLED)
    scores = reader.score(PROMPTS, [" ba be bi"] * 5)
    passed = small_device(rows)
    assert texts(reader.generate(PROMPTS, SAMPLED)) == texts(whole)
    begun = reader.begin(PROMPTS, 2, SAMPLED)
    assert [answer.text for answer in reader.finish(begun)] == [row[0].text for row in whole]
    for one, other in zip(reader.score(PROMPTS, [" ba be bi"] * 5), scores, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert max(passed) == rows


def test_too_little_memory_for_one_sequence_is_an_error(
    reader: TransformersReader, small_device: Any
) -> None:
    small_device(0)
    with pytest.raises(ServiceError, match="single sequence"):
        reader.generate(PROMPTS, SAMPLED)


def test_other_failures_are_not_taken_for_a_lack_of_memory(
    reader: TransformersReader, small_device: Any
) -> None:
    small_device(0, "index out of range")
    with pytest.raises(RuntimeError, match="index out of range"):
        reader.generate(PROMPTS, SAMPLED)


@pytest.mark.parametrize("budget", [1, 40, 100])
def test_batches_of_any_size_give_the_same(reader: TransformersReader, budget: int) -> None:
    small = TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=budget)
    prompts = [*PROMPTS, PROMPTS[1]]
    assert texts(small.generate(prompts, SAMPLED)) == texts(reader.generate(prompts, SAMPLED))
    begun = small.begin(prompts, 2, SAMPLED)
    assert [a.text for a in small.finish(begun)] == [row[0].text for row in reader.generate(prompts, SAMPLED)]


def test_budgets_bound_the_tokens_of_a_batch(small_device: Any) -> None:
    passed = small_device(10**6)
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=100)
    reader.generate(PROMPTS, replace(SAMPLED, max_tokens=10))
    shortest = min(len(tiny_tokenizer()(prompt)["input_ids"]) for prompt in PROMPTS) + 10
    assert 1 < max(passed) <= 100 // shortest


def test_ended_sequences_leave_the_batch(reader: TransformersReader, small_device: Any) -> None:
    many = replace(SAMPLED, n=12, max_tokens=20, stop=("a",))
    lengths = sorted(answer.completion_tokens for answer in reader.generate(PROMPTS[:1], many)[0])
    # What this test needs: answers of very different lengths.
    assert lengths[0] < 8 < lengths[-1]
    passed = small_device(10**6)
    reader.generate(PROMPTS[:1], many)
    assert passed[1] == 12
    assert passed[-1] < 12
    assert passed[1:] == sorted(passed[1:], reverse=True)


def memory_of(begun: Any) -> "weakref.ref[torch.Tensor]":
    return weakref.ref(begun.state.block.memory.held(0).keys)


def test_cancel_frees_the_memory(reader: TransformersReader) -> None:
    begun = reader.begin(PROMPTS[:4], 2, replace(SAMPLED, n=1))
    whole = memory_of(begun[0])
    rows = whole().shape[0]  # type: ignore[union-attr]  # it is alive
    reader.cancel(begun[:2])
    gc.collect()
    # Half of the rows are gone: the rest was copied, and the large tensor is free.
    assert whole() is None
    assert begun[2].state.block.memory.held(0).keys.shape[0] == rows - 2
    left = memory_of(begun[2])
    reader.cancel(begun)
    reader.cancel(begun)
    gc.collect()
    assert left() is None


def test_finish_frees_the_memory_and_so_does_forgetting(reader: TransformersReader) -> None:
    begun = reader.begin(PROMPTS[:1], 2, replace(SAMPLED, n=1))
    kept = memory_of(begun[0])
    reader.finish(begun)
    assert kept() is None
    forgotten = reader.begin(PROMPTS[:1], 2, replace(SAMPLED, n=1))
    kept = memory_of(forgotten[0])
    del forgotten
    gc.collect()
    assert kept() is None


def test_an_abandoned_stream_frees_the_memory(reader: TransformersReader) -> None:
    begun = reader.begin(PROMPTS[:1], 2, replace(SAMPLED, n=1))[0]
    kept = memory_of(begun)
    stream = reader.finish_stream(begun)
    next(stream)
    assert kept() is not None
    stream.close()
    gc.collect()
    assert kept() is None


def test_the_rest_can_be_finished_after_some_were_cancelled(reader: TransformersReader) -> None:
    sampling = replace(SAMPLED, n=1)
    whole = reader.generate(PROMPTS, sampling)
    begun = reader.begin(PROMPTS, 2, sampling)
    reader.cancel([begun[0], begun[2], begun[3]])
    ended = reader.finish([begun[4], begun[1]])
    assert [answer.text for answer in ended] == [whole[4][0].text, whole[1][0].text]


def test_finishing_costs_no_reading(reader: TransformersReader) -> None:
    begun = reader.begin(PROMPTS, 2, replace(SAMPLED, n=1))
    read = reader.tokens_read
    reader.finish(begun)
    assert reader.tokens_read == read


def test_handles_are_used_once(reader: TransformersReader) -> None:
    finished, cancelled, streamed = reader.begin(PROMPTS[:3], 2, replace(SAMPLED, n=1))
    reader.finish([finished])
    reader.cancel([cancelled])
    list(reader.finish_stream(streamed))
    for begun, fate in ((finished, "finished"), (cancelled, "cancelled"), (streamed, "finished")):
        with pytest.raises(InputError, match=fate):
            reader.finish([begun])
        with pytest.raises(InputError, match=fate):
            next(iter(reader.finish_stream(begun)))
    (fresh,) = reader.begin(PROMPTS[:1], 2, replace(SAMPLED, n=1))
    with pytest.raises(InputError, match="twice"):
        reader.finish([fresh, fresh])
    with pytest.raises(InputError, match="not begun by"):
        reader.finish([replace(fresh, state=None)])
    with pytest.raises(InputError, match="not begun by"):
        TransformersReader(tiny_model("qwen2"), tiny_tokenizer()).finish([fresh])
    reader.finish([fresh])


def test_a_begin_that_covers_the_answer_is_done(reader: TransformersReader) -> None:
    sampling = replace(SAMPLED, n=1)
    whole = [row[0] for row in reader.generate(PROMPTS, sampling)]
    begun = reader.begin(PROMPTS, 50, sampling)
    assert all(item.done for item in begun)
    assert [item.partial.text for item in begun] == [answer.text for answer in whole]
    assert [chunk.text for chunk in reader.finish_stream(begun[0])] == [whole[0].text]
    assert [answer.text for answer in reader.finish(begun[1:])] == [answer.text for answer in whole[1:]]


def test_prompts_beyond_the_window_are_told_by_how_much(reader: TransformersReader) -> None:
    fits = "z" * (512 - 12)
    reader.generate([fits], replace(SAMPLED, n=1))
    with pytest.raises(ContextLengthError, match=r"prompt 1 has 503 tokens.*holds 512: 3 too many"):
        reader.generate(["x", fits + "zzz"], replace(SAMPLED, n=1))
    with pytest.raises(ContextLengthError, match="3 too many"):
        reader.begin([fits + "zzz"], 2, SAMPLED)
    with pytest.raises(ContextLengthError, match="1 too many"):
        reader.score([fits], ["z" * 13])
    narrow = TransformersReader(tiny_model("llama"), tiny_tokenizer(), window=20)
    with pytest.raises(ContextLengthError, match="holds 20"):
        narrow.generate(["z" * 10], SAMPLED)


def test_bad_input_is_refused(reader: TransformersReader) -> None:
    with pytest.raises(InputError, match="1 prompts came with 2"):
        reader.score(["x"], ["a", "b"])
    with pytest.raises(InputError, match="continuation 0"):
        reader.score(["x"], [""])
    with pytest.raises(ConfigurationError, match="n_tokens"):
        reader.begin(["x"], 0, SAMPLED)
    with pytest.raises(ConfigurationError, match="max_batch_tokens"):
        TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=0)


def test_nothing_asked_is_nothing_answered(reader: TransformersReader) -> None:
    assert reader.generate([], SAMPLED) == []
    assert reader.score([], []) == []
    assert reader.begin([], 3, SAMPLED) == []
    assert reader.finish([]) == []


def test_equal_prompts_get_equal_samples_and_handles_of_their_own(reader: TransformersReader) -> None:
    one, other = reader.generate(["The Orun"] * 2, SAMPLED)
    assert [a.text for a in one] == [a.text for a in other]
    assert len({a.text for a in one}) > 1
    first, second = reader.begin(["The Orun"] * 2, 2, SAMPLED)
    reader.cancel([first])
    assert reader.finish([second])[0].text == one[0].text


def test_scores_of_one_prompt_with_many_continuations_read_it_once(reader: TransformersReader) -> None:
    continuations = [" ba", " be bi bo", " zu zo", " ba"]
    together = reader.score(["The Orun"] * 4, continuations)
    assert reader.tokens_read == len(tiny_tokenizer()("The Orun")["input_ids"])
    for continuation, trace in zip(continuations, together, strict=True):
        (alone,) = reader.score(["The Orun"], [continuation])
        assert trace.tokens == alone.tokens
        assert trace.logprobs == pytest.approx(alone.logprobs, abs=1e-5)


def test_usage_counts_what_was_asked_and_said(reader: TransformersReader) -> None:
    answers = reader.generate(PROMPTS, SAMPLED)
    assert reader.usage.requests == len(PROMPTS)
    assert reader.usage.prompt_tokens == sum(row[0].prompt_tokens for row in answers)
    assert reader.usage.completion_tokens == sum(a.completion_tokens for row in answers for a in row)
    before = reader.usage
    begun = reader.begin(PROMPTS[:2], 3, SAMPLED)
    reader.finish(begun[:1])
    list(reader.finish_stream(begun[1]))
    assert reader.usage.requests == before.requests + 2
    assert reader.usage.completion_tokens == before.completion_tokens + sum(
        row[0].completion_tokens for row in answers[:2]
    )


def test_threads_are_served_one_after_the_other(reader: TransformersReader) -> None:
    expected = texts(reader.generate(PROMPTS, SAMPLED))
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda prompt: reader.generate([prompt], SAMPLED)[0], PROMPTS * 2))
    assert texts(answers) == expected * 2


def test_a_stream_leaves_the_model_to_others_between_its_pieces(reader: TransformersReader) -> None:
    expected = reader.generate(PROMPTS[:1], replace(SAMPLED, n=1))[0][0].text
    stream = reader.stream(PROMPTS[0], SAMPLED)
    pieces = [next(stream).text]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(reader.generate, PROMPTS[1:], SAMPLED).result(timeout=60)
    pieces += [chunk.text for chunk in stream]
    assert "".join(pieces) == expected


def test_greedy_samples_are_generated_once(reader: TransformersReader, small_device: Any) -> None:
    passed = small_device(10**6)
    (row,) = reader.generate(PROMPTS[:1], SamplingParams(n=4, max_tokens=5))
    assert len(row) == 4
    assert len({answer.text for answer in row}) == 1
    assert max(passed) == 1


def test_a_deep_copy_shares_the_weights(reader: TransformersReader) -> None:
    assert copy.deepcopy({"reader": reader})["reader"] is reader


def test_identity_is_that_of_the_weights() -> None:
    one = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    other = TransformersReader(tiny_model("qwen2"), tiny_tokenizer())
    assert one.name == TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True)).name
    assert one.name != other.name
    assert one.name in repr(one)


def test_a_reader_built_in_place_does_not_pickle(reader: TransformersReader) -> None:
    with pytest.raises(ConfigurationError, match="cannot be pickled"):
        pickle.dumps(reader)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    tiny_model("llama").save_pretrained(path)
    tiny_tokenizer(chat=True).save_pretrained(path)
    return path


def test_loaded_readers_are_named_by_folder_and_pickle_by_their_settings(folder: Path) -> None:
    loaded = TransformersReader.from_pretrained(str(folder), device="cpu", window=256, chat_template=False)
    assert loaded.name.startswith("tiny-llama@")
    assert str(folder.parent) not in repr(loaded)
    data = pickle.dumps(loaded)
    assert len(data) < 2000
    again = pickle.loads(data)
    assert again.name == loaded.name
    assert texts(again.generate(PROMPTS, SAMPLED)) == texts(loaded.generate(PROMPTS, SAMPLED))
    with pytest.raises(ContextLengthError, match="holds 256"):
        again.generate(["z" * 300], SAMPLED)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_dtypes_are_honoured_and_numbers_are_float32(folder: Path, dtype: str) -> None:
    loaded = TransformersReader.from_pretrained(str(folder), device="cpu", dtype=dtype)
    (answer,) = loaded.generate(["Where?"], SamplingParams(max_tokens=3))[0]
    assert answer.trace is not None
    parameters = {str(parameter.dtype) for parameter in loaded._model._model.parameters()}
    assert parameters == {f"torch.{dtype}"}
    # Values that half precision could not hold.
    assert any(value != torch.tensor(value).to(torch.bfloat16).item() for value in answer.trace.logprobs)


def test_weights_that_can_run_code_are_refused(folder: Path, tmp_path: Path) -> None:
    tiny_model("llama").config.save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    torch.save(tiny_model("llama").state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigurationError, match="safetensors"):
        TransformersReader.from_pretrained(str(tmp_path), device="cpu")
