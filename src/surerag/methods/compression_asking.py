"""What a reader is asked about clusters, and what is made of its replies (EDC²-RAG, section 4.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from surerag.effects import Program, generate
from surerag.errors import CapabilityError, ConfigurationError, MissingServiceError, PromptError
from surerag.methods.compression_types import ClusterReport, CompressionSettings, merged_passage
from surerag.methods.faithfulness import Claim, supported
from surerag.methods.refusals import says_nothing
from surerag.prompts import format_passages
from surerag.types import Generation, Passage, Prompt

OURS_TO_MEND = (CapabilityError, ConfigurationError, MissingServiceError, PromptError)
"""Failures that say how a pipeline was put together; no fallback hides them."""


class Asked(NamedTuple):
    """What became of the clusters that were asked about, and how many prompts that took."""

    reports: list[ClusterReport]
    calls: int


def ask_about(
    query: str,
    reports: Sequence[ClusterReport],
    passages: Sequence[Passage],
    settings: CompressionSettings,
    evidence: Sequence[str] = (),
) -> Program[Asked]:
    """Compress clusters for the question, all of them in one request to the reader.

    Args:
        query: The question, or the statement to check.
        reports: The clusters.
        passages: What was retrieved.
        settings: What steers the method.
        evidence: Texts shown before a cluster's own. What they say already is not said again, and what
            only they say is not taken for the cluster's.
    """
    prompts = [_prompt(query, report, passages, settings, evidence) for report in reports]
    replies = yield from _replies(prompts, settings)
    known = {_bare(sentence) for text in evidence for sentence in settings.split(text)}
    judged = [
        _judged(report, reply, settings, known)
        for report, reply in zip(reports, replies.generations, strict=True)
    ]
    judged = yield from _faithful(judged, passages, settings)
    return Asked([_unless_longer(report, passages, settings) for report in judged], replies.calls)


def _prompt(
    query: str,
    report: ClusterReport,
    passages: Sequence[Passage],
    settings: CompressionSettings,
    evidence: Sequence[str],
) -> Prompt:
    texts = dict.fromkeys([*evidence, *(passages[at].text for at in report.members)])
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
    report: ClusterReport, reply: Generation | Exception, settings: CompressionSettings, known: set[str]
) -> ClusterReport:
    """Tell a compression from a failure, from nothing, and from nothing new."""
    if isinstance(reply, Exception):
        reason = f"the reader failed: {type(reply).__name__}: {reply}"
        return replace(report, outcome="passed", reason=reason, trouble="failed")
    text = reply.text.strip()
    if known:
        text = _joined([part for part in settings.split(text) if _bare(part) not in known], text)
    report = replace(report, generation=reply, text=text)
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
    return replace(report, text=_joined(kept, report.text), removed=unsupported)


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


def _joined(sentences: Sequence[str], text: str) -> str:
    """Put together what is left of a text, in lines if it had lines."""
    return ("\n" if "\n" in text else " ").join(sentences)


def _bare(sentence: str) -> str:
    """Return a sentence as it is compared with others."""
    return sentence.strip().rstrip(".").casefold()
