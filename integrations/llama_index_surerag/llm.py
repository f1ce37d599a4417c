"""Makes any LlamaIndex LLM a reader, which is surerag's interface to a language model.

The reader calls only the LLM's ``chat`` or ``complete`` method, or the streaming and async variants of this
method. It reads the LLM's settings at each call, so that a later change of ``llm.model`` or of the callbacks
takes effect. The log-probabilities are taken from ``response.raw`` or, if they are not there, from
``response.logprobs``.
"""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from inspect import isasyncgen, isgenerator
from numbers import Real
from types import CellType
from typing import Any, Literal, NamedTuple

from llama_index.core.constants import DEFAULT_NUM_OUTPUTS
from llama_index.core.llms import LLM
from llama_index.core.llms.structured_llm import StructuredLLM
from llama_index.core.settings import Settings

from llama_index_surerag.pickles import Shareable
from llama_index_surerag.prompts import chat_messages, completion_text
from surerag import SamplingParams, Usage, readers
from surerag.errors import ConfigurationError, LogprobsError, check_at_least, check_kind
from surerag.messages import Generation, Prompt
from surerag.readers import (
    Blocking,
    Capabilities,
    ClientReader,
    Keywords,
    Reader,
    ReplyPart,
    Request,
    entries_of,
    items_of,
    next_reply_part,
    secrets_in,
    usage_of,
)
from surerag.services import Entailer

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""Names that LLM classes use for the field with the maximum number of tokens in an answer."""
_FINISH = ("finish_reason", "stop_reason", "done_reason")
_COUNTS = {
    "prompt_tokens": ("prompt_tokens", "prompt_token_count", "input_tokens", "prompt_eval_count"),
    "completion_tokens": ("completion_tokens", "candidates_token_count", "output_tokens", "eval_count"),
    "total_tokens": ("total_tokens", "total_token_count"),
}
"""surerag's names of token counts, each with the names that various services use for the same count."""

Judge = Entailer | Reader | LLM | None
"""Judges whether two answers mean the same: an entailer of surerag, or an LLM or reader with a prompt."""

WAYS_OUT = (
    'pass gate="abstention" (L-RAG) or metric="semantic_entropy" (DynQR), which need no log-probabilities; '
    "or pass a reader that returns log-probabilities: an OpenAIReader for an OpenAI-compatible server, or a "
    "TransformersReader for a model in this process"
)


def _no_settings(_: Any) -> Keywords:
    return {}


class ModelFamily(NamedTuple):
    """What surerag knows of an LLM class and its subclasses: what their calls take and return.

    Attributes:
        module: The module of the class.
        name: The name of the class.
        keywords: Function that translates keyword arguments of OpenAI's API into those of the class.
        logprobs: Whether the class returns log-probabilities of the sampled tokens.
        several: Whether one request can return several answers.
        hint: How to get log-probabilities, if the class returns none.
        own: Function that takes an LLM, and returns the settings with which this LLM overrides the keywords
            of a call.
        takes_limit: Whether a call can set the maximum length of the answer.
    """

    module: str
    name: str
    keywords: Callable[[Keywords], Keywords]
    logprobs: bool = False
    several: bool = False
    hint: str = ""
    own: Callable[[Any], Keywords] = _no_settings
    takes_limit: bool = False


def _gemini_keywords(keywords: Keywords) -> Keywords:
    """Translate keyword arguments of OpenAI's API into a ``generation_config`` of Gemini.

    The maximum answer length is left out, because GoogleGenAI raises an error when an answer reaches it.
    """
    names = {
        "temperature": "temperature",
        "seed": "seed",
        "stop": "stop_sequences",
        "logprobs": "response_logprobs",
        "top_logprobs": "logprobs",
    }
    return {"generation_config": {names[name]: value for name, value in keywords.items() if name in names}}


def _temperature_keywords(keywords: Keywords) -> Keywords:
    return {"temperature": keywords["temperature"]} if keywords.get("temperature", 0) > 0 else {}


def _openai_or_temperature_keywords(keywords: Keywords) -> Keywords:
    return keywords if "logprobs" in keywords else _temperature_keywords(keywords)


def _openai_settings(llm: Any) -> Keywords:
    listed = {"top_logprobs": llm.top_logprobs} if llm.logprobs else {}
    limit = {} if llm.max_tokens is None else {"max_tokens": llm.max_tokens}
    return {**limit, **listed, **llm.additional_kwargs}


