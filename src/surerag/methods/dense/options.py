"""The options of DENSE, of the refinement of contexts, and of adaptive chunking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal

from surerag.errors import ConfigurationError
from surerag.messages import Prompt, SamplingParams
from surerag.methods.calls import MaxCalls
from surerag.methods.dense.memory import Memory
from surerag.methods.dense.result import Span
from surerag.options import AnswerTokens, Doc, Options, Within, options
from surerag.prompts import (
    CLOSED_BOOK,
    DENSE_ANSWER,
    ENTAILMENT,
    REPHRASE,
    SUFFICIENT,
    PromptSet,
    format_passages,
)
from surerag.tokens import estimated_tokens

Variant = Literal["default", "paper"]
Half = Literal["necessary", "unnecessary"]
StopRule = Literal["both", "either"]
Keep = Literal["sufficient", "lowest"]
Refill = Literal["necessary", "certain"]
OnFailure = Literal["original", "raise"]

VARIANTS: Mapping[Variant, Mapping[str, Any]] = MappingProxyType(
    {
        "default": {"stop_rule": "both", "keep": "sufficient", "half": "necessary"},
        "paper": {"stop_rule": "either", "keep": "lowest", "half": "unnecessary"},
    }
)
"""Where Algorithm 3 (our default) and the paper's text differ; the one place that knows."""


@options
class MeasureOptions(Options):
    """What measuring a context and refining it have in common."""

    PROMPTS = PromptSet(
        rephrase=REPHRASE, answer=DENSE_ANSWER, closed_book=CLOSED_BOOK, entailment=ENTAILMENT
    )

    threshold: Annotated[
        float,
        Within(0),
        Doc("A context is certain up to this score, in nats (section 5)."),
    ] = 0.2
    variant: Annotated[
        Variant,
        Doc(
            """What options that are None stand for: ``"default"`` is Algorithm 3, ``"paper"`` is the text of
            section 5.2, which differs from it."""
        ),
    ] = "default"
    half: Annotated[
        Half | None,
        Doc(
            """What a chunk is when entailment holds in one direction only between the answers with and
            without it: ``"necessary"`` (Algorithm 3) or ``"unnecessary"`` (Eq. 10); None goes by
            ``variant``."""
        ),
    ] = None
    entailment_threshold: Annotated[
        float | None,
        Within(0, 1, above=True),
        Doc("One answer entails another from this probability on; None where it is the likeliest label."),
    ] = None
    max_calls: MaxCalls = None
    max_tokens: AnswerTokens = None
    rephrase_tokens: Annotated[
        int,
        Within(1),
        Doc("Length of a rephrasing, at most; one that is cut short is not used, so leave room."),
    ] = 640
    prompts: Annotated[
        Mapping[str, Any],
        Doc(
            """Prompts in place of the method's own (appendix B), by name: ``rephrase`` (slot ``passage``),
            ``answer`` (``question``, ``passages``), ``closed_book`` (``question``; where the only chunk was
            left out), ``entailment`` (``question``, ``premise``, ``hypothesis``; only where a model judges in
            words), and for refinement ``sufficient`` (``question``, ``passages``)."""
        ),
    ] = PromptSet()

    def settled(self, name: str) -> Any:
        """Return an option, as ``variant`` says where it is None."""
        value = getattr(self, name)
        return VARIANTS[self.variant][name] if value is None else value

    def answer_prompt(self, question: str, texts: Sequence[str]) -> Prompt:
        """Return the prompt for an answer from a context of texts.

        What comes before the passages is the same for all contexts of a question, so that they share their
        beginnings.
        """
        if not texts:
            prompt: Prompt = self.prompts["closed_book"].render(question=question)
        else:
            prompt = self.prompts["answer"].render(question=question, passages=format_passages(texts))
        return prompt

    @property
    def answering(self) -> SamplingParams:
        """How to answer: greedily, for the measure is of what rephrasing changes, not of chance."""
        return SamplingParams(max_tokens=self.answer_tokens, trace="none", compared=True)

    @property
    def rephrasing(self) -> SamplingParams:
        """How to rephrase: greedily."""
        return SamplingParams(max_tokens=self.rephrase_tokens, trace="none")

    @property
    def original_first(self) -> bool:
        """Whether to ask about the original context before its edits, on its own.

        A server that caches prefixes then has it in its cache; a local reader shares prefixes inside one
        call.
        """
        return False

    @property
    def memory(self) -> Memory:
        """What has been asked before."""
        return Memory()


@options
class DenseOptions(MeasureOptions):
    """What a user can set on DENSE, whatever framework it stands in."""

    mask: Annotated[
        bool,
        Doc(
            """Whether to tell necessary from unnecessary chunks by the answer without each uncertain one, for
            up to 3 k calls more. The score does not need it."""
        ),
    ] = False


