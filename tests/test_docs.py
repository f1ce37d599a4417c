"""Every Python block of README and docs runs, and prints what the page says; links lead somewhere."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

import surerag
from surerag import OpenAIReader, TransformersReader
from surerag.methods.lazy_rag.gates import GATES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"^(<!-- not run: .*? -->\n)?```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PRINTS = re.compile(r"# prints: (.*)$", re.MULTILINE)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)#\s]+)?(#[^)\s]+)?\)")


def run_blocks(page: Path) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        if match[1]:
            continue
        line = page.read_text(encoding="utf-8")[: match.start(2)].count("\n")
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile("\n" * line + match[2], str(page), "exec"), namespace)
        expected = _PRINTS.findall(match[2])
        assert output.getvalue().splitlines() == expected, f"{page.name}, line {line + 1}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_page_prints_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_blocks(page)


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
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


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_a_block_needs_one_framework_at_most(page: Path) -> None:
    for match in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        imports = "\n".join(re.findall(r"^ *(?:from|import) .*$", match[2], re.MULTILINE))
        assert not ("langchain" in imports and "llama_index" in imports), match[2]


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
