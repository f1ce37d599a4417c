"""``surerag calibrate``: finds a threshold with a guarantee, from the answers of ``surerag compare``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from surerag.calibration import AbstentionPolicy, ThresholdPolicy, calibrate_abstention, calibrate_threshold
from surerag.certainty import MEASURES, without_address
from surerag.cli.display import show
from surerag.cli.models import check_file
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation import EvaluationRun

INFEASIBLE = 4
"""Exit code if no threshold can be guaranteed."""

RunFile = Annotated[Path, typer.Argument(help="File with the answers of surerag compare (its option --run).")]
SystemName = Annotated[
    str,
    typer.Option(
        help="System to calibrate. With --max-risk: any system of the run; the default is plain, or the only "
        "system. Without --max-risk: lazy or rewritten. For lazy, the run must have the systems lazy@inf and "
        "lazy@-inf. For rewritten, the run must have rewritten@inf and rewritten@-inf."
    ),
]
Metric = Annotated[str, typer.Option(help="Metric for the answers: contains, exact_match or f1.")]
MaxLoss = Annotated[
    float,
    typer.Option(
        help="Allowed loss of the mean score, compared with always searching or always rewriting: 0.02 means "
        "two points."
    ),
]
MaxRisk = Annotated[
    float | None,
    typer.Option(
        help="Allowed share of wrong answers among the answers that are given, such as 0.1. With this "
        "option, the policy withholds uncertain answers."
    ),
]
MeasureName = Annotated[
    str, typer.Option(help=f"Measure of uncertainty for --max-risk: {', '.join(MEASURES)}.")
]
Confidence = Annotated[float, typer.Option(help="Confidence level of the guarantee, between 0 and 1.")]
Output = Annotated[Path, typer.Option(callback=check_file, help="JSON file to write the policy to.")]


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
    """Find the uncertainty threshold of a method, or the threshold above which answers are withheld.

    The threshold is written to a policy file.
    """
    policy: ThresholdPolicy | AbstentionPolicy
    replaced = _policy_in(output)
    with EvaluationRun(run, metrics=(metric,)) as rows:
        if max_risk is not None:
            system = system or _default_system(rows.systems)
            policy = _abstention_policy(rows, system, metric, measure, max_risk, confidence)
        else:
            sample = rows.calibration_rows(system)
            name = next(name for name in rows.systems if name.startswith(system) and name.endswith("@inf"))
            system = name.removesuffix("@inf")
            scope = {**rows.settings(name).get("scope", {}), "system": system}
            policy = calibrate_threshold(sample, max_loss=max_loss, confidence=confidence, component=scope)
    policy.save(output)
    is_number = abs(policy.threshold) < math.nextafter(math.inf, 0)
    show(f"Threshold {policy.threshold:g}: {policy.guarantee}" if is_number else policy.guarantee)
    if isinstance(policy, AbstentionPolicy) and policy.withheld:
        show(f"The policy gives no probabilities: {policy.withheld}.")
    if replaced:
        show(f"The policy replaces the {replaced} that was in {output}.")
    show(f'Policy for {system}: {output}. To load the policy, call {type(policy).__name__}.load("{output}").')
    raise typer.Exit(INFEASIBLE if policy.guarantee.startswith("no guarantee") else 0)


def _default_system(names: Sequence[str]) -> str:
    return "plain" if "plain" in names else names[0] if len(names) == 1 else ""


def _policy_in(output: Path) -> str:
    """Return the class name of the policy in a file; an empty text if the file is empty or does not exist."""
    if not output.is_file() or not output.stat().st_size:
        return ""
    for kind in (ThresholdPolicy, AbstentionPolicy):
        with suppress(InputError):
            kind.load(output)
            return kind.__name__
    raise ConfigurationError(
        f"{output} is not a policy, and would be overwritten", hint="name another file with --output"
    )


def _abstention_policy(
    run: EvaluationRun, system: str, metric: str, measure: str, max_risk: float, confidence: float
) -> AbstentionPolicy:
    names = run.systems
    if system not in names:
        raise ConfigurationError(
            f"the run has no system {system!r}"
            if system
            else f"expected a system to calibrate, got none; the run has {len(names)} systems",
            hint=f"choose from {', '.join(names)} with --system",
        )
    rows = run.certainty_rows(system, metric, measure)
    if all(row.score_without is None for row in rows):
        raise ConfigurationError(
            f"no answer of {system} has both log-probabilities and a score",
            hint="run surerag compare with reference answers, and a model that returns log-probabilities",
        )
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "no guarantee is possible"
        )  # the command shows this sentence itself
        policy = calibrate_abstention(rows, max_risk=max_risk, confidence=confidence)
    settings = run.settings(system)
    known = settings.get("scope") or {"reader": _model_name(str(settings.get("reader", "")))}
    return replace(policy, scope={**known, **policy.scope, "system": system})


def _model_name(reader: str) -> str:
    name = without_address(reader)
    return reader if name == reader else name.rpartition("@")[0]
