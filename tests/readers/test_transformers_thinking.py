"""Models that think before they answer: what is measured, counted and shown is the answer's alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch

from surerag.drivers.answering import ask_merged
from surerag.drivers.session import Answered, Failed
from surerag.effects import Generate, StartGeneration
from surerag.errors import ThinkingBudgetError
from surerag.messages import Chunk, Generation, SamplingParams, TokenTrace, Usage
from surerag.readers.conformance import Trial, check_reader
from surerag.readers.local import TransformersReader
from tests.readers.sizes import END_ID, VOCABULARY
from tests.readers.thinking_models import (
    CHANNELS,
    CLOSE,
    DEEPSEEK_R1,
    EMPTY,
    ENDLESS,
    GAP,
    HARMONY,
    IDS,
    MARKED,
    OPEN,
    OPENED,
    QWEN3,
    RETURN,
    THOUGHTS,
    Flow,
    thinking_model,
    thinking_tokenizer,
)
from tests.readers.tiny_models import tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "A longer prompt about hills", "Who is the mayor of Velm?", "x"]
SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=9, seed=3)
ON: dict[str, Any] = {"thinking": True, "thinking_tokens": 60}


class Case(NamedTuple):
    """A manner of thinking: a template, a flow, and how a model of it is made."""

    architecture: str
    template: str
    flow: Flow
    ends: tuple[int, ...] = (END_ID,)


CASES = {
    "qwen3": Case("qwen3", QWEN3, MARKED),
    "qwen3-llama": Case("llama", QWEN3, MARKED),
    "deepseek-r1": Case("llama", DEEPSEEK_R1, OPENED),
    "recurrent": Case("mamba", QWEN3, MARKED),
    # Some copies of gpt-oss name <|end|> among the tokens that end a generation.
    "gpt-oss": Case("gpt_oss", HARMONY, CHANNELS, (IDS[RETURN], END_ID)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def reader(case: Case) -> Iterator[TransformersReader]:
    with thinking_model(case.architecture, case.flow, ends=case.ends) as model:
        reader = TransformersReader(model, thinking_tokenizer(case.template), **ON)
        yield reader


def trace_of(answer: Generation) -> TokenTrace:
    assert answer.trace is not None
    return answer.trace


def assert_same(one: Generation, other: Generation) -> None:
    assert (one.text, one.finish, one.completion_tokens, one.thinking_tokens) == (
        other.text,
        other.finish,
        other.completion_tokens,
        other.thinking_tokens,
    )
    assert trace_of(one).tokens == trace_of(other).tokens
    assert trace_of(one).logprobs == pytest.approx(trace_of(other).logprobs, abs=1e-4)
    assert trace_of(one).entropy.middle == pytest.approx(trace_of(other).entropy.middle, abs=1e-4)  # type: ignore[union-attr]  # local readers have them


def test_the_answer_begins_after_the_thoughts(case: Case, reader: TransformersReader) -> None:
    answers = [answer for row in reader.generate(PROMPTS, SAMPLED) for answer in row]
    assert any(answer.thinking_tokens > 4 and len(trace_of(answer)) > 1 for answer in answers)
    for answer in answers:
        assert not any(mark in answer.text for mark in (OPEN, CLOSE, "analysis", "final", "<|"))
        assert "".join(trace_of(answer).tokens).strip() == answer.text
        assert answer.completion_tokens == len(trace_of(answer)) <= SAMPLED.max_tokens
        assert not answer.text or trace_of(answer).tokens[0].strip()
    lengths = {answer.thinking_tokens for answer in answers}
    # What the tests of batches need: thoughts of very different lengths.
    assert max(lengths) > min(lengths) + 2
    assert reader.capabilities.thinking == "apart"


def test_batches_give_what_each_prompt_gives_alone(reader: TransformersReader) -> None:
    together = reader.generate(PROMPTS, SAMPLED)
    for prompt, row in zip(PROMPTS, together, strict=True):
        for one, other in zip(row, reader.generate([prompt], SAMPLED)[0], strict=True):
            assert_same(one, other)
    assert reader.usage.thinking_tokens == 2 * sum(a.thinking_tokens for row in together for a in row)
    assert reader.usage.completion_tokens == 2 * sum(a.completion_tokens for row in together for a in row)


@pytest.mark.parametrize("n_tokens", [1, 3])
def test_what_is_begun_are_the_first_tokens_of_the_answer(reader: TransformersReader, n_tokens: int) -> None:
    sampling = replace(SAMPLED, n=1)
    whole = [row[0] for row in reader.generate(PROMPTS, sampling)]
    used = reader.usage
    begun = reader.begin(PROMPTS, n_tokens, sampling)
    for item, answer in zip(begun, whole, strict=True):
        assert trace_of(item.partial).tokens == trace_of(answer).tokens[:n_tokens]
        assert item.partial.thinking_tokens == answer.thinking_tokens
        assert item.done == (item.partial.finish != "partial")
    read = reader.tokens_read
    for item, answer in zip(reader.finish(begun[1:][::-1]), whole[1:][::-1], strict=True):
        assert_same(item, answer)
    chunks = list(reader.finish_stream(begun[0]))
    assert "".join(chunk.text for chunk in chunks) == whole[0].text
    assert reader.tokens_read == read
    spent = Usage(
        len(PROMPTS),
        sum(answer.prompt_tokens for answer in whole),
        sum(answer.completion_tokens for answer in whole),
        sum(answer.thinking_tokens for answer in whole),
    )
    assert reader.usage == used + spent


def test_streams_show_the_answer_alone(reader: TransformersReader) -> None:
    for prompt, (whole,) in zip(PROMPTS, reader.generate(PROMPTS, replace(SAMPLED, n=1)), strict=True):
        chunks = list(reader.stream(prompt, SAMPLED))
        assert "".join(chunk.text for chunk in chunks) == whole.text
        last = chunks[-1].generation
        assert last is not None
        assert_same(last, whole)


def test_async_calls_give_the_same(reader: TransformersReader) -> None:
    sampling = replace(SAMPLED, n=1)

    async def ask() -> tuple[list[list[Generation]], list[Generation], list[Chunk]]:
        begun = await reader.abegin(PROMPTS, 2, sampling)
        stream = [chunk async for chunk in reader.astream(PROMPTS[0], sampling)]
        return await reader.agenerate(PROMPTS, sampling), await reader.afinish(begun), stream

    rows, finished, stream = asyncio.run(ask())
    for (whole,), answer in zip(rows, finished, strict=True):
        assert_same(answer, whole)
    assert "".join(chunk.text for chunk in stream) == rows[0][0].text


def test_the_trace_is_the_models_own_opinion_after_its_thoughts(case: Case) -> None:
    with thinking_model(case.architecture, case.flow, ends=case.ends) as model:
        tokenizer = thinking_tokenizer(case.template)
        reader = TransformersReader(model, tokenizer, **ON)
        taken: list[int] = []
        hook = model.register_forward_hook(
            lambda module, inputs, keywords, output: taken.extend(keywords["input_ids"][0].tolist()),
            with_kwargs=True,
        )
        sampling = replace(SAMPLED, n=1, max_tokens=4)
        answer = next(
            a for a in (reader.generate([p], sampling)[0][0] for p in PROMPTS) if a.finish == "length"
        )
        hook.remove()
        # The last prompt that was read, all that was said but the newest token; and that one.
        words = [tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in trace_of(answer).tokens]
        ids = torch.tensor([taken[-(answer.prompt_tokens + answer.thinking_tokens + 3) :] + words[-1:]])
        assert ids[0, -4:].tolist() == words
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits.float()
        expected = logits.log_softmax(-1)[0, range(ids.shape[1] - 5, ids.shape[1] - 1), words]
    assert trace_of(answer).logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_too_long_a_thought_is_an_error_with_numbers() -> None:
    with thinking_model("llama", ENDLESS) as model:
        reader = TransformersReader(model, thinking_tokenizer(QWEN3), thinking=True, thinking_tokens=20)
        for ask in (
            lambda: reader.generate(["x"], SAMPLED),
            lambda: reader.begin(["x"], 2, SAMPLED),
            lambda: list(reader.stream("x", SAMPLED)),
        ):
            with pytest.raises(
                ThinkingBudgetError, match=r"after 21 tokens.*thinking_tokens is 20\..*=False"
            ):
                ask()
        assert reader.usage.completion_tokens == 0
        assert reader.usage.thinking_tokens == 21 * (3 + 1 + 1)
        narrow = TransformersReader(model, thinking_tokenizer(QWEN3), thinking=True, window=40)
        with pytest.raises(ThinkingBudgetError, match=r"its window leaves no more beside \d+ of the prompt"):
            narrow.generate(["x"], SAMPLED)


@pytest.mark.parametrize("spare", [0, 1])
def test_a_budget_is_enough_if_it_is_just_enough(spare: int) -> None:
    with thinking_model("llama", MARKED) as model:
        tokenizer, sampling = thinking_tokenizer(QWEN3), replace(SAMPLED, n=1)
        (answer,) = TransformersReader(model, tokenizer, **ON).generate(["x"], sampling)[0]
        budget = answer.thinking_tokens - 1 + spare
        reader = TransformersReader(model, tokenizer, thinking=True, thinking_tokens=budget)
        if spare:
            assert_same(reader.generate(["x"], sampling)[0][0], answer)
        else:
            with pytest.raises(ThinkingBudgetError):
                reader.generate(["x"], sampling)


def test_a_thought_without_an_end_costs_its_own_prompt_alone() -> None:
    sampling = replace(SAMPLED, n=1)
    with thinking_model("llama", MARKED) as model:
        tokenizer = thinking_tokenizer(QWEN3)
        whole = [row[0] for row in TransformersReader(model, tokenizer, **ON).generate(PROMPTS, sampling)]
        thought = sorted(answer.thinking_tokens for answer in whole)
        assert thought[0] < thought[-1]
        reader = TransformersReader(model, tokenizer, thinking=True, thinking_tokens=thought[-1] - 1)
        for effects in (
            [Generate((prompt,), sampling) for prompt in PROMPTS],
            [StartGeneration((prompt,), 2, sampling) for prompt in PROMPTS],
        ):
            used = reader.usage.requests
            outcomes = ask_merged(effects, reader)
            for outcome, answer in zip(outcomes, whole, strict=True):
                if answer.thinking_tokens == thought[-1]:
                    assert isinstance(outcome, Failed)
                    assert isinstance(outcome.error, ThinkingBudgetError)
                    continue
                assert isinstance(outcome, Answered)
                given = outcome.value[0]
                assert_same(given[0] if isinstance(given, list) else reader.finish([given])[0], answer)
            # Nothing was generated a second time.
            assert reader.usage.requests == used + len(PROMPTS)
        # What nobody asks for again gives its memory back when something else is asked for.
        with pytest.raises(ThinkingBudgetError):
            reader.begin(PROMPTS, 2, sampling)
        kept = next(handle for handles in reader._spared._handles.values() for handle in handles)
        reader.generate(["y"], replace(sampling, max_tokens=1))
        assert kept.fate == "cancelled"


def test_an_empty_thought_is_no_part_of_the_answer() -> None:
    with thinking_model("llama", EMPTY) as model:
        answers = TransformersReader(model, thinking_tokenizer(QWEN3), **ON).generate(PROMPTS, SAMPLED)
    assert {answer.thinking_tokens for row in answers for answer in row} == {3}
    assert all(answer.text for row in answers for answer in row if answer.completion_tokens)


def test_stop_texts_are_looked_for_in_the_answer_alone(case: Case, reader: TransformersReader) -> None:
    sampling = replace(SAMPLED, n=1)
    for prompt, (whole,) in zip(PROMPTS, reader.generate(PROMPTS, sampling), strict=True):
        inside = ("hm", "<", "think", GAP, "\n", "assistant")
        if any(text in whole.text for text in inside):
            continue
        assert_same(reader.generate([prompt], replace(sampling, stop=inside))[0][0], whole)
        if len(whole.text.split()) > 2:
            stop = whole.text.split()[1]
            cut = reader.generate([prompt], replace(sampling, stop=(*inside, stop)))[0][0]
            assert (cut.text, cut.finish) == (whole.text[: whole.text.find(stop)].strip(), "stop")
            assert cut.thinking_tokens == whole.thinking_tokens


def test_a_model_that_stops_inside_its_thoughts_has_given_an_empty_answer() -> None:
    flow = {**MARKED, **dict.fromkeys(THOUGHTS, ("<|end|>",))}
    with thinking_model("llama", flow) as model:
        reader = TransformersReader(model, thinking_tokenizer(QWEN3), **ON)
        (answer,) = reader.generate(["x"], SamplingParams())[0]
    assert (answer.text, answer.finish, answer.completion_tokens, answer.thinking_tokens) == (
        "",
        "stop",
        0,
        2,
    )


def test_a_model_of_which_nothing_is_known_is_told_apart_by_its_marks() -> None:
    with thinking_model("llama", MARKED) as model:
        tokenizer = thinking_tokenizer(QWEN3)
        plain = TransformersReader(model, tokenizer, render=lambda turns: f"{turns[-1].content}\n")
        unknown = thinking_tokenizer(QWEN3)
        unknown.chat_template = None
        bare = TransformersReader(model, unknown, render=lambda turns: f"{turns[-1].content}\n")
        assert (plain.capabilities.thinking, bare.capabilities.thinking) == ("apart", "none")
        answers = bare.generate(PROMPTS, SAMPLED)
        assert all(answer.thinking_tokens > 2 for row in answers for answer in row)
        assert not any(OPEN in answer.text for row in answers for answer in row)
        begun = bare.begin(PROMPTS, 2, SAMPLED)
        for item, (whole, *_) in zip(bare.finish(begun), answers, strict=True):
            assert_same(item, whole)


@pytest.mark.parametrize("stop", [(), ("<",), ("b",)])
def test_what_only_begins_like_a_mark_is_the_answer(stop: tuple[str, ...]) -> None:
    said = tiny_tokenizer()("<thi be", add_special_tokens=False)["input_ids"]
    names = tiny_tokenizer().convert_ids_to_tokens(said)
    chain = {"\n": (names[0],), **{one: (other,) for one, other in pairwise(names)}}
    with thinking_model("llama", chain) as model:
        reader = TransformersReader(model, thinking_tokenizer(QWEN3), **ON)
        for length in (1, 2, len(said), 20):
            sampling = SamplingParams(max_tokens=length, stop=stop)
            (whole,) = reader.generate(["x"], sampling)[0]
            expected = tiny_tokenizer().decode(said[:length])
            if stop and stop[0] in expected:
                assert (whole.text, whole.finish) == (expected.split(stop[0])[0].strip(), "stop")
            else:
                assert whole.text.startswith(expected)
                assert whole.completion_tokens <= length
            begun = reader.begin(["x"], 1, sampling)
            assert_same(reader.finish(begun)[0], whole)
            assert "".join(chunk.text for chunk in reader.stream("x", sampling)) == whole.text


def test_how_long_was_thought_changes_no_chance_of_the_answer() -> None:
    """The tokens of an answer are drawn from the same numbers, whatever was thought before."""
    draws: list[list[tuple[int, int]]] = []
    for flow in (MARKED, EMPTY):
        with thinking_model("llama", flow) as model:
            reader = TransformersReader(model, thinking_tokenizer(QWEN3), **ON)
            handles = reader.begin(PROMPTS, 2, SAMPLED)
            draws.append([(item.state.sequence.draw.key, item.state.sequence.draw.step) for item in handles])
    assert [step for _, step in draws[0]] == [2] * len(PROMPTS)
    assert draws[0] == draws[1]


@pytest.mark.parametrize("case", ["qwen3-llama", "gpt-oss"], indirect=True)
def test_the_conformance_suite_passes_with_thoughts(reader: TransformersReader) -> None:
    report = check_reader(reader, Trial(vocabulary_size=VOCABULARY + len(IDS)))
    assert report.passed, str(report)
