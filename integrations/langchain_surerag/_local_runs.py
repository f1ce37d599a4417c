"""Requests to readers that are no models of LangChain's, as runs that callbacks and tracers see.

A model in this process is asked by a driver, in batches with other callers' requests, and nothing of
LangChain is on the way. So the program that asks tells of it: a start, tokens where they stream, an end with
the count of tokens, or the error. What is told goes to the listener that hears a method's events, too: in
order, and awaited where the caller awaits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import UUID, uuid4

from langchain_core.callbacks import AsyncCallbackManager, CallbackManager
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, LLMResult
from langchain_core.runnables import RunnableConfig

from langchain_surerag._asking import prompt_value
from langchain_surerag._holding import Hold
from langchain_surerag._model_reader import ModelReader
from langchain_surerag._passes import PASS, Pass, pass_of, tagged
from surerag import Services
from surerag.effects import CancelGeneration, ContinueGeneration, Effect, Generate, Program, StartGeneration
from surerag.messages import Event, Generation, PartialGeneration, Prompt, SamplingParams

T = TypeVar("T")
Listener = Callable[[Event], None]


@dataclass(frozen=True, slots=True)
class RunEvent(Event):
    """Something that befell a run; a listener tells the run's handlers of it."""

    run: LocalRun | None = None
    verb: str = ""
    given: tuple[Any, ...] = ()

    def tell(self, config: RunnableConfig) -> None:
        """Tell handlers."""
        getattr(self.run, self.verb)(config, *self.given)

    async def atell(self, config: RunnableConfig) -> None:
        """Tell handlers, awaiting those that are to be awaited."""
        await getattr(self.run, f"a{self.verb}")(config, *self.given)


class LocalRun:
    """One prompt that a reader is asked: the run of a chat model, whoever the reader is."""

    def __init__(self, reader: Any, prompt: Prompt, sampling: SamplingParams, at: Pass) -> None:
        self._id: UUID = uuid4()
        self._message_id = f"lc_run--{self._id}"
        self._name = reader.name
        self._class = type(reader).__name__
        self._messages = [prompt_value(prompt).to_messages()]
        self._sampling = sampling
        self._at = at
        self._hold = Hold() if at == "gate" else None
        self._run: Any = None

    def start(self, config: RunnableConfig) -> None:
        """Open the run."""
        named = tagged(config, self._at)
        manager = CallbackManager.configure(self._callbacks(named), **self._inherited(named))
        [self._run] = manager.on_chat_model_start(*self._opening(), **self._described(named))

    async def astart(self, config: RunnableConfig) -> None:
        named = tagged(config, self._at)
        manager = AsyncCallbackManager.configure(self._callbacks(named), **self._inherited(named))
        [self._run] = await manager.on_chat_model_start(*self._opening(), **self._described(named))

    def keep(self, config: RunnableConfig) -> None:
        """Show what is a draft no more."""
        if self._hold is not None:
            self._hold.keep()

    async def akeep(self, config: RunnableConfig) -> None:
        if self._hold is not None:
            await self._hold.akeep()

    def token(self, config: RunnableConfig, text: str) -> None:
        """Show a piece of the answer."""
        self._run.on_llm_new_token(text, chunk=self._chunk(text))

    async def atoken(self, config: RunnableConfig, text: str) -> None:
        await self._run.on_llm_new_token(text, chunk=self._chunk(text))

    def end(self, config: RunnableConfig, answers: Sequence[Generation]) -> None:
        """Close the run; of a draft that was not kept, nothing was shown."""
        if self._hold is not None:
            self._hold.drop()
        self._run.on_llm_end(self._result(answers))

    async def aend(self, config: RunnableConfig, answers: Sequence[Generation]) -> None:
        if self._hold is not None:
            await self._hold.adrop()
        await self._run.on_llm_end(self._result(answers))

    def fail(self, config: RunnableConfig, error: BaseException) -> None:
        """Close the run with an error."""
        self._run.on_llm_error(error, response=LLMResult(generations=[]))

    async def afail(self, config: RunnableConfig, error: BaseException) -> None:
        await self._run.on_llm_error(error, response=LLMResult(generations=[]))

    def _callbacks(self, config: RunnableConfig) -> Any:
        callbacks = config.get("callbacks")
        return callbacks if self._hold is None else self._hold.over(callbacks)

    def _inherited(self, config: RunnableConfig) -> dict[str, Any]:
        metadata = {
            **(config.get("metadata") or {}),
            "ls_provider": "surerag",
            "ls_model_type": "chat",
            "ls_model_name": self._name,
            "ls_temperature": self._sampling.temperature,
            "ls_max_tokens": self._sampling.max_tokens,
        }
        return {"inheritable_tags": config.get("tags"), "inheritable_metadata": metadata}

    def _opening(self) -> tuple[dict[str, Any], list[list[BaseMessage]]]:
        serialized = {"lc": 1, "type": "not_implemented", "id": ["surerag", self._class], "name": self._class}
        return serialized, self._messages

    def _described(self, config: RunnableConfig) -> dict[str, Any]:
        sampling = self._sampling
        asked = {"model": self._name, "temperature": sampling.temperature, "max_tokens": sampling.max_tokens}
        return {
            "run_id": self._id,
            "name": config.get("run_name") or self._class,
            "invocation_params": {**asked, "n": sampling.n, "seed": sampling.seed},
            "options": {"stop": list(sampling.stop) or None},
            "batch_size": 1,
        }

    def _chunk(self, text: str) -> ChatGenerationChunk:
        return ChatGenerationChunk(message=AIMessageChunk(content=text, id=self._message_id))

    def _result(self, answers: Sequence[Generation]) -> LLMResult:
        prompt_tokens = max((answer.prompt_tokens for answer in answers), default=0)
        written = sum(answer.completion_tokens + answer.thinking_tokens for answer in answers)
        usage = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": written,
            "total_tokens": prompt_tokens + written,
        }
        found: list[Any] = [ChatGeneration(message=self._message(answer)) for answer in answers]
        return LLMResult(generations=[found], llm_output={"token_usage": usage, "model_name": self._name})

    def _message(self, answer: Generation) -> AIMessage:
        written = answer.completion_tokens + answer.thinking_tokens
        return AIMessage(
            answer.text,
            id=self._message_id,
            response_metadata={"model_name": self._name, "finish_reason": answer.finish},
            usage_metadata={
                "input_tokens": answer.prompt_tokens,
                "output_tokens": written,
                "total_tokens": answer.prompt_tokens + written,
            },
        )


