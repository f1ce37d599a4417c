"""Sample, judge and measure answers in many contexts: every answer drawn once, every pair judged once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag import SePerOptions
from surerag.clustering import meaning_clusters
from surerag.effects import Program, entail, generate
from surerag.evaluation.rivals import RIVALS, BertScores, TokenEncoder, mean_of
from surerag.evaluation.rivals import Level as RivalLevel
from surerag.measures import answer_weights, semantic_entropy, seper_soft
from surerag.measures.seper import Weights
from surerag.methods.seper.scoring import Verdicts, log_likelihood, pairs_to_judge
from surerag.types import Generation, Pair, Prompt, Sampling

MAX_TOKENS = 24
SAMPLES = 10
"""The method's default. Further samples are drawn for Figure 3 alone, and are not clustered: an uncertain
reader says something else each time, and the pairs to judge grow as the square of what it says."""

SOFT, HARD = SePerOptions(kernel="soft"), SePerOptions(kernel="hard")
"""The method's defaults under either kernel: both read the same samples and the same verdicts."""


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """The answers in one context.

    Attributes:
        texts: The N samples.
        logs: Mean log-probability of the tokens of each, in nats; 0 for an empty answer. Shape [N].
        degrees: How far each means the gold answer, shape [N].
        matches: Whether the first answer of its cluster means the gold answer; of samples that are in none,
            whether the sample itself does. Shape [N].
        clusters: Meaning cluster of each of those that were clustered, the first ones.
    """

    texts: tuple[str, ...]
    logs: NDArray[np.float64]
    degrees: NDArray[np.float64]
    matches: NDArray[np.float64]
    clusters: NDArray[np.intp]

    def first(self, n: int) -> Samples:
        """Return the first n samples: what a run of n would have drawn.

        Clusters stay what they are: greedy clusters of the first answers do not depend on later ones.
        """
        return Samples(self.texts[:n], self.logs[:n], self.degrees[:n], self.matches[:n], self.clusters[:n])


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """What one question's prompts gave.

    Attributes:
        samples: Of each prompt, in order.
        prompts: Distinct prompts that were read.
        prompt_tokens: Tokens of these.
        completion_tokens: Tokens of all samples.
        judged: Pairs that the entailer was asked about.
    """

    samples: tuple[Samples, ...]
    prompts: int
    prompt_tokens: int
    completion_tokens: int
    judged: int


def probe(
    question: str, gold: str, prompts: Sequence[Prompt], n: int, *, clustered: int = SAMPLES, seed: int = 0
) -> Program[Probe]:
    """Sample n answers to each prompt, and judge them against the gold answer and one another.

    Args:
        question: As asked.
        gold: The gold answer.
        prompts: The question in several contexts; equal ones are asked once.
        n: Samples for each.
        clustered: How many of them, the first ones, to put in clusters by meaning; 0 where none are needed.
        seed: Of the samples.
    """
    distinct = list(dict.fromkeys(prompts))
    sampling = Sampling(n=n, temperature=1.0, max_tokens=MAX_TOKENS, seed=seed)
    rows = yield from generate(distinct, sampling)
    texts = [[sample.text for sample in row] for row in rows]
    judgement = yield from _judged(question, gold, texts, clustered)
    found = [_samples(row, gold, judgement, clustered) for row in rows]
    by_prompt = dict(zip(distinct, found, strict=True))
    return Probe(
        samples=tuple(by_prompt[prompt] for prompt in prompts),
        prompts=len(distinct),
        prompt_tokens=sum(row[0].prompt_tokens for row in rows),
        completion_tokens=sum(sample.completion_tokens for row in rows for sample in row),
        judged=judgement.judged,
    )


class _Judgement(NamedTuple):
    """Verdicts on one question's answers; ``place`` numbers the answers, the smaller one is the premise."""

    verdicts: Verdicts
    place: Mapping[str, int]
    judged: int

    def equivalent(self, first: str, second: str) -> bool:
        a, b = sorted((first, second), key=lambda text: self.place.get(text, -1))
        return self.verdicts.equivalent(a, b)


