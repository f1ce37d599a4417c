"""The running batch: joining and leaving it, what it holds, and what becomes of it when something fails."""

from __future__ import annotations

import asyncio
import copy
import gc
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from surerag.readers.local.continuous import loop
from surerag.readers.local.continuous.tickets import Ticket, Tickets
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask
from transformers.modeling_utils import AttentionInterface

from surerag.errors import (
    ConfigurationError,
    ContextLengthError,
    InputError,
    LogprobsError,
    ServiceError,
    ThinkingBudgetError,
)
from surerag.messages import SamplingParams
from surerag.readers.threads import CancelledWorkError, cancel_when
from surerag.readers.conformance import Case, Trial, conformance_cases
from surerag.readers.local import TransformersReader
from surerag.readers.local.growing import Asked, Wanted
from surerag.readers.protocol import close_iterator
from tests.readers.sizes import VOCABULARY
from tests.readers.thinking_models import ENDLESS, MARKED, QWEN3, thinking_model, thinking_tokenizer
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.waiting import eventually

PROMPTS = ["Where was Ada born?", "The Orun", "A longer prompt about rivers and hills and their mayors"]
LONG = SamplingParams(temperature=1.0, max_tokens=300, seed=4)


def continuous(architecture: str = "llama", **options: Any) -> TransformersReader:
    options = {"max_batch_tokens": 2048, **options}
    return TransformersReader(tiny_model(architecture), tiny_tokenizer(), engine="continuous", **options)


def never_ending(reader: TransformersReader) -> TransformersReader:
    """Have nothing end an answer but its length."""
    own: Any = reader._engine
    own = getattr(own, "_own", own)
    own._vocabulary = own._vocabulary.__class__(own._vocabulary.detokenizer, frozenset(), frozenset(), {})
    return reader


def loop_of(reader: TransformersReader) -> Any:
    engine: Any = reader._engine
    return engine._loop


def is_empty(reader: TransformersReader) -> bool:
    return not loop_of(reader).tickets.names and loop_of(reader).idle


@pytest.fixture(scope="module")
def reader() -> TransformersReader:
    return continuous()


@pytest.fixture(scope="module", params=["llama", "qwen3", "mistral", "gemma3", "phi3", "gpt_oss"])
def any_reader(request: pytest.FixtureRequest) -> TransformersReader:
    return continuous(request.param)


@pytest.mark.parametrize("case", conformance_cases(), ids=str)
def test_it_conforms(case: Case, any_reader: TransformersReader) -> None:
    outcome = case.run(any_reader, Trial(vocabulary_size=VOCABULARY))
    if outcome.status == "skipped":
        pytest.skip(outcome.detail)
    assert outcome.passed, outcome.detail


def test_an_engine_of_another_name_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="'auto', 'own' or 'continuous'"):
        TransformersReader(tiny_model("llama"), tiny_tokenizer(), engine="paged")  # type: ignore[arg-type]


def test_the_engine_that_nobody_chose_is_our_own() -> None:
    chosen = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    assert chosen.capabilities.local
    assert type(chosen._engine).__name__ == "Engine"


