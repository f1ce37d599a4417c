"""How sure an agent's model was of each answer, and what to do where it was not."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.runtime import Runtime
from langgraph.types import interrupt

from langchain_surerag._holding import Hold
from langchain_surerag.agents.asking import (
    NOTED,
    AsyncHandler,
    Handler,
    answer_of,
    awithin,
    note_on,
    with_note,
    within,
)
from langchain_surerag.entropies import VOCABULARY, MessageEntropy, asks_for_entropy, entropy_of
from surerag.errors import CapabilityError, ConfigurationError


@dataclass(frozen=True, slots=True)
class Uncertain:
    """An answer that its model was unsure of.

    Attributes:
        question: The user's last message.
        message: The answer.
        entropy: How unsure.
        threshold: What it exceeds.
    """

    question: str
    message: AIMessage
    entropy: MessageEntropy
    threshold: float


_NAME: Final = "uncertainty"

Reply = str | AIMessage | None
OnUncertain = Callable[[Uncertain], Reply | Awaitable[Reply]]


class UncertaintyMiddleware(AgentMiddleware[Any, Any, Any]):
    """Tells with each answer of the agent's model how sure it was, and acts where it was not.

    Every answer in words has its entropy in ``response_metadata["surerag"]["uncertainty"]``: ``entropy``
    (mean, in nats), ``lower``, ``upper``, ``first``, ``largest``, ``n_tokens``, ``threshold`` and
    ``uncertain``. Tool calls are left alone.

    Args:
        threshold: An answer is uncertain if its mean entropy exceeds this, in nats.
        larger_model: Asked in the first one's place where that is uncertain, before anybody sees the answer:
            a chat model, or a name for ``init_chat_model``. Its own answer is measured if it can be.
        on_uncertain: Called with an answer that stays uncertain; it may return a text or a message in its
            place. It runs in a step of its own, where LangGraph's ``interrupt`` may wait for a person:
            :func:`ask_a_person` does that. In asynchronous graphs it may be a coroutine function.
        n_tokens: Look at so many tokens from the beginning, or at all.
        vocabulary_size: Tokens that the model can emit.

    Raises:
        ConfigurationError: If a setting is out of range.
        CapabilityError: At the first answer, if the agent's model gives no log-probabilities.
    """

    def __init__(
        self,
        *,
        threshold: float = 1.0,
        larger_model: BaseChatModel | str | None = None,
        on_uncertain: OnUncertain | None = None,
        n_tokens: int | None = None,
        vocabulary_size: int = VOCABULARY,
    ) -> None:
        super().__init__()
        if not threshold >= 0:
            raise ConfigurationError(f"threshold must be at least 0 nats, got {threshold!r}")
        if n_tokens is not None and n_tokens < 1:
            raise ConfigurationError(f"n_tokens must be at least 1, got {n_tokens!r}")
        self.threshold = threshold
        self.larger_model = init_chat_model(larger_model) if isinstance(larger_model, str) else larger_model
        self.on_uncertain = on_uncertain
        self._n_tokens = n_tokens
        self._vocabulary_size = vocabulary_size

    def wrap_model_call(self, request: ModelRequest[Any], handler: Handler) -> Any:
        """Measure the answer; where it is uncertain, ask the larger model."""
        measured = self._measured(request)
        if self.larger_model is None:
            return self._noted(request, handler(measured))
        hold = Hold()
        draft = self._noted(request, within("gate", hold, handler, measured))
        if not _is_uncertain(answer_of(draft)):
            hold.keep()
            return draft
        hold.drop()
        larger = self._larger(request)
        return self._noted(larger, within("answer", None, handler, larger), larger=True)

    async def awrap_model_call(self, request: ModelRequest[Any], handler: AsyncHandler) -> Any:
        """Like ``wrap_model_call``, without blocking the event loop."""
        measured = self._measured(request)
        if self.larger_model is None:
            return self._noted(request, await handler(measured))
        hold = Hold()
        draft = self._noted(request, await awithin("gate", hold, handler, measured))
        if not _is_uncertain(answer_of(draft)):
            await hold.akeep()
            return draft
        await hold.adrop()
        larger = self._larger(request)
        return self._noted(larger, await awithin("answer", None, handler, larger), larger=True)

    def after_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Hand an uncertain answer to ``on_uncertain``."""
        found = self._uncertain(state)
        if found is None or self.on_uncertain is None:
            return None
        reply = self.on_uncertain(found)
        if inspect.isawaitable(reply):
            if inspect.iscoroutine(reply):
                reply.close()
            raise ConfigurationError(
                "on_uncertain is a coroutine function, and the agent was called synchronously",
                hint="call it with ainvoke or astream, or give a plain function",
            )
        return _replaced(found.message, reply)

    async def aafter_model(self, state: Any, runtime: Runtime[Any]) -> dict[str, Any] | None:
        """Like ``after_model``, awaiting ``on_uncertain`` if it is to be awaited."""
        found = self._uncertain(state)
        if found is None or self.on_uncertain is None:
            return None
        reply = self.on_uncertain(found)
        return _replaced(found.message, await reply if inspect.isawaitable(reply) else reply)

    def _measured(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        settings = {**request.model_settings, **asks_for_entropy(request.model)}
        return request.override(model_settings=settings)

    def _larger(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        larger = request.override(model=cast("BaseChatModel", self.larger_model))
        return self._measured(larger) if _measures(self.larger_model) else larger

    def _noted(
        self, request: ModelRequest[Any], response: ModelResponse[Any], *, larger: bool = False
    ) -> ModelResponse[Any]:
        message = answer_of(response)
        if message is None or (larger and not _measures(request.model)):
            return response
        found = entropy_of(
            message, n_tokens=self._n_tokens, model=request.model, vocabulary_size=self._vocabulary_size
        )
        note = {
            "entropy": found.mean,
            **{name: value for name, value in asdict(found).items() if name != "mean"},
            "threshold": self.threshold,
            "uncertain": found.mean > self.threshold,
        }
        return with_note(response, message, _NAME, note)

    def _uncertain(self, state: Mapping[str, Any]) -> Uncertain | None:
        messages = state["messages"]
        last = messages[-1] if messages else None
        if not isinstance(last, AIMessage) or not _is_uncertain(last):
            return None
        note = note_on(last, _NAME)
        entropy = MessageEntropy(
            note["entropy"], *(note[name] for name in ("lower", "upper", "first", "largest", "n_tokens"))
        )
        question = next((one for one in reversed(messages) if isinstance(one, HumanMessage)), None)
        return Uncertain("" if question is None else str(question.text), last, entropy, note["threshold"])


def ask_a_person(found: Uncertain) -> Reply:
    """Interrupt the graph and wait for a person: an ``on_uncertain`` for :class:`UncertaintyMiddleware`.

    The interrupt shows ``question``, ``answer``, ``entropy`` and ``threshold``. Resume with
    ``Command(resume=…)``: a text takes the answer's place, and None or True lets it stand. The graph needs a
    checkpointer.
    """
    reply = interrupt(
        {
            "question": found.question,
            "answer": str(found.message.text),
            "entropy": found.entropy.mean,
            "threshold": found.threshold,
        }
    )
    return reply if isinstance(reply, str) else None


def _is_uncertain(message: AIMessage | None) -> bool:
    return bool(note_on(message, _NAME).get("uncertain"))


def _measures(model: Any) -> bool:
    try:
        return bool(asks_for_entropy(model))
    except CapabilityError:
        return False


def _replaced(message: AIMessage, reply: Reply) -> dict[str, Any] | None:
    """Return the update that puts a reply in an answer's place; by its id, the state knows which."""
    if reply is None:
        return None
    found = AIMessage(reply) if isinstance(reply, str) else reply
    metadata = {**message.response_metadata, **found.response_metadata}
    note = {**note_on(message, _NAME), "uncertain": False, "replaced": True}
    noted = {**(metadata.get(NOTED) or {}), _NAME: note}
    changes = {"id": message.id, "response_metadata": {**metadata, NOTED: noted}}
    return {"messages": [found.model_copy(update=changes)]}