class _Draft(NamedTuple):
    """A run that is open, and what was begun in it."""

    run: LocalRun
    begun: PartialGeneration


class Watch:
    """Tells of one program's requests: which pass they belong to, and of runs that nobody else tells of.

    Args:
        services: Who answers the program.
        on_event: Who hears of it.
    """

    def __init__(self, services: Services, on_event: Listener) -> None:
        self._services = services
        self._on_event = on_event
        self._begun: dict[int, _Draft] = {}
        self._open: list[LocalRun] = []

    def over(self, program: Program[T]) -> Program[T]:
        """Return the program, watched.

        Steps of a program run in a context of its own, and so do the requests that it asks for. Within
        another method (a rewriting retriever of a lazy chain), all is on the way.
        """
        within = PASS.get() is not None
        effect = next(program)
        while True:
            at: Pass = "step" if within else pass_of(effect)
            PASS.set(at)
            self._before(effect, at)
            try:
                answer = yield effect
            except BaseException as error:
                self._failed(error)
                if isinstance(error, GeneratorExit):
                    self._left()
                    program.close()
                    raise
                step = partial(program.throw, error)
            else:
                self._after(effect, answer)
                step = partial(program.send, answer)
            try:
                effect = step()
            except StopIteration as stop:
                result: T = stop.value
                return result
            except BaseException:
                self._left()
                raise

    def token(self, text: str) -> None:
        """Tell of a piece of the answer that streams now."""
        for run in self._open[:1]:
            self._tell(run, "token", text)

    def _before(self, effect: Effect, at: Pass) -> None:
        match effect:
            case Generate(prompts, sampling) | StartGeneration(prompts, _, sampling):
                reader = self._reader(effect)
                if reader is None:
                    return
                self._open = [LocalRun(reader, prompt, sampling, at) for prompt in prompts]
                for run in self._open:
                    self._tell(run, "start")
            case ContinueGeneration(begun):
                self._open = [self._begun[id(item)].run for item in begun if id(item) in self._begun]
                for run in self._open:
                    self._tell(run, "keep")
            case CancelGeneration(begun):
                self._cancelled(begun)

    def _after(self, effect: Effect, answer: Any) -> None:
        runs, self._open = self._open, []
        match effect:
            case StartGeneration() if runs:
                drafts = map(_Draft, runs, answer)
                self._begun.update((id(draft.begun), draft) for draft in drafts)
            case Generate() if runs:
                for run, answers in zip(runs, answer, strict=True):
                    self._tell(run, "end", answers)
            case ContinueGeneration(begun) if runs:
                for item, run, whole in zip(begun, runs, answer, strict=True):
                    del self._begun[id(item)]
                    self._tell(run, "end", [whole])

    def _cancelled(self, begun: Sequence[PartialGeneration]) -> None:
        for item in begun:
            draft = self._begun.pop(id(item), None)
            if draft is not None:
                self._tell(draft.run, "end", [item.partial])

    def _failed(self, error: BaseException) -> None:
        """Tell of requests that ended in an error, or that nobody waits for any more."""
        runs, self._open = self._open, []
        for run in runs:
            self._begun = {key: draft for key, draft in self._begun.items() if draft.run is not run}
            self._tell(run, "fail", error)

    def _left(self) -> None:
        """Tell of drafts that a program leaves behind."""
        self._cancelled([draft.begun for draft in self._begun.values()])

    def _reader(self, effect: Effect) -> Any:
        rewriter = self._services.rewriter
        asked = isinstance(effect, Generate) and effect.role == "rewriter" and rewriter is not None
        reader = rewriter if asked else self._services.reader
        # A LangChain model tells of itself.
        return None if isinstance(reader, ModelReader) else reader

    def _tell(self, run: LocalRun, verb: str, *given: Any) -> None:
        self._on_event(RunEvent(f"run.{verb}", run=run, verb=verb, given=given))
