"""Models of many families: conformance, the same answer in every batch, the numbers of plain passes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf

from surerag.errors import ConfigurationError
from surerag.messages import Generation, SamplingParams
from surerag.readers.conformance import Trial, check_reader
from surerag.readers.local import TransformersReader
from surerag.readers.protocol import BegunGeneration
from tests.readers.local.support import ONE, PROMPTS, assert_same, reader_of, texts, traced
from tests.readers.tiny_models import ATTENTION, END_ID, OTHERS, VOCABULARY, tiny_model, tiny_tokenizer


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt_neox", "mamba"])
def test_the_conformance_suite_passes(architecture: str) -> None:
    report = check_reader(reader_of(architecture, chat=True), Trial(vocabulary_size=VOCABULARY))
    assert report.passed, str(report)


def read_back(model: Any, prompt: str, answer: Generation) -> tuple[torch.Tensor, list[int]]:
    """Return a model's log-probabilities at each token of an answer, and those tokens."""
    ids, tail = (tiny_tokenizer()(text)["input_ids"] for text in (prompt, "".join(traced(answer).tokens)))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([ids + tail], device=model.device), use_cache=False).logits
    return logits[0, len(ids) - 1 : -1].float().log_softmax(-1).cpu(), tail


@pytest.mark.parametrize("architecture", [*ATTENTION, *OTHERS])
def test_answers_are_the_models_own_and_the_same_in_every_batch(architecture: str) -> None:
    reader, model = reader_of(architecture), tiny_model(architecture)
    assert reader.capabilities.begin == ("native" if architecture in ATTENTION else "whole")
    together = [row[0] for row in reader.generate(PROMPTS, ONE)]
    finished = BegunGeneration.rest_of(reader.begin(PROMPTS, 3, ONE))
    for prompt, answer, other in zip(PROMPTS, together, finished, strict=True):
        assert_same(other, answer)
        assert_same(reader.generate([prompt], ONE)[0][0], answer)
        if len(prompt) == 1 and architecture in OTHERS:
            continue
        plain, tail = read_back(model, prompt, answer)
        assert traced(answer).logprobs == pytest.approx(plain[range(len(tail)), tail].tolist(), abs=1e-4)
        entropy = traced(answer).entropy
        assert entropy is not None
        expected = -(plain.exp() * plain).nan_to_num().sum(-1)
        assert entropy.upper == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "bloom"])
def test_the_end_tokens_log_probability_is_the_models_where_an_answer_ended_by_itself(
    architecture: str,
) -> None:
    reader, model, tokenizer = reader_of(architecture), tiny_model(architecture), tiny_tokenizer()
    drawn = SamplingParams(n=6, temperature=2.0, max_tokens=40, seed=8)
    rows = reader.generate(PROMPTS[:2], drawn)
    ended = [
        (prompt, one)
        for prompt, row in zip(PROMPTS, rows, strict=False)
        for one in row
        if one.finish == "stop"
    ]
    assert ended
    for prompt, answer in ended:
        ids = tokenizer(prompt + "".join(traced(answer).tokens))["input_ids"]
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits
        end = logits[0, -1].float().log_softmax(-1)[END_ID].item()
        assert traced(answer).end_logprob == pytest.approx(end, abs=1e-4)
    stops = tuple(answer.text[-2:] for _, answer in ended)
    stopped = [one for row in reader.generate(PROMPTS[:2], replace(drawn, stop=stops)) for one in row]
    cut = [one for row in reader.generate(PROMPTS[:2], replace(drawn, max_tokens=2)) for one in row]
    begun = [item.partial for item in reader.begin(PROMPTS[:2], 2, drawn)]
    assert "stop" in {answer.finish for answer in stopped}
    assert {traced(answer).end_logprob for answer in [*stopped, *cut, *begun]} == {None}


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "bloom", "mamba"])
def test_greedy_answers_are_those_of_generate(architecture: str) -> None:
    model, tokenizer = tiny_model(architecture), tiny_tokenizer()
    for prompt in PROMPTS[:3]:
        ids = tokenizer(prompt, return_tensors="pt").to(model.device)["input_ids"]
        whole = model.generate(ids, max_new_tokens=10, do_sample=False, attention_mask=torch.ones_like(ids))
        expected = tokenizer.decode(whole[0, ids.shape[1] :], skip_special_tokens=True).strip()
        assert (
            reader_of(architecture).generate([prompt], SamplingParams(max_tokens=10))[0][0].text == expected
        )


SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (
            lambda: hf.T5ForConditionalGeneration(
                hf.T5Config(vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4)
            ),
            "T5ForConditionalGeneration has an encoder and a decoder",
        ),
        (
            lambda: hf.BertForMaskedLM(hf.BertConfig(**SMALL)),
            "BertForMaskedLM does not predict the next token",
        ),
        (lambda: hf.LlamaModel(hf.LlamaConfig(**SMALL)), "LlamaModel does not predict the next token"),
    ],
    ids=["T5", "BERT", "body"],
)
def test_refuses_what_is_no_causal_model(build: Callable[[], Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        TransformersReader(build(), tiny_tokenizer())


def test_a_model_with_a_cache_of_its_own_takes_the_plain_path() -> None:
    config = hf.MiniMaxConfig(**SMALL, num_key_value_heads=2, head_dim=8, num_local_experts=2)
    reader = TransformersReader(hf.MiniMaxForCausalLM(config), tiny_tokenizer())
    assert reader.capabilities.begin == "whole"
    answers = reader.generate(PROMPTS[:2], SamplingParams(max_tokens=4))
    assert texts(answers) == [
        [reader.generate([prompt], SamplingParams(max_tokens=4))[0][0].text] for prompt in PROMPTS[:2]
    ]


def test_a_peft_adapter_is_in_force() -> None:
    peft = pytest.importorskip("peft")
    plain = copy.deepcopy(tiny_model("llama"))
    lora = peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    reader = TransformersReader(peft.get_peft_model(plain, lora).eval(), tiny_tokenizer())
    (answer,) = reader.generate(PROMPTS[:1], SamplingParams(max_tokens=8))[0]
    assert reader.capabilities.begin == "native"
    for model, same in ((reader.model, True), (tiny_model("llama"), False)):
        plain, tail = read_back(model, PROMPTS[0], answer)
        expected = pytest.approx(traced(answer).logprobs, abs=1e-4)
        assert (plain[range(len(tail)), tail].tolist() == expected) is same


def test_a_compiled_model_says_the_same() -> None:
    compiled: Any = torch.compile(copy.deepcopy(tiny_model("llama")), backend="eager")
    reader = TransformersReader(compiled, tiny_tokenizer())
    assert texts(reader.generate(PROMPTS, ONE)) == texts(reader_of().generate(PROMPTS, ONE))
