"""Uses of compressed evidence: answers by consensus, and judgements on statements (EDC²-RAG)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from numpy.typing import ArrayLike

from surerag.effects import Program, emit, generate, give
from surerag.methods.calls import CallBudget
from surerag.methods.edc2.algorithm import about, compress_clusters, prompt_for, subject_of
from surerag.methods.edc2.options import EDC2Options
from surerag.methods.edc2.result import SOURCES_KEY, Choice, Consensus, Judgement, Label
from surerag.methods.edc2.selecting import most_given, reasoning_of, selected_answer, selects
from surerag.prompts import format_passages
from surerag.types import Passage

# The colon is looked for ahead: tried as the end of the form, each of ten thousand would be read to the end.
_LABEL = re.compile(r"answer(?=[^\w:]*:)\W+(?P<label>non-?\s?factual|factual)\b", re.IGNORECASE)
_BARE_LABEL = re.compile(r"\W*(?P<label>non-?\s?factual|factual)\W*", re.IGNORECASE)
_CITED = re.compile(r"\[(\d{1,6})\]")
_CHOICE = re.compile(r"choice(?=[^\w:]*:)\W+(?:answer\s*)?(?P<number>[12])\b", re.IGNORECASE)
_BARE_CHOICE = re.compile(r"\W*(?:answer\s*)?(?P<number>[12])\W*", re.IGNORECASE)


def answer_by_consensus(
    question: str,
    passages: Sequence[Passage],
    options: EDC2Options,
    query_vector: ArrayLike | None = None,
) -> Program[Consensus]:
    """Let each cluster answer with evidence, and select among the answers (appendix C.2).

    Every cluster is asked, however short, and no answer is refused for its length: here a compression is an
    answer. Where no cluster has one, the original documents are asked about all at once.
    """
    options = options.with_options(mode="answer_with_evidence", pass_below=0, refuse_longer=False)
    budget = CallBudget(options.max_calls)
    budget.held = 1 if options.consensus == "majority" else 2
    compression = yield from compress_clusters(question, passages, options, query_vector, budget)
    yield from emit("cluster_compression.consensus", detail=compression, question=question)
    candidates = [report.text for report in compression.clusters if report.outcome == "compressed"]
    calls = compression.calls + (options.consensus == "reader")
    if not candidates:
        calls += 1
        yield from emit("cluster_compression.no_candidates", warning=True, question=question)
        prompt = prompt_for(question, [passage.text for passage in compression.passages], options)
        [[whole]] = yield from generate([prompt], options.sampling)
        candidates = [whole.text]
        if options.max_calls == 1:
            # The one call there was has given an answer, and there is nothing to select from.
            yield from give(whole)
            return Consensus(question, whole.text.strip(), "", (whole.text,), compression, whole, 1)
    if options.consensus == "majority":
        reply = yield from give(most_given(candidates))
    else:
        prompt = options.prompts["consensus"].render(answers=format_passages(candidates), question=question)
        [[reply]] = yield from generate([prompt], replace(options.sampling, temperature=0.0), answer=True)
    return Consensus(
        question=question,
        answer=selected_answer(reply.text),
        reasoning=_reasoning(reply.text),
        candidates=tuple(candidates),
        compression=compression,
        generation=reply,
        calls=calls,
    )


def judge_statement(statement: str, passages: Sequence[Passage], options: EDC2Options) -> Program[Judgement]:
    """Judge a statement by evidence that was compressed for it (section 6.2)."""
    options = options.with_options(mode="fact_check")
    budget = CallBudget(options.max_calls)
    budget.held = 1
    compression = yield from compress_clusters(statement, passages, options, budget=budget)
    evidence = compression.passages
    shown = format_passages(passage.text for passage in evidence)
    prompt = options.prompts[f"judge_statement{about(options)}"].render(
        statement=statement, passages=shown, **subject_of(options)
    )
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


def choose_answer(
    question: str,
    answers: tuple[str, str],
    passages: Sequence[Passage],
    options: EDC2Options,
    *,
    both_orders: bool = False,
) -> Program[Choice]:
    """Choose the answer without errors among two, by evidence compressed for the question (HaluEval, C.1.1).

    Args:
        question: The question; it is what the evidence is compressed for.
        answers: The two answers.
        passages: What was retrieved, best first.
        options: What steers the method.
        both_orders: Ask with the answers in either order, at once; where the two replies disagree, neither
            is chosen. The paper asks once.
    """
    options = options.with_options(mode="fact_check", subject=None)
    orders = [answers, answers[::-1]] if both_orders and options.max_calls != 1 else [answers]
    budget = CallBudget(options.max_calls)
    budget.held = len(orders)
    compression = yield from compress_clusters(question, passages, options, budget=budget)
    shown = format_passages(passage.text for passage in compression.passages)
    prompts = [
        options.prompts["choose_answer"].render(
            question=question, first_answer=first, second_answer=second, passages=shown
        )
        for first, second in orders
    ]
    replies = yield from generate(prompts, replace(options.sampling, temperature=0.0))
    texts = [reply.text for [reply] in replies]
    picked = [_chosen(text) for text in texts]
    picked[1:] = [None if one is None else 1 - one for one in picked[1:]]
    if None in picked:
        yield from emit("cluster_compression.unclear", warning=True, statement=question, reply=texts[0])
    agreed = len(set(picked)) == 1
    return Choice(
        question=question,
        answers=answers,
        chosen=picked[0] if agreed else None,
        reasoning=_reasoning(texts[0]),
        sources=_sources(compression.passages),
        evidence=compression.passages,
        compression=compression,
        generations=tuple(reply for [reply] in replies),
    )


def _chosen(reply: str) -> int | None:
    """Return which answer a reply chooses, 0 or 1."""
    found = _CHOICE.findall(reply) or [m["number"] for m in [_BARE_CHOICE.fullmatch(reply)] if m]
    return int(found[-1]) - 1 if found else None


def _label(reply: str) -> Label:
    found = _LABEL.findall(reply) or [match["label"] for match in [_BARE_LABEL.fullmatch(reply)] if match]
    if not found:
        return "unclear"
    return "nonfactual" if found[-1].casefold().startswith("non") else "factual"


def _reasoning(reply: str) -> str:
    """Return what stands behind "Reasoning:", up to the line that gives the answer."""
    found = reasoning_of(reply)
    if found is None:
        return ""
    lines = found["reasoning"].splitlines()
    ends = (
        at for at, line in enumerate(lines) if selects(line) or _LABEL.search(line) or _CHOICE.search(line)
    )
    return "\n".join(lines[: next(ends, len(lines))]).strip()


def _sources(passages: Sequence[Passage]) -> tuple[str, ...]:
    ids = [
        source["id"]
        for passage in passages
        for source in passage.metadata.get(SOURCES_KEY, [{"id": passage.id}])
    ]
    return tuple(dict.fromkeys(ids))
