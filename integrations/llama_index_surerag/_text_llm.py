"""Any LlamaIndex LLM as a reader of text alone."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from llama_index.core.base.llms.types import ChatResponse, CompletionResponse
from llama_index.core.llms import LLM, CustomLLM

from llama_index_surerag._fanout import Turns
from llama_index_surerag._openai_requests import AsyncLine, Line, alend, lend
from llama_index_surerag.prompts import messages_for, text_for
from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    SureragError,
    TransientServiceError,
)
from surerag.readers import BaseReader, Capabilities
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.failures import REFUSED_HINT, kind_of
from surerag.readers.openai.loops import client_of_this_loop
from surerag.readers.openai.parse import token_count
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.readers.usage import UsageCount
from surerag.types import ANSWER_TOKENS, Chunk, Generation, Prompt, Sampling, Usage

CallOptions = Callable[[Sampling], Mapping[str, Any]]
"""What to pass to the LLM with each call, for a sampling: ``{"temperature": sampling.temperature}``."""

_making = threading.Lock()


@contextmanager
def failures_of(llm: LLM) -> Iterator[None]:
    """Turn whatever an LLM's own code raises into an error that names the LLM.

    Raises:
        TransientServiceError: For rate limits, overload, time-outs and lost connections.
        ContextLengthError: For a prompt that does not fit the model's window.
        RefusedError: For what would be refused for every prompt: key, address, model, parameters.
        ServiceError: For everything else.
    """
    try:
        yield
    except LogprobsError as error:
        raise LogprobsError(
            f"{type(llm).__name__}: {_without_hint(error)}",
            hint="use a model and server that list the likeliest tokens, "
            "or reader_from_llm(llm, logprobs=False) for methods that need text only",
        ) from error
    except SureragError as error:
        if type(error) is not ServiceError:
            raise
        raise ServiceError(f"{type(llm).__name__}: {_without_hint(error)}", hint=error.hint) from error
    except Exception as error:
        kind = kind_of(error)
        found = f"{type(llm).__name__} failed with {type(error).__name__}: {error}"
        raise kind(found, hint=_HINTS.get(kind, _LOOK)) from error


_HINTS: Mapping[type[ServiceError], str] = {
    TransientServiceError: "try again later, or raise max_retries of the LLM",
    ContextLengthError: "give it fewer or shorter passages, or fewer max_tokens",
    RefusedError: REFUSED_HINT,
}
_LOOK = "look at the LLM's own settings and at what its server answered"


def _without_hint(error: SureragError) -> str:
    return str(error)[: -len(error.hint) - len(". .")] if error.hint else str(error)


@dataclass(frozen=True)
class LLMSettings:
    """How a reader uses a user's LLM.

    Attributes:
        name: Identity of the model.
        max_concurrency: Requests to have in flight at a time.
        call_options: What to pass to the LLM with each call; None passes nothing.
    """

    name: str
    max_concurrency: int
    call_options: CallOptions | None = None


class LLMReader(BaseReader):
    """What all readers over a user's LLM share: a name, settings, counts."""

    def __init__(self, llm: LLM, settings: LLMSettings) -> None:
        self._llm = llm
        self._settings = settings
        self._turns = Turns(settings.max_concurrency)
        self._usage = UsageCount()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self._llm).__name__}, {self.name!r})"

    @property
    def name(self) -> str:
        """Identity of the model: what a calibration or a cache entry belongs to."""
        return self._settings.name

    @property
    def max_tokens(self) -> int:
        """Length of an answer, at most, as the LLM was built."""
        limit = self._llm.metadata.num_output
        return limit if limit is not None and limit > 0 else ANSWER_TOKENS

    @property
    def usage(self) -> Usage:
        """Requests made, and tokens as far as the LLM tells."""
        return self._usage.total

    def _count(self, requests: int, generations: Sequence[Generation] = ()) -> None:
        read = generations[0].prompt_tokens if generations else 0
        written = sum(generation.completion_tokens for generation in generations)
        self._usage.add(Usage(requests, read, written))


