"""Pipelines by name."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from surerag import ClusterCompressor, FakeReader, LazyRAG, Passage
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.evaluation import Question, evaluate
from surerag.evaluation.findings import search_share
from surerag.evaluation.pipelines import NAMES, PipelineSetup, build_system
from surerag.evaluation.systems import as_system
from surerag.methods.lazy_rag.component import FixedSummary

PASSAGES = [
    Passage(
        "Ada was born in Velm, a town by the river Orun, in a cold spring. " + "It rained. " * 20, id="a"
    ),
    Passage("Bo wrote a long book about the birds of the northern hills of Tarn.", id="b"),
]


class Words:
    """Finds the passages that share most words with the query."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        words = set(query.lower().split())
        return sorted(PASSAGES, key=lambda passage: -len(words & set(passage.text.lower().split())))[:k]


def reply(prompt: str) -> str:
    return "Velm" if "Velm" in prompt else "I cannot say"


@pytest.fixture
def setup() -> PipelineSetup:
    summary = FixedSummary("A town by a river.")
    reader = FakeReader(reply, entropy=2.0)
    return PipelineSetup(reader, Words(), summary, HashingEncoder(), top_n=1, max_tokens=16)


@pytest.mark.parametrize(
    "name", [*NAMES, "lazy+compressed", "lazy@inf", "rewritten@-inf+compressed", "lazy+refined"]
)
def test_every_name_answers_a_question(name: str, setup: PipelineSetup) -> None:
    questions = [Question("Where was Ada born?", ("Velm",), (PASSAGES[0].text,))]
    run = evaluate({name: build_system(name, setup)}, questions)
    [row] = run.rows
    share = search_share(run, name)
    assert share is not None and share.value == (name not in ("none", "oracle", "lazy@inf"))
    assert row.answer is not None and row.error == "", row.error
    assert row.answer.usage is not None and row.answer.usage.requests >= 1
    expected = "I cannot say" if name in ("none", "lazy@inf") else "Velm"
    assert row.answer.text == expected
    assert row.answer.acted == {"lazy": True, "strong": True, "lazy@inf": False}.get(name, row.answer.acted)


def test_costs_of_a_further_step_are_counted(setup: PipelineSetup) -> None:
    systems = {name: build_system(name, setup) for name in ("plain", "plain+compressed")}
    plain, compressed = evaluate(systems, ["Where was Ada born?"]).rows
    assert plain.answer and compressed.answer and plain.answer.usage and compressed.answer.usage
    assert compressed.answer.usage.requests > plain.answer.usage.requests == 1


def test_the_most_relevant_of_more_passages_are_selected(setup: PipelineSetup) -> None:
    def answer(prompt: str) -> str:
        if prompt.startswith("Passage: "):
            return "Yes" if "Velm" in prompt else "No"
        return reply(prompt)

    system = build_system("selected", replace(setup, reader=FakeReader(answer)))
    [row] = evaluate({"selected": system}, ["Where was Ada born?"]).rows
    assert row.answer is not None
    assert len(row.answer.contexts) == 1
    assert row.answer.usage is not None
    assert row.answer.usage.requests == 1 + min(3, len(PASSAGES))


def test_clusters_answer_and_one_answer_is_selected(setup: PipelineSetup) -> None:
    """EDC²-RAG, appendix C.2, with its last step."""

    def answer(prompt: str) -> str:
        if prompt.startswith("Compare the candidate"):
            return "Reasoning: both say so.\nSelected answer: Velm"
        return 'Velm, for "Ada was born in Velm".' if "Velm" in prompt else "None."

    reader = FakeReader(answer)
    system = build_system("answered", replace(setup, reader=reader, top_n=2))
    [row] = evaluate({"answered": system}, ["Where was Ada born?"]).rows
    assert row.answer is not None and row.answer.text == "Velm", row.error
    assert row.answer.usage is not None and row.answer.usage.requests == 2
    assert system.settings["task"] == "answer"
    assert 'Candidate answers:\n[1] Velm, for "Ada was born in Velm".\nQuestion: ' in reader.prompts[-1]
    bare = FakeReader(
        lambda prompt: (
            "yes" if prompt.startswith("Compare") else "Yes." if "Velm" in prompt else 'No: "Bo was a king".'
        )
    )
    parted = replace(setup, reader=bare, options={"answered": {"first_cluster_size": 1}})
    evaluate({"answered": build_system("answered", parted)}, ["Were both born in Velm?"])
    assert "Candidate answers:\n[1] Yes.\nQuestion: " in bare.prompts[-1]  # no passage is a candidate
    nothing = FakeReader(lambda prompt: "Tarn" if prompt.startswith("Context:") else "None.")
    own = replace(setup, reader=nothing, options={"answered": {"first_cluster_size": 1}})
    [row] = evaluate({"answered": build_system("answered", own)}, ["Where was Ada born?"]).rows
    assert row.answer is not None and row.answer.text == "Tarn" and row.answer.contexts == (PASSAGES[0].text,)


