"""The running batch over model families: equal to our own engine, or refused by name."""

from __future__ import annotations

import pytest
from surerag.readers.local.continuous import loop

from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.readers.local import TransformersReader
from tests.readers.families import HYBRIDS, TRANSFORMERS
from tests.readers.same_answers import assert_same
from tests.readers.tiny_models import ARCHITECTURES, tiny_model, tiny_tokenizer

CONTEXT = "Velm lies on the Orun, which springs in the hills of Tarn. "
PROMPTS = [
    CONTEXT + "Where was Ada Tarn born?",
    "The Orun",
    CONTEXT + "Who is its mayor, and of which of its many rivers and hills is nothing known as yet?",
    "x",
]
SAMPLINGS = [
    SamplingParams(n=2, max_tokens=8),
    SamplingParams(n=3, temperature=0.9, top_p=0.95, max_tokens=8, seed=5),
]
REFUSED = {
    # Attention of their own, which the library's batch does not reach: it fails, or says something else.
    *("stablelm", "falcon", "nemotron", "gptj", "codegen"),
    # Keys and values of different widths.
    "deepseek_v3",
    # Recurrent states, or biases by position in place of a mask.
    *HYBRIDS,
    *("mamba", "falcon_h1", "bloom", "recurrent_gemma", "mpt"),
}
TAKEN = [name for name in [*ARCHITECTURES, *TRANSFORMERS] if name not in REFUSED]


@pytest.mark.parametrize("architecture", TAKEN)
def test_a_family_says_what_it_says_in_our_own_engine(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = TransformersReader(tiny_model(architecture), tiny_tokenizer())
    expected = [own.generate(PROMPTS, sampling) for sampling in SAMPLINGS]
    scored = own.score(PROMPTS[:2], [" ba be bi bo", " bu"])
    # Prompts are read in slices, longer than the tiny models' windows of attention and shorter than prompts.
    for where in ("_STEP_TOKENS_CPU", "_STEP_TOKENS_ACCELERATOR"):
        monkeypatch.setattr(loop, where, 24)
    reader = TransformersReader(
        tiny_model(architecture), tiny_tokenizer(), engine="continuous", max_batch_tokens=1024
    )
    for sampling, rows in zip(SAMPLINGS, expected, strict=True):
        # Twice: what was read before lies in pages that are used again.
        for found in (reader.generate(PROMPTS, sampling), reader.generate(PROMPTS[::-1], sampling)[::-1]):
            for row, other in zip(found, rows, strict=True):
                for one, alone in zip(row, other, strict=True):
                    assert_same(one, alone)
    finished = reader.finish(reader.begin(PROMPTS, 3, SAMPLINGS[1]))
    for one, row in zip(finished, expected[1], strict=True):
        assert_same(one, row[0])
    for trace, ours in zip(reader.score(PROMPTS[:2], [" ba be bi bo", " bu"]), scored, strict=True):
        assert trace.logprobs == pytest.approx(ours.logprobs, abs=1e-4)


@pytest.mark.parametrize("architecture", sorted(REFUSED))
def test_a_family_that_it_cannot_run_is_refused_at_once(architecture: str) -> None:
    with pytest.raises(ConfigurationError, match=r"engine='continuous': .*engine='own'"):
        TransformersReader(
            tiny_model(architecture), tiny_tokenizer(), engine="continuous", max_batch_tokens=1024
        )


def test_the_families_that_people_have_most_are_among_those_taken() -> None:
    assert {"llama", "qwen3", "mistral", "gemma3", "phi3", "gpt_oss"} <= set(TAKEN)
    assert len(TAKEN) >= 22
