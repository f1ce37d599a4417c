"""Variants, modes and settings of the compressor, and what of them survives being written down."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
from dataclasses import fields
from typing import Any

import pytest

from surerag import ClusterCompressor, ScriptedReader
from surerag.errors import ConfigurationError, InputError, PromptError
from surerag.methods.compression_options import CompressorOptions
from surerag.methods.compression_types import CompressionPrompts, FewShot
from surerag.prompts import PromptTemplate
from tests.methods.compression_cases import ADA, BO, QUESTION, RIVER, compressor, passages


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
    assert compressor(mode="fact_check")[0].settings_for("fact_check").guard == "off"


def test_settings_survive_json_and_pickle() -> None:
    tool, reader = compressor(
        tau="auto", budget=50, variant="official", examples=(FewShot("q", ("d",), "r"),),
        prompts=CompressionPrompts(extract=PromptTemplate("extract", "{examples}{question}|{passages}")),
    )  # fmt: skip
    plain = json.loads(json.dumps(tool.to_dict()))
    again = ClusterCompressor.from_dict(plain, reader=reader, encoder=tool.encoder)
    assert again.to_dict() == tool.to_dict()
    assert again.settings_for("extract").tau_for(5) == 1
    assert pickle.loads(pickle.dumps(tool)).to_dict() == tool.to_dict()
    assert copy.deepcopy(tool).to_dict() == tool.to_dict()
    with pytest.raises(ConfigurationError, match="unknown settings"):
        ClusterCompressor.from_dict({**plain, "shrink": 1}, reader=reader)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "shrink"}, "extract"),
        ({"variant": "mine"}, "official"),
        ({"tau": 0}, "tau"),
        ({"cap": -1}, "cap"),
        ({"budget": 0}, "budget"),
        ({"support": 0}, "support"),
        ({"clustering": "kmeans"}, "clustering"),
        ({"guard": "hope"}, "guard"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ClusterCompressor(ScriptedReader(), **settings)


def test_an_empty_question_and_a_prompt_without_its_slots_are_refused() -> None:
    with pytest.raises(InputError, match="empty"):
        compressor()[0].run(" ", passages(ADA))
    with pytest.raises(PromptError, match="slots"):
        CompressionPrompts(extract=PromptTemplate("extract", "{question}"))


def test_every_setting_is_explained_once_and_shown_in_the_help_of_the_class() -> None:
    written = inspect.getdoc(CompressorOptions) or ""
    shown = ClusterCompressor.__doc__ or ""
    for item in fields(CompressorOptions):
        assert written.count(f"\n    {item.name}: ") == 1
        assert shown.count(f"\n    {item.name}: ") == 1
    assert shown.index("Example:") < shown.index("Settings:")