FAMILIES = (
    ModelFamily(
        "llama_index.llms.openai",
        "OpenAI",
        dict,
        logprobs=True,
        several=True,
        own=_openai_settings,
        takes_limit=True,
    ),
    ModelFamily("llama_index.llms.google_genai", "GoogleGenAI", _gemini_keywords, logprobs=True),
    ModelFamily(
        "llama_index.llms.ollama",
        "Ollama",
        _no_settings,
        hint='use the Ollama server with OpenAILike(api_base="http://localhost:11434/v1", '
        "is_chat_model=True), because the class Ollama ignores the keyword arguments of a call",
    ),
    ModelFamily(
        "llama_index.llms.huggingface",
        "HuggingFaceLLM",
        _no_settings,
        hint="pass TransformersReader(model, tokenizer) with the model and tokenizer of the LLM",
    ),
)

_PACKAGED = ModelFamily("llama_index", "LLM", _temperature_keywords, takes_limit=True)
_OWN = ModelFamily("", "LLM", _openai_or_temperature_keywords, logprobs=True, takes_limit=True)


def family_of(llm: LLM) -> ModelFamily:
    """Return the model family of an LLM: what surerag knows of its class.

    If the class is not from a LlamaIndex package, surerag assumes that the LLM returns log-probabilities.
    """
    for family in FAMILIES:
        for kind in type(llm).__mro__:
            if kind.__name__ == family.name and kind.__module__.startswith(family.module):
                return family
    own = not any(kind.__module__.startswith("llama_index.llms.") for kind in type(llm).__mro__)
    return _OWN if own and not type(llm).__module__.startswith("llama_index.") else _PACKAGED


def reader_from_llm(
    llm: LLM,
    *,
    logprobs: bool | None = None,
    top_logprobs: int | None = None,
    max_concurrency: int = 8,
    thinking: Literal[True, "unmarked"] | None = None,
) -> LLMReader:
    """Return a reader, surerag's interface to language models, that calls a LlamaIndex LLM.

    Args:
        llm: Any LLM.
        logprobs: Whether the LLM returns log-probabilities. If None, surerag decides by the class of the LLM.
            True is for a class of your own that returns log-probabilities in the field ``raw`` (in OpenAI's
            form) or ``logprobs`` of its responses.
        top_logprobs: Number of alternatives to request for each token; None requests 20, or 5 if the LLM is
            not a chat model.
        max_concurrency: Maximum number of simultaneous requests.
        thinking: True for a model that writes thoughts before its answer: every request then allows
            additional tokens for the thoughts. ``"unmarked"`` for such a model if its text marks the end of
            the thoughts, but not their beginning.

    Warns:
        UserWarning: If the LLM was built with settings that override the settings of a method.

    Raises:
        ConfigurationError: If ``llm`` is not an LLM, or a setting is out of bounds.
    """
    check_kind(Real, "a number", max_concurrency=max_concurrency)
    check_at_least(1, top_logprobs=top_logprobs, max_concurrency=max_concurrency)
    return LLMReader(llm, logprobs, top_logprobs, max_concurrency, thinking)


def reader_of(llm: LLM | Reader | None) -> Reader:
    """Return a reader unchanged, or a new reader that calls ``llm`` (``Settings.llm`` if ``llm`` is None)."""
    if isinstance(llm, Reader):
        return llm
    return LLMReader(Settings.llm if llm is None else llm)


def judge_of(judge: Judge) -> Entailer | Reader | None:
    """Return a judge in a form that surerag can call.

    A LlamaIndex LLM becomes a reader (surerag's interface to a model). A reader, an entailer and None are
    returned unchanged.
    """
    kinds = LLM | Reader | Entailer | None
    check_kind(kinds, "an LLM, or an entailer of surerag", entailer=judge, hint="pass entailer=…")
    return reader_of(judge) if isinstance(judge, LLM) else judge


_OVERRIDING_SETTINGS = (
    "max_tokens",
    "max_completion_tokens",
    "top_logprobs",
    "temperature",
    "seed",
    "n",
    "stop",
)
"""Settings of an LLM that spoil a method's result if they override the method's settings."""


