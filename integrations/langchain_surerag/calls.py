"""Calls of a runnable, blocking or awaited, so that what is done with their results is written once.

The parts' logic is coroutines over one of these two classes; over :class:`Blocking` they never suspend.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import (
    get_async_callback_manager_for_config,
    get_callback_manager_for_config,
    set_config_context,
)

from langchain_surerag.runs import AsyncListener, listener_of, with_purposes
from surerag.drivers import arun, run
from surerag.effects import Program
from surerag.readers import asking
from surerag.services import Services

T = TypeVar("T")


class Blocking(asking.Blocking):
    """Calls in this thread; several at once in threads of their own."""

    callback_manager = staticmethod(get_callback_manager_for_config)

    async def run(self, config: RunnableConfig, program: Program[T], services: Services) -> T:
        """Answer a program's effects under the run of a config."""
        with set_config_context(config) as context:
            return context.run(run, with_purposes(program), services, on_event=listener_of(config))


class Awaiting(asking.Awaiting):
    """Calls that do not block the event loop."""

    callback_manager = staticmethod(get_async_callback_manager_for_config)

    async def run(self, config: RunnableConfig, program: Program[T], services: Services) -> T:
        """Answer a program's effects under the run of a config."""
        async with AsyncListener(config) as listener:
            with set_config_context(config) as context:
                work = arun(with_purposes(program), services, on_event=listener)
                return await asyncio.create_task(work, context=context)


Calls = Blocking | Awaiting
