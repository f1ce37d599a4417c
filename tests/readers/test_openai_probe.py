"""Probing a server, and acting on what was found."""

import random
from typing import Any

import pytest
from tests.servers.fake_openai import FakeOpenAI, Quirks
from tests.servers.providers import provider
from tests.servers.toy_model import ToyModel

from surerag.errors import CapabilityError, ServiceError
from surerag.messages import SamplingParams
from surerag.readers.hosted import OpenAIReader, Probe

SURE = ToyModel(sharpness=3.0)
pytestmark = pytest.mark.filterwarnings("ignore::surerag.readers.refusals.LeftOutWarning")


def probe_of(quirks: Quirks, **settings: Any) -> tuple[Probe, OpenAIReader]:
    settings = {"api": "completions", **settings}
    with (
        FakeOpenAI(SURE, quirks) as server,
        OpenAIReader("toy", base_url=server.base_url, **settings) as reader,
    ):
        return reader.probe(), reader


def test_a_server_that_can_do_everything() -> None:
    found, reader = probe_of(Quirks())
    assert found.logprobs
    assert found.raw_logprobs
    assert found.samples
    assert found.streams
    assert found.stream_logprobs
    assert found.seeded
    assert found.scoring == "echo"
    assert found.top_logprobs == 20
    assert reader.capabilities.score
    assert (reader.capabilities.begin, reader.capabilities.entropy) == ("native", "bounded")


def test_fewer_alternatives_than_asked_for() -> None:
    found, reader = probe_of(Quirks(max_top=3))
    assert found.top_logprobs == 3
    assert "top_logprobs=3" in repr(reader)


def test_no_logprobs_at_all() -> None:
    for quirks in (Quirks(no_logprobs=True), Quirks(refuses=("logprobs",))):
        found, reader = probe_of(quirks)
        assert not found.logprobs
        assert found.scoring is None
        assert found.streams
        capabilities = reader.capabilities
        assert (capabilities.logprobs, capabilities.entropy, capabilities.score) == (False, None, False)


def test_what_is_not_there_is_not_asked_for() -> None:
    with FakeOpenAI(SURE, Quirks(no_logprobs=True)) as server:
        reader = OpenAIReader("toy", base_url=server.base_url)
        reader.probe()
        server.requests.clear()
        assert reader.generate(["q"], SamplingParams())[0][0].trace is None
        assert "logprobs" not in server.requests[0].body


def test_logprobs_after_temperature_are_no_promise() -> None:
    found, reader = probe_of(Quirks(after_temperature=True))
    assert found.logprobs
    assert found.raw_logprobs is False
    assert not reader.capabilities.logprobs
    assert reader.capabilities.entropy is None


class Contrary(ToyModel):
    """Chooses the second likeliest word, as a penalty may make a server do."""

    def choose(self, logprobs: dict[str, float], temperature: float, rng: random.Random) -> str:
        if temperature:
            return super().choose(logprobs, temperature, rng)
        return sorted(logprobs, key=lambda word: logprobs[word])[-2]


def test_a_server_that_changes_probabilities_before_it_samples_is_found_out() -> None:
    assert probe_of(Quirks())[0].greedy
    with FakeOpenAI(Contrary()) as server:
        found = OpenAIReader("toy", base_url=server.base_url).probe()
    assert found.greedy is False
    assert "not always the likeliest" in str(found)


def test_streams_without_logprobs_are_not_used_for_begin() -> None:
    found, reader = probe_of(Quirks(no_stream_logprobs=True))
    assert found.streams
    assert not found.stream_logprobs
    assert (reader.capabilities.begin, reader.capabilities.stream) == ("whole", False)


def test_and_begin_still_works_over_whole_answers() -> None:
    with FakeOpenAI(SURE, Quirks(no_stream_logprobs=True)) as server:
        reader = OpenAIReader("toy", base_url=server.base_url)
        reader.probe()
        (begun,) = reader.begin(["Where is Velm?"], 2, SamplingParams(max_tokens=6))
        assert begun.partial.trace is not None
        assert (
            reader.finish([begun])[0]
            == reader.generate(["Where is Velm?"], SamplingParams(max_tokens=6))[0][0]
        )


