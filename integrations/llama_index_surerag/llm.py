"""Any LlamaIndex LLM as a reader, over its public calls.

``chat`` or ``complete``, and their variants, are called, and nothing else of the LLM is touched or copied, so
that callbacks and a changed ``llm.model`` stay in force. OpenAI's keywords go in; answers and their
log-probabilities come out of ``response.raw``, else ``response.logprobs``, else there is text alone.
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
    next_reply_part,
    secrets_in,
    usage_of,
)
from surerag.services import Entailer

_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens")
"""What the classes of LLMs call the length of an answer."""
_FINISH = ("finish_reason", "stop_reason", "done_reason")
_COUNTS = {
    "prompt_tokens": ("prompt_tokens", "prompt_token_count", "input_tokens", "prompt_eval_count"),
    "completion_tokens": ("completion_tokens", "candidates_token_count", "output_tokens", "eval_count"),
    "total_tokens": ("total_tokens", "total_token_count"),
}
"""What services call the tokens of prompt and answer."""

Judge = Entailer | Reader | LLM | None
"""What judges whether answers mean the same: an entailer of surerag, or a model that is asked in words."""

WAYS_OUT = (
    'pass gate="abstention" (L-RAG) or metric="semantic_entropy" (DynQR), which need text only; an '
    "OpenAIReader for an OpenAI-compatible server; or a TransformersReader for a model in this process"
)


def _no_settings(_: Any) -> Keywords:
    return {}


class ModelFamily(NamedTuple):
    """LLM classes that are asked in the same way.

    Attributes:
        module: Where the class is.
        name: Of the class; subclasses belong to it.
        keywords: From OpenAI's keywords to those that the class takes.
        logprobs: Whether it returns log-probabilities of the sampled tokens.
        several: Whether one request may bring several answers.
        hint: What to do for log-probabilities, where it returns none.
        own: Settings of an LLM that hold, whatever a call asks for.
        takes_limit: Whether a call can set the length of its answer, where the class has a name for that.
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
    """Return OpenAI's keywords as a ``generation_config``; the class raises where a limit is reached."""
    names = {
        "temperature": "temperature",
        "seed": "seed",
        "stop": "stop_sequences",
        "logprobs": "response_logprobs",
        "top_logprobs": "logprobs",
    }
    return {"generation_config": {names[name]: value for name, value in keywords.items() if name in names}}


def _sampling_only(keywords: Keywords) -> Keywords:
    return {"temperature": keywords["temperature"]} if keywords.get("temperature", 0) > 0 else {}


def _as_needed(keywords: Keywords) -> Keywords:
    return keywords if "logprobs" in keywords else _sampling_only(keywords)


def _openai_settings(llm: Any) -> Keywords:
    """Return what the class sends in place of a call's keywords."""
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
        hint='ask its server as OpenAILike(api_base="http://localhost:11434/v1", is_chat_model=True), since '
        "this class passes no keyword of a call on",
    ),
    ModelFamily(
        "llama_index.llms.huggingface",
        "HuggingFaceLLM",
        _no_settings,
        hint="pass TransformersReader(model, tokenizer) with those that the LLM was built from",
    ),
)

_PACKAGED = ModelFamily("llama_index", "LLM", _sampling_only, takes_limit=True)
_OWN = ModelFamily("", "LLM", _as_needed, logprobs=True, takes_limit=True)


def family_of(llm: LLM) -> ModelFamily:
    """Return how an LLM is asked; a class of the user's own may return log-probabilities."""
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
    """Return a LlamaIndex LLM as a reader.

    Args:
        llm: Any LLM.
        logprobs: Whether it returns log-probabilities; None knows it of LlamaIndex's packages, and expects
            them of a class of your own, in ``raw`` as OpenAI has them or in ``logprobs``.
        top_logprobs: Likeliest tokens to ask for; None is 20, and 5 where the LLM is no chat model.
        max_concurrency: Requests under way at a time.
        thinking: True grants tokens for thoughts from the first request on; ``"unmarked"`` says besides that
            answers begin inside the thoughts, and only the end of these is marked.

    Warns:
        UserWarning: If the LLM was built with settings that hold whatever a method asks for.

    Raises:
        ConfigurationError: If it is no LLM, or a setting is out of bounds.
    """
    check_kind(Real, "a number", max_concurrency=max_concurrency)
    check_at_least(1, top_logprobs=top_logprobs, max_concurrency=max_concurrency)
    return LLMReader(llm, logprobs, top_logprobs, max_concurrency, thinking)


def reader_of(llm: LLM | Reader | None) -> Reader:
    """Return a reader as it is, an LLM as a reader, and ``Settings.llm`` for None."""
    if isinstance(llm, Reader):
        return llm
    return LLMReader(Settings.llm if llm is None else llm)


def judge_of(judge: Judge) -> Entailer | Reader | None:
    """Return an LLM that judges as a reader, and a reader, an entailer or None as it is."""
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
"""Settings of an LLM that matter to a method where they hold whatever it asks for."""


