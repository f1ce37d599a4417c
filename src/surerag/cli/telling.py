"""One question through all five methods, told in the order in which a reader would want to know."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from surerag import ClusterCompressor, Dense, LazyRAG, SePer, UncertaintyRewriter
from surerag.entailment import JudgeEntailer
from surerag.errors import ServiceError
from surerag.evaluation.story import Chapter, Line, Story, Tone, equally_likely
from surerag.methods.dense_rag.result import DenseResult
from surerag.methods.dynqr.metrics import Metric
from surerag.methods.dynqr.result import RewriteResult
from surerag.methods.edc2.result import ClusterReport
from surerag.methods.lazy_rag.result import LazyRAGResult
from surerag.methods.seper.result import UtilityResult
from surerag.services import Encoder, Retriever
from surerag.types import Passage

COMPRESSED = 8
"""Passages that the compressor gets."""

LOOKED_AT = 3
"""Passages that are rephrased, and weighed, one by one: both cost calls for each."""

WEIGHED_TOKENS = 64
"""Length of a sampled answer, at most, where answers have no limit of their own."""

_LONGEST = 280
_NOTHING = "(nothing)"


@dataclass(frozen=True)
class Cast:
    """What a story is told with.

    Attributes:
        rag: L-RAG, with reader and both tiers; its answer's length is that of all other answers.
        rewriter: DynQR over the same retriever.
        encoder: For the compressor's clusters.
        retriever: The passages' tier.
        n_samples: Answers that are sampled in each context to weigh passages.
    """

    rag: LazyRAG
    rewriter: UncertaintyRewriter
    encoder: Encoder
    retriever: Retriever
    n_samples: int = 10

    @classmethod
    def of(cls, rag: LazyRAG, retriever: Retriever, encoder: Encoder, *, n_samples: int = 10) -> Cast:
        """Build the other parts to go with L-RAG; a reader without log-probabilities is asked by samples."""
        metric: Metric = "perplexity" if rag.reader.capabilities.logprobs else "disagreement"
        rewriter = UncertaintyRewriter(
            rag.reader, retriever, metric=metric, n_samples=5, top_n=rag.top_n, max_tokens=rag.max_tokens
        )
        return cls(rag, rewriter, encoder, retriever, n_samples)


@dataclass(frozen=True)
class Known:
    """The right answer, where somebody knows it.

    Attributes:
        answer: To show, and to weigh passages by.
        is_right: Judges an answer.
    """

    answer: str
    is_right: Callable[[str], bool]


def tell(
    cast: Cast,
    lazy: LazyRAGResult,
    rewriting: RewriteResult | None,
    known: Known | None,
    *,
    chosen: str,
) -> Story:
    """Tell what five methods make of a question that L-RAG has answered.

    What passes (a time-out, one bad answer) is told in its chapter; the others are told all the same.

    Args:
        cast: With what.
        lazy: L-RAG's answer, by the cast's.
        rewriting: DynQR's, if it is there already.
        known: The right answer, if it is known.
        chosen: By which rule the question was chosen.
    """
    question = lazy.question
    chapters = [_told("L-RAG", LAZY, lambda: _lazy(cast.rag, lazy, known))]
    failure = ""
    if rewriting is None:
        try:
            rewriting = cast.rewriter.run(question)
        except ServiceError as error:
            failure = str(error)
    found = list(rewriting.chosen.passages) if rewriting else cast.retriever.retrieve(question, LOOKED_AT)
    asked = rewriting.query if rewriting else question
    original = rewriting.original.passages if rewriting else found
    chapters.append(
        _told("DENSE-RAG", DENSE, lambda: _understood(cast, question, original, known, lazy.answer))
    )
    if rewriting is None:
        chapters.append(Chapter("DynQR", DYNQR, (), f"Not told: {failure}"))
    else:
        kept = rewriting
        chapters.append(_told("DynQR", DYNQR, lambda: _rewriting(kept, known)))
        if kept.kept == "rewritten":
            after = _told(
                "DENSE-RAG", AFTER, lambda: _understood(cast, asked, found, known, kept.answer, AFTER)
            )
            chapters.append(after)
    chapters.append(_told("EDC²-RAG", EDC2, lambda: _compressed(cast, asked, known)))
    answer = "" if rewriting is None else rewriting.answer
    chapters.append(_told("SePer", SEPER, lambda: _worth(cast, asked, found, known, answer)))
    return Story(question, known.answer if known else "", chosen, tuple(chapters))


LAZY = "Does it have to look anything up?"
DENSE = "Did it understand what was fetched?"
AFTER = "And what the rewrite fetched?"
DYNQR = "Would other words find more?"
EDC2 = "How little of it has to be read?"
SEPER = "What was each passage worth?"
OTHER_WORDS = "The prompt of this method has other words, and a reader that is unsure goes by such things."


def _told(method: str, asks: str, chapter: Callable[[], Chapter]) -> Chapter:
    try:
        return chapter()
    except ServiceError as error:
        return Chapter(method, asks, (), f"Not told: {error}")


def _lazy(rag: LazyRAG, result: LazyRAGResult, known: Known | None) -> Chapter:
    decision = result.decision
    lines = [Line("Summary", short(summary.text), "soft") for summary in result.summaries]
    first = rag.with_options(threshold=math.inf).run(result.question) if decision.retrieve else result
    lines.append(_answer("First answer", first.answer, known))
    if decision.signal is None:
        lines.append(Line("How sure", decision.reason))
    else:
        means = f": {equally_likely(decision.signal)}" if decision.gate == "entropy" else ""
        against = f"boundary τ = {decision.threshold:.2f}"
        signal = f"{decision.gate} {decision.signal:.2f} {decision.unit}"
        lines.append(Line("How sure", f"{signal}{means}; {against}"))
    if not decision.retrieve:
        means = "Below the boundary: it answered from the summary and fetched nothing."
        return Chapter("L-RAG", LAZY, tuple(lines), means, _calls(result.calls))
    lines += [Line(f"Fetched {at}", short(one.text), "soft") for at, one in enumerate(result.passages, 1)]
    lines.append(_answer("Answer", result.answer, known))
    means = "Above the boundary, so it fetched passages and answered again"
    if known is not None:
        right = known.is_right(first.answer), known.is_right(result.answer)
        outcome = {
            (False, True): ": that made the answer right.",
            (True, True): ", though the first answer was right: a fetch that could have been spared.",
            (True, False): ", and that made a right answer wrong.",
            (False, False): ", and that did not help: the answer is still wrong.",
        }
        means += outcome[right]
    else:
        means += "." if first.answer != result.answer else ", and says the same as before."
    return Chapter("L-RAG", LAZY, tuple(lines), means, _calls(result.calls))


def _understood(
    cast: Cast,
    question: str,
    passages: Sequence[Passage],
    known: Known | None,
    before: str,
    asks: str = DENSE,
) -> Chapter:
    dense = Dense(cast.rag.reader, max_tokens=cast.rag.max_tokens)
    result = dense.run(question, passages[:LOOKED_AT])
    lines = [_answer("Answer", result.answer, known)]
    if result.answer.strip() != before.strip():
        lines.append(Line("Not as before", OTHER_WORDS, "soft"))
    for number, chunk in enumerate(result.chunks, 1):
        same = "the same answer" if chunk.link == 1 else f"now: {chunk.answer or _NOTHING}"
        said = short(chunk.rephrased.text)
        reworded = chunk.rephrased.outcome == "rephrased"
        told = f"“{said}” → {same}" if reworded else "could not be said otherwise"
        lines.append(Line(f"{number} reworded", told, "soft"))
    return Chapter("DENSE-RAG", asks, tuple(lines), _dense_means(result, dense), _calls(result.calls.total))


def _dense_means(result: DenseResult, dense: Dense) -> str:
    if result.score <= dense.threshold:
        return (
            f"DENSE {result.score:.2f} nats, certain up to {dense.threshold:g}: however the passages are "
            "worded, the answer stays. That is no proof that it is right."
        )
    return (
        f"DENSE {result.score:.2f} nats: {equally_likely(result.score, 'answers')}. The answer hangs on "
        "how the passages are worded: the reader did not understand them."
    )


def _rewriting(result: RewriteResult, known: Known | None) -> Chapter:
    gate = result.steps[0]
    against = "" if gate.threshold is None else f"; boundary θ = {gate.threshold:.2f}"
    lines = [
        _answer("Answer before", result.original.answer, known),
        Line("How sure", _perplexity(result.original.uncertainty, gate.metric) + against),
    ]
    for attempt in result.candidates:
        lines.append(Line("Rewrite", attempt.query))
        if attempt.passages:
            lines.append(Line("It finds first", short(attempt.passages[0].text), "soft"))
        lines.append(_answer("Answer after", attempt.answer, known))
        lines.append(Line("How sure", _perplexity(attempt.uncertainty, gate.metric)))
    if not result.acted:
        means = "Sure enough: nothing was rewritten, and that cost nothing more than the answer itself."
    elif result.rewritten is None:
        means = f"It tried to rewrite the question: {result.steps[-1].reason}. The first answer stands."
    elif result.kept == "rewritten":
        means = "The answer to the rewrite is the surer one of the two, so that one is kept."
    else:
        means = "The first answer is the surer one of the two, so the rewrite is set aside."
    return Chapter("DynQR", DYNQR, tuple(lines), means, _calls(result.costs.calls))


def _perplexity(uncertainty: float, metric: str) -> str:
    if not math.isfinite(uncertainty):
        return "it said nothing"
    means = f": {equally_likely(math.log(uncertainty))}" if metric == "perplexity" and uncertainty > 0 else ""
    return f"{metric} {uncertainty:.2f}{means}"


def _compressed(cast: Cast, question: str, known: Known | None) -> Chapter:
    compressor = ClusterCompressor(cast.rag.reader, cast.encoder)
    passages = cast.retriever.retrieve(question, COMPRESSED)
    result = compressor.run(question, passages)
    lines = [Line("Question", question, "soft")]
    lines += [_cluster(cluster) for cluster in result.clusters]
    if result.calls == 0:
        means = "Every cluster was short enough to be read as it is: nothing was compressed."
        return Chapter("EDC²-RAG", EDC2, tuple(lines), means)
    means = (
        f"{result.tokens_before} tokens became {result.tokens_after}; {result.prompt_tokens} were read to "
        "get there, by a model that may be a cheaper one."
    )
    if known is not None:
        before, after = (_holds(group, known.answer) for group in (passages, result.passages))
        if before:
            means += " The right answer is " + ("still in it." if after else "lost on the way.")
        else:
            means += " The right answer was in none of the passages."
    return Chapter("EDC²-RAG", EDC2, tuple(lines), means, _calls(result.calls))


def _cluster(cluster: ClusterReport) -> Line:
    n = len(cluster.members)
    label = f"{n} alike" if n > 1 else "1 passage"
    size = f"{cluster.tokens_before} → {cluster.tokens_after} tokens"
    share = cluster.tokens_after / max(cluster.tokens_before, 1)
    if cluster.outcome == "compressed":
        return Line(label, f"{size}: {short(cluster.text)}", bar=share)
    return Line(label, f"{size}: {cluster.outcome}, {cluster.reason}", "soft", bar=share)


def _worth(
    cast: Cast, question: str, passages: Sequence[Passage], known: Known | None, answer: str
) -> Chapter:
    gold = known.answer if known else answer
    if not gold.strip() or not passages:
        return Chapter("SePer", SEPER, (), "There is no answer, or no passage, to weigh.")
    reader = cast.rag.reader
    length = cast.rag.max_tokens or WEIGHED_TOKENS
    seper = SePer(reader, JudgeEntailer(reader), n_samples=cast.n_samples, max_tokens=length)
    result = seper.utilities(question, [gold], passages[:LOOKED_AT])
    lines = [
        Line("Measured by", gold if known else f"{short(gold)} (its own answer: nobody gave the right one)"),
        Line("Belief without", f"{result.whole.before.seper:.2f}", bar=result.whole.before.seper),
        *_worths(result),
        Line("Belief with all", f"{result.whole.after.seper:.2f}", bar=result.whole.after.seper),
    ]
    best = max(range(len(result.passages)), key=lambda at: result.passages[at].alone)
    whole = f"ΔSePer {_signed(result.whole.delta)} of at most 1"
    if result.whole.delta <= 0.05:
        means = f"{whole}: the reader believes in this answer no more with these passages than without."
    else:
        means = f"{whole}; passage {best + 1} alone gives {_signed(result.passages[best].alone)}."
    if known is None:
        means += " It says what carried this answer, not whether the answer is right: --answer would."
    n = len(result.passages)
    return Chapter("SePer", SEPER, tuple(lines), means, f"{2 * n + 2} prompts, {cast.n_samples} samples each")


def _worths(result: UtilityResult) -> list[Line]:
    return [
        Line(
            f"Passage {number}",
            f"{_signed(one.alone)} alone, {_signed(one.lost)} beside the others: {short(one.passage.text)}",
            bar=one.alone,
        )
        for number, one in enumerate(result.passages, 1)
    ]


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}".replace("+0.00", "0.00")


def _answer(label: str, answer: str, known: Known | None) -> Line:
    text = short(answer) or _NOTHING
    if known is None:
        return Line(label, text)
    right = known.is_right(answer)
    tone: Tone = "good" if right else "bad"
    return Line(label, f"{text} ({'right' if right else 'wrong'})", tone)


def _holds(passages: Sequence[Passage], answer: str) -> bool:
    return any(answer.lower() in passage.text.lower() for passage in passages)


def _calls(n: int) -> str:
    return f"{n} call{'' if n == 1 else 's'}"


def short(text: str) -> str:
    """Return a text in one line, cut where it is too long to be read in passing."""
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1].rstrip()}…"
