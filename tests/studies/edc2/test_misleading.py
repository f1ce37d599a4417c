"""Noise that misleads: what contexts hold, what the pipelines are asked, and where each wins and loses."""

from __future__ import annotations

import io
from itertools import pairwise

from rich.console import Console

from surerag import ScriptedReader
from surerag.encoders import HashingEncoder
from surerag.evaluation.differences import PairedDifference
from surerag.evaluation.statistics import share
from surerag.prompts import NOTHING_TO_EXTRACT
from surerag.world.lexicon import words
from surerag.world.questions import is_correct, normalise
from surerag_studies.dense_rag.misleading import HAZARDS, VARIANTS, dense_misleading_study
from surerag_studies.dense_rag.misleading import study_tables as dense_tables
from surerag_studies.edc2.guards import FALSE, TRUE, draw_cases, guard_study
from surerag_studies.edc2.guards import study_tables as guard_tables
from surerag_studies.edc2.misleading import (
    PIPELINES,
    KeptFigures,
    MisleadingCell,
    MisleadingStudy,
    PipelineFigures,
    _asked,
    draw,
    false_answer,
    misleading_study,
    study_tables,
    verdicts,
)


def printed(view: object) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(view)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]  # written to memory
    return text


def test_a_context_holds_the_truth_and_what_contradicts_it() -> None:
    world, questions = _asked("altered", 3, 8)
    assert questions
    for question in questions:
        context = draw(world, question, "altered", 20)
        names = {passage.id for passage in context}
        assert len(context) == len(names) == 20
        assert names >= {*question.gold_passages, *question.misleading}
        right = [p.text for p in context if p.id in question.gold_passages]
        wrong = [p.text for p in context if p.id in question.misleading]
        assert any(normalise(question.answers[0]) in normalise(text) for text in right)
        assert not any(one == other for one, other in pairwise(sorted([*right, *wrong[:1]])))


def test_every_pipeline_answers_and_a_reader_that_says_nothing_is_right_about_nothing() -> None:
    reader = ScriptedReader(lambda prompt: NOTHING_TO_EXTRACT if prompt.startswith("Extract") else "nothing")
    study = misleading_study(
        [("mute", reader)], HashingEncoder(), seed=3, n=4, kinds=("altered",), top_k=(20,)
    )
    [cell] = study.cells
    assert [row.pipeline for row in cell.pipelines] == list(PIPELINES)
    plain, extract, *_, choice, judged = cell.pipelines
    assert all(row.accuracy.value == 0 for row in cell.pipelines)  # of two equally likely answers, neither
    assert choice.against_plain is None and judged.against_plain is not None and judged.calls == extract.calls
    assert (plain.calls, plain.fell_back) == (0, 0) and extract.calls >= 1 and extract.fell_back == 1
    # Where every cluster yields nothing, all passages are shown.
    assert cell.kept == (KeptFigures(1, "both", 4, 0, 0),)
    assert "altered copies" in printed(study_tables(study))


def test_the_false_answer_is_what_misleads() -> None:
    world, questions = _asked("altered", 3, 8)
    for question in questions:
        false = false_answer(question, draw(world, question, "altered", 20))
        assert false in words(question.value_kind) and not is_correct(question, false)
        assert any(false in world.passage[name].text for name in question.misleading)
        assert false_answer(question, []) != question.answers[0]


def test_a_judge_that_likes_what_it_reads_is_right_after_compression_alone() -> None:
    """It finds an answer the likelier, the less there stands in its context that contradicts it."""
    truths = {question.answers[0] for question in _asked("altered", 3, 4)[1]}

    def reply(prompt: str) -> str:
        told = [line for line in prompt.splitlines() if any(truth in line for truth in truths)]
        return " ".join(told) or NOTHING_TO_EXTRACT

    def likely(prompt: str, answer: str) -> float:
        return -prompt.count("[") if answer in truths else -3.0

    reader = ScriptedReader(reply, score=likely)
    study = misleading_study([("r", reader)], HashingEncoder(), seed=3, n=4, kinds=("altered",), top_k=(20,))
    choice, judged = study.cells[0].pipelines[-2:]
    assert choice.accuracy.value == 0 and judged.accuracy.value == 1
    assert judged.against_plain is not None and judged.against_plain.value == 1
    kept = {row.kept: row for row in study.cells[0].kept}
    # It repeats what holds a truth; where that is about somebody else, the guard takes it away.
    assert set(kept) == {"the answer alone", "neither"} and sum(row.n for row in kept.values()) == 4
    assert kept["the answer alone"].compressed == kept["the answer alone"].n
    assert "the answer alone" in printed(study_tables(study))


def test_wins_and_losses_are_told_by_whole_intervals() -> None:
    def row(pipeline: str, low: float, high: float) -> PipelineFigures:
        gap = None if pipeline in ("plain", "choice") else PairedDifference((low + high) / 2, low, high, low)
        return PipelineFigures(pipeline, share([True, False]), gap, 1, 1, 0)  # type: ignore[arg-type]

    rows = (
        row("plain", 0, 0),
        row("extract", 0.1, 0.2),
        row("bridged", -0.2, -0.1),
        row("consensus", -0.1, 0.1),
        row("choice", 0, 0),
        row("judged", 0.1, 0.2),
    )
    text = str(verdicts(MisleadingStudy(1, 10, "e", (MisleadingCell("r", "stale", 20, 10, rows),))))
    assert (
        "4.3: extract: wins in 1 cells" in text and "4.3, bridging: wins in 0 cells (–), loses in 1" in text
    )
    assert "C.2, majority: wins in 0 cells (–), loses in 0 (–), undecided in 1" in text


def test_guards_are_judged_on_sentences_of_known_truth() -> None:
    cases = draw_cases(3, 20)
    assert [case.said for case in cases[:7]] == [*TRUE, *FALSE]
    study = guard_study(ScriptedReader(lambda prompt: "neutral"), seed=3, n=20)
    rows = {row.guard: row for row in study.guards}
    assert rows["off"].true_kept.value == rows["off"].false_kept.value == 1
    assert rows["entailment 0.6"].true_kept.value == 0
    # The default keeps what is said in other words, and removes what is denied.
    default = rows["overlap 0.3"]
    assert default.kept["in other words"].value > 0.9 > rows["overlap 0.6"].kept["in other words"].value
    assert default.kept["denied"].value < 0.1 > default.kept["another entity"].value
    assert "overlap 0.3" in printed(guard_tables(study))


def test_refinement_is_offered_candidates_that_mislead() -> None:
    def reply(prompt: str) -> str:
        if prompt.startswith("Rewrite"):
            return "It was so."
        return str(len(prompt) % 7) if prompt.startswith("Answer") else "no"

    [hazard] = list(HAZARDS)[:1]
    study = dense_misleading_study(ScriptedReader(reply), HashingEncoder(), seed=3, n=3, hazards=(hazard,))
    [found] = study.hazards
    assert found.n == 3 and found.variants
    assert [row.name for row in found.variants] == list(VARIANTS)
    assert found.certain.value < 1 and found.first_uncertain is not None
    # Six answers at least, what is known being asked once; a mute reader mends nothing.
    assert all(row.calls >= 6 and row.accuracy.value == 0 for row in found.variants)
    assert all(0 <= row.told <= 1 for row in found.variants) and 0 <= found.first_told <= 1
    assert "only removing" in printed(dense_tables(study)) and "Told, %" in printed(dense_tables(study))
