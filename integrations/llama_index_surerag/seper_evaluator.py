"""ΔSePer as a LlamaIndex evaluator: what was retrieval worth to this reader?"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.evaluation import EvaluationResult
from llama_index.core.llms import LLM
from surerag.adapting import shared

from llama_index_surerag._fanout import Turns
from llama_index_surerag.evaluating import Item, MethodEvaluator, aread, read, texts, texts_or_none
from llama_index_surerag.events import dispatcher
from llama_index_surerag.llm_reader import reader_of
from llama_index_surerag.prompts import for_core
from surerag import Costs, Drawn, Interval, SampledAnswer, SePer, SePerCase, SePerOptions, SePerResult
from surerag.drivers.progress import Progress, reporting
from surerag.entailment import JudgeEntailer
from surerag.errors import InputError
from surerag.measures.seper import Kernel, Weights

Golds = str | Sequence[str]
"""One gold answer, or several."""


class DeltaSePerResult(EvaluationResult):
    """What retrieval was worth to the reader, for one query.

    ``score`` is ΔSePer, ``passing`` whether it is above the evaluator's bar, ``feedback`` the result in
    words. An item that could not be measured has ``invalid_result`` and ``invalid_reason`` set, and
    neither score nor parts.

    Attributes:
        reference: The gold answers.
        before: SePer without contexts, in [0, 1].
        after: SePer with them, in [0, 1].
        delta: ΔSePer = after − before, in [−1, 1]; the same as ``score``.
        interval: 95 % bootstrap interval of ``delta`` over the samples.
        answers_before: The samples without contexts: text, log-likelihood, weight, cluster, entailment.
        answers_after: The samples with contexts.
        weights: The weighting used; ``"frequency"`` where the reader has no log-probabilities.
        kernel: The kernel used.
        calls: Prompts that the reader answered, N samples each.
        judged: Pairs of statements that the entailer was asked about.
        tokens: Tokens of the prompts and of all samples, as far as the reader tells.
        drawn: How far adaptive sampling went; None where all samples were drawn at once.
        truncated: Samples that were cut at ``max_tokens``.
        spent: Tokens, calls, seconds and money, where a price is known.
    """

    reference: tuple[str, ...] = ()
    before: float | None = None
    after: float | None = None
    delta: float | None = None
    interval: Interval | None = None
    answers_before: tuple[SampledAnswer, ...] = ()
    answers_after: tuple[SampledAnswer, ...] = ()
    weights: Weights | None = None
    kernel: Kernel | None = None
    calls: int = 0
    judged: int = 0
    tokens: int = 0
    drawn: Drawn | None = None
    truncated: int = 0
    spent: Costs | None = None


class DeltaSePerEvaluator(MethodEvaluator[SePer, DeltaSePerResult], SePerOptions):  # type: ignore[misc]  # a frozen base; fields that are set are in force
    """Measures the reader's belief in the gold answers with the contexts, minus that without (ΔSePer).

    Needs ``query``, ``contexts`` and ``reference`` (one gold answer or several) for each item; the
    ``response`` is carried along and not looked at. Of a response object, the contexts are what its source
    nodes show to an LLM, metadata included as the nodes' templates say.

    Nothing is raised for a single item: one without reference or contexts, or for which a model fails,
    comes back with ``invalid_result`` and ``invalid_reason``, and a ``ProgressEvent`` is sent.

    ``evaluate`` works in the caller's thread, ``aevaluate`` on the running loop; one instance may serve
    several threads and loops. Prompts are texts or LlamaIndex templates; ``query_str`` and ``context_str``
    may stand for ``question`` and ``passages``, so that the pipeline's own templates fit.

    Attributes:
        llm: The reader whose belief is measured: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm``
            if left out. An LLM that ``reader_from_llm`` cannot steer samples as it was built, so build
            it with temperature 1; without log-probabilities answers are weighted by their frequency.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or a LlamaIndex LLM that is asked in words.
        passing_above: ``passing`` is whether ΔSePer exceeds this.
        window: Items that are measured at a time, over all callers. A reader over an LLM has a limit of its
            own on requests; see ``max_concurrency`` of ``reader_from_llm``.

    Raises:
        ConfigurationError: If an option is unknown, of the wrong kind or out of bounds, or the LLM is none.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import FakeReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = FakeReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> evaluator = DeltaSePerEvaluator(reader, ExactEntailer())
        >>> contexts = ["Ada was born in Velm."]
        >>> result = evaluator.evaluate("Where was Ada born?", contexts=contexts, reference="Velm")
        >>> result.before, result.after, result.score, result.passing
        (0.0, 1.0, 1.0, True)
    """

    METHOD = "seper"

    passing_above: float = 0.0

    @dispatcher.span
    def evaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        reference: Golds | None = None,
        **kwargs: Any,
    ) -> DeltaSePerResult:
        """Measure one item, in the caller's thread.

        Args:
            query: The question.
            response: The pipeline's answer; carried along.
            contexts: What was retrieved; blank ones are left out.
            reference: One gold answer, or several.
            **kwargs: What other evaluators of the same batch are for; ignored.
        """
        return self._evaluated(Item(query, response, contexts, {"reference": reference, **kwargs}))

    @dispatcher.span
    async def aevaluate(
        self,
        query: str | None = None,
        response: str | None = None,
        contexts: Sequence[str] | None = None,
        reference: Golds | None = None,
        **kwargs: Any,
    ) -> DeltaSePerResult:
        """Like ``evaluate``, without blocking the event loop."""
        return await self._aevaluated(Item(query, response, contexts, {"reference": reference, **kwargs}))

    def evaluate_query_engine(
        self,
        query_engine: BaseQueryEngine,
        cases: Iterable[tuple[str, Golds]],
        *,
        progress: Progress = False,
    ) -> list[DeltaSePerResult]:
        """Ask a query engine each question, and measure what it retrieved.

        At most ``window`` questions are under way at a time, each in a thread. An engine that fails, or
        finds nothing, makes its item invalid.

        Args:
            query_engine: Any query engine whose responses have source nodes.
            cases: Pairs of a question and its gold answer or answers.
            progress: True shows a bar on a terminal; a callable gets (done, total).

        Returns:
            One result for each case, in order.
        """
        lock = threading.Lock()
        waiting = [_Asked(*case) for case in cases]
        with reporting(progress, len(waiting)) as advance:

            def one(asked: _Asked) -> DeltaSePerResult:
                try:
                    response = read(query_engine.query(asked.question))
                except Exception as error:
                    result = self._invalid(asked.item(), error)
                else:
                    result = self.evaluate_response(asked.question, response, reference=asked.golds)
                with lock:
                    advance()
                return result

            return Turns(self.window).map(one, waiting)

    async def aevaluate_query_engine(
        self,
        query_engine: BaseQueryEngine,
        cases: Iterable[tuple[str, Golds]],
        *,
        progress: Progress = False,
    ) -> list[DeltaSePerResult]:
        """Like ``evaluate_query_engine``, without blocking the event loop."""
        waiting = [_Asked(*case) for case in cases]
        with reporting(progress, len(waiting)) as advance:

            async def one(asked: _Asked) -> DeltaSePerResult:
                try:
                    response = await aread(await query_engine.aquery(asked.question))
                except Exception as error:
                    result = self._invalid(asked.item(), error)
                else:
                    result = await self.aevaluate_response(asked.question, response, reference=asked.golds)
                advance()
                return result

            return await Turns(self.window).amap(one, waiting)

    def _core(self) -> SePer:
        judge: Any = shared(_judge, self.entailer) if isinstance(self.entailer, LLM) else self.entailer
        prompts = for_core(self.prompts, self.llm)
        return SePer(reader_of(self.llm), judge, **{**self.chosen(), "prompts": prompts})

    def _case(self, item: Item) -> SePerCase:
        question = item.question()
        golds = texts("reference", item.others.get("reference"))
        if not golds:
            others = sorted(item.others.keys() - {"reference"})
            raise InputError(
                f"there is no reference{f', only {others}' if others else ''}",
                hint="pass reference=…, one gold answer or a list of them",
            )
        return SePerCase(question, golds, item.passages())

    def _parts(self, found: SePerResult) -> dict[str, Any]:
        return {
            "passing": found.delta > self.passing_above,
            "feedback": found.explain(),
            "score": found.delta,
            "before": found.before.seper,
            "after": found.after.seper,
            "delta": found.delta,
            "interval": found.interval,
            "answers_before": found.before.answers,
            "answers_after": found.after.answers,
            "weights": found.weights,
            "kernel": found.kernel,
            "calls": found.calls,
            "judged": found.judged,
            "tokens": found.tokens,
            "drawn": found.drawn,
            "truncated": found.truncated,
            "spent": found.spent,
        }

    def _result(self, item: Item, parts: Mapping[str, Any]) -> DeltaSePerResult:
        golds = texts_or_none("reference", item.others.get("reference"))
        return DeltaSePerResult(**item.told(), reference=tuple(golds or ()), **parts)


class _Asked(NamedTuple):
    question: str
    golds: Golds

    def item(self) -> Item:
        return Item(self.question, None, None, {"reference": self.golds})


def _judge(llm: LLM) -> JudgeEntailer:
    return JudgeEntailer(reader_of(llm))
