"""``surerag calibrate``: a threshold with a guarantee, from a run of ``surerag compare``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from surerag.calibration import AbstentionPolicy, ThresholdPolicy, calibrate_abstention, calibrate_threshold
from surerag.certainty import MEASURES, without_address
from surerag.cli.display import show
from surerag.cli.models import check_file
from surerag.errors import ConfigurationError
from surerag.evaluation import EvaluationRun

INFEASIBLE = 4

RunFile = Annotated[Path, typer.Argument(help="File of a run of surerag compare.")]
SystemName = Annotated[
    str,
    typer.Option(
        help="System to calibrate. With --max-risk, it may be any system of the run; the default is plain or "
        "the only system. Without --max-risk, it is lazy or rewritten, and the run must have both lazy@inf "
        "and lazy@-inf."
    ),
]
Metric = Annotated[str, typer.Option(help="Metric that scores the answers: contains, exact_match or f1.")]
MaxLoss = Annotated[
    float, typer.Option(help="Allowed loss of the mean score, against always searching or rewriting.")
]
MaxRisk = Annotated[
    float | None,
    typer.Option(
        help="Allowed share of wrong answers among the answers shown. With this option, the policy withholds "
        "uncertain answers."
    ),
]
MeasureName = Annotated[
    str, typer.Option(help=f"Measure of certainty to use with --max-risk: {', '.join(MEASURES)}.")
]
Confidence = Annotated[float, typer.Option(help="Confidence of the guarantee.")]
Output = Annotated[Path, typer.Option(callback=check_file, help="File to write the policy to.")]


def calibrate(
    run: RunFile,
    system: SystemName = "",
    metric: Metric = "contains",
    max_loss: MaxLoss = 0.02,
    max_risk: MaxRisk = None,
    measure: MeasureName = "",
    confidence: Confidence = 0.95,
    output: Output = Path("policy.json"),
) -> None:
    """Calibrate when to retrieve or rewrite, or which answers to withhold, and write the policy as JSON."""
    policy: ThresholdPolicy | AbstentionPolicy
    with EvaluationRun(run, metrics=(metric,)) as rows:
        if max_risk is not None:
            policy = _abstention_policy(rows, system, metric, measure, max_risk, confidence)
        else:
            sample = rows.calibration_rows(system)
            name = next(name for name in rows.systems if name.startswith(system) and name.endswith("@inf"))
            scope = rows.settings(name).get("scope", {})
            policy = calibrate_threshold(sample, max_loss=max_loss, confidence=confidence, component=scope)
    policy.save(output)
    show(f"Threshold {policy.threshold:g}: {policy.guarantee}")
    if isinstance(policy, AbstentionPolicy) and policy.withheld:
        show(f"The policy gives no probabilities: {policy.withheld}.")
    show(f'Policy: {output}. Load it with {type(policy).__name__}.load("{output}").')
    raise typer.Exit(INFEASIBLE if policy.guarantee.startswith("cannot be guaranteed") else 0)


def _abstention_policy(
    run: EvaluationRun, system: str, metric: str, measure: str, max_risk: float, confidence: float
) -> AbstentionPolicy:
    """Return a policy that withholds answers of a system by their certainty."""
    names = run.systems
    system = system or ("plain" if "plain" in names else names[0] if len(names) == 1 else "")
    if system not in names:
        raise ConfigurationError(
            f"the run has no system {system!r}" if system else f"the run has {len(names)} systems",
            hint=f"choose from {', '.join(names)} with --system",
        )
    rows = run.certainty_rows(system, metric, measure)
    if not rows:
        raise ConfigurationError(
            f"no answer of {system} has both log-probabilities and a score",
            hint="compare with a model that returns log-probabilities, and with reference answers",
        )
    policy = calibrate_abstention(rows, max_risk=max_risk, confidence=confidence)
    settings = run.settings(system)
    known = settings.get("scope") or {"reader": _model_name(str(settings.get("reader", "")))}
    return replace(policy, scope={**known, **policy.scope})


def _model_name(reader: str) -> str:
    """Return the name of a reader without the address of its server, as frameworks name the model."""
    without = without_address(reader)
    return reader if without == reader else without.rpartition("@")[0]
