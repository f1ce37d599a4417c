"""Any LlamaIndex LLM as a reader of text alone, and what all readers over an LLM share."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from llama_index.core.llms import LLM

from llama_index_surerag._dialect_requests import CallOptions, DialectRequests
from llama_index_surerag._fanout import Turns
from llama_index_surerag._manners import LOGPROBS_HINT, Manners
from llama_index_surerag.dialects import LLMAnswer, LLMDialect
from surerag.errors import (
    ContextLengthError,
    LogprobsError,
    RefusedError,
    ServiceError,
    SureragError,
    ThinkingBudgetError,
    TransientServiceError,
)
from surerag.messages import ANSWER_TOKENS, Chunk, FinishReason, Generation, Prompt, SamplingParams, Usage
from surerag.readers import BaseReader, Capabilities
from surerag.readers.closing import HangUp, close_in_loop_when_dropped, close_when_dropped
from surerag.readers.failures import REFUSED_HINT, kind_of
from surerag.readers.hosted.requests import seed_of
from surerag.readers.pieces import TrimmedPieces, cut_at_stop
from surerag.readers.thinking import ThoughtSplitter
from surerag.readers.usage import UsageCount


@contextmanager
def failures_of(llm: LLM, logprobs_hint: str = LOGPROBS_HINT) -> Iterator[None]:
    """Turn whatever an LLM's own code raises into an error that names the LLM.

    Args:
        llm: The LLM.
        logprobs_hint: What to do where log-probabilities are missing.

    Raises:
        TransientServiceError: For rate limits, overload, time-outs and lost connections.
        ContextLengthError: For a prompt that does not fit the model's window.
        RefusedError: For what would be refused for every prompt: key, address, model, parameters.
        ServiceError: For everything else.
    """
    try:
        yield
    except (RefusedError, Warning):
        raise
    except LogprobsError as error:
        raise LogprobsError(
            f"{type(llm).__name__}: {without_hint(error)}",
            hint=f"{logprobs_hint}; reader_from_llm(llm, logprobs=False) serves what needs text only",
        ) from error
    except SureragError as error:
        if type(error) is not ServiceError:
            raise
        raise ServiceError(f"{type(llm).__name__}: {without_hint(error)}", hint=error.hint) from error
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


def without_hint(error: SureragError) -> str:
    """Return what was found, without what to do about it."""
    return str(error)[: -len(error.hint) - len(". .")] if error.hint else str(error)


@dataclass(frozen=True)
class LLMSettings:
    """How a reader uses a user's LLM.

    Attributes:
        name: Identity of the model.
        max_concurrency: Requests to have in flight at a time.
        manners: What it is found to refuse.
        call_options: What to pass to the LLM with each call; None passes nothing.
    """

    name: str
    max_concurrency: int
    manners: Manners
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

    @property
    def _thinking(self) -> Literal["none", "off", "apart"]:
        """What is known of the model's thinking: from its answers so far, and from how the LLM was built."""
        off = (
            getattr(self._llm, "thinking", None) is False
            or getattr(self._llm, "reasoning_effort", None) == "none"
        )
        if off:
            return "off"
        return "apart" if self._settings.manners.thinks else "none"

    def _count(self, requests: int, generations: Sequence[Generation] = ()) -> None:
        read = generations[0].prompt_tokens if generations else 0
        written = sum(generation.completion_tokens for generation in generations)
        thought = sum(generation.thinking_tokens for generation in generations)
        cached = generations[0].cached_tokens if generations else 0
        self._usage.add(Usage(requests, read, written, thought, cached))


def spent_thinking(llm: LLM) -> ThinkingBudgetError:
    """Return the error for a model that was still thinking when its tokens were spent."""
    return ThinkingBudgetError(
        f"{type(llm).__name__}: the model was still thinking when its tokens were spent",
        hint="raise the LLM's max_tokens, or have it think less (reasoning_effort=…, thinking=False, or "
        'additional_kwargs={"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}})',
    )


