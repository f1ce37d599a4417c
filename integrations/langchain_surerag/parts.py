"""The base of LangChain's parts: prompts, services that come back after loading, many inputs at once."""

from __future__ import annotations

import contextvars
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cache
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

from langchain_core.callbacks import AsyncCallbackManagerForChainRun, CallbackManagerForChainRun, Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.load import dumpd
from langchain_core.load.serializable import Serializable, SerializedConstructor, SerializedNotImplemented
from langchain_core.runnables import (
    Runnable,
    RunnableConfig,
    RunnableSerializable,
    ensure_config,
)
from langchain_core.runnables.config import var_child_runnable_config
from pydantic import ConfigDict, Field, create_model, field_serializer
from surerag.adapting import Adapted

from langchain_surerag._driving import arun, run
from langchain_surerag._events import Announcing, announce
from langchain_surerag._local_runs import Watch
from langchain_surerag.prompts import for_core
from langchain_surerag.prompts import plain as plain_prompts
from surerag import Services, run_many
from surerag.effects import Program
from surerag.errors import ConfigurationError, InputError, MissingServiceError
from surerag.options import plain

T = TypeVar("T")
Out = TypeVar("Out")

WINDOW = 64
"""Questions that a batch asks a local model at the same time, if the caller sets no limit."""