def _judged(question: str, gold: str, texts: Sequence[Sequence[str]], clustered: int) -> Program[_Judgement]:
    """Judge in two rounds: of two answers, the second direction matters only if the first one entails.

    Most answers of an uncertain reader contradict one another, so that this asks about half the pairs.
    """
    place = {text: at for at, text in enumerate(dict.fromkeys(text for row in texts for text in row if text))}
    against = pairs_to_judge(question, texts, [gold], SOFT)
    together = {
        Pair(a, b, question)
        for row in texts
        for a, b in combinations(sorted(set(filter(None, row[:clustered])), key=place.__getitem__), 2)
    }
    among = sorted(together)
    first = list(dict.fromkeys([*against, *among]))
    rows: dict[tuple[str, str], NDArray[np.float64]] = {}
    if first:
        found = yield from entail(first)
        rows.update(zip(((pair.premise, pair.hypothesis) for pair in first), found, strict=True))
    verdicts = Verdicts(rows, HARD)
    back = [Pair(b, a, question) for a, b, _ in among if (b, a) not in rows and verdicts.entails(a, b)]
    if back:
        found = yield from entail(back)
        rows.update(zip(((pair.premise, pair.hypothesis) for pair in back), found, strict=True))
    return _Judgement(verdicts, place, len(rows))


def _samples(row: Sequence[Generation], gold: str, judgement: _Judgement, clustered: int) -> Samples:
    texts = [sample.text for sample in row]
    distinct = list(dict.fromkeys(texts[:clustered]))
    at = [distinct.index(text) for text in texts[:clustered]]
    same = np.eye(len(distinct), dtype=bool)
    for i, j in combinations(range(len(distinct)), 2):
        same[i, j] = same[j, i] = judgement.equivalent(distinct[i], distinct[j])
    clusters = meaning_clusters(same, "all")
    firsts = [distinct[int(np.flatnonzero(clusters == label)[0])] for label in clusters[at]]
    matched = [judgement.verdicts.matches(text, gold) for text in (*firsts, *texts[clustered:])]
    return Samples(
        texts=tuple(texts),
        logs=np.array([log_likelihood(sample, "mean") for sample in row], dtype=np.float64),
        degrees=np.array([judgement.verdicts.degree(text, gold) for text in texts]),
        matches=np.array(matched, dtype=np.float64),
        clusters=clusters[at],
    )


Level = Callable[[Samples, Sequence[str]], float]
"""From the samples in one context, and the accepted answers, the short form first, to a level."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A way to tell what a context is worth: its level with the context, minus that without (Table 2).

    Attributes:
        label: As tables show it.
        level: Larger is better; uncertainties are negated.
        ours: Whether it is a form of SePer, rather than something to compare with.
    """

    label: str
    level: Level
    ours: bool = False


def belief(
    samples: Samples, _: Sequence[str] = (), *, weights: Weights = "distinct", hard: bool = False
) -> float:
    """Return SePer in one context."""
    shares = answer_weights(samples.texts, samples.logs, weights)
    kernel = samples.matches if hard else samples.degrees
    return seper_soft(shares, kernel[:, None])


def _negative_semantic_entropy(samples: Samples, _: Sequence[str]) -> float:
    return -semantic_entropy(answer_weights(samples.texts, samples.logs), samples.clusters)


_WEIGHTS: tuple[Weights, ...] = ("distinct", "official", "frequency")

ALL_FORMS, BERT_SCORE = "Exact match, all forms", "BERTScore, MiniLM"


def rival(label: str, level: RivalLevel) -> Measure:
    """Return a measure that is given the short form alone: what datasets give, and SePer's own gold here."""
    return Measure(label, lambda samples, golds: level(samples.texts, samples.logs, golds[:1]))


BASELINES: tuple[Measure, ...] = (
    *(rival(label, level) for label, level in RIVALS.items()),
    Measure(ALL_FORMS, lambda samples, golds: RIVALS["Exact match"](samples.texts, samples.logs, golds)),
    Measure("Semantic entropy", _negative_semantic_entropy),
)


def bert_measure(encoder: TokenEncoder, texts: Iterable[str]) -> Measure:
    """Return BERTScore by an encoder; ``texts`` are all answers and gold answers."""
    return rival(BERT_SCORE, mean_of(BertScores(encoder, texts)))


OURS: tuple[Measure, ...] = tuple(
    Measure(
        f"ΔSePer {'hard' if hard else 'soft'}, {weights}",
        partial(belief, weights=weights, hard=hard),
        ours=True,
    )
    for hard in (True, False)
    for weights in _WEIGHTS
)
SOFT_DEFAULT, HARD_DEFAULT = "ΔSePer soft, distinct", "ΔSePer hard, distinct"
