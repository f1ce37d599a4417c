"""Which answers of plain RAG are wrong? Measures of certainty, compared with further requests to the reader.

The system ``plain`` stores the log-probability and the entropy of every token of its answer, so that any
measure can be computed from a run. The system ``asked`` also asks the reader whether the answer is right,
asks for a number, and samples five answers. The prompts share their beginning, so that a local reader
processes the passages once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.real.systems import MAX_TOKENS, Meter, Setting
from surerag import Passage, SamplingParams, Services
from surerag.calibration import CalibrationRow, calibrate_abstention
from surerag.certainty import DEFAULT_MEASURE, MEASURES, certainty_of
from surerag.drivers import run_many
from surerag.effects import Generate, Program, perform
from surerag.errors import InputError, extra
from surerag.evaluation import EvaluationAnswer, EvaluationRun, Question
from surerag.evaluation.systems import System
from surerag.measures import auroc, contains, discrete_semantic_entropy
from surerag.measures.statistics import wilson
from surerag.messages import EntropyTrace, Generation, Message, Prompt, TokenTrace
from surerag.methods.shared import meaning_clusters
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.retrieval import PassageIndex

N_SAMPLES = 5
ARE_YOU_SURE = "Is your answer right? Reply only with yes or no."
HOW_SURE = (
    "How likely is it that your answer is right? "
    "Reply only with a number from 0 (surely wrong) to 100 (surely right)."
)

SHORT = SamplingParams(max_tokens=3, trace="logprobs")
SAMPLED = SamplingParams(n=N_SAMPLES, temperature=1.0, max_tokens=MAX_TOKENS, trace="none")


def certainty(setting: Setting) -> dict[str, System]:
    """Return systems that answer from passages and store uncertainties of their answers."""
    reader, encoder, data, k, *_ = setting
    index = PassageIndex.from_passages(data.corpus, encoder, progress=True) if data.corpus else None
    own = {item.text: item.passages for item in data.items}
    answers: dict[str, Generation] = {}

    def prompt_of(question: str) -> str:
        passages: Sequence[Passage] = own[question] if index is None else index.retrieve(question, k)
        context = format_passages(passage.text for passage in passages)
        return str(FROM_CONTEXT.render(context=context, question=question))

    def answered(meter: Meter, question: str) -> Generation:
        if question not in answers:
            answers[question] = meter.generate(prompt_of(question), trace="entropy")
        return answers[question]

    def plain(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        answer = answered(meter, question.text)
        scores = {"cut": float(answer.is_cut)} | noted(answer.trace)
        return EvaluationAnswer(answer.text, (), meter.usage, answer.finish, scores=scores)

    def asked(question: Question) -> EvaluationAnswer:
        meter = Meter(reader)
        answer = answered(meter, question.text)
        scores = noted(answer.trace)
        prompt = prompt_of(question.text)
        turns = (Message("user", prompt), Message("assistant", answer.text))
        sure: Prompt = (*turns, Message("user", ARE_YOU_SURE))
        number: Prompt = (*turns, Message("user", HOW_SURE))
        programs = [
            _generate([sure], SHORT),
            _generate([number], SHORT),
            _generate([prompt], SAMPLED),
        ]
        [doubt], [told], samples = run_many(programs, Services(reader=reader))
        for one in (doubt, told, *samples):
            meter.counted(one)
        clusters = meaning_clusters([one.text for one in samples])
        same = meaning_clusters([answer.text, *(one.text for one in samples)])
        scores |= {
            "are you sure?": doubt_of(doubt),
            "a number in words": 1 - number_in(told.text),
            "disagreement of 5 samples": 1 - same[1:].count(same[0]) / N_SAMPLES,
            "semantic entropy of 5 samples": discrete_semantic_entropy(clusters),
        }
        spent = {"are you sure?": doubt, "a number in words": told, "5 samples": samples[0]}
        scores |= {f"tokens, {name}": float(one.prompt_tokens) for name, one in spent.items()}
        for name, replies in zip(spent, ([doubt], [told], samples), strict=True):
            scores[f"tokens, {name}"] += sum(one.completion_tokens for one in replies)
        return EvaluationAnswer(answer.text, (), meter.usage, answer.finish, scores=scores)

    named = {"plain": plain, "asked": asked}
    return {name: System(name, f, {"system": name, "reader": reader.name}) for name, f in named.items()}


def _generate(prompts: Sequence[Prompt], sampling: SamplingParams) -> Program[list[Generation]]:
    [answers] = yield from perform(Generate(prompts, sampling))
    return answers


def noted(trace: TokenTrace | None) -> dict[str, float]:
    """Return the log-probability and the entropy of each token, with names such as ``entropy 1``."""
    if trace is None or trace.entropy is None:
        return {}
    scores = {f"logprob {at}": value for at, value in enumerate(trace.logprobs, 1)}
    return scores | {f"entropy {at}": value for at, value in enumerate(trace.entropy.middle, 1)}


def steps_of(scores: Mapping[str, float], name: str) -> list[float]:
    """Return the values that :func:`noted` stored by a name, in the order of the tokens."""
    found: list[float] = []
    while (value := scores.get(f"{name} {len(found) + 1}")) is not None:
        found.append(value)
    return found


def doubt_of(reply: Generation) -> float:
    """Return one minus the probability of yes, from the first token of a reply.

    Example:
        >>> trace = TokenTrace(("Yes",), (math.log(0.75),))
        >>> round(doubt_of(Generation("Yes", trace=trace)), 2)
        0.25
    """
    if reply.trace is None or not len(reply.trace):
        return 0.5
    first = math.exp(reply.trace.logprobs[0])
    return 1 - first if reply.text.strip().lower().startswith("yes") else first


def number_in(text: str) -> float:
    """Return the first number of a reply as a share of 100; 0.5 if it has no number.

    Example:
        >>> number_in("About 95 %"), number_in("very")
        (0.95, 0.5)
    """
    found = re.search(r"\d+(?:\.\d+)?", text)
    return min(float(found.group()), 100.0) / 100 if found else 0.5


# Tables

SHARES = (0.5, 0.7, 0.9)
"""Shares of the most certain answers whose right answers a table counts."""
CURVE = tuple(share / 20 for share in range(1, 21))
SPLITS = 200
"""Number of random halves on which the limit of a calibration is tested."""
FEWEST_GROUPS = 40
"""Smallest number of paragraphs of a run that is split into halves."""
FURTHER = {
    "are you sure?": "are you sure?",
    "a number in words": "a number in words",
    "disagreement of 5 samples": "5 samples",
    "semantic entropy of 5 samples": "5 samples",
}
"""Measures that need further requests, with the name of the request."""

TableRow = dict[str, Any]


class Answers(NamedTuple):
    """Results of a run, with one value for each question.

    Attributes:
        right: Whether the answer contains a reference, shape [questions].
        groups: The paragraph that a question belongs to; questions of one paragraph depend on each other.
        measures: Uncertainties by name, each of shape [questions]; infinite for an answer without words.
        tokens: Tokens of further requests by name, each of shape [questions].
    """

    right: NDArray[np.bool_]
    groups: list[str]
    measures: dict[str, NDArray[np.float64]]
    tokens: dict[str, NDArray[np.float64]]


def answers_of(run: EvaluationRun, system: str) -> Answers:
    """Return the answers of a system with all measures of certainty."""
    rows = run.answered(system)
    questions = [question for question in run.questions if question.key in rows]
    right = run.values(system, "contains")
    noted_of = [rows[question.key].answer.scores for question in questions]  # type: ignore[union-attr]
    measures: dict[str, list[float]] = {name: [] for name in MEASURES}
    for scores in noted_of:
        logprobs, entropies = steps_of(scores, "logprob"), steps_of(scores, "entropy")
        exact = EntropyTrace(tuple(entropies), tuple(entropies), exact=True)
        found = certainty_of(TokenTrace(("",) * len(logprobs), tuple(logprobs), exact)).uncertainties
        for name in MEASURES:
            measures[name].append(found[name].lower if name in found else math.inf)
    for request in FURTHER:
        if all(request in scores for scores in noted_of):
            measures[request] = [scores[request] for scores in noted_of]
    asked = {name for name in FURTHER.values() if f"tokens, {name}" in noted_of[0]} if noted_of else set()
    return Answers(
        np.array([right[question.key] >= 0.5 for question in questions], bool),
        [question.contexts[0] for question in questions],
        {name: np.array(values) for name, values in measures.items()},
        {name: np.array([scores[f"tokens, {name}"] for scores in noted_of]) for name in asked},
    )


def certainty_rows(run: EvaluationRun) -> list[TableRow]:
    """Return a row for each measure: its AUROC, and the right answers among the most certain ones.

    Intervals take the questions of a paragraph together. The row of the default measure has the whole curve.
    """
    answers = answers_of(run, "asked" if "asked" in run.systems else "plain")
    if not len(answers.right):
        raise InputError("no question was answered", hint="go on with the run")
    rows: list[TableRow] = [
        {"system": "all answers", "n": len(answers.right), "right": _percent(answers.right)}
    ]
    resamples = list(resamples_of(answers.groups))
    for name, values in answers.measures.items():
        area = auroc(values, answers.right, answers.groups)
        row: TableRow = {"system": name, "n": len(values)}
        if area is not None:
            row["auroc"] = [round(area.value, 2), *(round(end, 2) for end in area.interval or ())]
        for share in SHARES:
            row[f"surest {share:.0%}"] = _surest(values, answers.right, share, resamples)
        request = FURTHER.get(name)
        row["further calls"] = 0.0 if request is None else 5.0 if request == "5 samples" else 1.0
        row["further tokens"] = 0.0 if request is None else float(answers.tokens[request].mean())
        if name == DEFAULT_MEASURE:
            row["curve"] = [[share, *_surest(values, answers.right, share, resamples)] for share in CURVE]
        rows.append(row)
    return rows


def promise_rows(run: EvaluationRun, measure: str = DEFAULT_MEASURE) -> list[TableRow]:
    """Return how often the limit of an abstention policy is exceeded on the other half of the questions.

    All questions of a paragraph are in the same half. A run with few paragraphs, or without ``plain``, has no
    rows.
    """
    if "plain" not in run.systems:
        return []
    answers = answers_of(run, "plain")
    numbers = {group: number for number, group in enumerate(dict.fromkeys(answers.groups))}
    if len(numbers) < FEWEST_GROUPS:
        return []
    places = np.array([numbers[group] for group in answers.groups])
    values = answers.measures[measure]
    rng = np.random.default_rng(0)
    found: dict[float, list[tuple[float, float]]] = {risk: [] for risk in (0.1, 0.2, 0.3)}
    for _ in range(SPLITS):
        half = rng.permutation(len(numbers))[places] < len(numbers) // 2
        rows = [
            CalibrationRow(value, float(right), group=str(place))
            for value, right, place in zip(values[half], answers.right[half], places[half], strict=True)
        ]
        for risk, shown in found.items():
            others = values[~half]
            answered = (others <= calibrate_abstention(rows, max_risk=risk).threshold) & np.isfinite(others)
            wrong = float((~answers.right[~half][answered]).mean()) if answered.any() else 0.0
            shown.append((float(answered.mean()), wrong))
    return [
        {
            "system": f"at most {risk:.0%} wrong",
            "n": len(values),
            "answered": round(float(np.mean([answered for answered, _ in shown])), 3),
            "wrong among them": round(
                float(np.mean([wrong for answered, wrong in shown if answered] or [0])), 3
            ),
            "broken": round(float(np.mean([wrong > risk for _, wrong in shown])), 3),
        }
        for risk, shown in found.items()
    ]


def trace_rows(file: Path) -> list[TableRow]:
    """Return how well recorded measures find wrong answers of an 8 B model without passages.

    Args:
        file: ``traces/single_hop.parquet``: 500 questions of NQ, and as many of TriviaQA.
    """
    with extra("evaluation"):
        import pyarrow.parquet as pq
    recorded = pq.read_table(file).to_pylist()
    rows: list[TableRow] = []
    for name, dataset in (("NQ", "nq"), ("TriviaQA", "triviaqa")):
        some = [one for one in recorded if one["dataset"] == dataset]
        right = np.array([contains(one["answer"], one["golds"]) >= 0.5 for one in some], bool)
        rows.append({"system": f"{name}: all answers", "n": len(some), "right": _percent(right)})
        resamples = list(resamples_of([one["id"] for one in some]))
        for measure, sign in (("perplexity", 1), ("ln_entropy", 1), ("energy", -1), ("eigen_score", 1)):
            values = sign * np.array([one[measure] for one in some], np.float64)
            area = auroc(values, right)
            row: TableRow = {"system": f"{name}: {measure}", "n": len(some)}
            if area is not None:
                row["auroc"] = [round(area.value, 2), *(round(end, 2) for end in area.interval or ())]
            rows.append(row | {f"surest {at:.0%}": _surest(values, right, at, resamples) for at in SHARES})
    return rows


def smallest_auroc(n: int, wrong: float = 0.35) -> float:
    """Return the smallest AUROC that n questions show to exceed one half in four runs of five, at 5 %.

    The standard error is that of Hanley and McNeil (1982, Eq. 1) for an AUROC of one half.

    Args:
        n: Number of questions.
        wrong: Share of wrong answers.

    Example:
        >>> round(smallest_auroc(600), 3), round(smallest_auroc(50), 2)
        (0.569, 0.74)
    """
    positives = max(1.0, n * wrong)
    negatives = max(1.0, n - positives)
    error = math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    return 0.5 + (1.96 + 0.84) * error


def _percent(right: NDArray[np.bool_]) -> list[float]:
    found = wilson(int(right.sum()), len(right))
    return [round(100 * value, 1) for value in (float(right.mean()), found.lower, found.upper)]


def resamples_of(groups: Sequence[str], count: int = 1000) -> Iterator[NDArray[np.intp]]:
    """Yield places of resampled questions; whole groups are drawn with replacement."""
    members: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        members.setdefault(group, []).append(place)
    places = [np.array(some) for some in members.values()]
    rng = np.random.default_rng(0)
    for _ in range(count):
        yield np.concatenate([places[at] for at in rng.integers(len(places), size=len(places))])


def _surest(
    values: NDArray[np.float64], right: NDArray[np.bool_], share: float, resamples: Sequence[NDArray[np.intp]]
) -> list[float]:
    """Return the share of right answers among the most certain ones, in %, with its interval."""

    def share_right(at: NDArray[np.intp]) -> float:
        most = max(1, round(share * len(at)))
        return float(right[at][np.argsort(values[at], kind="stable")[:most]].mean())

    ends = np.quantile([share_right(at) for at in resamples], (0.025, 0.975))
    return [round(100 * float(value), 1) for value in (share_right(np.arange(len(values))), *ends)]
