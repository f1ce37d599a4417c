"""Uses of compressed evidence: answers by consensus, and judgements on statements (EDC²-RAG)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from surerag.effects import Program, emit, generate
from surerag.methods.calls import CallBudget
from surerag.methods.edc2.algorithm import compress_clusters, prompt_for
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import SOURCES_KEY, Consensus, Judgement, Label
from surerag.prompts import format_passages
from surerag.types import Passage

_SELECTED = re.compile(r"selected[_ ]answer\W*?:[ \t*]*(?P<answer>[^\n]+)", re.IGNORECASE)
_REASONING = re.compile(r"reasoning\W*?:\s*(?P<reasoning>.+)", re.IGNORECASE | re.DOTALL)
# The colon is looked for ahead: tried as the end of the form, each of ten thousand would be read to the end.
_LABEL = re.compile(r"answer(?=[^\w:]*:)\W+(?P<label>non-?\s?factual|factual)\b", re.IGNORECASE)
_BARE_LABEL = re.compile(r"\W*(?P<label>non-?\s?factual|factual)\W*", re.IGNORECASE)
_CITED = re.compile(r"\[(\d{1,6})\]")


def answer_by_consensus(
    question: str, passages: Sequence[Passage], options: EDC2Options
) -> Program[Consensus]:
    """Let each cluster answer with evidence, and select among the answers (appendix C.2).

    Every cluster is asked, however short, and no answer is refused for its length: here a compression is an
    answer. Where no cluster has one, the original documents are asked about all at once.
    """
    options = options.with_options(mode="answer_with_evidence", pass_below=0, refuse_longer=False)
    budget = CallBudget(options.max_calls)
    budget.held = 2
    compression = yield from compress_clusters(question, passages, options, budget=budget)
    candidates = [report.text for report in compression.clusters if report.outcome == "compressed"]
    if not candidates:
        yield from emit("cluster_compression.no_candidates", warning=True, question=question)
        prompt = prompt_for(question, [passage.text for passage in compression.passages], options)
        [[whole]] = yield from generate([prompt], options.sampling)
        candidates = [whole.text]
        if options.max_calls == 1:
            # The one call there was has given an answer, and there is nothing to select from.
            return Consensus(question, whole.text.strip(), "", (whole.text,), compression, whole)
    prompt = options.prompts["consensus"].render(answers=format_passages(candidates), question=question)
    [[reply]] = yield from generate([prompt], replace(options.sampling, temperature=0.0), answer=True)
    selected = _SELECTED.search(reply.text)
    return Consensus(
        question=question,
        answer=(selected["answer"] if selected else reply.text).strip(),
        reasoning=_reasoning(reply.text),
        candidates=tuple(candidates),
        compression=compression,
        generation=reply,
    )


def judge_statement(statement: str, passages: Sequence[Passage], options: EDC2Options) -> Program[Judgement]:
    """Judge a statement by evidence that was compressed for it (section 6.2)."""
    options = options.with_options(mode="fact_check")
    budget = CallBudget(options.max_calls)
    budget.held = 1
    compression = yield from compress_clusters(statement, passages, options, budget=budget)
    evidence = compression.passages
    shown = format_passages(passage.text for passage in evidence)
    prompt = options.prompts["judge_statement"].render(statement=statement, passages=shown)
    [[reply]] = yield from generate([prompt], replace(options.sampling, temperature=0.0), answer=True)
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
