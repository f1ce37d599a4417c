"""Who answers a method's questions: one program or many, sync or async, whole or streamed."""

from surerag.drivers.asynchronous import arun, arun_many
from surerag.drivers.many import run_many
from surerag.drivers.merging import MergeSettings, merge_settings
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.drivers.sync import run

__all__ = [
    "AnswerStream",
    "AsyncAnswerStream",
    "MergeSettings",
    "arun",
    "arun_many",
    "astream",
    "merge_settings",
    "run",
    "run_many",
    "stream",
]
