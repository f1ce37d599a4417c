"""What is done with compressed evidence: answers by consensus, and judgements on statements (EDC²-RAG)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from surerag.effects import Program, emit, generate
from surerag.methods.cluster_compression import compress_clusters
from surerag.methods.compression_types import SOURCES_KEY, CompressionResult, CompressionSettings
from surerag.prompts import CONSENSUS, JUDGE_STATEMENT, PromptTemplate, format_passages
from surerag.types import Generation, Passage

Label = Literal["factual", "nonfactual", "unclear"]

_SELECTED = re.compile(r"selected[_ ]answer\W*?:[ \t*]*(?P<answer>[^\n]+)", re.IGNORECASE)
_REASONING = re.compile(r"reasoning\W*?:\s*(?P<reasoning>.+)", re.IGNORECASE | re.DOTALL)
_LABEL = re.compile(r"answer\W*?:\W*(?P<label>non-?\s?factual|factual)\b", re.IGNORECASE)
_BARE_LABEL = re.compile(r"\W*(?P<label>non-?\s?factual|factual)\W*", re.IGNORECASE)
_CITED = re.compile(r"\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class EvidencePrompts:
    """The prompts that use compressed evidence; replace either of them, keeping its slots.

    Attributes:
        consensus: Slots ``answers`` and ``question``.
        judge: Slots ``passages`` and ``statement``.
    """

    consensus: PromptTemplate = CONSENSUS
    judge: PromptTemplate = JUDGE_STATEMENT

    def __post_init__(self) -> None:
        self.consensus.require("answers", "question")
        self.judge.require("passages", "statement")


@dataclass(frozen=True, slots=True)
class Consensus:
    """An answer that was selected among those of the clusters.

    Attributes:
        question: As asked.
        answer: The selected answer; the whole reply where the model kept to no form.
        reasoning: Why, in the model's words.
        candidates: The clusters' answers with their evidence.
        compression: How they came about.
        generation: The model's reply.
    """

    question: str
    answer: str
    reasoning: str
    candidates: tuple[str, ...]
    compression: CompressionResult
    generation: Generation


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a statement contains factual errors.

    Attributes:
        statement: As given.
        label: ``"factual"``, ``"nonfactual"``, or ``"unclear"`` where the reply says neither.
        reasoning: Why, in the model's words.
        sources: Ids of the passages that the cited evidence was compressed from; of all evidence where the
            model cited none.
        evidence: What the model was shown.
        compression: How the evidence came about.
        generation: The model's reply.
    """

    statement: str
    label: Label
    reasoning: str
    sources: tuple[str, ...]
    evidence: tuple[Passage, ...]
    compression: CompressionResult
    generation: Generation


def answer_by_consensus(
    question: str, passages: Sequence[Passage], settings: CompressionSettings, prompts: EvidencePrompts
) -> Program[Consensus]:
    """Let each cluster answer with evidence, and select among the answers (appendix C.2).

    Every cluster is asked, however short, and no answer is refused for its length: here a compression is an
    answer. Where no cluster has one, the original documents are asked about all at once.
    """
    asking = replace(settings, pass_below=0, refuse_longer=False)
    compression = yield from compress_clusters(question, passages, asking)
    candidates = [report.text for report in compression.clusters if report.outcome == "compressed"]
    if not candidates:
        yield from emit("cluster_compression.no_candidates", warning=True, question=question)
        prompt = settings.render(question, format_passages(passage.text for passage in compression.passages))
        [[whole]] = yield from generate([prompt], settings.sampling)
        candidates = [whole.text]
    prompt = prompts.consensus.render(answers=format_passages(candidates), question=question)
    [[reply]] = yield from generate([prompt], replace(settings.sampling, temperature=0.0), answer=True)
    selected = _SELECTED.search(reply.text)
    return Consensus(
        question=question,
        answer=(selected["answer"] if selected else reply.text).strip(),
        reasoning=_reasoning(reply.text),
        candidates=tuple(candidates),
        compression=compression,
        generation=reply,
    )


def judge_statement(
    statement: str, passages: Sequence[Passage], settings: CompressionSettings, prompts: EvidencePrompts
) -> Program[Judgement]:
    """Judge a statement by evidence that was compressed for it (section 6.2)."""
    compression = yield from compress_clusters(statement, passages, settings)
    evidence = compression.passages
    prompt = prompts.judge.render(
        statement=statement, passages=format_passages(passage.text for passage in evidence)
    )
    [[reply]] = yield from generate([prompt], replace(settings.sampling, temperature=0.0), answer=True)
    label = _label(reply.text)
    if label == "unclear":
        yield from emit("cluster_compression.unclear", warning=True, statement=statement, reply=reply.text)
    numbers = {int(number) for number in _CITED.findall(reply.text)}
    cited = [passage for number, passage in enumerate(evidence, start=1) if number in numbers]
    return Judgement(
        statement=statement,
        label=label,
        reasoning=_reasoning(reply.text),
        sources=_sources(cited or evidence),
        evidence=evidence,
        compression=compression,
        generation=reply,
    )


def _label(reply: str) -> Label:
    found = _LABEL.findall(reply) or [match["label"] for match in [_BARE_LABEL.fullmatch(reply)] if match]
    if not found:
        return "unclear"
    return "nonfactual" if found[-1].casefold().startswith("non") else "factual"


def _reasoning(reply: str) -> str:
    """Return what stands behind "Reasoning:", up to the line that gives the answer."""
    found = _REASONING.search(reply)
    if found is None:
        return ""
    lines = found["reasoning"].splitlines()
    ends = (at for at, line in enumerate(lines) if _SELECTED.search(line) or _LABEL.search(line))
    return "\n".join(lines[: next(ends, len(lines))]).strip()


def _sources(passages: Sequence[Passage]) -> tuple[str, ...]:
    ids = [
        source["id"]
        for passage in passages
        for source in passage.metadata.get(SOURCES_KEY, [{"id": passage.id}])
    ]
    return tuple(dict.fromkeys(ids))
