"""SePer's tables: weights, known worth (2), numbers of samples (Figure 3), and retrievers (10 and 11)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
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
    write_tables,
)
from studies.world import World
from studies.world.questions import Question
from studies.world.retrievers import graded_retrievers
from surerag import Passage, SePer, SePerResult
from surerag.entailment import JudgeEntailer
from surerag.measures import answer_weights, exact_match, token_f1
from surerag.measures.statistics import Estimate, Interval, mean_interval
from surerag.methods.seper.result import Belief
from surerag.readers.protocol import BaseReader

Floats = NDArray[np.float64]

SAMPLES = (1, 5, 10, 20)
CONCENTRATIONS = (0.02, 0.05, 0.1, 0.3, 1.0)
LANGUAGES = 400
TOP_N = 5
FULL, HALF, NONE = "holds the answer", "holds half of a chain", "holds nothing of it"


class Samples(NamedTuple):
    """Sampled answers with two log-likelihoods: of all tokens with the end token, and per token."""

    answers: Sequence[Hashable]
    total: Floats
    mean: Floats


def weigh_distinct(answers: Sequence[Hashable], logs: Floats) -> Floats:
    """Return weights that are proportional to the likelihoods of the distinct answers and sum to one."""
    shares = np.exp(logs - logs.max())
    shares[[at for at, answer in enumerate(answers) if answer in answers[:at]]] = 0.0
    normalised: Floats = shares / shares.sum()
    return normalised


def weigh_rest_by_frequency(samples: Samples) -> Floats:
    """Return the probabilities as weights; each sample also gets an equal share of the missing rest."""
    shares = answer_weights(samples.answers, samples.total, "probability")
    completed: Floats = shares + (1 - shares.sum()) / len(shares)
    return completed


RULES: Mapping[str, Callable[[Samples], Floats]] = {
    "Horvitz-Thompson (default)": lambda s: answer_weights(s.answers, s.total),
    "probability (paper)": lambda s: answer_weights(s.answers, s.total, "probability"),
    "probability, scaled to sum to one": lambda s: weigh_distinct(s.answers, s.total),
    "probability, plus an equal share of the missing probability "
    "(one minus the sum of all samples' probabilities)": weigh_rest_by_frequency,
    "geometric mean of the token probabilities, distinct answers": (
        lambda s: weigh_distinct(s.answers, s.mean)
    ),
    "geometric mean of the token probabilities, every sample (authors' code)": (
        lambda s: answer_weights(s.answers, s.mean, "official")
    ),
    "frequency among the samples": lambda s: answer_weights(s.answers, None, "frequency"),
}
"""Rules that give weights to sampled answers."""


class MeasuredContext(NamedTuple):
    """A question with a context of known worth, and its ΔSePer by number of samples and by weights."""

    question: Question
    role: str
    utility: float
    results: dict[int, SePerResult]
    by_rule: dict[str, float]


def main() -> None:
    """Print the study."""
    parser = make_parser(__doc__ or "", n=100)
    parser.add_argument("--weights", action="store_true", help="only the simulation of the weights")
    arguments = parser.parse_args()
    if arguments.weights:
        print_simulation(arguments.seed)
        write_tables(arguments)
        return
    reader = load_reader(arguments.reader, arguments.dtype)
    world = World(arguments.seed)
    questions = world.questions(arguments.n, ["single-hop", "two-hop"])
    console.print(f"SePer on {world}, reader {reader.name}, n = {len(questions)}\n")
    evaluator = SePer(reader, JudgeEntailer(reader), max_tokens=16)
    print_simulation(arguments.seed)
    contexts = measure(evaluator, world, questions)
    print_rules(contexts)
    correlations = print_correlations(contexts)
    roles = print_roles(contexts)
    by_samples = print_samples(contexts)
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
    write_tables(arguments)


def positive(interval: Interval | None) -> bool:
    """Return whether an interval lies above zero."""
    return interval is not None and interval.lower > 0


def measure(evaluator: SePer, world: World, questions: Sequence[Question]) -> list[MeasuredContext]:
    """Measure contexts of known worth: all gold passages, each alone, and a passage without the answer."""
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
    means = evaluator.with_options(variant="official").run_many(cases, window=32)  # the same samples
    return [
        MeasuredContext(
            question,
            role,
            utility,
            {n: by_size[n][at] for n in SAMPLES},
            {name: rule_delta(rule, by_size[10][at], means[at]) for name, rule in RULES.items()},
        )
        for at, (question, role, utility, _) in enumerate(contexts)
    ]


def rule_delta(rule: Callable[[Samples], Floats], totals: SePerResult, means: SePerResult) -> float:
    """Return ΔSePer with the weights of a rule, from results with both log-likelihoods."""

    def belief(total: Belief, mean: Belief) -> float:
        samples = Samples(
            [answer.text for answer in total.answers],
            np.array([answer.log_likelihood or 0.0 for answer in total.answers]),
            np.array([answer.log_likelihood or 0.0 for answer in mean.answers]),
        )
        degrees = np.array([max(answer.entailment) for answer in total.answers])
        return float(rule(samples) @ degrees)

    return belief(totals.after, means.after) - belief(totals.before, means.before)


class Language(NamedTuple):
    """All answers of a random model: log-probabilities of tokens and end tokens, lengths, first tokens."""

    tokens: Floats
    ends: Floats
    lengths: NDArray[np.int64]
    first: NDArray[np.int64]


def draw_language(rng: np.random.Generator, concentration: float, depth: int = 4, width: int = 5) -> Language:
    """Draw a random model: at each step it ends, or generates one of ``width`` tokens (Dirichlet)."""
    levels, tokens = [], np.zeros(1)
    for length in range(depth + 1):
        chances = rng.dirichlet(np.full(width + 1, concentration), size=len(tokens)).clip(1e-12)
        logs = np.log(chances / chances.sum(axis=1, keepdims=True))
        ends = logs[:, 0] if length < depth else np.zeros(len(tokens))
        first = np.arange(len(tokens)) // max(width ** (length - 1), 1) if length else np.array([-1])
        levels.append((tokens, ends, np.full(len(tokens), length), first))
        tokens = (tokens[:, None] + logs[:, 1:]).ravel()
    return Language(*map(np.concatenate, zip(*levels, strict=True)))


def print_simulation(seed: int, n: int = 10) -> None:
    """Print the error of the belief on random readers whose belief is a sum over all their answers."""
    rng = np.random.default_rng(seed)
    without = "Horvitz-Thompson without end tokens"
    errors: dict[str, dict[float, list[float]]] = {
        name: {value: [] for value in CONCENTRATIONS} for name in (*RULES, without)
    }
    for value in CONCENTRATIONS:
        for _ in range(LANGUAGES):
            language = draw_language(rng, value)
            p = np.exp(language.tokens + language.ends)
            p /= p.sum()
            meanings = np.where(rng.random(len(p)) < 0.3, rng.integers(0, 5, len(p)), language.first)
            right = (meanings == meanings[rng.choice(len(p), p=p)]).astype(float)
            drawn = rng.choice(len(p), size=n, p=p)
            tokens = language.tokens[drawn]
            means = tokens / language.lengths[drawn].clip(1)
            samples = Samples(drawn.tolist(), tokens + language.ends[drawn], means)
            for name, rule in RULES.items():
                errors[name][value].append(rule(samples) @ right[drawn] - p @ right)
            begun = np.exp(tokens).clip(1e-12, 1 - 1e-12)
            ratios = begun / -np.expm1(n * np.log1p(-begun))
            shares = weigh_distinct(samples.answers, np.log(ratios))
            errors[without][value].append(shares @ right[drawn] - p @ right)
    print_table(
        f"Error of the belief (root mean square; mean) of {n} samples, on {LANGUAGES} random readers each",
        ("Weights", *(f"α = {value:g}" for value in CONCENTRATIONS)),
        [
            (name, *(f"{np.sqrt(np.mean(np.square(e))):.3f}; {np.mean(e):+.3f}" for e in by_value.values()))
            for name, by_value in errors.items()
        ],
        "α: concentration of the distribution of the next token; small is certain.",
    )


def print_rules(contexts: Sequence[MeasuredContext]) -> None:
    """Print the correlation of ΔSePer with the known utility, and its error, by the weights of answers."""
    utilities = np.array([context.utility for context in contexts])
    rows = []
    for name in RULES:
        deltas = np.array([context.by_rule[name] for context in contexts])
        pearson = float(np.corrcoef(utilities, deltas)[0, 1]) if np.ptp(deltas) else 0.0
        error = np.sqrt(np.mean((deltas - utilities) ** 2))
        rows.append((name, f"{pearson:.3f}", f"{error:.3f}"))
    print_table(
        f"ΔSePer of ten samples and known utility by weights, {len(contexts)} contexts",
        ("Weights", "Pearson", "Error"),
        rows,
    )


def print_correlations(contexts: Sequence[MeasuredContext]) -> dict[str, float]:
    """Print Table 2: correlation of each measure's gain with the known utility."""

    def gain(score: str) -> NDArray[np.float64]:
        return np.array(
            [
                sample_score(context, "after", score) - sample_score(context, "before", score)
                for context in contexts
            ]
        )

    utilities = np.array([context.utility for context in contexts])
    gains = {
        "ΔSePer": np.array([context.results[10].delta for context in contexts]),
        "exact match": gain("exact match"),
        "token F1": gain("token F1"),
        "log-likelihood": gain("log-likelihood"),
    }
    values = {
        name: float(np.corrcoef(utilities, gained)[0, 1]) if np.ptp(gained) else 0.0
        for name, gained in gains.items()
    }
    print_table(
        f"Correlation with known utility (cf. Table 2), {len(contexts)} contexts",
        ("Measure", "Pearson"),
        [(name, f"{value:.3f}") for name, value in values.items()],
    )
    return values


