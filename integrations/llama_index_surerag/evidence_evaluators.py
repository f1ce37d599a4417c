"""EDC²-RAG's checks as LlamaIndex evaluators: a statement against documents, and the better of two."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.evaluation import EvaluationResult
from llama_index.core.llms import LLM
from pydantic import Field

from llama_index_surerag._fields import EmbedModel
from llama_index_surerag.evaluating import Item, MethodEvaluator
from llama_index_surerag.events import dispatcher
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.prompts import for_core
from llama_index_surerag.services import encoder_of
from surerag import Choice, ClusterCompressor, Costs, EDC2Options, Judgement, Passage
from surerag.effects import Program
from surerag.errors import InputError
from surerag.readers import Reader
from surerag.services import Encoder, Entailer


class EvidenceResult(EvaluationResult):
    """What evidence, compressed from the contexts, says of an answer.

    An item that could not be judged, or whose judgement names no verdict, has ``invalid_result`` and
    ``invalid_reason`` set.

    Attributes:
        label: ``"factual"`` or ``"nonfactual"``, of a statement.
        chosen: 0 or 1, which of two answers; None where the replies to both orders disagree.
        sources: Positions of the contexts that the cited evidence comes from.
        evidence: What the model was shown.
        calls: Prompts that the reader was asked.
        tokens: Tokens of its prompts and replies, as far as it tells.
        spent: Tokens, calls, seconds and money, where a price is known.
    """

    label: Literal["factual", "nonfactual"] | None = None
    chosen: int | None = None
    sources: tuple[int, ...] = ()
    evidence: tuple[str, ...] = ()
    calls: int = 0
    tokens: int = 0
    spent: Costs | None = None


class _EvidenceEvaluator(MethodEvaluator[ClusterCompressor, EvidenceResult], EDC2Options):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    embed_model: EmbedModel = Field(default=None, exclude=True, repr=False)

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        embed_model: BaseEmbedding | Encoder | None = None,
        entailer: Entailer | None = None,
        **options: Any,
    ) -> None:
        super().__init__(llm, entailer, embed_model=embed_model, **options)

    def _core(self) -> ClusterCompressor:
        return ClusterCompressor(
            reader_of(self.llm),
            encoder_of(self.embed_model),
            self.entailer,  # type: ignore[arg-type]  # its constructor takes no model in its place
            **{**self.chosen(), "prompts": for_core(self.prompts, self.llm)},
        )

    def _result(self, item: Item, parts: Mapping[str, Any]) -> EvidenceResult:
        return EvidenceResult(**item.told(), **parts)


class FactCheckEvaluator(_EvidenceEvaluator):  # type: ignore[misc]  # as above
    r"""Judges whether a response has factual errors, by evidence compressed for it (EDC²-RAG, section 6.2).

    The response is the statement: its contexts are clustered, each cluster is compressed to what supports,
    refutes or explains it, and the LLM says Factual or Nonfactual. ``passing`` is whether it found no error,
    ``score`` 1 or 0, ``feedback`` its reasons. ``subject`` says whom the statement is about, for all items as
    an option or for one as an argument (WikiBio's ``{person}``). A long response is best judged sentence by
    sentence: it is Nonfactual if any part of it is.

    Needs ``response`` and ``contexts``; ``query`` is carried along. Nothing is raised for a single item: one
    that lacks something, for which a model fails, or whose reply names no verdict comes back with
    ``invalid_result`` and ``invalid_reason``.

    Attributes:
        llm: Compresses and judges: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out.
        embed_model: Clusters the contexts; ``Settings.embed_model`` if left out.
        entailer: For ``guard="entailment"``.
        window: Items that are judged at a time, over all callers.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> reader = FakeReader(["Reasoning: [1] says Velm.\nAnswer: Nonfactual"])
        >>> evaluator = FactCheckEvaluator(reader, HashingEncoder())
        >>> found = evaluator.evaluate(response="Ada was born in Orun.", contexts=["Ada was born in Velm."])
        >>> found.label, found.passing, found.feedback
        ('nonfactual', False, '[1] says Velm.')
    """

    METHOD = "fact_check"

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvidenceResult:
        """Judge one item, in the caller's thread.

        Args:
            query: What the pipeline was asked; carried along.
            response: The statement.
            contexts: What was retrieved; blank ones are left out.
            **kwargs: ``subject``, whom the statement is about; others are ignored.
        """
        return self._evaluated(Item(query or "", response, contexts, kwargs))

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvidenceResult:
        """Like ``evaluate``, without blocking the event loop."""
        return await self._aevaluated(Item(query or "", response, contexts, kwargs))

    def _case(self, item: Item) -> tuple[Any, ...]:
        return _said(item.response, "response"), _numbered(item), item.others.get("subject")

    def _program(self, *case: Any) -> Program[Judgement]:
        return self.core.judge_program(*case)

    def _parts(self, found: Judgement) -> dict[str, Any]:
        """Return what was found, as fields of a result.

        Raises:
            InputError: If the reply names no verdict.
        """
        if found.label == "unclear":
            raise InputError(
                f"the reply names no verdict: {found.generation.text[:80]!r}",
                hint="raise max_tokens, or use another LLM or prompt 'judge_statement'",
            )
        replies = (found.generation,)
        return {
            "passing": found.label == "factual",
            "score": float(found.label == "factual"),
            "feedback": found.reasoning or found.generation.text,
            "label": found.label,
            **_shared(found, len(replies), sum(one.prompt_tokens + one.completion_tokens for one in replies)),
        }


class AnswerChoiceEvaluator(_EvidenceEvaluator):  # type: ignore[misc]  # as above
    """Chooses between two answers by evidence compressed for the question (EDC²-RAG on HaluEval, C.1.1).

    Takes what LlamaIndex's ``PairwiseComparisonEvaluator`` takes: ``response`` and ``second_response``.
    ``score`` is 1 where the first is chosen, 0 where it is the second, ½ where the replies to both orders
    disagree; ``passing`` is whether the first is chosen.

    Needs ``query``, ``response``, ``second_response`` and ``contexts``. Nothing is raised for a single item.

    Attributes:
        llm: Compresses and chooses: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm`` if left out.
        embed_model: Clusters the contexts; ``Settings.embed_model`` if left out.
        entailer: For ``guard="entailment"``.
        both_orders: Whether to ask with the answers in either order: models prefer a place. The paper does
            not.
        window: Items that are judged at a time, over all callers.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.encoders import HashingEncoder
        >>> evaluator = AnswerChoiceEvaluator(FakeReader(["Choice: Answer 2"]), HashingEncoder())
        >>> found = evaluator.evaluate("Where?", "Orun", ["Ada was born in Velm."], second_response="Velm")
        >>> found.chosen, found.score
        (1, 0.0)
    """

    METHOD = "answer_choice"

    both_orders: bool = False

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvidenceResult:
        """Choose for one item, in the caller's thread.

        Args:
            query: The question.
            response: The first answer.
            contexts: What was retrieved; blank ones are left out.
            **kwargs: ``second_response``; others are ignored.
        """
        return self._evaluated(Item(query, response, contexts, kwargs))

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        **kwargs: Any,
    ) -> EvidenceResult:
        """Like ``evaluate``, without blocking the event loop."""
        return await self._aevaluated(Item(query, response, contexts, kwargs))

    def _case(self, item: Item) -> tuple[Any, ...]:
        second = _said(item.others.get("second_response"), "second_response")
        return item.question(), (_said(item.response, "response"), second), _numbered(item)

    def _program(self, *case: Any) -> Program[Choice]:
        return self.core.choose_program(*case, both_orders=self.both_orders)

    def _parts(self, found: Choice) -> dict[str, Any]:
        """Return what was found, as fields of a result.

        Raises:
            InputError: If the one reply names neither answer.
        """
        if found.chosen is None and len(found.generations) == 1:
            raise InputError(
                f"the reply chooses no answer: {found.generations[0].text[:80]!r}",
                hint="raise max_tokens, or use another LLM or prompt 'choose_answer'",
            )
        tokens = sum(one.prompt_tokens + one.completion_tokens for one in found.generations)
        return {
            "passing": found.chosen == 0,
            "score": 0.5 if found.chosen is None else float(found.chosen == 0),
            "feedback": found.reasoning or found.generations[0].text,
            "chosen": found.chosen,
            **_shared(found, len(found.generations), tokens),
        }


def _said(given: Any, name: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise InputError(f"there is no {name}", hint=f"pass {name}=…")
    return given


def _numbered(item: Item) -> list[Passage]:
    item.passages()  # raises where there are none
    given = [item.contexts] if isinstance(item.contexts, str) else item.contexts
    return [Passage(text, id=str(at)) for at, text in enumerate(given) if text.strip()]


def _shared(found: Judgement | Choice, replies: int, tokens: int) -> dict[str, Any]:
    compression = found.compression
    return {
        "sources": tuple(int(one) for one in found.sources),
        "evidence": tuple(passage.text for passage in found.evidence),
        "calls": compression.calls + replies,
        "tokens": compression.prompt_tokens + compression.completion_tokens + tokens,
        "spent": found.spent,
    }
