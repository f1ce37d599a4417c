"""Who answers a method's questions: one program or many, sync or async, whole or streamed."""

from surerag.drivers.asynchronous import aiter_many, arun, arun_many
from surerag.drivers.many import iter_many, run_many
from surerag.drivers.merging import MergeSettings, merge_settings
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.drivers.sync import run

__all__ = [
    "AnswerStream",
    "AsyncAnswerStream",
    "MergeSettings",
    "aiter_many",
    "arun",
    "arun_many",
    "astream",
    "iter_many",
    "merge_settings",
    "run",
    "run_many",
    "stream",
]
