"""``surerag calibrate`` on rows: a policy, and its promise in words."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from surerag.cli.display import console
from surerag.decisions.calibrating import policy_of
from surerag.decisions.files import iter_rows
from surerag.decisions.policy import Identity, Policy
from surerag.decisions.rows import common_signals, sample_of
from surerag.errors import InputError
from surerag.records.tradeoff.curve import Bound
from surerag.storage import check_file


def run_calibrate_rows(
    file: Path, bound: Bound, *, signal: str | None, model: str, prompts: str, output: Path | None
) -> Policy:
    """Calibrate on a file of rows, print the promise, and write the policy down if asked to.

    Raises:
        InputError: If the rows have several signals, and none was chosen.
        StorageError: If the policy cannot be written.
    """
    if output is not None:
        check_file(output)
    there = common_signals(iter_rows(file))
    if signal is None and len(there) != 1:
        raise InputError(
            f"the rows have {len(there)} signals in common: {', '.join(there) or 'none'}",
            hint="choose one with --signal",
        )
    identity = Identity(model, signal or there[0], prompts)
    # The file is read once more, so that rows need not be held.
    sample = sample_of(iter_rows(file), identity.signal)
    policy = policy_of(identity, sample, scored="gold answers", **bound._asdict())
    console.print(f"[bold]{policy.verdict}[/bold]  {escape(policy.identity.signal)} > {policy.threshold:g}")
    console.print(escape(policy.promise))
    if output is not None:
        policy.save(output)
    return policy
