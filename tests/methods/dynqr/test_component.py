"""The component: services, merged batches, calls at a server, calibration, and options."""

from __future__ import annotations

import asyncio
import copy
import json
import math
import pickle
import warnings
from typing import Any

import pytest

from surerag import FakeReader, OpenAIReader, UncertaintyRewriter
from surerag.decisions.calibrating import calibrate
from surerag.decisions.policy import Policy
from surerag.errors import ConfigurationError, InputError, MissingServiceError
from surerag.messages import Generation, Message, SamplingParams, TokenTrace
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.methods.dynqr.painter import (
    CLEAR,
    QUESTIONS,
    SURE,
    UNSURE,
    VAGUE,
    Batches,
    Library,
    knowing,
    reader,
)
from tests.servers.fake_openai import FakeOpenAI
from tests.servers.toy_model import Script


@pytest.mark.parametrize("own_rewriter", [False, True])
def test_many_questions_are_asked_in_merged_batches(own_rewriter: bool) -> None:
    answering = Batches(name="reader")
    writing = Batches(name="rewriter") if own_rewriter else None
    rewriter = UncertaintyRewriter(answering, Library(), writing)
    results = rewriter.run_many(QUESTIONS)
    assert [result.acted for result in results] == [True] * 10 + [False] * 6
    if writing is None:
        assert answering.sizes == [16, 10, 10]
    else:
        assert (answering.sizes, writing.sizes) == ([16, 10], [10])
        assert all(prompt.startswith("Rewrite") for prompt in writing.prompts)
        assert not any(prompt.startswith("Rewrite") for prompt in answering.prompts)


@pytest.mark.parametrize("local_rewriter", [False, True])
@pytest.mark.parametrize("local_reader", [False, True])
async def test_a_rewriter_of_its_own_near_or_far(local_reader: bool, local_rewriter: bool) -> None:
    def made(local: bool, name: str) -> FakeReader:
        return Batches(name=name) if local else FakeReader(knowing, name=name)

    answering, writing = made(local_reader, "reader"), made(local_rewriter, "rewriter")
    rewriter = UncertaintyRewriter(answering, Library(), writing)
    expected = UncertaintyRewriter(reader(), Library()).run(VAGUE)
    assert rewriter.run(VAGUE) == await rewriter.arun(VAGUE) == rewriter.run_many([VAGUE])[0] == expected
    assert await asyncio.gather(*(rewriter.arun(VAGUE) for _ in range(3))) == [expected] * 3
    assert all(prompt.startswith("Rewrite") for prompt in writing.prompts)
    assert not any(prompt.startswith("Rewrite") for prompt in answering.prompts)
    assert rewriter.to_dict()["rewriter"] == "rewriter"


def test_a_reader_that_is_named_as_rewriter_too_is_asked_once_for_all() -> None:
    answering = Batches(name="reader")
    rewriter = UncertaintyRewriter(answering, Library(), answering)
    assert rewriter.run(VAGUE) == UncertaintyRewriter(reader(), Library()).run(VAGUE)
    rewriter.run_many(QUESTIONS)
    assert answering.sizes == [1, 1, 1, 16, 10, 10]


def test_a_rewriter_needs_no_log_probabilities() -> None:
    writing = FakeReader(knowing, logprob=None)
    assert UncertaintyRewriter(reader(), Library(), writing).run(VAGUE).answer == "In Velm"


def logprob(word: str) -> float:
    return UNSURE if word.strip() in ("perhaps", "Orun") else SURE


@pytest.mark.parametrize(("question", "requests", "retrievals"), [(CLEAR, 1, 1), (VAGUE, 3, 2)])
async def test_calls_are_counted_at_a_server(question: str, requests: int, retrievals: int) -> None:
    """A certain question costs one retrieval and one request; an uncertain one a rewrite and both again."""
    with FakeOpenAI(Script(lambda prompt: knowing(prompt).text, logprob)) as server:
        library = Library()
        model = OpenAIReader("toy", base_url=server.base_url, api_key="none")
        rewriter = UncertaintyRewriter(model, library)
        results = [rewriter.run(question), await rewriter.arun(question), *rewriter.run_many([question])]
        for result in results:
            assert result.answer == "In Velm"
            assert (result.costs.calls, result.costs.retrievals) == (requests, retrievals)
        assert len(server.requests) == 3 * requests
        assert len(library.asked) == 3 * retrievals