class AdaptedPart(Adapted[T]):
    """A method with LangChain's prompts: texts, or templates in f-string format, those of chats included."""

    @field_serializer("prompts", check_fields=False)
    def _plain_prompts(self, prompts: Mapping[str, Any]) -> dict[str, Any]:
        return plain_prompts(prompts)

    @classmethod
    def _templates(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        return for_core(given)


class SerializablePart(AdaptedPart[T], Serializable):
    """A part that serialises with LangChain's ``dumps``.

    Services that cannot be written down (a local model, most vector stores) are left out, named in
    ``detached``, and given back with :meth:`attach`.

    Attributes:
        detached: Services that were left out when this was written down.
    """

    SERVICES: ClassVar[tuple[str, ...]] = ()

    detached: tuple[str, ...] = ()

    @property
    def core(self) -> T:
        """The method with its options and services.

        Raises:
            MissingServiceError: If a service was left out when this was written down.
        """
        for name in self.detached:
            raise MissingServiceError(
                f"this {type(self).__name__} was loaded without its {name}", hint=f"call attach({name}=…)"
            )
        return super().core

    def _build(self) -> None:
        if not self.detached:
            super()._build()

    def attach(self, **services: Any) -> Self:
        """Return a copy with services given back that serialisation left out, or with others.

        Args:
            **services: By their names.

        Raises:
            ConfigurationError: If a name is unknown.
            MissingServiceError: If one is still missing.
        """
        left = tuple(name for name in self.detached if name not in services)
        return self.with_options(detached=left, **services)

    @classmethod
    def is_lc_serializable(cls) -> bool:
        """Say that ``dumps`` and ``loads`` work."""
        return True

    def to_json(self) -> SerializedConstructor | SerializedNotImplemented:
        """Write this down; services that could not be loaded again are left out and named."""
        left = [
            name for name in self.SERVICES if getattr(self, name) is not None and not self._loads_again(name)
        ]
        detached = tuple(dict.fromkeys([*self.detached, *left]))
        own = {name: type(self).model_fields[name].default for name in left}
        written = self.model_copy(update={**own, "detached": detached})
        found: Any = super(SerializablePart, written).to_json()
        # LangChain writes no objects but its own: a calibration goes as a mapping.
        found["kwargs"] = {
            name: plain(value) if name in self.OPTIONS and is_dataclass(value) else value
            for name, value in found.get("kwargs", {}).items()
        }
        return cast("SerializedConstructor", found)

    def _loads_again(self, name: str) -> bool:
        """Whether a service, or an option that may hold a function, comes back with everything in it."""
        value = getattr(self, name)
        if name not in self.OPTIONS:
            return _loads_again(value)
        try:
            return bool(self.OPTIONS[name].checked(plain(value)) == value)
        except ConfigurationError:
            return False


class MethodRunnable(SerializablePart[T], RunnableSerializable[Any, Out], Generic[T, Out]):
    """A runnable around a method: one input to one result, alone or in batches.

    ``batch`` and ``abatch`` read a local model's inputs in merged batches; each input has a run of its own.
    """

    @abstractmethod
    def _program(self, given: Any) -> Program[Any]:
        """Return the method at work on one input."""

    @abstractmethod
    def _output(self, result: Any) -> Out:
        """Return a result as this runnable gives it."""

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Out:
        """Work on one input."""
        return self._call_with_config(self._answer, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Out:
        """Work on one input without blocking the event loop."""
        return await self._acall_with_config(self._aanswer, input, config, **kwargs)

    def batch(
        self,
        inputs: list[Any],
        config: RunnableConfig | list[RunnableConfig] | None = None,
        *,
        return_exceptions: bool = False,
        **kwargs: Any,
    ) -> list[Out]:
        """Work on many inputs, at most ``max_concurrency`` at a time."""
        reader = None if self.detached else self._services().reader
        if reader is None or not reader.capabilities.local:
            return super().batch(inputs, config, return_exceptions=return_exceptions, **kwargs)
        return self._batch_with_config(
            self._answers, inputs, config, return_exceptions=return_exceptions, **kwargs
        )

    def _services(self) -> Services:
        core: Any = self.core
        services: Services = core.services
        return services

    def _answer(self, given: Any, run_manager: CallbackManagerForChainRun, config: RunnableConfig) -> Out:
        return self._output(run(self._program(given), self._services(), on_event=announce))

    async def _aanswer(
        self, given: Any, run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> Out:
        program = self._program(given)
        async with Announcing(config) as listener:
            return self._output(await arun(program, self._services(), on_event=listener))

    def _answers(
        self, given: list[Any], run_manager: list[CallbackManagerForChainRun], config: list[RunnableConfig]
    ) -> list[Out | Exception]:
        results = in_one_thread(self._program, self._services(), given, config)
        return [item if isinstance(item, Exception) else self._output(item) for item in results]


def in_one_thread(
    program_of: Callable[[Any], Program[T]],
    services: Services,
    given: Sequence[Any],
    configs: Sequence[RunnableConfig],
) -> list[T | Exception]:
    """Work on many inputs in this thread, so that a local model reads them together.

    Args:
        program_of: From an input to the method at work on it; what it raises is that input's failure.
        services: Who answers.
        given: The inputs.
        configs: The config that each runs under.

    Returns:
        Results in order; an input that failed is answered by its error.
    """

    def program(one: Any, config: RunnableConfig) -> Program[T]:
        # A driver copies the context right after it was handed a program: what is set here stays with it.
        var_child_runnable_config.set(config)

        def work() -> Program[T]:
            return (yield from program_of(one))

        return Watch(services, announce).over(work())

    results: list[T | Exception] = contextvars.copy_context().run(
        run_many,
        (program(one, config) for one, config in zip(given, configs, strict=True)),
        services,
        window=configs[0].get("max_concurrency") or WINDOW,
        on_event=announce,
        return_exceptions=True,
    )
    return results


def _loads_again(service: object) -> bool:
    """Whether LangChain's own serialisation brings a service back, with everything in it."""
    if isinstance(service, str):
        return True
    return isinstance(service, Serializable) and not _lossy(dumpd(service))


def _lossy(dumped: Any) -> bool:
    if isinstance(dumped, dict):
        return dumped.get("type") == "not_implemented" or any(map(_lossy, dumped.values()))
    return isinstance(dumped, list) and any(map(_lossy, dumped))


class Wanted(NamedTuple):
    """Documents, and the query for which to compress them."""

    documents: Sequence[Document]
    query: str


def config_of(callbacks: Callbacks | None) -> RunnableConfig:
    """Return the caller's config, with the callbacks that it hands over."""
    return ensure_config(RunnableConfig(callbacks=callbacks) if callbacks is not None else None)


class CompressorRunnable(RunnableSerializable[dict[str, Any], list[Document]]):
    """A compressor as a runnable, from a mapping with ``documents`` and ``query`` to what it makes of it.

    It has the compressor's options as fields of its own, so that ``configurable_fields`` takes them; one that
    is not set is the compressor's.

    Attributes:
        compressor: The compressor.

    Raises:
        InputError: When it is asked, if ``documents`` or ``query`` is not there.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    compressor: Any

    def invoke(self, input: dict[str, Any], config: RunnableConfig | None = None, **_: Any) -> list[Document]:
        """Compress."""
        return self._call_with_config(self._compressed, input, config)

    async def ainvoke(
        self, input: dict[str, Any], config: RunnableConfig | None = None, **_: Any
    ) -> list[Document]:
        """Compress without blocking the event loop."""
        return await self._acall_with_config(self._acompressed, input, config)

    def get_name(self, suffix: str | None = None, *, name: str | None = None) -> str:
        """Name the compressor, as traces show it."""
        return super().get_name(suffix, name=name or self.name or type(self.compressor).__name__)

    def _compressed(
        self, given: dict[str, Any], run_manager: CallbackManagerForChainRun, config: RunnableConfig
    ) -> list[Document]:
        documents, query = _wanted(given)
        return list(self._configured().compress_documents(documents, query, config.get("callbacks")))

    async def _acompressed(
        self, given: dict[str, Any], run_manager: AsyncCallbackManagerForChainRun, config: RunnableConfig
    ) -> list[Document]:
        documents, query = _wanted(given)
        return list(await self._configured().acompress_documents(documents, query, config.get("callbacks")))

    def _configured(self) -> Any:
        given = {name: getattr(self, name) for name in self.compressor.OPTIONS}
        changed = {name: value for name, value in given.items() if value is not UNSET}
        return self.compressor.with_options(**changed) if changed else self.compressor


UNSET: Any = object()
"""An option that is as the compressor has it."""


@cache
def _runnable_class(compressor: type[Any]) -> type[CompressorRunnable]:
    fields: dict[str, Any] = {
        name: (Any, Field(default=UNSET, description=option.doc))
        for name, option in compressor.OPTIONS.items()
    }
    return create_model(f"{compressor.__name__}Runnable", __base__=CompressorRunnable, **fields)


def runnable_of(compressor: BaseDocumentCompressor) -> Runnable[dict[str, Any], list[Document]]:
    """Return a runnable of a compressor of ours; its options can be made configurable."""
    return _runnable_class(type(compressor))(compressor=compressor)


def _wanted(given: Mapping[str, Any]) -> Wanted:
    missing = {"documents", "query"} - given.keys()
    if missing:
        raise InputError(
            f"there is no {' and no '.join(sorted(missing))} to compress",
            hint='pass {"documents": …, "query": …}',
        )
    return Wanted(given["documents"], given["query"])
