"""The site: the reference is complete, the site builds without a broken link, and search finds answers."""

from __future__ import annotations

import html
import json
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from site_pages.__main__ import write_pages
from site_pages.asked import ASKED
from site_pages.command_line import command_line_page
from site_pages.reference import MODULES, WIDTH, has_source, public_names, reference_page, source_link
from surerag.options import Options
from surerag.signatures import field_default, public_fields

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does, in a folder of its own."""
    root = tmp_path_factory.mktemp("site")
    (root / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
    (root / "site_pages").symlink_to(ROOT / "site_pages")
    write_pages(root / "build" / "pages")
    zensical = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(zensical, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return root / "build" / "site"


@pytest.mark.parametrize("module", MODULES)
def test_the_reference_has_every_public_name(module: str) -> None:
    page = reference_page(module)
    sections = dict(re.findall(r"^## (\w+) \{#.*?\}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    names = public_names(module)
    assert names
    for name, value in names.items():
        assert f"(#{module}.{name})" in page, "the list on top"
        if has_source(value):
            assert source_link(value) in sections[name]
        if (
            not isinstance(value, type)
            or not issubclass(value, Options)
            or "Its options are" in sections[name]
        ):
            continue
        for option, field in public_fields(value).items():
            assert f"`{option}` (" in sections[name]
            assert field_default(field) in sections[name]
    assert not re.search(r"0x[0-9a-f]{6,}|:(?:class|meth|func|data):", page)


def test_links_lead_somewhere_in_the_repository_and_on_the_site(site: Path) -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for link in re.findall(r"\]\(([^)#\s:]+\.md)[)#]", page.read_text(encoding="utf-8")):
            assert (page.parent / link).is_file(), f"{page} has a dead link to {link}"
    written = (site / "reference.html").read_text(encoding="utf-8")
    for module in (*MODULES, "command-line"):
        assert f'href="reference/{module}.html"' in written
    assert 'href="../reference/command-line.html"' in (site / "how-to/train-rewriter.html").read_text("utf-8")


def test_pages_explain_the_words_of_the_glossary_in_tooltips(site: Path) -> None:
    dense, glossary = ((site / page).read_text("utf-8") for page in ("methods/dense.html", "glossary.html"))
    assert '<abbr title="Degree semantic entropy, the score of DENSE-RAG.' in dense
    plurals = re.findall(
        r'<abbr title="A short text about a document[^>]*>(\w+)',
        dense + glossary + (site / "methods/lazy-rag.html").read_text("utf-8"),
    )
    assert {"summary", "summaries"} <= set(plurals)
    assert "<abbr" not in glossary
    assert '<abbr title="A piece of a word' not in dense, "an everyday word has no tooltip"
    assert "assets/tooltips.js" in dense


def test_the_packages_of_the_reference_have_all_that_they_export() -> None:
    from importlib import import_module

    for package in (
        "surerag",
        "langchain_surerag",
        "llama_index_surerag",
        "surerag.evaluation",
        "surerag.training",
    ):
        assert set(public_names(package)) == set(import_module(package).__all__)


def test_a_source_link_leads_to_the_line_of_the_class() -> None:
    for value in public_names("surerag").values():
        if not has_source(value):
            continue
        path, _, line = source_link(value).partition("/blob/main/")[2].partition("#L")
        lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
        assert value.__name__ in "\n".join(lines[int(line) - 1 : int(line) + 3])


def test_the_page_of_the_command_line_has_every_command_and_option() -> None:
    page = command_line_page()
    for command in ("demo", "doctor", "compare", "evaluate", "calibrate", "train-rewriter"):
        assert f"## `surerag {command}`" in page
    assert "`--base-url <str>`" in page


def test_no_code_of_the_reference_is_cut() -> None:
    for module in MODULES:
        blocks = re.findall(r"^```python\n(.*?)^```", reference_page(module), re.MULTILINE | re.DOTALL)
        assert [line for block in blocks for line in block.splitlines() if len(line) > WIDTH] == []


QUESTIONS = {
    "which answers are wrong": "certainty|how-to/only-sure|notebooks/07",
    "hallucination": "how-to/hallucinations|certainty|index",
    "how much does it cost": "how-to/cost",
    "does it work with ollama": "how-to/ollama|models",
    "claude no logprobs": "how-to/claude|models",
    "azure openai": "how-to/openai|models",
    "vllm server": "how-to/vllm|models",
    "hugging face model on my gpu": "how-to/hugging-face|models",
    "model that thinks before it answers": "how-to/thinking|models",
    "my documents changed": "documents-change",
    "is my data sent somewhere": "how-to/secrets|tenants|models",
    "streaming": "how-to/streaming|langchain|llama-index",
    "too slow": "troubleshooting|how-to/cost",
    "what is entropy": "glossary|certainty|methods/lazy-rag",
    "filter by tenant": "tenants",
    "pickle error": "how-to/save-and-load|troubleshooting",
    "faiss": "how-to/faiss|documents",
    "load pdf files": "documents",
    "chat history follow up question": "how-to/chat-history|langchain",
    "langgraph agent": "how-to/agents",
    "llama index workflow": "how-to/llama-index-agents|llama-index",
    "fastapi web service": "how-to/fastapi",
    "time-out and retry": "how-to/timeouts|troubleshooting",
    "german or chinese documents": "how-to/languages|documents",
    "how many test questions do I need": "questions|calibrate|compare",
    "choose a threshold": "calibrate|methods/lazy-rag",
    "say I do not know": "how-to/only-sure|certainty|calibrate",
    "compare two retrievers": "retrievers",
    "is it worth it": "compare|expect|notebooks/06",
    "run in continuous integration": "how-to/ci",
    "ray many machines": "how-to/ray",
    "train a rewriter": "how-to/train-rewriter|reference/surerag.training",
    "api key in logs": "how-to/secrets",
    "install": "quickstart",
    "LazyRetrievalChain options": "reference/langchain_surerag|langchain",
    "command line options": "reference/command-line|compare",
    "CapabilityError": "reference/surerag.errors|troubleshooting|models",
    "semantic entropy formula": "papers|glossary|reference/surerag.measures|methods/dense",
    "compress long context": "methods/edc2|notebooks/03",
    "test without a model": "how-to/ci|reference/surerag",
}
"""Questions in people's words, and the pages that answer them."""
LEADS_TO = {question: page for page, questions in ASKED.items() for question in questions}
"""The page that each question of the page of questions leads to."""


