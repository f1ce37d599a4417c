"""What the citation file and the BibTeX entries say, and that they say the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
ANONYMOUS = ("DENSE-RAG", "DynQR")


def cited() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")))


def entries() -> dict[str, dict[str, str]]:
    """Return the fields of each BibTeX entry by its title."""
    text = (ROOT / "docs/papers.bib").read_text(encoding="utf-8")
    found = {}
    for entry in re.findall(r"^@\w+\{[^,]+,\n(.*?)^\}", text, re.DOTALL | re.MULTILINE):
        fields = dict(re.findall(r"^  (\w+)\s*= \{(.*)\},?$", entry, re.MULTILINE))
        found[re.sub(r"[{}]", "", fields["title"])] = fields
    return found


def test_the_package_is_cited_with_its_version() -> None:
    citation = cited()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == project["version"] == entries()[citation["title"]]["version"]
    assert citation["license"] == project["license"]


def test_each_paper_is_cited_alike_and_none_gets_a_venue_that_it_has_not() -> None:
    citation, bibtex = cited(), entries()
    assert len(citation["references"]) == 5
    assert {citation["title"], *(one["title"] for one in citation["references"])} == set(bibtex)
    for paper in citation["references"]:
        entry = bibtex[paper["title"]]
        assert ("year" in paper, "collection-title" in paper) == ("year" in entry, "booktitle" in entry)
        assert paper.get("collection-title", "") == re.sub(r"[{}]", "", entry.get("booktitle", ""))
        assert str(paper.get("year", "")) == entry.get("year", "")
        names = [one.get("family-names", one.get("name")) for one in paper["authors"]]
        assert names == [author.partition(",")[0] for author in entry["author"].split(" and ")]
        if paper["title"].startswith(ANONYMOUS):
            assert names == ["Anonymous"] and "year" not in paper
        assert paper.get("notes") == entry.get("note") and paper.get("url") == entry.get("url")


@pytest.mark.parametrize("method", ["lazy-rag", "seper", "edc2", "dense", "dynqr"])
def test_a_method_and_the_citations_give_a_paper_one_address_and_one_place(method: str) -> None:
    page = " ".join((ROOT / f"docs/methods/{method}.md").read_text(encoding="utf-8").split())
    bibtex = {title.lower().replace("-", ""): entry for title, entry in entries().items()}
    link, place = re.search(r"Paper: (.*?\*.*?\*(?:\]\(\S+\))?)([^*\]]*?)\.(?: |$)", page).groups()  # type: ignore[union-attr]
    title = re.search(r"\*(.*?)\*", link)[1]  # type: ignore[index]
    entry = bibtex[title.lower().replace("-", "")]
    assert re.findall(r"\]\((\S+)\)", link) == ([entry["url"]] if "url" in entry else [])
    years = re.findall(r"\b20\d\d\b", place)
    assert set(years) == set(re.findall(r"\b20\d\d\b", entry.get("year", entry.get("note", "")))), place
