"""Systems compared on a reader whose beliefs can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from surerag import Passage, ScriptedReader, SePer
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.evaluation.comparison import Question, at_k, compare_contexts, items_in, then
from surerag.evaluation.comparison.plots import write_plots
from surerag.evaluation.comparison.report import render_comparison
from surerag.retrieval import PassageIndex
from tests.evaluation.noting import NotingReader

TOWNS = {"Ada": "Velm", "Bo": "Orun", "Cy": "Toren", "Di": "Sarl"}
QUESTIONS = [Question(f"Where was {name} born?", [town]) for name, town in TOWNS.items()]


def told(prompt: str) -> str:
    """Answer from a sentence of the prompt; from memory, Ada's town only."""
    name = prompt.split("was ")[-1].split()[0]
    return TOWNS[name] if f"{name} comes from" in prompt or name == "Ada" else "Nowhere"


def fact(question: str) -> list[str]:
    name = question.split()[2]
    return [f"{name} comes from {TOWNS[name]}."]


def seper(**settings: Any) -> SePer:
    return SePer(ScriptedReader(told), ExactEntailer(), **{"n_samples": 3, **settings})


def test_means_tests_and_order_by_hand() -> None:
    found = compare_contexts(
        {"noise": lambda _: ["Boats."], "fact": fact, "nothing": lambda _: []}, QUESTIONS, seper()
    )
    # Ada's town is known by heart: for her, the fact is worth nothing. For the three others, it is all.
    assert [(row.system, row.delta.value) for row in found.systems] == [
        ("fact", 0.75), ("noise", 0.0), ("nothing", 0.0),
    ]  # fmt: skip
    best = found["fact"]
    assert (best.n, best.before, best.after, best.helped.count, best.harmed.count) == (4, 0.25, 1.0, 3, 0)
    assert (found["nothing"].empty, found["nothing"].before) == (4, None)
    # Three differences of 1: two of eight choices of signs are as far from 0; three tests.
    assert [(t.first, t.second, t.p, t.p_holm) for t in found.tests][:2] == [
        ("fact", "noise", 0.25, 0.75), ("fact", "nothing", 0.25, 0.75),
    ]  # fmt: skip
    assert found.tests[2].p_holm == 1.0
    assert not any(test.significant for test in found.tests)
    assert [n for n in best.histogram if n] == [1, 3]


def test_samples_that_were_cut_are_counted_and_told() -> None:
    long = SePer(ScriptedReader(lambda prompt: f"In {told(prompt)}, that is"), ExactEntailer(), n_samples=3)
    found = compare_contexts(
        {"fact": fact, "nothing": lambda _: []}, QUESTIONS, long.with_options(max_tokens=2)
    )
    assert (found["fact"].truncated, found["nothing"].truncated) == (24, 0)
    told_so = "24 samples, of 4 of 8 questions, were cut at 2 tokens (max_tokens)"
    assert told_so in found.cut_short()
    assert told_so in found.explain()
    assert "cut" not in compare_contexts({"fact": fact}, QUESTIONS, long).explain()


def test_belief_without_context_and_shared_contexts_are_asked_once() -> None:
    reader = NotingReader()
    same = [f"note {number}" for number in range(2)]
    systems = {"a": lambda _: same, "b": lambda _: list(same), "c": lambda _: same[:1]}
    compare_contexts(systems, QUESTIONS, SePer(reader, ExactEntailer()))
    assert len(reader.asked) == len(set(reader.asked)) == 3 * len(QUESTIONS)


@pytest.mark.parametrize("local", [True, False])
def test_a_local_model_and_a_server_give_the_same(tmp_path: Path, local: bool) -> None:
    systems = {"fact": fact, "noise": lambda _: ["Boats in Velm."]}
    plain = compare_contexts(systems, QUESTIONS, SePer(NotingReader(), ExactEntailer()))
    other = compare_contexts(systems, QUESTIONS, SePer(NotingReader(local=local), ExactEntailer()), window=3)
    assert plain == other
    direct = SePer(NotingReader(), ExactEntailer()).run(
        *QUESTIONS[1][:2], [Passage(fact(QUESTIONS[1].text)[0])]
    )
    kept = compare_contexts(
        systems, QUESTIONS, SePer(NotingReader(local=local), ExactEntailer()), folder=tmp_path
    )
    assert kept == plain
    assert next(item for item in items_in(tmp_path) if item.id == QUESTIONS[1].text).delta == direct.delta


def test_retrievers_values_of_k_rerankers_and_compressors() -> None:
    passages = [Passage(f"{name} comes from {town}.", id=name) for name, town in TOWNS.items()]
    index = PassageIndex.from_passages([*passages, Passage("Boats lie there.")], HashingEncoder())

    def prefer(question: str, found: Any) -> list[Passage]:
        return sorted(found, key=lambda passage: passage.id not in question)

    systems = {
        "index": index,
        "k = 1": at_k(index, 1),
        "reranked": then(at_k(index, 5), prefer, lambda _, found: found[:1]),
        "cut": then(at_k(index, 5), lambda _, found: [passage.text[:3] for passage in found]),
    }
    found = compare_contexts(systems, QUESTIONS, seper(), k=5)
    assert found["index"].delta.value == found["reranked"].delta.value == 0.75
    assert found["cut"].delta.value == 0.0
    assert found["reranked"].prompt_tokens < found["index"].prompt_tokens


