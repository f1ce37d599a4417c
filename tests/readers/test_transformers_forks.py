"""Prefixes that rows share: held once, read once, and nobody says anything else for it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from surerag.messages import Generation, SamplingParams
from surerag.readers.local import TransformersReader, prefill
from surerag.readers.local.forking_memory import ForkingMemory, pays
from surerag.readers.local.shared_attention import sharing
from tests.readers.families import TRANSFORMERS
from tests.readers.tiny_models import ATTENTION, tiny_model, tiny_tokenizer

CONTEXT = "Velm lies on the Orun, which springs in the hills of Tarn. "
PROMPTS = [
    CONTEXT * 3 + question for question in ("Where?", "And where does it spring?", "Why?", "Who is she?")
]
SAMPLED = SamplingParams(n=5, temperature=1.0, max_tokens=10, seed=2)
FORKING = [
    *("llama", "qwen2", "qwen3", "phi", "phi3", "gpt2", "gpt_neox", "mixtral", "qwen2_moe"),
    *("olmo2", "granite", "cohere", "stablelm", "glm", "opt", "qwen3_moe", "smollm3", "nemotron"),
]
NOT_FORKING = ["mistral", "gemma2", "gemma3", "gpt_oss", "gptj"]


def reader_of(architecture: str = "llama", **settings: Any) -> TransformersReader:
    return TransformersReader(tiny_model(architecture), tiny_tokenizer(), **settings)


def copying(reader: TransformersReader) -> TransformersReader:
    """Have a reader copy what it would share."""
    kind = reader._engine._prefill._kind
    assert issubclass(kind, ForkingMemory)
    reader._engine._prefill._kind = type("Copying", (kind,), {"forks": False, "fork": kind.gather})
    return reader


def assert_same(found: Sequence[Sequence[Generation]], expected: Sequence[Sequence[Generation]]) -> None:
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            assert a.text == b.text
            assert a.trace is not None and b.trace is not None
            assert a.trace.logprobs == pytest.approx(b.trace.logprobs, abs=1e-4)
            assert a.trace.entropy is not None and b.trace.entropy is not None
            assert a.trace.entropy.upper == pytest.approx(b.trace.entropy.upper, abs=1e-4)


def held_by(reader: TransformersReader, monkeypatch: pytest.MonkeyPatch) -> list[ForkingMemory]:
    """Note every memory that is fed."""
    fed: list[ForkingMemory] = []
    feed = ForkingMemory.feed_until

    def noting(memory: ForkingMemory, *arguments: Any) -> Any:
        fed.append(memory)
        return feed(memory, *arguments)

    monkeypatch.setattr(ForkingMemory, "feed_until", noting)
    return fed


@pytest.mark.parametrize("architecture", FORKING)
def test_samples_and_prefixes_that_share_say_what_copies_say(architecture: str) -> None:
    shared = reader_of(architecture, min_shared_prefix=8).generate(PROMPTS, SAMPLED)
    assert_same(shared, copying(reader_of(architecture, min_shared_prefix=10**6)).generate(PROMPTS, SAMPLED))


@pytest.mark.parametrize("architecture", NOT_FORKING)
def test_what_slides_or_attends_in_a_way_of_its_own_is_copied(architecture: str) -> None:
    assert architecture in {*ATTENTION, *TRANSFORMERS}
    assert not reader_of(architecture)._engine._prefill.forks


def test_samples_hold_their_prompt_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of()
    fed = held_by(reader, monkeypatch)
    reader.generate(PROMPTS[:1], SAMPLED)
    forked = fed[-1]
    assert forked.trunk is not None
    assert forked.trunk.layers[0].keys.shape[0] == 1
    # In slots of their own they hold what they said alone.
    assert forked.slots <= SAMPLED.max_tokens
    # The prompt is not copied at all: it lies where it was read.
    assert forked.trunk.layers[0].keys.data_ptr() == forked.trunk.source.held(0).keys.data_ptr()


def test_prompts_that_share_a_prefix_hold_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(min_shared_prefix=8)
    fed = held_by(reader, monkeypatch)
    greedy = SamplingParams(max_tokens=6)
    answers = reader.generate(PROMPTS, greedy)
    prefix = len(tiny_tokenizer()(CONTEXT * 3)["input_ids"])
    longest = max(len(tiny_tokenizer()(prompt)["input_ids"]) for prompt in PROMPTS)
    assert fed[-1].trunk is not None
    assert fed[-1].slots <= longest - prefix + greedy.max_tokens
    assert_same(answers, copying(reader_of(min_shared_prefix=10**6)).generate(PROMPTS, greedy))


def test_rows_that_leave_or_are_put_down_go_on_sharing(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = copying(reader_of(min_shared_prefix=10**6)).generate(PROMPTS, SAMPLED)
    reader = reader_of(min_shared_prefix=8)
    fed = held_by(reader, monkeypatch)
    begun = reader.begin(PROMPTS, 3, SAMPLED)
    reader.cancel(begun[:1])
    ended = reader.finish([begun[3], begun[1], begun[2]])
    assert fed[-1].trunk is not None
    assert [answer.text for answer in ended] == [expected[place][0].text for place in (3, 1, 2)]


def test_rows_of_different_trunks_are_joined_by_copying() -> None:
    others = [
        "Ada Tarn was the mayor of Velm for two years, it is said. " * 2 + end for end in ("a", "be", "cup")
    ]
    reader, plain = reader_of(min_shared_prefix=8), copying(reader_of(min_shared_prefix=10**6))
    first, second = reader.begin(PROMPTS, 2, SAMPLED), reader.begin(others, 2, SAMPLED)
    expected = [row[0].text for row in plain.generate([*PROMPTS, *others], SAMPLED)]
    mixed = [item for pair in zip(first, second, strict=False) for item in pair]
    places = [place for i in range(3) for place in (i, len(PROMPTS) + i)]
    assert [answer.text for answer in reader.finish(mixed)] == [expected[place] for place in places]


def test_scores_behind_a_shared_prompt_are_those_alone() -> None:
    reader = reader_of()
    tails = [" ba be bi bo", " da", " ka ke ki ko ku", " zu zo"]
    together = reader.score(PROMPTS[:1] * 4, tails)
    for tail, trace in zip(tails, together, strict=True):
        (alone,) = reader_of().score(PROMPTS[:1], [tail])
        assert trace.logprobs == pytest.approx(alone.logprobs, abs=1e-4)


def test_a_prompt_that_samples_share_counts_once_in_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    many = SamplingParams(n=12, temperature=1.0, max_tokens=8, seed=1)
    ids = len(tiny_tokenizer()(PROMPTS[0])["input_ids"])
    reader = reader_of(max_batch_tokens=ids + 12 * 8)
    fed = held_by(reader, monkeypatch)
    reader.generate(PROMPTS[:1], many)
    assert max(len(memory.lengths) for memory in fed) == 12
    small = reader_of(max_batch_tokens=ids + 12 * 8 - 1)
    fed.clear()
    small.generate(PROMPTS[:1], many)
    assert max(len(memory.lengths) for memory in fed) == 11


def test_uneven_groups_are_copied() -> None:
    assert pays([10, 10, 8], 200)
    assert not pays([10, 1, 1], 200)
    assert not pays([1, 1, 1], 200)
    assert not pays([10], 8)


def test_the_models_own_users_are_not_touched() -> None:
    model = tiny_model("llama")
    ids = torch.tensor([tiny_tokenizer()(PROMPTS[0])["input_ids"]], device=model.device)
    with torch.inference_mode():
        expected = model(input_ids=ids).logits
    found: list[torch.Tensor] = []
    seen: list[str] = []

    def elsewhere() -> None:
        seen.append(model.config._attn_implementation)
        with torch.inference_mode():
            found.append(model(input_ids=ids).logits)

    memory = ForkingMemory.empty(reader_of()._model, 1)
    memory.feed(ids)
    forked = ForkingMemory.forked([memory.part(0)] * 2, 4)
    with sharing(model.config, forked._fan):
        other = threading.Thread(target=elsewhere)
        other.start()
        other.join()
    # Even while its name for attention is ours, another thread is given the library's own.
    assert seen == ["surerag_shared"]
    assert torch.allclose(found[0], expected, atol=1e-5)
    assert model.config._attn_implementation == "sdpa"


def test_two_readers_of_one_model_do_not_take_the_name_from_each_other() -> None:
    config = tiny_model("llama").config
    fan: Any = object()
    first, second = sharing(config, fan), sharing(config, fan)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    # The one that is still at work has its name; the last one gives it back.
    assert config._attn_implementation == "surerag_shared"
    second.__exit__(None, None, None)
    assert config._attn_implementation == "sdpa"


def test_reading_behind_a_long_prefix_takes_room_for_few_products(monkeypatch: pytest.MonkeyPatch) -> None:
    model = "surerag.readers.local.model._PRODUCTS"
    monkeypatch.setattr(model, 1 << 15)
    reader = reader_of(min_shared_prefix=8)
    assert reader._model.tokens_before(1024) == 8
    expected = copying(reader_of(min_shared_prefix=10**6)).generate(PROMPTS, SAMPLED)
    assert_same(reader.generate(PROMPTS, SAMPLED), expected)
    assert prefill._TOKENS_A_PASS > 8
