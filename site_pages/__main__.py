"""Write the sources of the site into ``build/pages``: the pages of ``docs`` and the generated pages."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from site_pages.asked import asked_page
from site_pages.command_line import command_line_page
from site_pages.notebooks import write_notebooks
from site_pages.reference import MODULES, reference_page
from site_pages.tooltips import tooltips

ROOT = Path(__file__).parents[1]
GENERATED = "---\ngenerated: true\n---\n\n"
"""Front matter that tells the theme to show no edit link, because the page is generated."""

_REFERENCE_LINK = re.compile(r"\]\(https://surerag\.github\.io/surerag/(reference/[\w.-]+)\.html")
"""A link to a page of the reference, by its address on the site: the repository has no such page. The link
becomes relative in the site's sources, so that it also works in a local copy of the site."""


def write_pages(folder: Path) -> None:
    """Empty a folder and write all pages into it."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    reference = folder / "reference"
    reference.mkdir()
    for module in MODULES:
        (reference / f"{module}.md").write_text(reference_page(module), encoding="utf-8")
    (reference / "command-line.md").write_text(command_line_page(), encoding="utf-8")
    write_notebooks(ROOT / "cookbooks", folder / "notebooks")
    (folder / "asked.md").write_text(asked_page(folder), encoding="utf-8")
    words = tooltips(folder / "glossary.md")
    for page in folder.rglob("*.md"):
        up = "../" * (len(page.relative_to(folder).parts) - 1)
        text = _REFERENCE_LINK.sub(rf"]({up}\1.md", page.read_text(encoding="utf-8"))
        page.write_text(text if page.name == "glossary.md" else f"{text}\n{words}", encoding="utf-8")
    for page in (folder / "asked.md", *reference.iterdir(), *(folder / "notebooks").glob("*.md")):
        page.write_text(GENERATED + page.read_text(encoding="utf-8"), encoding="utf-8")


if __name__ == "__main__":
    write_pages(ROOT / "build" / "pages")
