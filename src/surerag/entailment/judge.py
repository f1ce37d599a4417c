"""Entailment judged by a reader, in words (DENSE-RAG, appendix B.2)."""

from __future__ import annotations

import logging
import math
import re
import threading
from collections.abc import Sequence
from hashlib import sha256
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from surerag.entailment.labels import LABELS, NEUTRAL
from surerag.messages import Generation, Pair, Prompt, SamplingParams, Template, TokenTrace
from surerag.prompts import ENTAILMENT
from surerag.readers.protocol import BaseReader, Reader
from surerag.readers.threads import in_thread
from surerag.services import as_reader

logger = logging.getLogger("surerag")

_WORDS = re.compile(r"\b(not|no|non)?[\s-]*(entail|contradict|neutral)\w*", re.IGNORECASE)
_BY_STEM = {"entail": 2, "contradict": 0, "neutral": 1}


class JudgeEntailer:
    """Asks a reader to say ``entailment``, ``contradiction`` or ``neutral``.

    The word that the reader says gets the probability the reader gives that word, where it reports
    log-probabilities, and the rest is shared by the other two; without them it gets all. A reply that
    says none of the three, or more than one, or denies one, counts as neutral and is counted in
    ``unparsed``: nothing unclear is ever taken for entailment.

    Args:
        reader: The judge.
        prompt: With the slots ``question``, ``premise`` and ``hypothesis``.
        max_tokens: Length of a reply, at most.

    Attributes:
        unparsed: Replies so far that named no single label.

    Raises:
        PromptError: If the prompt has other slots.
        ConfigurationError: If ``reader`` is none.
    """

    def __init__(self, reader: Reader, *, prompt: Template = ENTAILMENT, max_tokens: int = 8) -> None:
        self._reader = as_reader(reader)
        self._prompt = prompt.require("question", "premise", "hypothesis")
        self._sampling = SamplingParams(max_tokens=max_tokens, trace="none")
        self.unparsed = 0

    def __repr__(self) -> str:
        return f"JudgeEntailer({self._reader.name!r})"

    @property
    def reader(self) -> BaseReader:
        """Who judges."""
        return self._reader

    @property
    def name(self) -> str:
        """Identity of the judge; a prompt other than ours is a part of it."""
        if self._prompt == ENTAILMENT:
            return f"judge:{self._reader.name}"
        return f"judge:{self._reader.name}#{sha256(self._prompt.text.encode()).hexdigest()[:12]}"

    @property
    def local(self) -> bool:
        """Whether pairs of many callers should be merged: where the judge is a local model."""
        return self._reader.capabilities.local

    def entail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Return probabilities [pairs, 3]: contradiction, neutral, entailment.

        Raises:
            ServiceError: If the reader fails.
        """
        replies = self._reader.generate(self._prompts(pairs), self._sampling)
        return self._rows([reply for [reply] in replies])

    async def aentail(self, pairs: Sequence[Pair]) -> NDArray[np.float64]:
        """Like :meth:`entail`, without blocking the event loop."""
        if not self._reader.capabilities.native_async:
            return await in_thread(self.entail, pairs)
        replies = await self._reader.agenerate(self._prompts(pairs), self._sampling)
        return self._rows([reply for [reply] in replies])

    def asked_for(self, pairs: Sequence[Pair]) -> list[tuple[Prompt, SamplingParams]]:
        """Return what the reader is asked about pairs."""
        return [(prompt, self._sampling) for prompt in self._prompts(pairs)]

    def _prompts(self, pairs: Sequence[Pair]) -> list[Prompt]:
        return [
            self._prompt.render(question=pair.question, premise=pair.premise, hypothesis=pair.hypothesis)
            for pair in pairs
        ]

    def _rows(self, replies: Sequence[Generation]) -> NDArray[np.float64]:
        rows = [self._row(reply) for reply in replies]
        return np.array(rows).reshape(len(rows), len(LABELS))

    def _row(self, reply: Generation) -> list[float]:
        label = parse_label(reply.text)
        if label is None:
            self.unparsed += 1
            # A judge that does not follow the prompt does so again and again: ``unparsed`` counts.
            logger.log(
                logging.WARNING if self.unparsed == 1 else logging.DEBUG,
                "the judge's reply names no single label and counts as neutral (so does every further one; "
                "they are counted): %r",
                reply.text[:80],
            )
            return [float(index == NEUTRAL) for index in range(len(LABELS))]
        sure = math.exp(math.fsum(_of_label(reply.trace))) if reply.trace and len(reply.trace) else 1.0
        return [sure if index == label else (1 - sure) / 2 for index in range(len(LABELS))]


_judges: WeakValueDictionary[tuple[int, Template], JudgeEntailer] = WeakValueDictionary()
_lock = threading.Lock()


def judge_of(reader: Reader, prompt: Template = ENTAILMENT) -> JudgeEntailer:
    """Return a reader as a judge, the same one for as long as anybody uses it.

    Copies of a component then share its count of replies that nobody could read, and one merging queue.

    Args:
        reader: The judge.
        prompt: With the slots ``question``, ``premise`` and ``hypothesis``.
    """
    with _lock:
        # A judge holds its reader, so that no other reader can have the same id meanwhile.
        key = (id(reader), prompt)
        found = _judges.get(key)
        if found is None:
            found = _judges[key] = JudgeEntailer(reader, prompt=prompt)
        return found


def _of_label(trace: TokenTrace) -> Sequence[float]:
    """Return the log-probabilities of the tokens that spell the label: what stands around it is manner."""
    named = _WORDS.search("".join(trace.tokens))
    if named is None:
        return list(trace.logprobs)
    found = []
    end = 0
    for token, logprob in zip(trace.tokens, trace.logprobs, strict=True):
        start, end = end, end + len(token)
        if start < named.end() and end > named.start():
            found.append(float(logprob))
    return found


def parse_label(reply: str) -> int | None:
    """Return the one label that a reply names, as its column, or None.

    Example:
        >>> parse_label("**Entailment.**"), parse_label("It is not entailment"), parse_label("maybe")
        (2, None, None)
    """
    found = {(_BY_STEM[stem.lower()], bool(denied)) for denied, stem in _WORDS.findall(reply)}
    if len(found) != 1:
        return None
    label, denied = found.pop()
    return None if denied else label
