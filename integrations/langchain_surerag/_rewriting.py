"""What LangChain's two faces of query rewriting share: their fields, and the method made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self, cast

from langchain_core.load.serializable import Serializable, SerializedConstructor, SerializedNotImplemented
from langchain_core.messages import BaseMessage, convert_to_messages
from langchain_core.prompt_values import PromptValue
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field

from langchain_surerag._inputs import question_of
from langchain_surerag._serialising import loads_again
from langchain_surerag.prompts import PromptLike, prompt_from
from langchain_surerag.readers import reader_from_model
from langchain_surerag.retrievers import RunnableRetriever
from surerag import UncertaintyRewriter as CoreRewriter
from surerag.calibration import Calibration
from surerag.components.uncertainty_rewriter import PLAIN_SETTINGS
from surerag.errors import InputError, MissingServiceError, PromptError
from surerag.methods.uncertainty_types import Documents, OnFailure, RewritePrompts
from surerag.readers import Reader
from surerag.types import Message, Role

_LIVING = ("llm", "retriever", "rewriter", "metric")
_PROMPTS = ("answer", "closed_book", "rewrite", "rewrite_in_conversation")
_ROLES: Mapping[str, Role] = {"human": "user", "ai": "assistant", "system": "system"}


class _Made(NamedTuple):
    """A reader, and the model it was made of."""

    llm: Any
    reader: Reader


class Asked(NamedTuple):
    """A question, and the conversation before it."""

    question: str
    history: tuple[Message, ...] = ()


class RewriteFields(Serializable):
    """Fields of :class:`UncertaintyRewriter` and :class:`UncertaintyRewriteRetriever`.

    Attributes:
        llm: The reader: a chat model or LLM, with bindings, retries and fallbacks around it if any; or a
            reader of surerag.
        retriever: A retriever, or a runnable from a question to documents; or one of surerag.
        rewriter: A model that rewrites, of the same kinds; the reader itself if left out.
        theta: Rewrite iff the uncertainty exceeds this; 1.2 if left out, for perplexity. A calibration may
            stand in its place.
        metric: ``"perplexity"``, ``"ln_entropy"``, ``"token_entropy"``, ``"lowest_probability"``,
            ``"energy"``, or a function of a generation.
        k: Documents to answer from; None leaves it to the retriever.
        prompts: Prompts in place of ours: texts or PromptTemplates, by name: ``answer`` (slots ``passages``,
            ``question``), ``closed_book`` (``question``), ``rewrite`` and ``rewrite_in_conversation``
            (``query``).
        vocabulary_size: Tokens that the model can emit, where only the likeliest are listed.
        detached: Services that were left out when this was written down.
    """

    llm: Any = None
    retriever: Any = None
    rewriter: Any = None
    theta: float | None = None
    metric: Any = "perplexity"
    documents: Documents = "substitute"
    k: int | None = None
    candidates: int = 1
    verify: bool = True
    samples: int = 10
    max_tokens: int = 64
    stop: tuple[str, ...] = ()
    rewrite_tokens: int = 64
    rewrite_words: int = 64
    temperature: float | None = None
    seed: int = 0
    on_failure: OnFailure = "original"
    prompts: Mapping[str, PromptLike] = Field(default_factory=dict)
    vocabulary_size: int = 300_000
    detached: tuple[str, ...] = ()
    made: Any = Field(default=None, exclude=True, repr=False)
    """Readers made of models: kept, so that reconfigured copies share them and their merging queues."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def __init__(self, llm: Any = None, retriever: Any = None, **settings: Any) -> None:
        calibration = settings.get("theta")
        if isinstance(calibration, Calibration):
            settings["theta"] = calibration.tau
        super().__init__(llm=llm, retriever=retriever, **settings)
        if not self.detached:
            core = self._core()
            if isinstance(calibration, Calibration):
                calibration.check(core.reader.name, core.signal)

    def attach(self, **services: Any) -> Self:
        """Return a copy with services given back that serialisation left out, or with others.

        Args:
            **services: ``llm``, ``retriever``, ``rewriter``, ``metric``.

        Raises:
            MissingServiceError: If one is still missing.
        """
        fields = {name: getattr(self, name) for name in type(self).model_fields}
        left = tuple(name for name in self.detached if name not in services)
        return type(self)(**{**fields, "detached": left, **services})

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Say that ``dumps`` and ``loads`` work."""
        return True

    def to_json(self) -> SerializedConstructor | SerializedNotImplemented:
        """Write this down; services that could not be loaded again are left out and named."""
        left = [
            name
            for name in _LIVING
            if getattr(self, name) is not None and not loads_again(getattr(self, name))
        ]
        detached = tuple(dict.fromkeys([*self.detached, *left]))
        written = self.model_copy(update={**dict.fromkeys(left), "detached": detached})
        return super(RewriteFields, written).to_json()

    def _core(self, **changes: Any) -> CoreRewriter:
        """Return the core's component with the settings as they are now."""
        for name in self.detached:
            raise MissingServiceError(f"this was loaded without its {name}", hint=f"call attach({name}=…)")
        unknown = sorted(self.prompts.keys() - set(_PROMPTS))
        if unknown:
            raise PromptError(f"there is no prompt {unknown}", hint=f"choose among {sorted(_PROMPTS)}")
        ours = RewritePrompts()
        chosen = {name: prompt_from(self.prompts.get(name), getattr(ours, name)) for name in _PROMPTS}
        settings: dict[str, Any] = {name: getattr(self, name) for name in PLAIN_SETTINGS}
        retriever = self.retriever
        return CoreRewriter(
            self._reader("llm"),
            RunnableRetriever(retriever) if isinstance(retriever, Runnable) else retriever,
            None if self.rewriter is None else self._reader("rewriter"),
            metric=self.metric,
            stop=self.stop,
            prompts=RewritePrompts(**chosen),
            **{**settings, **changes},
        )

    def _reader(self, name: str) -> Reader:
        model = getattr(self, name)
        if model is None:
            raise MissingServiceError(f"{type(self).__name__} needs a model", hint=f"pass {name}=…")
        if isinstance(model, Reader):
            return model
        made = cast("dict[str, _Made]", self.made or {})
        if name not in made or made[name].llm is not model:
            # A rewriter's log-probabilities are of no use.
            wanted: dict[str, Any] = {"top_logprobs": 0}
            if name == "llm":
                wanted = {"vocabulary_size": self.vocabulary_size}
            made = {**made, name: _Made(model, reader_from_model(model, **wanted))}
            self.made = made
        return made[name].reader