class TextLLMReader(LLMReader):
    """A reader that knows what its LLM says, and nothing of how sure it is.

    The LLM generates as it was built: of a sampling, ``n`` (by asking again) and ``stop`` (by cutting)
    are kept by this reader, and the rest reaches only an LLM for which ``call_options`` says how.

    Args:
        llm: Any LlamaIndex LLM.
        settings: How to use it.
    """

    @property
    def capabilities(self) -> Capabilities:
        """No log-probabilities, hence no entropies."""
        return Capabilities(
            logprobs=False, entropy=None, stream=True, native_async=_has_native_async(self._llm)
        )

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Return ``sampling.n`` answers to each prompt, each by a call of its own."""
        wanted = [prompt for prompt in prompts for _ in range(sampling.n)]
        answers = self._turns.map(lambda prompt: self._one(prompt, sampling), wanted)
        return _rows(answers, sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        """Like ``generate``; LLMs without an async of their own work in threads."""
        if not self.capabilities.native_async:
            return await super().agenerate(prompts, sampling)
        wanted = [prompt for prompt in prompts for _ in range(sampling.n)]
        answers = await self._turns.amap(lambda prompt: self._aone(prompt, sampling), wanted)
        return _rows(answers, sampling.n)

    def stream(self, prompt: Prompt, sampling: Sampling) -> Iterator[Chunk]:
        """Yield an answer as the LLM streams it; whole, if it cannot stream."""
        shown = _Shown(sampling)
        hang_up: HangUp | None = None
        try:
            with failures_of(self._llm):
                line = self._open(prompt, sampling)
                hang_up = close_when_dropped(shown, line.hang_up)
                for response in line.stream:
                    yield Chunk(shown.feed(response.delta or ""))
                    if shown.stopped:
                        break
        except ServiceError as error:
            if shown.text or not isinstance(error.__cause__, NotImplementedError):
                raise
            yield from super().stream(prompt, sampling)
            return
        finally:
            # An answer that nobody reads on would go on being generated.
            if hang_up is not None:
                hang_up()
        yield self._last(shown)

    async def astream(self, prompt: Prompt, sampling: Sampling) -> AsyncIterator[Chunk]:
        """Like ``stream``; LLMs without an async of their own work in threads."""
        if not self.capabilities.native_async:
            async for chunk in super().astream(prompt, sampling):
                yield chunk
            return
        shown = _Shown(sampling)
        hang_up: HangUp | None = None
        try:
            with failures_of(self._llm):
                line = await self._aopen(prompt, sampling)
                hang_up = close_in_loop_when_dropped(shown, line.hang_up)
                async for response in line.stream:
                    yield Chunk(shown.feed(response.delta or ""))
                    if shown.stopped:
                        break
        except ServiceError as error:
            if shown.text or not isinstance(error.__cause__, NotImplementedError):
                raise
            [[answer]] = await self.agenerate([prompt], replace(sampling, n=1))
            yield Chunk(answer.text, answer)
            return
        finally:
            if hang_up is not None:
                hang_up()
        yield self._last(shown)

    def _options(self, sampling: Sampling) -> dict[str, Any]:
        return dict(self._settings.call_options(sampling)) if self._settings.call_options else {}

    def _one(self, prompt: Prompt, sampling: Sampling) -> Generation:
        options = self._options(sampling)
        with failures_of(self._llm):
            if self._llm.metadata.is_chat_model:
                return self._generation(self._llm.chat(messages_for(self._llm, prompt), **options), sampling)
            return self._generation(
                self._llm.complete(text_for(self._llm, prompt), formatted=True, **options), sampling
            )

    async def _aone(self, prompt: Prompt, sampling: Sampling) -> Generation:
        options = self._options(sampling)
        with failures_of(self._llm):
            llm = _in_this_loop(self._llm)
            if llm.metadata.is_chat_model:
                return self._generation(await llm.achat(messages_for(llm, prompt), **options), sampling)
            text = text_for(llm, prompt)
            return self._generation(await llm.acomplete(text, formatted=True, **options), sampling)

    def _open(self, prompt: Prompt, sampling: Sampling) -> Line | _Plain:
        options = self._options(sampling)
        llm: Any = self._llm
        client = None
        if _over_openai(llm):
            # Made first, so that it is kept: the copy's own client would be made anew each time.
            llm._get_client()
            llm = llm.model_copy()
            client = lend(llm)
        if llm.metadata.is_chat_model:
            stream: Any = llm.stream_chat(messages_for(llm, prompt), **options)
        else:
            stream = llm.stream_complete(text_for(llm, prompt), formatted=True, **options)
        return Line(stream, client) if client else _Plain(stream)

    async def _aopen(self, prompt: Prompt, sampling: Sampling) -> AsyncLine | _AsyncPlain:
        options = self._options(sampling)
        llm: Any = self._llm
        client = None
        if _over_openai(llm):
            llm = _in_this_loop(llm).model_copy()
            client = alend(llm)
        if llm.metadata.is_chat_model:
            stream: Any = await llm.astream_chat(messages_for(llm, prompt), **options)
        else:
            stream = await llm.astream_complete(text_for(llm, prompt), formatted=True, **options)
        return AsyncLine(stream, client) if client else _AsyncPlain(stream)

    def _generation(self, response: ChatResponse | CompletionResponse, sampling: Sampling) -> Generation:
        text = response.text if isinstance(response, CompletionResponse) else response.message.content
        counts = response.additional_kwargs
        generation = Generation(
            _before_stop(text or "", sampling).strip(),
            prompt_tokens=token_count(counts.get("prompt_tokens")),
            completion_tokens=token_count(counts.get("completion_tokens")),
        )
        self._count(1, [generation])
        return generation

    def _last(self, shown: _Shown) -> Chunk:
        held = shown.feed("", last=True)
        generation = Generation(shown.text.strip())
        self._count(1, [generation])
        return Chunk(held, generation)


class _Shown:
    """A streamed answer up to its stop text; what might be the beginning of one is held back."""

    def __init__(self, sampling: Sampling) -> None:
        self._stop = sampling.stop
        self._pieces = TrimmedPieces()
        self._shown = 0
        self.text = ""
        self.stopped = False

    def feed(self, added: str, *, last: bool = False) -> str:
        """Take what the LLM added and return what may be shown now."""
        if not self.stopped:
            before = cut_at_stop(self.text + added, self._stop)
            self.stopped = before is not None
            self.text = self.text + added if before is None else before
        end = len(self.text) - (0 if last or self.stopped else self._might_stop())
        fresh, self._shown = self.text[self._shown : end], max(end, self._shown)
        return self._pieces.feed(fresh)

    def _might_stop(self) -> int:
        """Length of the longest ending that is the beginning of a stop text."""
        lengths = (n for stop in self._stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return max(lengths, default=0)


class _Plain(NamedTuple):
    """A stream of an LLM that is not known from within: all that can be done is to close it."""

    stream: Any

    def hang_up(self) -> None:
        close = getattr(self.stream, "close", None)
        if close is not None:
            close()


class _AsyncPlain(NamedTuple):
    stream: Any

    async def hang_up(self) -> None:
        aclose = getattr(self.stream, "aclose", None)
        if aclose is not None:
            await aclose()


def _over_openai(llm: LLM) -> bool:
    """Whether an LLM is LlamaIndex's ``OpenAI`` or derives from it, and works over the SDK's client."""
    return any(kind.__module__ == "llama_index.llms.openai.base" for kind in type(llm).__mro__)


def _in_this_loop(llm: Any) -> Any:
    """Return an LLM over the SDK with connections of the running event loop's own; others as they are."""
    if not _over_openai(llm) or not llm.reuse_client:
        return llm
    with _making:
        # The LLM makes it when first asked, and keeps the last one that a thread has made.
        client = llm._get_aclient()
    copy = llm.model_copy()
    copy._aclient = client_of_this_loop(client)
    return copy


def _before_stop(text: str, sampling: Sampling) -> str:
    before = cut_at_stop(text, sampling.stop)
    return text if before is None else before


def _rows(answers: list[Generation], n: int) -> list[list[Generation]]:
    return [answers[start : start + n] for start in range(0, len(answers), n)]


def _has_native_async(llm: LLM) -> bool:
    """Whether an LLM awaits real I/O; a ``CustomLLM`` that keeps the inherited async methods blocks."""
    method = "achat" if llm.metadata.is_chat_model else "acomplete"
    # By name: LlamaIndex wraps inherited methods anew in every subclass.
    return bool(getattr(type(llm), method).__qualname__ != f"{CustomLLM.__name__}.{method}")
