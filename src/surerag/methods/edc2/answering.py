"""The answer that follows a compression: what is asked where the choice to compress is calibrated."""

from __future__ import annotations

from collections.abc import Sequence

from surerag.effects import Program, generate
from surerag.prompts import FROM_CONTEXT, format_passages
from surerag.types import Passage, Sampling


def answer_from(question: str, passages: Sequence[Passage], max_tokens: int) -> Program[str]:
    """Answer a question from passages, with the prompt of standard retrieval."""
    prompt = FROM_CONTEXT.render(
        context=format_passages(passage.text for passage in passages), question=question
    )
    sampling = Sampling(max_tokens=max_tokens, temperature=0.0, trace="none")
    [[answer]] = yield from generate([prompt], sampling)
    return answer.text
