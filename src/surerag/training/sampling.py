"""Training data of a rewriter: a teacher's rewrites, and pairs of rewrites (DynQR, section 2.2)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

from surerag.drivers import run_many
from surerag.effects import Generate, Program, Retrieve, perform
from surerag.errors import MISCONFIGURED, InputError, MissingServiceError, ServiceError, SureragError
from surerag.measures import contains, exact_match, perplexity
from surerag.messages import SamplingParams
from surerag.methods.dynqr.rewrites import read_rewrite
from surerag.methods.shared import embed_unit
from surerag.progress import Progress
from surerag.prompts import CLOSED_BOOK, format_passages
from surerag.readers.protocol import Reader, as_reader
from surerag.services import Encoder, Retriever, Services
from surerag.training.options import Reward, RewriterTraining

logger = logging.getLogger("surerag")

R = TypeVar("R")
REWRITE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Query:
    """A query for training a rewriter.

    Attributes:
        text: The query as a user asks it.
        references: Right answers; empty if they are not known.
    """

    text: str
    references: tuple[str, ...] = ()


class Preference(NamedTuple):
    """Two rewrites of a query, for alignment.

    Attributes:
        query: The query.
        better: The rewrite with the larger reward.
        worse: The rewrite with the smaller reward.
        difference: Difference of the rewards, positive.
    """

    query: str
    better: str
    worse: str
    difference: float


class TriedQuery(NamedTuple):
    """How uncertain and how correct the reader's answer to a query is."""

    uncertainty: float  # perplexity; infinite for an empty or truncated answer
    correct: bool | None  # None without references


def collect_rewrites(
    queries: Sequence[Query],
    teacher: Reader,
    options: RewriterTraining | None = None,
    *,
    progress: Progress = False,
) -> list[tuple[str, str]]:
    """Return pairs of a query and the teacher's rewrite of the query.

    A rewrite that is a refusal, truncated, or equal to its query is left out.

    Args:
        queries: Queries to rewrite.
        teacher: The model that writes one rewrite of each query.
        options: Options of the training; None means the defaults.
        progress: Whether to show a progress bar.

    Raises:
        ServiceError: If no rewrite is usable.
    """
    options = options or RewriterTraining()
    sampling = SamplingParams(max_tokens=REWRITE_TOKENS, trace="none")
    refused: list[str] = []
    programs = [_write(query.text, options, sampling, refused) for query in queries]
    outcomes = _run_all(programs, Services(reader=as_reader(teacher)), progress)
    pairs = [(query.text, rewrites[0]) for query, rewrites in zip(queries, outcomes, strict=True) if rewrites]
    if not pairs:
        raise ServiceError(
            f"none of {len(queries)} rewrites of the teacher is usable: {'; '.join(refused[:2])}",
            hint="use another teacher, or another prompt (the option prompts)",
        )
    return pairs


def sample_preferences(
    queries: Sequence[Query],
    rewriter: Reader,
    reader: Reader,
    retriever: Retriever,
    options: RewriterTraining | None = None,
    *,
    encoder: Encoder | None = None,
    progress: Progress = False,
) -> list[Preference]:
    """Sample rewrites of each query, compute their rewards, and return pairs of rewrites (DynQR, Eq. 2, 3).

    Args:
        queries: Queries to rewrite.
        rewriter: The model that samples the rewrites.
        reader: The model that answers from the passages that a rewrite retrieves.
        retriever: Finds passages.
        options: Options of the training; None means the defaults.
        encoder: The model that embeds texts; needed for the reward ``"relevance"``.
        progress: Whether to show a progress bar.
    """
    options = options or RewriterTraining()
    check_reward(options, queries, encoder)
    sampling = SamplingParams(
        n=options.n_rewrites, temperature=1.0, max_tokens=REWRITE_TOKENS, seed=options.seed, trace="none"
    )
    services = Services(
        reader=as_reader(reader), rewriter=as_reader(rewriter), retriever=retriever, encoder=encoder
    )
    programs = [_try_own_rewrites(query, options, sampling) for query in queries]
    outcomes = _run_all(programs, services, progress)
    return [
        Preference(query.text, outcome[0][better], outcome[0][worse], difference)
        for query, outcome in zip(queries, outcomes, strict=True)
        if outcome is not None
        for better, worse, difference in preference_pairs(outcome[1], options.n_pairs)
    ]


def _run_all(programs: Sequence[Program[R]], services: Services, progress: Progress) -> list[R | None]:
    outcomes = run_many(programs, services, return_exceptions=True, progress=progress)
    failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    for failure in failures:
        if isinstance(failure, MISCONFIGURED) or not isinstance(failure, SureragError):
            raise failure
    if failures:
        message = "%d of %d queries failed and are left out, the first because: %s"
        logger.warning(message, len(failures), len(outcomes), failures[0])
    return [None if isinstance(outcome, BaseException) else outcome for outcome in outcomes]


def preference_pairs(rewards: Sequence[float], n_pairs: int = 3) -> list[tuple[int, int, float]]:
    """Return the pairs of rewrites with the largest difference in reward (DynQR, Preference Alignment).

    Infinite rewards, which empty or truncated answers have, and pairs of equal rewards are left out.

    Args:
        rewards: Reward of each rewrite of a query; larger means better.
        n_pairs: Maximum number of pairs.

    Returns:
        Triples of the better rewrite's index, the worse rewrite's index, and the difference of their rewards.

    Example:
        >>> preference_pairs([-1.5, -1.0, -1.5, -4.0])
        [(1, 3, 3.0), (0, 3, 2.5), (2, 3, 2.5)]
        >>> preference_pairs([0.0, 0.0, -math.inf])
        []
    """
    if any(math.isnan(reward) for reward in rewards):
        raise InputError(f"expected numbers as rewards, got {list(rewards)}", hint="leave out NaN")
    finite = [(place, reward) for place, reward in enumerate(rewards) if math.isfinite(reward)]
    pairs = [(i, j, better - worse) for i, better in finite for j, worse in finite if better > worse]
    return list(islice(sorted(pairs, key=lambda pair: -pair[2]), n_pairs))


