"""DynQR at inference: rewrite the query when the reader is uncertain; keep the less uncertain answer.

"DynQR: Dynamic Uncertainty-Guided Query Rewriting for Effective Retrieval-Augmented Generation", section 2.2,
Active Rewriting and Post Verification.
"""

from __future__ import annotations

from collections.abc import Sequence

from surerag.effects import Program, emit
from surerag.errors import InputError
from surerag.methods.cluster_compression import OURS_TO_MEND
from surerag.methods.rewrite_asking import RewriteAsking
from surerag.methods.rewrites import Rewrite, alternated, read_rewrite
from surerag.methods.uncertainty_types import Attempt, RewriteResult, RewriteSettings, Step
from surerag.types import Message, Passage

_SHOWN = 200
"""Characters of a useless reply that its warning quotes."""


def rewrite_when_uncertain(
    question: str, settings: RewriteSettings, history: Sequence[Message] = ()
) -> Program[RewriteResult]:
    """Answer; if uncertain, rewrite the query, retrieve and answer again; keep the less uncertain answer.

    A question whose first answer is certain costs one retrieval and one answer. An uncertain one costs, with
    n candidates, n rewrites and up to n more retrievals and answers.

    Args:
        question: Not empty.
        settings: What steers the method.
        history: A conversation that the question belongs to, oldest turn first. Reader and rewriter see it,
            and the rewrite is to stand alone.

    Raises:
        InputError: If the question is empty.
        ServiceError: If the first retrieval or the first answer fails.
    """
    if not question.strip():
        raise InputError("the question is empty", hint="ask something")
    asking = RewriteAsking(question, settings, tuple(history))
    found = yield from asking.retrieve(question)
    if not found:
        yield from emit("uncertainty_rewriting.nothing_retrieved", warning=True, question=question)
    [original] = yield from asking.answer({question: found})
    gate = _gate(original, settings)
    yield from emit("uncertainty_rewriting.gate", question=question, **gate.to_dict())
    if gate.outcome == "stop":
        return (yield from _decided(asking, original, [], [gate]))
    try:
        candidates, rewriting = yield from _attempts(asking, original)
    except OURS_TO_MEND:
        raise
    except Exception as error:
        if settings.on_failure == "raise":
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


def _gate(original: Attempt, settings: RewriteSettings) -> Step:
    """Active rewriting: stop if the uncertainty is at most θ."""
    act = original.uncertainty > settings.theta
    reason = "uncertainty above threshold" if act else "uncertainty at or below threshold"
    if not original.answer.strip():
        reason = "empty first answer" if act else "empty first answer, but never to be rewritten"
    return Step("gate", "rewrite" if act else "stop", reason, original.uncertainty, settings.theta)


def _attempts(asking: RewriteAsking, original: Attempt) -> Program[tuple[list[Attempt], Step]]:
    """Rewrite, retrieve with each usable rewrite, and answer from what is new."""
    settings = asking.settings
    replies = yield from asking.rewrite()
    rewrites = [read_rewrite(reply, asking.question, settings.max_words) for reply in replies]
    queries = list(dict.fromkeys(rewrite.text for rewrite in rewrites if rewrite.trouble is None))
    if not queries:
        return [], Step("rewrite", "unusable", _useless(rewrites))
    retrieved = yield from _retrieved(asking, queries)
    contexts: dict[str, Sequence[Passage]] = {}
    seen = {asking.prompt(original.passages)}
    for query, found in retrieved.items():
        if settings.documents == "expand":
            found = alternated(original.passages, found, settings.k)
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


def _retrieved(asking: RewriteAsking, queries: Sequence[str]) -> Program[dict[str, list[Passage]]]:
    """Retrieve with each rewrite; one that fails is left out, as long as another one does not."""
    found: dict[str, list[Passage]] = {}
    failed: dict[str, Exception] = {}
    for query in queries:
        try:
            found[query] = yield from asking.retrieve(query)
        except OURS_TO_MEND:
            raise
        except Exception as error:
            if asking.settings.on_failure == "raise":
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
    asking: RewriteAsking, original: Attempt, candidates: Sequence[Attempt], steps: Sequence[Step]
) -> Program[RewriteResult]:
    """Post-verification: keep the answer with the lower uncertainty; on a tie the original one."""
    best = min(candidates, key=lambda attempt: attempt.uncertainty, default=None)
    taken = list(steps)
    replaced = False
    if best is not None:
        lower = best.uncertainty < original.uncertainty
        replaced = lower or not asking.settings.verify
        reason = (
            "the rewrite's answer is less uncertain" if lower else "the original answer is no less certain"
        )
        if not asking.settings.verify:
            reason = "post-verification is off"
        outcome = "rewritten" if replaced else "original"
        taken.append(Step("verify", outcome, reason, best.uncertainty, original.uncertainty))
    result = RewriteResult(
        question=asking.question,
        original=original,
        rewritten=best,
        candidates=tuple(candidates),
        kept="rewritten" if replaced else "original",
        steps=tuple(taken),
        costs=asking.costs,
    )
    yield from emit(
        "uncertainty_rewriting.decided", detail=result, question=asking.question, **result.to_dict()
    )
    return result