class LLMReader(Shareable, ClientReader):
    """A reader that calls a LlamaIndex LLM; :func:`reader_from_llm` makes such a reader."""

    thinking_hint = "build the LLM without max_tokens, or switch thinking off in the LLM"

    def __init__(
        self,
        llm: LLM,
        logprobs: bool | None = None,
        top: int | None = None,
        max_concurrency: int = 8,
        thinking: Literal[True, "unmarked"] | None = None,
    ) -> None:
        if not isinstance(llm, LLM):
            raise ConfigurationError(
                f"expected a LlamaIndex LLM, got {type(llm).__name__}",
                hint="pass llm=…, set Settings.llm, or pass a reader of surerag",
            )
        if isinstance(llm, StructuredLLM):
            raise ConfigurationError(
                "a StructuredLLM writes JSON, but the methods need answers as plain text",
                hint="pass the inner LLM (.llm), and convert the pipeline's answers into objects afterwards",
            )
        super().__init__(thinking=thinking)
        self.llm = llm
        self._family = family_of(llm)
        # Name of the LLM's field with the maximum length of an answer; empty if there is no such field.
        self._limit_name = next((name for name in _LIMITS if name in type(llm).model_fields), "")
        self._logprobs = self._family.logprobs if logprobs is None else logprobs
        self._top_requested = top
        self._max_concurrency = max_concurrency
        self._together = self.token_pieces = self._family.several
        self._can_stream = True
        self._warned = False
        self.advice = f"{self._family.hint}; or {WAYS_OUT}" if self._family.hint else WAYS_OUT
        self._top_parameter = "top_logprobs" if self._chats else "logprobs"
        self._warn_of_settings()

    def _warn_of_settings(self) -> None:
        most = self._top_requested or (20 if self._chats else 5)
        overriding = [
            f"{name}={value!r}"
            for name, value in self._family.own(self.llm).items()
            if name in _OVERRIDING_SETTINGS and not (name == "top_logprobs" and value >= most)
        ]
        if overriding:
            warnings.warn(
                f"{type(self.llm).__name__} was built with settings that override the settings of a method: "
                f"{', '.join(overriding)}. So answers may be too long or cut off, entropies less exact, "
                "and all samples equal. Build the LLM without these settings",
                stacklevel=4,
            )

    @property
    def name(self) -> str:
        """Name of the model that the LLM calls at present."""
        return self.llm.metadata.model_name or self.llm.class_name()

    @property
    def described(self) -> str:
        """Name of the LLM's class, for error messages."""
        return type(self.llm).__name__

    @property
    def capabilities(self) -> Capabilities:
        """What this LLM can do, for example whether it returns log-probabilities and streams."""
        # The async methods of a CustomLLM block the event loop, so its blocking methods run in threads.
        call = type(self.llm).achat if self._chats else type(self.llm).acomplete
        blocking = call.__qualname__.startswith(("CustomLLM.", "HuggingFaceLLM."))
        return Capabilities(
            logprobs=self._logprobs,
            entropy="bounded" if self._logprobs and self._most_top != 0 else None,
            begin="native" if self._can_stream else "whole",
            stream=self._can_stream,
            native_async=not blocking,
            thinking="apart",
        )

    @property
    def max_tokens(self) -> int | None:
        """The LLM's own maximum length of an answer, in tokens; None if the LLM sets no maximum."""
        own = getattr(self.llm, self._limit_name, None) if self._limit_name else None
        output = self.llm.metadata.num_output
        named = own if isinstance(own, int) else None if output == DEFAULT_NUM_OUTPUTS else output
        return named if named is not None and named > 0 else None

    @property
    def _sends_limit(self) -> bool:
        return self._family.takes_limit and bool(self._limit_name)

    @property
    def window(self) -> int:
        """Size of the context window, which prompt and answer share, in tokens."""
        return self.llm.metadata.context_window

    def count_tokens(self, text: str) -> int:
        """Count the tokens of a text with ``Settings.tokenizer``."""
        return len(Settings.tokenizer(text))

    @property
    def _chats(self) -> bool:
        return self.llm.metadata.is_chat_model

    @property
    def _most_top(self) -> int:
        own: int = self._family.own(self.llm).get("top_logprobs", 20 if self._chats else 5)
        return own if self._top_requested is None else min(own, self._top_requested)

    def _limit(self, items: int) -> int:
        return min(items, self._max_concurrency)

    @property
    def _retries(self) -> int:
        own = getattr(self.llm, "max_retries", 0)
        return own if isinstance(own, int) else 0

    def _secrets(self) -> Iterator[str]:
        return secrets_in(vars(self.llm))

    def _top(self, sampling: SamplingParams) -> int | None:
        if not self._logprobs or sampling.trace == "none":
            return None
        return self._most_top if sampling.lists_alternatives else 0

    def _keywords(self, request: Request) -> Keywords:
        sampling, top = request.sampling, max(request.top or 0, 1)
        optional = {
            "seed": (sampling.seed, sampling.temperature > 0),
            "n": (sampling.n, sampling.n > 1),
            # A thinking model gets no stop sequences, because they could also stop the model in its thoughts.
            "stop": (list(sampling.stop), sampling.stop and not request.budget),
            "logprobs": (True if self._chats else top, request.top is not None),
            "top_logprobs": (top, request.top is not None and self._chats),
            # The server's token count shows whether a stream has sent each piece twice.
            "stream_options": ({"include_usage": True}, request.streamed and self._family.several),
        }
        limited = sampling.max_tokens is not None
        optional["max_tokens"] = (sampling.limit + request.budget, limited)
        return {
            "temperature": sampling.temperature,
            **{name: value for name, (value, needed) in optional.items() if needed},
        }

    async def _generate(
        self, prompts: Sequence[Prompt], sampling: SamplingParams, calls: Blocking
    ) -> list[list[Generation]]:
        rows = await super()._generate(prompts, sampling, calls)
        drawn = sampling.n > 1 and sampling.temperature > 0 and not self._family.several
        if drawn and not self._warned and any(len({answer.text for answer in row}) == 1 for row in rows):
            self._warned = True
            warnings.warn(
                f"all {sampling.n} samples of {self.name} are the same: {type(self.llm).__name__} may ignore "
                "the temperature of a call, and then samples do not measure certainty; build the LLM with "
                "temperature=1",
                stacklevel=2,
            )
        return rows

    async def _call_llm(self, request: Request, keywords: Keywords, calls: Blocking, kind: str) -> Any:
        own_keywords = self._family.keywords(keywords)
        if self._sends_limit and "max_tokens" in keywords:
            own_keywords[self._limit_name] = keywords["max_tokens"]
        if self._chats:
            messages = chat_messages(self.llm, request.prompt)
            return await calls.call(self.llm, f"{kind}chat", messages, **own_keywords)
        text = completion_text(self.llm, request.prompt)
        return await calls.call(self.llm, f"{kind}complete", text, formatted=True, **own_keywords)

    async def _call(self, request: Request, keywords: Keywords, calls: Blocking) -> Sequence[ReplyPart]:
        response = await self._call_llm(request, keywords, calls, "")
        return reply_parts(response, logprobs=request.top is not None)

    async def _open(self, request: Request, keywords: Keywords, calls: Blocking) -> AsyncGenerator[ReplyPart]:
        text_so_far, has_end = "", False
        try:
            responses = await self._call_llm(request, keywords, calls, "stream_")
        except NotImplementedError:
            self._can_stream = False
            for part in await self._call(request, keywords, calls):
                yield part._replace(finish=part.finish or "")
            return
        try:
            async with aclosing(items_of(responses)) as each:
                async for response in each:
                    part, text_so_far = reply_part(response, text_so_far, logprobs=request.top is not None)
                    has_end = has_end or part.finish is not None or has_choices(response.raw)
                    yield part
            if not has_end:
                yield ReplyPart(finish="")
        finally:
            await _close(responses)


