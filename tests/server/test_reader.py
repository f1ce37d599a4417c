"""The embedded reader behind llama.cpp's server, against the same model in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from surerag import OpenAIReader, Sampling, TransformersReader
from surerag.readers.conformance import Case, Trial, conformance_cases
from tests.server.agreement import AGREEMENT, SAMPLING, largest_difference


@pytest.mark.parametrize("case", conformance_cases(), ids=str)
@pytest.mark.parametrize("api", ["chat", "completions"])
def test_conformance(
    case: Case, api: str, request: pytest.FixtureRequest, questions: list[str], rendered: list[str]
) -> None:
    reader: OpenAIReader = request.getfixturevalue(api)
    prompts = (questions if api == "chat" else rendered)[3:9:2]
    outcome = case.run(
        reader,
        Trial(prompts=prompts, tolerance=AGREEMENT, vocabulary_size=reader.vocabulary_size, seeded=False),
    )
    if outcome.status == "skipped":
        pytest.skip(outcome.detail)
    assert outcome.passed, outcome.detail


def test_what_the_server_was_found_to_do(chat: OpenAIReader) -> None:
    capabilities = chat.capabilities
    assert capabilities.logprobs
    assert (capabilities.entropy, capabilities.begin, capabilities.stream) == ("bounded", "native", True)


def test_echo_that_is_one_place_off_is_not_used(completions: OpenAIReader) -> None:
    assert not completions.capabilities.score


def test_n_is_asked_for_again(chat: OpenAIReader, questions: list[str]) -> None:
    before = chat.usage.requests
    (row,) = chat.generate(questions[:1], Sampling(n=3, temperature=1.0, max_tokens=4))
    assert len(row) == 3
    assert chat.usage.requests - before == 3


def test_chat_logprobs_are_those_of_transformers(
    chat: OpenAIReader,
    local: TransformersReader,
    questions: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    worst = largest_difference(local, questions, chat, questions)
    record_property("largest difference in nats", worst)
    print(f"largest difference over chat: {worst:.2g} nats")
    assert worst <= AGREEMENT


def test_completions_logprobs_are_those_of_transformers(
    completions: OpenAIReader,
    local: TransformersReader,
    questions: list[str],
    rendered: list[str],
    record_property: Callable[[str, object], None],
) -> None:
    worst = largest_difference(local, questions, completions, rendered)
    record_property("largest difference in nats", worst)
    print(f"largest difference over completions: {worst:.2g} nats")
    assert worst <= AGREEMENT


def test_begun_streams_show_the_same_first_tokens(
    chat: OpenAIReader, local: TransformersReader, questions: list[str]
) -> None:
    theirs, ours = (reader.begin(questions[:4], 2, SAMPLING) for reader in (chat, local))
    for one, other in zip(theirs, ours, strict=True):
        assert one.partial.trace is not None
        assert other.partial.trace is not None
        assert one.partial.trace.logprobs == pytest.approx(other.partial.trace.logprobs, abs=AGREEMENT)
    chat.cancel(theirs)
    local.cancel(ours)