def test_the_oracle_needs_contexts(setup: PipelineSetup) -> None:
    [row] = evaluate({"oracle": build_system("oracle", setup)}, ["Where?"]).rows
    assert "needs contexts for every question" in row.error


def test_a_component_that_does_not_answer_is_refused(setup: PipelineSetup) -> None:
    with pytest.raises(ConfigurationError, match="a ClusterCompressor, which cannot answer questions"):
        as_system("compressor", ClusterCompressor(setup.reader, setup.encoder))


@pytest.mark.parametrize(
    "name",
    (
        "lasy, lazy+plain, plain@0, plain@1.5, plain@1e30, plain@1_0, plain@٣, plain@, selected@4, "
        "lazy@x, lazy@nan, none+compressed, "
    ).split(", "),
)
def test_unknown_names_are_refused(name: str, setup: PipelineSetup) -> None:
    with pytest.raises(ConfigurationError):
        build_system(name, setup)


@pytest.mark.parametrize(
    ("reader", "gate"),
    [
        (FakeReader(reply, entropy=0.1), "entropy"),
        (FakeReader(reply, entropy=None), "margin"),
        (FakeReader(reply, entropy=None, logprob=None), "abstention"),
    ],
)
def test_the_gate_is_one_that_the_reader_can_serve(
    reader: FakeReader, gate: str, setup: PipelineSetup
) -> None:
    system = build_system("lazy", replace(setup, reader=reader))
    assert system.settings["gate"] == gate
    assert build_system("rewritten", replace(setup, reader=reader)).settings["metric"]


def test_options_reach_each_method_and_a_threshold_in_a_name_comes_first(
    setup: PipelineSetup,
) -> None:
    options: dict[str, dict[str, Any]] = {
        "lazy": {"gate": "margin", "n_tokens": 3, "threshold": 0.1},
        "rewritten": {"n_candidates": 2},
        "compressed": {"prompts": {"extract": "{passages}\n{question}"}},
        "refined": {"max_rounds": 1},
    }
    own = replace(setup, options=options)
    lazy = build_system("lazy", own).settings
    assert (lazy["gate"], lazy["n_tokens"], lazy["threshold"]) == ("margin", 3, 0.1)
    assert build_system("lazy@0.8", own).settings["threshold"] == 0.8
    assert build_system("rewritten", own).settings["n_candidates"] == 2
    steps = build_system("lazy+compressed+refined", own).settings
    assert steps["compressed"]["prompts"]["extract"] == options["compressed"]["prompts"]["extract"]
    assert steps["refined"]["max_rounds"] == 1
    with pytest.raises(ConfigurationError, match="n_tokens"):
        build_system("lazy", replace(setup, options={"lazy": {"n_token": 3}}))
    with pytest.raises(ConfigurationError, match="plain"):
        replace(setup, options={"plain": {}})


def test_settings_tell_changed_systems_apart(setup: PipelineSetup) -> None:
    assert build_system("lazy", setup).fingerprint == build_system("lazy", setup).fingerprint
    changes: list[dict[str, Any]] = [{"top_n": 2}, {"reader": FakeReader(reply, name="other")}]
    for change in changes:
        for name in ("plain", "lazy", "rewritten", "compressed"):
            changed = build_system(name, replace(setup, **change))
            assert changed.fingerprint != build_system(name, setup).fingerprint
    source = "lambda q: [w for w in q.split() if w in {'a', 'b', 'c'}]"
    assert as_system("f", eval(source)).fingerprint == as_system("f", eval(source)).fingerprint

    def first(n: int) -> Any:
        return lambda question: question[:n]

    assert as_system("f", first(1)).fingerprint != as_system("f", first(2)).fingerprint
    assert as_system("f", lambda q: "a").fingerprint != as_system("f", lambda q: "b").fingerprint
    rag = LazyRAG(setup.reader, setup.retriever, "A summary.")
    ends = {as_system("rag", rag.with_options(threshold=end)).fingerprint for end in (math.inf, -math.inf)}
    assert len(ends) == 2
    assert (
        LazyRAG.from_dict(
            rag.with_options(threshold=math.inf).to_dict(),
            reader=setup.reader,
            retriever=setup.retriever,
            summaries="A summary.",
        ).threshold
        == math.inf
    )