def try_query(query: Query, text: str, options: RewriterTraining) -> Program[TriedQuery]:
    """Search with ``text``, answer the query, and return the answer's perplexity and correctness."""
    passages = yield from perform(Retrieve(text, options.top_n))
    if passages:
        formatted = format_passages(passage.text for passage in passages)
        prompt = options.prompts["answer"].render(passages=formatted, question=query.text)
    else:
        prompt = CLOSED_BOOK.render(question=query.text)
    [[answer]] = yield from perform(Generate([prompt], SamplingParams(trace="logprobs")))
    usable = answer.trace is not None and len(answer.trace) > 0 and answer.finish == "stop"
    uncertainty = perplexity(answer.trace.logprobs) if usable and answer.trace else math.inf
    correct = bool(exact_match(answer.text, query.references)) if query.references else None
    return TriedQuery(uncertainty, correct)


def rewrite_and_try(query: Query, options: RewriterTraining) -> Program[TriedQuery]:
    """Rewrite a query without sampling, and call :func:`try_query` with the rewrite.

    If the rewrite is unusable, ``try_query`` gets the query itself.
    """
    rewrites = yield from _write(query.text, options, SamplingParams(max_tokens=REWRITE_TOKENS, trace="none"))
    return (yield from try_query(query, rewrites[0] if rewrites else query.text, options))


def _write(
    query: str, options: RewriterTraining, sampling: SamplingParams, refused: list[str] | None = None
) -> Program[list[str]]:
    prompt = options.prompts["rewrite"].render(query=query)
    [replies] = yield from perform(Generate([prompt], sampling, role="rewriter"))
    rewrites = [read_rewrite(reply, query, REWRITE_TOKENS) for reply in replies]
    if refused is not None:
        refused += [f"{one.text[:100]!r} is {one.problem}" for one in rewrites if one.problem is not None]
    return list(dict.fromkeys(rewrite.text for rewrite in rewrites if rewrite.problem is None))


def _try_own_rewrites(
    query: Query, options: RewriterTraining, sampling: SamplingParams
) -> Program[tuple[list[str], list[float]]]:
    rewrites = yield from _write(query.text, options, sampling)
    rewards: list[float] = []
    for text in rewrites:
        reward = yield from REWARDS[options.reward](query, text, options)
        rewards.append(reward)
    return rewrites, rewards


# Rewards of a rewrite; larger means better (appendix B)


def reward_certainty(query: Query, text: str, options: RewriterTraining) -> Program[float]:
    """Return the negative perplexity of the reader's answer after a search with the rewrite ``text`` (DynQR).

    A larger reward means a surer answer.
    """
    trial = yield from try_query(query, text, options)
    return -trial.uncertainty


def reward_answer(query: Query, text: str, options: RewriterTraining) -> Program[float]:
    """Return 1 if the reader's answer from the passages for the rewrite ``text`` is right, else 0.

    Rewrite-Retrieve-Read uses this reward.
    """
    trial = yield from try_query(query, text, options)
    return float(bool(trial.correct))


def reward_documents(query: Query, text: str, options: RewriterTraining) -> Program[float]:
    """Return 1 if the rewrite ``text`` retrieves a passage that contains a right answer, else 0 (RetPO)."""
    passages = yield from perform(Retrieve(text, options.top_n))
    return float(any(contains(passage.text, query.references) for passage in passages))


def reward_relevance(query: Query, text: str, options: RewriterTraining) -> Program[float]:
    """Return the mean cosine similarity of the query and the passages that the rewrite ``text`` retrieves.

    Return -1 if there are no passages. RaFe (Mao et al., 2024) uses the scores of a reranker instead.
    """
    passages = yield from perform(Retrieve(text, options.top_n))
    if not passages:
        return -1.0
    [query_vector] = yield from embed_unit([query.text], "query")
    documents = yield from embed_unit([passage.text for passage in passages], "document")
    return float((documents @ query_vector).mean())


REWARDS: Mapping[Reward, Callable[[Query, str, RewriterTraining], Program[float]]] = {
    "uncertainty": reward_certainty,
    "answer": reward_answer,
    "documents": reward_documents,
    "relevance": reward_relevance,
}


def check_reward(options: RewriterTraining, queries: Sequence[Query], encoder: Encoder | None) -> None:
    """Check that the option ``reward`` has the references or the encoder that it needs.

    Raises:
        InputError: If the reward needs references, and a query has none.
        MissingServiceError: If the reward needs an encoder, and ``encoder`` is None.
    """
    if options.reward in ("answer", "documents") and not all(query.references for query in queries):
        raise InputError(
            f"the reward {options.reward!r} needs references for every query",
            hint="pass references, or use the reward 'uncertainty' or 'relevance'",
        )
    if options.reward == "relevance" and encoder is None:
        raise MissingServiceError("the reward 'relevance' needs an encoder", hint="pass encoder=…")


def as_queries(queries: Iterable[Query | str]) -> list[Query]:
    """Return distinct ``Query`` objects; a text becomes a ``Query`` without references."""
    items = [Query(item) if isinstance(item, str) else item for item in queries]
    return list({item.text: item for item in items}.values())
