"""Errors lead to the page that tells more about them."""

from __future__ import annotations

import pickle
import tomllib
import traceback

import pytest

from surerag import errors
from surerag.errors import ConfigurationError, ContextLengthError, RefusedError, SureragError
from tests.snippets import ROOT

KINDS = [
    kind for kind in vars(errors).values() if isinstance(kind, type) and kind.__module__ == errors.__name__
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_class_leads_to_its_place_on_the_page(kind: type[SureragError]) -> None:
    page, _, place = kind("it failed").page.partition("#")
    headings = (ROOT / "docs/guides/troubleshooting.md").read_text(encoding="utf-8").splitlines()
    assert page == errors.TROUBLESHOOTING
    assert kind is SureragError or f"## {kind.__name__}" in headings
    assert place == ("" if kind is SureragError else kind.__name__.lower())


def test_the_page_stands_where_the_project_says_its_documentation_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert errors.TROUBLESHOOTING.startswith(f"{project['urls']['Documentation']}/")


def test_a_traceback_ends_with_the_page_and_the_message_stays_as_it_was() -> None:
    error = ConfigurationError("top_n is 0", hint="raise it")
    assert str(error) == "top_n is 0. Raise it."
    assert traceback.format_exception_only(error)[-1] == f"More about it: {error.page}\n"


def test_a_class_of_another_room_leads_to_what_it_is_a_kind_of() -> None:
    class KeyRefused(RefusedError):
        pass

    assert KeyRefused("no key").page.endswith("#refusederror")


def test_a_copy_from_another_process_leads_there_once() -> None:
    error = pickle.loads(pickle.dumps(ContextLengthError("too long", hint="show less")))
    assert error.hint == "show less"
    assert len(error.__notes__) == 1
