"""EDC²-RAG: put similar passages into clusters, and compress each cluster for the question.

Li et al., "Efficient Dynamic Clustering-Based Document Compression for Retrieval-Augmented-Generation",
section 4.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from numpy.typing import ArrayLike

from surerag.effects import Program, emit, generate
from surerag.errors import ConfigurationError
from surerag.framing import unquoted
from surerag.messages import Generation, Passage, Prompt
from surerag.methods.edc2.clusters import form_clusters
from surerag.methods.edc2.guards import Claim, is_empty_extraction, supporting_sources
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import (
    SENTENCES_KEY,
    ClusterReport,
    EDC2Result,
    SupportedSentence,
    compressed_passage,
)
from surerag.methods.shared import MUST_RAISE, check_passages, check_question
from surerag.prompts import format_passages
from surerag.text import split_sentences

Measure = Callable[[Passage], int]
"""Tokens of a passage as the pipeline shows it."""

_SHORT = "too short to gain"
_WORD_END, _CHARACTER = re.compile(r"\S(?!\S)"), re.compile(r"\S")


def compress_clusters(
    query: str,
    passages: Sequence[Passage],
    options: EDC2Options,
    measure: Measure,
    query_vector: ArrayLike | None = None,
) -> Program[EDC2Result]:
    """Cluster, compress, drop what is irrelevant, and return the originals where all is (section 4).

    Arguments and errors are those of :meth:`surerag.ClusterCompressor.program`; ``measure`` counts tokens.
    """
    check_question(query)
    check_passages(passages)
    before = sum(map(measure, passages))
    fell_back = False
    if options.threshold is not None and before <= options.threshold:
        reports = [_report(range(len(passages)), passages, measure, "at or below the threshold")]
    else:
        try:
            reports = yield from _compress(query, passages, options, measure, query_vector)
        except MUST_RAISE:
            raise
        except Exception as error:
            if options.on_failure == "raise":
                raise
            reason = f"{type(error).__name__}: {error}"
            reports = [replace(_report(range(len(passages)), passages, measure, reason), warning=True)]
        for report in reports:
            if report.warning:
                yield from emit(
                    "edc2.not_compressed" if report.outcome == "passed" else "edc2.unsupported",
                    warning=True,
                    query=query,
                    reason=report.reason,
                    sources=list(report.sources),
                )
        attempted = [report for report in reports if report.reason != _SHORT]
        fell_back = bool(attempted) and all(report.outcome == "dropped" for report in attempted)
        if fell_back:  # section 4.4
            yield from emit("edc2.fallback", warning=True, query=query, clusters=len(attempted))
            reports = [
                _report(report.members, passages, measure, "nothing was relevant") for report in reports
            ]
    context, reports = _within_limit(reports, passages, options.token_limit, measure)
    result = EDC2Result(
        query=query,
        passages=tuple(context),
        clusters=tuple(reports),
        fell_back=fell_back,
        tokens_before=before,
        tokens_after=sum(map(measure, context)),
    )
    yield from emit(
        "edc2.compressed",
        detail=result,
        query=query,
        clusters=len(reports),
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
    )
    return result


def _compress(
    query: str,
    passages: Sequence[Passage],
    options: EDC2Options,
    measure: Measure,
    query_vector: ArrayLike | None,
) -> Program[list[ClusterReport]]:
    """Compress each cluster that is long enough, all at once, and remove what no source supports."""
    clusters = yield from form_clusters(query, passages, options, query_vector)
    reports = [_report(cluster.tolist(), passages, measure, _SHORT) for cluster in clusters]
    long = [
        at
        for at, report in enumerate(reports)
        if report.tokens_before > options.min_tokens and any(passages[i].text.strip() for i in report.members)
    ]
    prompts = [_prompt(query, [passages[at] for at in reports[place].members], options) for place in long]
    replies = yield from _replies(prompts, options)
    for place, reply in zip(long, replies, strict=True):
        reports[place] = _read(reports[place], reply, options)
    return (yield from _guard(query, reports, passages, options, measure))


def _report(
    members: Sequence[int], passages: Sequence[Passage], measure: Measure, reason: str
) -> ClusterReport:
    """Return the report of a cluster that is not compressed."""
    tokens = sum(measure(passages[at]) for at in members)
    return ClusterReport(tuple(members), tuple(passages[at].id for at in members), "passed", reason, tokens)


def _prompt(query: str, members: Sequence[Passage], options: EDC2Options) -> Prompt:
    texts = dict.fromkeys(passage.text for passage in members)
    return options.prompts["extract"].render(question=query, passages=format_passages(texts))  # type: ignore[no-any-return]


def _replies(prompts: Sequence[Prompt], options: EDC2Options) -> Program[list[Generation | Exception]]:
    """Ask about all clusters at once; if that fails, about each alone, so that one failure stays its own."""
    if not prompts:
        return []
    try:
        return [row[0] for row in (yield from generate(prompts, options.sampling))]
    except MUST_RAISE:
        raise
    except Exception as error:
        if options.on_failure == "raise":
            raise
        if len(prompts) == 1:
            return [error]
    replies: list[Generation | Exception] = []
    for prompt in prompts:
        replies += yield from _replies([prompt], options)
    return replies


def _read(report: ClusterReport, reply: Generation | Exception, options: EDC2Options) -> ClusterReport:
    """Tell a compression from a failure and from nothing relevant."""
    if isinstance(reply, Exception):
        return replace(report, reason=f"{type(reply).__name__}: {reply}", warning=True)
    if reply.is_cut:
        # A reply that is cut may lack the relevant part, so the passages stay themselves.
        return replace(
            report, reason=f"the compression was cut at max_tokens={options.max_tokens}", warning=True
        )
    text = unquoted(reply.text)
    if is_empty_extraction(text):
        return replace(report, outcome="dropped", reason="nothing relevant")
    sentences = tuple(SupportedSentence(sentence.text, None) for sentence in split_sentences(text))
    return replace(report, outcome="compressed", reason="compressed", sentences=sentences)


def _guard(
    query: str,
    reports: Sequence[ClusterReport],
    passages: Sequence[Passage],
    options: EDC2Options,
    measure: Measure,
) -> Program[list[ClusterReport]]:
    """Set each sentence's source, and remove sentences without one; what is longer then is not used."""
    claims = [
        Claim(sentence.text, [passages[at].text for at in report.members])
        for report in reports
        for sentence in report.sentences
    ]
    if not claims:
        return list(reports)
    sources = iter((yield from supporting_sources(claims, options.guard, query)))
    guarded = []
    for report in reports:
        sentences = []
        for sentence in report.sentences:
            place = next(sources)
            sentences.append(sentence._replace(source=None if place is None else report.members[place]))
        supported = [one for one in sentences if one.source is not None or options.guard == "off"]
        removed = tuple(one.text for one in sentences if one not in supported)
        report = replace(report, sentences=tuple(supported), removed=removed)
        if sentences and not supported:
            reason = "no source supports the compression"
            report = replace(report, outcome="dropped", reason=reason, warning=True)
        elif sentences:
            passage = compressed_passage(supported, report.members, passages)
            if measure(passage) > report.tokens_before:
                report = replace(report, outcome="passed", reason="longer than its sources", sentences=())
        guarded.append(report)
    return guarded


