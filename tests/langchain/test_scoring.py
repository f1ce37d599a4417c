"""Scores of given text through LangChain's completions LLMs: which servers are believed, and why."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from langchain_surerag import reader_from_model
from surerag.errors import CapabilityError, ConfigurationError
from surerag.readers.conformance import check_reader
from tests.langchain.conftest import KEY, chat, completions
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script, Token, ToyModel

PAIRS = (["Velm lies", "Ada was"], [" on the river", " born in Velm"])


class Shifted(ToyModel):
    """Echoes as a server without a start token may: every token with what belongs to the next one."""

    def read(self, text: str) -> list[Token]:
        right = super().read(text)
        behind = self.distribution(text)
        likely = max(behind, key=lambda word: behind[word])
        values = [*right[1:], Token(likely, behind[likely], behind)]
        return [Token(token.text, *value[1:]) for token, value in zip(right, values, strict=True)]


class Splitting(ToyModel):
    """Echoes words in two pieces each."""

    def read(self, text: str) -> list[Token]:
        return [
            Token(piece, token.logprob / 2, token.everything)
            for token in super().read(text)
            for piece in (token.text[:2], token.text[2:])
            if piece
        ]


class Silent(ToyModel):
    """Has nothing to say."""

    def choose(self, logprobs: dict[str, float], temperature: float, rng: random.Random) -> str:
        return "<end>"


@pytest.fixture
def shifted() -> Iterator[FakeOpenAI]:
    with FakeOpenAI(Shifted(sharpness=2.0)) as running:
        yield running


@pytest.mark.parametrize("scoring", ["probe", "echo"])
async def test_a_server_that_echoes_rightly_scores(server: FakeOpenAI, scoring: Any) -> None:
    reader = reader_from_model(completions(server), vocabulary_size=20, scoring=scoring)
    assert len(server.requests) == (2 if scoring == "probe" else 0)
    assert reader.capabilities.score
    traces = reader.score(*PAIRS)
    assert [trace.tokens for trace in traces] == [(" on", " the", " river"), (" born", " in", " Velm")]
    assert traces[0].logprobs[0] == pytest.approx(server.model.distribution("Velm lies")[" on"])
    assert await reader.ascore(*PAIRS) == traces


def test_what_the_probe_admits_conforms(server: FakeOpenAI) -> None:
    reader = reader_from_model(completions(server), vocabulary_size=20, scoring="probe")
    report = check_reader(reader, seeded=False)
    assert report.passed, str(report)
    assert "scores are the models" in {o.check for o in report.outcomes if o.status == "passed"}


def test_a_server_that_is_one_place_off_is_found_out(shifted: FakeOpenAI) -> None:
    reader = reader_from_model(completions(shifted), vocabulary_size=20, scoring="probe")
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match="other log-probabilities than those of the same words"):
        reader.score(*PAIRS)
    assert check_reader(reader, seeded=False).passed


def test_taken_at_its_word_that_server_breaks_its_promise(shifted: FakeOpenAI) -> None:
    """What the probe is for: nothing else shows that these numbers are wrong."""
    reader = reader_from_model(completions(shifted), vocabulary_size=20, scoring="echo")
    assert reader.capabilities.score
    assert reader.score(*PAIRS)
    assert "scores are the models" in {failure.check for failure in check_reader(reader).failures}


async def test_without_a_word_about_it_a_reader_does_not_score(server: FakeOpenAI) -> None:
    reader = reader_from_model(completions(server))
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match=r'not known.*scoring="probe"'):
        reader.score(*PAIRS)
    with pytest.raises(CapabilityError, match=r'not known.*scoring="probe"'):
        await reader.ascore(*PAIRS)
    assert server.requests == []


@pytest.mark.parametrize(
    ("quirks", "reason"),
    [
        ({"echo": False}, "did not echo"),
        ({"refuses": ("echo",)}, "refused to echo a prompt .status 400."),
        ({"no_logprobs": True}, "OpenAI: .*no log-probabilities"),
    ],
)
def test_servers_without_echo_are_found_out(server: FakeOpenAI, quirks: dict[str, Any], reason: str) -> None:
    server.become(**quirks)
    reader = reader_from_model(completions(server), scoring="probe")
    assert not reader.capabilities.score
    with pytest.raises(CapabilityError, match=reason) as caught:
        reader.score(*PAIRS)
    assert KEY not in str(caught.value)


def test_other_tokens_and_silence_are_found_out() -> None:
    for model, reason in (
        (Splitting(sharpness=2.0), "into other tokens"),
        (Silent(), "says too little"),
        # One log-probability for every word: a wrong place would not show.
        (Script(lambda _: "one two three"), "says too little"),
    ):
        with FakeOpenAI(model) as server:
            reader = reader_from_model(completions(server), scoring="probe")
            with pytest.raises(CapabilityError, match=reason):
                reader.score(*PAIRS)


def test_of_several_models_all_have_to_echo_rightly(server: FakeOpenAI, shifted: FakeOpenAI) -> None:
    good, bad = completions(server), completions(shifted)
    bound = good.bind(user="me").with_retry()
    assert reader_from_model(bound.with_fallbacks([good]), scoring="probe").capabilities.score
    assert server.requests[0].body["user"] == "me"
    assert not reader_from_model(good.with_fallbacks([bad]), scoring="probe").capabilities.score
    assert not reader_from_model(good.with_fallbacks([chat(server)]), scoring="probe").capabilities.score


def test_a_failing_server_is_no_finding(server: FakeOpenAI) -> None:
    for status in (401, 429, 500):
        server.fail(status)
        with pytest.raises(Exception) as caught:  # noqa: PT011 (the SDK's own classes)
            reader_from_model(completions(server), scoring="probe")
        assert caught.value.status_code == status


async def test_chat_models_do_not_score(server: FakeOpenAI) -> None:
    for reader in (reader_from_model(chat(server)), reader_from_model(chat(server), scoring="probe")):
        with pytest.raises(CapabilityError, match="cannot score given text: ChatOpenAI has no echo"):
            reader.score(["Velm"], [" lies"])
        with pytest.raises(CapabilityError, match="cannot score"):
            await reader.ascore(["Velm"], [" lies"])
    assert server.requests == []
    with pytest.raises(CapabilityError, match="ChatOpenAI has no echo"):
        reader_from_model(chat(server), scoring="echo")


def test_an_unknown_way_to_score_is_refused(server: FakeOpenAI) -> None:
    with pytest.raises(ConfigurationError, match="unknown scoring"):
        reader_from_model(completions(server), scoring="guess")  # type: ignore[arg-type]  # that is the test
