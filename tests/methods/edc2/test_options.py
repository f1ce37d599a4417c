"""Variants, modes and options of the compressor, and what of them survives serialisation."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from surerag import ClusterCompressor, EDC2Options, FakeReader, FewShot, Passage, drivers
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, PromptError
from surerag.methods.edc2.algorithm import compress_clusters
from surerag.services import Services
from tests.methods.edc2.cases import ADA, BO, QUESTION, RIVER, compressor, passages


@pytest.mark.parametrize(
    ("variant", "mode", "n", "expected"),
    [
        ("default", "extract", 10, [3, 6, 1]),
        ("paper", "extract", 10, [3, 6, 1]),
        ("paper", "fact_check", 10, [1, 2, 4, 3]),
        ("paper", "fact_check", 12, [3, 6, 3]),
        ("official", "extract", 10, [2, 3, 5]),
        ("official", "extract", 12, [4, 7, 1]),
    ],
)
def test_variants_differ_in_sizes(variant: Any, mode: Any, n: int, expected: list[int]) -> None:
    tool, _ = compressor(lambda _: "Ada", variant=variant, mode=mode)
    result = tool.run(QUESTION, passages(*(f"{BO} {at}" for at in range(n))))
    assert [len(report.members) for report in result.clusters] == expected


def test_the_official_variant_takes_roots_by_rank_and_hears_nothing_in_a_question_mark() -> None:
    tool, _ = compressor(lambda _: "Where to? Ada was born in Velm.", variant="official")
    result = tool.run(QUESTION, passages(RIVER, BO, ADA))
    assert result.clusters[0].sources[0] == "p0"
    assert result.passages == ()
    explicit, _ = compressor(lambda _: "Where to? Ada.", variant="official", nothing="sentinel")
    assert explicit.run(QUESTION, passages(RIVER, BO, ADA)).passages


def test_modes_have_their_prompts_temperatures_and_examples() -> None:
    shot = FewShot("Who is {Bo}?", ("Bo is a sculptor.",), "Bo is a sculptor.")
    for mode, opening, temperature in (
        ("extract", "Question: Who is {Bo}?\nDocuments:\n[1] Bo is a sculptor.\nExtracted: ", 0.0),
        ("answer_with_evidence", "Question: Who is {Bo}?\nDocuments:\n[1] Bo is a sculptor.\nAnswer: ", 0.7),
        ("fact_check", "Statement: Who is {Bo}?\nDocuments:\n[1] Bo is a sculptor.\nExtracted: ", 0.0),
    ):
        tool, reader = compressor(mode=mode, examples=(shot,))
        tool.run(QUESTION, passages(ADA, BO))
        assert reader.prompts[0].startswith(opening)
        assert reader.history[0].sampling is not None
        assert reader.history[0].sampling.temperature == temperature
    assert compressor(mode="fact_check")[0].rules.guard == "off"


def test_settings_survive_json_and_pickle() -> None:
    tool, reader = compressor(
        first_cluster_size="auto", budget=50, variant="official", examples=(FewShot("q", ("d",), "r"),),
        prompts={"extract": "{examples}{question}|{passages}"},
    )  # fmt: skip
    plain = json.loads(json.dumps(tool.to_dict()))
    again = ClusterCompressor.from_dict(plain, reader=reader, encoder=tool.encoder)
    assert again.to_dict() == tool.to_dict()
    assert again.rules.first_cluster_size == "auto"
    assert (again.examples, again.prompts) == (tool.examples, tool.prompts)
    assert pickle.loads(pickle.dumps(tool)).to_dict() == tool.to_dict()
    assert copy.deepcopy(tool).to_dict() == tool.to_dict()
    with pytest.raises(ConfigurationError, match="unknown settings"):
        ClusterCompressor.from_dict({**plain, "shrink": 1}, reader=reader)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "shrink"}, "extract"),
        ({"variant": "mine"}, "official"),
        ({"first_cluster_size": 0}, "first_cluster_size must be at least 1"),
        ({"max_cluster_size": -1}, "max_cluster_size must be at least 0"),
        ({"budget": 0}, "budget"),
        ({"entailment_threshold": 0}, r"entailment_threshold must be in \(0, 1\]"),
        ({"clustering": "kmeans"}, "clustering"),
        ({"guard": "hope"}, "guard"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ClusterCompressor(FakeReader(), **settings)


def test_an_empty_question_and_a_prompt_without_its_slots_are_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        compressor()[0].run(" ", passages(ADA))
    with pytest.raises(PromptError, match="slots"):
        compressor(prompts={"extract": "{question}"})


def test_an_option_that_does_not_exist_is_refused_and_near_ones_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"no option 'budgett'\. Did you mean budget"):
        ClusterCompressor(FakeReader(), budgett=3)  # type: ignore[call-arg]  # what is refused
    with pytest.raises(ConfigurationError, match="max_cluster_size"):
        compressor()[0].with_options(cluster_size=3)
    with pytest.raises(PromptError, match="Did you mean extract"):
        compressor(prompts={"extrakt": "{question}"})


def test_a_copy_with_changes_is_in_force_and_the_first_one_stays_as_it_was() -> None:
    tool, reader = compressor()
    alone = tool.with_options(clustering="single", prompts={"extract": "{examples}{question}|{passages}"})
    given = passages(ADA, BO, RIVER)
    assert (tool.run(QUESTION, given).calls, alone.run(QUESTION, given).calls) == (1, 3)
    assert [prompt.startswith(f"{QUESTION}|") for prompt in reader.prompts] == [False, True, True, True]
    with pytest.raises(FrozenInstanceError):
        tool.budget = 3  # type: ignore[misc]  # what is refused


def test_results_come_one_by_one_in_order_and_cases_are_read_as_there_is_room() -> None:
    read: list[int] = []

    def cases() -> Iterator[tuple[str, list[Passage]]]:
        for at in range(40):
            read.append(at)
            yield f"{QUESTION} {at}", passages(ADA, BO)

    tool, _ = compressor()
    found = tool.iter_many(cases(), window=2)
    assert next(found).query == f"{QUESTION} 0"
    assert len(read) < 40
    assert [result.query for result in found] == [f"{QUESTION} {at}" for at in range(1, 40)]


def test_the_algorithm_needs_no_component() -> None:
    options = EDC2Options(pass_below=0)
    program = compress_clusters(QUESTION, passages(ADA, BO), options)
    services = Services(
        reader=FakeReader(["Ada was born in Velm. Ada died in Paris."]), encoder=HashingEncoder()
    )
    assert [kept.text for kept in drivers.run(program, services).passages] == ["Ada was born in Velm."]


def test_every_option_is_explained_once_and_shown_in_the_help_of_the_class() -> None:
    written = inspect.getdoc(EDC2Options) or ""
    shown = ClusterCompressor.__doc__ or ""
    for name in EDC2Options.OPTIONS:
        assert written.count(f"\n    {name}: ") == 1
        assert shown.count(f"\n    {name}: ") == 1
    assert shown.index("Example:") < shown.index("Options:")
