"""SePer's tables: known utility (2), numbers of samples (Figure 3), and retrievers (10 and 11)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studies.common import (
    Claim,
    console,
    load_encoder,
    load_reader,
    make_parser,
    print_claims,
    print_table,
    show,
)
from studies.world import World
from studies.world.questions import Question
from studies.world.retrievers import graded_retrievers
from surerag import Passage, SePer, SePerResult
from surerag.entailment import JudgeEntailer
from surerag.measures import exact_match, token_f1
from surerag.measures.statistics import Estimate, Interval, mean_interval
from surerag.readers.protocol import BaseReader

SAMPLES = (1, 5, 10, 20)
TOP_N = 5
FULL, HALF, NONE = "holds the answer", "holds half of a chain", "holds nothing of it"


class Trial(NamedTuple):
    """A question with a context of known utility, and its ΔSePer by number of samples."""

    question: Question
    role: str
    utility: float
    results: dict[int, SePerResult]


def main() -> None:
    """Print the study."""
    arguments = make_parser(__doc__ or "", n=100).parse_args()
    reader = load_reader(arguments.reader)
    world = World(arguments.seed)
    questions = world.questions(arguments.n, ["single-hop", "two-hop"])
    console.print(f"SePer on {world}, reader {reader.name}, n = {len(questions)}\n")
    evaluator = SePer(reader, JudgeEntailer(reader), max_tokens=16)
    trials = measure(evaluator, world, questions)
    correlations = print_correlations(trials)
    roles = print_roles(trials)
    by_samples = print_samples(trials)
    order = print_retrievers(evaluator, world, questions[: max(len(questions) // 2, 20)], reader)
    best = max((name for name in correlations if name != "ΔSePer"), key=lambda name: correlations[name])
    print_claims(
        [
            Claim(
                "ΔSePer follows known utility more closely than all other measures",
                f"{correlations['ΔSePer']:.3f} against {correlations[best]:.3f} of {best}",
                correlations["ΔSePer"] > correlations[best],
            ),
            Claim(
                "Passages that hold nothing are worth about nothing",
                show(roles[NONE], scale=1, digits=2, sign=True),
                abs(roles[NONE].value) <= 0.1,
            ),
            Claim(
                "Half of the evidence is worth something, and less than all (Table 7)",
                "n/a" if HALF not in roles else show(roles[HALF], scale=1, digits=2, sign=True),
                HALF in roles and positive(roles[HALF].interval) and roles[HALF].value < roles[FULL].value,
            ),
            Claim(
                "Ten samples correlate within 1 % of twenty (Figure 3)",
                f"{by_samples[10]:.3f} against {by_samples[20]:.3f}",
                by_samples[10] >= 0.99 * by_samples[20],
            ),
            Claim("ΔSePer ranks retrievers as their recall does (Tables 10 and 11)", order[0], order[1]),
        ]
    )


def positive(interval: Interval | None) -> bool:
    """Return whether an interval lies above zero."""
    return interval is not None and interval.lower > 0


def measure(evaluator: SePer, world: World, questions: Sequence[Question]) -> list[Trial]:
    """Measure contexts of known utility: the gold passages, each alone, and a passage with nothing of it."""
    contexts: list[tuple[Question, str, float, tuple[Passage, ...]]] = []
    for question in questions:
        gold = tuple(world.passage[name] for name in question.gold_passages)
        whole = 0.0 if question.taught else 1.0
        contexts.append((question, FULL, whole, gold))
        contexts.append((question, NONE, 0.0, world.contexts.lacking(question, 1, noise=1.0)))
        if question.hops == 2:
            contexts += [(question, HALF, question.utilities[passage.id], (passage,)) for passage in gold]
    by_size = {}
    for n in SAMPLES:
        cases = [(question.text, question.answers, passages) for question, _, _, passages in contexts]
        by_size[n] = evaluator.with_options(n_samples=n).run_many(cases, window=32)
    return [
        Trial(question, role, utility, {n: by_size[n][at] for n in SAMPLES})
        for at, (question, role, utility, _) in enumerate(contexts)
    ]


def print_correlations(trials: Sequence[Trial]) -> dict[str, float]:
    """Print Table 2: correlation of each measure's gain with the known utility."""

    def gain(score: str) -> NDArray[np.float64]:
        return np.array(
            [sample_score(trial, "after", score) - sample_score(trial, "before", score) for trial in trials]
        )

    utilities = np.array([trial.utility for trial in trials])
    gains = {
        "ΔSePer": np.array([trial.results[10].delta for trial in trials]),
        "exact match": gain("exact match"),
        "token F1": gain("token F1"),
        "log-likelihood": gain("log-likelihood"),
    }
    values = {
        name: float(np.corrcoef(utilities, gained)[0, 1]) if np.ptp(gained) else 0.0
        for name, gained in gains.items()
    }
    print_table(
        f"Correlation with known utility (cf. Table 2), {len(trials)} contexts",
        ("Measure", "Pearson"),
        [(name, f"{value:.3f}") for name, value in values.items()],
    )
    return values