def test_workflows_are_measured_after_each_step() -> None:
    def workflow(question: str) -> list[list[str]]:
        return [["Boats."], ["Boats.", *fact(question)]] if "Cy" not in question else [["Boats."]]

    row = compare_contexts({"workflow": workflow}, QUESTIONS, seper()).systems[0]
    assert [step.value for step in row.steps] == [0.0, 0.5]
    assert row.delta.value == 0.5


def test_a_baseline_means_fewer_tests() -> None:
    systems = {name: (lambda _: ["Boats."]) for name in "abcd"}
    assert len(compare_contexts(systems, QUESTIONS, seper()).tests) == 6
    found = compare_contexts(systems, QUESTIONS, seper(), baseline="c", test="wilcoxon")
    assert len(found.tests) == 3
    assert all("c" in (test.first, test.second) for test in found.tests)
    with pytest.raises(ConfigurationError, match="none of the systems"):
        compare_contexts(systems, QUESTIONS, seper(), baseline="e")


def test_single_failures_are_listed_and_a_dead_reader_is_raised() -> None:
    def ill(prompt: str) -> Any:
        return ServiceError("too long") if "Bo comes" in prompt else told(prompt)

    found = compare_contexts({"fact": fact}, QUESTIONS, SePer(ScriptedReader(ill), ExactEntailer()))
    assert (found["fact"].n, found["fact"].failed) == (3, 1)
    assert found.failures[0].error == "ServiceError: too long"
    with pytest.raises(ServiceError, match="gone"):
        compare_contexts(
            {"fact": fact}, QUESTIONS, SePer(ScriptedReader(lambda _: ServiceError("gone")), ExactEntailer())
        )


@pytest.mark.parametrize(
    ("systems", "questions", "words"),
    [
        ({}, QUESTIONS, "0 systems"),
        ({"a": fact}, [], "0 questions"),
        ({"a": 3}, QUESTIONS, "neither a function nor a retriever"),
        ({"a": lambda _: "text"}, QUESTIONS, "'a' found"),
        ({"a": lambda _: [["x"], "y"]}, QUESTIONS, "'a' found"),
        ({"a": fact}, [Question("Where was Ada born?", [])], "gold answers"),
        ({"a": fact}, [Question("Where was Ada born?", "Velm")], "gold answers"),
        ({"a": fact}, [QUESTIONS[0], QUESTIONS[0]], "two questions have the id"),
    ],
)
def test_wrong_input_is_named(systems: Any, questions: Any, words: str) -> None:
    with pytest.raises((InputError, ConfigurationError), match=words):
        compare_contexts(systems, questions, seper())


def test_a_folder_keeps_the_answers_of_a_comparison(tmp_path: Path) -> None:
    first, second = NotingReader(), NotingReader()
    found = compare_contexts({"fact": fact}, QUESTIONS, SePer(first, ExactEntailer()), folder=tmp_path / "j")
    again = compare_contexts({"fact": fact}, QUESTIONS, SePer(second, ExactEntailer()), folder=tmp_path / "j")
    assert found == again
    assert second.asked == []
    with pytest.raises(ConfigurationError, match="seed was 0 and is 1"):
        compare_contexts(
            {"fact": fact}, QUESTIONS, SePer(second, ExactEntailer(), seed=1), folder=tmp_path / "j"
        )


def test_what_measuring_cost_is_told_each_answer_once(tmp_path: Path) -> None:
    held = compare_contexts({"a": fact, "b": fact}, QUESTIONS, seper())
    # Both systems find the same: a closed book and one context for each question, three samples of each.
    assert held.costs is not None and held.costs.calls == 4 * 2 * 3
    assert held.costs.prompt_tokens > 0 and held.costs.completion_tokens > 0 and held.costs.seconds > 0
    kept = [compare_contexts({"a": fact, "b": fact}, QUESTIONS, seper(), folder=tmp_path) for _ in range(2)]
    # Costs are compared without their seconds; the second time nothing was asked.
    assert kept[0].costs == kept[1].costs == held.costs


def test_json_text_figures_and_page(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script> {{ 7*7 }} $x_1$"
    found = compare_contexts({evil: lambda _: [evil], "fact": fact}, QUESTIONS, seper())
    stored = json.loads(found.to_json())
    assert [row["delta"]["value"] for row in stored["systems"]] == [0.75, 0.0]
    assert [sum(row["histogram"]) for row in stored["systems"]] == [4, 4]
    assert found.explain().splitlines()[1].endswith("n = 4")
    files = write_plots(found, tmp_path)
    assert [file.name for file in files] == ["distribution.svg", "systems.svg"]
    before = [file.read_bytes() for file in files]
    assert [file.read_bytes() for file in write_plots(found, tmp_path)] == before
    page = render_comparison(found, title="t", lead=evil, figures=files, footer=evil)
    assert "<script>" not in page
    assert "{{ 7*7 }}" in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
