"""Errors link to their section of the documentation."""

from __future__ import annotations

import ast
import pickle
import re
import tomllib
import traceback
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import surerag
from surerag import errors
from surerag.errors import ConfigurationError, ContextLengthError, RefusedError

ROOT = Path(__file__).parents[1]


def test_sections_of_the_page_are_classes_and_classes_link_to_their_sections() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    sections = [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]
    kinds = [getattr(errors, name) for name in sections if name.endswith("Error")]
    assert len(kinds) > 8
    for kind in kinds:
        assert kind("it failed").page == f"{errors.TROUBLESHOOTING}#{kind.__name__.lower()}"


def test_the_page_is_part_of_the_projects_documentation() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert errors.TROUBLESHOOTING.startswith(f"{project['urls']['Documentation']}/")


def test_a_traceback_ends_with_the_link() -> None:
    error = ConfigurationError("top_n is 0", hint="raise it")
    assert str(error) == "top_n is 0. Raise it."
    assert traceback.format_exception_only(error)[-1] == f"More about it: {error.page}\n"


def test_a_subclass_elsewhere_links_to_the_section_of_its_base() -> None:
    class KeyRefused(RefusedError):
        pass

    assert KeyRefused("no key").page.endswith("#refusederror")


def test_a_copy_from_another_process_links_there_once() -> None:
    error = pickle.loads(pickle.dumps(ContextLengthError("too long", hint="show less")))
    assert error.hint == "show less"
    assert len(error.__notes__) == 1


def _choices(annotation: Any) -> set[str]:
    """Return the texts that an option's annotation allows."""
    if get_origin(annotation) is Literal:
        return {value for value in get_args(annotation) if isinstance(value, str)}
    return {value for part in get_args(annotation) for value in _choices(part)}


def test_options_that_texts_name_exist() -> None:
    kinds = [getattr(surerag, name) for name in surerag.__all__ if name.endswith("Options")]
    assert len(kinds) >= 5
    allowed: dict[str, set[str]] = {}
    for kind in kinds:
        for name, field in kind.model_fields.items():
            if values := _choices(field.annotation):
                allowed.setdefault(name, set()).update(values)
    named = [
        (path.name, option, value)
        for folder in ("src", "integrations")
        for path in (ROOT / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for option, value in re.findall(r'\b(\w+)="(\w+)"', node.value)
        if option in allowed
    ]
    assert {"gate", "metric"} <= {option for _, option, _ in named}
    assert [one for one in named if one[2] not in allowed[one[1]]] == []
