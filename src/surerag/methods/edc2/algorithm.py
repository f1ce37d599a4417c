"""EDC²-RAG: put similar documents together, and compress each cluster for the question.

Li et al., "Efficient Dynamic Clustering-Based Document Compression for Retrieval-Augmented-Generation",
section 4. The algorithm comes first; what the reader is asked, and how its replies are read, follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from numpy.typing import ArrayLike

from surerag.clustering import Cluster
from surerag.effects import Program, emit, generate
from surerag.errors import MISCONFIGURED
from surerag.framing import PromptText, unquoted
from surerag.messages import Generation, Passage, Prompt, Template
from surerag.methods.calls import CallBudget
from surerag.methods.edc2.clusters import form_clusters
from surerag.methods.edc2.fitting import within_budget
from surerag.methods.edc2.guards import Claim, says_nothing, supported
from surerag.methods.edc2.options import EDC2Options, Mode
from surerag.methods.edc2.result import ClusterReport, EDC2Result, merged_passage
from surerag.methods.inputs import check_passages, check_question
from surerag.prompts import format_passages


def compress_clusters(
    query: str,
    passages: Sequence[Passage],
    options: EDC2Options,
    query_vector: ArrayLike | None = None,
    budget: CallBudget | None = None,
) -> Program[EDC2Result]:
    """Cluster, compress, drop what yields nothing, and fall back to the originals when all do (section 4).

    Args:
        query: A question, or the statement to check; not empty.
        passages: What was retrieved, best first. They are not changed.
        options: What steers the method.
        query_vector: The query's vector, if the caller has it, made by the model that made the passages'.
        budget: The calls that are left, where this is a part of something larger.

    Returns:
        One passage a compressed cluster; passages of clusters that were left alone, as they came.

    Raises:
        InputError: If the query is empty.
    """
    check_question(query)
    check_passages(passages)
    work = _Work(query, passages, options, CallBudget(options.max_calls) if budget is None else budget)
    if options.compresses(passages):
        clusters = yield from form_clusters(query, passages, options, query_vector)
        reports = [_opened(cluster, passages, options) for cluster in clusters]
    else:
        reports = [_left_alone(passages, options)]
    worth_a_call = [at for at, report in enumerate(reports) if report.outcome == "asked"]
    yield from _compress(worth_a_call, reports, work)
    fell_back = bool(worth_a_call) and all(reports[at].outcome == "dropped" for at in worth_a_call)
    if fell_back and options.rules.all_empty == "original":
        # Section 4.4.
        yield from emit("cluster_compression.fallback", warning=True, query=query, clusters=len(worth_a_call))
        for at in worth_a_call:
            reports[at] = replace(reports[at], outcome="passed", reason="every cluster yielded nothing")
    yield from _warn(reports)
    yield from work.budget.tell("cluster_compression", query)
    fitted = within_budget(reports, passages, options)
    if fitted.too_small:
        yield from emit(
            "cluster_compression.budget_too_small",
            warning=True,
            query=query,
            budget=options.budget,
            kept=sum(report.tokens_after for report in fitted.reports),
        )
    result = work.result(fitted.passages, fitted.reports, fell_back)
    yield from emit(
        "cluster_compression.compressed",
        detail=result,
        query=query,
        clusters=len(result.clusters),
        calls=result.calls,
        tokens_before=result.tokens_before,
        tokens_after=result.tokens_after,
    )
    return result


class _Work:
    """One question at work, and what it was asked for so far.

    Attributes:
        calls: Prompts that the reader was asked.
        judgements: Pairs that the entailer was asked about.
    """

    def __init__(
        self, query: str, passages: Sequence[Passage], options: EDC2Options, budget: CallBudget
    ) -> None:
        self.query = query
        self.passages = passages
        self.options = options
        self.budget = budget
        self.calls = 0
        self.judgements = 0

    def ask(self, prompts: Sequence[Prompt]) -> Program[list[Generation]]:
        """Ask the reader, for one reply to each prompt."""
        self.calls += len(prompts)
        self.budget.spend(len(prompts))
        answers = yield from generate(prompts, self.options.sampling)
        return [answer[0] for answer in answers]

    def judged(self, pairs: int) -> None:
        """Note pairs that the entailer is asked about."""
        self.judgements += pairs
        self.budget.spend(pairs)

    def result(
        self, kept: Sequence[Passage], reports: Sequence[ClusterReport], fell_back: bool
    ) -> EDC2Result:
        """Return what came of it."""
        replies = [
            reply for report in reports for reply in (*report.earlier, report.generation) if reply is not None
        ]
        return EDC2Result(
            query=self.query,
            mode=self.options.mode,
            passages=tuple(kept),
            clusters=tuple(reports),
            calls=self.calls,
            prompt_tokens=sum(reply.prompt_tokens for reply in replies),
            completion_tokens=sum(reply.completion_tokens for reply in replies),
            fell_back=fell_back,
            judgements=self.judgements,
            out_of_calls=self.budget.short,
            cached_tokens=sum(reply.cached_tokens for reply in replies),
        )


def _compress(waiting: Sequence[int], reports: list[ClusterReport], work: _Work) -> Program[None]:
    """Ask about the clusters that wait, best first as far as calls reach, and set their reports.

    Where bridging is wanted, those that yielded nothing are asked again with what the others yielded beside
    them, as long as that is more than they were shown before.
    """
    shown = 0
    evidence: list[str] = []
    for _ in range(1 + work.options.bridging):
        ranked = sorted(waiting, key=lambda at: min(reports[at].members))
        affordable = set(ranked[: work.budget.within(len(ranked))])
        for at in ranked:
            if at not in affordable and reports[at].outcome == "asked":
                reports[at] = _unasked(reports[at], "no calls were left to compress it")
        waiting = [at for at in waiting if at in affordable]
        found = yield from ask_about([_reopened(reports[at]) for at in waiting], work, evidence)
        for at, report in zip(waiting, found, strict=True):
            reports[at] = report
        waiting = [at for at in waiting if reports[at].outcome == "dropped"]
        shown, evidence = len(evidence), _evidence(reports, work.passages)
        if not waiting or len(evidence) == shown:
            break


def _unasked(report: ClusterReport, reason: str) -> ClusterReport:
    """Let the passages of a cluster go through, for want of calls."""
    return replace(
        report,
        outcome="passed",
        reason=reason,
        text="",
        tokens_after=report.tokens_before,
        trouble="unasked",
    )


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


def _opened(cluster: Cluster, passages: Sequence[Passage], options: EDC2Options) -> ClusterReport:
    """Decide whether a cluster is worth a call."""
    members = tuple(int(at) for at in cluster)
    before = sum(options.measure(passages[at]) for at in members)
    report = ClusterReport(
        members=members,
        sources=tuple(passages[at].id for at in members),
        tokens_before=before,
        tokens_after=before,
    )
    if not any(passages[at].text.strip() for at in members):
        return replace(report, outcome="passed", reason="no text")
    if before <= options.rules.pass_below:
        return replace(report, outcome="passed", reason="too short to gain")
    return report


def _left_alone(passages: Sequence[Passage], options: EDC2Options) -> ClusterReport:
    """Report that all passages go through together, because the policy does not compress them."""
    tokens = sum(map(options.measure, passages))
    return ClusterReport(
        members=tuple(range(len(passages))),
        sources=tuple(passage.id for passage in passages),
        tokens_before=tokens,
        tokens_after=tokens,
        outcome="passed",
        reason="signal at or below threshold",
    )


def _warn(reports: Sequence[ClusterReport]) -> Program[None]:
    for report in reports:
        if report.trouble in ("failed", "unsupported"):
            yield from emit(
                f"cluster_compression.{report.trouble}",
                warning=True,
                reason=report.reason,
                sources=list(report.sources),
            )
    if cut := [report for report in reports if report.trouble == "truncated"]:
        yield from emit(
            "cluster_compression.truncated",
            warning=True,
            reason=cut[0].reason,
            truncated=len(cut),
            sources=[name for report in cut for name in report.sources],
        )


def ask_about(
    reports: Sequence[ClusterReport], work: _Work, evidence: Sequence[str] = ()
) -> Program[list[ClusterReport]]:
    """Compress clusters for the question, all of them in one request to the reader.

    Args:
        reports: The clusters.
        work: The question at work.
        evidence: Texts shown before a cluster's own. What they say already is not said again, and what
            only they say is not taken for the cluster's.
    """
    # Equal texts are shown once.
    passages, options = work.passages, work.options
    texts = [dict.fromkeys([*evidence, *(passages[at].text for at in r.members)]) for r in reports]
    prompts = [prompt_for(work.query, shown, options) for shown in texts]
    replies = yield from _replies(prompts, work)
    known = {_bare(sentence) for text in evidence for sentence in options.sentences(text)}
    judged = [_judged(report, reply, options, known) for report, reply in zip(reports, replies, strict=True)]
    judged = yield from _faithful(judged, work)
    return [_unless_longer(report, passages, options) for report in judged]


class _Words(NamedTuple):
    """What a mode's prompt calls the query and the reply."""

    query: str
    reply: str


