"""SePer (Algorithm 1): measure how much retrieval changes a reader's belief in the right answers.

Dai et al., "SePer: Measure Retrieval Utility Through the Lens of Semantic Perplexity Reduction" (ICLR 2025).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from surerag.effects import CONTRADICTION, ENTAILMENT, NEUTRAL, Generate, Program, emit, perform
from surerag.errors import InputError, check_question, kind_of
from surerag.measures import answer_weights, equivalence_clusters, seper_hard, seper_soft
from surerag.measures.seper import Weights, belief_in_references
from surerag.measures.statistics import Interval, bootstrap_interval, difference_interval, resample_counts
from surerag.messages import EVENT_SENTENCES, Generation, Pair, Passage, Prompt
from surerag.methods.seper.options import SePerOptions
from surerag.methods.seper.result import Belief, PassageUtilities, PassageUtility, SampledAnswer, SePerResult
from surerag.methods.shared import Judgements, check_passages, judge
from surerag.prompts import format_passages

Floats = NDArray[np.float64]


def delta_seper(
    question: str, references: Sequence[str], passages: Sequence[Passage], options: SePerOptions
) -> Program[SePerResult]:
    """Measure ΔSePer of passages: SePer with the passages minus SePer without context (Eq. 11)."""
    measured = yield from _measure(question, references, [[], passages], options)
    return _result(question, references, measured, options)


def passage_utilities(
    question: str, references: Sequence[str], passages: Sequence[Passage], options: SePerOptions
) -> Program[PassageUtilities]:
    """Measure ΔSePer of each passage alone, and how much SePer falls if the passage is left out.

    For k passages, answers are sampled in 2 k + 2 contexts, in one request.
    """
    places = range(len(passages))
    left_out = [[*passages[:at], *passages[at + 1 :]] for at in places]
    contexts = [[], passages, *([passage] for passage in passages), *left_out]
    measured = yield from _measure(question, references, contexts, options)
    before, after, *single = (belief.seper for belief in measured.beliefs)
    alone, without = single[: len(passages)], single[len(passages) :]
    return PassageUtilities(
        _result(question, references, measured, options),
        tuple(PassageUtility(passages[at], alone[at] - before, after - without[at]) for at in places),
    )


class _Measured(NamedTuple):
    beliefs: list[Belief]
    weights: Weights
    judgements: Judgements


def _measure(
    question: str, references: Sequence[str], contexts: Sequence[Sequence[Passage]], options: SePerOptions
) -> Program[_Measured]:
    # The first context must be empty, and the second context must contain all passages.
    check_question(question)
    check_passages(contexts[1])
    _check_references(references)
    if not contexts[1]:
        raise InputError("there is no passage to measure", hint="pass at least one retrieved passage")
    prompts = [_prompt(question, passages, options) for passages in contexts]
    samples = yield from perform(Generate(prompts, options.sampling))
    weights = options.rules.weights
    if not all(_can_weigh(row, weights) for row in samples):
        weights = "frequency"
        yield from emit("seper.frequency_weights", warning=True, question=question)
    judgements = yield from judge(pairs_to_judge(question, samples, references, options))
    beliefs = [
        _belief(row, references, judgements, weights, options, place) for place, row in enumerate(samples)
    ]
    if truncated := sum(belief.truncated for belief in beliefs):
        yield from emit(
            "seper.truncated",
            warning=True,
            question=question,
            truncated=truncated,
            samples=sum(map(len, samples)),
            max_tokens=options.max_tokens,
        )
    return _Measured(beliefs, weights, judgements)


def _check_references(references: object) -> None:
    if isinstance(references, str) or not isinstance(references, Sequence):
        raise InputError(
            f"expected a list of right answers as references, got {kind_of(references)}",
            hint="pass a list of all right answers; for a single answer, pass [answer]",
        )
    for reference in references:
        if not isinstance(reference, str):
            raise InputError(f"expected texts as reference answers, got {kind_of(reference)}")
    if not references or not all(reference.strip() for reference in references):
        raise InputError(
            "a reference answer is missing or empty", hint="pass at least one right answer, and no empty text"
        )


def _prompt(question: str, passages: Sequence[Passage], options: SePerOptions) -> Prompt:
    if not passages:
        return options.prompts["closed_book"].render(question=question)  # type: ignore[no-any-return]
    texts = format_passages(passage.text for passage in passages)
    return options.prompts["from_passages"].render(passages=texts, question=question)  # type: ignore[no-any-return]


def pairs_to_judge(
    question: str, samples: Sequence[Sequence[Generation]], references: Sequence[str], options: SePerOptions
) -> list[Pair]:
    """Return the pairs of texts for which the entailer must judge whether one text entails the other.

    Each sampled answer is paired with each reference, and for the hard kernel also with each other answer to
    the same prompt. Pairs of equal texts, and pairs with an empty text, are left out.
    """
    rules, hard = options.rules, options.kernel == "hard"
    pair_question = question if rules.with_question else ""
    if rules.question_mark and not pair_question.endswith("?"):
        pair_question += "?"
    pairs: dict[Pair, None] = {}

    def add(first: str, second: str, both: bool) -> None:
        if first and second and first != second:
            for a, b in ((first, second), (second, first))[: 1 + both]:
                pairs.setdefault(Pair(a, b, pair_question))

    for row in samples:
        texts = list(dict.fromkeys(sample.text for sample in row))
        for text in texts:
            for reference in references:
                add(text, reference, hard or rules.both_directions)
        if hard:
            for first, second in permutations(texts, 2):
                add(first, second, both=False)
    return list(pairs)


def _belief(
    samples: Sequence[Generation],
    references: Sequence[str],
    judgements: Judgements,
    weights: Weights,
    options: SePerOptions,
    place: int,
) -> Belief:
    rules = options.rules
    texts = [sample.text for sample in samples]
    logs = [log_likelihood(sample, rules.weights) for sample in samples]
    degrees = np.array(
        [
            [degree(judgements, text, reference, rules.both_directions) for reference in references]
            for text in texts
        ]
    )
    answers = _answers_of(samples)
    shares = answer_weights(answers, None if weights == "frequency" else logs, weights)  # type: ignore[arg-type]  # no None among them
    clusters, kernel = None, degrees
    if options.kernel == "soft":
        seper = seper_soft(shares, degrees, options.references)
    else:
        equivalent = [[judgements.equivalent(a, b, options.threshold) for b in texts] for a in texts]
        clusters = equivalence_clusters(equivalent, rules.linkage)
        matches = _cluster_matches(texts, clusters, references, judgements, options)
        seper, kernel = seper_hard(shares, clusters, matches, options.references), matches[clusters]
    return Belief(
        seper=seper,
        interval=belief_interval(seper, answers, shares, kernel, options, place),
        answers=tuple(
            SampledAnswer(
                text=text,
                log_likelihood=logs[at],
                weight=float(shares[at]),
                entailment=tuple(degrees[at].tolist()),
                cluster=None if clusters is None else int(clusters[at]),
            )
            for at, text in enumerate(texts)
        ),
        truncated=sum(sample.is_cut for sample in samples),
    )


def _answers_of(samples: Sequence[Generation]) -> list[Hashable]:
    # Answers with equal texts but different tokens are different samples with different probabilities.
    return [(sample.text, sample.trace and sample.trace.tokens) for sample in samples]


def _can_weigh(samples: Sequence[Generation], weights: Weights) -> bool:
    # If probabilities sum to more than 1, the server computed them after applying temperature or top-p.
    logs = [log_likelihood(sample, weights) for sample in samples]
    if any(log is None for log in logs):
        return False
    try:
        answer_weights(_answers_of(samples), [log or 0.0 for log in logs], weights)
    except ValueError:
        return False
    return True


def log_likelihood(sample: Generation, weights: Weights) -> float | None:
    """Return the log-likelihood of an answer in nats, summed over its tokens and the end token (Eq. 7).

    An answer that was truncated at ``max_tokens`` has no end token; the sum over its tokens is the
    log-probability that an answer begins with these tokens. For ``"official"`` weights, the result is the
    mean over the answer's tokens, and 0 for an empty answer.

    Returns:
        The log-likelihood. None if the reader returned no log-probabilities. Except for ``"official"``
        weights, also None if a complete answer lacks the end token's log-probability, or if the reader
        generated thoughts before the answer.
    """
    trace = sample.trace
    if trace is None:
        return None
    logs = np.asarray(trace.logprobs)
    if weights == "official":
        return float(logs.mean()) if len(logs) else 0.0
    ended = trace.end_logprob is not None or sample.finish == "length"
    if not ended or sample.thinking_tokens:
        return None
    return float(logs.sum()) + (trace.end_logprob or 0.0)


def degree(judgements: Judgements, answer: str, reference: str, both_directions: bool) -> float:
    """Return the probability that an answer entails a reference, E(r, a*).

    With ``both_directions``, return the probability that the reference entails the answer, if it is larger.
    """
    if not answer or answer == reference:
        return float(answer == reference)
    forward = judgements.rows[answer, reference][ENTAILMENT]
    if not both_directions:
        return float(forward)
    return float(max(forward, judgements.rows[reference, answer][ENTAILMENT]))


def _cluster_matches(
    texts: Sequence[str],
    clusters: NDArray[np.intp],
    references: Sequence[str],
    judgements: Judgements,
    options: SePerOptions,
) -> Floats:
    rules = options.rules
    rows = []
    for label in range(int(clusters.max()) + 1):
        members = [text for text, cluster in zip(texts, clusters, strict=True) if cluster == label]
        members = members[:1] if rules.linkage == "first" else members
        rows.append(
            [
                all(matches(judgements, text, reference, rules.strict, options.threshold) for text in members)
                for reference in references
            ]
        )
    return np.array(rows, dtype=np.float64)


def matches(
    judgements: Judgements, answer: str, reference: str, strict: bool, threshold: float | None = None
) -> bool:
    """Return whether an answer has the same meaning as a reference.

    With ``strict`` or a ``threshold`` of the entailment probability, answer and reference must entail each
    other. Otherwise it is enough that neither text contradicts the other, and that at most one of the two
    directions is neutral.
    """
    if strict or threshold is not None or not answer or answer == reference:
        return judgements.equivalent(answer, reference, threshold)
    rows = [judgements.rows[answer, reference], judgements.rows[reference, answer]]
    labels = [int(row.argmax()) for row in rows]
    return CONTRADICTION not in labels and labels != [NEUTRAL, NEUTRAL]


def belief_interval(
    seper: float,
    answers: Sequence[Hashable],
    shares: Floats,
    kernel: Floats,
    options: SePerOptions,
    place: int,
) -> Interval:
    """Return the 95 % interval of SePer: a bootstrap over samples, or an exact interval if all samples agree.

    The weight of a distinct answer (``shares``) is divided equally among the samples with this answer. So the
    answer weighs less in a resample that contains fewer of these samples. ``kernel`` [N, references] says how
    much each answer counts for each reference; ``place``, the index of the context, is part of the seed.
    """
    same = np.array([[answer == other for other in answers] for answer in answers])
    resampled = resample_counts(len(answers), (options.seed, place)) * (same @ shares / same.sum(axis=1))
    resampled *= shares.sum() / resampled.sum(axis=1, keepdims=True)
    beliefs = belief_in_references(resampled, kernel, options.references)
    return bootstrap_interval(beliefs, seper, len(answers)) or Interval(0.0, 1.0)


def _result(
    question: str, references: Sequence[str], measured: _Measured, options: SePerOptions
) -> SePerResult:
    before, after, *_ = measured.beliefs
    return SePerResult(
        question=question,
        references=tuple(references),
        before=before,
        after=after,
        delta=after.seper - before.seper,
        interval=difference_interval(after.seper, after.interval, before.seper, before.interval),
        weights=measured.weights,
        kernel=options.kernel,
        judgements=len(measured.judgements.rows),
        unusable=measured.judgements.unusable,
    )


EVENT_SENTENCES |= {
    "seper.frequency_weights": "The answers lack usable probabilities and are weighted by their frequency",
    "seper.invalid": "The belief could not be measured",
    "seper.truncated": "{truncated} of {samples} sampled answers were cut off after {max_tokens} tokens",
}
