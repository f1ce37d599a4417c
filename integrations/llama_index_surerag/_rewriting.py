"""What DynQR's transform and query engine share: the method, its prompts, settings as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from llama_index.core.base.base_retriever import BaseRetriever
from llama_index.core.base.llms.types import ChatMessage
from llama_index.core.indices.base import BaseIndex
from llama_index.core.llms import LLM
from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.prompts import BasePromptTemplate
from llama_index.core.prompts.mixin import PromptDictType, PromptMixinType
from llama_index.core.schema import QueryBundle, QueryType
from llama_index.core.settings import Settings

from llama_index_surerag._prompting import from_chat_messages
from llama_index_surerag._rewrite_prompts import RewritePromptSet
from llama_index_surerag.events import dispatch
from llama_index_surerag.prompts import template_from_plain
from llama_index_surerag.readers import reader_from_llm
from llama_index_surerag.retrievers import NodeRetriever, retriever_of
from surerag import UncertaintyRewriter, arun, run
from surerag.methods.uncertainty_types import RewriteResult
from surerag.readers import Reader
from surerag.services import Services
from surerag.types import Message

_ANSWER_TOKENS = 256
"""Limit on an answer, for an LLM that has none of its own."""


class Rewriting:
    """What transform and engine share: the method, its prompts in LlamaIndex's form, settings as values."""

    def __init__(self, rewriter: UncertaintyRewriter, prompts: RewritePromptSet) -> None:
        self._prompts = prompts
        self._rewriter = rewriter.with_settings(prompts=prompts.for_core())

    @property
    def rewriter(self) -> UncertaintyRewriter:
        """The method with its settings and services; what a calibration is made with."""
        return self._rewriter

    def _get_prompts(self) -> PromptDictType:
        return dict(self._prompts.templates)

    def _get_prompt_modules(self) -> PromptMixinType:
        return {}

    def _update_prompts(self, prompts: PromptDictType) -> None:
        self._prompts = self._prompts.updated(prompts)
        self._rewriter = self._rewriter.with_settings(prompts=self._prompts.for_core())

    def _services(self, bundle: QueryBundle) -> Services:
        """Return the services, the pipeline's retriever being asked for this very query."""
        services = self._rewriter.services
        if isinstance(services.retriever, NodeRetriever):
            return replace(services, retriever=services.retriever.bound_to(bundle))
        return services

    def _ask(self, bundle: QueryBundle, history: Sequence[Message] = ()) -> RewriteResult:
        program = self._rewriter.program(bundle.query_str, history=history)
        return run(program, self._services(bundle), on_event=dispatch)

    async def _aask(self, bundle: QueryBundle, history: Sequence[Message] = ()) -> RewriteResult:
        program = self._rewriter.program(bundle.query_str, history=history)
        return await arun(program, self._services(bundle), on_event=dispatch)

    def _plain(self) -> dict[str, Any]:
        return {**self._rewriter.to_dict(), "prompts": self._prompts.to_dict()}


def rewriter_of(
    retriever: BaseRetriever | BaseIndex[Any],
    llm: LLM | Reader | None,
    rewriter: LLM | Reader | None,
    postprocessors: Sequence[BaseNodePostprocessor],
    settings: Mapping[str, Any],
) -> UncertaintyRewriter:
    """Return the method over a pipeline's retriever and LLMs."""
    model = Settings.llm if llm is None else llm
    chosen: dict[str, Any] = {"k": None, "max_tokens": _own_limit(model), **settings}
    return UncertaintyRewriter(
        _reader(model),
        NodeRetriever(retriever_of(retriever, chosen["k"]), tuple(postprocessors)),
        None if rewriter is None or rewriter is model else _reader(rewriter),
        **chosen,
    )


def _reader(model: LLM | Reader) -> Reader:
    return reader_from_llm(model) if isinstance(model, LLM) else model


def _own_limit(model: LLM | Reader) -> int:
    if not isinstance(model, LLM):
        return UncertaintyRewriter.max_tokens
    limit = model.metadata.num_output
    return limit if limit is not None and limit > 0 else _ANSWER_TOKENS


def prompts_of(
    llm: LLM | Reader | None, changes: Mapping[str, BasePromptTemplate | str] | None
) -> RewritePromptSet:
    model = Settings.llm if llm is None else llm
    return RewritePromptSet(model if isinstance(model, LLM) else None).updated(changes or {})


def loaded(settings: Mapping[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in settings.items() if name not in ("reader", "rewriter")}
    values["prompts"] = {name: template_from_plain(text) for name, text in values["prompts"].items()}
    values["stop"] = tuple(values["stop"])
    return values


def shown(rewriter: UncertaintyRewriter) -> str:
    return (
        f"theta={rewriter.theta!r}, metric={rewriter.metric!r}, documents={rewriter.documents!r}, "
        f"reader={rewriter.reader.name!r}"
    )


def bundle_of(query: QueryType) -> QueryBundle:
    return QueryBundle(query) if isinstance(query, str) else query


def history_of(messages: Sequence[ChatMessage] | None) -> tuple[Message, ...]:
    return from_chat_messages(list(messages or ()))
