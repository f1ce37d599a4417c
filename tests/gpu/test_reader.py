"""A local reader on a GPU: the CPU's answers and numbers, its own dtype, real memory, and threads."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from surerag import prompts
from surerag.errors import ServiceError
from surerag.readers.transformers import TransformersReader
from surerag.types import Generation, Sampling
from surerag.world import Question, World, embedded_reader, embedded_reader_path, is_correct
from tests.readers.sizes import VOCABULARY
from tests.readers.tiny_models import tiny_tokenizer

ANSWER = Sampling(max_tokens=16, trace="entropy")
LONG = Sampling(n=4, temperature=1.0, max_tokens=24, seed=3)
MIB = 2**20


@cache
def on_the_gpu(dtype: str = "float32") -> TransformersReader:
    return TransformersReader.from_pretrained(str(embedded_reader_path()), dtype=dtype)


@cache
def asked() -> tuple[list[Question], list[str]]:
    world = World(seed=9002, size=80)
    questions = world.questions(200)
    contexts = ["\n".join(passage.text for passage in world.context(question, 5)) for question in questions]
    return questions, [
        prompts.FROM_CONTEXT.render(context=context, question=question.text)
        for context, question in zip(contexts, questions, strict=True)
    ]


def firsts(rows: list[list[Generation]]) -> list[Generation]:
    return [row[0] for row in rows]


def right(answers: list[Generation]) -> int:
    return sum(
        is_correct(question, answer.text) for question, answer in zip(asked()[0], answers, strict=True)
    )


def test_a_gpu_is_taken_where_there_is_one() -> None:
    assert "cuda" in repr(on_the_gpu())


def test_answers_and_numbers_are_the_cpus() -> None:
    _, questions = asked()
    here, there = (firsts(r.generate(questions, ANSWER)) for r in (on_the_gpu(), embedded_reader()))
    assert [answer.text for answer in here] == [answer.text for answer in there]
    for one, other in zip(here, there, strict=True):
        assert one.trace is not None and other.trace is not None
        assert one.trace.logprobs == pytest.approx(other.trace.logprobs, abs=2e-3)
        assert one.trace.entropy.upper == pytest.approx(other.trace.entropy.upper, abs=2e-3)


def test_samples_are_the_cpus_but_for_rounding() -> None:
    _, questions = asked()
    here, there = (r.generate(questions[:50], LONG) for r in (on_the_gpu(), embedded_reader()))
    same = [
        a.text == b.text for one, two in zip(here, there, strict=True) for a, b in zip(one, two, strict=True)
    ]
    assert sum(same) >= 0.98 * len(same)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_answers_as_well(dtype: str) -> None:
    whole, half = (firsts(r.generate(asked()[1], ANSWER)) for r in (on_the_gpu(), on_the_gpu(dtype)))
    assert abs(right(half) - right(whole)) <= 8
    for answer in half:
        assert answer.trace is not None
        assert all(0 >= value > -100 for value in answer.trace.logprobs)


def test_scores_are_those_of_the_answers() -> None:
    _, questions = asked()
    answers = firsts(on_the_gpu().generate(questions, ANSWER))
    said = [answer.trace for answer in answers]
    scored = on_the_gpu().score(questions, ["".join(trace.tokens) for trace in said if trace is not None])
    for trace, other in zip(said, scored, strict=True):
        assert trace is not None
        assert trace.logprobs == pytest.approx(other.logprobs, abs=2e-3)


def test_threads_share_one_gpu() -> None:
    _, questions = asked()
    alone = [answer.text for answer in firsts(on_the_gpu().generate(questions[:64], ANSWER))]
    with ThreadPoolExecutor(16) as pool:
        among = list(pool.map(lambda q: on_the_gpu().generate([q], ANSWER)[0][0].text, questions[:64]))
        streamed = list(pool.map(lambda q: list(on_the_gpu().stream(q, ANSWER))[-1], questions[:64]))
    assert sum(a == b for a, b in zip(alone, among, strict=True)) >= 63
    assert len(streamed) == 64


@pytest.fixture
def wide() -> Iterator[TransformersReader]:
    """A model whose cache takes 64 KiB a token, so that batches fill what memory there is."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=1024,
        intermediate_size=1024,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=4096,
        eos_token_id=None,
    )
    with torch.device("cuda"):
        model = LlamaForCausalLM(config)
    yield TransformersReader(model, tiny_tokenizer(), max_batch_tokens=10**7, min_shared_prefix=10**6)
    torch.cuda.set_per_process_memory_fraction(1.0)


def limit_memory(mib: int) -> None:
    """Allow so much memory beyond what is taken."""
    gc.collect()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + mib * MIB) / total)


def test_a_full_gpu_halves_the_batch_and_changes_nothing(wide: TransformersReader) -> None:
    many = [chr(97 + at % 26) * (300 + at) for at in range(48)]
    short = Sampling(max_tokens=8)
    plenty = [answer.text for answer in firsts(wide.generate(many, short))]
    alone = [answer.text for answer in firsts([wide.generate([prompt], short)[0] for prompt in many])]
    limit_memory(400)
    tight = [answer.text for answer in firsts(wide.generate(many, short))]
    assert tight == alone == plenty
    limit_memory(1)
    with pytest.raises(ServiceError, match="too little memory for a single sequence"):
        wide.generate(["a" * 3000], short)
    limit_memory(400)
    assert [answer.text for answer in firsts(wide.generate(many[:4], short))] == plenty[:4]


def test_what_is_abandoned_gives_its_memory_back(wide: TransformersReader) -> None:
    prompts = ["b" * 2000] * 8
    wide.generate(prompts, Sampling(max_tokens=2))
    gc.collect()
    before = torch.cuda.memory_allocated()
    begun = wide.begin(prompts, 2, Sampling(max_tokens=8))
    assert torch.cuda.memory_allocated() - before > 50 * MIB
    wide.cancel(begun)
    del begun
    begun = wide.begin(prompts, 2, Sampling(max_tokens=8))
    del begun
    stream = wide.stream("c" * 2000, Sampling(max_tokens=50))
    next(iter(stream))
    del stream
    gc.collect()
    assert torch.cuda.memory_allocated() - before < 1 * MIB


def test_batches_are_as_large_as_half_of_the_free_memory(wide: TransformersReader) -> None:
    free, _ = torch.cuda.mem_get_info()
    a_token = 2 * 8 * 1024 * 4
    assert wide._model.batch_tokens == pytest.approx(min(free // 2 // a_token, 1 << 20), rel=0.05)
