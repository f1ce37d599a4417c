"""The packages: what each holds and needs, and that each works alone (``make dist``)."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DIST = os.environ.get("SURERAG_DIST", "")
CLONE, CORE = ROOT / "pyproject.toml", ROOT / "src" / "pyproject.toml"
WEIGHTS = ROOT / "src/surerag/demo/adapter/pyproject.toml"
LANGCHAIN = ROOT / "integrations/langchain_surerag/pyproject.toml"
LLAMA_INDEX = ROOT / "integrations/llama_index_surerag/pyproject.toml"

built = pytest.mark.skipif(not DIST, reason="make dist builds the packages first")


def project(file: Path) -> dict[str, Any]:
    return dict(tomllib.loads(file.read_text(encoding="utf-8"))["project"])


def extras(file: Path) -> dict[str, list[str]]:
    return dict(project(file)["optional-dependencies"])


def test_a_clone_needs_what_the_packages_need() -> None:
    version = project(CLONE)["version"]
    clone, core = extras(CLONE), extras(CORE)
    assert {project(file)["version"] for file in (CORE, WEIGHTS, LANGCHAIN, LLAMA_INDEX)} == {version}
    assert project(CORE)["dependencies"] == project(CLONE)["dependencies"]
    core["demo"].remove(f"surerag-demo-reader=={version}")
    frameworks = {"langchain", "llama-index", "agents", "all"}
    assert core == {name: needs for name, needs in clone.items() if name not in frameworks}
    own = f"surerag=={version}"
    assert project(LANGCHAIN)["dependencies"] == [own, *clone["langchain"]]
    assert project(LLAMA_INDEX)["dependencies"] == [own, *clone["llama-index"]]
    assert ["surerag[langchain]", *extras(LANGCHAIN)["agents"]] == clone["agents"]


def wheel(name: str) -> Path:
    [path] = Path(DIST).glob(f"{name}-*.whl")
    return path


@built
@pytest.mark.parametrize(
    ("name", "folder", "megabytes"),
    [
        ("surerag", "surerag", 2),
        ("langchain_surerag", "langchain_surerag", 0.5),
        ("llama_index_surerag", "llama_index_surerag", 0.5),
        ("surerag_demo_reader", "surerag/demo/adapter", 11),
    ],
)
def test_a_package_holds_its_own_folder_and_no_other(name: str, folder: str, megabytes: float) -> None:
    path = wheel(name)
    assert path.stat().st_size < megabytes * 1e6
    names = zipfile.ZipFile(path).namelist()
    inside = {one for one in names if ".dist-info/" not in one}
    assert all(one.startswith(f"{folder}/") for one in inside)
    assert f"{folder}/LICENSE" in inside
    if name != "surerag_demo_reader":
        source = CORE.parent if name == "surerag" else ROOT / "integrations"
        modules = {str(one.relative_to(source)) for one in (source / folder).rglob("*.py")}
        assert {one for one in inside if one.endswith(".py")} == modules
        assert f"{folder}/py.typed" in inside
        assert not any(one.endswith((".safetensors", "pyproject.toml")) for one in inside)


_CORE = """
from surerag import FakeReader, LazyRAG, Passage
class One:
    def retrieve(self, query, k): return [Passage("Ada was born in Velm.")]
print(LazyRAG(FakeReader(["Velm"]), One(), One()).run("Where was Ada born?").answer)
"""
_LANGCHAIN = """
from langchain_core.runnables import RunnableLambda
from langchain_core.documents import Document
from langchain_surerag import LazyRetrievalChain
from surerag import FakeReader
search = RunnableLambda(lambda question: [Document("Ada was born in Velm.")])
chain = LazyRetrievalChain(FakeReader(["Velm"]), search, "Ada is a painter.")
print(chain.invoke("Where was Ada born?")["answer"])
"""
_LLAMA_INDEX = """
from llama_index.core import Document, MockEmbedding, VectorStoreIndex
from llama_index_surerag import LazyRetrievalQueryEngine
from surerag import FakeReader
embed_model = MockEmbedding(8)
documents = [Document(text="Ada was born in Velm.")]
index = VectorStoreIndex.from_documents(documents, embed_model=embed_model)
engine = LazyRetrievalQueryEngine.from_args(index, FakeReader(["Velm"]), embed_model=embed_model)
print(engine.query("Where was Ada born?"))
"""


@built
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "script", "absent"),
    [
        ("surerag", _CORE, "langchain_core llama_index torch openai langchain_surerag llama_index_surerag"),
        ("langchain_surerag", _LANGCHAIN, "llama_index torch openai llama_index_surerag"),
        ("llama_index_surerag", _LLAMA_INDEX, "langchain_core torch langchain_surerag"),
    ],
)
def test_a_package_works_alone(name: str, script: str, absent: str, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def call(*arguments: str) -> str:
        done = subprocess.run(  # our own interpreter, our own packages
            [str(python), *arguments], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    constraints = str(ROOT / "constraints.txt")
    call(
        "-m", "pip", "install", "--quiet", "--find-links", DIST, "--constraint", constraints, str(wheel(name))
    )
    assert call("-c", script).split() == ["Velm"]
    check = f"from importlib.util import find_spec; print([n for n in {absent.split()} if find_spec(n)])"
    assert call("-c", check).strip() == "[]"
    call("-m", "pip", "check")
