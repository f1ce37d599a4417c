"""EDC²-RAG: put similar documents together, and compress each cluster for the question.

Li et al., "Efficient Dynamic Clustering-Based Document Compression for Retrieval-Augmented-Generation",
section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

from surerag.clustering import (
    Cluster,
    average_clusters,
    dynamic_cluster_sizes,
    dynamic_clusters,
    random_clusters,
)
from surerag.effects import Program, embed, emit, generate
from surerag.errors import CapabilityError, ConfigurationError, InputError, MissingServiceError, PromptError
from surerag.methods.compression_types import (
    ClusterReport,
    CompressionResult,
    CompressionSettings,
    merged_passage,
)
from surerag.methods.faithfulness import Claim, supported
from surerag.methods.refusals import says_nothing
from surerag.prompts import format_passages
from surerag.types import Generation, Passage, Prompt

OURS_TO_MEND = (CapabilityError, ConfigurationError, MissingServiceError, PromptError)
"""Failures that say how a pipeline was put together; no fallback hides them."""


def compress_clusters(
    query: str,
    passages: Sequence[Passage],
    settings: CompressionSettings,
    query_vector: ArrayLike | None = None,
) -> Program[CompressionResult]:
    """Cluster, compress, drop what yields nothing, and fall back to the originals when all do (section 4).

    Args:
        query: A question, or the statement to check; not empty.
        passages: What was retrieved, best first. They are not changed.
        settings: What steers the method.
        query_vector: The query's vector, if the caller has it, made by the model that made the passages'.

    Returns:
        One passage a compressed cluster; passages of clusters that were left alone, as they came.

    Raises:
        InputError: If the query is empty.
    """
    if not query.strip():
        raise InputError("the query is empty", hint="ask something")
    clusters = yield from _clusters(query, passages, settings, query_vector)
    reports = [_opened(cluster, passages, settings) for cluster in clusters]
    asked = [report for report in reports if report.outcome == "asked"]
    replies = yield from _replies([_prompt(query, report, passages, settings) for report in asked], settings)
    judged = [_judged(*pair, settings) for pair in zip(asked, replies.generations, strict=True)]
    judged = yield from _faithful(judged, passages, settings)
    judged = [_unless_longer(report, passages, settings) for report in judged]
    fell_back = bool(judged) and all(report.outcome == "dropped" for report in judged)
    if fell_back and settings.all_empty == "original":
        judged = yield from _fallen_back(query, judged)
    yield from _warn(judged)
    done = iter(judged)
    reports = [next(done) if report.outcome == "asked" else report for report in reports]
    kept, reports = _within_budget(reports, passages, settings)
    result = _result(query, settings, kept, reports, replies.calls, fell_back)
    yield from emit(
        "cluster_compression.compressed",
        detail=result,
        query=query,
        clusters=len(reports),
        calls=result.calls,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
    )
    return result


def _clusters(
    query: str, passages: Sequence[Passage], settings: CompressionSettings, query_vector: ArrayLike | None
) -> Program[list[Cluster]]:
    """Form clusters of the passages that have a text (section 4.2); the others stand alone."""
    written = np.array([at for at, passage in enumerate(passages) if passage.text.strip()], dtype=np.intp)
    blank = [np.array([at]) for at, passage in enumerate(passages) if not passage.text.strip()]
    sizes = dynamic_cluster_sizes(
        len(written), settings.tau_for(len(written)), settings.cap, settings.count_root
    )
    if settings.clustering == "single" or len(written) <= 1:
        found = [np.array([at]) for at in range(len(written))]
    elif settings.clustering == "random":
        found = random_clusters(sizes, settings.seed + crc32(query.encode()))
    else:
        texts = [passages[at] for at in written]
        vector, vectors = yield from _vectors(query, texts, settings, query_vector)
        found = _arranged(vector, vectors, len(sizes), settings)
    return [written[cluster] for cluster in found] + blank


def _arranged(
    vector: NDArray[np.float64], vectors: NDArray[np.float64], count: int, settings: CompressionSettings
) -> list[Cluster]:
    if settings.clustering == "average":
        return average_clusters(vector, vectors, count)
    return dynamic_clusters(
        vector,
        vectors,
        settings.tau_for(len(vectors)),
        settings.cap,
        count_root=settings.count_root,
        root=settings.root,
        order=settings.order,
    )


def _vectors(
    query: str, passages: Sequence[Passage], settings: CompressionSettings, query_vector: ArrayLike | None
) -> Program[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Take the vectors that passages carry, if all do and fit the query's; else ask the encoder."""
    carried = [passage.embedding for passage in passages if passage.embedding is not None]
    lengths = {len(vector) for vector in carried}
    vectors = np.asarray(carried, dtype=np.float64) if len(lengths) == 1 else None
    vector = np.asarray(query_vector, dtype=np.float64) if query_vector is not None else None
    if vectors is None or len(carried) < len(passages):
        vectors = np.asarray((yield from embed([passage.text for passage in passages], "document")))
    if vector is None and settings.root == "rank" and settings.clustering == "dynamic":
        return np.zeros(vectors.shape[1]), vectors
    if vector is None:
        vector = np.asarray((yield from embed([query], "query")))[0]
    if len(vector) != vectors.shape[1]:
        yield from emit(
            "cluster_compression.embedded_again",
            warning=True,
            query_dimensions=len(vector),
            passage_dimensions=vectors.shape[1],
        )
        vectors = np.asarray((yield from embed([passage.text for passage in passages], "document")))
        vector = np.asarray((yield from embed([query], "query")))[0]
    return vector, vectors


