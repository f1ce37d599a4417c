"""Any LlamaIndex LLM as a reader, over its public calls.

``chat``, ``achat``, ``stream_chat`` and ``astream_chat`` are asked (``complete`` and its variants of an LLM
that is no chat model), and nothing else of the LLM is touched or copied, so that callbacks, token counters, a
changed ``llm.model`` and wrappers of the user's stay in force. OpenAI's keywords go in, every answer and its
log-probabilities come out of ``response.raw``, else ``response.logprobs``, else there is text alone.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import inspect
import json
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

from llama_index.core.llms import LLM
from llama_index.core.settings import Settings

from llama_index_surerag.prompts import chat_messages, completion_text, plain_text
from llama_index_surerag.replies import Reply, generation_of, replies_of
from surerag.drivers import complete
from surerag.errors import CapabilityError, ConfigurationError, LogprobsError, RefusedError, ServiceError
from surerag.messages import Chunk, Generation, PartialGeneration, Prompt, SamplingParams
from surerag.readers import Reader
from surerag.readers.failures import service_error
from surerag.readers.hosted.parameters import SupportedParameters, needed_parameters, warn_of_dropped
from surerag.readers.pieces import TrimmedPieces
from surerag.readers.protocol import BaseReader, Capabilities, begun_from_whole, close_iterator
from surerag.readers.thinking import THINKING_TOKENS
from surerag.services import Entailer

T = TypeVar("T")
Mode = Literal["", "a"]
"""What stands before the names of the LLM's calls: nothing for the sync ones."""

Judge = Entailer | Reader | LLM | None
"""What judges whether answers mean the same: an entailer of surerag, or a model that is asked in words."""

WAYS_OUT = (
    'pass gate="abstention" (L-RAG) or metric="semantic_entropy" (DynQR), which need text only; an '
    "OpenAIReader for an OpenAI-compatible server; or a TransformersReader for a model in this process"
)


class Family(NamedTuple):
    """LLM classes that are asked in the same way.

    Attributes:
        keywords: From OpenAI's keywords to those that the class takes.
        logprobs: Whether it returns log-probabilities of the sampled tokens.
        several: Whether one request may bring several answers.
        hint: What to do for log-probabilities, where it returns none.
    """

    keywords: Callable[[dict[str, Any]], dict[str, Any]]
    logprobs: bool = False
    several: bool = False
    hint: str = ""


def _gemini_keywords(keywords: dict[str, Any]) -> dict[str, Any]:
    """Return OpenAI's keywords as a ``generation_config``; the class raises where a limit is reached."""
    names = {
        "temperature": "temperature",
        "top_p": "top_p",
        "seed": "seed",
        "stop": "stop_sequences",
        "logprobs": "response_logprobs",
        "top_logprobs": "logprobs",
    }
    return {"generation_config": {names[name]: value for name, value in keywords.items() if name in names}}


def _sampling_only(keywords: dict[str, Any]) -> dict[str, Any]:
    return {"temperature": keywords["temperature"]} if keywords.get("temperature", 0) > 0 else {}


def _as_needed(keywords: dict[str, Any]) -> dict[str, Any]:
    return keywords if "logprobs" in keywords else _sampling_only(keywords)


FAMILIES: Mapping[str, Family] = {
    "OpenAI": Family(dict, logprobs=True, several=True),
    "GoogleGenAI": Family(_gemini_keywords, logprobs=True),
    "Ollama": Family(
        lambda _: {},
        hint='ask its server as OpenAILike(api_base="http://localhost:11434/v1", is_chat_model=True), since '
        "this class passes no keyword of a call on",
    ),
    "HuggingFaceLLM": Family(
        lambda _: {},
        hint="pass TransformersReader(model, tokenizer) with the model and the tokenizer that the LLM was "
        "built from",
    ),
}
"""Families by the name of a class; subclasses belong to them."""

_PACKAGED = Family(_sampling_only)
_OWN = Family(_as_needed, logprobs=True)


def family_of(llm: LLM) -> Family:
    """Return how an LLM is asked; a class of the user's own may return log-probabilities."""
    packaged = [
        kind.__name__ for kind in type(llm).__mro__ if kind.__module__.startswith("llama_index.llms.")
    ]
    own = not packaged and not type(llm).__module__.startswith("llama_index.")
    return next((FAMILIES[name] for name in packaged if name in FAMILIES), _OWN if own else _PACKAGED)


