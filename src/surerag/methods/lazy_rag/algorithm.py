"""L-RAG: answer from summaries, and retrieve passages only if a gate decides that the reader is unsure.

Voloshyn, "L-RAG: Balancing Context and Retrieval with Entropy-Based Lazy Loading", section III.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from surerag.effects import (
    CancelGeneration,
    ContinueGeneration,
    Generate,
    Program,
    Retrieve,
    ReturnAnswer,
    StartGeneration,
    emit,
    perform,
)
from surerag.errors import check_question
from surerag.messages import (
    EVENT_SENTENCES,
    NO_SUMMARY,
    Generation,
    Passage,
    Prompt,
    SamplingParams,
    TraceKind,
)
from surerag.methods.lazy_rag.gates import FirstPass, Gate, GateDecision, Interval, gate_of_text
from surerag.methods.lazy_rag.options import LazyRAGOptions
from surerag.methods.lazy_rag.result import LazyRAGPlan, LazyRAGResult
from surerag.methods.shared import (
    MUST_RAISE,
    Needs,
    checked_number,
    meaning_clusters,
    typical_sample,
)
from surerag.prompts import format_passages, with_abstention
from surerag.readers.failures import in_plain_words
from surerag.readers.protocol import BegunGeneration
from surerag.text import begins_abstention, is_abstention, may_become_abstention

_FIRST_TRACE: dict[Needs, TraceKind] = {
    "text": "optional_entropy",
    "logprobs": "expected",
    "entropy": "expected_entropy",
}
_LAST_TRACE: dict[Needs, TraceKind] = {
    "text": "optional_entropy",
    "logprobs": "optional",
    "entropy": "optional_entropy",
}
"""For each kind of output that a gate needs, the trace to request with the answer from passages, so that its
certainty is measured like the certainty of an answer from summaries."""


def lazy_rag(
    question: str, options: LazyRAGOptions, max_tokens: int | None, gate: Gate | None = None
) -> Program[LazyRAGResult]:
    """Answer a question with L-RAG (section III of the paper).

    1. First pass: the reader begins to answer from the summaries (Eq. 1), or abstains if they lack the
       answer.
    2. If the gate's score (Eq. 2 and 3) is at most the threshold τ (Eq. 4), the first answer is completed.
    3. Otherwise L-RAG searches: the first answer is cancelled, passages are retrieved (Eq. 5), and the reader
       answers from summaries and passages (Eq. 6 and 7).

    L-RAG also searches if the first answer abstains, is empty or was truncated at ``max_tokens``, if the
    first pass fails with a temporary error, if no summary is found, or if the nearest document has no
    summary. If no passage is retrieved, the reader answers from the summaries alone. If the first answer
    lacks the log-probabilities that the gate needs, :class:`AbstentionGate` decides. Errors are those of
    :meth:`surerag.LazyRAG.program`.

    Args:
        question: The question.
        options: Options of the method.
        max_tokens: Maximum length of an answer, in tokens; None means the reader's own limit.
        gate: Gate to use in place of the gate of ``options``.
    """
    check_question(question)
    steps = _Steps(question, options, max_tokens, gate or options.resolved_gate)
    failure = ""
    try:
        yield from steps.start()
    except MUST_RAISE:
        raise
    except Exception as error:
        failure = f"the first pass failed: {in_plain_words(error)}"
    decision = steps.decision(failure)
    yield from emit("lazy_rag.gate", warning=bool(failure), question=question, **decision.to_dict())
    if not decision.retrieve:
        yield from steps.announce(decision, [])
        answer = yield from steps.finish()
        if answer.text.strip():
            return (yield from steps.result(decision, [], answer))
        decision = replace(decision, retrieve=True, reason="empty first answer")
    yield from steps.cancel()
    passages = yield from perform(Retrieve(question, options.top_n))  # Eq. 5
    if not passages:
        yield from emit("lazy_rag.nothing_retrieved", warning=True, question=question)
    yield from steps.announce(decision, passages)
    # If nothing was retrieved, the reader only has the summaries, and may abstain as in the first pass.
    abstention = (options.abstention or None) if passages else options.first_abstention
    [[answer]] = yield from perform(
        Generate([steps.prompt(passages, abstention)], steps.sampling, answer=True)
    )
    return (yield from steps.result(decision, passages, answer))


class _Steps:
    def __init__(self, question: str, options: LazyRAGOptions, max_tokens: int | None, gate: Gate) -> None:
        self.question = question
        self.options = options
        self.gate = gate
        self.abstention = options.first_abstention
        self.sampling = SamplingParams(max_tokens=max_tokens, trace=_LAST_TRACE[self.gate.needs])
        self.summaries: Sequence[Passage] = ()
        self.lacks_summary = ""
        self.first_pass: FirstPass | None = None
        self.score: float | None = None
        self.interval: Interval | None = None
        self._begun: BegunGeneration | None = None

    def start(self) -> Program[None]:
        gate = self.gate
        nearest = yield from perform(Retrieve(self.question, self.options.n_summaries, tier="summaries"))
        self.summaries = [one for one in nearest if NO_SUMMARY not in one.metadata and one.text.strip()]
        if not nearest:
            self.lacks_summary = "no summary was found"
        elif NO_SUMMARY in nearest[0].metadata:
            self.lacks_summary = "the nearest document has no summary"
        if self.lacks_summary:
            return
        prompt = self.prompt((), self.abstention)
        sampling = replace(self.sampling, trace=_FIRST_TRACE[gate.needs])
        if gate.n_samples:
            sampling = replace(sampling, n=gate.n_samples, temperature=1.0)
            [samples] = yield from perform(Generate([prompt], sampling))
            clusters = meaning_clusters([sample.text for sample in samples])
            self.first_pass = FirstPass(typical_sample(samples, clusters), tuple(samples), tuple(clusters))
        else:
            n_tokens = gate.n_tokens or sampling.limit
            [self._begun] = yield from perform(StartGeneration([prompt], n_tokens, sampling))
            self.first_pass = FirstPass(self._begun.partial)
        self._measure(self.first_pass)
        if (begun := self._undecided) is not None:
            self.score = self.interval = None
            self.first_pass = FirstPass((yield from self._read_on(begun)))
            self._measure(self.first_pass)

    def _measure(self, first_pass: FirstPass) -> None:
        if self.gate.needs != "text" and first_pass.answer.text.strip() and first_pass.answer.trace is None:
            self.gate = gate_of_text(self.gate, self.abstention)
        if self.flaw:
            return
        score = self.gate.score(first_pass)
        if score is not None:
            self.score = checked_number(score, f"the gate {self.gate.name}")
            self.interval = self.gate.interval(first_pass)

    @property
    def _undecided(self) -> BegunGeneration | None:
        begun = self._begun
        if begun is None or begun.done or self.decision("").retrieve:
            return None
        reads_on = self.gate.reads_all or may_become_abstention(begun.partial.text, self.abstention)
        return begun if reads_on else None

    def prompt(self, passages: Sequence[Passage], abstention: str | None) -> Prompt:
        # The summary of a short document may equal its passage; it is then left out (section III-D, Eq. 6).
        # A framework may put metadata before the passage's text, so only the text's end is compared.
        retrieved = tuple(passage.text.strip() for passage in passages)
        context = "\n".join(
            one.text
            for one in self.summaries
            if not any(text.endswith(one.text.strip()) for text in retrieved)
        )
        details = format_passages(passage.text for passage in passages)
        prompts, question = self.options.prompts, self.question
        prompt: Prompt
        if context and details:
            template = prompts["from_context_and_details"]
            prompt = template.render(context=context, details=details, question=question)
        elif context or details:
            prompt = prompts["from_context"].render(context=context or details, question=question)
        else:
            prompt = prompts["closed_book"].render(question=question)
        return with_abstention(prompt, abstention)

    @property
    def flaw(self) -> str:
        if self.lacks_summary:
            return self.lacks_summary
        if self.first_pass is None:
            return "no first answer"
        answer = self.first_pass.answer
        whole = self._begun is None or self._begun.done
        if whole and not answer.text.strip():
            return "empty first answer"
        if whole and answer.is_cut:
            withheld = answer.finish == "content_filter"
            return f"the first answer was {'withheld' if withheld else 'cut off at max_tokens'}"
        if begins_abstention(answer.text, self.abstention):
            return "the first answer abstains"
        return ""

    def decision(self, failure: str) -> GateDecision:
        threshold = self.options.resolved_threshold
        return self.gate.decide(self.score, self.interval, threshold, failure or self.flaw)

    def finish(self) -> Program[Generation]:
        if self._begun is not None:
            return (yield from self._read_on(self._begun, answer=True))
        assert self.first_pass is not None  # noqa: S101  # start() set it
        return (yield from perform(ReturnAnswer(self.first_pass.answer)))

    def _read_on(self, begun: BegunGeneration, *, answer: bool = False) -> Program[Generation]:
        self._begun = None
        return (yield from perform(ContinueGeneration(begun, answer=answer)))

    def cancel(self) -> Program[None]:
        if self._begun is not None:
            yield from perform(CancelGeneration(self._begun))

    def announce(self, decision: GateDecision, passages: Sequence[Passage]) -> Program[None]:
        yield from emit(
            "lazy_rag.answering",
            detail=LazyRAGPlan(decision, tuple(passages), tuple(self.summaries)),
            retrieve=decision.retrieve,
            reason=decision.reason,
            passages=[passage.id for passage in passages],
            summaries=[summary.id for summary in self.summaries],
        )

    def result(
        self, decision: GateDecision, passages: Sequence[Passage], answer: Generation
    ) -> Program[LazyRAGResult]:
        if answer.is_cut:
            tokens = answer.completion_tokens
            yield from emit("lazy_rag.cut_off", warning=True, question=self.question, tokens=tokens)
        return LazyRAGResult(
            question=self.question,
            answer=answer.text,
            decision=decision,
            passages=tuple(passages),
            summaries=tuple(self.summaries),
            generation=answer,
            abstained=is_abstention(answer.text, self.abstention),
        )


EVENT_SENTENCES |= {
    "lazy_rag.gate": "The gate decided whether to retrieve",
    "lazy_rag.answering": "The answer begins",
    "lazy_rag.cut_off": "The answer was cut off after {tokens} tokens",
    "lazy_rag.nothing_retrieved": "The retriever returned no passages",
    "lazy_rag.summary_outdated": "A summary is older than its document and is not used",
}