_WORDS: dict[Mode, _Words] = {
    "extract": _Words("Question", "Extracted"),
    "answer_with_evidence": _Words("Question", "Answer"),
    "fact_check": _Words("Statement", "Extracted"),
}


def prompt_for(query: str, texts: Iterable[str], options: EDC2Options) -> Prompt:
    """Return the mode's prompt, with its worked examples."""
    words = _WORDS[options.mode]
    examples = "".join(
        f"{words.query}: {example.query}\nDocuments:\n{format_passages(example.passages)}\n"
        f"{words.reply}: {example.reply}\n\n"
        for example in options.examples
    )
    prompt: Prompt = _template(options).render(
        examples=PromptText(examples),
        passages=format_passages(texts),
        **{words.query.lower(): query},
        **subject_of(options),
    )
    return prompt


def about(options: EDC2Options) -> str:
    """Return how the names of prompts end that name the subject of a statement, where one is given."""
    return "_about" if options.subject and options.mode == "fact_check" else ""


def subject_of(options: EDC2Options) -> dict[str, str]:
    """Return the subject as the slot that such prompts have."""
    return {"subject": options.subject or ""} if about(options) else {}


def _template(options: EDC2Options) -> Template:
    found: Template = options.prompts[f"{options.mode}{about(options)}"]
    return found