def has_choices(raw: Any) -> bool:
    """Whether a raw response, or a piece of a stream, has the field ``choices`` of OpenAI's API."""
    return bool(raw.get("choices") if isinstance(raw, Mapping) else getattr(raw, "choices", None))


async def _close(stream: Any) -> None:
    """Close a stream, and then the streams inside it, from the outermost to the innermost.

    LlamaIndex's wrappers leave the inner streams open until the garbage collector closes them. Until then,
    the server goes on generating. If the garbage collector closes a stream of OpenAI's client while this
    client sends another request, the client deadlocks.
    """
    chain = [stream]
    for item in chain:
        chain += [inner for inner in _inner_streams(item) if not any(inner is other for other in chain)]
    for item in chain:
        if hasattr(item, "aclose"):
            await item.aclose()
        elif hasattr(item, "close"):
            item.close()


def _inner_streams(stream: Any) -> list[Any]:
    referents = gc.get_referents(stream) if isgenerator(stream) or isasyncgen(stream) else []
    referents += [cell.cell_contents for cell in referents if isinstance(cell, CellType)]
    # A stream of OpenAI's client is no generator, but holds the generator that it reads from.
    referents += [getattr(item, "_iterator", None) for item in referents]
    return [item for item in referents if isgenerator(item) or isasyncgen(item)]


def reply_parts(response: Any, *, logprobs: bool) -> list[ReplyPart]:
    """Return the answers in a complete response, with log-probabilities if ``logprobs`` is True.

    The answers are all choices of the raw response or, if it has no choices, the response's text.
    """
    raw = plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw and (raw["choices"] or not _text_of(response)):
        return readers.reply_parts(raw, logprobs=logprobs)
    return [_own_part(response, raw, _text_of(response), "", logprobs=logprobs)]


