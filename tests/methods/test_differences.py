"""The page on how we differ from the papers is made of the code that differs."""

from __future__ import annotations

from pathlib import Path

import pytest
from surerag.methods.differences import METHODS, page

import surerag

PAGE = Path(__file__).parents[2] / "docs" / "methods" / "differences.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "run python -m surerag.methods.differences > docs/methods/differences.md"
    )


@pytest.mark.parametrize("name", METHODS)
def test_every_option_that_differs_has_its_reason_and_no_other_has(name: str) -> None:
    method = METHODS[name]
    assert method.values().keys() == method.reasons.keys()


@pytest.mark.parametrize("name", METHODS)
def test_every_class_of_a_paper_has_every_variant_and_an_unset_option_for_each_rule(name: str) -> None:
    method = METHODS[name]
    for public in method.classes:
        options = getattr(surerag, public).OPTIONS
        for variant in method.variants:
            assert options["variant"].checked(variant) == variant
        known = [option for option in method.values() if option in options]
        assert known
        assert all(options[option].default is None for option in known)


@pytest.mark.parametrize(("option", "value"), [("top_n", 3), ("n_summaries", 1)])
def test_a_variant_is_in_force_where_nothing_else_is_set(option: str, value: int) -> None:
    papers = surerag.LazyRAGOptions(variant="paper")
    assert getattr(papers.rules, option) == value
    assert getattr(papers.with_options(**{option: 7}).rules, option) == 7
    assert surerag.DynQROptions(variant="paper").rules.top_n == 5
    assert surerag.DynQROptions().rules.top_n is None


def test_the_papers_number_of_passages_is_asked_for() -> None:
    asked: list[int | None] = []

    class Noting:
        def retrieve(self, query: str, k: int | None) -> list[surerag.Passage]:
            asked.append(k)
            return [surerag.Passage("Ada was born in Velm.")]

    reader = surerag.FakeReader(lambda prompt: "Velm")
    surerag.UncertaintyRewriter(reader, Noting(), variant="paper").run("Where was Ada born?")
    surerag.LazyRAG(reader, Noting(), mode="standard", variant="paper").run("Where was Ada born?")
    assert asked == [5, 3]
