"""How one kind of LangChain model is asked, and how its answers are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

from langchain_core.globals import get_llm_cache
from langchain_core.language_models import BaseLanguageModel
from langchain_core.outputs import ChatGeneration, Generation

from langchain_surerag._connections import OpenedStreams
from langchain_surerag._overheard import Overheard
from langchain_surerag.dialects.settings import ALIASES, SETTINGS, Asked, Settled, held_in, settle
from surerag.errors import LogprobsError, ServiceError, SureragError, ThinkingBudgetError
from surerag.messages import TraceKind, Usage
from surerag.readers.hosted.limits import Limits
from surerag.readers.hosted.parse import Wanted, token_count
from surerag.readers.refusals import Understood
from surerag.readers.thinking import THINKING_TOKENS

LanguageModel = BaseLanguageModel[Any]
Scoring = Literal["echo", "probe"]
"""How it is settled that given text can be scored: the user knows, or the server is tried."""
Thinking = Literal["none", "off", "apart"]

OPENAI_TOP_LOGPROBS = 20
"""The most alternatives that OpenAI's chat API lists at each token."""

DO_WITHOUT = (
    'or do without: LazyRetrievalChain(…, gate="disagreement"), UncertaintyRewriter(…, '
    'metric="disagreement"), DeltaSePerEvaluator(…, weights="frequency"); reader_from_model(…, '
    "logprobs=False) reads text alone"
)
"""What to do where there are no log-probabilities."""

THINKING_HINT = (
    "raise reader_from_model(…, thinking_tokens=…) and what the model was built with, or have it answer at "
    'once: ChatOpenAI(…, reasoning_effort="none"), ChatOpenAI(…, extra_body={"chat_template_kwargs": '
    '{"enable_thinking": False}}), ChatOllama(…, reasoning=False), '
    "ChatGoogleGenerativeAI(…, thinking_budget=0)"
)
"""What to do where a model thinks for longer than it may."""

_ENDS = {
    "max_tokens": "length",
    "MAX_TOKENS": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "SAFETY": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "BLOCKLIST": "content_filter",
    "RECITATION": "content_filter",
    "refusal": "content_filter",
}
"""Reasons to end an answer, as OpenAI's API calls them; all others are as good as ``"stop"``."""


@dataclass(frozen=True)
class DialectOptions:
    """What the user says about a model; see :func:`~langchain_surerag.reader_from_model`."""

    logprobs: bool | None = None
    top_logprobs: int | None = None
    vocabulary_size: int = 300_000
    scoring: Scoring | None = None
    thinking_tokens: int = THINKING_TOKENS
    thinking: bool = False
    limits: Limits = Limits()  # noqa: RUF009  # immutable


class Prepared(NamedTuple):
    """A model, the keywords to call it with, and whoever watches its connections and what comes over them."""

    model: LanguageModel
    arguments: dict[str, Any]
    opened: OpenedStreams
    overheard: Overheard | None = None