class TextLLMReader(LLMReader):
    """A reader that knows what its LLM says, and nothing of how sure it is.

    The LLM generates as it was built: of a sampling, ``n`` (by asking again) and ``stop`` (by cutting)
    are kept by this reader, and the rest reaches only an LLM whose dialect says how.

    Args:
        llm: Any LlamaIndex LLM.
        settings: How to use it.
        dialect: How it is asked and read.
    """

    def __init__(self, llm: LLM, settings: LLMSettings, dialect: LLMDialect) -> None:
        super().__init__(llm, settings)
        self._dialect = dialect
        self._requests = DialectRequests(llm, dialect, settings.manners, call_options=settings.call_options)

    @property
    def capabilities(self) -> Capabilities:
        """No log-probabilities, hence no entropies."""
        return Capabilities(
            logprobs=False,
            entropy=None,
            stream=True,
            native_async=self._requests.native_async,
            thinking=self._thinking,
        )

    def generate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Return ``sampling.n`` answers to each prompt, each by a call of its own."""
        jobs = self._jobs(prompts, sampling)
        answers = self._turns.map(lambda job: self._one(*job, sampling), jobs)
        return _rows(answers, sampling.n)

    async def agenerate(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[list[Generation]]:
        """Like ``generate``; LLMs without an async of their own work in threads."""
        if not self._requests.native_async:
            return await super().agenerate(prompts, sampling)
        jobs = self._jobs(prompts, sampling)
        answers = await self._turns.amap(lambda job: self._aone(*job, sampling), jobs)
        return _rows(answers, sampling.n)

    def stream(self, prompt: Prompt, sampling: SamplingParams) -> Iterator[Chunk]:
        """Yield an answer as the LLM streams it; whole, if it cannot stream."""
        sampling = replace(sampling, n=1, trace="none")
        said = _Said(sampling)
        hang_up: HangUp | None = None
        try:
            with failures_of(self._llm):
                line = self._requests.open(prompt, sampling)
                hang_up = close_when_dropped(said, line.hang_up)
                for response in line.stream:
                    yield Chunk(said.feed(self._dialect.piece(response)))
                    if said.stopped:
                        break
        except ServiceError as error:
            if said.text or not isinstance(error.__cause__, NotImplementedError):
                raise
            yield from super().stream(prompt, sampling)
            return
        finally:
            # An answer that nobody reads on would go on being generated.
            if hang_up is not None:
                hang_up()
        yield self._last(said)

    async def astream(self, prompt: Prompt, sampling: SamplingParams) -> AsyncIterator[Chunk]:
        """Like ``stream``; LLMs without an async of their own work in threads."""
        if not self._requests.native_async:
            async for chunk in super().astream(prompt, sampling):
                yield chunk
            return
        sampling = replace(sampling, n=1, trace="none")
        said = _Said(sampling)
        hang_up: HangUp | None = None
        try:
            with failures_of(self._llm):
                line = await self._requests.aopen(prompt, sampling)
                hang_up = close_in_loop_when_dropped(said, line.hang_up)
                async for response in line.stream:
                    yield Chunk(said.feed(self._dialect.piece(response)))
                    if said.stopped:
                        break
        except ServiceError as error:
            if said.text or not isinstance(error.__cause__, NotImplementedError):
                raise
            [[answer]] = await self.agenerate([prompt], sampling)
            yield Chunk(answer.text, answer)
            return
        finally:
            if hang_up is not None:
                hang_up()
        yield self._last(said)

    def _jobs(self, prompts: Sequence[Prompt], sampling: SamplingParams) -> list[_Job]:
        self._tell_of_temperature(sampling)
        return [_Job(prompt, sample) for prompt in prompts for sample in range(sampling.n)]

    def _tell_of_temperature(self, sampling: SamplingParams) -> None:
        """Say once that several answers are drawn at another temperature than the method's."""
        built = getattr(self._llm, "temperature", None)
        told = self._settings.call_options or "temperature" in self._dialect.takes
        if sampling.n > 1 and not told and built is not None and built != sampling.temperature:
            name = type(self._llm).__name__
            self._settings.manners.say_once(
                "temperature",
                f"several answers are to be drawn at temperature={sampling.temperature!r}, and {name} was "
                f"built with temperature={built!r}, which holds; reader_from_llm(llm, call_options=lambda "
                'sampling: {"temperature": sampling.temperature}) passes it with each call',
            )

    def _one(self, prompt: Prompt, sample: int, sampling: SamplingParams) -> Generation:
        plain, seed = replace(sampling, trace="none"), seed_of(sampling.seed, sample)
        had_room = self._settings.manners.thinks
        with failures_of(self._llm):
            found = self._read(self._requests.answer(prompt, plain, seed), sampling)
            if found is None and self._has_more_room(had_room):
                found = self._read(self._requests.answer(prompt, plain, seed), sampling)
        if found is None:
            raise spent_thinking(self._llm)
        return found

    async def _aone(self, prompt: Prompt, sample: int, sampling: SamplingParams) -> Generation:
        plain, seed = replace(sampling, trace="none"), seed_of(sampling.seed, sample)
        had_room = self._settings.manners.thinks
        with failures_of(self._llm):
            found = self._read(await self._requests.aanswer(prompt, plain, seed), sampling)
            if found is None and self._has_more_room(had_room):
                found = self._read(await self._requests.aanswer(prompt, plain, seed), sampling)
        if found is None:
            raise spent_thinking(self._llm)
        return found

    def _has_more_room(self, had_room: bool) -> bool:
        """Whether asking again, without a limit that was meant for the answer, may bring one."""
        return not had_room and "max_tokens" in self._dialect.takes

    def _read(self, answer: LLMAnswer, sampling: SamplingParams) -> Generation | None:
        """Return an answer without its thoughts; None if it ended inside them."""
        thoughts = ThoughtSplitter()
        thoughts.feed(answer.text)
        thoughts.end()
        text = thoughts.answer
        if thoughts.thought or answer.thoughts or answer.thinking_tokens:
            self._settings.manners.thinks = True
            if thoughts.thinking or (not text.strip() and answer.finish == "length"):
                self._count(1)
                return None
        before = cut_at_stop(text, sampling.stop)
        generation = Generation(
            (text if before is None else before).strip(),
            prompt_tokens=answer.prompt_tokens,
            finish="stop" if before is not None else answer.finish or "stop",
            completion_tokens=max(answer.completion_tokens - answer.thinking_tokens, 0),
            thinking_tokens=answer.thinking_tokens,
            cached_tokens=min(answer.cached_tokens, answer.prompt_tokens),
        )
        self._count(1, [generation])
        return generation

    def _last(self, said: _Said) -> Chunk:
        held = said.end()
        if said.spent:
            raise spent_thinking(self._llm)
        generation = Generation(said.text.strip(), finish=said.finish)
        self._count(1, [generation])
        return Chunk(held, generation)


