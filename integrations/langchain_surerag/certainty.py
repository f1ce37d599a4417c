"""Measure how sure a model is of its answers in any chain, graph or agent, and withhold unsure answers."""

from __future__ import annotations

import logging
import math
import sys
import warnings
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import asdict, fields, replace
from threading import Thread
from typing import Any, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.callbacks.manager import adispatch_custom_event, dispatch_custom_event
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from langchain_core.runnables.utils import AddableDict
from langchain_core.tracers import LangChainTracer

from langchain_surerag.base import Part
from langchain_surerag.chat import ChatReader
from langchain_surerag.families import OPENAI, Leaf, inner_runnables
from langchain_surerag.inputs import check_has_question, role_of
from langchain_surerag.models import reader_of
from langchain_surerag.runs import has_run, run_program, without_streaming
from langchain_surerag.watching import (
    METADATA_KEY,
    NO_LOGPROBS_REQUESTED,
    RunTree,
    Watcher,
    scope_before_calls,
)
from surerag import AbstentionPolicy, AreYouSure, SampleAgreement, Services
from surerag.calibration import CalibrationWarning, SelectedAnswer, check_policy, order_hint
from surerag.certainty import Certainty, Measure, check_measure
from surerag.drivers import maybe_await, run_blocking
from surerag.effects import counted
from surerag.errors import (
    CapabilityError,
    ConfigurationError,
    InputError,
    check_at_least,
    check_kind,
    kind_of,
)
from surerag.messages import Message, Usage
from surerag.readers import AWAITING, BLOCKING, Blocking, Reader
from surerag.text import ABSTENTION, check_abstention

logger = logging.getLogger("surerag")

SecondOpinion = AreYouSure | SampleAgreement
Abstention = str | Callable[[Any], str]
EVENT = "surerag.certainty"
"""Name of the custom event with the certainty of an answer."""
WITHOUT_LOGPROBS = (
    "pass second_opinion=surerag.AreYouSure(llm), which calls the model again, to CertaintyChain or "
    "SelectiveAnswer; or use a local model: langchain_surerag.ChatReader(reader)"
)
HOW_TO_GET_CERTAINTY = (
    "build the chain with langchain_surerag.with_certainty(llm) in place of llm; for a model that gives no "
    "log-probabilities, pass second_opinion=surerag.AreYouSure(llm) to CertaintyChain or SelectiveAnswer"
)
_KEPT_RUNS = 1000
_END = object()


def with_certainty(
    llm: Any,
    policy: AbstentionPolicy | None = None,
    *,
    measure: Measure | None = None,
    top_logprobs: int = 5,
) -> Any:
    """Return a copy of ``llm`` whose messages tell how sure the model is, from log-probabilities.

    ``llm = with_certainty(ChatOpenAI(model="gpt-4o-mini"))`` is all that a chain, graph or agent needs.
    There is no extra call and no extra token. A ``ChatOpenAI`` stays a ``ChatOpenAI``, so tools, structured
    output, streams, retries and fallbacks work as before. ``message.response_metadata["certainty"]`` has the
    values of :meth:`surerag.Certainty.to_dict`; in a stream, the last chunk has these values. If a chain ends
    in a parser, and so does not return a message, use :class:`CertaintyChain` or :class:`CertaintyHandler`.

    Args:
        llm: A chat model or an LLM; bindings, retries and fallbacks around the model are kept. If there are
            several models, answers of a model that returns no log-probabilities have no certainty.
        policy: A result of :func:`surerag.calibrate_abstention`; it estimates the probability that an answer
            is right.
        measure: The measure of ``uncertainty`` (see :func:`surerag.certainty_of`); None uses the measure of
            ``policy``, if there is a policy.
        top_logprobs: Number of likeliest tokens to request for each token; OpenAI returns up to 20.

    Raises:
        CapabilityError: If LangChain's class for the model returns no log-probabilities.
        ConfigurationError: If ``llm`` contains no model, or a setting is out of bounds.

    Example:
        >>> from langchain_openai import ChatOpenAI
        >>> llm = with_certainty(ChatOpenAI(model="gpt-4o-mini", api_key="…"))
        >>> type(llm).__name__, llm.logprobs, llm.top_logprobs
        ('ChatOpenAI', True, 5)
    """
    check_kind(int, "a whole number", top_logprobs=top_logprobs)
    check_at_least(1, top_logprobs=top_logprobs)
    return _listing(llm, top_logprobs, CertaintyHandler(policy, measure=measure))