@pytest.mark.parametrize("version", ["5.22.3", "5.24.0", "6.0.0.dev0"])
def test_a_version_that_was_not_tried_is_refused_by_number(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{loop.__name__}.transformers.__version__", version)
    with pytest.raises(ConfigurationError, match=rf"5\.23,<5\.24; installed is {version}.*engine='own'"):
        continuous()


def test_a_way_of_computing_attention_that_it_does_not_have_is_refused() -> None:
    model = tiny_model("qwen2")
    before, other = model.config._attn_implementation, "another"
    AttentionInterface.register(other, sdpa_attention_forward)
    AttentionMaskInterface.register(other, sdpa_mask)
    model.set_attn_implementation(other)
    try:
        with pytest.raises(ConfigurationError, match=f"Implementation {other} is not supported"):
            continuous("qwen2")
    finally:
        model.set_attn_implementation(before)


def test_its_cache_is_as_large_as_was_asked_for(reader: TransformersReader) -> None:
    config = tiny_model("llama").config
    width = config.hidden_size // config.num_attention_heads
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * width * 4
    # Two pages beyond it, and two that padding is written to.
    assert 2048 * token <= loop_of(reader).cache_bytes <= (2048 + 4 * 32) * token


def test_a_prompt_that_it_can_never_hold_is_refused_alone(reader: TransformersReader) -> None:
    small = continuous(max_batch_tokens=64)
    with pytest.raises(ContextLengthError, match=r"the running batch holds 64.*max_batch_tokens"):
        small.generate(["x" * 60], SamplingParams(max_tokens=8))
    whole = SamplingParams(max_tokens=8)
    assert small.generate(["x" * 50], whole)[0][0].text == reader.generate(["x" * 50], whole)[0][0].text


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_more_than_it_holds_waits_and_is_answered(architecture: str) -> None:
    own = TransformersReader(tiny_model(architecture), tiny_tokenizer())
    small = continuous(architecture, max_batch_tokens=160)
    prompts = [f"{letter}bc where was Ada {letter} Tarn of Velm born?" for letter in "abcdefghijkl"]
    sampling = SamplingParams(n=3, temperature=1.0, max_tokens=30, seed=2)
    for row, other in zip(small.generate(prompts, sampling), own.generate(prompts, sampling), strict=True):
        assert [one.text for one in row] == [one.text for one in other]


def test_who_comes_later_does_not_wait_for_who_came_first() -> None:
    reader = never_ending(continuous())
    (long,) = reader.begin(PROMPTS[:1], 1, SamplingParams(max_tokens=400))
    # It is far from its end when the other has his answer: both were in one batch.
    reader.generate(PROMPTS[1:2], SamplingParams(max_tokens=3))
    ticket = long.state.seat.ticket
    assert ticket.sequence.ended is None
    assert reader.finish([long])[0].completion_tokens == 400


def test_what_is_begun_shows_its_first_tokens_however_far_it_has_gone(reader: TransformersReader) -> None:
    own = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    begun = reader.begin(PROMPTS, 2, LONG)
    assert eventually(lambda: all(item.state.seat.ticket.over for item in begun))
    for item, other in zip(begun, own.begin(PROMPTS, 2, LONG), strict=True):
        assert item.partial.text == other.partial.text
        assert item.partial.completion_tokens == 2
    reader.cancel(begun)


def test_what_was_cancelled_dropped_or_given_up_leaves_the_batch() -> None:
    reader = never_ending(continuous())
    long = SamplingParams(max_tokens=450)
    begun = reader.begin(PROMPTS, 1, long)
    tickets = [item.state.seat.ticket for item in begun]
    reader.cancel(begun[:1])
    with pytest.raises(InputError, match="cancelled"):
        reader.finish(begun[:1])
    chunks = reader.finish_stream(begun[1])
    next(chunks)
    close_iterator(chunks)
    del begun, chunks
    gc.collect()
    with pytest.raises(CancelledWorkError), cancel_when(lambda: True):
        reader.generate(PROMPTS, long)
    assert eventually(lambda: is_empty(reader))
    assert all(ticket.sequence.ended is None for ticket in tickets)


def test_a_task_that_is_cancelled_leaves_the_batch() -> None:
    reader = never_ending(continuous())

    async def impatient() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.agenerate(PROMPTS, SamplingParams(max_tokens=450)), 0.01)

    asyncio.run(impatient())
    assert eventually(lambda: is_empty(reader))


def test_who_finishes_what_another_thread_cancels_is_told() -> None:
    reader = never_ending(continuous())
    begun = reader.begin(PROMPTS[:1], 1, SamplingParams(max_tokens=450))
    told: list[BaseException] = []

    def finish() -> None:
        try:
            reader.finish(begun)
        except BaseException as error:
            told.append(error)

    # Held between two steps, so that it cannot end first.
    with loop_of(reader).paused():
        thread = threading.Thread(target=finish, daemon=True)
        thread.start()
        assert eventually(lambda: begun[0].state.finishing)
        reader.cancel(begun)
        assert eventually(lambda: told)
    assert isinstance(told[0], InputError)
    assert "cancelled while it was finished" in str(told[0])
    assert eventually(lambda: is_empty(reader))


def test_samples_of_one_prompt_read_it_once() -> None:
    reader = continuous()
    read: list[int] = []

    def note(module: Any, arguments: Any, keywords: dict[str, Any]) -> None:
        read.append(keywords["input_ids"].shape[1])

    hook = tiny_model("llama").register_forward_pre_hook(note, with_kwargs=True)
    try:
        reader.generate(
            ["A prompt of its own, " * 9], SamplingParams(n=10, temperature=1.0, max_tokens=2, seed=1)
        )
    finally:
        hook.remove()
    length = reader.usage.prompt_tokens
    # The prompt but for its last token, that one for each sample, and their first tokens.
    assert sum(read) <= length + 20
    assert reader.tokens_read == length


def test_a_row_whose_logits_are_not_numbers_fails_alone() -> None:
    own: Any = TransformersReader(tiny_model("llama"), tiny_tokenizer())._engine
    wanted = Wanted(Asked([1, 2, 3]), SamplingParams(max_tokens=4))
    tickets = [Ticket(name, own.endless(wanted)) for name in "abc"]
    running = Tickets()
    running.join(tickets)
    logits = torch.zeros(4, VOCABULARY)
    logits[0, 7] = logits[2, 9] = 5.0
    logits[1] = torch.nan
    chosen, leaving = running.step(["a", "b", "c", "nobody's"], logits)
    assert chosen.tolist()[::2] == [7, 9]
    assert leaving == [1, 3]
    assert [type(ticket.failure) for ticket in tickets] == [type(None), LogprobsError, type(None)]
    assert running.names == ["a", "c"]


