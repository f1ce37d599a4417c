"""The grammar of conditions."""

from __future__ import annotations

import pytest

from surerag.errors import ConfigurationError
from surerag.evaluation.ci.condition import parse_condition

SYSTEMS = ["plain", "lazy", "lazy+compressed", "k = 3 - dense"]


@pytest.mark.parametrize(
    ("text", "system", "reference", "factor", "margin"),
    [
        ("accuracy of lazy < plain - 5", "lazy", "plain", 1, 0.05),
        ("accuracy of lazy<plain - 5 points", "lazy", "plain", 1, 0.05),
        ("f1 of lazy+compressed < lazy - 2.5", "lazy+compressed", "lazy", 1, 0.025),
        ("accuracy of lazy < lazy+compressed", "lazy", "lazy+compressed", 1, 0),
        ("accuracy of lazy < plain + 2", "lazy", "plain", 1, -0.02),
        ("accuracy of k = 3 - dense < plain - 1", "k = 3 - dense", "plain", 1, 0.01),
        ("accuracy of plain < k = 3 - dense - 1", "plain", "k = 3 - dense", 1, 0.01),
        ("accuracy of lazy < 70", "lazy", "", 0, -0.7),
        ("accuracy of lazy < 70 %", "lazy", "", 0, -0.7),
        ("tokens of lazy > plain", "lazy", "plain", 1, 0),
        ("tokens of lazy > 0.8 * plain", "lazy", "plain", 0.8, 0),
        ("tokens of lazy > 1.2 x plain + 10", "lazy", "plain", 1.2, 10),
        ("tokens of lazy > plain + 10%", "lazy", "plain", 1.1, 0),
        ("seconds of lazy > 2.5", "lazy", "", 0, 2.5),
        ("accuracy of lazy < baseline - 5", "lazy", "baseline:lazy", 1, 0.05),
        ("accuracy of lazy < baseline:plain - 5", "lazy", "baseline:plain", 1, 0.05),
        ("delta_seper of lazy < plain - 0.1", "lazy", "plain", 1, 0.1),
    ],
)
def test_what_can_be_said(text, system, reference, factor, margin):
    found = parse_condition(text, SYSTEMS, ["plain", "lazy"])
    assert (found.system, found.reference) == (system, reference)
    assert found.factor == pytest.approx(factor) and found.margin == pytest.approx(margin)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("lazy < plain", "cannot be read"),
        ("accurcy of lazy < plain", "Near: accuracy"),
        ("accuracy of lasy < plain - 5", "Near: lazy"),
        ("accuracy of lazy < plane - 5", "Near: plain"),
        ("accuracy of lazy > plain", "what one wants of it"),
        ("tokens of lazy < plain", "what one wants of it"),
        ("accuracy of lazy < plain -", "no system"),
    ],
)
def test_what_cannot_is_said_with_the_near_ones(text, told):
    with pytest.raises(ConfigurationError, match=told):
        parse_condition(text, SYSTEMS)


def test_a_baseline_needs_a_file():
    with pytest.raises(ConfigurationError, match="--baseline FILE"):
        parse_condition("accuracy of lazy < baseline - 5", SYSTEMS)
