"""The notebooks run as they stand, each in a process and a folder of its own, on a few of their questions."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from surerag.demo.reader import base_folder

COOKBOOKS = sorted((Path(__file__).parents[1] / "cookbooks").glob("*.ipynb"))

pytestmark = pytest.mark.parametrize("path", COOKBOOKS, ids=lambda path: path.stem)


@pytest.mark.skipif(not base_folder().is_dir(), reason="the demo's reader is not in the cache: make reader")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("BASE_URL", raising=False)
    shutil.copy(path.with_name("openai_server.py"), tmp_path)  # notebook 8 starts it
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = re.sub(r"^n_questions = \d+$", "n_questions = 2", cell.source, flags=re.MULTILINE)
    folder = {"metadata": {"path": str(tmp_path)}}
    times = {"timeout": 120, "startup_timeout": 120}
    NotebookClient(notebook, **times, kernel_name="python3", resources=folder).execute()


def test_its_outputs_are_there_and_name_no_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert any(cell.outputs for cell in cells)
    assert [line for cell in cells for line in cell.source.splitlines() if len(line) > 88] == []
    assert "## Your own documents" in notebook.cells[-2].source
    for output in (output for cell in cells for output in cell.outputs):
        assert output.output_type != "error"
        assert not re.search(r"/(home|root|tmp|work|Users)/|\d+ ?ms\b|Traceback", str(output))
