"""DynQR's inference: rewrite the query if the reader is uncertain, and keep the less uncertain answer.

"DynQR: Dynamic Uncertainty-Guided Query Rewriting for Effective Retrieval-Augmented Generation", section 2.2,
Active Rewriting and Post Verification.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from surerag.effects import Generate, Program, Retrieve, ReturnAnswer, emit, perform
from surerag.errors import check_items, check_question
from surerag.messages import EVENT_SENTENCES, Generation, Message, Passage, Prompt, SamplingParams
from surerag.methods.dynqr.metrics import SAMPLED, metric_name, trace_kind, uncertainty_of
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import Attempt, DynQRResult, finite
from surerag.methods.dynqr.rewrites import alternated, read_rewrite
from surerag.methods.shared import MUST_RAISE
from surerag.prompts import format_passages, in_conversation, with_abstention
from surerag.readers.failures import in_plain_words
from surerag.text import is_abstention

REWRITE_TOKENS = 64
"""Maximum length of a rewritten query, in tokens and in words; longer rewrites are rejected."""


def rewrite_when_uncertain(
    question: str,
    options: DynQROptions,
    threshold: float,
    max_tokens: int | None,
    history: Sequence[Message] = (),
) -> Program[DynQRResult]:
    """Answer a question, and try a rewritten query if the answer's uncertainty exceeds ``threshold`` (θ).

    With the rewritten query, passages are retrieved and a second answer is generated; the less uncertain
    answer is kept. If a step after the first answer fails, the first answer is returned with a warning.
    Arguments and errors are those of :meth:`surerag.UncertaintyRewriter.program`.
    """
    check_question(question)
    check_items(Message, history, "make each turn with surerag.messages.Message(role, content)")
    steps = _Steps(question, options, SamplingParams(max_tokens=max_tokens), tuple(history))
    passages = yield from perform(Retrieve(question, options.top_n))
    if not passages:
        yield from emit("dynqr.nothing_retrieved", warning=True, question=question)
    [original] = yield from steps.answer({question: passages})
    act = original.uncertainty > threshold
    reason = f"{metric_name(options.metric)} {'above' if act else 'at or below'} threshold"
    if math.isinf(threshold):
        when = "always" if threshold < 0 else "never"
        reason = f"with this threshold, DynQR {when} rewrites the query"
    if act and (not original.answer.strip() or is_abstention(original.answer, options.abstention)):
        reason = "the first answer is empty or abstains"
    yield from emit(
        "dynqr.gate",
        question=question,
        rewrite=act,
        reason=reason,
        uncertainty=finite(original.uncertainty),
        threshold=finite(threshold),
        metric=metric_name(options.metric),
    )
    candidates: list[Attempt] = []
    if act:
        try:
            candidates = yield from steps.try_rewrites(original)
        except MUST_RAISE:
            raise
        except _NoRewriteError as error:
            reason = f"{reason}; the first answer stays: {error}"
            name = "dynqr.unchanged" if error.expected else "dynqr.failed"
            yield from emit(name, warning=not error.expected, question=question, reason=str(error))
        except Exception as error:
            failure = in_plain_words(error)
            reason = f"{reason}; the first answer stays: {failure}"
            yield from emit("dynqr.failed", warning=True, question=question, reason=failure)
    chosen, verdict = _choose_answer(original, candidates, options.verify)
    result = DynQRResult(
        question=question,
        original=original,
        candidates=tuple(candidates),
        chosen=chosen,
        acted=act,
        reason=f"{reason}; {verdict}" if verdict else reason,
        threshold=threshold,
        abstained=is_abstention(chosen.answer, options.abstention),
    )
    yield from emit("dynqr.decided", detail=result, question=question, **result.to_dict())
    yield from perform(ReturnAnswer(chosen.generation))
    return result


class _NoRewriteError(Exception):
    def __init__(self, reason: str, *, expected: bool) -> None:
        super().__init__(reason)
        self.expected = expected


def _choose_answer(original: Attempt, candidates: Sequence[Attempt], verify: bool) -> tuple[Attempt, str]:
    best = min(candidates, key=lambda attempt: attempt.uncertainty, default=None)
    if best is None:
        return original, ""
    if not verify:
        return best, "post-verification is off"
    if best.uncertainty < original.uncertainty:
        return best, "the rewrite's answer is less uncertain"
    return original, "the original answer is at least as certain as the rewrite's answer"


class _Steps:
    def __init__(
        self, question: str, options: DynQROptions, sampling: SamplingParams, history: tuple[Message, ...]
    ) -> None:
        self.question = question
        self.options = options
        self.sampling = replace(sampling, trace=trace_kind(options.metric))
        self.history = history

    def try_rewrites(self, original: Attempt) -> Program[list[Attempt]]:
        contexts: dict[str, Sequence[Passage]] = {}
        prompts = {self._prompt(self.question, original.passages)}
        queries = yield from self._rewrites()
        for query in queries:
            passages: Sequence[Passage] = yield from perform(Retrieve(query, self.options.top_n))
            if self.options.documents == "expand":
                passages = alternated(original.passages, passages, self.options.top_n)
            passages = passages or original.passages
            prompt = self._prompt(query, passages)
            # The same prompt would get the same answer.
            if prompt not in prompts:
                prompts.add(prompt)
                contexts[query] = passages
        if not contexts:
            raise _NoRewriteError(f"nothing new was retrieved with {queries[0]!r}", expected=True)
        return (yield from self.answer(contexts))

    def answer(self, contexts: Mapping[str, Sequence[Passage]]) -> Program[list[Attempt]]:
        metric = self.options.metric
        prompts = [self._prompt(query, passages) for query, passages in contexts.items()]
        answers = yield from perform(Generate(prompts, self.sampling))
        samples: list[list[Generation]] = [[] for _ in prompts]
        if metric in SAMPLED:
            sampling = replace(self.sampling, n=self.options.n_samples, temperature=1.0)
            samples = yield from perform(Generate(prompts, sampling))
        return [
            Attempt(query, tuple(passages), answer, self._uncertainty(answer, sampled))
            for (query, passages), [answer], sampled in zip(contexts.items(), answers, samples, strict=True)
        ]

    def _rewrites(self) -> Program[list[str]]:
        name = "rewrite_in_conversation" if self.history else "rewrite"
        prompt = in_conversation(self.history, self.options.prompts[name].render(query=self.question))
        n = self.options.n_candidates
        sampling = SamplingParams(n, 0.0 if n == 1 else 1.0, max_tokens=REWRITE_TOKENS, trace="none")
        [replies] = yield from perform(Generate([prompt], sampling, role="rewriter"))
        rewrites = [read_rewrite(reply, self.question, REWRITE_TOKENS) for reply in replies]
        queries = list(dict.fromkeys(rewrite.text for rewrite in rewrites if rewrite.problem is None))
        if not queries:
            problem = rewrites[0].problem
            reason = f"the rewrite is {problem}: {rewrites[0].text[:200]!r}"
            raise _NoRewriteError(reason, expected=problem == "the question again")
        return queries

    def _uncertainty(self, answer: Generation, samples: Sequence[Generation]) -> float:
        if is_abstention(answer.text, self.options.abstention):
            return math.inf
        return uncertainty_of(self.options.metric, answer, samples)

    def _prompt(self, query: str, passages: Sequence[Passage]) -> Prompt:
        prompts = self.options.prompts
        question = query if self.options.answer == "rewrite" else self.question
        if passages:
            numbered = format_passages(passage.text for passage in passages)
            prompt = prompts["answer"].render(passages=numbered, question=question)
        else:
            prompt = prompts["closed_book"].render(question=question)
        return in_conversation(self.history, with_abstention(prompt, self.options.abstention))


EVENT_SENTENCES |= {
    "dynqr.nothing_retrieved": "The retriever returned no passages",
    "dynqr.gate": "The uncertainty of the first answer was compared with the threshold",
    "dynqr.unchanged": "The rewrite changes nothing, and the first answer stays",
    "dynqr.failed": "No rewrite was used, and the first answer stays",
    "dynqr.decided": "The answer was chosen",
}
