"""``surerag calibrate``: a threshold with a guarantee, from a run of ``surerag compare``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from surerag.calibration import AbstentionPolicy, ThresholdPolicy, calibrate_abstention, calibrate_threshold
from surerag.cli.display import show
from surerag.evaluation import EvaluationRun

INFEASIBLE = 4

RunFile = Annotated[
    Path, typer.Argument(help="File of a run with the systems lazy@inf and lazy@-inf, or those of rewritten.")
]
SystemName = Annotated[str, typer.Option(help="lazy or rewritten, if the run has both.")]
Metric = Annotated[str, typer.Option(help="Score of answers: contains, exact_match or f1.")]
MaxLoss = Annotated[float, typer.Option(help="Allowed loss of mean score against always acting.")]
MaxRisk = Annotated[
    float | None, typer.Option(help="Calibrate abstention instead: allowed share of wrong answers given.")
]
Confidence = Annotated[float, typer.Option(help="Of the guarantee.")]
Output = Annotated[Path, typer.Option(help="File of the policy.")]


def calibrate(
    run: RunFile,
    system: SystemName = "",
    metric: Metric = "contains",
    max_loss: MaxLoss = 0.02,
    max_risk: MaxRisk = None,
    confidence: Confidence = 0.95,
    output: Output = Path("policy.json"),
) -> None:
    """Calibrate when to retrieve or rewrite, or when to abstain, and write the policy as JSON."""
    with EvaluationRun(run, metrics=(metric,)) as rows:
        sample = rows.calibration_rows(system)
        name = next(name for name in rows.systems if name.startswith(system) and name.endswith("@inf"))
        scope = rows.settings(name).get("scope", {})
    policy: ThresholdPolicy | AbstentionPolicy
    if max_risk is not None:
        policy = calibrate_abstention(sample, max_risk=max_risk, confidence=confidence, component=scope)
    else:
        policy = calibrate_threshold(sample, max_loss=max_loss, confidence=confidence, component=scope)
    policy.save(output)
    show(f"Threshold {policy.threshold:g}: {policy.guarantee}")
    show(f'Policy: {output}. Load it with {type(policy).__name__}.load("{output}").')
    raise typer.Exit(INFEASIBLE if policy.guarantee.startswith("cannot be guaranteed") else 0)
