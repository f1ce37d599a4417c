"""EDC²-RAG: select the passages that help to answer, or compress clusters of similar passages.

Li et al., "Efficient Dynamic Clustering-Based Document Compression for Retrieval-Augmented-Generation",
section 4 for the task ``"extract"``, appendix C for the tasks ``"answer"`` and ``"verify"``.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from numpy.typing import ArrayLike

from surerag.effects import Generate, Program, emit, perform
from surerag.errors import ConfigurationError, check_question
from surerag.framing import unquoted
from surerag.messages import EVENT_SENTENCES, Generation, Passage, Prompt
from surerag.methods.edc2.clusters import form_clusters
from surerag.methods.edc2.guards import (
    Claim,
    is_empty_extraction,
    named_passages,
    nearest_sentence,
    quotations,
    supporting_sources,
    whole_sentences,
    without_numbers,
)
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import (
    SENTENCES_KEY,
    ClusterReport,
    EDC2Result,
    SupportedSentence,
    compressed_passage,
)
from surerag.methods.shared import MUST_RAISE, check_passages
from surerag.prompts import format_passages
from surerag.readers.failures import in_plain_words
from surerag.text import split_sentences

Measure = Callable[[Passage], int]
"""A function that counts the tokens of a passage as it appears in the pipeline's prompt."""
_SHORT = "too short to gain"
_WHOLE = "among the most relevant"
_LESS_RELEVANT = "less relevant than the kept passages, or contained in another passage"
_WORD_END, _CHARACTER = re.compile(r"\S(?!\S)"), re.compile(r"\S")


def compress_clusters(
    query: str,
    passages: Sequence[Passage],
    options: EDC2Options,
    measure: Measure,
    query_vector: ArrayLike | None = None,
) -> Program[EDC2Result]:
    """Select passages, or compress clusters (section 4); keep all passages if no cluster is relevant.

    ``measure`` counts the tokens of a passage. Other arguments and errors are those of
    :meth:`surerag.ClusterCompressor.program`.
    """
    check_question(query)
    check_passages(passages)
    work = _Compression(query, passages, options, measure)
    before = sum(map(measure, passages))
    fell_back = False
    if options.threshold is not None and before <= options.threshold:
        reports = [work.report(range(len(passages)), "at or below the threshold")]
    else:
        try:
            reports = yield from work.compress(query_vector)
        except MUST_RAISE:
            raise
        except Exception as error:
            if options.on_failure == "raise":
                raise
            reports = [replace(work.report(range(len(passages)), in_plain_words(error)), warning=True)]
        for report in reports:
            if report.warning:
                yield from emit(
                    "edc2.not_compressed",
                    warning=True,
                    query=query,
                    reason=report.reason,
                    sources=list(report.sources),
                )
        attempted = [report for report in reports if report.reason not in (_SHORT, _LESS_RELEVANT)]
        fell_back = bool(attempted) and all(report.outcome == "dropped" for report in attempted)
        if fell_back:  # if nothing is relevant, the passages are kept (section 4.4 of the paper)
            yield from emit("edc2.fallback", warning=True, query=query, clusters=len(attempted))
            reports = [work.report(report.members, "nothing was relevant") for report in reports]
    context, reports = _fill_context(reports, passages, options.token_limit, measure)
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