def _within_limit(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], limit: int | None, measure: Measure
) -> tuple[list[Passage], list[ClusterReport]]:
    """Return what fits the token limit, in order of rank: whole passages, of compressions first sentences."""
    offers: list[tuple[int, int, list[Passage]]] = []  # rank, cluster, and a passage with its shorter forms
    for at, report in enumerate(reports):
        if report.outcome == "passed":
            offers += [(member, at, [passages[member]]) for member in report.members]
        elif report.outcome == "compressed":
            ends = range(len(report.sentences), 0, -1)
            forms = [compressed_passage(report.sentences[:end], report.members, passages) for end in ends]
            offers.append((min(report.members), at, forms))
    offers.sort(key=lambda offer: offer[0])
    settled = list(reports)
    context: list[Passage] = []
    room = math.inf if limit is None else limit
    for _, at, forms in offers:
        report = settled[at]
        fitted = next((form for form in forms if measure(form) <= room), None)
        if fitted is None:
            lost = report.sources if report.sentences else (forms[0].id,)
            settled[at] = replace(report, left_out=(*report.left_out, *lost))
            continue
        tokens = measure(fitted)
        room -= tokens
        context.append(fitted)
        settled[at] = replace(report, tokens_after=report.tokens_after + tokens)
    texts = [(at, forms[0]) for _, at, forms in offers if forms[0].text.strip()]
    if texts and not any(passage.text.strip() for passage in context):
        at, passage = _first_words(texts, limit or 0, measure)
        left = tuple(name for name in settled[at].left_out if name != passage.id)
        settled[at] = replace(settled[at], tokens_after=measure(passage), left_out=left)
        context = [passage]
    return context, settled


def _first_words(offers: Sequence[tuple[int, Passage]], limit: int, measure: Measure) -> tuple[int, Passage]:
    """Return the longest beginning that fits of the best passage, with its cluster: by words, or characters.

    Raises:
        ConfigurationError: If not even one character fits.
    """
    for end in (_WORD_END, _CHARACTER):
        for at, passage in offers:
            metadata = {name: value for name, value in passage.metadata.items() if name != SENTENCES_KEY}
            for match in reversed(list(end.finditer(passage.text))):
                piece = passage.text[: match.end()]
                shorter = replace(passage, text=piece, metadata=metadata, embedding=None)
                if measure(shorter) <= limit:
                    return at, shorter
    raise ConfigurationError(f"token_limit={limit} has no room for any text", hint="raise it")
