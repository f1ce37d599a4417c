"""The README is run: its Python blocks, its commands' options, its extras and its make targets."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.snippets import ROOT, Block, blocks, check_command, commands

README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
URLS = PROJECT["urls"]
NUMBER = re.compile(r"[−+]?\d[\d,.]*\d|\d")


@pytest.mark.parametrize("block", blocks("README.md"), ids=str)
def test_a_python_block_runs_and_prints_what_it_says(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    block.run(capsys, monkeypatch)


def test_both_frameworks_answers_are_shown_one_searched_for_and_one_not() -> None:
    shown = [block.prints for block in blocks("README.md") if block.prints]
    assert shown == [["Ruldmouth False", "harp True"]] * 2


def test_every_block_runs() -> None:
    assert all(block.remark in ("", "served") for block in blocks("README.md"))


@pytest.mark.parametrize("arguments", commands("README.md", "surerag"), ids=" ".join)
def test_a_command_has_the_options_that_are_shown(arguments: list[str]) -> None:
    check_command(arguments)


def test_every_extra_that_is_named_exists() -> None:
    named = {extra for group in re.findall(r"surerag\[([^\]]+)\]", README) for extra in group.split(",")}
    assert named
    assert named <= set(PROJECT["optional-dependencies"])


def test_every_make_target_that_is_named_exists() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = set(re.findall(r"`make ([a-z-]+)", README)) | {call[0] for call in commands("README.md", "make")}
    assert named
    assert named <= set(targets)


def test_every_link_is_whole_and_leads_to_a_file_or_a_page_of_the_site() -> None:
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert len(targets) > 10
    for target in targets:
        _, site, page = target.partition(f"{URLS['Documentation']}/")
        _, repository, path = target.partition(f"{URLS['Repository']}/")
        assert site or repository, f"{target} would lead nowhere on the package index"
        if site:
            made = ROOT / "docs" / (page.split("#")[0].removesuffix(".html") or "index")
            assert made.with_suffix(".md").is_file(), target
        else:
            assert (ROOT / re.sub(r"^(?:blob|tree)/main/", "", path)).exists(), target


def test_every_address_of_the_project_is_one_that_its_metadata_names() -> None:
    ours = re.compile(r"https://(?:surerag\.github\.io|github\.com/surerag)[^\s\"'`)>\]]*")
    files = [path for kind in ("md", "toml", "yml", "py") for path in ROOT.rglob(f"*.{kind}")]
    kept = [path for path in files if not {"build", ".git"} & set(path.parts) and ".venv" not in str(path)]
    found = {one for path in kept for one in ours.findall(path.read_text(encoding="utf-8"))}
    whole = tuple(f"{URLS[name]}{end}" for name in ("Documentation", "Repository") for end in ("/", "#"))
    assert len(found) > 20
    assert [one for one in found if one not in URLS.values() and not one.startswith(whole)] == []


def test_its_figures_are_those_that_the_benchmark_printed() -> None:
    printed = (ROOT / "docs/studies/printed/costs.txt").read_text(encoding="utf-8")
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in printed.splitlines() if "│" in line]
    costs = {row[0]: [float(cell) for cell in row[2:6]] for row in cells}
    plain = costs["plain RAG"]
    table = {line.split("|")[4]: line.split("|")[3] for line in README.splitlines() if line.startswith("| ")}
    found = {
        part.strip(" `"): [float(n.replace(",", "").replace("−", "-")) for n in NUMBER.findall(cell)]
        for part, cell in table.items()
        if NUMBER.search(cell)
    }
    assert len(found) == 6
    for part, method, whole in (
        ("LazyRetrievalQueryEngine", "L-RAG", True),
        ("UncertaintyRewriteQueryEngine", "DynQR", True),
        ("ClusterCompressorPostprocessor", "EDC²-RAG", False),
        ("DenseEvaluator", "DENSE, the measure", False),
        ("DenseRefinerPostprocessor", "DENSE-RAG, refining", False),
        ("DeltaSePerEvaluator", "ΔSePer", False),
    ):
        calls, read, written, searches = costs[method]
        extra = [calls - plain[0], read + written - plain[1] - plain[2], searches - plain[3]]
        expected = extra if whole else [calls, read + written]
        assert found[part] == pytest.approx(expected, abs=0.06), part


def test_it_is_read_in_a_minute_and_a_bit() -> None:
    prose = re.sub(r"^```.*?^```|<!--.*?-->|\]\([^)]*\)", "", README, flags=re.DOTALL | re.MULTILINE)
    assert len(prose.split("## Ten lines")[0].split()) < 400, "the first screen is what a newcomer reads"
    assert len(README) < 11_000, "more belongs on the site"