class _Compression(NamedTuple):
    query: str
    passages: Sequence[Passage]
    options: EDC2Options
    measure: Measure

    def compress(self, query_vector: ArrayLike | None) -> Program[list[ClusterReport]]:
        options, passages = self.options, self.passages
        clusters, less_relevant = yield from form_clusters(self.query, passages, options, query_vector)
        reason = _SHORT if options.compresses else _WHOLE
        reports = [self.report(cluster.tolist(), reason) for cluster in clusters]
        dropped = self.report(less_relevant, _LESS_RELEVANT)
        # For the task "answer", short clusters are sent to the reader, too.
        least = 0 if options.task == "answer" else options.min_tokens
        long = [
            at
            for at, report in enumerate(reports)
            if report.tokens_before > least
            and any(passages[i].text.strip() for i in report.members)
            and options.compresses
        ]
        replies = yield from self._replies([self._prompt(reports[place]) for place in long])
        for place, reply in zip(long, replies, strict=True):
            reports[place] = self._read(reports[place], reply)
        guarded = yield from self._guard(reports)
        return [*guarded, replace(dropped, outcome="dropped")] if less_relevant else guarded

    def report(self, members: Sequence[int], reason: str) -> ClusterReport:
        names = tuple(self.passages[at].id for at in members)
        tokens = sum(self.measure(self.passages[at]) for at in members)
        return ClusterReport(tuple(members), names, "passed", reason, tokens)

    def _texts(self, report: ClusterReport) -> list[str]:
        return list(dict.fromkeys(self.passages[at].text for at in report.members))

    def _prompt(self, report: ClusterReport) -> Prompt:
        values: dict[str, str] = {"passages": format_passages(self._texts(report))}
        values["statement" if self.options.task == "verify" else "question"] = self.query
        if self.options.person is not None:
            values["person"] = self.options.person
        return self.options.prompt.render(**values)

    def _replies(self, prompts: Sequence[Prompt]) -> Program[list[Generation | Exception]]:
        # If the request with all prompts fails, some prompts may succeed alone.
        if not prompts:
            return []
        try:
            return [row[0] for row in (yield from perform(Generate(prompts, self.options.sampling)))]
        except MUST_RAISE:
            raise
        except Exception as error:
            if self.options.on_failure == "raise":
                raise
            if len(prompts) == 1:
                return [error]
        replies: list[Generation | Exception] = []
        for prompt in prompts:
            replies += yield from self._replies([prompt])
        return replies

    def _read(self, report: ClusterReport, reply: Generation | Exception) -> ClusterReport:
        if isinstance(reply, Exception):
            return replace(report, reason=in_plain_words(reply), warning=True)
        options, texts = self.options, self._texts(report)
        if reply.is_cut:
            # A truncated reply may lack the relevant part, so the passages are kept.
            reason = f"the compression was cut off at max_tokens={options.max_tokens}"
            return replace(report, reason=reason, warning=True)
        text = unquoted(reply.text)
        if named := named_passages(text, len(texts)):
            text = "\n\n".join(texts[place] for place in named)
        else:
            text = without_numbers(text, texts)
        if is_empty_extraction(text):
            return replace(report, outcome="dropped", reason="nothing relevant")
        sentences = [sentence.text for sentence in split_sentences(text)]
        if options.copies:
            whole = (one for sentence in sentences for one in whole_sentences(sentence, texts))
            sentences = list(dict.fromkeys(whole))
        without_source = tuple(SupportedSentence(sentence, None) for sentence in sentences)
        return replace(report, outcome="compressed", reason="compressed", sentences=without_source)

    def _guard(self, reports: Sequence[ClusterReport]) -> Program[list[ClusterReport]]:
        claims = [self._claim(sentence.text, report) for report in reports for sentence in report.sentences]
        if not claims:
            return list(reports)
        sources: Iterator[int | None]
        if self.options.copies and self.options.guard != "entailment":
            sources = iter([0] * len(claims))  # _copied sets the source later
        else:
            sources = iter((yield from supporting_sources(claims, self.options.guard, self.query)))
        guarded = []
        for report in reports:
            places = [next(sources) for _ in report.sentences]
            sentences = [
                sentence._replace(source=None if place is None else report.members[place])
                for sentence, place in zip(report.sentences, places, strict=True)
            ]
            guarded.append(self._guarded(report, sentences) if sentences else report)
        return guarded

    def _claim(self, sentence: str, report: ClusterReport) -> Claim:
        quoted = " ".join(quotations(sentence)) if self.options.task == "answer" else ""
        return Claim(quoted or sentence, [self.passages[at].text for at in report.members])

    def _guarded(self, report: ClusterReport, sentences: Sequence[SupportedSentence]) -> ClusterReport:
        answers, guards = self.options.task == "answer", self.options.guard != "off"
        kept_sentences, removed = list[SupportedSentence](), list[str]()
        for one in sentences:
            copy = self._copied(one, report) if self.options.copies else one
            own_words = answers and not quotations(one.text)
            if copy.source is not None or own_words or not (guards or self.options.copies):
                kept_sentences.append(copy)
            else:
                removed.append(one.text)
        kept_sentences = list(dict.fromkeys(kept_sentences)) if self.options.copies else kept_sentences
        report = replace(report, sentences=tuple(kept_sentences), removed=tuple(removed))
        if not kept_sentences:
            reason = "no source supports the compression"
            return replace(report, outcome="passed", reason=reason, sentences=(), warning=True)
        whole = compressed_passage(report.sentences, report.members, self.passages)
        if guards and not answers and self.measure(whole) > report.tokens_before:
            return replace(report, outcome="passed", reason="longer than its sources", sentences=())
        return report

    def _copied(self, sentence: SupportedSentence, report: ClusterReport) -> SupportedSentence:
        if sentence.source is None:
            return sentence
        judged = self.options.guard == "entailment"
        members = (sentence.source,) if judged else report.members
        least = 0.5 if self.options.guard == "overlap" else 0.0
        nearest = nearest_sentence(sentence.text, [self.passages[at].text for at in members], least)
        if nearest is None:
            return sentence._replace(source=None)
        return SupportedSentence(nearest[1], members[nearest[0]])