def reader_from_llm(
    llm: LLM, *, logprobs: bool | None = None, top_logprobs: int | None = None, max_concurrency: int = 8
) -> LLMReader:
    """Return a LlamaIndex LLM as a reader.

    Args:
        llm: Any LLM.
        logprobs: Whether it returns log-probabilities; None knows it of LlamaIndex's packages, and expects
            them of a class of your own, in ``raw`` as OpenAI has them or in ``logprobs``.
        top_logprobs: Likeliest tokens to ask for; None is 20, and 5 where the LLM is no chat model.
        max_concurrency: Requests under way at a time.

    Raises:
        ConfigurationError: If it is no LLM.
    """
    return LLMReader(llm, logprobs, top_logprobs, max_concurrency)


def reader_of(llm: LLM | Reader | None) -> Reader:
    """Return a reader as it is, an LLM as a reader, and ``Settings.llm`` for None."""
    if isinstance(llm, Reader):
        return llm
    return LLMReader(Settings.llm if llm is None else llm)


def judge_of(judge: Judge) -> Entailer | Reader | None:
    """Return an LLM that judges as a reader, and anything else as it is."""
    return reader_of(judge) if isinstance(judge, LLM) else judge


@contextmanager
def explained(reader: Reader) -> Iterator[None]:
    """Say of which LLM a method needs what it does not return, and the ways out.

    Raises:
        CapabilityError: If the method needs log-probabilities, and the LLM is asked for text alone.
    """
    try:
        yield
    except CapabilityError as error:
        if not isinstance(reader, LLMReader):
            raise
        raise CapabilityError(
            f"{type(reader.llm).__name__} is asked for text only, and {str(error).split('. ')[0]}",
            hint=reader.hint,
        ) from error