def _opened(cluster: Cluster, passages: Sequence[Passage], settings: CompressionSettings) -> ClusterReport:
    """Decide whether a cluster is worth a call."""
    members = tuple(int(at) for at in cluster)
    before = sum(settings.measure(passages[at]) for at in members)
    report = ClusterReport(
        members=members,
        sources=tuple(passages[at].id for at in members),
        tokens_before=before,
        tokens_after=before,
    )
    if not any(passages[at].text.strip() for at in members):
        return replace(report, outcome="passed", reason="no text")
    if before <= settings.pass_below:
        return replace(report, outcome="passed", reason="too short to gain")
    return report


def _prompt(
    query: str, report: ClusterReport, passages: Sequence[Passage], settings: CompressionSettings
) -> Prompt:
    texts = dict.fromkeys(passages[at].text for at in report.members)
    return settings.render(query, format_passages(texts))


class _Replies(NamedTuple):
    """What came back for each prompt, an exception where the reader failed, and how often it was asked."""

    generations: list[Generation | Exception]
    calls: int


def _replies(prompts: Sequence[Prompt], settings: CompressionSettings) -> Program[_Replies]:
    """Ask for all clusters at once; if that fails, for each alone, so that one failure stays its own."""
    if not prompts:
        return _Replies([], 0)
    try:
        answers = yield from generate(prompts, settings.sampling)
        return _Replies([answer[0] for answer in answers], len(prompts))
    except OURS_TO_MEND:
        raise
    except Exception as error:
        if settings.on_failure == "raise":
            raise
        if len(prompts) == 1:
            return _Replies([error], 1)
    found: list[Generation | Exception] = []
    for prompt in prompts:
        try:
            [[answer]] = yield from generate([prompt], settings.sampling)
            found.append(answer)
        except OURS_TO_MEND:
            raise
        except Exception as error:
            found.append(error)
    return _Replies(found, 2 * len(prompts))


def _judged(
    report: ClusterReport, reply: Generation | Exception, settings: CompressionSettings
) -> ClusterReport:
    """Tell a compression from a failure and from nothing."""
    if isinstance(reply, Exception):
        reason = f"the reader failed: {type(reply).__name__}: {reply}"
        return replace(report, outcome="passed", reason=reason, trouble="failed")
    report = replace(report, generation=reply, text=reply.text.strip())
    if says_nothing(report.text, settings.nothing, settings.split):
        return replace(report, outcome="dropped", reason="nothing relevant", text="", tokens_after=0)
    return replace(report, outcome="compressed", reason="compressed")


def _faithful(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], settings: CompressionSettings
) -> Program[list[ClusterReport]]:
    """Remove or flag the sentences that no source supports, those of all clusters in one question."""
    split = [settings.split(report.text) if report.outcome == "compressed" else [] for report in reports]
    claims = [
        Claim(sentence, [passages[at].text for at in report.members])
        for report, sentences in zip(reports, split, strict=True)
        for sentence in sentences
    ]
    verdicts = iter((yield from supported(claims, settings.guard, settings.support)))
    return [
        _guarded(report, [(sentence, next(verdicts)) for sentence in sentences], settings)
        for report, sentences in zip(reports, split, strict=True)
    ]


