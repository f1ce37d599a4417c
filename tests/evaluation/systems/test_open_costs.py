"""A system that is shown to lose little, at a cost that nobody tells, is not called undecided as well."""

from __future__ import annotations

from surerag.evaluation.statistics import Estimate
from surerag.evaluation.systems.recommending import recommend
from surerag.evaluation.systems.results import Difference, Recommendation, SystemFigures, Verdict


def recommended(tokens: float) -> Recommendation:
    figures = [
        SystemFigures(
            name, 900, 0, {"accuracy": Estimate(0.5, 0.4, 0.6)}, {}, {"tokens": tokens}, None, 0.0, False
        )
        for name in ("plain", "lazy")
    ]
    gap = Difference("accuracy", "lazy", "plain", 900, -0.01, -0.03, 0.01, 0.2, 0.2, 9, 0, 0.1)
    verdicts = [Verdict("lazy", "no worse", None, None)]
    return recommend(figures, verdicts, [gap], "plain", "accuracy", "tokens", 0.05)


def test_what_is_open_is_its_cost_alone() -> None:
    found = recommended(0.0)
    assert "lazy (-1.0) was shown to lose less than 5 points." in found.text
    assert "It is open whether lazy is better. What answers of lazy cost is not known." in found.text
    assert "Undecided" not in found.text
    assert not found.decided and found.undecided == ("lazy",)
    assert recommended(9.0).text.endswith("It is open whether lazy is better or takes fewer tokens.")