def test_ignored_n_and_seeds() -> None:
    found, _ = probe_of(Quirks(ignores_n=True))
    assert not found.samples


def test_prompt_logprobs_score_where_echo_does_not() -> None:
    for api in ("chat", "completions"):
        found, reader = probe_of(Quirks(echo=False, prompt_logprobs=True), api=api)
        assert found.scoring == "prompt_logprobs"
        assert reader.capabilities.score


def test_chat_without_prompt_logprobs_cannot_score() -> None:
    found, reader = probe_of(Quirks(), api="chat")
    assert found.scoring is None
    with pytest.raises(CapabilityError):
        reader.score(["a"], [" b"])


def test_a_silent_server_is_an_error() -> None:
    with FakeOpenAI() as server:
        server.fail(400)
        with pytest.raises(ServiceError, match="400"):
            OpenAIReader("toy", base_url=server.base_url).probe()


def test_prints_readably() -> None:
    found, _ = probe_of(Quirks(refuses=("echo",)))
    text = str(found)
    assert "toy@127.0.0.1" in text
    assert "log-probabilities             yes, the model's own" in text
    assert "scoring of given text         no" in text
    assert "note: 127.0.0.1" in text
    assert "Unsupported parameter: echo" in text


async def test_aprobe_equals_probe() -> None:
    with FakeOpenAI(SURE) as server:
        reader = OpenAIReader("toy", base_url=server.base_url)
        assert await reader.aprobe() == reader.probe()
        await reader.aclose()


@pytest.mark.parametrize(
    ("name", "thinks", "at_once", "top"),
    [
        ("gpt-4o", False, None, 20),
        ("gpt-5", True, False, 0),
        ("gpt-5.1", False, None, 20),
        ("o-series", True, False, 0),
        ("vllm-qwen3", True, True, 20),
        ("vllm-qwen3-raw", True, True, 20),
        ("vllm-r1-raw", True, False, 20),
        ("gpt-oss-raw", True, False, 20),
        ("groq", False, None, 0),
        ("deepseek-reasoner", True, False, 0),
        ("openrouter", False, None, 0),
        ("cerebras", True, False, 20),
        ("ollama", True, True, 20),
        ("responses", False, None, 20),
        ("responses-gpt-5", True, False, 0),
    ],
)
def test_services_are_found_out_as_they_are(name: str, thinks: bool, at_once: bool | None, top: int) -> None:
    with provider(name, SURE) as server:
        api: Any = "responses" if name.startswith("responses") else "chat"
        reader = OpenAIReader(server.personality.model, base_url=server.url, api=api)
        found = reader.probe()
        assert len(server.requests) <= 25
        assert (found.thinks, found.answers_at_once, found.top_logprobs) == (thinks, at_once, top)
        assert reader.capabilities.thinking == ("apart" if thinks else "none")
        assert found.streams
        if top:
            assert found.greedy
            assert found.raw_logprobs
            assert reader.capabilities.begin == "native"
        else:
            assert not reader.capabilities.logprobs
            assert any("logprobs" in note for note in found.notes)
        assert "thinks before it answers" in str(found)
        # What was found holds: the next answer needs one request.
        server.requests.clear()
        (answer,) = reader.generate(["q"], SamplingParams(max_tokens=5))[0]
        assert len(server.requests) == 1
        assert (answer.trace is not None) == bool(top)


def test_a_probe_of_a_model_that_thinks_although_told_not_to_says_so() -> None:
    with provider("deepseek-reasoner", SURE) as server:
        reader = OpenAIReader("deepseek-reasoner", base_url=server.url, thinking=False)
        with pytest.raises(CapabilityError, match="although it was told not to"):
            reader.probe()


def test_what_is_refused_and_what_is_limited_is_told() -> None:
    with provider("groq", SURE) as server:
        found = OpenAIReader("llama", base_url=server.url).probe()
    assert "logprobs" in found.refused
    assert found.limits == (("n", 1),)
    assert "largest n                     1" in str(found)
