"""Every block of README and docs runs alone and prints what the page says; links lead somewhere."""

from __future__ import annotations

import ast
import contextlib
import importlib.util
import inspect
import io
import pkgutil
import re
import shlex
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer

import surerag.demo
import surerag.measures
import surerag.prompts
import surerag.retrieval
import surerag.training
from surerag import FakeReader, OpenAIReader, TransformersReader
from surerag.cli.app import app
from surerag.demo import load_reader
from surerag.encoders import HashingEncoder
from surerag.entailment import ExactEntailer, NLIEntailer
from surerag.methods.lazy_rag.gates import GATES
from tests.servers.fake_openai import FakeOpenAI

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(
    r"^( *)(?:<!-- not run: .*? -->\n *)?```(python|console)\n(.*?)^\1```", re.MULTILINE | re.DOTALL
)
_PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)?(#[^)\s]+)?\)")
_SERVER = re.compile(r"http://localhost:\d+/v1")
WIDTH = 88
OPTIONAL = {
    "langchain_chroma",
    "langchain_qdrant",
}
"""Packages that pages name and the test environment need not have: blocks that import them are skipped."""

pages = pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])


def blocks(page: Path, language: str) -> Iterator[tuple[int, str, bool]]:
    """Yield the line, the code and whether it runs, of each block of a language."""
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        if match[2] == language:
            line = text[: match.start(3)].count("\n")
            yield line, textwrap.dedent(match[3]), "<!-- not run" not in match[0]


def imported(code: str) -> dict[str, tuple[str, str]]:
    """Return the names that a block imports, each with its module and its name there."""
    names = {}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: (str(node.module), alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: (alias.name, "") for alias in node.names}
    return names


def lacks(code: str) -> bool:
    """Whether a block imports one of the optional packages, and it is not installed."""
    modules = {module for module, _ in imported(code).values()}
    wanted = {name for name in OPTIONAL for module in modules if f"{module}.".startswith(f"{name}.")}
    return any(not _is_installed(name) for name in wanted)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def check_calls(code: str) -> None:
    """Check a block that does not run: its imports, and the names of the arguments of what it imports."""
    names = {}
    for name, (module, attribute) in imported(code).items():
        found = import_module(module)
        names[name] = getattr(found, attribute) if attribute else found
    for node in ast.walk(ast.parse(code)):
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"[\w.]+", called) and called.split(".")[0] in names:
            called = eval(called, dict(names))
            given = {keyword.arg for keyword in node.keywords if keyword.arg}
            parameters = inspect.signature(called).parameters
            if not any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
                assert given <= set(parameters), ast.unparse(node)


@pytest.fixture(scope="module")
def server() -> Iterator[FakeOpenAI]:
    """Stand for the servers of the pages: it knows the date of one battle."""
    with FakeOpenAI(lambda prompt: "1066" if "1066" in prompt else "I do not know.") as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def _load_models_once() -> Iterator[None]:
    """Share the demo's reader and its encoder between all blocks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("surerag.demo.load_reader", cache(surerag.demo.load_reader))
        yield


@pages
def test_each_block_runs_alone_and_prints_what_it_says(
    page: Path, server: FakeOpenAI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OPENAI_BASE_URL", "OPENAI_API_BASE"):
        monkeypatch.setenv(name, server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    for line, code, runs in blocks(page, "python"):
        if lacks(code):
            continue
        if not runs:
            check_calls(code)
            continue
        output = io.StringIO()
        address = (_SERVER.search(code) or [""])[0].removeprefix("http://")
        source = "\n" * line + _SERVER.sub(server.base_url, code)
        with contextlib.redirect_stdout(output):
            exec(compile(source, str(page), "exec"), {"__name__": "__main__"})
        printed = output.getvalue().replace(server.base_url.removeprefix("http://"), address)
        expected = _PRINTS.findall(code)
        if expected or not (address or "OpenAI" in code):  # a scripted server's words are not on the page
            assert printed.splitlines() == expected, f"{page.name}, line {line + 1}"


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of each command of this project on a page, in blocks and in indented text."""
    text = page.read_text(encoding="utf-8")
    shown = [code for _, code, _ in blocks(page, "console")] + re.findall(r"^    (?=[a-z])(.*)$", text, re.M)
    for line in "\n".join(shown).replace("\\\n", " ").splitlines():
        words = (
            shlex.split(line.removeprefix("$ "), comments=True) if "surerag" in line or "make" in line else []
        )
        if words[:1] in (["surerag"], ["make"]):
            yield words


@pages
def test_commands_have_the_options_that_the_page_names(page: Path) -> None:
    known = typer.main.get_command(app)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    for program, name, *arguments in commands(page):
        if program == "make":
            assert name in targets
            continue
        options = {option for one in known.commands[name].params for option in one.opts}
        assert {word for word in arguments if word.startswith("--")} <= options, name


