"""The thin distributions bring surerag, of the same version and under one address."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.snippets import ROOT
from tools.check_distributions import SOURCE, THIN


def project(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


OURS = project(ROOT)


@pytest.mark.parametrize("name", THIN)
def test_a_thin_one_brings_the_extra_of_its_framework_and_nothing_else(name: str) -> None:
    thin = project(ROOT / "distributions" / name)
    extra = name.removesuffix("-surerag")
    assert thin["name"] == name
    assert thin["version"] == OURS["version"]
    assert thin["requires-python"] == OURS["requires-python"]
    assert thin["dependencies"] == [f"surerag[{extra}]=={OURS['version']}"]
    assert extra in OURS["optional-dependencies"]
    assert set(thin["classifiers"]) <= set(OURS["classifiers"])
    assert thin["urls"]["Repository"] == OURS["urls"]["Repository"]


def test_every_distribution_is_checked() -> None:
    assert sorted(path.name for path in (ROOT / "distributions").iterdir()) == sorted(THIN)


def test_what_the_source_has_to_hold_is_there() -> None:
    assert [name for name in SOURCE if not (ROOT / name).exists()] == []


def test_only_versions_that_were_tried_are_named() -> None:
    named = [text.rpartition(" ")[2] for text in OURS["classifiers"] if ":: Python :: 3." in text]
    tried = (ROOT / "docs/compatibility.md").read_text(encoding="utf-8")
    assert named
    assert all(f"{version}: " in tried for version in named)
