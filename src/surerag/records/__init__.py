"""Traces: what a reader answered under every condition, written down so that it need never be asked again."""

from surerag.records.importing import ADARAGUE_2WIKI, ADARAGUE_SINGLE_HOP, Columns, import_table
from surerag.records.recorder import record
from surerag.records.replay import NotRecordedError, ReplayEntailer, ReplayReader, ReplayRetriever
from surerag.records.rows import Found, Pass, Sample, TraceRow, decision_rows
from surerag.records.trace import Trace

__all__ = [
    "ADARAGUE_2WIKI",
    "ADARAGUE_SINGLE_HOP",
    "Columns",
    "Found",
    "NotRecordedError",
    "Pass",
    "ReplayEntailer",
    "ReplayReader",
    "ReplayRetriever",
    "Sample",
    "Trace",
    "TraceRow",
    "decision_rows",
    "import_table",
    "record",
]
