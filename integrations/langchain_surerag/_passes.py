"""Which pass of a method a request belongs to: streams and traces can tell what counts from what does not.

A draft that a gate looks at, samples that are compared, rephrasings: all of these are requests to the user's
own model, and whatever listens to it (LangGraph's ``stream_mode="messages"``, ``astream_events``) would show
them as answers. So each request carries tags that say what it is for.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import merge_configs

from surerag.effects import ContinueGeneration, Generate, StartGeneration

Pass = Literal["gate", "step", "answer"]
"""What a request is for: a draft that a gate looks at, something on the way, or the answer itself."""

NOSTREAM = "nostream"
"""LangGraph's own tag for models whose tokens are not to be shown."""
GATE = "surerag:gate"
ANSWER = "surerag:answer"

TAGS: Mapping[Pass, tuple[str, ...]] = {
    "gate": (NOSTREAM, GATE),
    "step": (NOSTREAM, "surerag:step"),
    "answer": (ANSWER,),
}
_NAMES: Mapping[Pass, str] = {"gate": GATE, "answer": ANSWER}

PASS: ContextVar[Pass | None] = ContextVar("surerag_langchain_pass", default=None)
"""The pass at work; None outside of any method."""


def pass_of(effect: object) -> Pass:
    """Return what an effect is for."""
    match effect:
        case StartGeneration():
            return "gate"
        case Generate(answer=True) | ContinueGeneration(answer=True):
            return "answer"
        case _:
            return "step"


def tagged(config: RunnableConfig, at: Pass | None) -> RunnableConfig:
    """Return a config whose run says which pass it is; a name that the user gave it stays."""
    if at is None:
        return config
    told: dict[str, Any] = {"tags": list(TAGS[at])}
    if at in _NAMES and not config.get("run_name"):
        told["run_name"] = _NAMES[at]
    return merge_configs(config, RunnableConfig(**told))  # type: ignore[typeddict-item]  # keys of a config
