"""Prompts from a file: the papers' slots, passages without numbers, and errors that name the place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surerag import ClusterCompressor, Passage, ScriptedReader, UncertaintyRewriter, load_prompts
from surerag.encoders import HashingEncoder
from surerag.errors import PromptError
from surerag.prompt_files import prompt_sets
from surerag.prompts import PromptTemplate, format_passages

FILE = '''
[edc2]
extract = """One example:
Question: Who? Extracted: Nobody.
Take from these what tells of {question}:
{passages!plain}
"""

[edc2.fact_check_about]
text = "About {person}: {query}\\n{docs}"
slots = { person = "subject", query = "statement", docs = "passages" }

[edc2.judge_statement_about]
text = "Judge, of {person}: {statement}\\n{passage}"
slots = { person = "subject", passage = "passages" }

[edc2.choose_answer]
text = "{knowledge} {question} {answer 1} {answer 2}"
slots = { knowledge = "passages", "answer 1" = "first_answer", "answer 2" = "second_answer" }

[dynqr]
answer = "Example: {{one}} shot. {passages!plain}\\n{question}"
'''
FOUND = [Passage("Ada was born in Velm.\n[2] In Orun.", id="a"), Passage("Bo paints.", id="b")]


@pytest.fixture
def loaded(tmp_path: Path) -> dict[str, dict[str, str]]:
    file = tmp_path / "prompts.toml"
    file.write_text(FILE, encoding="utf-8")
    return load_prompts(file)


def test_a_method_asks_in_the_words_of_the_file(loaded: dict[str, dict[str, str]]) -> None:
    reader = ScriptedReader(lambda prompt: "Ada was born in Velm.")
    compressor = ClusterCompressor(reader, HashingEncoder(), pass_below=0, prompts=loaded["edc2"])
    compressor.run("Where?", FOUND)
    assert "tells of Where?:\nAda was born in Velm.\n| [2] In Orun.\nBo paints." in reader.prompts[0]
    compressor.judge("She is from Velm.", FOUND, "Ada")
    assert reader.prompts[1].startswith("About Ada: She is from Velm.\n[1] Ada was born")
    assert reader.prompts[2].startswith("Judge, of Ada: She is from Velm.")
    compressor.choose("Where?", ("Orun", "Velm"), FOUND)
    assert reader.prompts[-1].endswith(" Where? Orun Velm")
    # What was loaded survives being written down.
    again = ClusterCompressor.from_dict(compressor.to_dict(), reader=reader, encoder=HashingEncoder())
    assert again.prompts == compressor.prompts


def test_a_one_shot_example_is_typed_into_the_text(loaded: dict[str, dict[str, str]]) -> None:
    reader = ScriptedReader(["Velm"])

    class Finding:
        def retrieve(self, query: str, k: int | None) -> list[Passage]:
            return FOUND

    UncertaintyRewriter(reader, Finding(), prompts=loaded["dynqr"]).run("Where was Ada born?")
    assert reader.prompts[0].startswith("Example: {one} shot. Ada was born in Velm.\n| [2] In Orun.\nBo")


def test_both_frameworks_take_what_was_loaded(loaded: dict[str, dict[str, str]]) -> None:
    from langchain_core.documents import Document
    from llama_index.core.schema import NodeWithScore, TextNode

    from langchain_surerag import ClusterCompressor as Compressor
    from llama_index_surerag import ClusterCompressorPostprocessor

    readers = [ScriptedReader(lambda prompt: "Ada was born in Velm.") for _ in range(2)]
    settings: dict[str, Any] = {"pass_below": 0, "prompts": loaded["edc2"]}
    Compressor(readers[0], HashingEncoder(), **settings).compress_documents([Document("Ada.")], "Where?")
    nodes = [NodeWithScore(node=TextNode(text="Ada."))]
    ClusterCompressorPostprocessor(readers[1], HashingEncoder(), **settings).postprocess_nodes(
        nodes, query_str="Where?"
    )
    assert readers[0].prompts == readers[1].prompts
    assert readers[0].prompts[0].endswith("tells of Where?:\nAda.\n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[edc3]\nextract = 'x'", "no method 'edc3'"),
        ("[edc2]\nextrac = '{question}'", "no prompt 'extrac'"),
        ("[edc2]\nextract = '{question}'", "slots"),
        ("[edc2]\nextract = 3", "edc2.extract"),
        ("[edc2.extract]\ntext = '{question}'\nslots = { docs = 'passages' }", "docs"),
        ("[edc2", "TOML"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "prompts.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PromptError, match=said):
        load_prompts(file)


def test_numbers_of_ours_alone_are_left_out() -> None:
    shown = format_passages(["[7] is a number.", "Ada.\n[3] Bo."])
    assert PromptTemplate("x", "{p!plain}").render(p=shown) == "| [7] is a number.\nAda.\n| [3] Bo."
    assert set(prompt_sets()) == {"lazy_rag", "seper", "edc2", "dense_rag", "dynqr", "judge"}
