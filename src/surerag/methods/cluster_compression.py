"""EDC²-RAG: put similar documents together, and compress each cluster for the question.

Li et al., "Efficient Dynamic Clustering-Based Document Compression for Retrieval-Augmented-Generation",
section 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numpy.typing import ArrayLike

from surerag.clustering import Cluster
from surerag.effects import Program, emit
from surerag.errors import InputError
from surerag.methods.compression_asking import OURS_TO_MEND, ask_about
from surerag.methods.compression_budget import within_budget
from surerag.methods.compression_clusters import form_clusters
from surerag.methods.compression_types import ClusterReport, CompressionResult, CompressionSettings
from surerag.types import Passage

__all__ = ["OURS_TO_MEND", "compress_clusters"]


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
    clusters = yield from form_clusters(query, passages, settings, query_vector)
    reports = [_opened(cluster, passages, settings) for cluster in clusters]
    worth_a_call = [at for at, report in enumerate(reports) if report.outcome == "asked"]
    calls = yield from _compress(query, worth_a_call, reports, passages, settings)
    asked = [reports[at] for at in worth_a_call]
    fell_back = bool(asked) and all(report.outcome == "dropped" for report in asked)
    if fell_back and settings.all_empty == "original":
        asked = yield from _fallen_back(query, asked)
        for at, report in zip(worth_a_call, asked, strict=True):
            reports[at] = report
    yield from _warn(asked)
    kept, reports = within_budget(reports, passages, settings)
    result = _result(query, settings, kept, reports, calls, fell_back)
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


def _compress(
    query: str,
    waiting: Sequence[int],
    reports: list[ClusterReport],
    passages: Sequence[Passage],
    settings: CompressionSettings,
) -> Program[int]:
    """Ask about the clusters that wait, and set their reports; return how many prompts that took.

    Where the settings say so, those that yielded nothing are asked again with what the others yielded beside
    them, as long as that is more than they were shown before.
    """
    calls, shown = 0, 0
    evidence: list[str] = []
    for _ in range(1 + settings.bridging):
        opened = [_reopened(reports[at]) for at in waiting]
        found = yield from ask_about(query, opened, passages, settings, evidence)
        calls += found.calls
        for at, report in zip(waiting, found.reports, strict=True):
            reports[at] = report
        waiting = [at for at in waiting if reports[at].outcome == "dropped"]
        shown, evidence = len(evidence), _evidence(reports, passages)
        if not waiting or len(evidence) == shown:
            break
    return calls


def _reopened(report: ClusterReport) -> ClusterReport:
    """Return a cluster to be asked about, and keep what was said about it before."""
    if report.generation is None:
        return report
    return ClusterReport(
        members=report.members,
        sources=report.sources,
        tokens_before=report.tokens_before,
        tokens_after=report.tokens_before,
        earlier=(*report.earlier, report.generation),
    )


def _evidence(reports: Sequence[ClusterReport], passages: Sequence[Passage]) -> list[str]:
    """Return the texts that are to be shown so far; of clusters on which the reader failed, none."""
    texts = [report.text for report in reports if report.outcome == "compressed"]
    texts += [
        passages[at].text
        for report in reports
        if report.outcome == "passed" and report.trouble is None
        for at in report.members
        if passages[at].text.strip()
    ]
    return list(dict.fromkeys(texts))


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


def _result(
    query: str,
    settings: CompressionSettings,
    passages: Sequence[Passage],
    reports: Sequence[ClusterReport],
    calls: int,
    fell_back: bool,
) -> CompressionResult:
    replies = [
        reply for report in reports for reply in (*report.earlier, report.generation) if reply is not None
    ]
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