class _Candidate(NamedTuple):
    rank: int  # input position of the best passage among the candidate's sources
    cluster: int
    forms: Sequence[Passage]  # the whole text, then shorter forms of it


def _candidates(reports: Sequence[ClusterReport], passages: Sequence[Passage]) -> list[_Candidate]:
    candidates = []
    for at, report in enumerate(reports):
        if report.outcome == "passed":
            candidates += [_Candidate(member, at, [passages[member]]) for member in report.members]
        elif report.outcome == "compressed":
            ends = range(len(report.sentences), 0, -1)
            forms = [compressed_passage(report.sentences[:end], report.members, passages) for end in ends]
            candidates.append(_Candidate(min(report.members), at, forms))
    return sorted(candidates, key=lambda candidate: candidate.rank)


def _fill_context(
    reports: Sequence[ClusterReport], passages: Sequence[Passage], limit: int | None, measure: Measure
) -> tuple[list[Passage], list[ClusterReport]]:
    # A compression that does not fit is shortened to its first sentences. If nothing fits, the context is the
    # beginning of the best passage.
    candidates, context, filled = _candidates(reports, passages), list[Passage](), list(reports)
    tokens_left = math.inf if limit is None else limit
    for candidate in candidates:
        report = filled[candidate.cluster]
        fitted = next((form for form in candidate.forms if measure(form) <= tokens_left), None)
        if fitted is None:
            ids = report.sources if report.sentences else (candidate.forms[0].id,)
            filled[candidate.cluster] = replace(report, left_out=(*report.left_out, *ids))
        else:
            tokens = measure(fitted)
            tokens_left -= tokens
            context.append(fitted)
            filled[candidate.cluster] = replace(report, tokens_after=report.tokens_after + tokens)
    with_text = [candidate for candidate in candidates if candidate.forms[0].text.strip()]
    if with_text and not any(passage.text.strip() for passage in context):
        best, passage = _first_words(with_text, limit or 0, measure)
        left = tuple(name for name in filled[best].left_out if name != passage.id)
        filled[best] = replace(filled[best], tokens_after=measure(passage), left_out=left)
        context = [passage]
    return context, filled


def _first_words(candidates: Sequence[_Candidate], limit: int, measure: Measure) -> tuple[int, Passage]:
    for unit_end in (_WORD_END, _CHARACTER):
        for _, at, (passage, *_) in candidates:
            ends = [match.end() for match in unit_end.finditer(passage.text)]
            # A longer text never has fewer tokens, so a binary search finds the longest text that fits.
            fitting = bisect_right(ends, limit, key=lambda end: measure(_cut(passage, end)))
            if fitting:
                return at, _cut(passage, ends[fitting - 1])
    raise ConfigurationError(f"no text fits token_limit={limit}", hint="pass a larger token_limit")


def _cut(passage: Passage, end: int) -> Passage:
    metadata = {name: value for name, value in passage.metadata.items() if name != SENTENCES_KEY}
    return replace(passage, text=passage.text[:end], metadata=metadata, embedding=None)


EVENT_SENTENCES |= {
    "edc2.compressed": "The passages were shortened from {tokens_before} to {tokens_after} tokens",
    "edc2.not_compressed": "The context, or a part of it, could not be shortened and is left as it is",
    "edc2.fallback": "No passage was judged relevant, so the passages are left as they are",
    "edc2.unclear_relevance": "{replies} of {of} replies do not say whether their passage is relevant",
    "edc2.embedded_again": "The query's vector has {query_dimensions} numbers, but the vectors of the "
    "passages have {passage_dimensions} numbers, so the query and the passages are embedded again",
}
