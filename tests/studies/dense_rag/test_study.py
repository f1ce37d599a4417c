"""The DENSE-RAG study: on a reader whose understanding is known, it finds what is there."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from surerag.encoders import HashingEncoder
from surerag.evaluation.serialise import to_json
from surerag.readers.scripted import ScriptedReader
from surerag.world import World
from surerag_studies.dense_rag import dense_study
from surerag_studies.dense_rag.asking import FULL, VARIANTS
from surerag_studies.dense_rag.results import DenseStudy
from surerag_studies.dense_rag.tables import study_tables
from tests.studies.dense_rag.truthful import LOCAL, truthful
from tests.studies.showing import numbers, shown

WORLD = World(seed=5, size=60)
N = 32


def made(reader: ScriptedReader, **options: Any) -> DenseStudy:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("surerag_studies.dense_rag.study.world_of", lambda regime, n, seed: WORLD)
        return dense_study(reader, HashingEncoder(), seed=5, n=N, entailment="exact", **options)


@pytest.fixture(scope="module")
def study() -> DenseStudy:
    return made(truthful(WORLD, N))


def test_who_understands_is_certain_and_right_and_who_guesses_is_neither(study: DenseStudy) -> None:
    assert (study.seed, study.n, study.entailment) == (5, N, "exact")
    for one in study.measured:
        assert one.gap is not None
        assert one.gap.certain.value > 0.95
        assert one.gap.uncertain.value < 0.4
        assert one.trend.correlation.high < -0.5
        assert one.trend.p < 1e-4
        values = [row.accuracy.value for row in one.intervals]
        assert values[0] > max(values[1:])
        assert abs(one.rephrased.value) < 0.2
    assert [one.k for one in study.measured] == [5, 10]
    assert study.sameness.in_one_batch == study.sameness.in_mixed_batches == study.sameness.prompts > 20


def test_diagnosis_says_what_is_known_of_this_reader(study: DenseStudy) -> None:
    found = {(row.about, row.what): row.share for row in study.diagnosis}

    def value(about: str, what: str) -> float | None:
        share = found[about, what]
        return None if share is None else share.value

    assert value("reader", "right where the context tells all") == 1.0
    assert value("reader", "right where it knows by heart") == 1.0
    assert value("reader", "uncertain where the context tells all") == 0.0
    assert value("reader", "uncertain where it does not") > 0.8  # type: ignore[operator]
    assert value("rephraser", "what is needed survives it") == 1.0
    assert value("self-evaluation", "says enough where it is") in (None, 1.0)
    assert value("self-evaluation", "says enough where it is not") == 0.0
    assert value("judge", "finds entailment between different answers") == 0.0
    order = ["in the first context", "in what was retrieved", "in the documents behind it"]
    shares = [next(row.share for row in study.diagnosis if row.what.endswith(end)) for end in order]
    assert [one.value for one in shares if one] == sorted(one.value for one in shares if one)
    assert value("choice", "some context gave the right answer") >= value("choice", "the kept one did")  # type: ignore[operator]


def test_tables_one_three_and_four_are_about_the_same_answers(study: DenseStudy) -> None:
    methods = {row.name: row for row in study.methods}
    cuts = {row.name: row for row in study.cuts}
    assert list(methods) == ["plain", "ranked anew", "chunked", *VARIANTS]
    assert {row.accuracy.n for row in study.methods} == {study.uncertain}
    assert methods["plain"].accuracy == cuts["as retrieved"].uncertain == study.measured[0].gap.uncertain  # type: ignore[union-attr]
    assert methods["chunked"].accuracy == cuts["semantic"].uncertain == cuts["adaptive"].uncertain
    assert methods["ranked anew"].accuracy == cuts["ranked anew"].uncertain
    assert cuts["adaptive"].certain == cuts["as retrieved"].certain
    assert cuts["adaptive"].on_certain.value == 0.0  # type: ignore[union-attr]
    assert sum(count for _, count in study.stops) == study.uncertain
    # This reader judges itself truly: what it calls enough is right, and refinement keeps it.
    assert methods[FULL].accuracy.value >= methods["plain"].accuracy.value
    pairs = [(row.name, one.other) for row in study.methods for one in row.against]
    assert (FULL, "plain") in pairs
    assert {(name, FULL) for name in VARIANTS if name != FULL} <= set(pairs)
    for row in study.methods:
        for one in row.against:
            assert (one.gained - one.lost) / study.uncertain == pytest.approx(one.difference.value)
            assert one.p <= one.p_corrected <= 1


def test_nothing_is_asked_twice_and_progress_is_told(study: DenseStudy) -> None:
    reader = truthful(WORLD, N)
    told: dict[str, list[tuple[int, int | None]]] = {}

    def stages(name: str) -> Any:
        rows = told.setdefault(name, [])
        return lambda done, total: rows.append((done, total))

    found = made(reader, stages=stages)
    assert {name: rows[-1] for name, rows in told.items() if "k =" in name} == {
        "DENSE, k = 5": (N, N),
        "DENSE, k = 10": (N, N),
    }
    assert told[FULL][-1] == (found.uncertain, found.uncertain)
    asked = sum(cost.prompts for cost in found.costs)
    assert [cost.stage for cost in found.costs][:3] == ["retrieval", "DENSE, k = 5", "DENSE, k = 10"]
    # Beside these: pairs that the reader is tried on as a judge, and the check of batches, three times each.
    everything = sum(len(call.prompts) for call in reader.history)
    assert everything == asked + N + 3 * found.sameness.prompts
    first, second = (json.loads(to_json(one)) for one in (found, study))
    for one in (first, second):
        for cost in one["costs"]:
            cost.pop("seconds")
    assert first == second


def test_every_number_shown_is_in_the_json_and_tables_fit(study: DenseStudy) -> None:
    text = shown(study_tables(study))
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text.replace("… in", "").replace("… by", "")
    assert "nan" not in text
    stored = numbers(json.loads(to_json(study)))
    known = {f"{abs(number) * scale:.{d}f}" for number in stored for scale in (1, 100) for d in range(4)}
    known |= {f"{number:g}" for number in stored} | {f"{number:.1e}" for number in stored}
    body = re.sub(
        r"\(form\s+of[^)]*\)|\(Figure \d\)|\(Tables? [^)]*\)|section\s+6\.2|\(512[^)]*\)|\(0\.6[^)]*\)",
        "",
        text,
    )
    tokens = re.findall(r"\d+(?:\.\d+)?(?:e-\d+)?", body.replace(",", ""))
    # Fixed words of the tables: ends of intervals, lengths of lists.
    fixed = {f"{0.2 * at:g}" for at in range(9)} | {str(len(one.thresholds)) for one in study.measured}
    allowed = known | fixed | {str(at) for at in range(40)}
    assert [token for token in tokens if token not in allowed] == []


def test_a_reader_that_always_says_the_same_is_certain_of_everything() -> None:
    reader = ScriptedReader(
        lambda prompt: "It is so." if prompt.startswith("Rewrite") else "nobody", capabilities=LOCAL
    )
    found = made(reader)
    assert (found.uncertain, found.methods, found.stops) == (0, (), ())
    assert found.measured[0].gap is None
    assert not any(claim.holds for claim in found.claims if "falls" in claim.statement)
    text = shown(study_tables(found))
    assert "nan" not in text
    json.loads(to_json(found), parse_constant=pytest.fail)
