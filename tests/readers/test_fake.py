"""The public fake: a queue, a history, and honest handles."""

import pickle
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from surerag.drivers.answering import close_begun
from surerag.errors import ConfigurationError, InputError, LogprobsError, ServiceError, TransientServiceError
from surerag.messages import EntropyTrace, Generation, Message, Prompt, SamplingParams
from surerag.readers.fake import FakeReader, reply
from surerag.readers.protocol import BegunGeneration, Capabilities

GREEDY = SamplingParams()


def test_replies_come_in_order_for_each_sample_of_each_prompt() -> None:
    reader = FakeReader(["a", "b", "c", "d"])
    answers = reader.generate(["first", "second"], SamplingParams(n=2, temperature=1.0))
    assert [[g.text for g in row] for row in answers] == [["a", "b"], ["c", "d"]]
    assert "0 replies left" in repr(reader)


def test_an_empty_queue_says_which_prompt_found_it_empty() -> None:
    reader = FakeReader(["Paris"])
    reader.generate(["one"], GREEDY)
    with pytest.raises(ServiceError, match=r"the prompt 'Where is Velm\?' needs a reply.*default"):
        reader.generate(["Where is Velm?"], GREEDY)


def test_a_function_answers_every_prompt_from_its_text() -> None:
    reader = FakeReader(lambda prompt: "yes" if "Velm" in prompt else "no")
    conversation = (Message("system", "Be brief."), Message("user", "Velm?"))
    assert [row[0].text for row in reader.generate([conversation, "Orun?"], GREEDY)] == ["yes", "no"]
    assert reader.prompts == ["Be brief.\nVelm?", "Orun?"]


def test_a_mapping_answers_by_the_first_key_in_the_prompt() -> None:
    reader = FakeReader({"Velm": "yes", "Orun": "no"})
    assert [row[0].text for row in reader.generate(["Is Velm?", "Is Orun?"], GREEDY)] == ["yes", "no"]
    with pytest.raises(ServiceError, match="no key"):
        reader.generate(["Paris?"], GREEDY)


def test_errors_are_raised_where_they_stand_in_the_queue() -> None:
    reader = FakeReader([TransientServiceError("busy"), "then", KeyError])
    with pytest.raises(TransientServiceError, match="busy"):
        reader.generate(["q"], GREEDY)
    assert reader.generate(["q"], GREEDY)[0][0].text == "then"
    with pytest.raises(KeyError):
        reader.generate(["q"], GREEDY)


def test_default_answers_once_the_queue_is_empty() -> None:
    reader = FakeReader(["once"], default="always")
    assert [row[0].text for row in reader.generate(["q"] * 3, GREEDY)] == ["once", "always", "always"]


def test_entropies_and_logprobs_per_token_or_for_all() -> None:
    trace = reply("In old Velm.", entropy=[0.2, 2.0, 0.1], logprobs=-0.5).trace
    assert trace is not None
    assert trace.entropy is not None
    assert trace.tokens == ("In", " old", " Velm.")
    assert trace.entropy == EntropyTrace((0.2, 2.0, 0.1), (0.2, 2.0, 0.1), exact=True)
    assert trace.logprobs == (-0.5,) * 3
    with pytest.raises(ConfigurationError, match=r"2 values for 3 tokens"):
        reply("In old Velm.", entropy=[0.2, 2.0])


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"entropy": -0.5}, "0 <= lower <= upper, got lower=-0.5 and upper=-0.5"),
        ({"entropy": EntropyTrace((2.0,), (1.0,), exact=False)}, "got lower=2 and upper=1"),
        ({"logprobs": 0.9}, "natural logarithms of probabilities in a trace, got 0.9"),
        ({"end_logprob": 0.9}, "natural logarithms of probabilities in a trace, got 0.9"),
    ],
)
def test_impossible_log_probabilities_and_entropies_are_refused(values: dict[str, Any], match: str) -> None:
    with pytest.raises(LogprobsError, match=match):
        reply("Velm", **values)


