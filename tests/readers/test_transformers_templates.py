"""What a chat template says about thinking, and what a caller may set in it."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from surerag.errors import CapabilityError, ConfigurationError
from surerag.messages import Message, SamplingParams
from surerag.readers.local import TransformersReader
from surerag.readers.local.encoding import PromptEncoder
from tests.readers.thinking_models import (
    DEEPSEEK_R1,
    DEEPSEEK_V31,
    HARMONY,
    MARKED,
    QWEN3,
    thinking_model,
    thinking_tokenizer,
)
from tests.readers.tiny_models import CHAT_TEMPLATE, tiny_model, tiny_tokenizer

SEED_OSS = (
    "{% for m in messages %}<|turn|>{{ m.role }}\n{{ m.content }}<|end|>{% endfor %}<|turn|>assistant\n"
    "{% if thinking_budget is defined and thinking_budget == 0 %}<seed:think><seed:cot_budget_reflect>"
    "{% endif %}"
)
NEMOTRON = (
    "{% set ns = namespace(enable_thinking=true) %}{% for m in messages %}{% if '/no_think' in m.content %}"
    "{% set ns.enable_thinking = false %}{% endif %}{{ m.content.replace('/no_think', '') }}|{% endfor %}"
    "{% if ns.enable_thinking %}<think>\n{% else %}<think></think>{% endif %}"
)
GRANITE = (
    "{% if thinking %}Write your thoughts between <think> and </think>. {% endif %}"
    "{% for m in messages %}{{ m.content }}|{% endfor %}"
)


def shown(encoder: PromptEncoder, tokenizer: Any, prompt: Any = "Where?", **how: bool) -> str:
    return str(tokenizer.decode(encoder.encode(prompt, **how)))


@pytest.mark.parametrize(
    ("template", "thinking", "ending", "kind"),
    [
        (QWEN3, None, "assistant\n<think>\n\n</think>\n\n", "off"),
        (QWEN3, False, "assistant\n<think>\n\n</think>\n\n", "off"),
        (QWEN3, True, "assistant\n", "apart"),
        (DEEPSEEK_V31, None, "assistant|</think>", "off"),
        (DEEPSEEK_V31, True, "assistant|<think>", "apart"),
        (DEEPSEEK_R1, None, "assistant|<think>\n", "apart"),
        (DEEPSEEK_R1, True, "assistant|<think>\n", "apart"),
        (HARMONY, None, "<|start|>assistant", "apart"),
        (NEMOTRON, None, "Where?|<think>\n", "apart"),
        (GRANITE, None, "Where?|", "off"),
        (GRANITE, True, "Where?|", "apart"),
        (SEED_OSS, None, "assistant\n", "apart"),
        (CHAT_TEMPLATE, None, "assistant\n", "none"),
        (CHAT_TEMPLATE, True, "assistant\n", "apart"),
    ],
)
def test_thinking_is_switched_off_where_the_template_can_and_told_apart_elsewhere(
    template: str, thinking: bool | None, ending: str, kind: str
) -> None:
    tokenizer = thinking_tokenizer(template)
    encoder = PromptEncoder(tokenizer, thinking=thinking)
    assert encoder.manner.thinking == kind
    assert shown(encoder, tokenizer).endswith(ending)


@pytest.mark.parametrize("template", [DEEPSEEK_R1, HARMONY, NEMOTRON, CHAT_TEMPLATE])
def test_thinking_cannot_be_switched_off_without_a_switch(template: str) -> None:
    with pytest.raises(ConfigurationError, match="no switch for thinking"):
        PromptEncoder(thinking_tokenizer(template), thinking=False)


def test_the_callers_own_switch_is_in_force() -> None:
    tokenizer = thinking_tokenizer(QWEN3)
    for value, kind in ((True, "apart"), (False, "off")):
        encoder = PromptEncoder(tokenizer, template_options={"enable_thinking": value})
        assert (encoder.manner.thinking, encoder.manner.expected) == (kind, value)
        assert ("</think>" in shown(encoder, tokenizer)) is not value
        with pytest.raises(ConfigurationError, match="contradicts"):
            PromptEncoder(tokenizer, template_options={"enable_thinking": value}, thinking=not value)
    effort = PromptEncoder(thinking_tokenizer(HARMONY), template_options={"reasoning_effort": "low"})
    assert "Reasoning: low" in shown(effort, thinking_tokenizer(HARMONY))


@pytest.mark.parametrize(
    ("template", "opened"),
    [(DEEPSEEK_R1, "<think>"), (NEMOTRON, "<think>"), (QWEN3, ""), (HARMONY, ""), (CHAT_TEMPLATE, "")],
)
def test_thoughts_that_the_template_opens_are_known_and_those_of_a_document_are_text(
    template: str, opened: str
) -> None:
    encoder = PromptEncoder(thinking_tokenizer(template))
    for text in (
        "Where?",
        "think",
        "<think>",
        "a <think>\n",
        "x</think>",
        ">",
        "<|channel|>analysis<|message|>",
    ):
        assert encoder.read(text).opened == opened
        assert encoder.read((Message("system", text), Message("user", text))).opened == opened


def test_a_template_may_end_according_to_what_was_said() -> None:
    encoder = PromptEncoder(thinking_tokenizer(NEMOTRON))
    assert encoder.read("Where? /no_think").opened == ""
    budget = PromptEncoder(thinking_tokenizer(SEED_OSS), template_options={"thinking_budget": 0})
    assert budget.read("Where?").opened == "<seed:think>"


def test_a_function_that_opens_thoughts_is_understood() -> None:
    encoder = PromptEncoder(tiny_tokenizer(), render=lambda turns: f"{turns[-1].content}\nA: <think>\n")
    assert (encoder.read("Where?").opened, encoder.manner.thinking) == ("<think>", "apart")
    assert not encoder.manner.scores


@pytest.mark.parametrize(
    ("template", "thinking", "before"),
    [
        (QWEN3, True, "assistant\n<think>\n\n</think>\n\nVelm"),
        (QWEN3, None, "assistant\n<think>\n\n</think>\n\nVelm"),
        (DEEPSEEK_V31, True, "assistant|</think>Velm"),
        (HARMONY, None, "<|start|>assistant<|channel|>final<|message|>Velm"),
    ],
)
def test_given_text_is_scored_as_an_answer_without_thoughts(
    template: str, thinking: bool | None, before: str
) -> None:
    tokenizer = thinking_tokenizer(template)
    encoder = PromptEncoder(tokenizer, thinking=thinking)
    assert encoder.manner.scores
    ids = encoder.encode("Where?", unthought=True) + encoder.encode_with("Where?", "Velm", unthought=True)
    assert str(tokenizer.decode(ids)).endswith(before)


def test_scores_are_the_same_whether_thinking_is_on_or_off() -> None:
    with thinking_model("llama", MARKED) as model:
        readers = [
            TransformersReader(model, thinking_tokenizer(QWEN3), thinking=thinking)
            for thinking in (True, False, None)
        ]
        on, off, default = (reader.score(["Where?", "x"], [" ba be", " bi"]) for reader in readers)
        assert on == off == default
        said = readers[1].generate(["Where?"], SamplingParams(max_tokens=4))[0][0].trace
        assert said is not None
        assert not readers[1].usage.thinking_tokens
        (read,) = readers[0].score(["Where?"], ["".join(said.tokens)])
        assert read.logprobs == pytest.approx(said.logprobs, abs=1e-4)


def test_a_model_that_always_thinks_does_not_score() -> None:
    reader = TransformersReader(tiny_model("llama"), _small(DEEPSEEK_R1))
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match="thinks before it answers"):
        reader.score(["x"], ["y"])
    assert TransformersReader(tiny_model("llama"), _small(CHAT_TEMPLATE)).capabilities.score


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokenize": True}, "may not set tokenize"),
        ({"add_generation_prompt": False, "messages": []}, "may not set add_generation_prompt, messages"),
        ({"now": object()}, "plain values"),
        ({"now": float("nan")}, "plain values"),
        ({1: "one"}, "plain values"),
    ],
)
def test_template_options_are_plain_values_of_the_callers_own(options: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True), template_options=options)


@pytest.mark.parametrize("setting", [{"thinking": False}, {"template_options": {"enable_thinking": False}}])
def test_what_only_a_template_could_heed_is_refused_without_one(setting: Any) -> None:
    for how in ({"chat_template": False}, {"render": lambda turns: str(turns[-1].content)}):
        with pytest.raises(ConfigurationError, match="no chat template in use"):
            TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True), **how, **setting)
    with pytest.raises(ConfigurationError, match="thinking_tokens"):
        TransformersReader(tiny_model("llama"), tiny_tokenizer(), thinking_tokens=0)


def test_a_readers_name_tells_manners_of_answering_apart() -> None:
    def name(template: str, **settings: Any) -> str:
        return TransformersReader(tiny_model("llama"), _small(template), **settings).name

    plain = name(CHAT_TEMPLATE)
    assert plain.startswith("LlamaForCausalLM@")
    assert "(" not in plain
    assert name(QWEN3) == name(QWEN3, thinking=False) == f"{plain}(enable_thinking=false)"
    assert name(QWEN3, thinking=True) == f"{plain}(enable_thinking=true)"
    assert name(QWEN3, template_options={"enable_thinking": True}) == name(QWEN3, thinking=True)
    # A limit changes whether there is an answer, not which.
    assert name(DEEPSEEK_R1, thinking=True, thinking_tokens=9) == name(DEEPSEEK_R1) == plain
    assert name(HARMONY, template_options={"reasoning_effort": "low"}) == f'{plain}(reasoning_effort="low")'
    assert len(name(HARMONY, template_options={"model_identity": "x" * 500})) < 50


def test_the_settings_survive_pickling_and_show(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    _small(QWEN3).save_pretrained(tmp_path)
    loaded = TransformersReader.from_pretrained(
        str(tmp_path), device="cpu", thinking=True, thinking_tokens=7, template_options={"mood": "calm"}
    )
    again = pickle.loads(pickle.dumps(loaded))
    assert again._settings == loaded._settings
    assert (again.name, again._thinking_tokens) == (loaded.name, 7)
    assert again.capabilities.thinking == "apart"
    assert "thinking='apart'" in repr(again)
    assert "thinking" not in repr(TransformersReader(tiny_model("llama"), tiny_tokenizer()))


def _small(template: str) -> Any:
    """Return a tokenizer for models without tokens of thoughts; marks are plain text to it."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = template
    return tokenizer
