"""Results of L-RAG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from surerag.messages import Generation, Passage, Result
from surerag.methods.lazy_rag.gate import GateDecision
from surerag.methods.lazy_rag.options import Mode


@dataclass(frozen=True, slots=True)
class LazyRAGResult(Result):
    """An answer, and how it came about.

    Attributes:
        question: As asked.
        answer: The answer's text.
        decision: What the gate decided first and why.
        decisions: What it decided before each hop; one, but for ``max_hops``.
        passages: Retrieved (or gold) passages that the reader was shown; empty where the gate stayed shut.
        summaries: Document summaries that the reader was shown.
        generation: The answer with its log-probabilities and entropies.
        mode: The mode it was made in.
        prompt_tokens: Tokens of all prompts that were read for it, a first pass included.
        completion_tokens: Tokens generated for it, those of an abandoned first pass included.
        retrievals: How often the retriever was asked.
        timings: Seconds by stage: ``summaries``, ``first_pass``, ``later_passes`` before further hops,
            ``retrieval``, ``answer``. Where many questions run together, a stage includes the wait for the
            others.
        calls: Answers asked of the reader, or beginnings of one, and pairs asked of an entailer.
        out_of_calls: Whether ``max_calls`` left none to judge the sampled answers, so that it retrieved.
        cached_tokens: Prompt tokens that a server had in its cache, where it tells.
        abstained: Whether the answer is the option ``refusal``: nothing supports one.
    """

    question: str
    answer: str
    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]
    generation: Generation
    mode: Mode
    prompt_tokens: int
    completion_tokens: int
    retrievals: int
    timings: Mapping[str, float]
    calls: int = 0
    out_of_calls: bool = False
    cached_tokens: int = 0
    abstained: bool = False
    decisions: tuple[GateDecision, ...] = ()


@dataclass(frozen=True, slots=True)
class LazyRAGPlan:
    """What is settled before the answer flows; the detail of the event ``lazy_rag.answering``.

    Attributes:
        decision: What the gate decided and why.
        passages: Passages that the reader will be shown.
        summaries: Document summaries that the reader will be shown.
        prompt_tokens: Tokens read so far: those of a first pass, if there was one.
    """

    decision: GateDecision
    passages: tuple[Passage, ...]
    summaries: tuple[Passage, ...]
    prompt_tokens: int