# Calibration.


def graded(prompt: str) -> Generation:
    """Less sure of each question than of the one before; the last half is wrong without the right passage."""
    if prompt.startswith("Rewrite"):
        return reply(CLEAR)
    number = int(prompt.rsplit("born? ", 1)[1].split("\n")[0])
    if "Ada was born in Velm" in prompt:
        return reply("Velm", logprobs=-0.01)
    return reply("Velm" if number < 5 else "Orun", logprobs=-0.1 * (number + 1))


SAMPLE = [f"{VAGUE} {number}" for number in range(10)]
GOLDS = [["Velm"]] * 10


def test_the_threshold_is_calibrated_and_belongs_to_reader_and_metric() -> None:
    rewriter = UncertaintyRewriter(FakeReader(graded, name="one"), Library())
    budget = calibrate(rewriter, rewriter.rows(SAMPLE), target="budget", budget=0.6, confidence=0.9)
    assert (budget.threshold, budget.rate) == (pytest.approx(math.exp(0.7)), 0.3)
    rows = rewriter.rows(SAMPLE, GOLDS)
    best = calibrate(rewriter, rows, target="best")
    assert (best.threshold, best.rate) == (pytest.approx(math.exp(0.5)), 0.5)
    assert (best.loss, best.verdict) == (0.0, "no promise")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready = rewriter.with_options(threshold=best)
    assert [result.acted for result in ready.run_many(SAMPLE)] == [False] * 5 + [True] * 5
    with pytest.raises(ConfigurationError, match="reader 'one' and is used with 'two'"):
        UncertaintyRewriter(FakeReader(graded, name="two"), Library(), threshold=best)
    with pytest.raises(ConfigurationError, match="for the signal"):
        rewriter.with_options(threshold=best, metric="lowest_probability")
    for changed in ({"prompts": {"rewrite": "Mend {query}"}}, {"documents": "expand"}):
        with pytest.raises(ConfigurationError, match="for the prompts and settings"):
            rewriter.with_options(threshold=best, **changed)
    with pytest.raises(InputError, match="10 of 10 rows were not judged"):
        calibrate(rewriter, rewriter.rows(SAMPLE))


class Energetic(FakeReader):
    """Tells energies: the negative of what it says of its log-probabilities, far from zero."""

    def _next(self, prompt: str, sampling: SamplingParams) -> Generation:
        found = super()._next(prompt, sampling)
        trace = found.trace
        assert trace is not None
        energies = tuple(20 + logprob for logprob in trace.logprobs)
        traced = TokenTrace(trace.tokens, trace.logprobs, trace.entropy, energies)
        return Generation(found.text, found.prompt_tokens, traced, found.finish, found.completion_tokens)


@pytest.mark.parametrize(("budget", "acting"), [(0.0, 0), (0.6, 3), (1.0, 10)])
def test_thresholds_of_energies_are_negative_and_found_all_the_same(budget: float, acting: int) -> None:
    can = Capabilities(logprobs=True, entropy="exact", energy=True)
    rewriter = UncertaintyRewriter(
        Energetic(graded, capabilities=can), Library(), metric="energy", threshold=math.inf
    )
    found = calibrate(rewriter, rewriter.rows(SAMPLE), target="budget", budget=budget, confidence=0.9)
    assert found.threshold < 0 or acting == 0
    assert found.rate == acting / 10
    ready = rewriter.with_options(threshold=found)
    assert sum(result.acted for result in ready.run_many(SAMPLE)) == acting


def test_a_calibration_can_be_kept(tmp_path: Any) -> None:
    rewriter = UncertaintyRewriter(FakeReader(graded), Library())
    found = calibrate(rewriter, rewriter.rows(SAMPLE, GOLDS), target="best")
    found.save(tmp_path / "threshold.json")
    assert Policy.load(tmp_path / "threshold.json") == found


