"""What a threshold saves and costs, from recorded answers; and the policy in both frameworks' own objects."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from llama_index.core import Document, VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding

from langchain_surerag import LazyRetrievalChain
from langchain_surerag import UncertaintyRewriter as LangChainRewriter
from llama_index_surerag import LazyRetrievalQueryEngine, UncertaintyRewriteQueryEngine
from surerag import LazyRAG, Passage, Policy, ScriptedReader, UncertaintyRewriter
from surerag.decisions.policy import Identity
from surerag.errors import ConfigurationError, InputError
from surerag.measures import latency_saving
from surerag.prices import Price
from surerag.readers.scripted import reply
from surerag.records import Trace, record
from surerag.records.pipeline import Pipeline
from surerag.records.tradeoff.choices import CHOICES, Case, Spending, cases, choice_of, identity_of
from surerag.records.tradeoff.columns import Times
from surerag.records.tradeoff.curve import Bound, trade_off
from surerag.records.tradeoff.page import Shown, render_trade_offs
from surerag.records.tradeoff.tables import trade_off_grids
from surerag.records.tradeoff.timing import kept_times, timed
from tests.snippets import ROOT

N = 200


class Corpus:
    """Knows the town of whoever is asked about."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage("Retrieved: the town is Orun.", id="p", score=1.0)]


def say(prompt: str) -> Any:
    """Know easy questions by heart, and hard ones once they are told."""
    told = "Orun" if "Retrieved" in prompt else "Velm"
    if "easy" in prompt:
        return reply("Orun", entropy=0.1, logprobs=[-0.05])
    return reply(told, entropy=0.2 if "Retrieved" in prompt else 2.0, logprobs=[-1.0])


def reader(name: str = "one") -> ScriptedReader:
    return ScriptedReader(say, name=name)


def asked(golds: bool = True) -> list[tuple[str, list[str]]]:
    return [(f"{'easy' if at % 4 else 'hard'} {at}?", ["Orun"] if golds else []) for at in range(N)]


def parts(name: str = "one") -> list[Any]:
    shape: dict[str, Any] = {"top_n": 1, "max_tokens": 8}
    return [
        LazyRAG(reader(name), Corpus(), "Summary of all.", **shape),
        UncertaintyRewriter(reader(name), Corpus(), **shape),
    ]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(parts(), asked(), tmp_path_factory.mktemp("judged"), n_samples=0)


def found(trace: Trace, method: Any = "l-rag", **more: Any) -> Any:
    choice = choice_of(trace, method)
    identity = identity_of(trace, choice)
    return trade_off(
        list(cases(trace, choice, identity.signal)), choice, identity, more.pop("bound", Bound()), **more
    )


def test_a_certified_threshold_with_what_it_gives_and_costs(judged: Trace) -> None:
    one = found(judged, model="one", price=Price(1.0, 2.0))
    assert (one.scored, one.n, one.left_out, one.policy.verdict) == ("gold answers", N, 0, "holds")
    assert 0.1 <= one.policy.threshold < 2.0 and one.chosen.rate == 0.25 and one.chosen.score == 1.0
    plain, always = one.points[0], one.points[1]
    never = next(point for point in one.points if point.label == "never")
    assert (plain.label, plain.score, always.score, never.score) == ("plain pipeline", 1.0, 1.0, 0.75)
    assert never.against_always.value == pytest.approx(-0.25)
    # An opened gate has read both prompts and asked twice; a shut one has retrieved nothing.
    assert (plain.retrievals, never.retrievals, one.chosen.retrievals) == (1.0, 0.0, 0.25)
    assert (plain.calls, never.calls, always.calls, one.chosen.calls) == (1.0, 1.0, 2.0, 1.25)
    assert always.prompt_tokens > plain.prompt_tokens > never.prompt_tokens
    spent = plain.prompt_tokens * 1000 + 2 * plain.completion_tokens * 1000
    assert plain.money == pytest.approx(spent / 1e6) and one.currency == "USD"
    # The curve goes from never to always.
    assert one.curve[0] == (0.0, 0.75) and one.curve[-1] == (1.0, 1.0)


