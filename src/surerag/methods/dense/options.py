"""Options of DENSE, of the refinement of contexts, and of semantic chunking."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from surerag.errors import ConfigurationError
from surerag.methods.shared import AnswerTokensOption
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import CLOSED_BOOK, DENSE_ANSWER, ENTAILMENT, REPHRASE, SUFFICIENT, PromptSet

OnFailure = Literal["original", "raise"]
Stop = Literal["both", "either", "certain", "sufficient"]

REPHRASE_MAX_TOKENS = 640
"""Longest rephrasing of a chunk, in tokens."""


class DenseOptions(Options):
    """Options of :class:`surerag.DenseEvaluator` and its adapters."""

    PROMPTS = PromptSet(
        rephrase=REPHRASE, answer=DENSE_ANSWER, closed_book=CLOSED_BOOK, entailment=ENTAILMENT
    )

    threshold: float = Field(0.2, ge=0)
    """A context is certain up to this score, in nats (section 5)."""

    label_chunks: bool = False
    """Tell necessary from unnecessary chunks by the answer without each uncertain one (Eq. 8 and 9)."""

    max_calls: int | None = Field(None, ge=5)
    """Rephrasings, answers and judgements for a question at most; k chunks need k² + 3 k + 1, and labels 3 k
    more. With fewer calls only the first chunks are tested, one at least. None is no limit."""

    max_tokens: AnswerTokensOption = None
    """Longest answer in tokens; None is the reader's own limit."""

    rephrase_max_tokens: int = Field(REPHRASE_MAX_TOKENS, ge=1)
    """Longest rephrasing in tokens; one that is cut is not used."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``rephrase`` (slot ``passage``), ``answer`` (``question``, ``passages``),
    ``closed_book`` (``question``), ``entailment`` (``question``, ``premise``, ``hypothesis``)."""


class DenseRefinerOptions(Options):
    """Options of :class:`surerag.DenseRefiner` and its adapters.

    The defaults are the paper's Algorithm 3, within the limits ``max_chunks``, ``max_rounds`` and
    ``max_calls``, but for four things. The visited set is never cleared, so that the loop ends. Where no
    candidate is left, a context that lost chunks is still measured. Where all chunks are unnecessary, the
    first one stays. And a first context that is certain is left alone, without a self-evaluation
    (section 5.1).
    """

    PROMPTS = PromptSet(
        rephrase=REPHRASE,
        answer=DENSE_ANSWER,
        closed_book=CLOSED_BOOK,
        entailment=ENTAILMENT,
        sufficient=SUFFICIENT,
    )
    rephrase_max_tokens: ClassVar[int] = REPHRASE_MAX_TOKENS

    threshold: float = Field(0.2, ge=0)
    """A context is certain up to this score, in nats (section 5)."""

    top_n: int = Field(5, ge=1)
    """Chunks of the first context (the paper's k); the other passages are candidates."""

    max_chunks: int | None = Field(None, ge=1)
    """Chunks of a context at most; None is twice ``top_n``, so that each necessary one can bring another."""

    stop: Stop = "both"
    """Refinement stops at a context that is ``"certain"`` (its score is within the threshold), that is
    ``"sufficient"`` by the reader's own word, ``"both"`` and the best so far (Algorithm 3), or ``"either"``
    (the text of section 5.2). ``"certain"`` needs no self-evaluation (Table 4)."""

    max_rounds: int = Field(4, ge=1)
    """Contexts that are measured at most."""

    max_calls: int | None = Field(None, ge=1)
    """Rephrasings, answers and judgements for a question at most; r rounds of n chunks need up to
    r (n² + 6 n + 2) − 3 n. None is no limit."""

    on_failure: OnFailure = "original"
    """If a model fails: the best context so far or the ``"original"`` one, with a warning; or ``"raise"``."""

    max_tokens: AnswerTokensOption = None
    """Longest answer in tokens; None is the reader's own limit."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: those of :class:`DenseOptions`, and ``sufficient`` (``question``, ``passages``)."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Any:
        if self.largest < self.top_n:
            raise ConfigurationError(
                f"max_chunks={self.max_chunks} is less than top_n={self.top_n}",
                hint="raise max_chunks, or leave it out",
            )
        return self

    @property
    def largest(self) -> int:
        """Chunks of a context at most."""
        return 2 * self.top_n if self.max_chunks is None else self.max_chunks


class SemanticChunkerOptions(Options):
    """Options of :class:`surerag.SemanticChunker` and its adapters."""

    similarity_threshold: float = Field(0.6, ge=-1, le=1)
    """Cosine from which the next sentence joins the chunk (the paper's τ). 0.6 belongs to UAE-Large-V1;
    ``with_quantile`` finds the value for another encoder."""

    chunk_size: int = Field(512, ge=1)
    """Tokens of a chunk at most (the paper's T_max)."""

    language: str = "en"
    """ISO 639 code, for the abbreviations and marks that sentences end with."""