def test_the_end_tokens_log_probability_belongs_to_answers_that_ended_by_themselves() -> None:
    reader = FakeReader(default="in old Velm", end_logprob=-0.25)
    (begun,) = reader.begin(["q"], 2, GREEDY)
    ended = begun.rest()
    cut, stopped = (
        reader.generate(["q"], way)[0][0]
        for way in (SamplingParams(max_tokens=2), SamplingParams(stop=("Velm",)))
    )
    traces = [answer.trace for answer in (ended, begun.partial, cut, stopped)]
    assert [trace and trace.end_logprob for trace in traces] == [-0.25, None, None, None]


def test_begin_emits_only_what_was_asked_for_and_rest_the_remainder() -> None:
    reader = FakeReader(["one two three four"])
    (begun,) = reader.begin(["q"], 2, GREEDY)
    assert (begun.partial.text, begun.partial.finish, begun.done) == ("one two", "partial", False)
    assert (reader.usage.completion_tokens, reader.open_handles) == (2, 1)
    whole = begun.rest()
    assert (whole.text, whole.finish, whole.completion_tokens) == ("one two three four", "stop", 4)
    assert (reader.usage.completion_tokens, reader.open_handles) == (4, 0)
    with pytest.raises(InputError, match="completed already"):
        begun.rest()


def test_begin_of_a_short_answer_is_done_and_rest_returns_it() -> None:
    reader = FakeReader(["Paris"])
    (begun,) = reader.begin(["q"], 8, GREEDY)
    assert begun.done
    assert begun.partial.finish == "stop"
    assert reader.open_handles == 0
    assert begun.rest() == begun.partial


def test_close_frees_is_idempotent_and_ends_the_generation() -> None:
    reader = FakeReader(["one two three"])
    (begun,) = reader.begin(["q"], 1, GREEDY)
    begun.close()
    begun.close()
    assert (reader.open_handles, reader.usage.completion_tokens) == (0, 1)
    with pytest.raises(InputError, match="closed already"):
        begun.rest()


def test_a_generation_that_cannot_be_closed_leaves_no_other_open() -> None:
    closed: list[int] = []

    class Stubborn(BegunGeneration):
        def close(self) -> None:
            closed.append(id(self))
            raise OSError("the connection is gone")

    class Failing(FakeReader):
        def begin(
            self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
        ) -> list[BegunGeneration]:
            if sampling.temperature:
                raise ServiceError("the second call fails")
            return [Stubborn(begun.partial) for begun in super().begin(prompts, n_tokens, sampling)]

    samplings = [GREEDY, GREEDY, SamplingParams(temperature=0.7)]
    with pytest.raises(OSError, match="gone"):
        Failing(lambda _: "one two three").begin_each(["a", "b", "c"], 1, samplings)
    assert len(closed) == 2

    call: Future[list[BegunGeneration]] = Future()
    call.set_result([Stubborn(Generation("one")), Stubborn(Generation("two"))])
    with pytest.raises(OSError, match="gone"):
        close_begun(call)
    assert len(closed) == 4


def test_stop_texts_and_token_limits_cut_as_a_server_would() -> None:
    reader = FakeReader(lambda _: "one two three four")
    assert reader.generate(["q"], SamplingParams(stop=("thr",)))[0][0].text == "one two"
    limited = reader.generate(["q"], SamplingParams(max_tokens=3))[0][0]
    assert (limited.text, limited.finish) == ("one two three", "length")
    assert limited.trace is not None
    assert len(limited.trace) == limited.completion_tokens == 3


def test_an_abandoned_stream_emits_no_more_than_was_taken() -> None:
    reader = FakeReader(["one two three four"])
    stream = reader.stream("q", GREEDY)
    assert [next(stream).text for _ in range(2)] == ["one", " two"]
    assert reader.usage.completion_tokens == 2


