"""Shared prefixes: each token of the trie of prompts is read once, and little else."""

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader, prefill
from surerag.readers.local.engine import Demand, pack
from surerag.readers.local.prefill import Reading, families, plan_readings
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

prompts_over_a_small_alphabet = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=9).map(tuple), min_size=1, max_size=12, unique=True
)


def trie_size(prompts: Sequence[Sequence[int]]) -> int:
    return len({tuple(prompt[:end]) for prompt in prompts for end in range(1, len(prompt) + 1)})


@given(prompts_over_a_small_alphabet)
def test_the_plan_reads_the_trie(prompts: list[tuple[int, ...]]) -> None:
    plan = plan_readings(prompts, minimum=1)
    read = 0
    for prompt, reading in zip(prompts, plan, strict=True):
        assert 0 <= reading.shared < len(prompt)
        if reading.parent is not None:
            assert prompts[reading.parent][: reading.shared] == prompt[: reading.shared]
            assert reading.wave == plan[reading.parent].wave + 1
        read += len(prompt) - reading.shared
    # The last token of a prompt that begins another one is read again, for what follows it.
    beginnings = sum(any(other[: len(p)] == p and other != p for other in prompts) for p in prompts)
    assert read == trie_size(prompts) + beginnings


@given(prompts_over_a_small_alphabet, st.integers(2, 6))
def test_short_prefixes_are_not_shared(prompts: list[tuple[int, ...]], minimum: int) -> None:
    assert all(
        reading.shared >= minimum or reading.parent is None for reading in plan_readings(prompts, minimum)
    )


@given(prompts_over_a_small_alphabet)
def test_families_hold_every_prompt_once_and_with_its_parent(prompts: list[tuple[int, ...]]) -> None:
    plan = plan_readings(prompts, minimum=1)
    found = families(plan)
    assert sorted(i for family in found for i in family) == list(range(len(prompts)))
    for family in found:
        assert sum(plan[i].parent is None for i in family) == 1


def test_single_edits_need_two_waves() -> None:
    passages = [[10 * i + j for j in range(5)] for i in range(1, 6)]
    edited = [[*passages[:i], [900 + i] * 5, *passages[i + 1 :]] for i in range(5)]
    contexts = [list(chain(*context)) for context in (passages, *edited)]
    plan = plan_readings(contexts, minimum=2)
    assert max(reading.wave for reading in plan) == 1
    assert plan[1] == Reading(None, 0, 0)


def test_batches_respect_their_budget_and_keep_the_order() -> None:
    demands = [
        Demand(i, *cost) for i, cost in enumerate([(8, 2, 1), (8, 4, 2), (5, 0, 1), (50, 0, 1), (5, 0, 3)])
    ]
    batches = pack(demands, budget=40)
    assert [i for batch in batches for i in batch] == [0, 1, 2, 3, 4]
    for batch in batches:
        longest = max(demands[i].length + demands[i].further for i in batch)
        assert len(batch) == 1 or longest * sum(demands[i].rows for i in batch) <= 40
    assert [3] in batches


def test_a_prompt_that_rows_share_counts_once() -> None:
    demands = [Demand(i, 1000, 50, 10) for i in range(8)]
    assert [len(batch) for batch in pack(demands, 6000, forks=True)] == [4, 4]
    assert [len(batch) for batch in pack(demands, 6000)] == [1] * 8
    # A thousand rows of one prompt beside single ones would be padded: they are copied, and counted so.
    uneven = [Demand(0, 100, 10, 100), *(Demand(i, 100, 10) for i in range(1, 60))]
    assert len(pack(uneven, 20_000, forks=True)) == len(pack(uneven, 20_000))


def test_contexts_that_differ_in_one_passage_are_read_for_their_tails_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # A GPU is given more tokens for fewer passes.
    monkeypatch.setattr(prefill, "_PASS_COST_ACCELERATOR", prefill._PASS_COST_CPU)
    # k passages of L tokens, and k contexts with one of them replaced: k L + L k (k + 1) / 2 tokens.
    count, length = 4, 80
    passages = [f"{chr(97 + i)}" * length for i in range(count)]
    contexts = ["".join(passages)]
    contexts += ["".join([*passages[:i], "z" * length, *passages[i + 1 :]]) for i in range(count)]
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer(), min_shared_prefix=16)
    reader.generate(contexts, SamplingParams(max_tokens=1))
    ideal = count * length + length * count * (count + 1) // 2
    assert ideal <= reader.tokens_read <= 1.15 * ideal
    assert reader.usage.prompt_tokens == (count + 1) * count * length


@pytest.mark.parametrize("n", [1, 5])
def test_a_prompt_is_read_once_whatever_the_number_of_samples(n: int) -> None:
    reader = TransformersReader(tiny_model("llama"), tiny_tokenizer(), max_batch_tokens=40)
    reader.generate(["Where was Ada born?"] * 3, SamplingParams(n=n, temperature=1.0, max_tokens=6))
    assert reader.tokens_read == len(tiny_tokenizer()("Where was Ada born?")["input_ids"])