def test_a_batch_that_breaks_down_tells_everybody_and_is_begun_anew() -> None:
    reader = continuous()
    expected = reader.generate(PROMPTS, LONG)

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA out of memory")

    begun = reader.begin(PROMPTS[:1], 1, LONG)
    old = loop_of(reader)
    hook = tiny_model("llama").register_forward_pre_hook(fail)
    with pytest.raises(ServiceError, match=r"out of memory.*max_batch_tokens"):
        reader.generate(PROMPTS, LONG)
    hook.remove()
    if begun[0].state.seat.ticket.failure is not None:
        with pytest.raises(ServiceError, match="out of memory"):
            reader.finish(begun)
    again = reader.generate(PROMPTS, LONG)
    assert [row[0].text for row in again] == [row[0].text for row in expected]
    assert loop_of(reader) is not old


def eager_model() -> Any:
    """Return a model of the caller's own, whose attention the batch replaces."""
    model = copy.deepcopy(tiny_model("llama"))
    model.set_attn_implementation("eager")
    return model


def test_a_dropped_reader_ends_its_batch_and_gives_the_model_back() -> None:
    model = eager_model()
    reader = TransformersReader(model, tiny_tokenizer(), engine="continuous", max_batch_tokens=2048)
    assert model.config._attn_implementation != "eager"
    loop = loop_of(reader)
    del reader
    gc.collect()
    assert eventually(lambda: loop.ended(0))
    assert model.config._attn_implementation == "eager"
    assert loop.cache_bytes == 0


def test_a_model_whose_reader_was_just_dropped_can_be_read_at_once() -> None:
    model = eager_model()
    for _ in range(3):
        dropped = TransformersReader(model, tiny_tokenizer(), engine="continuous", max_batch_tokens=2048)
        dropped.begin(PROMPTS, 2, LONG)
        del dropped
        gc.collect()
        TransformersReader(model, tiny_tokenizer()).generate(PROMPTS, SamplingParams(max_tokens=2))


def test_a_model_that_a_batch_holds_is_nobody_elses() -> None:
    model = eager_model()
    holder = TransformersReader(model, tiny_tokenizer(), engine="continuous", max_batch_tokens=2048)
    with pytest.raises(ConfigurationError, match=r"runs in the batch of another reader.*load the model anew"):
        TransformersReader(model, tiny_tokenizer())
    assert holder.generate(PROMPTS, SamplingParams(max_tokens=2))


def test_a_program_that_ends_amid_an_answer_ends() -> None:
    program = (
        "from tests.readers.test_continuous import LONG, continuous, never_ending\n"
        "reader = never_ending(continuous())\n"
        "begun = reader.begin(['The Orun'], 1, LONG)\n"
        "print('begun', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "begun" in done.stdout


def test_it_is_a_setting_that_travels(tmp_path: Any) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    loaded = TransformersReader.from_pretrained(
        str(tmp_path), device="cpu", engine="continuous", max_batch_tokens=512
    )
    rebuilt, arguments = loaded.__reduce__()
    assert arguments[1]["engine"] == "continuous"
    assert not rebuilt(*arguments).capabilities.local


def test_thoughts_are_told_apart_there_as_well() -> None:
    sampling = SamplingParams(n=2, temperature=1.0, max_tokens=9, seed=3)
    options: dict[str, Any] = {"thinking": True, "thinking_tokens": 60}
    with thinking_model("llama", MARKED) as model:
        own = TransformersReader(model, thinking_tokenizer(QWEN3), **options)
        expected = own.generate(PROMPTS, sampling)
        options |= {"engine": "continuous", "max_batch_tokens": 2048}
        found = TransformersReader(model, thinking_tokenizer(QWEN3), **options).generate(PROMPTS, sampling)
    for row, other in zip(found, expected, strict=True):
        assert [(one.text, one.thinking_tokens) for one in row] == [
            (one.text, one.thinking_tokens) for one in other
        ]
        assert all(one.thinking_tokens for one in row)


def test_thoughts_without_an_end_fail_alone() -> None:
    options: dict[str, Any] = {"thinking": True, "thinking_tokens": 30, "max_batch_tokens": 2048}
    with thinking_model("llama", ENDLESS) as model:
        reader = TransformersReader(model, thinking_tokenizer(QWEN3), engine="continuous", **options)
        with pytest.raises(ThinkingBudgetError):
            reader.generate(PROMPTS, SamplingParams(max_tokens=5))
        assert eventually(lambda: is_empty(reader))
