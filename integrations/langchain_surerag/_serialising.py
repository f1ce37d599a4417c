"""What of a chain can be written down, and what has to be attached again after loading."""

from __future__ import annotations

from typing import Any

from langchain_core.load import dumpd
from langchain_core.load.serializable import Serializable


def loads_again(service: object) -> bool:
    """Whether LangChain's own serialisation brings a service back, with everything in it."""
    if isinstance(service, str):
        return True
    return isinstance(service, Serializable) and not _lossy(dumpd(service))


def _lossy(dumped: Any) -> bool:
    if isinstance(dumped, dict):
        return dumped.get("type") == "not_implemented" or any(map(_lossy, dumped.values()))
    return isinstance(dumped, list) and any(map(_lossy, dumped))
