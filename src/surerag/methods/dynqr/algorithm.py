"""DynQR at inference: rewrite the query when the reader is uncertain; keep the less uncertain answer.

"DynQR: Dynamic Uncertainty-Guided Query Rewriting for Effective Retrieval-Augmented Generation", section 2.2,
Active Rewriting and Post Verification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from surerag.effects import ModelRole, Program, emit, generate, retrieve
from surerag.errors import MISCONFIGURED
from surerag.messages import Generation, Message, Passage, Prompt, SamplingParams
from surerag.methods.dynqr.metrics import SAMPLED, features_of, metric_name, uncertainty_of
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import Attempt, DynQRResult, RewriteCosts, Step
from surerag.methods.dynqr.rewrites import Rewrite, alternated, read_rewrite
from surerag.methods.inputs import check_question
from surerag.methods.meanings import Meanings, meanings_of
from surerag.prompts import format_passages, in_conversation
from surerag.refusal import refuses, worded

_SHOWN = 200
"""Characters of a useless reply that its warning quotes."""


def rewrite_when_uncertain(
    question: str, options: DynQROptions, history: Sequence[Message] = ()
) -> Program[DynQRResult]:
    """Answer; if uncertain, rewrite the query, retrieve and answer again; keep the less uncertain answer.

    A question whose first answer is certain costs one retrieval and one answer. An uncertain one costs, with
    n candidates, n rewrites and up to n more retrievals and answers; fewer, where ``max_calls`` is less.

    Args:
        question: Not empty.
        options: What steers the method.
        history: A conversation that the question belongs to, oldest turn first. Reader and rewriter see it,
            and the rewrite is to stand alone.

    Raises:
        InputError: If the question is empty.
        ServiceError: If the first retrieval or the first answer fails.
    """
    check_question(question)
    asking = Asking(question, options, tuple(history))
    found = yield from asking.retrieve(question)
    if not found:
        yield from emit("uncertainty_rewriting.nothing_retrieved", warning=True, question=question)
    [original] = yield from asking.answer({question: found})
    gate = _gate(original, options)
    yield from emit("uncertainty_rewriting.gate", question=question, **gate.to_dict())
    if gate.outcome == "stop":
        return (yield from _decided(asking, original, [], [gate]))
    try:
        candidates, rewriting = yield from _attempts(asking, original)
    except MISCONFIGURED:
        raise
    except Exception as error:
        if options.on_failure == "raise":
            raise
        reason = f"{asking.stage} failed: {type(error).__name__}: {error}"
        candidates, rewriting = [], Step("rewrite", "failed", reason)
    if rewriting.outcome in ("failed", "unusable"):
        yield from emit(
            f"uncertainty_rewriting.{rewriting.outcome}",
            warning=True,
            question=question,
            reason=rewriting.reason,
        )
    return (yield from _decided(asking, original, candidates, [gate, rewriting]))


def _gate(original: Attempt, options: DynQROptions) -> Step:
    """Active rewriting: stop if the uncertainty is at most the threshold."""
    threshold, signal, metric = options.boundary(), original.uncertainty, metric_name(options.metric)
    silent = not original.answer.strip() or refuses(original.answer, options.refusal)
    if options.benefit is not None and not silent:
        signal, metric = (
            options.benefit.benefit(features_of(original.generation, original.passages)),
            "benefit",
        )
    act = signal > threshold
    what = "benefit" if options.benefit is not None else "uncertainty"
    reason = f"{what} above threshold" if act else f"{what} at or below threshold"
    if silent:
        what = (
            "the first answer is that it does not know" if original.answer.strip() else "empty first answer"
        )
        reason = what if act else f"{what}, but never to be rewritten"
    return Step("gate", "rewrite" if act else "stop", reason, signal, threshold, metric)


def _attempts(asking: Asking, original: Attempt) -> Program[tuple[list[Attempt], Step]]:
    """Rewrite, retrieve with each usable rewrite, and answer from what is new."""
    options = asking.options
    affordable = asking.affordable
    if affordable < options.candidates:
        asking.short = True
        yield from emit(
            "uncertainty_rewriting.out_of_calls",
            warning=True,
            question=asking.question,
            max_calls=options.max_calls,
            calls=asking.calls,
            candidates=affordable,
        )
    if not affordable:
        return [], Step("rewrite", "out of calls", "no calls were left to rewrite and answer again")
    replies = yield from asking.rewrite(affordable)
    rewrites = [read_rewrite(reply, asking.question, options.rewrite_words) for reply in replies]
    queries = list(dict.fromkeys(rewrite.text for rewrite in rewrites if rewrite.trouble is None))
    if not queries:
        return [], Step("rewrite", "unusable", _useless(rewrites))
    retrieved = yield from _retrieved(asking, queries)
    contexts: dict[str, Sequence[Passage]] = {}
    seen = {asking.prompt(original.passages)}
    for query, found in retrieved.items():
        if options.documents == "expand":
            found = alternated(original.passages, found, options.rules.top_n)
        prompt = asking.prompt(found)
        # The same prompt again would only be answered the same; and nothing found is no better context.
        if found and prompt not in seen:
            seen.add(prompt)
            contexts[query] = found
    if not contexts:
        return [], Step("rewrite", "same passages", f"nothing new was found with {next(iter(retrieved))!r}")
    attempts = yield from asking.answer(contexts)
    lost = (
        f"; retrieving failed with {len(queries) - len(retrieved)}" if len(retrieved) < len(queries) else ""
    )
    reason = f"answered with {len(attempts)} of {len(replies)} rewrites{lost}"
    return attempts, Step("rewrite", "rewritten", reason)


def _retrieved(asking: Asking, queries: Sequence[str]) -> Program[dict[str, list[Passage]]]:
    """Retrieve with each rewrite; one that fails is left out, as long as another one does not."""
    found: dict[str, list[Passage]] = {}
    failed: dict[str, Exception] = {}
    for query in queries:
        try:
            found[query] = yield from asking.retrieve(query)
        except MISCONFIGURED:
            raise
        except Exception as error:
            if asking.options.on_failure == "raise":
                raise
            failed[query] = error
    if not found:
        raise failed[queries[0]]
    for query, reason in failed.items():
        yield from emit(
            "uncertainty_rewriting.candidate_failed",
            warning=True,
            question=asking.question,
            query=query,
            reason=f"retrieving failed: {type(reason).__name__}: {reason}",
        )
    return found


def _useless(rewrites: Sequence[Rewrite]) -> str:
    """Say what was wrong with the first rewrite, and quote its beginning."""
    first = rewrites[0]
    quoted = f": {first.text[:_SHOWN]!r}" if first.text else ""
    return f"the rewrite is {first.trouble}{quoted}"


def _decided(
    asking: Asking, original: Attempt, candidates: Sequence[Attempt], steps: Sequence[Step]
) -> Program[DynQRResult]:
    """Post-verification: keep the answer with the lower uncertainty; on a tie the original one."""
    best = min(candidates, key=lambda attempt: attempt.uncertainty, default=None)
    taken = list(steps)
    replaced = False
    if best is not None:
        lower = best.uncertainty < original.uncertainty
        replaced = lower or not asking.options.verify
        reason = (
            "the rewrite's answer is less uncertain" if lower else "the original answer is no less certain"
        )
        if not asking.options.verify:
            reason = "post-verification is off"
        outcome = "rewritten" if replaced else "original"
        metric = metric_name(asking.options.metric)
        taken.append(Step("verify", outcome, reason, best.uncertainty, original.uncertainty, metric))
    kept = best if best is not None and replaced else original
    result = DynQRResult(
        question=asking.question,
        original=original,
        rewritten=best,
        candidates=tuple(candidates),
        kept="rewritten" if replaced else "original",
        steps=tuple(taken),
        costs=asking.costs,
        out_of_calls=asking.short,
        abstained=refuses(kept.answer, asking.options.refusal),
    )
    yield from emit(
        "uncertainty_rewriting.decided", detail=result, question=asking.question, **result.to_dict()
    )
    return result


class Asking:
    """Asks retriever, reader and rewriter on behalf of one question, and keeps account.

    Attributes:
        question: As asked.
        options: What steers the method.
        history: The conversation before it.
        costs: Calls and tokens so far.
        stage: What was asked for last.
        short: Whether rewrites were left out for want of calls.
    """

    def __init__(self, question: str, options: DynQROptions, history: tuple[Message, ...] = ()) -> None:
        self.question = question
        self.options = options
        self.history = history
        self.costs = RewriteCosts()
        self.stage: Literal["retrieving", "answering", "rewriting"] = "retrieving"
        self.short = False

    @property
    def calls(self) -> int:
        """Calls of reader, rewriter and entailer so far."""
        return self.costs.calls + self.costs.judgements

    @property
    def affordable(self) -> int:
        """Rewrites that may be tried, each with an answer and its uncertainty."""
        options = self.options
        if options.max_calls is None:
            return options.candidates
        left = options.max_calls - self.calls
        return min(options.candidates, left // (1 + options.calls_of_an_answer))

    def retrieve(self, query: str) -> Program[list[Passage]]:
        """Retrieve with a query."""
        self.stage = "retrieving"
        self.costs = replace(self.costs, retrievals=self.costs.retrievals + 1)
        return (yield from retrieve(query, self.options.rules.top_n))

    def answer(self, contexts: Mapping[str, Sequence[Passage]]) -> Program[list[Attempt]]:
        """Answer the question from what each query found, all in one call."""
        self.stage = "answering"
        metric = self.options.metric
        prompts = [self.prompt(passages) for passages in contexts.values()]
        answers = yield from self._generate(prompts, self.options.answering)
        sampled: list[list[Generation]] = [[] for _ in prompts]
        if metric in SAMPLED:
            sampled = yield from self._generate(prompts, self.options.sampling)
        meant = [Meanings(()) for _ in prompts]
        if metric == "disagreement":
            meant = []
            for samples in sampled:
                meant.append((yield from meanings_of(self.question, samples, self.options.same_meaning)))
        self.costs = replace(
            self.costs,
            answers=self.costs.answers + len(prompts),
            samples=self.costs.samples + sum(map(len, sampled)),
            judgements=self.costs.judgements + sum(found.judgements for found in meant),
        )
        return [
            Attempt(query, tuple(passages), answer, self.uncertainty(answer, samples, found.clusters))
            for (query, passages), [answer, *_], samples, found in zip(
                contexts.items(), answers, sampled, meant, strict=True
            )
        ]

    def answer_in_text(self, contexts: Mapping[str, Sequence[Passage]]) -> Program[list[Attempt]]:
        """Like :meth:`answer`, of a reader that need not tell how uncertain it is: that is not a number."""
        self.stage = "answering"
        prompts = [self.prompt(passages) for passages in contexts.values()]
        answers = yield from self._generate(prompts, replace(self.options.answering, trace="none"))
        self.costs = replace(self.costs, answers=self.costs.answers + len(prompts))
        return [
            Attempt(query, tuple(passages), answer, math.nan)
            for (query, passages), [answer, *_] in zip(contexts.items(), answers, strict=True)
        ]

    def uncertainty(
        self, answer: Generation, samples: Sequence[Generation], clusters: Sequence[int]
    ) -> float:
        """Return the uncertainty of an answer; one that says that it does not know is none."""
        if refuses(answer.text, self.options.refusal):
            return math.inf
        return uncertainty_of(self.options.metric, answer, samples, clusters)

    def rewrite(self, candidates: int | None = None) -> Program[list[Generation]]:
        """Ask for so many rewrites of the question; None for as many as the option says."""
        self.stage = "rewriting"
        name = "rewrite_in_conversation" if self.history else "rewrite"
        prompt = in_conversation(self.history, self.options.prompts[name].render(query=self.question))
        sampling = replace(self.options.rewriting, n=candidates or self.options.candidates)
        [replies] = yield from self._generate([prompt], sampling, "rewriter")
        self.costs = replace(self.costs, rewrites=self.costs.rewrites + len(replies))
        return replies

    def prompt(self, passages: Sequence[Passage]) -> Prompt:
        """Return the prompt for an answer from passages."""
        prompts = self.options.prompts
        if passages:
            shown = format_passages(passage.text for passage in passages)
            prompt = prompts["answer"].render(passages=shown, question=self.question)
        else:
            prompt = prompts["closed_book"].render(question=self.question)
        return in_conversation(self.history, worded(prompt, self.options))

    def _generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, role: ModelRole = "reader"
    ) -> Program[list[list[Generation]]]:
        replies = yield from generate(prompts, sampling, role=role)
        self.costs = replace(
            self.costs,
            prompt_tokens=self.costs.prompt_tokens + sum(group[0].prompt_tokens for group in replies),
            completion_tokens=self.costs.completion_tokens
            + sum(reply.completion_tokens for group in replies for reply in group),
            cached_tokens=self.costs.cached_tokens + sum(group[0].cached_tokens for group in replies),
        )
        return replies
