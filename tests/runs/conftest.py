"""A cache of one's own for runs whose folder is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def work(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where runs work that are written elsewhere."""
    folder = tmp_path_factory.mktemp("work")
    monkeypatch.setenv("SURERAG_WORK", str(folder))
    return folder