@pytest.mark.parametrize(
    "settings",
    [
        {"threshold": math.nan},
        {"documents": "both"},
        {"top_n": 0},
        {"n_samples": 0},
        {"candidates": 0},
        {"on_failure": "ignore"},
        {"rewrite_words": 0},
        {"metric": "doubt"},
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        UncertaintyRewriter(reader(), Library(), **settings)


def test_services_are_demanded() -> None:
    with pytest.raises(MissingServiceError, match="retriever"):
        UncertaintyRewriter(reader(), None)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="reader"):
        UncertaintyRewriter(reader(), Library(), object())  # type: ignore[arg-type]


# Options.


def test_unknown_names_raise_and_the_near_ones_are_told() -> None:
    for name, near in (("treshold", "threshold"), ("n_sample", "n_samples"), ("topn", "top_n")):
        given: dict[str, Any] = {name: 1}
        with pytest.raises(ConfigurationError, match=f"Did you mean .*{near}"):
            UncertaintyRewriter(reader(), Library(), **given)
        with pytest.raises(ConfigurationError, match=f"Did you mean .*{near}"):
            UncertaintyRewriter(reader(), Library()).with_options(**given)


def test_an_answer_is_as_long_as_is_set_else_as_the_models_own_limit() -> None:
    class Brief(FakeReader):
        max_tokens = 7

    asked = Brief(knowing)
    UncertaintyRewriter(asked, Library(), metric="ln_entropy", threshold=0.1, n_samples=2).run(VAGUE)
    # Rewrites have a limit of their own.
    assert [(call.sampling.n, call.sampling.max_tokens) for call in asked.history if call.sampling] == [
        (1, 7),
        (2, 7),
        (1, 64),
        (1, 7),
        (2, 7),
    ]
    UncertaintyRewriter(asked, Library(), max_tokens=3).run(CLEAR)
    assert asked.history[-1].sampling is not None
    assert asked.history[-1].sampling.max_tokens == 3


def test_copies_hold_the_same_options_and_services() -> None:
    rewriter = UncertaintyRewriter(reader(), Library(), threshold=-math.inf, top_n=1)
    other = copy.deepcopy(rewriter)
    assert other == rewriter
    assert (other.reader, other.retriever) == (rewriter.reader, rewriter.retriever)
    again = pickle.loads(pickle.dumps(UncertaintyRewriter(FakeReader(["Velm"]), Library(), threshold=2.0)))
    assert (again.threshold, again.run(CLEAR).answer) == (2.0, "Velm")


def test_what_is_written_down_comes_back_a_calibration_and_infinities_included() -> None:
    rewriter = UncertaintyRewriter(reader(), Library())
    found = calibrate(rewriter, rewriter.rows(QUESTIONS, [["Velm"]] * len(QUESTIONS)), target="best")
    for threshold in (None, math.inf, -math.inf, 1.5, found):
        plain = json.loads(json.dumps(rewriter.with_options(threshold=threshold).to_dict()))
        again = UncertaintyRewriter.from_dict(plain, reader=rewriter.reader, retriever=Library())
        assert (again.threshold, again.to_dict()) == (threshold, plain)
    with pytest.raises(ConfigurationError, match="metric must be one of"):
        # A metric of one's own goes by its name, and has to be given again.
        UncertaintyRewriter.from_dict({**plain, "metric": "mine"}, reader=reader(), retriever=Library())


async def test_results_come_in_order_also_of_questions_in_conversations() -> None:
    history = (Message("user", "Do you know Ada?"), Message("assistant", "I do."))

    def answer(prompt: str) -> Generation:
        return reply(CLEAR) if "without the conversation above" in prompt else knowing(prompt)

    cases: list[str | tuple[str, tuple[Message, ...]]] = [VAGUE, (VAGUE, history), CLEAR] * 5
    rewriter = UncertaintyRewriter(FakeReader(answer), Library())
    expected = [
        rewriter.run(case) if isinstance(case, str) else rewriter.run(case[0], history=case[1])
        for case in cases
    ]
    assert [result.acted for result in expected[:3]] == [True, True, False]
    assert expected[1].costs.prompt_tokens > expected[0].costs.prompt_tokens
    assert list(rewriter.iter_many(iter(cases), window=2)) == expected
    assert [result async for result in rewriter.aiter_many(cases, window=2)] == expected
    assert rewriter.run_many(cases) == expected
