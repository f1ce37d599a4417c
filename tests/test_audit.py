"""The audit of dependencies: what was not audited is never reported as sound."""

from __future__ import annotations

import json

import pytest

from tools.audit import conclude, read_report

CLEAN = {"name": "numpy", "version": "2.0.0", "vulns": []}
UNKNOWN = {"name": "torch", "skip_reason": "Dependency not found on PyPI and could not be audited"}
BAD = {
    "name": "jinja2",
    "version": "3.0.0",
    "vulns": [{"id": "CVE-1", "fix_versions": ["3.1.6"]}, {"id": "CVE-2", "fix_versions": []}],
}


def report(*dependencies: dict[str, object]) -> str:
    return json.dumps({"dependencies": dependencies, "fixes": []})


@pytest.mark.parametrize(
    ("reports", "words", "is_well"),
    [
        ([report(CLEAN)], "1 dependencies audited, 0 known", True),
        ([report(CLEAN, UNKNOWN)], "Not audited, for the service does not know them: torch.", True),
        (
            [report(CLEAN, BAD)],
            "CVE-1, mended in 3.1.6\njinja2 3.0.0: CVE-2, mended in no",
            False,
        ),
        ([report(UNKNOWN), report(UNKNOWN)], "NOT audited", False),
        (["Traceback: no route to host", ""], "NOT audited", False),
        ([report(UNKNOWN), report(CLEAN)], "1 dependencies audited", True),
    ],
)
def test_what_is_concluded(reports: list[str], words: str, is_well: bool) -> None:
    message, found = conclude([read_report(text) for text in reports])
    assert words in message
    assert found is is_well
