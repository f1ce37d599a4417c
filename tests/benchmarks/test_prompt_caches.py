"""What the page on prompt caches says is what is measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.prompt_caches import Case, answering, cases, common, measured, table
from surerag import LazyRAG, Passage, ScriptedReader

PAGE = Path(__file__).parents[2] / "docs" / "prompt-caches.md"


def test_the_pages_table_is_what_is_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [line for line in table(30, 0) if line not in page] == []


def test_shares_are_of_what_prompts_begin_with() -> None:
    [case] = cases(1, seed=3)

    def same_twice(reader: ScriptedReader, case: Case, question: str) -> list[Passage]:
        for _ in range(2):
            LazyRAG(reader, mode="none").run(question)
        return case.passages

    row = measured(same_twice, case)
    assert (row.prompts, row.in_turn, row.at_once) == (2, 0.5, 0.5)
    assert 0 < row.again < 1
    assert common("abc", "abd") == 2
    assert common("ab", "abd") == 2
    assert answering("Rewrite the query. Query: Who?") == "What is known of Who?"
