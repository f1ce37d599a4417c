"""``surerag calibrate``: a policy from rows, and its promise in words."""

from __future__ import annotations

from pathlib import Path

from rich.markup import escape

from surerag.cli.display import console
from surerag.decisions.calibrating import OnInfeasible, calibrate
from surerag.decisions.files import read_rows
from surerag.decisions.policy import Identity, Policy, Target
from surerag.decisions.rows import common_signals
from surerag.errors import InputError


class _Named:
    """A signal whose model the user has told."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity


def run_calibrate(
    file: Path,
    *,
    signal: str | None,
    model: str,
    prompts: str,
    target: Target,
    max_loss: float,
    budget: float | None,
    confidence: float,
    on_infeasible: OnInfeasible,
    output: Path | None,
) -> Policy:
    """Calibrate on a file of rows, print the promise, and write the policy down if asked to.

    Raises:
        InputError: If the rows have several signals, and none was chosen.
    """
    rows = read_rows(file)
    there = common_signals(rows)
    if signal is None and len(there) != 1:
        raise InputError(
            f"the rows have {len(there)} signals in common: {', '.join(there) or 'none'}",
            hint="choose one with --signal",
        )
    policy = calibrate(
        _Named(Identity(model, signal or there[0], prompts)),
        rows,
        target=target,
        max_loss=max_loss,
        budget=budget,
        confidence=confidence,
        on_infeasible=on_infeasible,
    )
    console.print(f"[bold]{policy.verdict}[/bold]  {escape(policy.identity.signal)} > {policy.threshold:g}")
    console.print(escape(policy.promise))
    if output is not None:
        policy.save(output)
    return policy