def asked(given: Any) -> Asked:
    """Read a question and its conversation from a text, a mapping, a prompt or messages.

    A mapping has the question under ``question``, ``input`` or ``query``, and a conversation under
    ``chat_history`` if there is one. Of a prompt or of messages, the last one is the question; system
    messages are instructions to another model, and are left out.

    Raises:
        InputError: If there is no question, or it is no text.
    """
    if isinstance(given, PromptValue):
        given = given.to_messages()
    if isinstance(given, BaseMessage):
        given = [given]
    if isinstance(given, Sequence) and not isinstance(given, str):
        turns = [turn for turn in _turns(given) if turn.role != "system"]
        if not turns or turns[-1].role != "user":
            raise InputError(
                "there is no question in these messages", hint="end them with the user's message"
            )
        return Asked(turns[-1].content, tuple(turns[:-1]))
    question = question_of(given).text
    history = given.get("chat_history") if isinstance(given, Mapping) else None
    if isinstance(history, str):
        history = [("human", history)] if history.strip() else []
    return Asked(question, _turns(history or ()))


def _turns(messages: Sequence[Any]) -> tuple[Message, ...]:
    found = convert_to_messages(list(messages))
    return tuple(Message(_ROLES.get(message.type, "user"), str(message.text)) for message in found)