@dataclass(frozen=True, eq=False)
class Dialect:
    """How one model is asked and read: the base of all, and of your own.

    This one asks with OpenAI's keywords and reads OpenAI's metadata. For a class that has others, override
    :meth:`keywords` and :meth:`logprobs_of`, and hand it to :func:`~langchain_surerag.register_dialect`.

    Attributes:
        model: The user's model.
        options: What the user said about it.
        bound: Keywords that the user bound to it.
        understood: What it was found to refuse.
        thinks: Whether it was seen to think before it answered.
        opened: Whether its prompts open the thoughts, so that only their end is marked.
        logprobs: Whether it gives log-probabilities; set by class.
        scores: Whether it can score given text; set by class.
        serial: Whether it answers one request at a time, and no stream of it may be left open: a model in
            this process that is no server; set by class.
        takes: Settings that its class knows, by OpenAI's names; no others are sent. Set by class.
        anyway: What its provider does where nothing is said; set by class.
        aliases: Names by which its provider's messages call a setting, and OpenAI's; set by class.
        most_top_logprobs: Alternatives a token that are asked for if the user names no number; set by class.
        least_tokens: The smallest length that its provider takes; answers are cut here. Set by class.
        fix: What to do where it gives no log-probabilities; set by class.

    Example:
        >>> from langchain_core.language_models import FakeListChatModel
        >>> from surerag.messages import SamplingParams
        >>> class Terse(Dialect):
        ...     def keywords(self, settings):
        ...         return {"budget": settings["max_tokens"]}
        >>> dialect = Terse(FakeListChatModel(responses=["Velm"]), DialectOptions())
        >>> dialect.prepared(Asked(SamplingParams(max_tokens=9))).arguments
        {'budget': 9}
    """

    model: LanguageModel
    options: DialectOptions
    bound: Mapping[str, Any] = field(default_factory=dict)
    understood: Understood = field(default_factory=Understood)
    thinks: bool = False
    opened: bool = False

    logprobs: ClassVar[bool] = True
    scores: ClassVar[bool] = False
    serial: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = SETTINGS - {"top_k"}
    anyway: ClassVar[Mapping[str, Any]] = {"temperature": 1.0, "top_p": 1.0}
    aliases: ClassVar[Mapping[str, str]] = {}
    most_top_logprobs: ClassVar[int] = OPENAI_TOP_LOGPROBS
    least_tokens: ClassVar[int] = 1
    fix: ClassVar[str] = f"use a model that returns them, or a local model; {DO_WITHOUT}"

    def bound_with(self, keywords: Mapping[str, Any]) -> Dialect:
        """Return the same with further keywords bound; later ones win."""
        return replace(self, bound={**self.bound, **keywords}) if keywords else self

    # What it can do.

    @property
    def traces(self) -> bool:
        """Whether its answers are read for log-probabilities."""
        return self.logprobs and self.options.logprobs is not False

    @property
    def top_logprobs(self) -> int:
        """Alternatives a token: what the user says, bound or built it with, else the most there are."""
        said = self.options.top_logprobs
        number = self.held().get("top_logprobs", self.most_top_logprobs) if said is None else said
        return min(number, self.understood.most.get("top_logprobs", number))

    @property
    def thinking(self) -> Thinking:
        """What is known of its thinking."""
        return "apart" if self.thinks else "none"

    @property
    def budget(self) -> int:
        """Tokens to allow for thinking, besides those of the answer: none before it is known to think."""
        return self.options.thinking_tokens if self.thinks else 0

    # How it is asked.

    def keywords(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return settings as keywords of the model's ``invoke``.

        Args:
            settings: By OpenAI's names: ``max_tokens`` always, the others where they are needed
                (``temperature``, ``top_p``, ``n``, ``seed``, ``stop``, ``logprobs``, ``top_logprobs``).
        """
        return dict(settings)

    def held(self) -> dict[str, Any]:
        """Return what the user built into the model or bound to it, by OpenAI's names."""
        model = self.model
        built = {name: getattr(model, name, None) for name in model.model_fields_set}
        nested = [found.get(name) for found in (built, self.bound) for name in ("model_kwargs", "extra_body")]
        return held_in(built, *(found for found in nested if isinstance(found, Mapping)), self.bound)

    def called(self, name: str) -> str:
        """Return what the provider calls a setting, where it is neither OpenAI's name nor the class's."""
        return name

    def settled(self, asked: Asked) -> Settled:
        """Decide what to ask with: as little as the method needs, and nothing that the model refuses."""
        held = self.held()
        found = self._wished(asked, held)
        refused = frozenset(self.understood.dropped & held.keys())
        return found._replace(values=self.understood.render(found.values), unset=found.unset | refused)

    def attempted(self, asked: Asked) -> dict[str, Any]:
        """Return all settings that a refusal may be about: the method's, and what the user set."""
        held = self.held()
        users = {self.called(name): value for name, value in held.items()}
        return {**users, **self._wished(asked, held).values}

    def _wished(self, asked: Asked, held: Mapping[str, Any]) -> Settled:
        found = settle(
            asked,
            held,
            self._happening_anyway(),
            traced=self.traces and (asked.echo or asked.sampling.trace != "none"),
            top_logprobs=self.top_logprobs,
            thinking=self.budget,
        )
        found.values["max_tokens"] = max(found.values["max_tokens"], self.least_tokens)
        values = {self.called(name): value for name, value in found.values.items() if name in self.takes}
        told = tuple(item for item in found.overruled if self.called(item.name) in values)
        return found._replace(values=values, overruled=told)

    def prepared(self, asked: Asked) -> Prepared:
        """Return the model, or a copy with other settings, and the keywords that ask for this."""
        settled = self.settled(asked)
        arguments = {**self.kept(settled), **self.keywords(settled.values)}
        return Prepared(
            self.copied(asked, **self.fields_without(settled.unset)),
            arguments,
            OpenedStreams(self.options.limits),
        )

    def kept(self, settled: Settled) -> dict[str, Any]:
        """Return the keywords that the user bound, but for those that are sent or taken out."""
        gone = {ALIASES.get(name, name) for name in (*settled.values, *settled.unset)}
        return {name: value for name, value in self.bound.items() if ALIASES.get(name, name) not in gone}

    def fields_without(self, names: frozenset[str]) -> dict[str, object]:
        """Return changes to the model's fields by which it sends none of these settings itself."""
        fields = self.model.model_fields_set
        return {own: None for own in fields if ALIASES.get(own, own) in names}

    def copied(self, asked: Asked, **changes: object) -> LanguageModel:
        """Copy the model only if something changes: copies of stateful fakes would go separate ways."""
        if asked.sampled and (self.model.cache or (self.model.cache is None and get_llm_cache() is not None)):
            changes["cache"] = False
        return self.model.model_copy(update=changes) if changes else self.model

    # How it is read.

    def logprobs_of(self, answer: Generation) -> Any:
        """Return an answer's log-probabilities, or a chunk's, in the form in which OpenAI's API has them.

        That is ``{"content": [{"token": …, "logprob": …, "top_logprobs": [{"token": …, "logprob": …}, …]},
        …]}``, with as many alternatives as were asked for; None if there are none.
        """
        return self.metadata(answer).get("logprobs")

    def choice(self, answer: Generation) -> dict[str, Any]:
        """Return an answer, or a chunk of one, in the form in which OpenAI's API has it."""
        marks = {"logprobs": self.logprobs_of(answer), "finish_reason": self._finish(answer)}
        if not isinstance(answer, ChatGeneration):
            return {"text": answer.text, **marks}
        message: dict[str, Any] = {"content": str(answer.message.text)}
        if thought := thoughts_of(answer):
            message["reasoning_content"] = thought
        return {"message": message, **marks}

    def metadata(self, answer: Generation) -> dict[str, Any]:
        """Return what came with an answer besides its text, wherever LangChain put it."""
        info = dict(answer.generation_info or {})
        if isinstance(answer, ChatGeneration):
            # LangChain moves a provider's marks into the message's metadata; some put them there themselves.
            info |= answer.message.response_metadata
        return info

    def usage(self, answer: Generation) -> Usage:
        """Return what the model counted for one answer; zeros where it did not."""
        message = answer.message if isinstance(answer, ChatGeneration) else None
        counted = getattr(message, "usage_metadata", None) or {}
        thought = token_count((counted.get("output_token_details") or {}).get("reasoning"))
        written = max(token_count(counted.get("output_tokens")) - thought, 0)
        read = token_count(counted.get("input_tokens"))
        cached = token_count((counted.get("input_token_details") or {}).get("cache_read"))
        return Usage(1, read, written, thought, min(cached, read))

    def wanted(self, trace: TraceKind) -> Wanted:
        """Return what has to be there in an answer."""
        top = self.top_logprobs if trace == "entropy" else 0
        return Wanted(self.traces and trace != "none", top, self.options.vocabulary_size)

    # What to say when it goes wrong.

    def advice(self, name: str) -> str:
        """Return what to do where the model refuses a parameter that cannot be done without."""
        if name in ("logprobs", "top_logprobs"):
            return self.fix
        return f"several answers are drawn, and would be drawn otherwise; use a model that takes {name}"

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Say in errors about log-probabilities and thoughts whose they are, and what to change."""
        try:
            yield
        except ThinkingBudgetError as error:
            raise ThinkingBudgetError(
                f"{type(self.model).__name__}: {_without_hint(error)}", hint=THINKING_HINT
            ) from error
        except LogprobsError as error:
            raise LogprobsError(
                f"{type(self.model).__name__}: {_without_hint(error)}", hint=self.fix
            ) from error

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Give a name to what LangChain stumbles over in a server's answer.

        A provider's own errors pass: retries, fallbacks and callers tell them apart by their classes.
        """
        try:
            yield
        except SureragError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            raise ServiceError(
                f"{type(self.model).__name__} could not make or read its request: "
                f"{type(error).__name__}: {str(error)[:300]}",
                hint="look at what its server returns, and at the keywords bound to it",
            ) from error

    def _happening_anyway(self) -> dict[str, Any]:
        """Return what happens where the user says nothing: by the model's class, else by its provider."""
        names = type(self.model).model_fields.keys() - self.model.model_fields_set
        return {**self.anyway, **held_in({name: getattr(self.model, name, None) for name in names})}

    def _finish(self, answer: Generation) -> Any:
        info = self.metadata(answer)
        reasons = (info.get(name) for name in ("finish_reason", "stop_reason", "done_reason"))
        reason = next((found for found in reasons if found is not None), None)
        return _ENDS.get(reason, reason) if isinstance(reason, str) else reason


def _without_hint(error: SureragError) -> str:
    return str(error).removesuffix(f". {error.hint[:1].upper()}{error.hint[1:]}.")


def thoughts_of(answer: ChatGeneration) -> str:
    """Return what a model thought before an answer, where LangChain keeps it apart from the text."""
    message = answer.message
    found = message.additional_kwargs.get("reasoning_content")
    if isinstance(found, str) and found:
        return found
    blocks = message.content if isinstance(message.content, list) else []
    texts = (
        block.get("thinking") or block.get("reasoning")
        for block in blocks
        if isinstance(block, Mapping) and block.get("type") in ("thinking", "reasoning")
    )
    return "".join(text for text in texts if isinstance(text, str))