@pytest.fixture(scope="module")
def index(site: Path) -> sqlite3.Connection:
    """Return the search index of the site in a full-text table.

    The site's own engine runs in a browser. It finds the sections that hold every word as the beginning of a
    word, and titles weigh three times as much as texts; so does this table, which ranks by BM25.
    """
    table = sqlite3.connect(":memory:")
    table.execute("CREATE VIRTUAL TABLE search USING fts5(page UNINDEXED, title, path, text)")
    for item in json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]:
        text = html.unescape(re.sub(r"<[^>]+>", " ", item["text"]))
        page = item["location"].partition("#")[0]
        if page == "asked.html":
            page = LEADS_TO.get(html.unescape(item["title"]), page)
        row = (page, item["title"], " ".join(item["path"]), text)
        table.execute("INSERT INTO search VALUES (?, ?, ?, ?)", row)
    return table


def found_pages(index: sqlite3.Connection, question: str) -> list[str]:
    """Return the first three pages that the search finds; of the page of questions, where it leads."""
    words = " AND ".join(f'"{word}"*' for word in re.findall(r"\w+", question))
    ranked = "SELECT page FROM search WHERE search MATCH ? ORDER BY bm25(search, 0, 3, 2, 1)"
    return list(dict.fromkeys(page for (page,) in index.execute(ranked, (words,))))[:3]


@pytest.mark.parametrize("question", QUESTIONS)
def test_search_finds_the_page_that_answers(question: str, index: sqlite3.Connection) -> None:
    pages = found_pages(index, question)
    assert any(re.search(rf"^(?:{QUESTIONS[question]})", page) for page in pages), pages
