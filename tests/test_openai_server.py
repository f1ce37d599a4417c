"""The cookbook's OpenAI-compatible server lists the model's own log-probabilities, whole and streamed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from surerag import OpenAIReader, TransformersReader
from surerag.errors import ContextLengthError
from surerag.messages import SamplingParams
from tests.readers.tiny_models import tiny_model, tiny_tokenizer
from tests.test_service import started

server = pytest.importorskip("cookbooks.openai_server", exc_type=ImportError)
PROMPT = "Where was Ada born?"


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    """Serve a tiny model, and yield the root of the API."""
    with started(server.create_app(server.Model(tiny_model("llama"), tiny_tokenizer(chat=True)))) as address:
        yield address.removesuffix("/ask") + "/v1"


@pytest.fixture
def served(root: str) -> OpenAIReader:
    """Return a reader over the server."""
    return OpenAIReader("demo", base_url=root, api_key="none", max_retries=0)


def test_it_answers_as_the_model_does_in_this_process(served: OpenAIReader) -> None:
    local = TransformersReader(tiny_model("llama"), tiny_tokenizer(chat=True))
    greedy = SamplingParams(max_tokens=6)
    (expected,) = local.generate([PROMPT], greedy)[0]
    (whole,) = served.generate([PROMPT], greedy)[0]
    *_, last = served.stream(PROMPT, greedy)
    assert last.generation is not None
    for answer in (whole, last.generation):
        assert (answer.text, answer.finish) == (expected.text, expected.finish)
        assert answer.trace and expected.trace
        assert answer.trace.logprobs == pytest.approx(expected.trace.logprobs, abs=1e-4)


def test_a_stop_text_ends_an_answer(served: OpenAIReader) -> None:
    (whole,) = served.generate([PROMPT], SamplingParams(max_tokens=12))[0]
    stop = whole.text[5:7]
    (cut,) = served.generate([PROMPT], SamplingParams(max_tokens=12, stop=(stop,)))[0]
    assert cut.text == whole.text.split(stop)[0] and cut.finish == "stop"


def test_samples_of_one_prompt_differ(served: OpenAIReader) -> None:
    samples = served.generate([PROMPT], SamplingParams(n=3, temperature=1.0, max_tokens=8))[0]
    assert len({sample.text for sample in samples}) > 1


def test_what_exceeds_the_window_is_an_error_of_the_api(served: OpenAIReader, root: str) -> None:
    with pytest.raises(ContextLengthError, match="512"):
        served.generate([PROMPT], SamplingParams(max_tokens=600))
    assert httpx.post(f"{root}/chat/completions", json={"messages": []}).status_code == 422
    assert httpx.get(f"{root}/models").json()["data"][0]["id"] == "demo"