def test_without_gold_answers_it_is_agreement_and_is_called_so(tmp_path: Path) -> None:
    one = found(record(parts(), asked(golds=False), tmp_path, n_samples=0))
    assert (one.scored, one.policy.scored, one.policy.verdict) == ("agreement", "agreement", "holds")
    assert "answers otherwise than always acting on at most 2 % of questions" in one.policy.promise
    assert "points of agreement" in one.policy.promise and "loses" not in one.policy.promise
    gives = trade_off_grids(one)[0]
    assert gives.head[2] == "Agrees" and "which may be wrong; there are no gold answers" in gives.note
    never = next(point for point in one.points if point.label == "never")
    assert never.score == 0.75
    again = Policy.from_dict(one.policy.to_dict())
    assert again == one.policy


def test_questions_without_gold_answers_among_others_are_left_out_and_counted(tmp_path: Path) -> None:
    given = [(text, golds if at % 2 else []) for at, (text, golds) in enumerate(asked())]
    trace = record(parts(), given, tmp_path, n_samples=0)
    choice = choice_of(trace, "l-rag")
    identity = identity_of(trace, choice)
    one = trade_off(list(cases(trace, choice, identity.signal)), choice, identity, Bound(), asked=len(trace))
    assert (one.scored, one.n, one.left_out) == ("gold answers", N // 2, N // 2)
    assert f"{N // 2} questions have no such score" in trade_off_grids(one)[0].note


def by_hand(times: Times | None, rate: float = 0.4) -> Any:
    """Return a trade-off of questions of which a share acts, always rightly."""
    cost = Spending(10, 1, 1, None)
    many = [
        Case(str(at), 1.0 if at < 1000 * rate else 0.0, float(at >= 1000 * rate), 1.0, 1.0, 1.0, 1.0,
             cost, cost + cost, cost)
        for at in range(1000)
    ]  # fmt: skip
    return trade_off(many, CHOICES["l-rag"], Identity(signal="s"), Bound(), times=times)


def test_the_break_even_is_that_of_the_papers_arithmetic_in_words() -> None:
    # 0.6 · 80 + 0.4 · 220 − 60 = 76 ms more of the model, for 0.6 of a retrieval less.
    one = by_hand(Times(80, 220, 60, 5.0, alone=8))
    assert one.break_even == pytest.approx(76 / 0.6)
    assert one.words.startswith("Below 127 ms a retrieval this costs you time, above it saves time.")
    assert "Here a retrieval took 5 ms." in one.words
    assert one.chosen.latency == pytest.approx(136 + 0.4 * 5) and one.points[0].latency == 65
    for latency, ours, plain in zip(
        one.latencies, one.chosen.latencies, one.points[0].latencies, strict=True
    ):
        assert plain - ours == pytest.approx(latency_saving(0.4, latency, 76))
    cheaper = by_hand(Times(20, 60, 60, None, alone=8))
    assert cheaper.break_even == 0 and cheaper.words.startswith("It saves time however fast a retrieval is")
    assert by_hand(Times(20, 60, 60, None), rate=1.0).words.startswith("It saves no retrieval")
    unknown = by_hand(None)
    assert unknown.break_even is None and unknown.words.startswith("No times are known")
    assert [grid.title for grid in trade_off_grids(unknown)] == [
        grid.title for grid in trade_off_grids(one)[:2]
    ]


def test_a_machine_by_the_hour_costs_the_recordings_seconds(judged: Trace) -> None:
    one = found(judged, price=Price(gpu_hour=3.6))
    trace_seconds = [case for case in one.points if case.money is not None]
    assert len(trace_seconds) == len(one.points)
    assert by_hand(None).points[0].money is None


def test_few_questions_are_timed_alone_and_once(tmp_path: Path) -> None:
    pipeline, made = Pipeline.of(parts()), []

    def measured() -> Times:
        made.append(1)
        return timed(pipeline, "l-rag", _questions(4))

    first = kept_times(tmp_path, "l-rag", 4, measured)
    assert first.alone == 4 and first.retrieval is not None
    assert min(first.shut, first.opened, first.plain, first.retrieval) >= 0
    assert kept_times(tmp_path, "l-rag", 4, measured) == first and len(made) == 1
    kept_times(tmp_path, "l-rag", 3, measured)
    assert len(made) == 2
    assert timed(pipeline, "dynqr", _questions(2)).alone == 2
    with pytest.raises(InputError, match="no part for edc2"):
        timed(pipeline, "edc2", _questions(2))
    (tmp_path / "timings.json").write_text("[]")
    with pytest.raises(InputError, match="holds no times"):
        kept_times(tmp_path, "l-rag", 4, measured)


def _questions(n: int) -> list[Any]:
    from surerag.evaluation.rows import Question

    return [Question(text, tuple(golds), "") for text, golds in asked()[:n]]


@pytest.mark.parametrize("method", ["l-rag", "dynqr"])
async def test_both_frameworks_load_the_policy_and_decide_by_it(
    judged: Trace, tmp_path: Path, method: str
) -> None:
    bound = Bound("budget", budget=0.4) if method == "dynqr" else Bound()
    found(judged, method, bound=bound).policy.save(tmp_path / "policy.json")
    policy = Policy.load(tmp_path / "policy.json")
    assert policy.identity.model == "one" and math.isfinite(policy.threshold)
    shape: dict[str, Any] = {"top_n": 1, "max_tokens": 8, "threshold": policy}
    documents = [Document(text="Retrieved: the town is Orun.")]
    index = VectorStoreIndex.from_documents(documents, embed_model=MockEmbedding(8))
    told: list[tuple[bool, bool]] = []

    def acted(text: str, name: str = "one") -> Any:
        if method == "l-rag":
            engine = LazyRetrievalQueryEngine.from_args(
                index, reader(name), summaries="Summary of all.", **shape
            )
            chain = LazyRetrievalChain(reader(name), Corpus(), "Summary of all.", **shape)
            return engine, chain
        engine = UncertaintyRewriteQueryEngine.from_args(index, reader(name), **shape)
        return engine, LangChainRewriter(llm=reader(name), retriever=Corpus(), **shape)

    for text in ("easy 1?", "hard 0?"):
        engine, chain = acted(text)
        if method == "l-rag":
            sync, later = engine.query(text), await engine.aquery(text)
            mine, others = chain.invoke(text), await chain.ainvoke(text)
            told.append((sync.metadata["retrieve"], mine["decision"]["retrieve"]))
            assert told[-1] == (later.metadata["retrieve"], others["decision"]["retrieve"])
        else:
            decided = [part.core.run(text).steps[0].outcome for part in (engine, chain)]
            assert decided[0] == decided[1]
            told.append((decided[0] != decided[1], False))
    if method == "l-rag":
        assert told == [(False, False), (True, True)]
    with pytest.raises(ConfigurationError, match="calibrated for the reader 'one'"):
        acted("easy 1?", "two")


def test_what_a_trace_cannot_tell_is_said(tmp_path: Path) -> None:
    trace = record(parts()[0], asked()[:4], tmp_path, n_samples=0)
    with pytest.raises(InputError, match="recorded without dynqr; it has l-rag"):
        choice_of(trace, "dynqr")
    choice = choice_of(trace, "l-rag")
    assert identity_of(trace, choice, "perplexity") == Identity("one", "perplexity")
    with pytest.raises(InputError, match="holds no signal 'doubt'"):
        list(cases(trace, choice, "doubt"))
    with pytest.raises(InputError, match="no question was answered both"):
        trade_off([], choice, Identity(signal="s"), Bound())


def test_the_page_escapes_what_models_say_and_fits_a_phone(judged: Trace) -> None:
    one = found(judged, model="<b>one</b>", times=Times(80, 220, 60, 5.0, alone=8))
    page = render_trade_offs([Shown(one, (), "l-rag.policy.json", "top_n=1")], title="T", lead="L")
    assert "<b>one</b>" not in page and "&lt;b&gt;one&lt;/b&gt;" in page
    assert "prefers-color-scheme: dark" in page and "Below" in page and "l-rag.policy.json" in page


@pytest.mark.parametrize("name", ["page", "comparison", "trade_off"])
def test_no_page_is_wider_than_a_phone(name: str) -> None:
    text = (ROOT / f"src/surerag/evaluation/templates/{name}.html.jinja").read_text()
    # A column's least width is never more than there is.
    assert not re.findall(r"minmax\([1-9]", text)
    # What cannot be narrower scrolls by itself.
    assert len(re.findall(r"<table", text)) <= len(re.findall(r'class="wide"', text))