@pages
def test_blocks_are_narrow(page: Path) -> None:
    for language in ("python", "console"):
        for _, code, _ in blocks(page, language):
            assert [line for line in code.splitlines() if len(line) > WIDTH] == []


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pages
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target, anchor in _LINK.findall(page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        other = (page.parent / target).resolve() if target else page
        if other.parent in (ROOT / "docs" / "reference", ROOT / "docs" / "notebooks"):
            continue  # written by site_pages; the build of the site checks them
        if not other.exists() or (anchor and other.suffix == ".md" and anchor[1:] not in anchors(other)):
            broken.append(target + anchor)
    assert broken == []


@pages
def test_a_block_needs_one_framework_at_most(page: Path) -> None:
    for _, code, _ in blocks(page, "python"):
        roots = {module.split("_")[0].split(".")[0] for module, _ in imported(code).values()}
        assert not {"langchain", "llama"} <= roots, code


def test_each_function_in_the_tables_of_papers_is_where_the_page_says() -> None:
    text = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    cells = " ".join(re.findall(r"^\|.*\|.*\|(.*)\|$", text, re.MULTILINE))
    dotted = re.findall(r"`(surerag(?:\.\w+)+)`", cells)
    assert len(dotted) >= 6 and all(map(pkgutil.resolve_name, dotted))
    for name in re.findall(r"`([a-z]+(?:_[a-z]+)+)`", cells):
        assert hasattr(surerag.measures, name) or hasattr(surerag, name), f"{name} has no module on the page"


class _Search:
    def retrieve(self, query: str, k: int | None) -> list[surerag.Passage]:
        return []


def test_the_settings_of_the_papers_are_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/papers.md").read_text(encoding="utf-8")
    section = text.partition("## Settings of the papers\n")[2].partition("\n## ")[0]
    names: dict[str, Any] = {
        **{name: getattr(surerag, name) for name in surerag.__all__},
        **vars(surerag.retrieval), **vars(surerag.training), **vars(surerag.measures),
        **{name: getattr(surerag.prompts, name) for name in surerag.prompts.__all__},
        "reader": FakeReader(["Velm"]), "encoder": HashingEncoder(), "entailer": ExactEntailer(),
        "retriever": _Search(), "summaries": "Ada was born in Velm.",
        "document": "Ada was born in Velm.", "answers": ["Velm", "Orun"], "NLIEntailer": NLIEntailer,
        "log_likelihoods": [-1.0, -2.0], "mean_log_probabilities": [-0.3, -0.7], "load_reader": load_reader,
    }  # fmt: skip
    for kind in (TransformersReader, NLIEntailer):  # no model is loaded, but the options are checked
        signature = inspect.signature(kind.from_pretrained)
        monkeypatch.setattr(kind, "from_pretrained", signature.bind)
    names["load_reader"] = inspect.signature(load_reader).bind
    rows = re.findall(r"^\| (.*?) \|.*\| (.*) \|$", section, re.MULTILINE)[1:]
    for row, cell in rows:
        codes = [code for code in re.findall(r"`([^`]*)`", cell) if "(" in code]
        assert codes, f"{row} has no code"
        for code in codes:
            eval(code, names)
    assert {"L-RAG", "SePer, soft kernel", "EDC²", "DENSE-RAG", "DynQR, EXPAND"} <= {row for row, _ in rows}


def test_pages_stay_short() -> None:
    pages = [page for page in PAGES if page.name != "README.md"]
    # Comments and the rows of tables are no prose.
    tables = re.compile(r"<!-- table .*?<!-- end -->|^\|[^\n]*|<!--.*?-->", re.DOTALL | re.MULTILINE)
    words = sum(len(tables.sub("", page.read_text(encoding="utf-8")).split()) for page in pages)
    assert words <= 20_000
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100


def test_the_page_of_defaults_has_the_values_of_the_options() -> None:
    page = (ROOT / "docs" / "defaults.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(.+?)` \| `(.+?)` \| ", page, re.MULTILINE)
    names = {name: getattr(surerag, name) for name in surerag.__all__}
    for setting, value in rows:
        assert eval(setting, names) == eval(value), setting
    listed = {setting for setting, _ in rows}
    assert {f"{gate.__name__}().threshold" for gate in GATES.values()} <= listed
    for options, decides in (
        ("LazyRAGOptions", "gate n_tokens n_samples n_summaries first_abstention"),
        ("DynQROptions", "metric resolved_threshold answer documents verify n_samples"),
        ("DenseOptions", "threshold"),
        ("DenseRefinerOptions", "threshold stop top_n max_rounds"),
        ("SemanticChunkerOptions", "similarity_threshold"),
        ("EDC2Options", "variant first_cluster_size max_cluster_size min_tokens guard"),
        ("SePerOptions", "n_samples variant kernel references"),
    ):
        assert {f"{options}().{name}" for name in decides.split()} <= listed


@pytest.mark.parametrize("reader", [OpenAIReader, TransformersReader])
def test_the_page_of_models_has_every_option_of_a_reader(reader: type) -> None:
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    options = inspect.signature(reader).parameters.values()
    missing = {option.name for option in options if option.kind is option.KEYWORD_ONLY} - {
        name for row in re.findall(r"^\| (`.*?) \|", page, re.MULTILINE) for name in re.findall(r"\w+", row)
    }
    assert missing == set()
