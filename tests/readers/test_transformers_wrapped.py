"""Models that something was put around, and heads that stand apart: the same answers for the same work."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader, scoring
from surerag.readers.local.decoding import warp_logits
from tests.readers.same_answers import assert_same
from tests.readers.tiny_models import DEVICE, tiny_model, tiny_tokenizer

PROMPTS = ["Where was Ada born?", "The Orun", "Who is the mayor of Velm?"]
SAMPLING = SamplingParams(n=2, temperature=1.0, max_tokens=12, seed=3)


def with_lora(model: Any) -> Any:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(
        copy.deepcopy(model), peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
    )
    return adapted.eval()


def compiled(model: Any) -> Any:
    return torch.compile(copy.deepcopy(model), backend="eager")


def tokens_fed(model: Any, ask: Callable[[], Any]) -> int:
    """Count the tokens that went through a model's embeddings."""
    fed: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda m, i, o: fed.append(i[0].numel()))
    ask()
    hook.remove()
    return sum(fed)


@pytest.mark.parametrize("wrap", [with_lora, compiled])
def test_a_wrapped_model_reads_no_token_twice(wrap: Callable[[Any], Any]) -> None:
    wrapped = wrap(tiny_model("llama"))
    reader = TransformersReader(wrapped, tiny_tokenizer())
    longest = max(len(tiny_tokenizer()(prompt)["input_ids"]) for prompt in PROMPTS)
    fed = tokens_fed(wrapped, lambda: reader.generate(PROMPTS, SamplingParams(max_tokens=8)))
    assert fed <= len(PROMPTS) * (longest + 8)


def test_a_compiled_model_says_the_same() -> None:
    readers = [
        TransformersReader(model, tiny_tokenizer())
        for model in (compiled(tiny_model("llama")), tiny_model("llama"))
    ]
    one, other = (reader.generate(PROMPTS, SAMPLING) for reader in readers)
    assert [[answer.text for answer in row] for row in one] == [
        [answer.text for answer in row] for row in other
    ]
    one_score, other_score = (reader.score(PROMPTS, [" ba be"] * 3)[0] for reader in readers)
    assert one_score.logprobs == pytest.approx(other_score.logprobs, abs=1e-4)


def test_an_adapter_is_in_force_in_what_is_said_and_scored() -> None:
    adapted = with_lora(tiny_model("llama"))
    reader = TransformersReader(adapted, tiny_tokenizer())
    (said,) = reader.generate(PROMPTS[:1], SamplingParams(max_tokens=8))[0]
    assert said.trace is not None
    (scored,) = reader.score(PROMPTS[:1], ["".join(said.trace.tokens)])
    assert scored.logprobs == pytest.approx(said.trace.logprobs, abs=1e-4)
    plain = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    (other,) = plain.score(PROMPTS[:1], ["".join(said.trace.tokens)])
    assert scored.logprobs != pytest.approx(other.logprobs, abs=1e-2)


def test_an_adapter_is_in_force_in_the_running_batch_too() -> None:
    adapted = with_lora(tiny_model("llama"))
    own = TransformersReader(adapted, tiny_tokenizer())
    running = TransformersReader(adapted, tiny_tokenizer(), engine="continuous", max_batch_tokens=2048)
    for found, expected in zip(
        running.generate(PROMPTS, SAMPLING), own.generate(PROMPTS, SAMPLING), strict=True
    ):
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other)
    (one,), (other,) = (reader.score(PROMPTS[:1], [" ba be"]) for reader in (running, own))
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize(("architecture", "apart"), [("llama", True), ("gpt2", True), ("gemma2", False)])
def test_scores_are_read_in_one_pass_where_the_head_stands_apart(
    monkeypatch: pytest.MonkeyPatch, architecture: str, apart: bool
) -> None:
    reader = TransformersReader(tiny_model(architecture), tiny_tokenizer())
    continuations = [" ba be bi bo bu", " da", " ka ke ki ko ku ka ke ki"]
    whole = reader.score(PROMPTS, continuations)
    assert reader._model.head_apart is apart
    monkeypatch.setattr(scoring, "_LOGITS", 1)
    passes: list[int] = []
    hook = (
        tiny_model(architecture)
        .get_input_embeddings()
        .register_forward_hook(lambda m, i, o: passes.append(1))
    )
    sliced = reader.score(PROMPTS, continuations)
    hook.remove()
    for one, other in zip(sliced, whole, strict=True):
        assert one.tokens == other.tokens
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
        assert one.entropy is not None and other.entropy is not None
        assert one.entropy.upper == pytest.approx(other.entropy.upper, abs=1e-4)
    # One for the prompts, one for what follows; or one for each step.
    assert len(passes) == 2 if apart else len(passes) > 4


def test_many_pairs_take_few_passes_however_large_the_vocabulary_is() -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128_256,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    model = LlamaForCausalLM(config).to(DEVICE)
    reader = TransformersReader(model, tiny_tokenizer())
    question = "Where was Ada Tarn born, and of which river?"
    prompts = [f"{row:03d} {question[: 32 + row % 12]}" for row in range(128)]
    passes: list[int] = []
    hook = model.get_input_embeddings().register_forward_hook(lambda m, i, o: passes.append(1))
    scored = reader.score(prompts, [" ba be bi bo"[: 3 * (1 + row % 4)] for row in range(128)])
    hook.remove()
    assert len(passes) <= 4  # logits of all steps at once would be 262 MB
    alone = reader.score(prompts[77:78], [" ba be"])[0]
    assert scored[77].logprobs == pytest.approx(alone.logprobs, abs=1e-4)


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("spread", [0.01, 1.0, 6.0])
def test_a_nucleus_is_what_sorting_finds(top_p: float, spread: float) -> None:
    logits = torch.randn(4, 3000, generator=torch.Generator().manual_seed(5)) * spread
    found = torch.isfinite(warp_logits(logits, None, top_p))
    ordered, order = logits.double().sort(dim=-1, descending=True)
    masses = ordered.softmax(-1)
    kept = (masses.cumsum(-1) - masses) < top_p
    expected = torch.zeros_like(found).scatter(-1, order, kept)
    # Rounding may move the boundary by a token, never more.
    assert int((found != expected).sum()) <= 4
    assert bool((found.sum(-1) >= 1).all())


def test_equally_likely_tokens_stay_or_go_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, -9.0]])
    assert torch.isfinite(warp_logits(logits, None, 0.6)).tolist() == [[True, True, True, True, False]]
