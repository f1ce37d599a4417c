"""Every architecture: the same tokens as plain generate, and the numbers of teacher forcing."""

from typing import Any

import pytest
import torch

from surerag.messages import Generation, SamplingParams, TokenTrace
from surerag.readers.conformance import Trial, check_reader
from surerag.readers.local import TransformersReader
from tests.readers.sizes import PAD_ID, VOCABULARY
from tests.readers.tiny_models import ARCHITECTURES, ATTENTION, DEVICE, tiny_model, tiny_tokenizer

# Longer than the sliding windows of the tiny models, and of very different lengths.
PROMPTS = [
    "Where was Ada Tarn born?",
    "The Orun",
    "A much longer prompt about rivers, hills and cities that nobody has ever seen, and about their mayors",
    "x",
]
GREEDY = SamplingParams(max_tokens=8)
SAMPLED = SamplingParams(n=2, temperature=0.9, top_p=0.95, max_tokens=8, seed=5)


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def reader(architecture: str) -> TransformersReader:
    return TransformersReader(tiny_model(architecture), tiny_tokenizer())


def ids_of(text: str) -> torch.Tensor:
    return torch.tensor([tiny_tokenizer()(text)["input_ids"]], device=DEVICE)


def trace_of(answer: Generation) -> TokenTrace:
    assert answer.trace is not None
    return answer.trace


def entropies(trace: TokenTrace) -> tuple[float, ...]:
    assert trace.entropy is not None
    assert trace.entropy.exact
    return trace.entropy.upper


def assert_same(one: Generation, other: Generation) -> None:
    assert one.text == other.text
    assert one.finish == other.finish
    assert_close(trace_of(one), trace_of(other))


def assert_close(one: TokenTrace, other: TokenTrace) -> None:
    assert one.tokens == other.tokens
    assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert entropies(one) == pytest.approx(entropies(other), abs=1e-4)
    assert one.logsumexp == pytest.approx(other.logsumexp, abs=5e-4)


def test_greedy_answers_are_those_of_generate(architecture: str, reader: TransformersReader) -> None:
    if architecture == "recurrent_gemma":
        pytest.skip("its own generate goes on from what the model read last")
    model, tokenizer = tiny_model(architecture), tiny_tokenizer()
    for prompt, (answer,) in zip(PROMPTS, reader.generate(PROMPTS, GREEDY), strict=True):
        ids = ids_of(prompt)
        plain = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=GREEDY.max_tokens,
            do_sample=False,
            pad_token_id=PAD_ID,
        )[0, ids.shape[1] :]
        assert answer.text == tokenizer.decode(plain, skip_special_tokens=True).strip()


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_traces_are_those_of_teacher_forcing(
    architecture: str, reader: TransformersReader, sampling: SamplingParams
) -> None:
    model = tiny_model(architecture)
    for prompt, answers in zip(PROMPTS, reader.generate(PROMPTS, sampling), strict=True):
        for answer in answers:
            trace = trace_of(answer)
            given = tiny_tokenizer()("".join(trace.tokens))["input_ids"]
            assert len(given) == len(trace) == answer.completion_tokens
            if not given:
                continue
            ids = torch.cat([ids_of(prompt), torch.tensor([given], device=DEVICE)], dim=1)
            with torch.inference_mode():
                logits = model(input_ids=ids, use_cache=False).logits[0, -len(given) - 1 : -1].double().cpu()
            logs = logits.log_softmax(-1)
            expected = logs[torch.arange(len(given)), torch.tensor(given)]
            entropy = -(logs.exp() * logs).sum(-1)
            assert trace.logprobs == pytest.approx(expected.tolist(), abs=1e-4)
            assert entropies(trace) == pytest.approx(entropy.tolist(), abs=1e-4)
            assert trace.logsumexp == pytest.approx(logits.logsumexp(-1).tolist(), abs=5e-4)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_batch_gives_what_each_prompt_gives_alone(
    reader: TransformersReader, sampling: SamplingParams
) -> None:
    together = reader.generate(PROMPTS, sampling)
    backwards = reader.generate(PROMPTS[::-1], sampling)[::-1]
    for prompt, first, second in zip(PROMPTS, together, backwards, strict=True):
        (alone,) = reader.generate([prompt], sampling)
        for one, other, third in zip(first, second, alone, strict=True):
            assert_same(one, other)
            assert_same(one, third)


def test_what_was_begun_ends_as_if_generated_at_once(reader: TransformersReader) -> None:
    whole = [row[0] for row in reader.generate(PROMPTS, SAMPLED)]
    first = reader.begin(PROMPTS[:2], 3, SAMPLED)
    second = reader.begin(PROMPTS[2:], 5, SAMPLED)
    for begun, answer, n in zip([*first, *second], whole, [3, 3, 5, 5], strict=True):
        assert begun.done == (begun.partial.finish != "partial")
        assert trace_of(begun.partial).tokens == trace_of(answer).tokens[:n]
    # From two calls, in another order, in common batches.
    ended = reader.finish([second[1], first[0], second[0], first[1]])
    for one, other in zip(ended, [whole[3], whole[0], whole[2], whole[1]], strict=True):
        assert_same(one, other)


def test_scores_are_those_of_the_answers_as_they_were_given(reader: TransformersReader) -> None:
    rows = zip(PROMPTS, reader.generate(PROMPTS, SAMPLED), strict=True)
    said = [(prompt, trace_of(answer)) for prompt, row in rows for answer in row if answer.completion_tokens]
    assert len(said) > 4
    scored = reader.score([prompt for prompt, _ in said], ["".join(trace.tokens) for _, trace in said])
    for trace, (_, expected) in zip(scored, said, strict=True):
        assert_close(trace, expected)


def test_a_model_that_ignores_its_mask_is_found_out_and_never_padded() -> None:
    def unmasked(module: Any, arguments: Any, keywords: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return arguments, {**keywords, "attention_mask": None}

    model, plain = tiny_model("gpt2"), TransformersReader(tiny_model("gpt2"), tiny_tokenizer())
    hook = model.register_forward_pre_hook(unmasked, with_kwargs=True)
    try:
        reader = TransformersReader(model, tiny_tokenizer())
        answers = reader.generate(PROMPTS, SAMPLED)
    finally:
        hook.remove()
    for one, other in zip(answers, plain.generate(PROMPTS, SAMPLED), strict=True):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)


@pytest.mark.parametrize("architecture", ATTENTION)
def test_a_shared_prefix_changes_nothing_but_the_cost(architecture: str) -> None:
    context = "Velm lies on the Orun, which springs in the hills of Tarn. "
    prompts = [context * 2 + question for question in ("Where?", "And where does it spring?", "", "Why?")]
    prompts.append(context + "Ada was born in Velm.")
    sharing = TransformersReader(tiny_model(architecture), tiny_tokenizer(), min_shared_prefix=8)
    apart = TransformersReader(tiny_model(architecture), tiny_tokenizer(), min_shared_prefix=10**6)
    for one, other in zip(sharing.generate(prompts, SAMPLED), apart.generate(prompts, SAMPLED), strict=True):
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    assert sharing.tokens_read < 0.6 * apart.tokens_read


@pytest.mark.parametrize(
    ("architecture", "chat"), [("llama", True), ("llama", False), ("mistral", True), ("mamba", False)]
)
def test_the_conformance_suite_passes(architecture: str, chat: bool) -> None:
    reader = TransformersReader(tiny_model(architecture), tiny_tokenizer(chat=chat))
    report = check_reader(reader, Trial(vocabulary_size=VOCABULARY))
    assert report.passed, str(report)
