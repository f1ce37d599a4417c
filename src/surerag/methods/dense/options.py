"""Options of the three components of DENSE-RAG: measurement, refinement and semantic chunking."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field, model_validator

from surerag.errors import ConfigurationError
from surerag.methods.shared import AnswerTokensOption
from surerag.options import Options, PromptsOption, prompts_field
from surerag.prompts import CLOSED_BOOK, DENSE_ANSWER, ENTAILMENT, REPHRASE, SUFFICIENT, PromptSet
from surerag.text import check_language

OnFailure = Literal["original", "raise"]
Stop = Literal["both", "either", "certain", "sufficient"]

REPHRASE_MAX_TOKENS = 640
"""Default maximum length of a rephrased chunk, in tokens."""


class DenseOptions(Options):
    """Options of DENSE-RAG's score, the same for :class:`surerag.DenseEvaluator` and both frameworks."""

    PROMPTS = PromptSet(
        rephrase=REPHRASE, answer=DENSE_ANSWER, closed_book=CLOSED_BOOK, entailment=ENTAILMENT
    )

    threshold: float = Field(0.2, ge=0)
    """A context is certain if its score is at most this number, in nats (section 5)."""

    label_chunks: bool = False
    """Whether each uncertain chunk is labelled as necessary or unnecessary. For each uncertain chunk,
    this needs one more answer, from the context without the chunk (Eq. 8 and 9)."""

    max_calls: int | None = Field(None, ge=5)
    """Maximum number of model calls (rephrasings, answers and judgements) for a question; None means no
    limit. k chunks need k² + 3 k + 1 calls; labelling them (``label_chunks``) needs up to 3 k more calls.
    If the limit is too small, only the first chunks are rephrased, but at least one chunk."""

    max_tokens: AnswerTokensOption = None
    """Maximum length of an answer in tokens; None means the reader's own limit."""

    rephrase_max_tokens: int = Field(REPHRASE_MAX_TOKENS, ge=1)
    """Maximum length of a rephrased chunk, in tokens; a truncated rephrased chunk is not used."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: ``rephrase`` (slot ``passage``), ``answer`` (slots ``question`` and ``passages``),
    ``closed_book`` (slot ``question``), ``entailment`` (slots ``question``, ``premise`` and ``hypothesis``).
    """


class DenseRefinerOptions(Options):
    """Options of the refinement, the same for :class:`surerag.DenseRefiner`, LangChain and LlamaIndex.

    The defaults are the paper's Algorithm 3 with three limits (``max_chunks``, ``max_rounds`` and
    ``max_calls``) and four differences. The set of visited passages is never cleared, so that the loop ends.
    A context that lost chunks is measured even if no passage can be added. If all chunks are unnecessary, the
    first chunk is kept. A first context that is certain is returned without a self-evaluation, which asks the
    reader whether the context suffices (section 5.1).
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
    """A context is certain if its score is at most this number, in nats (section 5)."""

    top_n: int = Field(5, ge=1)
    """Number of passages in the first context (the paper's k); the other passages can be added later."""

    max_chunks: int | None = Field(None, ge=1)
    """Maximum number of chunks in a context; None means twice ``top_n``, so that one chunk can be added for
    each necessary chunk."""

    stop: Stop = "both"
    """When the refinement stops: ``"certain"``, at a context whose score is at most the threshold;
    ``"sufficient"``, at a context that the reader judges to be sufficient; ``"either"``, if one of these
    conditions holds (text of section 5.2); ``"both"``, if both hold and the context is the best so far
    (Algorithm 3). With ``"certain"``, the reader is not asked to judge contexts (Table 4)."""

    max_rounds: int = Field(4, ge=1)
    """Maximum number of contexts that the refinement measures."""

    max_calls: int | None = Field(None, ge=1)
    """Maximum number of model calls (rephrasings, answers and judgements) for a question; None means no
    limit. r rounds with n chunks need up to r (n² + 6 n + 2) − 3 n calls."""

    on_failure: OnFailure = "original"
    """What to do if a model fails: ``"original"`` returns the best context so far, or the first context, with
    a warning; ``"raise"`` raises the error."""

    max_tokens: AnswerTokensOption = None
    """Maximum length of an answer in tokens; None means the reader's own limit."""

    prompts: PromptsOption = prompts_field()
    """Templates by name: the templates of :class:`DenseOptions`, and ``sufficient`` (slots ``question`` and
    ``passages``)."""

    @model_validator(mode="after")
    def _check_sizes(self) -> Any:
        if self.largest < self.top_n:
            raise ConfigurationError(
                f"max_chunks={self.max_chunks} is less than top_n={self.top_n}",
                hint="pass a larger max_chunks, or leave max_chunks out",
            )
        return self

    @property
    def largest(self) -> int:
        """Maximum number of chunks in a context: the option ``max_chunks``, or its default."""
        return 2 * self.top_n if self.max_chunks is None else self.max_chunks


class SemanticChunkerOptions(Options):
    """Options of semantic chunking, the same for surerag.SemanticChunker, LangChain and LlamaIndex."""

    similarity_threshold: float = Field(0.6, ge=-1, le=1)
    """Minimum cosine similarity of two neighbouring sentences that are joined (the paper's τ). The default
    fits the encoder UAE-Large-V1; ``with_quantile`` finds the value for another encoder."""

    chunk_size: int = Field(512, ge=1)
    """Maximum length of a chunk, in tokens (the paper's T_max)."""

    language: Annotated[str, AfterValidator(check_language)] = "en"
    """ISO 639 code of the texts' language, for splitting texts into sentences."""