class _Job(NamedTuple):
    """One answer to one prompt: the first is sample 0."""

    prompt: Prompt
    sample: int


_HARMONYS_ENDS = ("<|return|>", "<|end|>", "<|call|>")
"""What a service may leave at the end of an answer of gpt-oss."""


class _Said:
    """A streamed answer: without its thoughts, and up to its stop text."""

    def __init__(self, sampling: SamplingParams) -> None:
        self._thoughts = ThoughtSplitter()
        self._stop = sampling.stop
        self._shown = Shown(sampling)
        self.finish: FinishReason = "stop"

    @property
    def text(self) -> str:
        return self._shown.text

    @property
    def stopped(self) -> bool:
        return self._shown.stopped

    @property
    def spent(self) -> bool:
        """Whether it ended inside its thoughts."""
        return self._thoughts.thinking

    def feed(self, piece: LLMAnswer) -> str:
        """Take a piece and return what may be shown now."""
        self.finish = piece.finish or self.finish
        answer = self._thoughts.feed(piece.text)
        if self._thoughts.thought:
            self._shown.stop = (*self._stop, *_HARMONYS_ENDS)
        return self._shown.feed(answer)

    def end(self) -> str:
        """Return what was held back."""
        return self._shown.feed(self._thoughts.end(), last=True)


class Shown:
    """A streamed answer up to its stop text; what might be the beginning of one is held back."""

    def __init__(self, sampling: SamplingParams) -> None:
        self.stop = sampling.stop
        self._pieces = TrimmedPieces()
        self._shown = 0
        self.text = ""
        self.stopped = False

    def feed(self, added: str, *, last: bool = False) -> str:
        """Take what the LLM added and return what may be shown now."""
        if not self.stopped:
            before = cut_at_stop(self.text + added, self.stop)
            self.stopped = before is not None
            self.text = self.text + added if before is None else before
        end = len(self.text) - (0 if last or self.stopped else self._might_stop())
        fresh, self._shown = self.text[self._shown : end], max(end, self._shown)
        return self._pieces.feed(fresh)

    def _might_stop(self) -> int:
        """Length of the longest ending that is the beginning of a stop text."""
        lengths = (n for stop in self.stop for n in range(1, len(stop)) if self.text.endswith(stop[:n]))
        return max(lengths, default=0)


def _rows(answers: list[Generation], n: int) -> list[list[Generation]]:
    return [answers[start : start + n] for start in range(0, len(answers), n)]
