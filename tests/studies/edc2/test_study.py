"""The EDC²-RAG study: what its contexts hold, and that its figures are those of its answers."""

from __future__ import annotations

import json
import re

import pytest
from rich.console import Console

from surerag.encoders import HashingEncoder
from surerag.evaluation.serialise import to_json
from surerag.prompts import NOTHING_TO_EXTRACT
from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader
from surerag.world import World
from surerag.world.spec import QuestionKind
from surerag_studies.asking import RememberingEncoder
from surerag_studies.edc2 import compression_study
from surerag_studies.edc2.analysis import Found, claims, figures
from surerag_studies.edc2.contexts import Cell, Condition, draw, ranked
from surerag_studies.edc2.results import Record
from surerag_studies.edc2.tables import study_tables

WORLD = World(seed=5, size=60)
LOCAL = Capabilities(logprobs=True, entropy="exact", begin="native", local=True)


@pytest.mark.parametrize("level", [0.0, 0.4, 0.8])
@pytest.mark.parametrize("top_k", [5, 20])
def test_noise_is_the_share_that_does_not_help(top_k: int, level: float) -> None:
    for question in WORLD.questions(30):
        found = draw(WORLD, question, Condition("noise", top_k, level))
        helping = [p for p in found if p.id.split("~")[0] in question.gold_passages]
        assert len(found) == len({p.id for p in found}) == top_k
        assert len(helping) == max(len(question.gold_passages), round(top_k - level * top_k))


@pytest.mark.parametrize("level", [0.0, 0.4, 0.95])
def test_redundancy_is_the_share_that_repeats_others(level: float) -> None:
    for question in WORLD.questions(30):
        found = draw(WORLD, question, Condition("redundancy", 20, level))
        distinct = {p.id.split("~")[0] for p in found}
        assert len(found) == len({p.id for p in found}) == 20
        assert len(distinct) == max(len(question.gold_passages), round(20 - level * 20), 1)
        assert set(question.gold_passages) <= distinct


def test_contexts_come_in_order_of_similarity_and_carry_their_vectors() -> None:
    questions = WORLD.questions(3)
    texts = [question.text for question in questions]
    contexts = [draw(WORLD, question, Condition("noise", 8, 0.5)) for question in questions]
    encoder = HashingEncoder()
    for text, context in zip(texts, ranked(contexts, texts, RememberingEncoder(encoder)), strict=True):
        query = encoder.encode([text], "query")[0]
        likeness = [
            sum(a * b for a, b in zip(query, passage.embedding or (), strict=True)) for passage in context
        ]
        assert likeness == pytest.approx(sorted(likeness, reverse=True))


def extracting() -> ScriptedReader:
    """A reader that extracts the passages about what the question names, and answers what it is told."""
    questions = {question.text: question for question in WORLD.questions(60)}

    def answer(prompt: str) -> str:
        match = re.search(r"Question: (.*)\n", prompt)
        assert match is not None
        question = questions[match.group(1)]
        lines = [
            line.split("] ", 1)[1] for line in prompt.splitlines() if re.match(r"(Context: )?\[\d+\] ", line)
        ]
        telling = [line for line in lines if any(name in line for name in question.answers)]
        if "Extract" in prompt:
            return telling[0] if telling else NOTHING_TO_EXTRACT
        return question.answers[0] if telling else "nobody knows"

    return ScriptedReader(answer, name="extracting", capabilities=LOCAL)


def test_a_reader_that_extracts_well_loses_nothing_and_reads_far_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grid = (
        Cell(Condition("noise", 10, 0.8), ("plain", "dynamic", "average", "random", "single", "bridged")),
        Cell(Condition("redundancy", 10, 0.8), ("plain", "dynamic")),
    )
    monkeypatch.setattr("surerag_studies.edc2.study.world_of", lambda regime, n, seed: WORLD)
    study = compression_study(extracting(), HashingEncoder(), seed=5, n=60, grid=grid, large=None)
    plain, ours, _, _, single, bridged = study.cells[0].methods
    assert plain.accuracy.value == ours.accuracy.value == 1.0
    assert ours.context_share < 0.4
    assert (plain.calls, single.calls) == (0, 10)
    assert 1.5 < ours.calls <= 3
    assert ours.calls < bridged.calls <= 2 * ours.calls
    assert bridged.accuracy.value == 1.0
    assert ours.cost > plain.cost
    console = Console(width=80)
    with console.capture() as captured:
        console.print(study_tables(study))
    shown = captured.get()
    assert "Noise at top-k 10" in shown
    assert "Redundancy" in shown
    assert re.search(r"Top-k +Method +single-hop +two-hop +under-specified", shown)
    assert json.loads(to_json(study))["cells"][0]["n"] == 60


def record(*, correct: bool, tokens: int, kind: QuestionKind = QuestionKind.SINGLE) -> Record:
    return Record(kind, correct, correct, tokens, 3, not correct, 0.5, 100, 10)


def test_claims_are_judged_by_their_bounds() -> None:
    good = [record(correct=True, tokens=40)] * 200
    bad = [record(correct=at % 2 == 0, tokens=100) for at in range(200)]
    high = Condition("noise", 20, 0.8)
    better = {c.statement: c.holds for c in claims([Found(high, {"plain": bad, "dynamic": good})])}
    worse = {c.statement: c.holds for c in claims([Found(high, {"plain": good, "dynamic": bad})])}
    assert set(better.values()) == {True}
    assert set(worse.values()) == {False}


def test_two_hop_questions_are_judged_apart() -> None:
    kinds = [QuestionKind.SINGLE, QuestionKind.TWO_HOP] * 100
    plain = [record(correct=True, tokens=100, kind=kind) for kind in kinds]
    ours = [record(correct=kind == QuestionKind.SINGLE, tokens=20, kind=kind) for kind in kinds]
    cell = Found(Condition("noise", 20, 0.4), {"plain": plain, "dynamic": ours, "bridged": plain})
    found = {claim.statement: claim for claim in claims([cell])}
    assert found["Two-hop questions better with bridging"].finding.startswith("+100.0 points")
    # On all questions, those of one step included.
    assert found["Not inferior to plain RAG on average by more than 2 points"].finding.startswith("-50.0")
    assert not found["Not inferior to plain RAG on average by more than 2 points"].holds
    assert found["With bridging, not inferior to plain RAG on average by more than 2 points"].holds
    shown = {row.method: [f.accuracy.value for f in row.by_kind] for row in figures(cell).methods}
    assert shown == {"plain": [1.0, 1.0], "dynamic": [1.0, 0.0], "bridged": [1.0, 1.0]}
    assert [f.accuracy.n for f in figures(cell).methods[0].by_kind] == [100, 100]


def test_figures_are_means_of_records() -> None:
    plain = [record(correct=at < 5, tokens=100) for at in range(10)]
    ours = [record(correct=at < 6, tokens=50) for at in range(10)]
    cell = figures(Found(Condition("noise", 5, 0.0), {"plain": plain, "dynamic": ours}))
    row = cell.methods[1]
    assert (row.accuracy.value, row.context_tokens, row.context_share, row.calls) == (0.6, 50, 0.5, 3)
    assert (row.fell_back, row.refused) == (pytest.approx(0.4), 0.5)
    assert row.against_plain is not None
    assert row.against_plain.value == pytest.approx(0.1)
    assert row.cost == pytest.approx((100 * 0.15 + 10 * 0.60) / 1e6)