def sample_score(context: MeasuredContext, side: str, score: str) -> float:
    """Return the mean of a measure over the sampled answers, without or with context."""
    answers = getattr(context.results[10], side).answers
    if score == "log-likelihood":
        return float(np.mean([answer.log_likelihood or 0.0 for answer in answers]))
    rate = exact_match if score == "exact match" else token_f1
    return float(np.mean([float(rate(answer.text, context.question.answers)) for answer in answers]))


def print_roles(contexts: Sequence[MeasuredContext]) -> dict[str, Estimate]:
    """Print the mean ΔSePer by what a context holds."""
    means = {}
    for role in (FULL, HALF, NONE):
        deltas = [
            context.results[10].delta
            for context in contexts
            if context.role == role and not context.question.taught
        ]
        if deltas:
            means[role] = mean_interval(deltas, bounds=(-1.0, 1.0))
    rows = [(role, mean.n, show(mean, scale=1, digits=2, sign=True)) for role, mean in means.items()]
    print_table("ΔSePer of a context, questions that the reader was not taught", ("It", "n", "ΔSePer"), rows)
    return means


def print_samples(contexts: Sequence[MeasuredContext]) -> dict[int, float]:
    """Print Figure 3: correlation with known utility by number of samples."""
    utilities = [context.utility for context in contexts]
    values = {
        n: float(np.corrcoef(utilities, [context.results[n].delta for context in contexts])[0, 1])
        for n in SAMPLES
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
