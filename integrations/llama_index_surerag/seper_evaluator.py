"""ΔSePer as a LlamaIndex evaluator: what was retrieval worth to this reader?"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from llama_index.core.base.base_query_engine import BaseQueryEngine
from llama_index.core.base.response.schema import RESPONSE_TYPE
from llama_index.core.evaluation import BaseEvaluator
from llama_index.core.llms import LLM
from llama_index.core.prompts import BasePromptTemplate, PromptTemplate
from llama_index.core.prompts.mixin import PromptDictType
from llama_index.core.settings import Settings

from llama_index_surerag._fanout import Turns
from llama_index_surerag._responses import aread, read, shown
from llama_index_surerag.events import dispatch, dispatcher
from llama_index_surerag.prompts import TemplatePrompt, with_passages
from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.seper_result import DeltaSePerResult, Item
from surerag import SePer
from surerag.components.seper import Case
from surerag.drivers.progress import Progress, reporting
from surerag.entailment import JudgeEntailer
from surerag.errors import ConfigurationError, PromptError
from surerag.methods.seper_types import SePerPrompts, SePerResult
from surerag.readers import Reader
from surerag.services import Entailer
from surerag.types import Event

logger = logging.getLogger("surerag")

Golds = str | Sequence[str]
"""One gold answer, or several."""

_FIELDS = {getattr(SePerPrompts(), item.name).name: item.name for item in fields(SePerPrompts)}


class DeltaSePerEvaluator(BaseEvaluator):
    """Measures the reader's belief in the gold answers with the contexts, minus that without (ΔSePer).

    Needs ``query``, ``contexts`` and ``reference`` (one gold answer or several) for each item; the
    ``response`` is carried along and not looked at. Of a response object, the contexts are what its source
    nodes show to an LLM, metadata included as the nodes' templates say.

    Nothing is raised for a single item: one without reference or contexts, or for which a model fails,
    comes back with ``invalid_result`` and ``invalid_reason``, and a ``ProgressEvent`` is sent.

    ``evaluate`` works in the caller's thread, ``aevaluate`` on the running loop; one instance may serve
    several threads and loops.

    Args:
        llm: The reader whose belief is measured: a LlamaIndex LLM, or a reader of surerag; ``Settings.llm``
            if left out. An LLM that ``reader_from_llm`` cannot steer samples as it was built, so build
            it with temperature 1; without log-probabilities answers are weighted by their frequency.
        entailer: Judges whether answers mean the same: an entailer of surerag, such as
            ``NLIEntailer.from_pretrained()``, or a LlamaIndex LLM that is asked in words.
        passing_above: ``passing`` is whether ΔSePer exceeds this.
        prompts: Prompts in place of ours, by the names that ``get_prompts`` gives: texts or LlamaIndex
            templates. ``query_str`` and ``context_str`` may stand for ``question`` and ``passages``, so
            that the pipeline's own templates fit.
        at_once: Items that are measured at a time, over all callers. A reader over an LLM has a limit of
            its own on requests; see ``at_once`` of ``reader_from_llm``.
        **settings: Further settings of :class:`surerag.SePer`: ``n_samples``, ``kernel``, ``weights``,
            ``seed`` and so on.

    Raises:
        ConfigurationError: If a setting is out of range, or the LLM is none.
        MissingServiceError: If there is no entailer.
        PromptError: If a prompt is unknown or its slots do not fit.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> evaluator = DeltaSePerEvaluator(reader, ExactEntailer())
        >>> contexts = ["Ada was born in Velm."]
        >>> result = evaluator.evaluate("Where was Ada born?", contexts=contexts, reference="Velm")
        >>> result.before, result.after, result.score, result.passing
        (0.0, 1.0, 1.0, True)
    """

    def __init__(
        self,
        llm: LLM | Reader | None = None,
        entailer: Entailer | LLM | None = None,
        *,
        passing_above: float = 0.0,
        prompts: Mapping[str, BasePromptTemplate | str] | None = None,
        at_once: int = 16,
        **settings: Any,
    ) -> None:
        if at_once < 1:
            raise ConfigurationError(f"at_once must be at least 1, got {at_once!r}")
        model = Settings.llm if llm is None else llm
        judge: Any = JudgeEntailer(reader_from_llm(entailer)) if isinstance(entailer, LLM) else entailer
        self._seper = SePer(reader_from_llm(model) if isinstance(model, LLM) else model, judge, **settings)
        self._llm = model if isinstance(model, LLM) else None
        self._templates: dict[str, BasePromptTemplate] = {
            name: PromptTemplate(getattr(SePerPrompts(), field).text) for name, field in _FIELDS.items()
        }
        self._passing_above = passing_above
        self._at_once = at_once
        self._turns = Turns(at_once)
        self._update_prompts(dict(prompts or {}))

    def __repr__(self) -> str:
        seper = self._seper
        return (
            f"DeltaSePerEvaluator(reader={seper.reader.name!r}, entailer={seper.entailer.name!r}, "
            f"n_samples={seper.n_samples!r}, kernel={seper.kernel!r})"
        )

    @property
    def seper(self) -> SePer:
        """The method with its settings and services; ``seper.utilities`` measures single passages."""
        return self._seper

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
        item = Item(query, response, contexts, reference, sorted(kwargs))
        try:
            [result] = self._turns.map(self._measure, [item.case()])
        except Exception as error:
            return _marked(item, error)
        return item.measured(result, self._passing_above)

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
        item = Item(query, response, contexts, reference, sorted(kwargs))
        try:
            [result] = await self._turns.amap(self._ameasure, [item.case()])
        except Exception as error:
            return _marked(item, error)
        return item.measured(result, self._passing_above)

    def evaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> DeltaSePerResult:
        """Measure a response's source nodes. A stream is left unread."""
        return self.evaluate(query, *shown(response), **kwargs)

    async def aevaluate_response(
        self, query: str | None = None, response: RESPONSE_TYPE | None = None, **kwargs: Any
    ) -> DeltaSePerResult:
        """Like ``evaluate_response``, without blocking the event loop."""
        return await self.aevaluate(query, *shown(response), **kwargs)

    def evaluate_query_engine(
        self,
        query_engine: BaseQueryEngine,
        cases: Iterable[tuple[str, Golds]],
        *,
        progress: Progress = False,
    ) -> list[DeltaSePerResult]:
        """Ask a query engine each question, and measure what it retrieved.

        At most ``at_once`` questions are under way at a time, each in a thread. An engine that fails, or
        finds nothing, makes its item invalid.

        Args:
            query_engine: Any query engine whose responses have source nodes.
            cases: Pairs of a question and its gold answer or answers.
            progress: True shows a bar on a terminal; a callable gets (done, total).

        Returns:
            One result for each case, in order.
        """
        lock = threading.Lock()
        todo = [_Asked(*case) for case in cases]
        with reporting(progress, len(todo)) as advance:

            def one(asked: _Asked) -> DeltaSePerResult:
                try:
                    response = read(query_engine.query(asked.question))
                except Exception as error:
                    result = _marked(Item(asked.question, None, None, asked.golds), error)
                else:
                    result = self.evaluate_response(asked.question, response, reference=asked.golds)
                with lock:
                    advance()
                return result

            return Turns(self._at_once).map(one, todo)

    async def aevaluate_query_engine(
        self,
        query_engine: BaseQueryEngine,
        cases: Iterable[tuple[str, Golds]],
        *,
        progress: Progress = False,
    ) -> list[DeltaSePerResult]:
        """Like ``evaluate_query_engine``, without blocking the event loop."""
        todo = [_Asked(*case) for case in cases]
        with reporting(progress, len(todo)) as advance:

            async def one(asked: _Asked) -> DeltaSePerResult:
                try:
                    response = await aread(await query_engine.aquery(asked.question))
                except Exception as error:
                    result = _marked(Item(asked.question, None, None, asked.golds), error)
                else:
                    result = await self.aevaluate_response(asked.question, response, reference=asked.golds)
                advance()
                return result

            return await Turns(self._at_once).amap(one, todo)

    def _measure(self, case: Case) -> SePerResult:
        return self._seper.run(*case, on_event=dispatch)

    async def _ameasure(self, case: Case) -> SePerResult:
        return await self._seper.arun(*case, on_event=dispatch)

    def _get_prompts(self) -> PromptDictType:
        return dict(self._templates)

    def _update_prompts(self, prompts: Mapping[str, BasePromptTemplate | str]) -> None:
        unknown = sorted(prompts.keys() - _FIELDS.keys())
        if unknown:
            raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(_FIELDS)}")
        given = {
            name: PromptTemplate(template) if isinstance(template, str) else template
            for name, template in prompts.items()
        }
        changes: dict[str, Any] = {
            _FIELDS[name]: TemplatePrompt(name, with_passages(template, self._llm))
            for name, template in given.items()
        }
        self._seper = self._seper.with_settings(prompts=replace(self._seper.prompts, **changes))
        self._templates |= given


class _Asked(NamedTuple):
    question: str
    golds: Golds


def _marked(item: Item, error: Exception) -> DeltaSePerResult:
    """Return an invalid result, and say so."""
    result = item.invalid(error)
    logger.warning("seper.invalid: %s", result.invalid_reason)
    data = {"question": result.query or "", "reason": result.invalid_reason or ""}
    dispatch(Event("seper.invalid", data, warning=True))
    return result
