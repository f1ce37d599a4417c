"""The suite itself: our readers pass it, and a reader that breaks a promise does not."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import pytest

from surerag.messages import (
    Chunk,
    EntropyTrace,
    Generation,
    Prompt,
    SamplingParams,
)
from surerag.readers import BaseReader, BegunGeneration, Capabilities
from surerag.readers.conformance import CHECKS, Check, Trial, check_reader, streams_can_be_abandoned
from surerag.readers.fake import FakeReader, reply
from surerag.readers.hosted import OpenAIReader
from tests.servers.fake_openai import FakeOpenAI

TEXTS = {"Where": "It begins in old Velm on the hill", "Context": "In Velm", "Name": "Red and green and blue"}


def answer(prompt: str) -> str:
    return TEXTS.get(prompt.split()[0].strip(":"), "Nobody can tell")


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("entropy", ["exact", "bounded", None])
def test_scripted_readers_pass(check: Check, entropy: Any) -> None:
    capabilities = Capabilities(
        logprobs=True, entropy=entropy, begin="native", stream=True, native_async=True
    )
    check(FakeReader(answer, capabilities=capabilities), Trial())


def test_a_reader_of_text_alone_passes_with_checks_skipped() -> None:
    report = check_reader(FakeReader(answer, logprob=None))
    assert report.passed, str(report)
    assert [outcome.status for outcome in report.outcomes].count("skipped") >= 2
    with pytest.raises(SkipTest, match="no log-probabilities"):
        CHECKS[3](FakeReader(answer, logprob=None), Trial())


@pytest.mark.parametrize("api", ["chat", "completions"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ignores_n": True, "counts_end_token": True},
        {"no_stream_logprobs": True, "max_top": 2},
        {"no_logprobs": True},
        {"after_temperature": True, "refuses": ("stream_options", "seed")},
        {"thoughts": "Hm, let me see."},
        {"thoughts": "Hm, let me see.", "thoughts_in": "field"},
    ],
    ids=str,
)
def test_probed_readers_pass_whatever_the_server_cannot_do(options: dict[str, Any], api: Any) -> None:
    if options.get("thoughts_in") and api == "completions":
        pytest.skip("completions have no such field")
    with FakeOpenAI(**options) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api=api)
        reader.probe()
        report = check_reader(reader, vocabulary_size=300_000, seeded="refuses" not in options)
    assert report.passed, str(report)


class Minimal(BaseReader):
    """The least that a user may write."""

    name = "minimal"
    capabilities = Capabilities(logprobs=True, entropy="exact")

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        return FakeReader(answer).generate(prompts, sampling)


def test_a_reader_with_the_least_passes_by_the_defaults() -> None:
    report = check_reader(Minimal())
    assert report.passed, str(report)


class Altered(FakeReader):
    """A reader that breaks one promise."""

    def __init__(self, alter: Callable[[Generation], Generation]) -> None:
        super().__init__(answer)
        self._alter = alter

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        return [[self._alter(item) for item in row] for row in super().generate(prompts, sampling)]


def with_trace(generation: Generation, **changes: Any) -> Generation:
    assert generation.trace is not None
    return replace(generation, trace=replace(generation.trace, **changes))


def widened(generation: Generation) -> Generation:
    assert generation.trace is not None
    ones = (1.0,) * len(generation.trace)
    return with_trace(generation, entropy=EntropyTrace(tuple(2.0 for _ in ones), ones, exact=True))


@pytest.mark.parametrize(
    ("alter", "check"),
    [
        (lambda g: replace(g, trace=None), "traces are there as claimed"),
        (lambda g: replace(g, text=g.text + "\n"), "text is stripped"),
        (lambda g: replace(g, completion_tokens=99), "traces are there as claimed"),
        (lambda g: with_trace(g, logprobs=(0.5,) * len(g.trace)), "traces are there as claimed"),
        (widened, "entropies are possible"),
        (lambda g: with_trace(g, entropy=None), "entropies are possible"),
        (lambda g: with_trace(g, logsumexp=(1.0,) * len(g.trace)), "traces are there as claimed"),
        (lambda g: replace(g, text="Other"), "begin and rest is generate"),
        (lambda g: replace(g, text="Other"), "streams join to the text"),
        (lambda g: replace(g, text="Other"), "async twins do the same"),
    ],
)
def test_a_broken_promise_is_named(alter: Callable[[Generation], Generation], check: str) -> None:
    report = check_reader(Altered(alter))
    assert not report.passed
    assert check in {failure.check for failure in report.failures}, str(report)


class Careless(FakeReader):
    """A reader with one verb of its own, that is wrong."""

    def __init__(self, **verbs: Any) -> None:
        super().__init__(answer)
        for name, verb in verbs.items():
            setattr(self, name, verb)


def begun_with(**verbs: Any) -> Callable[..., list[BegunGeneration]]:
    """Return a ``begin`` whose begun answers have some verbs of their own, that are wrong."""

    def begin(prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams) -> list[BegunGeneration]:
        begun = FakeReader(answer).begin(prompts, n_tokens, sampling)
        for item in begun:
            vars(item).update(verbs)
        return begun

    return begin


OTHER = reply("a")


@pytest.mark.parametrize(
    ("verbs", "check"),
    [
        ({"generate": lambda prompts, sampling: []}, "every prompt is answered"),
        (
            {"generate": lambda prompts, sampling: [[reply("same")] for _ in prompts]},
            "every prompt is answered",
        ),
        (
            {"generate": lambda prompts, s: [[reply(answer(str(p)))] * s.n for p in prompts]},
            "max tokens is kept",
        ),
        (
            {"generate": lambda prompts, s: [[reply(answer(str(p)))] * s.n for p in prompts]},
            "stop texts end an answer",
        ),
        (
            {"generate": lambda prompts, s: [[reply(f"of {len(prompts)}")] * s.n for _ in prompts]},
            "alone or in a batch is the same",
        ),
        (
            {"begin": lambda prompts, n, s: [BegunGeneration(OTHER, OTHER) for _ in prompts]},
            "begin and rest is generate",
        ),
        (
            {"begin": lambda prompts, n, s: [BegunGeneration(OTHER) for _ in prompts]},
            "begin shows the first tokens",
        ),
        ({"stream": lambda prompt, s: iter([Chunk("all")])}, "streams join to the text"),
        (
            {"stream": lambda prompt, s: iter([Chunk("all", reply("all"))])},
            "streams join to the text",
        ),
        ({"begin": begun_with(chunks=lambda: iter([]))}, "what was begun streams from its start"),
        ({"begin": begun_with(rest=lambda: OTHER)}, "begin and rest is generate"),
        ({"begin": begun_with(_rest_together=lambda begun: [OTHER] * 9)}, "begin and rest is generate"),
        ({"begin": begun_with(close=lambda: 1 / 0)}, "close frees"),
        (
            {"generate": lambda prompts, s: [[{"entropy": reply("a")}[s.trace]] * s.n for _ in prompts]},
            "optional log probabilities come where there are any",
        ),
    ],
)
def test_a_wrong_verb_is_named(verbs: dict[str, Any], check: str) -> None:
    report = check_reader(Careless(**verbs))
    assert check in {failure.check for failure in report.failures}, str(report)


class Moody(FakeReader):
    """A reader that never says the same twice."""

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        moods = iter(range(10**6))
        self._moods = getattr(self, "_moods", moods)
        return [[reply(f"mood {next(self._moods)}") for _ in range(sampling.n)] for _ in prompts]


def test_a_reader_that_never_repeats_itself_is_found_out() -> None:
    failed = {failure.check for failure in check_reader(Moody()).failures}
    assert {"answers repeat", "alone or in a batch is the same"} <= failed


def test_log_probabilities_of_another_temperature_are_noticed() -> None:
    class Warm(FakeReader):
        def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
            rows = super().generate(prompts, sampling)
            if sampling.temperature != 1.7:
                return rows
            return [[with_trace(one, logprobs=(-0.2,) * len(one.trace or ())) for one in row] for row in rows]

    failed = {failure.check for failure in check_reader(Warm(answer)).failures}
    assert failed == {"logprobs are those of temperature one"}


def test_an_unexpected_error_is_a_failure_that_is_named() -> None:
    def broken(prompt: str) -> str:
        raise ZeroDivisionError("oops")

    outcome = check_reader(FakeReader(broken)).outcomes[0]
    assert outcome.status == "failed"
    assert outcome.detail == "ZeroDivisionError: oops"


def test_reports_print_as_text() -> None:
    report = check_reader(Careless(begin=begun_with(close=lambda: 1 / 0)))
    assert "failed  close frees: ZeroDivisionError" in str(report)


def test_base_reader_subclasses_and_protocols_are_both_taken() -> None:
    assert isinstance(FakeReader(), BaseReader)
    with pytest.raises(Exception, match="expected a reader"):
        check_reader(object())


class Held(FakeReader):
    """Knows which of its generations are still open; says other first tokens than it goes on with."""

    def __init__(self) -> None:
        super().__init__(answer)
        self.open: set[BegunGeneration] = set()

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[BegunGeneration]:
        begun: list[BegunGeneration] = [HeldGeneration(self.open) for _ in prompts]
        self.open |= set(begun)
        return begun


class HeldGeneration(BegunGeneration):
    def __init__(self, all_open: set[BegunGeneration]) -> None:
        super().__init__(reply("something else entirely"))
        self.all_open = all_open

    def chunks(self) -> Iterator[Chunk]:
        self.close()
        yield Chunk("", reply("something else entirely"))

    def close(self) -> None:
        self.all_open.discard(self)


@pytest.mark.parametrize("name", ["begin_shows_the_first_tokens", "what_was_begun_streams_from_its_start"])
def test_a_check_that_fails_leaves_nothing_open(name: str) -> None:
    [check] = [check for check in CHECKS if check.__name__ == name]
    reader = Held()
    with pytest.raises(AssertionError):
        check(reader, Trial())
    assert reader.open == set()


def test_settings_change_a_trial_that_is_given() -> None:
    asked = FakeReader(answer)
    check_reader(asked, Trial(max_tokens=9), n_tokens=2)
    # One to cancel; the setting's two; and one more than the trial's limit.
    assert {call.n_tokens for call in asked.history if call.verb == "begin"} == {1, 2, 10}


def test_a_stream_that_cannot_be_closed_can_be_abandoned() -> None:
    def stream(prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        return iter([Chunk(answer(str(prompt)), reply(answer(str(prompt))))])

    streams_can_be_abandoned(Careless(stream=stream), Trial())
