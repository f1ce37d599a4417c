"""surerag's drivers, with every request of a program known to LangChain's callbacks for what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from langchain_surerag._local_runs import Watch
from surerag import Services
from surerag import arun as core_arun
from surerag import run as core_run
from surerag.effects import Program
from surerag.messages import Event

T = TypeVar("T")


def run(program: Program[T], services: Services, *, on_event: Callable[[Event], None]) -> T:
    """Answer a program's effects in this thread."""
    return core_run(Watch(services, on_event).over(program), services, on_event=on_event)


async def arun(program: Program[T], services: Services, *, on_event: Callable[[Event], None]) -> T:
    """Answer a program's effects without blocking the event loop."""
    return await core_arun(Watch(services, on_event).over(program), services, on_event=on_event)
