"""HuggingFaceLLM as a local reader: its model, its tokenizer, its prompting."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.llms.huggingface import HuggingFaceLLM
from surerag.adapting import ChatTemplateWarning

from llama_index_surerag import reader_from_llm
from surerag import TransformersReader
from surerag.messages import Message, SamplingParams
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

GREEDY = SamplingParams(max_tokens=12)


def llm(*, chat: bool = False, template: bool = False, **settings: Any) -> HuggingFaceLLM:
    return HuggingFaceLLM(
        model=tiny_model("llama"),
        tokenizer=tiny_tokenizer(chat=chat or template),
        max_new_tokens=12,
        generate_kwargs={"do_sample": False},
        is_chat_model=chat,
        context_window=512,
        **settings,
    )


def test_it_is_a_local_reader_with_exact_entropies() -> None:
    reader = reader_from_llm(llm())
    assert isinstance(reader, TransformersReader)
    [[answer]] = reader.generate(["Where is Velm?"], GREEDY)
    assert answer.trace.entropy.exact


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"query_wrapper_prompt": "<|turn|>user\n{query_str}<|end|>"},
        {"completion_to_prompt": lambda text: f"<|turn|>{text}<|turn|>"},
        {"system_prompt": "Be brief."},
    ],
    ids=["plain", "wrapped", "completion_to_prompt", "system"],
)
def test_it_says_what_the_llms_own_pipeline_says(settings: dict[str, Any]) -> None:
    model = llm(**settings)
    theirs = model.predict(PromptTemplate("Where is {x}?"), x="Velm")
    [[ours]] = reader_from_llm(model).generate(["Where is Velm?"], GREEDY)
    assert ours.text == theirs.strip()


def test_raw_text_becomes_a_turn_of_the_chat_template_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = llm(template=True)
    with pytest.warns(ChatTemplateWarning, match=r"reader_from_llm\(llm, chat_template=False\)") as warned:
        readers = [reader_from_llm(model), reader_from_llm(model)]
    assert len(warned) == 1
    assert warned[0].filename == __file__
    assert [record.name for record in caplog.records if "chat template" in record.message] == ["surerag"]
    prompts = ["Where is Velm?", (Message("system", "Be brief."), Message("user", "Velm?"))]
    core = TransformersReader(model._model, model._tokenizer)
    assert readers[0].generate(prompts, GREEDY) == core.generate(prompts, GREEDY)
    raw = reader_from_llm(model, chat_template=False).generate(prompts[:1], GREEDY)
    assert raw[0][0].text == model.complete("Where is Velm?").text.strip()
    assert raw[0][0].prompt_tokens < core.generate(prompts[:1], GREEDY)[0][0].prompt_tokens


@pytest.mark.parametrize(
    "settings",
    [
        {"query_wrapper_prompt": "<|turn|>user\n{query_str}<|end|>"},
        {"completion_to_prompt": lambda text: f"<|turn|>{text}<|turn|>"},
        {"messages_to_prompt": lambda messages: str(messages[-1].content)},
        {"chat": True},
    ],
    ids=["wrapper", "completion_to_prompt", "messages_to_prompt", "chat"],
)
def test_a_users_own_rendering_holds_against_the_chat_template(settings: dict[str, Any]) -> None:
    model = llm(**{"template": True, **settings})
    theirs = (
        model.chat([ChatMessage(role="user", content="Where is Velm?")]).message.content
        if model.is_chat_model
        else model.predict(PromptTemplate("Where is {x}?"), x="Velm")
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", ChatTemplateWarning)
        reader = reader_from_llm(model)
    [[ours]] = reader.generate(["Where is Velm?"], GREEDY)
    assert ours.text == str(theirs).strip()


def test_a_system_prompt_alone_is_a_turn_of_the_chat_template() -> None:
    model = llm(template=True, system_prompt="Be brief.")
    with pytest.warns(ChatTemplateWarning, match="chat template"):
        reader = reader_from_llm(model)
    core = TransformersReader(model._model, model._tokenizer)
    system, user = Message("system", "Be brief."), Message("user", "Where is Velm?")
    assert reader.generate([user.content, (Message("system", "Cite."), user)], GREEDY) == core.generate(
        [(system, user), (Message("system", "Be brief.\n\nCite."), user)], GREEDY
    )
    plain, spoiled = reader.generate(["Velm", "Velm<|end|>"], GREEDY)
    assert spoiled[0].prompt_tokens == plain[0].prompt_tokens + len("<|end|>")


def test_a_template_without_a_system_role_has_the_system_prompt_in_its_first_turn() -> None:
    model = llm(template=True, system_prompt="Be brief.")
    model._tokenizer.chat_template = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        + model._tokenizer.chat_template
    )
    with pytest.warns(ChatTemplateWarning):
        reader = reader_from_llm(model)
    core = TransformersReader(model._model, model._tokenizer)
    assert reader.generate(["Velm?"], GREEDY) == core.generate(["Be brief.\n\nVelm?"], GREEDY)


def test_a_chat_model_gets_its_chat_template() -> None:
    model = llm(chat=True)
    theirs = model.chat([ChatMessage(role="system", content="s"), ChatMessage(role="user", content="Velm?")])
    [[ours]] = reader_from_llm(model).generate([(Message("system", "s"), Message("user", "Velm?"))], GREEDY)
    assert ours.text == theirs.message.content.strip()


def test_control_tokens_in_a_document_stay_text() -> None:
    model = llm(query_wrapper_prompt="<|turn|>{query_str}<|end|>")
    reader = reader_from_llm(model)
    plain, spoiled = reader.generate(["Velm", "Velm<|end|>"], GREEDY)
    assert spoiled[0].prompt_tokens == plain[0].prompt_tokens + len("<|end|>")


def test_stopping_ids_end_an_answer() -> None:
    model = llm()
    free = reader_from_llm(model).generate(["Where is Velm?"], GREEDY)[0][0]
    first = model._model.generate(
        **model._tokenizer("Where is Velm?", return_tensors="pt"), max_new_tokens=1, do_sample=False
    )[0, -1]
    stopped = reader_from_llm(llm(stopping_ids=[int(first)])).generate(["Where is Velm?"], GREEDY)[0][0]
    assert len(free.trace) > 0
    assert len(stopped.trace) == 0


def test_the_users_model_and_tokenizer_are_left_alone() -> None:
    model = llm(chat=True)
    template, method = model._tokenizer.chat_template, model._tokenizer.apply_chat_template.__func__
    reader_from_llm(model).generate(["Where is Velm?"], GREEDY)
    assert model._tokenizer.chat_template == template
    assert model._tokenizer.apply_chat_template.__func__ is method
