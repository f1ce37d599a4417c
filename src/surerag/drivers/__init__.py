"""Drivers: functions that run a method's generator and answer its requests, sync or async."""

from surerag.drivers.many import aiter_many, arun_many, iter_many, run_many
from surerag.drivers.running import arun, run
from surerag.drivers.session import sentence_of
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.readers.calls import maybe_await, run_blocking

__all__ = [
    "AnswerStream", "AsyncAnswerStream", "aiter_many", "arun", "arun_many", "astream", "iter_many",
    "maybe_await", "run", "run_blocking", "run_many", "sentence_of", "stream",
]  # fmt: skip