def _guarded(
    report: ClusterReport, sentences: Sequence[tuple[str, bool]], settings: CompressionSettings
) -> ClusterReport:
    unsupported = tuple(sentence for sentence, believed in sentences if not believed)
    if not unsupported:
        return report
    if settings.guard_action == "flag":
        return replace(report, flagged=unsupported)
    kept = [sentence for sentence, believed in sentences if believed]
    if not kept:
        # What no source says is nothing: the cluster is dropped, and the originals are there if all are.
        reason = "no source supports the compression"
        return replace(
            report,
            outcome="dropped",
            reason=reason,
            text="",
            tokens_after=0,
            removed=unsupported,
            trouble="unsupported",
        )
    joint = "\n" if "\n" in report.text else " "
    return replace(report, text=joint.join(kept), removed=unsupported)


def _unless_longer(
    report: ClusterReport, passages: Sequence[Passage], settings: CompressionSettings
) -> ClusterReport:
    """Refuse a compression that is longer than its sources."""
    if report.outcome != "compressed":
        return report
    after = settings.measure(merged_passage(report, passages))
    if settings.refuse_longer and after > report.tokens_before:
        return replace(report, outcome="passed", reason="longer than its sources", text="")
    return replace(report, tokens_after=after)


def _fallen_back(query: str, reports: Sequence[ClusterReport]) -> Program[list[ClusterReport]]:
    """Let the original passages through where every cluster yielded nothing (section 4.4)."""
    yield from emit("cluster_compression.fallback", warning=True, query=query, clusters=len(reports))
    return [replace(report, outcome="passed", reason="every cluster yielded nothing") for report in reports]


def _warn(reports: Sequence[ClusterReport]) -> Program[None]:
    for report in reports:
        if report.trouble is not None:
            yield from emit(
                f"cluster_compression.{report.trouble}",
                warning=True,
                reason=report.reason,
                sources=list(report.sources),
            )


class _Offer(NamedTuple):
    """A passage that could be returned: its rank, and the cluster that it comes from."""

    rank: int
    cluster: int
    passage: Passage


def _within_budget(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], settings: CompressionSettings
) -> tuple[list[Passage], list[ClusterReport]]:
    """Put what is left in order of its best member, as far as the token budget reaches."""
    offers = [offer for at, report in enumerate(reports) for offer in _offers(at, report, passages)]
    settled = [replace(report, tokens_after=0) for report in reports]
    kept: list[Passage] = []
    room = float("inf") if settings.budget is None else settings.budget
    for offer in sorted(offers, key=lambda offer: offer.rank):
        report = settled[offer.cluster]
        passage = _fitted(offer.passage, room, report, settings)
        if passage is None:
            settled[offer.cluster] = replace(report, over_budget=(*report.over_budget, offer.passage.id))
            continue
        kept.append(passage)
        tokens = settings.measure(passage)
        room -= tokens
        text = passage.text if report.outcome == "compressed" else ""
        settled[offer.cluster] = replace(report, text=text, tokens_after=report.tokens_after + tokens)
    return kept, [_settled(report) for report in settled]


def _offers(at: int, report: ClusterReport, passages: Sequence[Passage]) -> list[_Offer]:
    if report.outcome == "compressed":
        return [_Offer(min(report.members), at, merged_passage(report, passages))]
    if report.outcome == "passed":
        return [_Offer(member, at, passages[member]) for member in report.members]
    return []


def _fitted(
    passage: Passage, room: float, report: ClusterReport, settings: CompressionSettings
) -> Passage | None:
    """Return a passage that fits: an original whole or not at all, a compression by its first sentences."""
    if settings.measure(passage) <= room:
        return passage
    sentences = settings.split(passage.text) if report.outcome == "compressed" else []
    shortened = (
        replace(passage, text=" ".join(sentences[:count])) for count in range(len(sentences) - 1, 0, -1)
    )
    return next((shorter for shorter in shortened if settings.measure(shorter) <= room), None)


def _settled(report: ClusterReport) -> ClusterReport:
    if len(report.over_budget) < (1 if report.outcome == "compressed" else len(report.members)):
        return report
    return replace(report, outcome="dropped", reason="over the token budget", text="")


def _result(
    query: str,
    settings: CompressionSettings,
    passages: Sequence[Passage],
    reports: Sequence[ClusterReport],
    calls: int,
    fell_back: bool,
) -> CompressionResult:
    replies = [report.generation for report in reports if report.generation is not None]
    return CompressionResult(
        query=query,
        mode=settings.mode,
        passages=tuple(passages),
        clusters=tuple(reports),
        calls=calls,
        prompt_tokens=sum(reply.prompt_tokens for reply in replies),
        completion_tokens=sum(reply.completion_tokens for reply in replies),
        fell_back=fell_back,
    )
