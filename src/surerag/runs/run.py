"""A run that may be killed at any point and goes on: units of work, committed one by one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

from surerag.extras import extra
from surerag.journal import Journal, OnChange
from surerag.lines import LineFile
from surerag.places import Anywhere, place_of
from surerag.runs.folder import ANSWERS, check_kind, check_unclaimed, clean, open_name, reusable, sync
from surerag.runs.manifest import (
    HEAD,
    MANIFEST,
    File,
    Kind,
    Manifest,
    Part,
    check_same,
    head_line,
    is_same,
    manifest_of,
    part_line,
)
from surerag.runs.store import Store, working_folder
from surerag.runs.tables import KEPT, batches_of, renamed, write_bytes, write_table
from surerag.storage import check_folder, storing

ROWS: Final = "rows"


class Run:
    """A folder of committed units: Parquet tables, and the answers that they cost.

    A unit is a fixed number of questions that follow each other in the input, with all their systems. It is
    asked as its own batches, written as its own files, and committed by renaming them and adding a line to
    the manifest. So units may be made in any order, and by anyone, and are the same. What is asked while a
    unit is open stands in a journal of its own, which is folded away when the unit is committed: what a
    resume reads does not grow with what is finished.

    Open one with :meth:`Run.open`, and close it, or use it as a context.

    Example:
        >>> import pyarrow as pa
        >>> from tempfile import TemporaryDirectory
        >>> with TemporaryDirectory() as folder:
        ...     schema = pa.schema([("id", pa.string()), ("delta", pa.float64())])
        ...     with Run.open(folder, {"reader": "mine"}, schema) as run:
        ...         with run.answers(0) as journal:
        ...             journal.put({"what was asked": "what was answered"})
        ...         _ = run.commit(0, [{"id": "a", "delta": 0.5}])
        ...         run.finish()
        ...     with Run.open(folder, {"reader": "mine"}, schema) as run:
        ...         print(run.units, run.complete, [batch.num_rows for batch in run.batches(["delta"])])
        [0] True [1]
    """

    def __init__(
        self,
        folder: Path,
        kind: Kind,
        schemas: Mapping[str, Any],
        lines: LineFile,
        manifest: Manifest,
        store: Store | None = None,
    ) -> None:
        self.folder, self.kind, self.manifest = folder, kind, manifest
        self._schemas, self._lines, self._store = schemas, lines, store

    @classmethod
    def open(
        cls,
        folder: str | Anywhere,
        about: Mapping[str, Any],
        schema: Any,
        *,
        kind: Kind = Kind("run"),  # noqa: B008 (a frozen value)
        on_change: OnChange = "error",
    ) -> Self:
        """Open a folder for writing, or make it; one process at a time.

        Args:
            folder: Where the run is; or a URL, such as ``s3://bucket/run``: see :mod:`surerag.runs.store`.
            about: What is run, on what and how: plain values under readable names. ``versions`` may change.
            schema: A ``pyarrow.Schema``, of the table ``rows``; or several schemas by table.
            kind: What the folder holds.
            on_change: If the folder holds a run about something else: ``"error"``; ``"reuse"`` its answers
                to what is asked again, word for word, in the unit of the same number, and measure every unit
                again; or ``"restart"``, which throws everything away.

        Raises:
            ConfigurationError: If the folder holds something else, naming what differs, or files that bear
                the names of ours and no manifest; or if another process has it open.
            InputError: If its manifest is damaged, or of another kind or version.
            StorageError: If it cannot be written.
            MissingExtraError: If pyarrow is not installed, or what goes to the URL's file system.
        """
        with extra("parquet"):
            import pyarrow as pa
        place = place_of(folder)
        path = working_folder(place)
        check_folder(path)
        schemas = {ROWS: schema} if isinstance(schema, pa.Schema) else dict(schema)
        check_unclaimed(path, schemas)
        about = json.loads(json.dumps(about))
        mend = "begin anew with --restart (on_change='restart')"
        lines = LineFile(path / MANIFEST, HEAD, what="a manifest of a run", kept=KEPT, mend=mend)
        store = None if isinstance(place, Path) else Store(place, path, kind)
        begin = head_line if store is None else store.begin
        try:
            if store is not None:
                store.join(lines)
            if on_change == "restart":
                check_kind(lines, kind)
                lines.clear()
                clean(path, schemas, but={MANIFEST})
                if store is not None:
                    store.clear()
            manifest = manifest_of((record for _, record in lines.read()), lines.file, kind)
            if not manifest.about and not manifest.parts:
                lines.append([begin(kind, about)])
                manifest.about = about
            elif not is_same(manifest.about, about):
                if on_change == "error":
                    reuse = "or keep the answers that still apply with --reuse (on_change='reuse'); "
                    hint = f"write to another folder; {reuse if reusable(path) else ''}or {mend}"
                    check_same(place, kind, manifest.about, about, hint)
                lines.append([begin(kind, about)])
                manifest.take(head_line(kind, about))
            if store is not None:
                store.claim()
        except BaseException:
            lines.close()
            raise
        return cls(path, kind, schemas, lines, manifest, store)

    def __repr__(self) -> str:
        return f"Run({str(self.place)!r}, {len(self.manifest.parts)} units)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the folder; closing again does nothing."""
        if self._store is not None:
            self._store.close()
        self._lines.close()

    @property
    def place(self) -> Anywhere:
        """Where the run is: its folder, or what its URL names."""
        return self.folder if self._store is None else self._store.place

    @property
    def about(self) -> Mapping[str, Any]:
        """What is run."""
        return self.manifest.about

    @property
    def units(self) -> Sequence[int]:
        """Numbers of the committed units, in order; the rows are not read."""
        return sorted(self.manifest.parts)

    @property
    def complete(self) -> bool:
        """Whether :meth:`finish` was called, and nothing was committed since."""
        return self.manifest.complete

    @contextmanager
    def answers(self, unit: int) -> Iterator[Journal]:
        """Open the journal of a unit, with what is known of it: from a kill, or from an earlier commit.

        Raises:
            StorageError: If it cannot be written.
        """
        file = self.folder / open_name(unit)
        if not file.exists():
            self._unfold(unit, file)
        with Journal(file, {"unit": unit}, on_change="reuse") as journal:
            yield journal

    def commit(
        self,
        unit: int,
        rows: Iterable[Mapping[str, Any]] | Mapping[str, Iterable[Mapping[str, Any]]],
        *,
        source: str = "",
        note: Mapping[str, Any] | None = None,
        keep_answers: bool = True,
    ) -> Part:
        """Write a unit's tables, and name them in the manifest; a unit that is there is replaced.

        A kill leaves files that no manifest names, and the next attempt writes over them. Close the unit's
        journal first.

        Args:
            unit: Its number, from 0.
            rows: Of the table ``rows``; or of several, by table.
            source: Digest of what went in.
            note: What to know of the unit without reading its rows: plain values, and few.
            keep_answers: Fold the unit's journal away, for units that are measured again; else drop it.

        Raises:
            StorageError: If something cannot be written; what was committed before is kept.
        """
        self._lines.check()
        tables = rows if isinstance(rows, Mapping) else {ROWS: rows}
        files = {
            table: write_table(self.folder, f"{table}-{unit:05}.parquet", given, self._schemas[table])
            for table, given in tables.items()
        }
        journal = self.folder / open_name(unit)
        if keep_answers and journal.exists():
            files[ANSWERS] = self._fold(unit, journal)
        part = Part(unit, files, source, json.loads(json.dumps(dict(note or {}))))
        self._add(part)
        with storing(self.folder):
            journal.unlink(missing_ok=True)
        return part

    def begun(self, unit: int) -> bytes:
        """Return what was answered before for a unit, for whoever makes it elsewhere; empty if nothing was.

        Raises:
            StorageError: If it cannot be read.
        """
        file = self.folder / open_name(unit)
        if not file.exists():
            self._unfold(unit, file)
        with storing(file):
            return file.read_bytes() if file.exists() else b""

    def begin(self, unit: int, journal: bytes) -> None:
        """Take over what :meth:`begun` returned elsewhere.

        Raises:
            StorageError: If it cannot be written.
        """
        if journal:
            with storing(self.folder):
                (self.folder / open_name(unit)).write_bytes(journal)

    def adopt(self, part: Part, files: Mapping[str, bytes]) -> None:
        """Commit a unit that was made in another run's folder, as if it had been made here.

        Args:
            part: As it was committed there.
            files: Bytes of its files, by table.

        Raises:
            InputError: If a file is not what the unit says.
            StorageError: If something cannot be written; what was committed before is kept.
        """
        self._lines.check()
        for table, file in part.files.items():
            write_bytes(self.folder, file, files[table])
        self._add(part)
        with storing(self.folder):
            (self.folder / open_name(part.unit)).unlink(missing_ok=True)

    def finish(self) -> None:
        """Note that all units are there, and remove what no unit names.

        Raises:
            StorageError: If it cannot be written.
        """
        if self._store is not None:
            self._store.finish(self.manifest)
        if not self.manifest.complete:
            self._lines.append([{"complete": True}])
            self.manifest.complete = True
        named = {file.name for file in self.manifest.files} | {MANIFEST}
        clean(self.folder, self._schemas, but=named)

    def batches(
        self,
        columns: Sequence[str] | None = None,
        *,
        table: str = ROWS,
        units: Iterable[int] | None = None,
    ) -> Iterator[Any]:
        """Yield a table's rows as Arrow record batches, in order of units, holding some at a time.

        Args:
            columns: Which ones to read; all by default.
            table: Which table.
            units: Which units; all that are committed by default.

        Raises:
            InputError: If a file cannot be read.
        """
        parts = (self.manifest.parts[unit] for unit in (self.units if units is None else units))
        for path in self._local(part.files[table] for part in parts if table in part.files):
            yield from batches_of(path, columns)

    def held(self, part: Part) -> Path:
        """Return the folder in which a unit's files stand; what another machine committed is fetched.

        Raises:
            InputError: If a file is not what was committed.
            StorageError: If it cannot be fetched.
        """
        for _ in self._local(part.files.values()):
            pass
        return self.folder

    def fold(self, unit: int) -> None:
        """Keep what was asked for a committed unit since, without writing its tables again.

        Close the unit's journal first.

        Raises:
            StorageError: If it cannot be written.
        """
        journal, part = self.folder / open_name(unit), self.manifest.parts[unit]
        if not journal.exists():
            return
        before, folded = part.files.get(ANSWERS), self._fold(unit, journal)
        if before is None or before.rows != folded.rows:
            self._add(replace(part, files={**part.files, ANSWERS: folded}))
        with storing(self.folder):
            journal.unlink(missing_ok=True)

    def _local(self, files: Iterable[File]) -> Iterator[Path]:
        """Yield files as they are in the folder; what another machine committed is fetched."""
        if self._store is None:
            return (self.folder / file.name for file in files)
        return self._store.local(files)

    def _add(self, part: Part) -> None:
        if self._store is not None:
            part = self._store.commit(part)
        self._lines.append([part_line(part)])
        self.manifest.parts[part.unit], self.manifest.complete = part, False

    def _fold(self, unit: int, journal: Path) -> File:
        import pyarrow as pa

        name = f"{ANSWERS}-{unit:05}.jsonl.zst"
        with storing(self.folder, kept=KEPT):
            with (
                journal.open("rb") as given,
                pa.OSFile(str(self.folder / f"{name}.part"), "wb") as opened,
                pa.CompressedOutputStream(opened, "zstd") as packed,
            ):
                lines = sum(packed.write(line) > 0 for line in given)
            sync(self.folder / f"{name}.part")
            return renamed(self.folder, name, lines - 1)

    def _unfold(self, unit: int, journal: Path) -> None:
        """Give a unit its earlier answers, if it has any."""
        import pyarrow as pa

        known = self.manifest.parts.get(unit) or self.manifest.former.get(unit)
        folded = known and known.files.get(ANSWERS)
        if not folded or (self._store is None and not (self.folder / folded.name).is_file()):
            return
        [path] = self._local([folded])
        unfinished = journal.with_name(f"{journal.name}.part")
        with storing(self.folder, kept=KEPT):
            with unfinished.open("wb") as opened, pa.OSFile(str(path)) as packed:
                shutil.copyfileobj(pa.CompressedInputStream(packed, "zstd"), opened)
            unfinished.replace(journal)
