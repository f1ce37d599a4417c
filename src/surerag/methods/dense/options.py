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
"""Maximum length of a chunk's rephrasing, in tokens."""


class DenseOptions(Options):
    """Options of :class:`surerag.DenseEvaluator` and its adapters."""

    PROMPTS = PromptSet(
        rephrase=REPHRASE, answer=DENSE_ANSWER, closed_book=CLOSED_BOOK, entailment=ENTAILMENT
    )

    threshold: float = Field(0.2, ge=0)
    """A context is certain if its score, in nats, is at most this number (section 5)."""

    label_chunks: bool = False
    """Whether to label uncertain chunks as necessary or unnecessary, by the answer without them (Eq. 8, 9).
    """

    max_calls: int | None = Field(None, ge=5)
    """Maximum number of calls (rephrasings, answers and judgements) for a question; None is no limit. k
    chunks need k² + 3 k + 1 calls, and labels up to 3 k more. With fewer calls, only the first chunks are
    tested, at least one."""

    max_tokens: AnswerTokensOption = None
    """Longest answer in tokens; None is the reader's own limit."""

    rephrase_max_tokens: int = Field(REPHRASE_MAX_TOKENS, ge=1)
    """Maximum length of a rephrasing, in tokens; a rephrasing that is cut off is not used."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``rephrase`` (slot ``passage``), ``answer`` (``question``, ``passages``),
    ``closed_book`` (``question``), ``entailment`` (``question``, ``premise``, ``hypothesis``)."""


class DenseRefinerOptions(Options):
    """Options of :class:`surerag.DenseRefiner` and its adapters.

    The defaults are the paper's Algorithm 3, within the limits ``max_chunks``, ``max_rounds`` and
    ``max_calls``, with four differences. The visited set is never cleared, so that the loop ends. If no
    candidate is left, a context that lost chunks is still measured. If all chunks are unnecessary, the first
    chunk is kept. If the first context is certain, it is returned without a self-evaluation (section 5.1).
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
    """Number of chunks in the first context (the paper's k); the other passages are candidates."""

    max_chunks: int | None = Field(None, ge=1)
    """Maximum number of chunks in a context; None is twice ``top_n``, so that each necessary chunk can add
    one more."""

    stop: Stop = "both"
    """Refinement stops at a context that is ``"certain"`` (its score is within the threshold), that is
    ``"sufficient"`` by the reader's own word, ``"both"`` and the best so far (Algorithm 3), or ``"either"``
    (the text of section 5.2). ``"certain"`` needs no self-evaluation (Table 4)."""

    max_rounds: int = Field(4, ge=1)
    """Maximum number of contexts that are measured."""

    max_calls: int | None = Field(None, ge=1)
    """Maximum number of calls (rephrasings, answers and judgements) for a question; None is no limit. r
    rounds of n chunks need up to r (n² + 6 n + 2) − 3 n calls."""

    on_failure: OnFailure = "original"
    """If a model fails: ``"original"`` returns the best context so far, or else the original, with a warning;
    ``"raise"`` raises."""

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
        """Maximum number of chunks in a context."""
        return 2 * self.top_n if self.max_chunks is None else self.max_chunks


class SemanticChunkerOptions(Options):
    """Options of :class:`surerag.SemanticChunker` and its adapters."""

    similarity_threshold: float = Field(0.6, ge=-1, le=1)
    """Smallest cosine at which the next sentence is added to the chunk (the paper's τ). 0.6 is for
    UAE-Large-V1; ``with_quantile`` finds the value for another encoder."""

    chunk_size: int = Field(512, ge=1)
    """Maximum length of a chunk, in tokens (the paper's T_max)."""

    language: str = "en"
    """ISO 639 code, for the abbreviations and marks that sentences end with."""