class LLMReader(BaseReader):
    """A LlamaIndex LLM as a reader; made by :func:`reader_from_llm`."""

    def __init__(
        self, llm: LLM, logprobs: bool | None = None, top: int | None = None, max_concurrency: int = 8
    ) -> None:
        if not isinstance(llm, LLM):
            raise ConfigurationError(
                f"expected a LlamaIndex LLM, got {type(llm).__name__}",
                hint="pass llm=…, set Settings.llm, or pass a reader of surerag",
            )
        self.llm = llm
        self._family = family_of(llm)
        self._logprobs = self._family.logprobs if logprobs is None else logprobs
        self._top = top
        self._max_concurrency = max_concurrency
        self._supported = SupportedParameters(cap={} if self._family.several else {"n": 1})
        self._streams = True
        self._thinks = False
        self._warned = False

    def __getstate__(self) -> dict[str, Any]:
        """Leave the LLM's key out of a pickle; where that is loaded, the client reads the environment's."""
        key = type(self.llm).model_fields.get("api_key")
        if key is None or getattr(self.llm, "api_key", None) == key.default:
            return self.__dict__
        return {**self.__dict__, "llm": self.llm.model_copy(update={"api_key": None})}

    @property
    def name(self) -> str:
        """Name of the model that the LLM is set to at this moment."""
        return self.llm.metadata.model_name or self.llm.class_name()

    @property
    def capabilities(self) -> Capabilities:
        """What this LLM can do: log-probabilities where its class returns them, streams where it has them."""
        # CustomLLM inherits async calls that block the event loop; such an LLM is asked in threads.
        call = type(self.llm).achat if self._chats else type(self.llm).acomplete
        blocking = call.__qualname__.startswith(("CustomLLM.", "HuggingFaceLLM."))
        return Capabilities(
            logprobs=self._logprobs,
            entropy="bounded" if self._logprobs and self._top != 0 else None,
            begin="native" if self._streams else "whole",
            stream=self._streams,
            native_async=not blocking,
            thinking="apart",
        )

    @property
    def max_tokens(self) -> int:
        """The LLM's own limit of an answer, where it has one."""
        own = self.llm.metadata.num_output
        return own if own > 0 else super().max_tokens

    @property
    def window(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self.llm.metadata.context_window

    @property
    def hint(self) -> str:
        """What to do for log-probabilities."""
        return f"{self._family.hint}; or {WAYS_OUT}" if self._family.hint else WAYS_OUT

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text has for ``Settings.tokenizer``."""
        return len(Settings.tokenizer(text))

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` generations for each prompt, in order."""
        requests = self._split(prompts, sampling)
        if len(requests) < 2 or self._max_concurrency == 1:
            return self._rows([complete(self._answers("", one)) for one in requests], sampling.n)
        with ThreadPoolExecutor(min(self._max_concurrency, len(requests))) as pool:
            # Every call sees the caller's context, so that traces keep their parents.
            calls = [
                pool.submit(contextvars.copy_context().run, complete, self._answers("", one))
                for one in requests
            ]
            return self._rows([call.result() for call in calls], sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``, over the LLM's own async calls."""
        turns = asyncio.Semaphore(self._max_concurrency)

        async def one(request: _Request) -> list[Generation]:
            async with turns:
                return await self._answers("a", request)

        tasks = [asyncio.ensure_future(one(request)) for request in self._split(prompts, sampling)]
        try:
            return self._rows(await asyncio.gather(*tasks), sampling.n)
        except BaseException:
            for task in tasks:
                task.cancel()
            raise

    def begin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Read a stream of each prompt up to its first ``n_tokens`` tokens, and leave it open."""
        return complete(self._begin("", prompts, n_tokens, sampling))

    async def abegin(
        self, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        """Like ``begin``, over the LLM's own async stream."""
        return await self._begin("a", prompts, n_tokens, sampling)

    def finish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Read the open streams to their ends."""
        return complete(self.afinish(begun))

    async def afinish(self, begun: Sequence[PartialGeneration]) -> list[Generation]:
        """Like ``finish``."""
        for one in begun:
            while await one.state.next() is not None:
                pass
        return [one.state.whole() for one in begun]

    def cancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Close the open streams."""
        for one in begun:
            complete(one.state.close())

    async def acancel(self, begun: Sequence[PartialGeneration]) -> None:
        """Like ``cancel``."""
        for one in begun:
            await one.state.close()
        # The event loop closes the generators inside the LLM's own, one after the other.
        for _ in range(10):
            await asyncio.sleep(0)
        gc.collect(1)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer piece by piece; the last chunk holds the generation."""
        return _OpenAnswer(self, "", prompt, sampling).chunks()

    def finish_stream(self, begun: PartialGeneration) -> Iterator[Chunk]:
        """Yield what was begun from its first token on; the last chunk holds the generation."""
        answer: _OpenAnswer = begun.state
        return answer.chunks()

    def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``, without blocking the event loop."""
        if not self.capabilities.native_async:
            return super().astream(prompt, sampling)
        return _OpenAnswer(self, "a", prompt, sampling).achunks()

    def afinish_stream(self, begun: PartialGeneration) -> AsyncIterator[Chunk]:
        """Like ``finish_stream``, without blocking the event loop."""
        answer: _OpenAnswer = begun.state
        return answer.achunks() if answer.mode == "a" else super().afinish_stream(begun)

    @property
    def _chats(self) -> bool:
        return self.llm.metadata.is_chat_model

    @property
    def _top_logprobs(self) -> int:
        return (20 if self._chats else 5) if self._top is None else self._top

    def _split(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[_Request]:
        """Return the requests for ``n`` answers to each prompt: one, or ``n`` that run side by side."""
        if sampling.top_k is not None:
            raise CapabilityError(f"{self.name} takes no top_k", hint="set it in the LLM itself")
        alone = self._supported.cap.get("n") == 1 or "n" in self._supported.drop
        each = replace(sampling, n=1) if alone else sampling
        return [
            _Request(prompt, replace(each, seed=sampling.seed + number))
            for prompt in prompts
            for number in range(sampling.n if alone else 1)
        ]

    def _rows(self, answers: Sequence[list[Generation]], n: int) -> list[list[Generation]]:
        """Return the answers of each prompt; warn once where samples that should differ are all the same."""
        flat = [answer for some in answers for answer in some]
        rows = [flat[start : start + n] for start in range(0, len(flat), n)]
        same = n > 1 and any(len({answer.text for answer in row}) == 1 for row in rows)
        if same and not (self._family.several or self._warned):
            self._warned = True
            warnings.warn(
                f"all {n} samples of {self.name} are the same: {type(self.llm).__name__} may take no "
                "temperature from a call, and then samples tell nothing about its certainty; build it with "
                "temperature=1",
                stacklevel=2,
            )
        return rows

    async def _answers(self, mode: Mode, request: _Request) -> list[Generation]:
        answers: list[Generation] = []
        while len(answers) < request.sampling.n:
            rest = request.after(len(answers))
            sent = self._keywords(rest.sampling)
            try:
                response = await _awaited(self._call(mode, rest))
            except Exception as error:
                self._learn(error, rest.sampling, sent)
            else:
                answers += self._read(response, rest)
        return answers[: request.sampling.n]

    async def _begin(
        self, mode: Mode, prompts: Sequence[Prompt], n_tokens: int, sampling: SamplingParams
    ) -> list[PartialGeneration]:
        opened = [_OpenAnswer(self, mode, prompt, sampling) for prompt in prompts]
        try:
            for answer in opened:
                while answer.reply.n_tokens < n_tokens and await answer.next() is not None:
                    pass
            return [answer.begun(n_tokens) for answer in opened]
        except BaseException:
            for answer in opened:
                await answer.close()
            raise

    def _read(self, response: Any, request: _Request) -> list[Generation]:
        replies, thinks = replies_of(response), self._thinks
        if len(replies) < request.sampling.n:
            self._supported.cap["n"] = 1
        answers = self._generations(replies, request)
        # Where all tokens were spent on thoughts, it is asked once more: from now on there is room for them.
        spent = self._thinks and not thinks and not any(one.text for one in answers)
        return [] if spent else answers

    def _generations(self, replies: Sequence[Reply], request: _Request) -> list[Generation]:
        self._thinks = self._thinks or any(reply.has_thoughts for reply in replies)
        traced = self._logprobs and request.sampling.trace != "none"
        top, share = self._top_logprobs if traced else None, len(replies)
        try:
            answers = [generation_of(reply, request.sampling, top, share) for reply in replies]
        except LogprobsError as error:
            raise LogprobsError(
                f"{self.name} ({type(self.llm).__name__}): {error}", hint=self.hint
            ) from error
        return [
            replace(one, prompt_tokens=one.prompt_tokens or self.count_tokens(plain_text(request.prompt)))
            for one in answers
        ]

    def _recover(self, error: Exception, answer: _OpenAnswer) -> None:
        """Note that the LLM does not stream, or refuses a keyword; raise everything else."""
        if answer.reply.started:
            raise self._translated(error) from error
        if isinstance(error, NotImplementedError) and self._streams:
            self._streams = False
        else:
            self._learn(error, answer.request.sampling, answer.sent)

    def _call(self, kind: str, request: _Request) -> Any:
        """Make one of the LLM's public calls; ``kind`` is what stands before ``chat`` or ``complete``."""
        keywords = self._keywords(request.sampling)
        if self._chats:
            return getattr(self.llm, f"{kind}chat")(chat_messages(self.llm, request.prompt), **keywords)
        text = completion_text(self.llm, request.prompt)
        return getattr(self.llm, f"{kind}complete")(text, formatted=True, **keywords)

    def _keywords(self, sampling: SamplingParams) -> dict[str, Any]:
        """Return the keywords of a call: OpenAI's, without what was rejected, in the family's spelling."""
        return self._family.keywords(self._supported.apply(self._openai_keywords(sampling)))

    def _openai_keywords(self, sampling: SamplingParams) -> dict[str, Any]:
        limit = sampling.max_tokens + (THINKING_TOKENS if self._thinks else 0)
        keywords: dict[str, Any] = {"temperature": sampling.temperature, "max_tokens": limit}
        if sampling.temperature > 0:
            keywords["seed"] = sampling.seed
        if sampling.top_p < 1:
            keywords["top_p"] = sampling.top_p
        if sampling.stop:
            keywords["stop"] = list(sampling.stop)
        if sampling.n > 1:
            keywords["n"] = sampling.n
        if self._logprobs and sampling.trace != "none":
            top = self._top_logprobs
            keywords |= {"logprobs": True, "top_logprobs": top} if self._chats else {"logprobs": top}
        return keywords

    def _learn(self, error: Exception, sampling: SamplingParams, sent: Mapping[str, Any]) -> None:
        """Leave a keyword out from now on that the LLM refuses and the method does not need.

        Of several requests under way the first one learns it; the others are asked again as well.

        Raises:
            ServiceError: If it is needed, or the failure is another one.
        """
        ours, keywords = self._translated(error), self._openai_keywords(sampling)
        refused = isinstance(ours, RefusedError)
        if refused and sent != self._keywords(sampling):
            return
        changed = refused and self._supported.learn(str(error), keywords, needed_parameters(sampling))
        if not changed:
            raise ours from error
        warn_of_dropped(self.name, self._supported.drop & set(changed), sampling)

    def _translated(self, error: Exception) -> Exception:
        """Return a client's failure as one of ours, which says what the server sent and shows no key."""
        strange = json.JSONDecodeError | AttributeError | IndexError | KeyError | TypeError
        if isinstance(error, strange) and "keyword argument" not in str(error):
            sent = getattr(error, "doc", None) or getattr(error, "obj", None)
            return ServiceError(
                f"{self.name} sent a reply that {type(self.llm).__name__} cannot read: "
                f"{'one without an answer' if sent is None else repr(sent)[:200]} "
                f"({type(error).__name__}: {error})",
                hint="check api_base, and that the server speaks the API of this class",
            )
        key = str(getattr(self.llm, "api_key", None) or "").strip()
        return service_error(error, self.name, str(error).replace(key, "***") if key else str(error))


class _Request(NamedTuple):
    prompt: Prompt
    sampling: SamplingParams

    def after(self, answers: int) -> _Request:
        """Return what is left of it when so many answers have come."""
        n, seed = self.sampling.n - answers, self.sampling.seed + answers
        return self._replace(sampling=replace(self.sampling, n=n, seed=seed))


class _OpenAnswer:
    """An answer whose stream is open, or was read to its end."""

    def __init__(self, reader: LLMReader, mode: Mode, prompt: Prompt, sampling: SamplingParams) -> None:
        self.mode: Mode = mode
        self.request = _Request(prompt, replace(sampling, n=1))
        self.reply = Reply()
        self._reader = reader
        self._stream: Any = None
        self.sent: Mapping[str, Any] = {}

    async def next(self) -> str | None:
        """Return the next piece of the answer (all of it where the LLM does not stream); None at its end."""
        while not self.reply.done:
            try:
                return await self._next()
            except Exception as error:
                await self._hang_up()
                self._reader._recover(error, self)
        return None

    async def _next(self) -> str:
        if self._stream is None:
            self.sent = self._reader._keywords(self.request.sampling)
        if not self._reader._streams:
            [self.reply, *_] = replies_of(await _awaited(self._reader._call(self.mode, self.request)))
            return self.reply.answer
        if self._stream is None:
            self._stream = await _awaited(self._reader._call(f"{self.mode}stream_", self.request))
        if hasattr(self._stream, "__anext__"):
            response = await anext(self._stream, None)
        else:
            response = next(self._stream, None)
        if response is not None:
            return self.reply.feed(response)
        self._stream = None
        return self.reply.end()

    async def close(self) -> None:
        """Close the stream; nothing more is read."""
        self.reply.done = True
        await self._hang_up()

    async def _hang_up(self) -> None:
        stream, self._stream = self._stream, None
        if hasattr(stream, "aclose"):
            await stream.aclose()
        elif stream is not None:
            close_iterator(stream)
            # A stream of OpenAI's client refers to itself. The server goes on until it is collected, and the
            # client deadlocks where that happens while it sends another request.
            gc.collect(1)

    def whole(self) -> Generation:
        """Return what has come so far as a generation."""
        [generation] = self._reader._generations([self.reply], self.request)
        return generation

    def begun(self, n_tokens: int) -> PartialGeneration:
        """Return the first ``n_tokens`` tokens of what has come so far."""
        head = begun_from_whole(self.whole(), n_tokens).partial
        done = self.reply.done and head.finish != "partial"
        return PartialGeneration(head if done else replace(head, finish="partial"), done, self)

    def chunks(self) -> Iterator[Chunk]:
        """Yield the answer from its first token on; the last chunk holds the generation."""
        trimmed = TrimmedPieces()
        try:
            piece: str | None = self.reply.answer
            while piece is not None:
                yield Chunk(trimmed.feed(piece))
                piece = complete(self.next())
            yield Chunk("", self.whole())
        finally:
            complete(self.close())

    async def achunks(self) -> AsyncIterator[Chunk]:
        """Like ``chunks``, of an async stream."""
        trimmed = TrimmedPieces()
        try:
            piece: str | None = self.reply.answer
            while piece is not None:
                yield Chunk(trimmed.feed(piece))
                piece = await self.next()
            yield Chunk("", self.whole())
        finally:
            await self.close()


async def _awaited(result: Any) -> Any:
    """Return what a call of the LLM returned, awaited where it was an async one."""
    return await result if inspect.isawaitable(result) else result
