"""Audit the pinned dependencies; where no service of known vulnerabilities answers, say so and fail.

pip-audit reports "No known vulnerabilities found" where an index has no such records, and knows nothing.
"""

from __future__ import annotations

import json
import subprocess  # nosec B404
import sys
from collections.abc import Sequence
from typing import NamedTuple

SERVICES = ("pypi", "osv")
_OPTIONS = (
    "--requirement=constraints.txt",
    "--no-deps",
    "--disable-pip",
    "--progress-spinner=off",
    "--format=json",
)


class Audit(NamedTuple):
    """What one service said.

    Attributes:
        audited: How many dependencies it knows.
        unknown: Names of those that it does not.
        findings: A line for each vulnerability.
    """

    audited: int
    unknown: tuple[str, ...]
    findings: tuple[str, ...]


def read_report(report: str) -> Audit:
    """Read pip-audit's JSON; text that is none audited nothing.

    Example:
        >>> read_report('{"dependencies": [{"name": "a", "skip_reason": "not found"}]}')
        Audit(audited=0, unknown=('a',), findings=())
    """
    try:
        dependencies = json.loads(report)["dependencies"]
    except (ValueError, KeyError, TypeError):
        return Audit(0, (), ())
    known = [entry for entry in dependencies if "skip_reason" not in entry]
    return Audit(
        len(known),
        tuple(entry["name"] for entry in dependencies if "skip_reason" in entry),
        tuple(
            f"{entry['name']} {entry['version']}: {found['id']}, "
            f"mended in {', '.join(found['fix_versions']) or 'no version'}"
            for entry in known
            for found in entry["vulns"]
        ),
    )


def conclude(audits: Sequence[Audit]) -> tuple[str, bool]:
    """Return what to print, and whether the dependencies were audited and have no known vulnerability."""
    best = max(audits, key=lambda audit: audit.audited)
    if not best.audited:
        message = (
            f"The dependencies were NOT audited: no service of known vulnerabilities ({', '.join(SERVICES)}) "
            "can be reached from here, or it knows none of them. Run this where one can be reached."
        )
        return message, False
    lines = [f"{best.audited} dependencies audited, {len(best.findings)} known vulnerabilities."]
    lines += best.findings
    if best.unknown:
        lines.append(f"Not audited, for the service does not know them: {', '.join(best.unknown)}.")
    return "\n".join(lines), not best.findings


def main() -> int:
    """Ask one service after the other until one knows something; 0 if all is well."""
    audits: list[Audit] = []
    for service in SERVICES:
        # Starts this interpreter, with fixed arguments.
        done = subprocess.run(  # noqa: S603  # nosec B603
            [sys.executable, "-m", "pip_audit", f"--vulnerability-service={service}", *_OPTIONS],
            capture_output=True,
            text=True,
            check=False,
        )
        audits.append(read_report(done.stdout))
        if audits[-1].audited:
            break
    message, is_well = conclude(audits)
    sys.stdout.write(message + "\n")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