def _listing(model: Any, top_logprobs: int, handler: CertaintyHandler) -> Any:
    match model:
        case RunnableBindingBase():
            return model.model_copy(update={"bound": _listing(model.bound, top_logprobs, handler)})
        case RunnableWithFallbacks():
            first, *others = _listing_each(model.runnables, top_logprobs, handler)
            return model.model_copy(update={"runnable": first, "fallbacks": others})
        case DynamicRunnable():
            changed: dict[str, Any] = {"default": _listing(model.default, top_logprobs, handler)}
            if alternatives := getattr(model, "alternatives", None):
                names = [name for name, one in alternatives.items() if isinstance(one, Runnable)]
                listing = _listing_each((alternatives[name] for name in names), top_logprobs, handler)
                changed["alternatives"] = {**alternatives, **dict(zip(names, listing, strict=True))}
            return model.model_copy(update=changed)
        case Runnable() if callable(getattr(model, "lc_id", None)) and not isinstance(
            model, RunnableSequence
        ):
            return _listing_leaf(model, top_logprobs, handler)
    raise ConfigurationError(
        f"expected a chat model or an LLM of LangChain, got {kind_of(model)}", hint=_model_hint(model)
    )


def _model_hint(model: Any) -> str:
    if isinstance(model, Reader):
        return "make a chat model of the reader: with_certainty(ChatReader(reader))"
    if any(kind.__module__.startswith("llama_index") for kind in type(model).__mro__):
        return "call llama_index_surerag.with_certainty for an LLM of LlamaIndex"
    return order_hint("model", model) or "pass the model itself, before it becomes part of a chain"


def _listing_each(models: Iterator[Any], top_logprobs: int, handler: CertaintyHandler) -> list[Any]:
    listing: list[Any] = []
    failures: list[CapabilityError] = []
    for model in models:
        try:
            listing.append(_listing(model, top_logprobs, handler))
        except CapabilityError as error:
            listing.append(model)
            failures.append(error)
    if len(failures) == len(listing):
        raise failures[0]
    return listing


def _listing_leaf(model: Any, top_logprobs: int, handler: CertaintyHandler) -> Any:
    family, keywords = Leaf(model, {}).family, {}
    if not isinstance(model, ChatReader):
        if family.logprobs is None:
            is_openai = family.advice == OPENAI.advice
            responses = "build the model with use_responses_api=False; or " if is_openai else ""
            raise CapabilityError(
                f"{type(model).__name__} returns no log-probabilities", hint=responses + WITHOUT_LOGPROBS
            )
        settings = {"logprobs": True, "top_logprobs": min(top_logprobs, family.most_top)}
        keywords = {**family.keywords(settings, model)}
        keywords.pop("options", None)  # would replace all options of the ChatOllama
    if not {"callbacks", *keywords} <= getattr(type(model), "model_fields", {}).keys():
        return model.bind(**keywords).with_config(callbacks=[handler])
    copied = model.model_copy(update={**keywords, "callbacks": _with_handler(model.callbacks, handler)})
    copied.__dict__.pop("_serialized", None)  # this cached value has the settings of the original
    return copied


def _with_handler(callbacks: Any, handler: CertaintyHandler) -> Any:
    if isinstance(callbacks, BaseCallbackManager):
        more = callbacks.copy()
        more.add_handler(handler)
        return more
    return [*(callbacks or ()), handler]