class LLMReader(Shareable, ClientReader):
    """A LlamaIndex LLM as a reader; made by :func:`reader_from_llm`."""

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
                "a StructuredLLM writes JSON, which its streams begin anew with each piece, and no answers",
                hint="pass the LLM inside it (.llm), and give its answers a structure behind the pipeline",
            )
        super().__init__(thinking=thinking)
        self.llm = llm
        self._family = family_of(llm)
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
        """Say which settings of the LLM hold whatever a method asks for."""
        most = self._top_requested or (20 if self._chats else 5)
        said = [
            f"{name}={value!r}"
            for name, value in self._family.own(self.llm).items()
            if name in _OVERRIDING_SETTINGS and not (name == "top_logprobs" and value >= most)
        ]
        if said:
            warnings.warn(
                f"{type(self.llm).__name__} was built with settings that beat those of a method: "
                f"{', '.join(said)}. Answers are cut after they were paid for, entropies may be less exact, "
                "samples all the same. Build it without them",
                stacklevel=4,
            )

    @property
    def name(self) -> str:
        """Name of the model that the LLM is set to at this moment."""
        return self.llm.metadata.model_name or self.llm.class_name()

    @property
    def described(self) -> str:
        """What was passed, for messages: the LLM's class."""
        return type(self.llm).__name__

    @property
    def capabilities(self) -> Capabilities:
        """What this LLM can do: log-probabilities where its class returns them, streams where it has them."""
        # CustomLLM inherits async calls that block the event loop; such an LLM is asked in threads.
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
        """The limit of an answer that the LLM was built with, where it has one."""
        own = getattr(self.llm, self._limit_name, None) if self._limit_name else None
        output = self.llm.metadata.num_output
        named = own if isinstance(own, int) else None if output == DEFAULT_NUM_OUTPUTS else output
        return named if named is not None and named > 0 else None

    @property
    def _limit_name(self) -> str:
        """What the LLM's class calls the length of an answer; empty if it has no name for it."""
        fields = type(self.llm).model_fields
        return next((name for name in _LIMITS if name in fields), "")

    @property
    def _sends_limit(self) -> bool:
        return self._family.takes_limit and bool(self._limit_name)

    @property
    def window(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.llm.metadata.context_window

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for ``Settings.tokenizer``."""
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
            # They belong to the answer, and may stand in the thoughts.
            "stop": (list(sampling.stop), sampling.stop and not request.budget),
            "logprobs": (True if self._chats else top, request.top is not None),
            "top_logprobs": (top, request.top is not None and self._chats),
            # A stream that counts its tokens is recognised where it repeats itself.
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
                f"all {sampling.n} samples of {self.name} are the same: {type(self.llm).__name__} may take "
                "no temperature from a call, and then samples tell nothing about its certainty; build it "
                "with temperature=1",
                stacklevel=2,
            )
        return rows

    async def _call_llm(self, request: Request, keywords: Keywords, calls: Blocking, kind: str) -> Any:
        """Make one of the LLM's public calls; ``kind`` is what stands before ``chat`` or ``complete``."""
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
        shown, says_end = "", False
        try:
            responses = await self._call_llm(request, keywords, calls, "stream_")
        except NotImplementedError:
            self._can_stream = False
            for part in await self._call(request, keywords, calls):
                yield part._replace(finish=part.finish or "")
            return
        try:
            async with aclosing(_each(responses)) as each:
                async for response in each:
                    part, shown = reply_part(response, shown, logprobs=request.top is not None)
                    says_end = says_end or part.finish is not None or has_choices(response.raw)
                    yield part
            if not says_end:
                yield ReplyPart(finish="")
        finally:
            await _close(responses)


def has_choices(raw: Any) -> bool:
    """Whether a raw response, or piece of a stream, has choices as OpenAI's have."""
    return bool(raw.get("choices") if isinstance(raw, Mapping) else getattr(raw, "choices", None))


async def _each(items: Any) -> AsyncGenerator[Any]:
    """Yield the items of an iterator, whether it is an async one or not."""
    if hasattr(items, "__anext__"):
        async for item in items:
            yield item
    else:
        for item in items:
            yield item


async def _close(stream: Any) -> None:
    """Close a stream, and those that it reads from, the outermost first.

    LlamaIndex's wrappers leave what they wrap to the garbage collector. Until that comes the server goes on,
    and OpenAI's client deadlocks where it comes while another request is sent.
    """
    chain = [stream]
    for one in chain:
        chain += [inner for inner in _read_by(one) if not any(inner is other for other in chain)]
    for one in chain:
        if hasattr(one, "aclose"):
            await one.aclose()
        elif hasattr(one, "close"):
            one.close()


def _read_by(stream: Any) -> list[Any]:
    """Return the generators that a generator reads from."""
    held = gc.get_referents(stream) if isgenerator(stream) or isasyncgen(stream) else []
    held += [cell.cell_contents for cell in held if isinstance(cell, CellType)]
    # A stream of OpenAI's client reads from a generator of its own.
    held += [getattr(one, "_iterator", None) for one in held]
    return [one for one in held if isgenerator(one) or isasyncgen(one)]


def reply_parts(response: Any, *, logprobs: bool) -> list[ReplyPart]:
    """Return the answers of a whole response: every choice of its raw one, else the response itself."""
    raw = plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw and (raw["choices"] or not _text_of(response)):
        return readers.reply_parts(raw, logprobs=logprobs)
    return [_own_part(response, raw, _text_of(response), "", logprobs=logprobs)]


def reply_part(response: Any, shown: str, *, logprobs: bool) -> tuple[ReplyPart, str]:
    """Return a stream's next piece, and all text so far; ``shown`` is that of the pieces before."""
    raw = plain(response.raw)
    if isinstance(raw, Mapping) and "choices" in raw:
        return next_reply_part(raw, logprobs=logprobs), shown
    thoughts, _, text = shown.rpartition("\0")
    text_now, thoughts_now = _text_of(response), _thoughts_of(response)
    delta = text_now.removeprefix(text) if response.delta is None else response.delta
    part = _own_part(response, raw, delta, thoughts, logprobs=logprobs)
    return part, f"{thoughts_now or thoughts}\0{text + delta}"


def plain(raw: Any) -> Any:
    """Return a client's objects as the JSON values that they were made of.

    Log-probabilities stay objects: there are a dozen to each token, and copying them takes the most time.
    """
    if hasattr(raw, "model_dump"):
        if not has_choices(raw):
            return raw.model_dump(exclude_unset=True, warnings=False)
        choices = [_shallow(choice, "logprobs", "message", "delta") for choice in raw.choices]
        return {"choices": choices, "usage": plain(getattr(raw, "usage", None))}
    if isinstance(raw, Mapping):
        return {name: plain(value) for name, value in raw.items()}
    return [plain(one) for one in raw] if isinstance(raw, list) else raw


def _shallow(one: Any, *inner: str) -> dict[str, Any]:
    """Return a client's object, and objects in it, as mappings; those that are None are left out."""
    extra = getattr(one, "model_extra", None) or {}
    known = dict(one) if isinstance(one, Mapping) else {**vars(one), **extra}
    for name in inner:
        if (held := known.pop(name, None)) is not None:
            known[name] = _shallow(held)
    return known


def _own_part(response: Any, raw: Any, text: str, thoughts: str, *, logprobs: bool) -> ReplyPart:
    """Return what LlamaIndex's own fields say of an answer, where the raw response has no choices."""
    known = raw if isinstance(raw, Mapping) else {}
    finish = next((str(known[name]) for name in _FINISH if known.get(name)), None)
    entries = _own_entries(response, known, text) if logprobs else []
    return ReplyPart(text, _thoughts_of(response).removeprefix(thoughts), entries, finish, _usage_in(known))


def _usage_in(raw: Mapping[str, Any]) -> Usage | None:
    counts = next((raw[name] for name in ("usage", "usage_metadata") if raw.get(name)), raw)
    renamed = {
        ours: next((counts[name] for name in names if counts.get(name)), 0) for ours, names in _COUNTS.items()
    }
    thoughts = counts.get("thoughts_token_count")
    details = {"completion_tokens_details": {"reasoning_tokens": thoughts}} if thoughts else {}
    usage = usage_of({**counts, **renamed, **details})
    return usage if usage.prompt_tokens or usage.completion_tokens else None


def _own_entries(response: Any, raw: Mapping[str, Any], text: str) -> Sequence[Mapping[str, Any]]:
    """Return the tokens of Gemini's result, or of ``response.logprobs``: lists of the likeliest tokens."""
    if result := raw.get("logprobs_result"):
        return entries_of(result)
    entries, rest = list[Mapping[str, Any]](), text.lstrip()
    for listed in response.logprobs or ():
        sampled = _sampled(listed, rest, first=not entries)
        if sampled is None:
            break
        rest = rest[len(sampled.token if entries else sampled.token.lstrip()) :]
        others = [{"token": other.token, "logprob": other.logprob} for other in listed]
        top_logprobs = others if len(others) > 1 else []
        entries.append({"token": sampled.token, "logprob": sampled.logprob, "top_logprobs": top_logprobs})
    return entries


def _sampled(listed: Sequence[Any], rest: str, *, first: bool) -> Any:
    """Return the first of the likeliest tokens that goes on with the text; None at its end."""
    for one in listed:
        token = one.token.lstrip() if first else one.token
        if token and rest.startswith(token):
            return one
    if rest.strip():
        raise LogprobsError(f"no token in response.logprobs goes on with {rest[:40]!r}")
    return None


def _text_of(response: Any) -> str:
    if not hasattr(response, "message"):
        return response.text or ""
    return "".join(block.text or "" for block in response.message.blocks if block.block_type == "text")


def _thoughts_of(response: Any) -> str:
    blocks = response.message.blocks if hasattr(response, "message") else ()
    return "".join(block.content or "" for block in blocks if block.block_type == "thinking")
