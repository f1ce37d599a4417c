"""Models that think before they answer: numbers, counts and text are the answer's alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch

from surerag.errors import ConfigurationError, ThinkingBudgetError
from surerag.messages import Message, SamplingParams, Usage
from surerag.readers.conformance import Trial, check_reader
from surerag.readers.local import TransformersReader
from surerag.readers.local.chat import PromptEncoder
from surerag.readers.protocol import BegunGeneration
from tests.readers.local.support import PROMPTS, assert_same, traced
from tests.readers.thinking_models import (
    CHANNELS,
    CLOSE,
    DEEPSEEK_R1,
    DEEPSEEK_V31,
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
from tests.readers.tiny_models import CHAT_TEMPLATE, END_ID, VOCABULARY, tiny_model, tiny_tokenizer

SAMPLED = SamplingParams(n=3, temperature=1.0, max_tokens=9, seed=3)
ONE = replace(SAMPLED, n=1)
ON: dict[str, Any] = {"thinking": True, "thinking_tokens": 120}
NEMOTRON = (
    "{% set ns = namespace(enable_thinking=true) %}{% for m in messages %}{% if '/no_think' in m.content %}"
    "{% set ns.enable_thinking = false %}{% endif %}{{ m.content.replace('/no_think', '') }}|{% endfor %}"
    "{% if ns.enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"
)


class Case(NamedTuple):
    """A way of thinking: a template, a flow, and the model."""

    architecture: str
    template: str
    flow: Flow
    ends: tuple[int, ...] = (END_ID,)


CASES = {
    "qwen3": Case("qwen3", QWEN3, MARKED),
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
        yield TransformersReader(model, thinking_tokenizer(case.template), **ON)


def qwen3(model: Any, **options: Any) -> TransformersReader:
    return TransformersReader(model, thinking_tokenizer(QWEN3), **{**ON, **options})


def test_the_answer_begins_after_the_thoughts(reader: TransformersReader) -> None:
    rows = reader.generate(PROMPTS, SAMPLED)
    answers = [answer for row in rows for answer in row]
    assert any(answer.thinking_tokens > 4 and len(traced(answer)) > 1 for answer in answers)
    for answer in answers:
        assert not any(mark in answer.text for mark in (OPEN, CLOSE, "analysis", "final", "<|"))
        assert "".join(traced(answer).tokens).strip() == answer.text
        assert answer.completion_tokens == len(traced(answer)) <= SAMPLED.max_tokens
        assert not answer.text or traced(answer).tokens[0].strip()
    lengths = {answer.thinking_tokens for answer in answers}
    # What a test of batches needs: thoughts of very different lengths.
    assert max(lengths) > min(lengths) + 2
    assert reader.capabilities.thinking == "apart"
    for prompt, row in zip(PROMPTS, rows, strict=True):
        for one, other in zip(row, reader.generate([prompt], SAMPLED)[0], strict=True):
            assert_same(one, other)
    assert reader.usage.thinking_tokens == 2 * sum(answer.thinking_tokens for answer in answers)


@pytest.mark.parametrize("n_tokens", [1, 3])
def test_what_is_begun_are_the_first_tokens_of_the_answer(reader: TransformersReader, n_tokens: int) -> None:
    whole = [row[0] for row in reader.generate(PROMPTS, ONE)]
    used = reader.usage
    begun = reader.begin(PROMPTS, n_tokens, ONE)
    for item, answer in zip(begun, whole, strict=True):
        assert traced(item.partial).tokens == traced(answer).tokens[:n_tokens]
        assert item.partial.thinking_tokens == answer.thinking_tokens
        assert item.done == (item.partial.finish != "partial")
    for item, answer in zip(BegunGeneration.rest_of(begun[1:][::-1]), whole[1:][::-1], strict=True):
        assert_same(item, answer)
    chunks = list(begun[0].chunks())
    assert "".join(chunk.text for chunk in chunks) == whole[0].text
    prompt_tokens = sum(answer.prompt_tokens for answer in whole)
    written = sum(answer.completion_tokens for answer in whole)
    thought = sum(answer.thinking_tokens for answer in whole)
    assert reader.usage == used + Usage(len(PROMPTS), prompt_tokens, written, thought)


def test_streams_show_the_answer_alone(reader: TransformersReader) -> None:
    for prompt, (whole,) in zip(PROMPTS, reader.generate(PROMPTS, ONE), strict=True):
        chunks = list(reader.stream(prompt, SAMPLED))
        assert "".join(chunk.text for chunk in chunks) == whole.text
        assert chunks[-1].generation is not None
        assert_same(chunks[-1].generation, whole)


def test_stop_texts_concern_the_answer_alone(reader: TransformersReader) -> None:
    inside = ("hm", "<", "think", GAP, "\n", "assistant")
    for prompt, (whole,) in zip(PROMPTS, reader.generate(PROMPTS, ONE), strict=True):
        if any(text in whole.text for text in inside) or len(whole.text.split()) < 3:
            continue
        assert_same(reader.generate([prompt], replace(ONE, stop=inside))[0][0], whole)
        stop = whole.text.split()[1]
        cut = reader.generate([prompt], replace(ONE, stop=(*inside, stop)))[0][0]
        assert (cut.text, cut.finish) == (whole.text[: whole.text.find(stop)].strip(), "stop")
        assert cut.thinking_tokens == whole.thinking_tokens


@pytest.mark.parametrize("case", ["qwen3", "gpt-oss"], indirect=True)
def test_the_conformance_suite_passes_with_thoughts(reader: TransformersReader) -> None:
    report = check_reader(reader, Trial(vocabulary_size=VOCABULARY + len(IDS)))
    assert report.passed, str(report)


def test_too_long_a_thought_is_an_error_with_numbers() -> None:
    with thinking_model("llama", ENDLESS) as model:
        reader = qwen3(model, thinking_tokens=20)
        for work in (
            lambda: reader.generate(["x"], SAMPLED),
            lambda: reader.begin(["x"], 2, SAMPLED),
            lambda: list(reader.stream("x", SAMPLED)),
        ):
            with pytest.raises(ThinkingBudgetError, match=r"after 21 tokens.*allow at most 20 tokens"):
                work()
        assert (reader.usage.completion_tokens, reader.usage.thinking_tokens) == (0, 21 * (3 + 1 + 1))
        with pytest.raises(
            ThinkingBudgetError, match=r"window, which also holds the \d+ tokens of the prompt"
        ):
            qwen3(model, window=40).generate(["x"], SAMPLED)


def test_a_budget_is_enough_if_it_is_just_enough() -> None:
    with thinking_model("llama", MARKED) as model:
        (answer,) = qwen3(model).generate(["x"], ONE)[0]
        enough = qwen3(model, thinking_tokens=answer.thinking_tokens)
        assert_same(enough.generate(["x"], ONE)[0][0], answer)
        with pytest.raises(ThinkingBudgetError):
            qwen3(model, thinking_tokens=answer.thinking_tokens - 1).generate(["x"], ONE)


def test_empty_thoughts_and_thoughts_without_an_answer() -> None:
    with thinking_model("llama", EMPTY) as model:
        answers = qwen3(model).generate(PROMPTS, SAMPLED)
    assert {answer.thinking_tokens for row in answers for answer in row} == {3}
    with thinking_model("llama", {**MARKED, **dict.fromkeys(THOUGHTS, ("<|end|>",))}) as model:
        (answer,) = qwen3(model).generate(["x"], SamplingParams())[0]
    assert (answer.text, answer.finish, answer.completion_tokens, answer.thinking_tokens) == (
        "",
        "empty",
        0,
        2,
    )


def test_a_model_without_a_template_is_recognised_by_its_marks() -> None:
    with thinking_model("llama", MARKED) as model:
        tokenizer = thinking_tokenizer("{{ messages[0]['content'] }}{{ '\n' }}")
        reader = TransformersReader(model, tokenizer)
        assert reader.capabilities.thinking == "none"
        answers = reader.generate(PROMPTS, SAMPLED)
        assert all(answer.thinking_tokens > 2 for row in answers for answer in row)
        assert not any(OPEN in answer.text for row in answers for answer in row)
        for item, (whole, *_) in zip(
            BegunGeneration.rest_of(reader.begin(PROMPTS, 2, SAMPLED)), answers, strict=True
        ):
            assert_same(item, whole)


@pytest.mark.parametrize("stop", [(), ("<",), ("b",)])
def test_what_only_begins_like_a_mark_is_the_answer(stop: tuple[str, ...]) -> None:
    script = tiny_tokenizer()("<thi be", add_special_tokens=False)["input_ids"]
    names = tiny_tokenizer().convert_ids_to_tokens(script)
    chain = {"\n": (names[0],), **{one: (other,) for one, other in pairwise(names)}}
    with thinking_model("llama", chain) as model:
        reader = qwen3(model)
        for length in (1, 2, len(script), 20):
            sampling = SamplingParams(max_tokens=length, stop=stop)
            (whole,) = reader.generate(["x"], sampling)[0]
            expected = tiny_tokenizer().decode(script[:length])
            if stop and stop[0] in expected:
                before = expected.split(stop[0])[0].strip()
                assert (whole.text, whole.finish) == (before, "stop" if before else "empty")
            else:
                assert whole.text.startswith(expected)
                assert whole.completion_tokens <= length
            assert_same(reader.begin(["x"], 1, sampling)[0].rest(), whole)
            assert "".join(chunk.text for chunk in reader.stream("x", sampling)) == whole.text


@pytest.mark.parametrize(
    ("template", "thinking", "ending", "kind"),
    [
        (QWEN3, None, "assistant\n<think>\n\n</think>\n\n", "off"),
        (QWEN3, True, "assistant\n", "apart"),
        (DEEPSEEK_V31, None, "assistant|</think>", "off"),
        (DEEPSEEK_V31, True, "assistant|<think>", "apart"),
        (DEEPSEEK_R1, None, "assistant|<think>\n", "apart"),
        (HARMONY, None, "<|start|>assistant", "apart"),
        (NEMOTRON, None, "Where?|<think>\n", "apart"),
        (CHAT_TEMPLATE, None, "assistant\n", "none"),
        (CHAT_TEMPLATE, True, "assistant\n", "apart"),
    ],
)
def test_thinking_is_off_where_the_template_can_and_apart_elsewhere(
    template: str, thinking: bool | None, ending: str, kind: str
) -> None:
    tokenizer = thinking_tokenizer(template)
    encoder = PromptEncoder(tokenizer, thinking=thinking)
    assert encoder.thinking == kind
    assert str(tokenizer.decode(encoder.encode("Where?")[0])).endswith(ending)
    if template in (DEEPSEEK_R1, HARMONY, NEMOTRON, CHAT_TEMPLATE):
        with pytest.raises(ConfigurationError, match="no switch for thinking"):
            PromptEncoder(tokenizer, thinking=False)


def test_options_of_the_template_are_the_callers() -> None:
    tokenizer = thinking_tokenizer(QWEN3)
    for value, kind in ((True, "apart"), (False, "off")):
        encoder = PromptEncoder(tokenizer, options={"enable_thinking": value})
        assert (encoder.thinking, encoder.expects_thoughts) == (kind, value)
        with pytest.raises(ConfigurationError, match="contradicts"):
            PromptEncoder(tokenizer, options={"enable_thinking": value}, thinking=not value)
    harmony = thinking_tokenizer(HARMONY)
    effort = PromptEncoder(harmony, options={"reasoning_effort": "low"})
    assert "Reasoning: low" in str(harmony.decode(effort.encode("Where?")[0]))
    for options in ({"now": object()}, {"now": float("nan")}, {"tokenize": True}):
        with pytest.raises(ConfigurationError):
            PromptEncoder(harmony, options=options)
    for setting in ({"thinking": False}, {"options": {"enable_thinking": False}}):
        with pytest.raises(ConfigurationError, match=r"no (chat template in use|switch for thinking)"):
            PromptEncoder(tokenizer, False, **setting)  # type: ignore[arg-type]  # of both options


@pytest.mark.parametrize(
    ("template", "inside"), [(DEEPSEEK_R1, "<think>"), (NEMOTRON, "<think>"), (QWEN3, ""), (HARMONY, "")]
)
def test_marks_in_a_document_begin_no_thoughts(template: str, inside: str) -> None:
    encoder = PromptEncoder(thinking_tokenizer(template))
    for text in ("Where?", "think", "<think>", "a <think>\n", "x</think>", "<|channel|>analysis<|message|>"):
        assert encoder.encode(text)[1] == inside
        assert encoder.encode((Message("system", text), Message("user", text)))[1] == inside
    assert PromptEncoder(thinking_tokenizer(NEMOTRON)).encode("Where? /no_think")[1] == ""


def test_variables_of_the_template_are_part_of_the_name() -> None:
    one, other = (
        TransformersReader(tiny_model("llama"), _small(QWEN3), thinking=thinking) for thinking in (None, True)
    )
    assert one.name.endswith("(enable_thinking=false)")
    assert other.name.endswith("(enable_thinking=true)")
    assert "thinking='off'" in repr(one)


def _small(template: str) -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer


def test_numbers_after_thoughts_are_those_of_a_plain_pass() -> None:
    with thinking_model("qwen3", MARKED) as model:
        tokenizer, reader = thinking_tokenizer(QWEN3), qwen3(model)
        fed: list[int] = []
        hook = model.register_forward_hook(
            lambda module, inputs, keywords, output: fed.extend(keywords["input_ids"][0].tolist()),
            with_kwargs=True,
        )
        sampling = replace(ONE, max_tokens=4)
        answer = next(
            answer for p in PROMPTS if (answer := reader.generate([p], sampling)[0][0]).finish == "length"
        )
        hook.remove()
        words = [tokenizer(t, add_special_tokens=False)["input_ids"][0] for t in traced(answer).tokens]
        ids = fed[-(answer.prompt_tokens + answer.thinking_tokens + 3) :] + words[-1:]
        assert ids[-4:] == words
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits.float().log_softmax(-1)
    expected = logits[0, range(len(ids) - 5, len(ids) - 1), words]
    assert traced(answer).logprobs == pytest.approx(expected.tolist(), abs=1e-4)