def test_chunks_start_at_the_first_word_and_counts_only_new_ones() -> None:
    reader = FakeReader(["one two three"])
    (begun,) = reader.begin(["q"], 2, GREEDY)
    chunks = list(begun.chunks())
    assert "".join(chunk.text for chunk in chunks) == "one two three"
    assert chunks[-1].generation is not None
    assert reader.usage.completion_tokens == 3


def test_a_reader_without_logprobs_gives_no_trace_and_claims_none() -> None:
    reader = FakeReader(["Paris"], logprob=None)
    generation = reader.generate(["q"], GREEDY)[0][0]
    assert generation.trace is None
    assert generation.completion_tokens == 1
    assert not reader.capabilities.logprobs
    assert reader.capabilities.entropy is None


def test_given_capabilities_are_kept_to() -> None:
    bounded = FakeReader(
        [reply("Paris")], capabilities=Capabilities(logprobs=True, entropy="bounded", begin="native")
    )
    trace = bounded.generate(["q"], GREEDY)[0][0].trace
    assert trace is not None
    assert trace.entropy is not None
    assert not trace.entropy.exact
    mute = FakeReader([reply("Paris")], capabilities=Capabilities(logprobs=False, entropy=None))
    assert mute.generate(["q"], GREEDY)[0][0].trace is None


def test_generations_can_be_scripted_whole() -> None:
    given = Generation("Paris", prompt_tokens=12, finish="length")
    answer = FakeReader([given]).generate(["q"], GREEDY)[0][0]
    assert (answer.text, answer.prompt_tokens, answer.finish) == ("Paris", 12, "length")


def test_history_tells_verbs_sampling_and_prompts() -> None:
    reader = FakeReader(default="a b c")
    (begun,) = reader.begin(["first"], 1, GREEDY)
    begun.close()
    reader.generate(["second"], SamplingParams(seed=7))
    assert [call.verb for call in reader.history] == ["begin", "close", "generate"]
    assert [call.prompts for call in reader.history] == [("first",), ("first",), ("second",)]
    assert reader.history[0].n_tokens == 1
    assert reader.history[2].sampling == SamplingParams(seed=7)
    assert reader.usage.requests == 2


def test_a_long_run_is_not_all_kept() -> None:
    reader = FakeReader(lambda prompt: "one two three")
    for number in range(25_000):
        (begun,) = reader.begin([str(number)], 1, GREEDY)
        begun.close()
    assert reader.usage.requests == 25_000
    assert 10_000 <= len(reader.history) <= 20_000
    assert reader.history[-1].prompts == ("24999",)
    assert reader.open_handles == 0 and not reader._open


async def test_async_twins_share_queue_and_history() -> None:
    reader = FakeReader(["one two three", "x", "s t"])
    (begun,) = await reader.abegin(["q"], 1, GREEDY)
    assert (await begun.arest()).text == "one two three"
    assert (await reader.agenerate(["q"], GREEDY))[0][0].text == "x"
    assert "".join([chunk.text async for chunk in reader.astream("q", GREEDY)]) == "s t"
    await begun.aclose()
    assert [call.verb for call in reader.history] == ["begin", "rest", "generate", "stream", "close"]


def test_pickles_with_its_queue() -> None:
    reader = pickle.loads(pickle.dumps(FakeReader(["left"])))
    assert reader.generate(["q"], GREEDY)[0][0].text == "left"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("n", 1.5, "a whole number"),
        ("max_tokens", 10.5, "a whole number"),
        ("seed", 0.5, "a whole number"),
        ("n", 0, "at least 1"),
        ("temperature", -1, "0 or more"),
        ("stop", "Velm", "a tuple"),
    ],
)
def test_sampling_that_cannot_be_is_refused(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be {expected}"):
        SamplingParams(**{name: value})


def test_an_answer_without_a_word_ends_empty_whatever_the_reader() -> None:
    reader = FakeReader(["", "Velm", reply(" ")])
    ended = [reader.generate(["q"], GREEDY)[0][0].finish for _ in range(3)]
    assert (ended, Generation("", finish="length").finish) == (["empty", "stop", "empty"], "length")
