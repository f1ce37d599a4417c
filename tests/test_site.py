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
from site_pages.command_line import command_line_page
from site_pages.reference import MODULES, WIDTH, has_source, public_names, reference_page, source_link
from surerag.signatures import field_default, public_fields

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site as ``make docs`` does, in a folder of its own."""
    root = tmp_path_factory.mktemp("site")
    (root / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), encoding="utf-8")
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
        for option, field in getattr(value, "model_fields", {}).items():
            if option in public_fields(value) and not re.search(r"Its options are those of", sections[name]):
                assert f"`{option}` (" in sections[name]
                assert field_default(field) in sections[name]
    assert not re.search(r"0x[0-9a-f]{6,}|:(?:class|meth|func|data):", page)


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
