"""Calls of a runnable, blocking or awaited, so that what is done with their results is written once.

The reader's logic is coroutines over one of these two classes. Over :class:`Blocking` they never suspend, so
that :func:`complete` and :func:`iterate` run them for a synchronous caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from contextlib import aclosing, closing
from typing import Any, TypeVar

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import (
    ContextThreadPoolExecutor,
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    set_config_context,
)

from langchain_surerag.runs import AsyncListener, listener_of, with_purposes
from surerag.drivers import arun, complete, run
from surerag.effects import Program
from surerag.services import Services

T = TypeVar("T")


class Blocking:
    """Calls in this thread; several at once in threads of their own."""

    callback_manager = staticmethod(get_callback_manager_for_config)

    async def call(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Call a method and return its result."""
        return getattr(owner, method)(*arguments, **keywords)

    async def stream(
        self, runnable: Runnable[Any, Any], *arguments: Any, **keywords: Any
    ) -> AsyncGenerator[Any]:
        """Yield what a runnable streams."""
        chunks: Any = runnable.stream(*arguments, **keywords)
        with closing(chunks):
            for chunk in chunks:
                yield chunk

    async def run(self, config: RunnableConfig, program: Program[T], services: Services) -> T:
        """Answer a program's effects under the run of a config."""
        with set_config_context(config) as context:
            return context.run(run, with_purposes(program), services, on_event=listener_of(config))

    async def each(
        self, call: Callable[[Any], Coroutine[Any, Any, T]], items: Sequence[Any], limit: int
    ) -> list[T]:
        """Call for every item, ``limit`` at a time; a failure stops what has not begun."""
        if min(limit, len(items)) <= 1:
            return [await call(item) for item in items]
        with ContextThreadPoolExecutor(min(limit, len(items))) as pool:
            return list(pool.map(lambda item: complete(call(item)), items))


class Awaiting:
    """Calls that do not block the event loop."""

    callback_manager = staticmethod(get_async_callback_manager_for_config)

    async def call(self, owner: Any, method: str, *arguments: Any, **keywords: Any) -> Any:
        """Await the asynchronous twin of a method and return its result."""
        return await getattr(owner, f"a{method}")(*arguments, **keywords)

    async def stream(
        self, runnable: Runnable[Any, Any], *arguments: Any, **keywords: Any
    ) -> AsyncGenerator[Any]:
        """Yield what a runnable streams."""
        chunks: Any = runnable.astream(*arguments, **keywords)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk

    async def run(self, config: RunnableConfig, program: Program[T], services: Services) -> T:
        """Answer a program's effects under the run of a config."""
        async with AsyncListener(config) as listener:
            with set_config_context(config) as context:
                work = arun(with_purposes(program), services, on_event=listener)
                return await asyncio.create_task(work, context=context)

    async def each(
        self, call: Callable[[Any], Coroutine[Any, Any, T]], items: Sequence[Any], limit: int
    ) -> list[T]:
        """Call for every item, ``limit`` at a time; a failure cancels the others."""
        free = asyncio.Semaphore(limit)

        async def one(item: Any) -> T:
            async with free:
                return await call(item)

        tasks = [asyncio.create_task(one(item)) for item in items]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise


Calls = Blocking | Awaiting


def iterate(items: AsyncGenerator[T]) -> Iterator[T]:
    """Yield the items of an asynchronous generator that never suspends; none of them is None."""

    async def advance() -> T | None:
        return await anext(items, None)

    try:
        while (item := complete(advance())) is not None:
            yield item
    finally:
        complete(items.aclose())