def sample_score(trial: Trial, side: str, score: str) -> float:
    """Return the mean of a measure over the sampled answers, without or with context."""
    answers = getattr(trial.results[10], side).answers
    if score == "log-likelihood":
        return float(np.mean([answer.log_likelihood or 0.0 for answer in answers]))
    rate = exact_match if score == "exact match" else token_f1
    return float(np.mean([float(rate(answer.text, trial.question.answers)) for answer in answers]))


def print_roles(trials: Sequence[Trial]) -> dict[str, Estimate]:
    """Print the mean ΔSePer by what a context holds."""
    means = {}
    for role in (FULL, HALF, NONE):
        deltas = [
            trial.results[10].delta for trial in trials if trial.role == role and not trial.question.taught
        ]
        if deltas:
            means[role] = mean_interval(deltas, bounds=(-1.0, 1.0))
    rows = [(role, mean.n, show(mean, scale=1, digits=2, sign=True)) for role, mean in means.items()]
    print_table("ΔSePer of a context, questions that the reader was not taught", ("It", "n", "ΔSePer"), rows)
    return means


def print_samples(trials: Sequence[Trial]) -> dict[int, float]:
    """Print Figure 3: correlation with known utility by number of samples."""
    utilities = [trial.utility for trial in trials]
    values = {
        n: float(np.corrcoef(utilities, [trial.results[n].delta for trial in trials])[0, 1]) for n in SAMPLES
    }
    print_table(
        "Samples (cf. Figure 3)", ("N", "Pearson"), [(str(n), f"{value:.3f}") for n, value in values.items()]
    )
    return values


def print_retrievers(
    evaluator: SePer, world: World, questions: Sequence[Question], reader: BaseReader
) -> tuple[str, bool]:
    """Print Tables 10 and 11: retrievers of graded quality by recall and by ΔSePer."""
    rows = []
    for name, retriever in graded_retrievers(world, questions, load_encoder()).items():
        contexts = [retriever.retrieve(question.text, TOP_N) for question in questions]
        recall = float(
            np.mean(
                [
                    set(question.gold_passages) <= {passage.id for passage in passages}
                    for question, passages in zip(questions, contexts, strict=True)
                ]
            )
        )
        cases = [(q.text, q.answers, passages) for q, passages in zip(questions, contexts, strict=True)]
        deltas = [result.delta for result in evaluator.run_many(cases, window=32)]
        rows.append((name, recall, mean_interval(deltas, bounds=(-1.0, 1.0))))
    print_table(
        f"Retrievers at {TOP_N} (cf. Tables 10 and 11), n = {len(questions)}",
        ("Retriever", f"Recall@{TOP_N}, %", "ΔSePer"),
        [
            (name, f"{100 * recall:.1f}", show(mean, scale=1, digits=2, sign=True))
            for name, recall, mean in rows
        ],
    )
    by_recall = [name for name, _, _ in sorted(rows, key=lambda row: -row[1])]
    by_delta = [name for name, _, _ in sorted(rows, key=lambda row: -row[2].value)]
    return " > ".join(by_delta), by_recall == by_delta


if __name__ == "__main__":
    main()