def reply_part(response: Any, so_far: str, *, logprobs: bool) -> tuple[ReplyPart, str]:
    """Return the next piece of a stream, and the value of ``so_far`` for the call after this one.

    ``response`` is LlamaIndex's response with the next piece. ``so_far`` is empty in the first call; later it
    holds the thoughts and the text of all earlier pieces.
    """
    raw = plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw:
        return next_reply_part(raw, logprobs=logprobs), so_far
    thoughts, _, text = so_far.rpartition("\0")
    text_now, thoughts_now = _text_of(response), _thoughts_of(response)
    delta = text_now.removeprefix(text) if response.delta is None else response.delta
    part = _own_part(response, raw, delta, thoughts, logprobs=logprobs)
    return part, f"{thoughts_now or thoughts}\0{text + delta}"


def plain(raw: Any) -> Any:
    """Convert the objects of an API client to plain JSON values, but leave log-probabilities out.

    An answer has a dozen log-probabilities for each token, and converting all of them would take most of the
    time.
    """
    if hasattr(raw, "model_dump"):
        if not has_choices(raw):
            return raw.model_dump(exclude_unset=True, warnings=False)
        choices = [_shallow(choice, "logprobs", "message", "delta") for choice in raw.choices]
        return {"choices": choices, "usage": plain(getattr(raw, "usage", None))}
    if isinstance(raw, Mapping):
        return {name: plain(value) for name, value in raw.items()}
    return [plain(item) for item in raw] if isinstance(raw, list) else raw


def _shallow(item: Any, *inner: str) -> dict[str, Any]:
    """Return the fields of an object as a dictionary.

    The objects in the fields with the names ``inner`` also become dictionaries. No other value is converted.
    """
    values = (
        dict(item) if isinstance(item, Mapping) else vars(item) | (getattr(item, "model_extra", None) or {})
    )
    for name in inner:
        if (value := values.pop(name, None)) is not None:
            values[name] = _shallow(value)
    return values


def _own_part(response: Any, raw: Any, text: str, thoughts: str, *, logprobs: bool) -> ReplyPart:
    """Return the answer in a LlamaIndex response whose ``raw`` has no field ``choices``."""
    fields = raw if isinstance(raw, Mapping) else {}
    finish = next((str(fields[name]) for name in _FINISH if fields.get(name)), None)
    entries = _own_entries(response, fields, text) if logprobs else []
    return ReplyPart(text, _thoughts_of(response).removeprefix(thoughts), entries, finish, _usage_in(fields))


def _usage_in(raw: Mapping[str, Any]) -> Usage | None:
    counts = next((raw[name] for name in ("usage", "usage_metadata") if raw.get(name)), raw)
    if not counts:
        return None
    renamed = {
        ours: next((counts[name] for name in names if counts.get(name)), 0) for ours, names in _COUNTS.items()
    }
    thoughts = counts.get("thoughts_token_count")
    details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
    usage = usage_of({**counts, **renamed, **details})
    return usage if usage.prompt_tokens or usage.completion_tokens else None


def _own_entries(response: Any, raw: Mapping[str, Any], text: str) -> Sequence[Mapping[str, Any]]:
    if result := raw.get("logprobs_result"):
        return entries_of(result)
    entries, rest = list[Mapping[str, Any]](), text.lstrip()
    for listed in response.logprobs or ():
        sampled = _sampled_token(listed, rest, first=not entries)
        if sampled is None:
            break
        rest = rest[len(sampled.token if entries else sampled.token.lstrip()) :]
        others = [{"token": other.token, "logprob": other.logprob} for other in listed]
        top_logprobs = others if len(others) > 1 else []
        entries.append({"token": sampled.token, "logprob": sampled.logprob, "top_logprobs": top_logprobs})
    return entries


def _sampled_token(listed: Sequence[Any], rest: str, *, first: bool) -> Any:
    for item in listed:
        token = item.token.lstrip() if first else item.token
        if token and rest.startswith(token):
            return item
    if rest.strip():
        raise LogprobsError(
            "expected the rest of the answer to begin with a token in response.logprobs, "
            f"but no token fits; the rest is {rest[:40]!r}"
        )
    return None


def _text_of(response: Any) -> str:
    if not hasattr(response, "message"):
        return response.text or ""
    return "".join(block.text or "" for block in response.message.blocks if block.block_type == "text")


def _thoughts_of(response: Any) -> str:
    blocks = response.message.blocks if hasattr(response, "message") else ()
    return "".join(block.content or "" for block in blocks if block.block_type == "thinking")
