"""What a monitor tells OpenTelemetry, as its own SDK collects it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("opentelemetry.sdk.metrics", reason="make test-models has it")

from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from surerag import Monitor, Policy
from surerag.decisions.policy import Identity


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    # A provider can be set once a process; what asks for a meter is given this one.
    monkeypatch.setattr(metrics, "get_meter", provider.get_meter)
    yield reader
    provider.shutdown()


def counted(reader: InMemoryMetricReader) -> dict[str, dict[Any, float]]:
    """Return each counter's points by their attributes."""
    found: dict[str, dict[Any, float]] = {}
    data = reader.get_metrics_data()
    assert data is not None
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points = found.setdefault(metric.name, {})
                for point in metric.data.data_points:
                    points[tuple(sorted((point.attributes or {}).items()))] = point.value
    return found


def test_decisions_and_alarms_are_counted(collected: InMemoryMetricReader) -> None:
    policy = Policy(0.43, "loss", 0.02, None, 0.95, 250, 1 / 3, identity=Identity(signal="doubt"))
    rng = np.random.default_rng(3)
    monitor = Monitor(policy, rng.standard_normal(250).tolist(), audit_share=0.0, seed=1)
    for value in rng.standard_normal(400) + 2.0:
        monitor.decide(float(value))
    found = counted(collected)
    assert sum(found["surerag.decisions"].values()) == 400
    assert sum(found["surerag.alarms"].values()) == len(monitor.alarms) > 0
    told = {value for attributes in found["surerag.alarms"] for _, value in attributes}
    assert {alarm.watched for alarm in monitor.alarms} <= told
