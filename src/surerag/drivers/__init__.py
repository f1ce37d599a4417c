"""Drivers answer the effects of programs: of one or many, sync or async, whole or streamed."""

from surerag.drivers.many import aiter_many, arun_many, iter_many, run_many
from surerag.drivers.running import arun, run
from surerag.drivers.session import sentence_of
from surerag.drivers.streaming import AnswerStream, AsyncAnswerStream, astream, stream
from surerag.readers.threads import complete, settled

__all__ = [
    "AnswerStream", "AsyncAnswerStream", "aiter_many", "arun", "arun_many", "astream", "complete",
    "iter_many", "run", "run_many", "sentence_of", "settled", "stream",
]  # fmt: skip