@options
class DenseRefinerOptions(MeasureOptions):
    """What a user can set on the refinement of contexts, whatever framework it stands in."""

    PROMPTS = PromptSet(
        rephrase=REPHRASE,
        answer=DENSE_ANSWER,
        closed_book=CLOSED_BOOK,
        sufficient=SUFFICIENT,
        entailment=ENTAILMENT,
    )

    top_n: Annotated[
        int,
        Within(1),
        Doc("Chunks of the first context (the paper's k): the first ones retrieved. Others are candidates."),
    ] = 5
    max_chunks: Annotated[
        int | None,
        Within(1),
        Doc(
            """Chunks of a context, at most; None is ``top_n``. Algorithm 3 lets a context grow by one for
            each necessary chunk: ``2 * top_n`` gives it room."""
        ),
    ] = None
    rounds: Annotated[int, Within(1), Doc("Contexts to measure, at most.")] = 4
    stop_rule: Annotated[
        StopRule | None,
        Doc(
            """Stop on a certain context that is judged sufficient (``"both"``, Algorithm 3), or on
            ``"either"``; None goes by ``variant``."""
        ),
    ] = None
    keep: Annotated[
        Keep | None,
        Doc(
            """Whether a context that was judged ``"sufficient"`` gives way only to another such one
            (Algorithm 3), or the ``"lowest"`` score wins; None goes by ``variant``."""
        ),
    ] = None
    refill: Annotated[
        Refill,
        Doc('Chunks to whose likeness new ones are taken: ``"necessary"``, or ``"certain"`` (Table 4).'),
    ] = "necessary"
    chunking_only: Annotated[
        bool,
        Doc(
            """Whether an uncertain question moves to the chunks of its documents for good, and nothing else
            is changed (the second row of each model in Table 1). It needs documents and a chunker."""
        ),
    ] = False
    remove_only: Annotated[bool, Doc("Whether nothing is taken in (Table 4).")] = False
    self_evaluation: Annotated[bool, Doc("Whether the reader is asked if a context suffices (Table 4).")] = (
        True
    )
    only_uncertain: Annotated[
        bool, Doc("Whether a question that is certain at first keeps its context, as in the paper.")
    ] = True
    more: Annotated[
        int,
        Within(0),
        Doc(
            "Passages to ask the retriever for, if there is one, once a question, when no candidate is left."
        ),
    ] = 20
    on_failure: Annotated[
        OnFailure,
        Doc(
            """If a model fails: the best context so far, or the ``"original"`` one where there is none, with
            a warning; or ``"raise"``. What a service refuses for good raises in any case."""
        ),
    ] = "original"

    def __post_init__(self) -> None:
        """Check every option.

        Raises:
            ConfigurationError: If a value is out of bounds, or a context could not hold its first chunks.
        """
        super().__post_init__()
        if self.largest < self.top_n:
            raise ConfigurationError(
                f"max_chunks={self.max_chunks} is less than top_n={self.top_n}",
                hint="raise max_chunks, or leave it out",
            )

    @property
    def largest(self) -> int:
        """Chunks of a context, at most."""
        return self.top_n if self.max_chunks is None else self.max_chunks

    @property
    def reserve(self) -> int:
        """Passages to ask a retriever for; 0 where there is none."""
        return self.more

    @property
    def chunking(self) -> SemanticChunkerOptions | None:
        """How to cut the documents behind uncertain chunks anew; None leaves chunks as they are."""
        return None


@options
class SemanticChunkerOptions(Options):
    """What a user can set on adaptive chunking, whatever framework it stands in."""

    similarity_threshold: Annotated[
        float,
        Within(-1, 1),
        Doc(
            """Cosine from which the next sentence joins the chunk (the paper's τ). Its 0.6 belongs to
            UAE-Large-V1; ``with_quantile`` finds the one that fits your encoder."""
        ),
    ] = 0.6
    chunk_size: Annotated[
        int,
        Within(1),
        Doc("Tokens of a chunk's text, at most (the paper's T_max)."),
    ] = 512
    language: Annotated[
        str, Doc("ISO 639 code, for the abbreviations and marks that sentences end with.")
    ] = "en"

    def sentences(self, text: str) -> list[Span]:
        """Return the sentences of a text: in order, without overlap, every word in one of them.

        The component knows where they end.
        """
        raise NotImplementedError

    def tokens(self, text: str) -> int:
        """Return the length of a text: an estimate by its scripts, where there is no other counter."""
        return estimated_tokens(text)
