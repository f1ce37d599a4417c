"""A long run on the disk: units of rows, each there whole or not at all, and a manifest that names them."""

from surerag.runs.manifest import MANIFEST, File, Manifest, Part, read_manifest
from surerag.runs.run import Run
from surerag.runs.tables import batches_of, check_file, digest_of, records_in
from surerag.runs.units import IN_PROCESS, WHOLE, Engine, InProcess, Maker, Shard, Task, Watched

__all__ = [
    "IN_PROCESS",
    "MANIFEST",
    "WHOLE",
    "Engine",
    "File",
    "InProcess",
    "Maker",
    "Manifest",
    "Part",
    "Run",
    "Shard",
    "Task",
    "Watched",
    "batches_of",
    "check_file",
    "digest_of",
    "read_manifest",
    "records_in",
]
