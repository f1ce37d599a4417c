"""Calibrate: what is promised, where it cannot be, and what nothing is promised about."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from surerag import FakeReader, LazyRAG, UncertaintyRewriter
from surerag.decisions.calibrating import calibrate
from surerag.decisions.gain import gain_at
from surerag.decisions.policy import CalibrationWarning, Identity, Policy
from surerag.decisions.rows import DecisionRow, Outcomes, outcomes_of, signal_of
from surerag.errors import ConfigurationError, InputError
from surerag.messages import Passage
from surerag.readers.fake import reply
from tests.decisions.samples import policy, rows_of, world


class Corpus:
    def __init__(self, text: str) -> None:
        self._text = text

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return [Passage(self._text)]


def loss_of(rows: list[DecisionRow], threshold: float) -> float:
    kept = signal_of(rows, "doubt") <= threshold
    return float(np.where(kept, outcomes_of(rows).benefit, 0.0).mean())


@pytest.mark.parametrize("confidence", [0.8, 0.95])
@pytest.mark.parametrize("shape", ["useless", "useful", "perverse", "no harm"])
def test_promises_are_broken_as_seldom_as_they_say(confidence: float, shape: str) -> None:
    """The true loss at the threshold, on 20,000 questions of the same kind, over 80 samples."""
    kinds: dict[str, dict[str, float]] = {
        "useless": {"mends": 0.12, "spoils": 0.1},
        "useful": {"told": 1.0},
        "perverse": {"told": -1.0},
        "no harm": {"mends": 0.1, "spoils": 0.0},
    }
    rng = np.random.default_rng(7)
    truth = world(rng, 20_000, **kinds[shape])
    broken = sum(
        loss_of(truth, calibrate("doubt", world(rng, 250, **kinds[shape]), confidence=confidence).threshold)
        > 0.02
        for _ in range(80)
    )
    allowed = 1 - confidence
    assert broken / 80 <= allowed + 2.33 * math.sqrt(allowed * confidence / 80)


def test_the_loss_that_comes_first_ends_the_search() -> None:
    """A threshold behind which the loss is mended again is not reached over one where it is too large."""
    signals = list(range(600))
    benefit = [1.0] * 100 + [-1.0] * 100 + [0.0] * 400
    rows = rows_of(signals, [float(b < 0) for b in benefit], [float(b > 0) for b in benefit])
    assert calibrate("doubt", rows, max_loss=0.02).rate > 0.95
    assert calibrate("doubt", rows, target="best").rate == 0


def test_a_sample_that_is_too_small_says_how_many_would_do() -> None:
    rng = np.random.default_rng(3)
    small = calibrate("doubt", world(rng, 100, mends=0.02, spoils=0.02))
    assert (small.verdict, small.threshold, small.rate) == ("infeasible", -math.inf, 1.0)
    assert small.needed is not None and small.needed >= 149
    assert f"infeasible at n = 100; about {small.needed:,} would be needed" in small.promise
    assert calibrate("doubt", world(rng, 100), on_infeasible="never").threshold == math.inf
    with pytest.raises(InputError, match=r"no threshold can be certified at n = 100; about \d"):
        calibrate("doubt", world(rng, 100, mends=0.02, spoils=0.02), on_infeasible="raise")
    hopeless = rows_of(range(300), [0.0] * 300, [1.0] * 300)
    found = calibrate("doubt", hopeless)
    assert (found.needed, found.rate) == (None, pytest.approx(1.0, abs=0.01))


def test_always_acting_is_never_sold_as_a_gain() -> None:
    rng = np.random.default_rng(5)
    verdicts = [calibrate("doubt", world(rng, 250)).verdict for _ in range(60)]
    assert verdicts.count("holds") <= 3
    assert calibrate("doubt", rows_of(range(300), [0] * 300, [1] * 300)).verdict != "holds"


def test_a_gain_is_shown_where_there_is_one() -> None:
    rows = rows_of(range(400), [i < 300 for i in range(400)], [True] * 400)
    found = calibrate("doubt", rows)
    assert found.verdict == "holds"
    assert found.gain is not None and found.gain.lower > 0.1
    assert "Gain over acting at random on 24 % of questions" in found.promise


def test_the_interval_of_a_gain_covers_zero_though_the_threshold_was_chosen_on_the_sample() -> None:
    rng = np.random.default_rng(11)
    above = 0
    for _ in range(200):
        signals, benefit = rng.standard_normal(200), rng.choice([-1, 0, 1], size=200, p=[0.1, 0.7, 0.2])
        outcomes = Outcomes((benefit < 0).astype(float), (benefit > 0).astype(float))
        gains = [(gain_at(signals, outcomes, at), at) for at in np.quantile(signals, [0.2, 0.4, 0.6, 0.8])]
        above += max(gains, key=lambda pair: pair[0].value)[0].lower > 0
    assert above / 200 <= 0.05


def test_a_budget_holds_with_or_without_gold_answers() -> None:
    rng = np.random.default_rng(2)
    broken = 0
    for _ in range(200):
        rows = [DecisionRow({"doubt": float(value)}) for value in rng.standard_normal(200)]
        found = calibrate("doubt", rows, target="budget", budget=0.5, confidence=0.9)
        broken += 0.5 * math.erfc(found.threshold / math.sqrt(2)) > 0.5
        assert 0.35 <= found.rate <= 0.5
    assert broken / 200 <= 0.1 + 2.33 * math.sqrt(0.09 / 200)
    assert (found.verdict, found.loss, found.gain) == ("holds", None, None)
    assert "Without gold answers nothing is promised about answers" in found.promise
    assert calibrate("doubt", world(rng, 200), target="budget", budget=0.5).gain is not None
    few = calibrate("doubt", rows[:3], target="budget", budget=0.5)
    assert (few.verdict, few.threshold, few.needed) == ("infeasible", math.inf, 5)


def test_both_bounds_hold_together_or_not_at_all() -> None:
    rows = rows_of(range(600), [i < 450 for i in range(600)], [True] * 600)
    both = calibrate("doubt", rows, target="both", budget=0.4)
    assert both.verdict == "holds" and 0.2 < both.rate <= 0.4
    assert "loses at most 2 points against always acting and acts on at most 40 %" in both.promise
    assert calibrate("doubt", rows, target="both", budget=0.1).verdict == "infeasible"


def test_scores_between_right_and_wrong_are_bounded_by_betting() -> None:
    rng = np.random.default_rng(4)
    n = 3000
    signals = rng.random(n)
    without = np.where(signals < 0.7, 0.8, 0.2)
    rows = rows_of(signals.tolist(), without.tolist(), [0.8] * n)
    found = calibrate("doubt", rows)
    assert found.verdict == "holds"
    assert 0.25 < found.rate < 0.4


def test_a_policy_is_refused_for_another_model_signal_or_prompt() -> None:
    mine = Identity("one", "entropy", "abc")
    policy(1.0, mine).check(mine)
    for other, told in (
        (Identity("two", "entropy", "abc"), "reader 'one' and is used with 'two'"),
        (Identity("one", "margin", "abc"), "signal 'entropy' and is used with 'margin'"),
        (Identity("one", "entropy", "abd"), "prompts and settings 'abc'"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            policy(1.0, mine).check(other)
    with pytest.warns(CalibrationWarning, match="for which reader and prompts and settings"):
        policy(1.0, Identity(signal="entropy")).check(mine)


@pytest.mark.parametrize("threshold", [1.5, math.inf, -math.inf])
def test_a_policy_is_numbers_in_a_file(tmp_path: Path, threshold: float) -> None:
    found = calibrate("doubt", rows_of(range(400), [i < 300 for i in range(400)], [True] * 400))
    for kept in (policy(threshold), found):
        kept.save(tmp_path / "policy.json")
        assert Policy.load(tmp_path / "policy.json") == kept
        strict = json.loads((tmp_path / "policy.json").read_text(), parse_constant=pytest.fail)
        assert strict["n"] == kept.n


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"tau": 1}', "without .*threshold.* with unknown tau"),
        ("[1, 2]", "found list"),
        ("{", "holds no policy"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, text: str | None, told: str) -> None:
    if text is not None:
        (tmp_path / "x.json").write_text(text)
    with pytest.raises(InputError, match=told):
        Policy.load(tmp_path / "x.json")


def test_a_policy_with_a_text_for_a_number_is_refused() -> None:
    with pytest.raises(InputError, match="threshold of a policy must be a number, found 'high'"):
        Policy.from_dict({**policy(1.0).to_dict(), "threshold": "high"})
    with pytest.raises(InputError, match="identity cannot be read"):
        Policy.from_dict({**policy(1.0).to_dict(), "identity": {"who": "me"}})


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"target": "lowest"}, "target must be one of loss, budget, both, best"),
        ({"max_loss": 0.0}, r"max_loss must be in \(0, 1\]"),
        ({"target": "budget"}, r"needs a budget in \[0, 1\], got None"),
        ({"target": "both", "budget": 50}, "got 50"),
        ({"budget": 0.5}, "reads no budget"),
        ({"confidence": 95}, r"confidence must be in \(0, 1\), got 95"),
        ({"on_infeasible": "maybe"}, "on_infeasible must be one of always, never, raise"),
    ],
)
def test_what_cannot_be_promised_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        calibrate("doubt", rows_of([1.0], [1], [1]), **given)


def script(prompt: str) -> Any:
    right = "easy" in prompt or "Additional" in prompt
    return reply("Velm" if right else "Orun", entropy=0.1 if "easy" in prompt else 2.0)


def test_a_pipeline_is_calibrated_saved_and_refused_with_another_reader(tmp_path: Path) -> None:
    rag = LazyRAG(FakeReader(script, name="one"), Corpus("Detail."), "Summary.")
    questions = [f"{kind} {i}" for i in range(100) for kind in ("easy", "hard")]
    found = calibrate(rag, rag.rows(questions, [["Velm"]] * 200))
    assert (found.threshold, found.rate, found.loss, found.verdict) == (pytest.approx(0.1), 0.5, 0.0, "holds")
    found.save(tmp_path / "policy.json")
    loaded = Policy.load(tmp_path / "policy.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ready = rag.with_options(threshold=loaded)
    assert [result.decision.retrieve for result in ready.run_many(questions[:4])] == [False, True] * 2
    with pytest.raises(ConfigurationError, match="reader 'one' and is used with 'two'"):
        LazyRAG(FakeReader(script, name="two"), Corpus("Detail."), "Summary.", threshold=loaded)
    with pytest.raises(ConfigurationError, match="for the signal"):
        rag.with_options(threshold=loaded, gate_tokens=3)
    with pytest.raises(ConfigurationError, match="for the prompts"):
        rag.with_options(threshold=loaded, prompts={"closed_book": "Q: {question}"})
    assert rag.from_dict(rag.with_options(threshold=loaded).to_dict(), **living(rag)).threshold == loaded


def living(rag: LazyRAG) -> dict[str, Any]:
    return {"reader": rag.reader, "retriever": rag.retriever, "summaries": rag.summaries}


@pytest.mark.parametrize("method", [LazyRAG, UncertaintyRewriter])
@pytest.mark.parametrize(
    ("questions", "golds", "told"),
    [(["a", "b"], [["x"]], "each of 2 questions, got 1"), ([], [], "no questions")],
)
def test_a_useless_sample_costs_nothing(method: Any, questions: Any, golds: Any, told: str) -> None:
    reader = FakeReader(["an answer"])
    made = method(reader, Corpus("a passage"), **({"summaries": "s"} if method is LazyRAG else {}))
    with pytest.raises(InputError, match=told):
        made.rows(questions, golds)
    assert reader.prompts == []


def test_what_is_no_component_is_told_so() -> None:
    with pytest.raises(ConfigurationError, match="expected a component or the name of a signal, got int"):
        calibrate(3, rows_of([1.0], [1], [1]))  # type: ignore[arg-type]  # on purpose
