"""Models of a LlamaIndex pipeline as services of DENSE; what is left out comes from ``Settings``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llama_index.core.llms import LLM

from llama_index_surerag.readers import reader_from_llm
from surerag.entailment import JudgeEntailer
from surerag.readers import Reader
from surerag.services import Entailer


def reader_of(llm: LLM | Reader) -> Reader:
    """Return an LLM as a reader, and a reader as it is."""
    return reader_from_llm(llm) if isinstance(llm, LLM) else llm


def judges_in_words(entailer: Entailer | LLM | Reader | None) -> bool:
    """Whether entailment is asked for in words, with a prompt of ours."""
    return entailer is None or isinstance(entailer, LLM | Reader)


def entailer_of(entailer: Entailer | LLM | Reader | None, reader: Reader, prompt: Any) -> Entailer:
    """Return an entailer as it is, or a judge in words: without either the reader itself, as in the paper."""
    if entailer is None:
        return JudgeEntailer(reader, prompt=prompt)
    if isinstance(entailer, LLM | Reader):
        return JudgeEntailer(reader_of(entailer), prompt=prompt)
    return entailer


def unparsed_of(entailer: Entailer) -> int:
    """Return how many of a judge's replies named no single label; a classifier has none."""
    return entailer.unparsed if isinstance(entailer, JudgeEntailer) else 0


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Counts tokens with a tokenizer as LlamaIndex has them: from a text to a sequence.

    A class, not a closure, so that it can be pickled for pipelines of several processes.
    """

    tokenizer: Callable[[str], Sequence[Any]]

    def __call__(self, text: str) -> int:
        """Return the number of tokens of a text."""
        return len(self.tokenizer(text))