class CertaintyHandler(Watcher):
    """A callback that measures how sure a model is of each answer, in any chain, graph or agent.

    The model must return log-probabilities (see :func:`with_certainty`). There is no extra call and no extra
    token. The message of each answer gets the certainty in ``response_metadata["certainty"]``; in a stream,
    the last chunk gets it. The certainty of a run is the certainty of the answer in the run's output: the
    text under ``answer``, the last message, or else the answer from which the output was parsed. Tool calls
    and failed attempts are not measured. Concurrent runs are measured separately. If OpenTelemetry is used,
    the span that is open when the run ends gets the attributes ``surerag.certainty.uncertainty``,
    ``.probability`` and ``.measure``.

    Args:
        policy: A result of :func:`surerag.calibrate_abstention`; it estimates the probability that an answer
            is right.
        measure: The measure of ``uncertainty`` (see :func:`surerag.certainty_of`); None uses the measure of
            ``policy``, if there is a policy.
        on_answer: Function that gets a run's id and certainty when the run ends, for logs and metrics.
        langsmith_client: LangSmith's client, which sends ``uncertainty`` and ``probability`` of each run as
            feedback.

    Example:
        >>> from langchain_core.output_parsers import StrOutputParser
        >>> from langchain_core.prompts import PromptTemplate
        >>> from surerag import FakeReader
        >>> from langchain_surerag import ChatReader
        >>> llm = ChatReader(FakeReader(["Velm"], entropy=0.25))
        >>> chain = PromptTemplate.from_template("Where was {name} born?") | llm | StrOutputParser()
        >>> handler = CertaintyHandler()
        >>> chain.invoke("Ada", {"callbacks": [handler]}), handler.certainty.uncertainty
        ('Velm', 0.25)
    """

    def __init__(
        self,
        policy: AbstentionPolicy | None = None,
        *,
        measure: Measure | None = None,
        on_answer: Callable[[UUID, Certainty], object] | None = None,
        langsmith_client: Any = None,
    ) -> None:
        super().__init__(measure)
        check_policy(policy)
        _check_client(langsmith_client)
        if on_answer is not None:
            check_kind(Callable, "a function of a run's id and its certainty", on_answer=on_answer)  # type: ignore[arg-type]  # isinstance takes it
        self._policy = policy
        self._on_answer = on_answer
        self._client = langsmith_client
        self._certainties: OrderedDict[UUID, Certainty] = OrderedDict()

    @property
    def certainty(self) -> Certainty | None:
        """Certainty of the run that ended last, or None; for parallel runs use :meth:`of`."""
        return next(reversed(self._certainties.values()), None)

    def of(self, run_id: UUID) -> Certainty | None:
        """Return the certainty of a run by its ``config["run_id"]``; only the last 1,000 runs are stored."""
        return self._certainties.get(run_id)

    def assessed(self, certainty: Certainty) -> Certainty:
        """Return ``certainty`` with the policy's estimate of the probability that the answer is right."""
        if self._policy is None:
            return certainty
        try:
            return self._policy.assess(certainty)
        except ConfigurationError as error:
            warnings.warn(f"the certainty has no probability: {error}", stacklevel=2)
            return replace(certainty, reason="the policy was calibrated for another reader or other settings")

    def ended(self, tree: RunTree, output: Any) -> None:
        """Store and report the certainty of a run that ended."""
        certainty = tree.certainty(output)
        if certainty.reason == NO_LOGPROBS_REQUESTED:
            warnings.warn(f"{NO_LOGPROBS_REQUESTED}: {HOW_TO_GET_CERTAINTY}", stacklevel=2)
        self._certainties[tree.root] = certainty
        while len(self._certainties) > _KEPT_RUNS:
            self._certainties.popitem(last=False)
        set_span_attributes(certainty)
        if self._client is not None:
            _send_feedback(self._client, tree.root, tree.root if tree.is_outermost else None, certainty)
        if self._on_answer is not None:
            self._on_answer(tree.root, certainty)


class _CallWatcher(Watcher):
    def __init__(self, measure: Measure | None) -> None:
        super().__init__(measure)
        self.tree = RunTree(cast("UUID", None))
        self.output: Any = None

    def _tree_of(self, run_id: UUID, parent: UUID | None) -> RunTree:
        return self.tree

    def _leave(self, run_id: UUID, output: Any = None, *, failed: bool = False) -> None:
        if self.tree.parents.get(run_id) not in self.tree.parents:
            self.output = output
        super()._leave(run_id, output, failed=failed)


