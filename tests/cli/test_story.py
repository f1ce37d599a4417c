"""One question told: by rule, truthfully, and on any width."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from surerag import LazyRAG, Passage
from surerag.cli.display import Stages
from surerag.cli.frameworks import PACKAGES, require_all
from surerag.cli.story_view import story_view
from surerag.cli.telling import Cast, Known, tell
from surerag.cli.world_demo import world_story
from surerag.encoders import HashingEncoder
from surerag.errors import MissingExtraError
from surerag.evaluation.page import render_page
from surerag.evaluation.story import Chapter, Line, Story
from surerag.readers.scripted import ScriptedReader, reply
from surerag.retrieval import PassageIndex
from surerag.types import Generation
from surerag.world import World, embedded_reader
from surerag.world.tiers import index_world

BOAT = Passage("Ada keeps her boat on the Orun.", id="boat", metadata={"part": "lead"})
BORN = Passage("Ada was born in Velm.", id="born", metadata={"part": "lead"})
OTHERS = [Passage("It is kept where bread is.", id="x"), Passage("Where it is dry honey is kept.", id="y")]
KNOWN = Known("Orun", lambda answer: "Orun" in answer)


def unsure_until_rewritten(prompt: str) -> Generation:
    if prompt.startswith("Rewrite the query"):
        return reply("Ada's boat on the Orun?")
    if prompt.startswith("Rewrite the text"):
        return reply(f"In other words: {prompt.rsplit(': ', 1)[1]}")
    if prompt.startswith("Extract"):
        return reply("Ada keeps her boat on the Orun.")
    if "entail" in prompt:
        return reply("entailment")
    if "boat" in prompt:
        return reply("the Orun", entropy=0.1, logprobs=-0.01)
    return reply("Tarn", entropy=2.0, logprobs=-2.0)


@pytest.fixture
def cast() -> Cast:
    encoder = HashingEncoder()
    index = PassageIndex.from_passages([BOAT, BORN, *OTHERS], encoder)
    rag = LazyRAG(ScriptedReader(unsure_until_rewritten), index, index, n_summaries=1, top_n=2)
    return Cast.of(rag, index, encoder, n_samples=2)


@pytest.fixture
def story(cast: Cast) -> Story:
    return tell(cast, cast.rag.run("Where is it kept?"), None, KNOWN, chosen="The only one.")


def test_all_five_methods_are_told_and_judged(story: Story) -> None:
    assert [one.method for one in story.chapters] == [
        "L-RAG", "DENSE-RAG", "DynQR", "DENSE-RAG", "EDC²-RAG", "SePer",
    ]  # fmt: skip
    lazy, _, rewriting, _, compressed, worth = story.chapters
    assert Line("First answer", "Tarn (wrong)", "bad") in lazy.lines
    assert "about as unsure as between 7.4 equally likely words" in lazy.lines[2].text
    assert lazy.means.endswith("that did not help: the answer is still wrong.")
    assert Line("Rewrite", "Ada's boat on the Orun?") in rewriting.lines
    assert Line("Answer after", "the Orun (right)", "good") in rewriting.lines
    assert compressed.means == "Every cluster was short enough to be read as it is: nothing was compressed."
    assert worth.lines[0] == Line("Measured by", "Orun")


def test_nothing_is_called_right_where_nobody_knows(cast: Cast) -> None:
    story = tell(cast, cast.rag.run("Where is it kept?"), None, None, chosen="")
    told = [line.text for chapter in story.chapters for line in chapter.lines]
    assert not any("(right)" in text or "(wrong)" in text for text in told)
    assert "nobody gave the right one" in story.chapters[-1].lines[0].text
    assert "not whether the answer is right" in story.chapters[-1].means


def test_an_answer_that_another_prompt_changed_is_said_to_have_changed(cast: Cast) -> None:
    lazy = cast.rag.run("Where is it kept?")
    for before, told in ((lazy.answer, False), ("Velm", True)):
        story = tell(cast, replace(lazy, answer=before), None, KNOWN, chosen="")
        assert Line("Answer", "Tarn (wrong)", "bad") in story.chapters[1].lines
        assert any(line.label == "Not as before" for line in story.chapters[1].lines) is told


def test_a_shut_gate_and_a_rewrite_that_is_not_needed_are_told_as_such(cast: Cast) -> None:
    story = tell(cast, cast.rag.run("Where is Ada's boat?"), None, KNOWN, chosen="")
    assert story.chapters[0].means.startswith("Below the boundary")
    assert [one.method for one in story.chapters] == ["L-RAG", "DENSE-RAG", "DynQR", "EDC²-RAG", "SePer"]
    assert story.chapters[2].means.startswith("Sure enough")


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_it_fits_any_terminal(story: Story, columns: int) -> None:
    console = Console(width=columns, record=True, file=io.StringIO())
    console.print(story_view(story))
    printed = console.export_text()
    assert max(map(len, printed.splitlines())) <= columns
    assert "…" not in printed


def test_the_world_s_story_is_chosen_by_rule() -> None:
    world, encoder = World(seed=5, size=60), HashingEncoder()
    tiers = index_world(world, encoder)
    rag = LazyRAG(embedded_reader(), tiers.passages, tiers.summaries, top_n=3, n_summaries=1, max_tokens=16)
    cast = Cast.of(rag, tiers.passages, encoder, n_samples=2)
    story = world_story(cast, world, SILENT)
    for question in world.questions(40):
        if question.text == story.question:
            break
        acted = cast.rag.run(question.text).decision.retrieve
        assert not (acted and cast.rewriter.run(question.text).kept == "rewritten")
    assert "kept a rewrite for" in story.chosen


def test_a_page_holds_the_story_for_both_schemes_and_any_width() -> None:
    line = Line("Passage 1", "<b>+0.9</b> alone", bar=0.9)
    story = Story("Who?", "Ada", "By rule.", (Chapter("SePer", "Worth?", (line,), "Much.", "2 calls"),))
    page = render_page(title="T", lead="L", examples=[], means=["It saves."], story=story)
    assert page.index("It saves.") < page.index("By rule.")
    assert "&lt;b&gt;+0.9&lt;/b&gt;" in page and "width: 4.50rem" in page
    assert "prefers-color-scheme: dark" in page and "min(400px, 100%)" in page


def test_what_is_missing_is_named_by_one_extra_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(MissingExtraError, match=r"surerag\[demo\]"):
        require_all(["no_such_package"])
    require_all(PACKAGES)


def test_arguments_are_checked_before_anything_heavy_is_imported(tmp_path: Path) -> None:
    code = (
        "import sys, surerag.cli\n"
        f"sys.argv = ['surerag', 'demo', '--documents', {str(tmp_path / 'none')!r}, '--model', 'm', "
        "'--question', 'Who?']\n"
        "try:\n    surerag.cli.main()\nexcept SystemExit as done:\n    assert done.code == 1\n"
        "heavy = {'torch', 'transformers', 'openai', 'faiss', 'llama_index', 'langchain_core'}\n"
        "sys.exit(str(heavy & set(sys.modules) or '') or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


class _Silent(Stages):
    def __init__(self) -> None:
        pass

    def __call__(self, name: str):
        return lambda done, total: None

    def working(self, name: str):
        from contextlib import nullcontext

        return nullcontext()


SILENT = _Silent()
