"""Imports stay light; a missing extra is named."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from surerag.errors import MissingExtraError, extra
from tests.clean_process import loaded_by

HEAVY = ("torch", "transformers", "openai", "faiss", "sklearn", "sentence_transformers")
FRAMEWORKS = ("llama_index", "langchain_core", "langchain_community")


@pytest.mark.parametrize(
    "package",
    [
        "surerag",
        "surerag.methods.lazy_rag.component",
        "surerag.retrieval",
        "surerag.documents",
        "surerag.encoders",
    ],
)
def test_the_core_loads_neither_a_backend_nor_a_framework(package: str) -> None:
    assert loaded_by(f"import {package}", *HEAVY, *FRAMEWORKS, "fsspec") == []


def test_a_public_name_of_the_core_loads_no_backend() -> None:
    code = "from surerag import LazyRAG, Passage, FakeReader, Services, EntropyGate, UncertaintyRewriter"
    assert loaded_by(code, *HEAVY, *FRAMEWORKS) == []


@pytest.mark.parametrize(
    ("package", "other"),
    [("llama_index_surerag", "langchain_core"), ("langchain_surerag", "llama_index")],
)
def test_an_integration_loads_no_backend_and_not_the_other_framework(package: str, other: str) -> None:
    assert loaded_by(f"import {package}", *HEAVY, other) == []


def test_the_integrations_import_public_names_of_the_core_alone() -> None:
    root = Path(__file__).parents[1]
    page = (root / "docs/reference.md").read_text().split("## For integrators")[1]
    public = {"surerag", *re.findall(r"^\| `(surerag\.\w+)`", page, re.MULTILINE)}
    used = set()
    for file in (root / "integrations").glob("*/*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [one.name for one in node.names if one.name.startswith("surerag")], file
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("surerag"):
                continue
            used.add(node.module)
            module = import_module(str(node.module))
            for name in (one.name for one in node.names):
                assert name in getattr(module, "__all__", [name]) or f"surerag.{name}" in public, (file, name)
                assert not name.startswith("_"), (file, name)
    assert used == public


def test_every_public_name_of_the_core_is_there() -> None:
    import surerag

    for name in surerag.__all__:
        assert getattr(surerag, name) is not None
    with pytest.raises(AttributeError, match="NoSuchName"):
        surerag.NoSuchName  # noqa: B018 (the access is the test)


def test_a_missing_package_names_the_pip_line() -> None:
    with pytest.raises(MissingExtraError, match=r'pip install "surerag\[faiss\]"') as caught, extra("faiss"):
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401
    assert "no_such_package" in str(caught.value)


def test_a_package_that_is_too_old_is_told_to_be_upgraded() -> None:
    with pytest.raises(MissingExtraError, match=r"'json' does not have .*--upgrade"), extra("faiss"):
        from json import no_such_name  # noqa: F401


def test_a_broken_import_of_our_own_is_no_missing_extra() -> None:
    with pytest.raises(ModuleNotFoundError) as caught, extra("faiss"):
        import surerag.no_such_module  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtraError)


WITHOUT = """
import sys

class Without:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return None if name.split(".")[0] in {names!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
from surerag.errors import MissingExtraError
try:
    {code}
except MissingExtraError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("absent", "code", "line"),
    [
        (
            ("torch", "transformers"),
            "from surerag import TransformersReader; TransformersReader.from_pretrained('x')",
            'pip install "surerag[transformers]"',
        ),
        (
            ("sentence_transformers",),
            "from surerag.encoders import SentenceTransformerEncoder; SentenceTransformerEncoder('x')",
            'pip install "surerag[sentence-transformers]"',
        ),
    ],
)
def test_what_needs_an_extra_says_so(absent: tuple[str, ...], code: str, line: str) -> None:
    script = WITHOUT.format(names=absent, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout
