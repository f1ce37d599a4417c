"""The SePer study: contexts are worth what they say, and figures are those of the samples."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surerag import SePer, SePerOptions, run
from surerag.encoders import HashingEncoder
from surerag.entailment import JudgeEntailer
from surerag.errors import CapabilityError
from surerag.evaluation.serialise import to_json
from surerag.measures import exact_match
from surerag.methods.seper.algorithm import context_prompt
from surerag.readers.scripted import ScriptedReader
from surerag.services import Services
from surerag.types import Pair, Passage
from surerag.world import World
from surerag_studies.judging import AliasEntailer, choose, judge_accuracy
from surerag_studies.seper import seper_study
from surerag_studies.seper.analysis import Record, sample_rows, scored
from surerag_studies.seper.asking import ALL_FORMS, BASELINES, SOFT_DEFAULT, Samples, belief, probe
from surerag_studies.seper.contexts import MissingRetriever, Role, known_contexts, look_up
from surerag_studies.seper.plots import write_plots
from surerag_studies.seper.rating import rated
from surerag_studies.seper.results import SePerStudy
from surerag_studies.seper.tables import study_tables
from tests.studies.seper.knowing import KnowingReader
from tests.studies.showing import numbers, shown

WORLD = World(seed=5, size=60)
QUESTIONS = WORLD.questions(60, ["single-hop", "two-hop"])


@pytest.fixture(scope="module")
def study() -> SePerStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("surerag_studies.seper.study.world_of", lambda *_: WORLD)
        return seper_study(KnowingReader(WORLD), HashingEncoder(), seed=5, n=60)


def test_contexts_are_worth_what_they_say() -> None:
    for question in QUESTIONS:
        contexts = known_contexts(WORLD, question)
        by_role = {context.role: context for context in contexts}
        needed = set(question.gold_passages)
        for context in contexts:
            shown = {passage.id.split("~")[0] for passage in context.passages}
            share = len(shown & needed) / len(needed)
            assert context.utility == (0.0 if question.taught else share)
            if not shown & needed:
                assert all(question.answers[0] not in passage.text.split() for passage in context.passages)
        assert Role.IRRELEVANT in by_role
        if question.taught:
            assert {context.step for context in contexts} == {None}
        elif question.hops == 2:
            assert {Role.FIRST_HALF, Role.SECOND_HALF, Role.BOTH_HALVES} <= by_role.keys()


def test_the_ladder_grows_by_one_passage_a_step_and_never_loses_worth() -> None:
    for question in QUESTIONS:
        steps = {c.step: c for c in known_contexts(WORLD, question) if c.step is not None}
        if len(steps) < 4:
            continue
        rungs = [steps[at] for at in range(4)]
        assert [len(rung.passages) for rung in rungs] == [1, 2, 3, 4]
        assert all(a.passages == b.passages[:-1] for a, b in pairwise(rungs))
        worth = [rung.utility for rung in rungs]
        assert worth == sorted(worth)
        assert worth[-1] == 1.0


def ask(
    reader: Any, question: Any, passages: list[Passage], n: int, entailer: Any
) -> tuple[Samples, Samples]:
    prompts = [context_prompt(question.text, shown, SePerOptions()) for shown in ([], passages)]
    program = probe(question.text, question.answers[0], prompts, n)
    before, after = run(program, Services(reader=reader, entailer=entailer)).samples
    return before, after


@pytest.mark.parametrize("kernel", ["soft", "hard"])
@pytest.mark.parametrize("weights", ["distinct", "official", "frequency"])
def test_the_study_scores_as_the_component_does_on_the_same_samples(kernel: Any, weights: Any) -> None:
    reader = KnowingReader(WORLD)
    judge = JudgeEntailer(reader)
    for question in [q for q in QUESTIONS if not q.taught][:4]:
        passages = [WORLD.passage[question.gold_passages[0]]]
        own = SePer(reader, judge, kernel=kernel, weights=weights, max_tokens=24).run(
            question.text, question.answers[:1], passages
        )
        for samples, theirs in zip(
            ask(reader, question, passages, 20, judge), (own.before, own.after), strict=True
        ):
            ours = belief(samples.first(10), weights=weights, hard=kernel == "hard")
            assert ours == pytest.approx(theirs.seper, abs=1e-6)
            assert list(samples.first(10).texts) == [answer.text for answer in theirs.answers]


def test_a_pair_is_judged_backward_only_where_forward_entails() -> None:
    reader = KnowingReader(WORLD, judges=1.0)
    question = next(q for q in QUESTIONS if not q.taught and q.hops == 1)
    asked: list[Pair] = []

    class Watching(AliasEntailer):
        def entail(self, pairs: Any) -> Any:
            asked.extend(pairs)
            return super().entail(pairs)

    ask(reader, question, [WORLD.passage[question.gold_passages[0]]], 20, Watching(QUESTIONS))
    assert len(asked) == len(set(asked))
    among = [pair for pair in asked if question.answers[0] not in (pair.premise, pair.hypothesis)]
    rows = AliasEntailer(QUESTIONS).entail(among)
    both = {(pair.hypothesis, pair.premise) for pair in among}
    for pair, row in zip(among, rows, strict=True):
        assert ((pair.premise, pair.hypothesis) in both) == (row.argmax() == 2)


def test_the_worlds_accepted_forms_tell_same_from_different() -> None:
    entailer = AliasEntailer(QUESTIONS)
    assert judge_accuracy(entailer, QUESTIONS).value == 1.0
    question = QUESTIONS[0]
    value = question.answers[0]
    rows = entailer.entail(
        [
            Pair(value, "no idea", question.text),
            Pair("No idea!", "no idea", question.text),
            Pair("a", "b", "?"),
        ]
    )
    assert rows.argmax(axis=1).tolist() == [1, 2, 1]


def test_the_reader_judges_where_it_can_and_the_world_where_it_cannot() -> None:
    good, bad = KnowingReader(WORLD, judges=1.0), KnowingReader(WORLD, judges=0.6)
    assert choose(good, QUESTIONS, None).kind == "judge"
    assert choose(bad, QUESTIONS, None).kind == "exact"
    assert choose(bad, QUESTIONS, None).accuracy.value < 0.95
    assert isinstance(choose(bad, QUESTIONS, "judge").entailer, JudgeEntailer)


def test_without_clusters_only_gold_answers_are_compared_with() -> None:
    question = next(q for q in QUESTIONS if not q.taught)
    gold = question.answers[0]
    asked: list[Pair] = []

    class Watching(AliasEntailer):
        def entail(self, pairs: Any) -> Any:
            asked.extend(pairs)
            return super().entail(pairs)

    prompt = context_prompt(question.text, [], SePerOptions())
    services = Services(reader=KnowingReader(WORLD), entailer=Watching(QUESTIONS))
    [bare] = run(probe(question.text, gold, [prompt], 12, clustered=0), services).samples
    assert all(gold in (pair.premise, pair.hypothesis) for pair in asked)
    [whole] = run(probe(question.text, gold, [prompt], 12), services).samples
    assert belief(bare) == belief(whole)
    assert (len(bare.clusters), len(whole.clusters), len(bare.matches)) == (0, 10, 12)


def row(study: SePerStudy, label: str) -> Any:
    return next(found for found in study.methods if found.label == label)


def test_on_a_reader_of_known_belief_the_study_finds_what_is_there(study: SePerStudy) -> None:
    assert study.entailment == "judge"
    soft = row(study, SOFT_DEFAULT)
    assert soft.single.value > 0.9
    # Of a half, this reader makes a belief of 0.25, which ten samples do not tell from others every time.
    assert soft.two_hop.value > 0.7
    fair = [one for one in study.methods if not one.ours and one.label != ALL_FORMS]
    assert {"BLEU", "Token F1", "Semantic entropy"} <= {one.label for one in fair}
    assert all(soft.single.value > one.single.value for one in fair)
    # It answers every prompt as if it were a question: a judge of contexts it is not.
    assert (study.followed.ratings, study.followed.enough) == (0, False)
    assert row(study, "Exact match").single.value < row(study, "Exact match, all forms").single.value
    of = {(role.questions, role.role): role for role in study.roles}
    assert abs(of["taught", "known by heart"].delta.value) < 0.1
    assert abs(of["single-hop", "irrelevant"].delta.value) < 0.1
    assert of["single-hop", "gold"].delta.value > 0.8
    half, whole = of["two-hop", "first half"], of["two-hop", "both halves"]
    assert 0.05 < half.delta.value < whole.delta.value
    rises = [rung.rise for rung in study.ladder if rung.added in ("+ gold", "+ second half")]
    assert all(rise is not None and rise.low > 0.2 for rise in rises)
    assert study.retrievers.rank.value > 0.8
    assert len(study.retrievers.rows) >= 5


def test_every_measure_is_the_mean_over_samples_with_less_the_mean_without() -> None:
    def samples(*texts: str) -> Samples:
        n = len(texts)
        return Samples(texts, np.full(n, -0.5), np.zeros(n), np.zeros(n), np.zeros(n, dtype=np.intp))

    question = QUESTIONS[0]
    short, phrase, _ = question.answers
    context = known_contexts(WORLD, question)[0]
    record = Record(question, samples(phrase, "nobody"), (context,), (samples(short, phrase),))
    found = {label: values[0] for label, values in scored([record], BASELINES).deltas.items()}
    assert found["Exact match"] == 0.5 * (1 + exact_match(phrase, [short])) - 0.5 * exact_match(
        phrase, [short]
    )
    assert found["Exact match, all forms"] == 1.0 - 0.5
    assert found["Perplexity"] == found["Entropy"] == 0.0


def test_a_reader_that_gives_ratings_is_a_rival() -> None:
    questions = [question for question in QUESTIONS if not question.taught][:6]
    empty = Samples((), np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=np.intp))
    records = [
        Record(one, empty, contexts := tuple(known_contexts(WORLD, one)), (empty,) * len(contexts))
        for one in questions
    ]
    golds = {one.text: one.answers[0] for one in questions}

    def rating(prompt: str) -> str:
        question = prompt.split("Question: ")[1].split("\n")[0]
        shown = prompt.partition("Context: ")[2].partition("\nAnswer: ")[0]
        return "10" if golds[question] in shown else "Rating: 1"

    found, followed = rated(records, ScriptedReader(rating))
    assert followed.enough and followed.tried == 40
    for record in found:
        direct, reduced = (record.ratings[f"Judge, {way}"] for way in ("direct", "reduction"))
        assert direct == reduced
        assert all(one for one, known in zip(direct, record.contexts, strict=True) if known.utility == 1)
    assert scored(found, ()).estimate("Judge, direct").value > 0.7


def test_more_samples_correlate_better_and_spread_less(study: SePerStudy) -> None:
    soft = [found for found in study.sampling if found.kernel == "soft"]
    assert [found.n for found in soft] == [1, 5, 10, 15, 20]
    assert soft[0].single.mean < soft[2].single.mean
    assert soft[2].single.mean >= 0.97 * soft[4].single.mean
    deviations = [found.deviation for found in soft]
    assert deviations == sorted(deviations, reverse=True)


def test_the_subset_of_all_samples_is_the_run_itself() -> None:
    rng = np.random.default_rng(0)
    records = []
    for question in QUESTIONS[:12]:
        contexts = tuple(known_contexts(WORLD, question))

        def drawn(level: float) -> Samples:
            hits = (rng.random(20) < level).astype(float)
            texts = tuple(f"answer {i % 7}" for i in range(20))
            return Samples(texts, rng.normal(-1, 0.3, 20), hits, hits, np.arange(20))

        after = tuple(drawn(0.1 + 0.8 * context.utility) for context in contexts)
        records.append(Record(question, drawn(0.1), contexts, after))
    two_hop = [record.question.hops == 2 for record in records]
    [whole] = [row for row in sample_rows(records, two_hop, [20]) if row.kernel == "soft"]
    deltas, worth = [], []
    for record, chain in zip(records, two_hop, strict=True):
        for context, after in zip(record.contexts, record.after, strict=True):
            if not chain and context.role is not Role.LADDER:
                deltas.append(belief(after) - belief(record.before))
                worth.append(context.utility)
    assert whole.single.mean == pytest.approx(np.corrcoef(deltas, worth)[0, 1], abs=1e-9)


def test_nothing_is_asked_twice_and_the_cost_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("surerag_studies.seper.study.world_of", lambda *_: WORLD)
    reader = KnowingReader(WORLD)
    progress: dict[str, list[tuple[int, int | None]]] = {}

    def stages(name: str) -> Any:
        told = progress.setdefault(name, [])
        return lambda done, total: told.append((done, total))

    found = seper_study(reader, HashingEncoder(), seed=5, n=20, entailment="exact", stages=stages)
    by_samples = {n: [p for p, k in reader.asked if k == n] for n in (20, 10)}
    assert all(len(prompts) == len(set(prompts)) for prompts in by_samples.values())
    assert [cost.prompts for cost in found.costs] == [len(by_samples[20]), len(by_samples[10])]
    assert {name: told[-1] for name, told in progress.items()} == {
        "Passages of known utility": (20, 20),
        "Retrievers": (20, 20),
    }
    again = seper_study(KnowingReader(WORLD), HashingEncoder(), seed=5, n=20, entailment="exact")
    first, second = (json.loads(to_json(one)) for one in (found, again))
    for one in (first, second):
        for cost in one["costs"]:
            cost.pop("seconds")
    assert first == second


def test_a_reader_without_log_probabilities_is_refused() -> None:
    with pytest.raises(CapabilityError, match="no log-probabilities"):
        seper_study(ScriptedReader(logprob=None), HashingEncoder(), seed=5, n=20)


def test_a_missing_passage_is_replaced_by_others() -> None:
    question = next(q for q in QUESTIONS if q.hops == 2)
    exact = look_up(WORLD, [question], HashingEncoder())[0]
    assert exact.recall == (1.0,)

    class Fixed:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            return list(WORLD.passages[:k])

    class Gold:
        def retrieve(self, query: str, k: int) -> list[Passage]:
            return list(exact.passages[0])

    gold = {question.text: question.gold_passages}
    found = MissingRetriever(Gold(), gold, Fixed(), missing=1.0).retrieve(question.text, 5)
    assert len(found) == len({passage.id for passage in found}) == 5
    assert not {passage.id for passage in found} & set(question.gold_passages)


def test_every_number_shown_is_in_the_json_and_tables_fit(study: SePerStudy) -> None:
    text = shown(study_tables(study))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    stored = numbers(json.loads(to_json(study)))
    known = {f"{abs(number) * scale:.{d}f}" for number in stored for scale in (1, 100) for d in range(4)}
    known |= {f"{number:g}" for number in stored}
    body = re.sub(r"\(cf\.[^)]*\)|; Property 2[^)]*\)|Property \d|Figure 3|Table \d|F1", "", text)
    missing = [token for token in re.findall(r"\d+(?:\.\d+)?", body.replace(",", "")) if token not in known]
    assert missing == []


def test_figures_are_written_and_repeat(study: SePerStudy, tmp_path: Path) -> None:
    files = write_plots(study, tmp_path / "plots")
    assert [file.stem for file in files] == ["correlation", "samples", "utility", "retrievers"]
    first = [file.read_bytes() for file in files]
    assert all(file.with_suffix(".png").stat().st_size > 10_000 for file in files)
    assert [file.read_bytes() for file in write_plots(study, tmp_path / "plots")] == first


def test_a_reader_that_says_one_thing_can_be_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """All measures are constant: there is nothing to correlate, and that is said, without a NaN."""
    monkeypatch.setattr("surerag_studies.seper.study.world_of", lambda *_: WORLD)
    study = seper_study(
        ScriptedReader(lambda _: "nobody"), HashingEncoder(), seed=5, n=20, entailment="exact"
    )
    assert "n/a" in shown(study_tables(study))
    assert "nan" not in shown(study_tables(study))
    assert json.loads(to_json(study), parse_constant=pytest.fail)["methods"][0]["single"]["value"] is None
    assert not any(claim.holds for claim in study.claims if "correlates" in claim.statement)
    assert math.isnan(study.retrievers.rank.value)
    write_plots(study, tmp_path)