def _replies(prompts: Sequence[Prompt], work: _Work) -> Program[list[Generation | Exception]]:
    """Ask for all clusters at once; if that fails, for each alone, so that one failure stays its own.

    Returns:
        What came back for each prompt; an exception where the reader failed.
    """
    if not prompts:
        return []
    try:
        return list((yield from work.ask(prompts)))
    except MISCONFIGURED:
        raise
    except Exception as error:
        if work.options.on_failure == "raise":
            raise
        failed = error
    again = work.budget.within(len(prompts)) if len(prompts) > 1 else 0
    found: list[Generation | Exception] = []
    for prompt in prompts[:again]:
        try:
            found += yield from work.ask([prompt])
        except MISCONFIGURED:
            raise
        except Exception as error:
            found.append(error)
    return found + [failed] * (len(prompts) - again)


def _judged(
    report: ClusterReport, reply: Generation | Exception, options: EDC2Options, known: set[str]
) -> ClusterReport:
    """Tell a compression from a failure, from nothing, and from nothing new."""
    if isinstance(reply, Exception):
        reason = f"the reader failed: {type(reply).__name__}: {reply}"
        return replace(report, outcome="passed", reason=reason, trouble="failed")
    if reply.finish == "length":
        # What was still to come is not known, and a reply that finds no end often goes in circles. Its whole
        # sentences would pass for all that the sources say on the question, so the sources stay themselves.
        reason = f"the compression was cut at max_tokens={options.max_tokens}"
        return replace(report, generation=reply, outcome="passed", reason=reason, trouble="truncated")
    text = reply.text.strip()
    if known:
        text = _joined([part for part in options.sentences(text) if _bare(part) not in known], text)
    report = replace(report, generation=reply, text=text)
    if says_nothing(report.text, options.rules.nothing, options.sentences):
        return replace(report, outcome="dropped", reason="nothing relevant", text="", tokens_after=0)
    return replace(report, outcome="compressed", reason="compressed")


def _faithful(reports: Sequence[ClusterReport], work: _Work) -> Program[list[ClusterReport]]:
    """Remove or flag the sentences that no source supports, those of all clusters in one question.

    With ``guard="entailment"``, a compression that cannot be checked any more, for want of calls or because
    it has more sentences than tokens were asked for, gives way to its sources.
    """
    options, passages = work.options, work.passages
    guard, threshold = options.rules.guard, options.support_threshold
    split = [options.sentences(report.text) if report.outcome == "compressed" else [] for report in reports]
    if guard == "entailment":
        pairs = [len(said) * len(report.members) for report, said in zip(reports, split, strict=True)]
        checked = [
            len(said) <= options.max_tokens and work.budget.affords(sum(pairs[: at + 1]))
            for at, said in enumerate(split)
        ]
        reports = [
            report if known or not said else _unasked(report, "no calls were left to check it")
            for report, said, known in zip(reports, split, checked, strict=True)
        ]
        split = [said if known else [] for said, known in zip(split, checked, strict=True)]
        work.judged(sum(many for many, known in zip(pairs, checked, strict=True) if known))
    claims = [
        Claim(sentence, [passages[at].text for at in report.members])
        for report, sentences in zip(reports, split, strict=True)
        for sentence in sentences
    ]
    prompt = _template(options).text
    verdicts = iter((yield from supported(claims, guard, threshold, prompt, work.query)))
    return [
        _guarded(report, [(sentence, next(verdicts)) for sentence in sentences], options)
        for report, sentences in zip(reports, split, strict=True)
    ]


def _guarded(
    report: ClusterReport, sentences: Sequence[tuple[str, bool]], options: EDC2Options
) -> ClusterReport:
    unsupported = tuple(sentence for sentence, believed in sentences if not believed)
    if not unsupported:
        return report
    if options.guard_action == "flag":
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


def _unless_longer(report: ClusterReport, passages: Sequence[Passage], options: EDC2Options) -> ClusterReport:
    """Refuse a compression that is longer than its sources."""
    if report.outcome != "compressed":
        return report
    after = options.measure(merged_passage(report, passages))
    if options.rules.refuse_longer and after > report.tokens_before:
        return replace(report, outcome="passed", reason="longer than its sources", text="")
    return replace(report, tokens_after=after)


def _joined(sentences: Sequence[str], text: str) -> str:
    """Put together what is left of a text, in lines if it had lines."""
    return ("\n" if "\n" in text else " ").join(sentences)


def _bare(sentence: str) -> str:
    """Return a sentence as it is compared with others."""
    return unquoted(sentence.strip()).rstrip(".").casefold()