class CertaintyChain(Runnable[Any, dict[str, Any]]):
    """Adds to the output of any chain, graph or agent how sure the model is of the answer.

    The output is the chain's own mapping, or ``{"answer": …}`` if the chain returns a text or message. The
    added key ``certainty`` has the values of :meth:`surerag.Certainty.to_dict`. If the models report how many
    tokens they used, the key ``usage`` has the fields of :class:`surerag.Usage`, for all calls. A stream
    yields the chain's chunks (texts and messages as ``{"answer": …}``), and then ``{"certainty": …}``, with
    ``usage``. The custom event
    ``surerag.certainty`` has the same values. LangSmith gets uncertainty and probability as feedback if it
    traces the run, or if ``langsmith_client`` is passed.

    Args:
        chain: A chain, graph or agent. Its model must be made by :func:`with_certainty`, or be surerag's own,
            unless ``second_opinion`` is passed.
        policy: A result of :func:`surerag.calibrate_abstention`; it estimates the probability that an answer
            is right.
        measure: The measure of ``uncertainty`` (see :func:`surerag.certainty_of`); None uses the measure of
            ``policy``, if there is a policy.
        second_opinion: For a model without log-probabilities: :class:`surerag.AreYouSure` or
            :class:`surerag.SampleAgreement`, which call the model again (their docstrings state the cost).
        langsmith_client: LangSmith's client, to send the feedback if LangSmith does not trace the run.

    Example:
        >>> from langchain_core.output_parsers import StrOutputParser
        >>> from surerag import FakeReader
        >>> from langchain_surerag import ChatReader
        >>> chain = CertaintyChain(ChatReader(FakeReader(["Velm"], entropy=0.25)) | StrOutputParser())
        >>> output = chain.invoke("Where was Ada born?")
        >>> output["answer"], output["certainty"]["uncertainty"], output["certainty"]["measure"]
        ('Velm', 0.25, 'greatest_3_mean_entropy')
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        policy: AbstentionPolicy | None = None,
        *,
        measure: Measure | None = None,
        second_opinion: SecondOpinion | None = None,
        langsmith_client: Any = None,
    ) -> None:
        check_kind(Runnable, "a chain, graph or agent", hint=order_hint("chain", chain), chain=chain)
        check_policy(policy)
        _check_client(langsmith_client)
        check_measure(measure)
        if second_opinion is not None:
            check_kind(
                SecondOpinion,
                "surerag.AreYouSure(llm) or surerag.SampleAgreement(llm)",
                second_opinion=second_opinion,
            )
        self._chain = chain
        self._policy = policy
        self._measure = measure
        self._second_opinion = second_opinion
        self._opinion_services = (
            None if second_opinion is None else Services(reader=reader_of(second_opinion.model))
        )
        self._client = langsmith_client

    # LangChain's protocol.

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return the output for one input, with its certainty."""
        return self._call_with_config(
            lambda value: run_blocking(self._run(value, BLOCKING, kwargs)), input, config
        )

    async def ainvoke(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Like :meth:`invoke`, without blocking the event loop."""
        return await self._acall_with_config(lambda value: self._run(value, AWAITING, kwargs), input, config)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Yield the chain's chunks, and then the certainty."""

        def pieces(inputs: Iterator[Any]) -> Iterator[Any]:
            stream = self._pieces(next(inputs), BLOCKING, kwargs)
            try:
                while (piece := run_blocking(anext(stream, _END))) is not _END:
                    yield piece
            finally:
                run_blocking(stream.aclose())

        yield from self._transform_stream_with_config(iter([input]), pieces, config)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`stream`, without blocking the event loop."""

        async def inputs() -> AsyncIterator[Any]:
            yield input

        async def pieces(inputs: AsyncIterator[Any]) -> AsyncIterator[Any]:
            async with aclosing(self._pieces(await anext(inputs), AWAITING, kwargs)) as stream:
                async for piece in stream:
                    yield piece

        chunks = self._atransform_stream_with_config(inputs(), pieces, config)
        async with aclosing(cast("AsyncGenerator[Any]", chunks)):
            async for chunk in chunks:
                yield chunk

    def get_input_schema(self, config: RunnableConfig | None = None) -> type[Any]:
        """Return the input schema of the wrapped chain."""
        return self._chain.get_input_schema(config)

    @property
    def config_specs(self) -> list[Any]:
        """The configurable fields of the chain."""
        return self._chain.config_specs

    # One call.

    async def _run(self, value: Any, calls: Blocking, keywords: Mapping[str, Any]) -> dict[str, Any]:
        watcher = _CallWatcher(self._measure)
        config = merge_configs(ensure_config(), {"callbacks": [watcher]})
        output = await calls.call(self._chain, "invoke", value, config, **keywords)
        certainty = await self._certainty(watcher.tree, output, calls)
        return {**_with_certainty(_as_mapping(output), certainty), **_usage(watcher.tree, output)}

    async def _pieces(self, value: Any, calls: Blocking, keywords: Mapping[str, Any]) -> AsyncGenerator[Any]:
        watcher, piece = _CallWatcher(self._measure), None
        config = merge_configs(ensure_config(), {"callbacks": [watcher]})
        async with aclosing(calls.stream(self._chain, "stream", value, config, **keywords)) as stream:
            async for piece in stream:
                piece = AddableDict(_as_mapping(piece)) if isinstance(piece, str | BaseMessage) else piece
                yield piece
        certainty = await self._certainty(watcher.tree, watcher.output, calls)
        last = {METADATA_KEY: certainty.to_dict(), **_usage(watcher.tree, watcher.output)}
        yield AddableDict(last) if isinstance(piece, AddableDict) else last  # a user may add up all chunks

    async def _certainty(self, tree: RunTree, output: Any, calls: Blocking) -> Certainty:
        certainty = tree.certainty(output)
        if self._second_opinion is not None:
            certainty = await self._opinion_on(self._second_opinion, tree, output, calls)
        if certainty.reason == NO_LOGPROBS_REQUESTED:
            self._complain(certainty)
        if self._policy is not None:
            certainty = self._policy.assess(certainty)
        await self._report(certainty, calls)
        return certainty

    async def _opinion_on(
        self, second_opinion: SecondOpinion, tree: RunTree, output: Any, calls: Blocking
    ) -> Certainty:
        answer = tree.shown_answer(output)
        if answer is None:
            return tree.certainty(output)
        turns = tuple(Message(role_of(one.type), str(one.text)) for one in answer.prompt if one.text)
        program = counted(second_opinion.program(turns, answer.text))
        services = cast("Services", self._opinion_services)
        opinion, tree.usage_after = await run_program(program, services, ensure_config(), calls)
        return replace(opinion, scope=answer.certainty.scope)

    def _complain(self, certainty: Certainty) -> None:
        warnings.warn(f"{certainty.reason}: {HOW_TO_GET_CERTAINTY}", stacklevel=2)

    async def _report(self, certainty: Certainty, calls: Blocking) -> None:
        config, dispatch = ensure_config(), adispatch_custom_event if calls.prefix else dispatch_custom_event
        set_span_attributes(certainty)
        manager: Any = config.get("callbacks")
        if not has_run(config) or not (manager.handlers or self._client):
            return
        await maybe_await(dispatch(EVENT, certainty.to_dict(), config=config))
        tracer = next((one for one in manager.handlers if isinstance(one, LangChainTracer)), None)
        client = self._client or (None if tracer is None else tracer.client)
        if client is not None:
            run = None if tracer is None else tracer.run_map.get(str(manager.parent_run_id))
            _send_feedback(client, manager.parent_run_id, None if run is None else run.trace_id, certainty)


def _as_mapping(output: Any) -> dict[str, Any]:
    match output:
        case Mapping():
            if "answer" not in output and (message := _last_answer(output.get("messages"))) is not None:
                return {**output, "answer": str(message.text)}
            return dict(output)
        case BaseMessage():
            return {"answer": str(output.text), "message": output}
    return {"answer": output}


def _with_certainty(output: dict[str, Any], certainty: Certainty) -> dict[str, Any]:
    values = certainty.to_dict()
    message = output.get("message") or _last_answer(output.get("messages"))
    if not isinstance(message, AIMessage) or METADATA_KEY not in message.response_metadata:
        return {**output, METADATA_KEY: values}
    metadata = {**message.response_metadata, METADATA_KEY: values}
    noted = message.model_copy(update={"response_metadata": metadata})
    place = {"message": noted} if output.get("message") else {"messages": [*output["messages"][:-1], noted]}
    return {**output, **place, METADATA_KEY: values}


def _usage(tree: RunTree, output: Any) -> dict[str, Any]:
    reported = output.get("usage") if isinstance(output, Mapping) else None
    spent = tree.usage
    if reported is not None:
        if not isinstance(reported, Mapping) or set(reported) != {one.name for one in fields(Usage)}:
            return {}  # a key of the user's chain
        spent = Usage(**reported)  # the calls in the tree are among these
    spent += tree.usage_after
    return {"usage": asdict(spent)} if spent.requests else {}


def _last_answer(messages: Any) -> AIMessage | None:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return last if isinstance(last, AIMessage) else None


# Withholding.


class SelectiveAnswer(CertaintyChain):
    """Runs a chain, graph or agent, and returns its answer only if the model was sure enough of the answer.

    The output is the output of :class:`CertaintyChain`, with two more keys: ``abstained``, and
    ``probability`` (the probability that the answer is right; None if the policy cannot estimate it). If the
    model was not sure enough, ``abstention`` replaces the answer, and each message and text of the output
    that repeats the answer; for a structured answer, ``abstention`` replaces the whole output. An answer
    that may be withheld is never streamed: ``stream`` yields the output in one piece, and handlers that
    stream tokens do not see the chain's runs. Tracers still record the withheld answer, and a graph's
    checkpointer stores it.

    Args:
        chain: A chain, graph or agent whose model returns log-probabilities (:func:`with_certainty`).
        policy: The result of :func:`surerag.calibrate_abstention`. For every answer we check that the model,
            its settings and the template of its prompt are the same as in the calibration. If None, every
            answer is returned with its certainty, for example to collect answers for a calibration.
        abstention: Text in place of a withheld answer, or a function from the input to this text.
        second_opinion: See :class:`CertaintyChain`.
        langsmith_client: See :class:`CertaintyChain`.

    Raises:
        ConfigurationError: If ``abstention`` is empty, the policy was calibrated for another model or other
            settings, or the model was not asked for log-probabilities.
        InputError: If the question is empty, or the output has no answer.

    Example:
        >>> from surerag import AbstentionPolicy, FakeReader
        >>> from langchain_surerag import ChatReader
        >>> policy = AbstentionPolicy(0.5, 0.1, 0.95, 100, 0.6, 0.05, (0.0, 1.0), (0.9, 0.1))
        >>> unsure = ChatReader(FakeReader(["Orun"], entropy=2.0))
        >>> SelectiveAnswer(unsure, policy).invoke("Where was Ada born?")["answer"]
        'I do not know.'
    """

    def __init__(
        self,
        chain: Runnable[Any, Any],
        policy: AbstentionPolicy | None,
        *,
        abstention: Abstention = ABSTENTION,
        second_opinion: SecondOpinion | None = None,
        langsmith_client: Any = None,
    ) -> None:
        if not callable(abstention):
            check_kind(str, "a text or a function", abstention=abstention)
            check_abstention(abstention)
        super().__init__(chain, policy, second_opinion=second_opinion, langsmith_client=langsmith_client)
        if policy is not None and policy.threshold == -math.inf:
            warnings.warn(f"no answer will be shown: {policy.guarantee}", CalibrationWarning, stacklevel=2)
        self._abstention = abstention
        self._check_parts()
        if policy is not None:
            chain_scope = scope_before_calls(chain._chain if isinstance(chain, CertaintyChain) else chain)
            policy.check({part: chain_scope.get(part, mine) for part, mine in policy.scope.items()})

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:
        """Yield the output in one piece, because no part of an unsure answer may be shown."""
        yield self.invoke(input, config, **kwargs)

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        """Like :meth:`stream`, without blocking the event loop."""
        yield await self.ainvoke(input, config, **kwargs)

    def _check_parts(self) -> None:
        if self._policy is not None:
            for part in _parts_in(self._chain):
                self._policy.check(part.core)

    def _complain(self, certainty: Certainty) -> None:
        raise ConfigurationError(certainty.reason, hint=HOW_TO_GET_CERTAINTY)

    async def _run(self, value: Any, calls: Blocking, keywords: Mapping[str, Any]) -> dict[str, Any]:
        check_has_question(value)
        self._check_parts()
        watcher = _CallWatcher(self._measure)
        config = merge_configs(without_streaming(ensure_config()), {"callbacks": [watcher]})
        output = await calls.call(self._chain, "invoke", value, config, **keywords)
        certainty = await self._certainty(watcher.tree, output, calls)
        if certainty.uncertainty is None and self._policy is not None:
            logger.warning("certainty.unknown: an answer is withheld: %s", certainty.reason)
        shaped, recorded = _as_mapping(output), watcher.tree.shown_answer(output)
        answer = shaped.get("answer")
        text = answer if isinstance(answer, str) else None if recorded is None else recorded.text
        if text is None:
            raise InputError(
                f"expected an answer as text, found {kind_of(answer)}, and no model answered",
                hint='end the chain with a model, or return the text of the answer under the key "answer"',
            )
        abstention = self._abstention(value) if callable(self._abstention) else self._abstention
        selected = SelectedAnswer(text, abstained=False, probability=None)
        if self._policy is not None:
            selected = self._policy.select(text, certainty, abstention)
        if selected.abstained:
            withheld = {text.strip(), text.strip() if recorded is None else recorded.text.strip()}
            is_text = isinstance(answer, str)
            shaped = _without(shaped, withheld, selected.text) if is_text else {"answer": selected.text}
        outcome = {"abstained": selected.abstained, "probability": selected.probability}
        return {**_with_certainty(shaped, certainty), **outcome, **_usage(watcher.tree, output)}


def _without(output: dict[str, Any], withheld: AbstractSet[str], abstention: str) -> dict[str, Any]:
    def replaced(value: Any) -> Any:
        match value:
            case str():
                return abstention if value.strip() in withheld else value
            case AIMessage() if str(value.text).strip() in withheld and not value.tool_calls:
                metadata = value.response_metadata
                certainty_entry = {METADATA_KEY: metadata[METADATA_KEY]} if METADATA_KEY in metadata else {}
                return AIMessage(abstention, id=value.id, name=value.name, response_metadata=certainty_entry)
            case Mapping():
                return {name: replaced(one) for name, one in value.items()}
            case list() | tuple():
                return type(value)(map(replaced, value))
        return value

    return {**replaced(output), "answer": abstention}


def _parts_in(chain: object) -> Iterator[Part]:
    if isinstance(chain, Part):
        yield chain
    inner = chain.steps if isinstance(chain, RunnableSequence) else inner_runnables(chain)
    for one in inner:
        yield from _parts_in(one)


def _check_client(client: object) -> None:
    if client is not None and not hasattr(client, "create_feedback"):
        raise ConfigurationError(
            f"expected a client of LangSmith, got {type(client).__name__}", hint="pass langsmith.Client()"
        )


# OpenTelemetry and LangSmith.


def _numbers(certainty: Certainty) -> dict[str, float]:
    numbers = {"uncertainty": certainty.uncertainty, "probability": certainty.probability}
    return {name: value for name, value in numbers.items() if value is not None}


def set_span_attributes(certainty: Certainty) -> None:
    """Add a certainty to the open span of OpenTelemetry, if this process uses OpenTelemetry."""
    telemetry: Any = sys.modules.get("opentelemetry.trace")
    if telemetry is None:
        return
    span = telemetry.get_current_span()
    for name, value in _numbers(certainty).items():
        span.set_attribute(f"surerag.certainty.{name}", value)
    span.set_attribute("surerag.certainty.measure", certainty.measure)


def _send_feedback(client: Any, run_id: UUID | None, trace_id: UUID | None, certainty: Certainty) -> None:

    def send() -> None:
        for name, value in _numbers(certainty).items():
            try:
                client.create_feedback(
                    run_id, name, score=value, trace_id=trace_id, comment=certainty.measure
                )
            except Exception as error:
                logger.warning("certainty.feedback_failed: %s", error)

    if trace_id is None:  # without a trace id, LangSmith's client blocks until the service responds
        Thread(target=send, daemon=True).start()
    else:
        send()
