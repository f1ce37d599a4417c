"""FAISS at work on a folder: cells of quantised vectors on the disk, scanned where a query is near.

The vectors are divided into cells around centroids (an inverted file, IVF), and kept there with a byte for
each dimension (scalar quantisation). A query looks into the cells nearest to it. Everything is built from the
stored vectors some at a time; no step holds more than the training sample and one block of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import RawIOBase
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from surerag.errors import InputError
from surerag.extras import extra
from surerag.options import Doc, Options, Within, options
from surerag.retrieval.disk.manifest import MEND, Sealed, Searchable, check_sealed
from surerag.retrieval.disk.rows import BLOCK, StoredRows
from surerag.storage import storing

_KINDS: Final = {"SQ8": "QT_8bit", "SQ6": "QT_6bit", "SQ4": "QT_4bit", "SQfp16": "QT_fp16"}
_ROW: Final = np.dtype("<i8")
_SIZE: Final = np.dtype("<u8")
_PER_CELL, _LEAST = 40, 20_000
_SEED: Final = 1234


def load_faiss() -> Any:
    """Return the library, whose type stubs know less than it does.

    Raises:
        MissingExtraError: If it is not installed.
    """
    with extra("faiss"):
        import faiss
    return faiss


@options
class DiskIndexOptions(Options):
    """How vectors are laid out on the disk; None lets their number decide (see :func:`planned`)."""

    quantizer: Annotated[
        Literal["SQ8", "SQ6", "SQ4", "SQfp16"],
        Doc("How a dimension is kept in a cell, as FAISS names it: in 8, 6 or 4 bits, or as float16."),
    ] = "SQ8"
    n_cells: Annotated[int | None, Within(1), Doc("Cells that the vectors are divided into.")] = None
    n_training: Annotated[int | None, Within(1), Doc("Vectors that the cells are learnt from.")] = None
    n_probe: Annotated[int | None, Within(1), Doc("Cells that a query looks into.")] = None


@dataclass(frozen=True)
class Plan:
    """How a number of vectors is laid out; the fields are those of :class:`DiskIndexOptions`, decided."""

    quantizer: str
    n_cells: int
    n_training: int
    n_probe: int


def planned(rows: int, given: DiskIndexOptions) -> Plan:
    """Decide what was left open.

    Up to 8,192 vectors stand in one cell, and all of them are looked at. Beyond, there are as many cells as
    the power of two next to twice the square root of the number, at most 16,384; a query looks into a
    sixteenth of them, at least 32 and at most 128. Cells and the range of each dimension are learnt from 40
    vectors a cell, at least 20,000.

    Example:
        >>> planned(1_000_000, DiskIndexOptions())
        Plan(quantizer='SQ8', n_cells=2048, n_training=81920, n_probe=128)
        >>> planned(500, DiskIndexOptions()).n_cells
        1
    """
    usual = 1 if rows <= 8192 else min(16_384, 2 ** round(math.log2(2 * math.sqrt(rows))))
    n_cells = min(given.n_cells or usual, rows)
    n_training = max(n_cells, min(given.n_training or max(_LEAST, _PER_CELL * n_cells), rows))
    n_probe = min(given.n_probe or min(128, max(32, n_cells // 16)), n_cells)
    return Plan(given.quantizer, n_cells, n_training, n_probe)


def build(stored: StoredRows, number: int, plan: Plan) -> Searchable:
    """Write the search index of stored vectors, holding a part of them at a time.

    The cells stand one after the other in one file: of each all codes, and then all rows. That is how
    ``faiss.OnDiskInvertedLists`` maps them; behind them stand their sizes.

    Args:
        stored: The vectors, and where they are.
        number: Of the index, for its files' names.
        plan: Its layout.

    Raises:
        MissingExtraError: If faiss is not installed.
        StorageError: If it cannot be written.
    """
    faiss = load_faiss()
    blank = _trained(stored, plan)
    cell_of = np.empty(stored.rows, np.int64)
    for start, block in _blocks(stored):
        cell_of[start : start + len(block)] = blank.quantizer.search(block, 1)[1][:, 0]
    sizes = np.bincount(cell_of, minlength=plan.n_cells)
    main, lists = (stored.folder / f"index-{number}.{end}" for end in ("faiss", "lists"))
    with storing(stored.folder):
        with lists.open("wb", buffering=0) as opened:
            _write_cells(opened, blank, stored, cell_of, sizes)
            opened.seek(0, os.SEEK_END)
            opened.write(sizes.astype(_SIZE).tobytes())
            os.fsync(opened.fileno())
        faiss.write_index(blank, str(main))
        return Searchable(stored.rows, (Sealed.of(main), Sealed.of(lists)), asdict(plan))


def _write_cells(
    opened: RawIOBase, blank: Any, stored: StoredRows, cell_of: NDArray[np.int64], sizes: NDArray[np.int64]
) -> None:
    """Write codes and rows of all vectors, each behind those that its cell has already."""
    faiss = load_faiss()
    width = blank.code_size
    starts = np.concatenate([[0], np.cumsum(sizes * (width + _ROW.itemsize))[:-1]])
    filled = np.zeros_like(sizes)
    for start, block in _blocks(stored):
        cells = cell_of[start : start + len(block)]
        codes = np.empty((len(block), width), np.uint8)
        blank.encode_vectors(
            len(block), faiss.swig_ptr(block), faiss.swig_ptr(cells), faiss.swig_ptr(codes), False
        )
        order = np.argsort(cells, kind="stable")
        for some in np.split(order, np.flatnonzero(np.diff(cells[order])) + 1):
            cell = cells[some[0]]
            opened.seek(starts[cell] + filled[cell] * width)
            opened.write(codes[some].tobytes())
            opened.seek(starts[cell] + sizes[cell] * width + filled[cell] * _ROW.itemsize)
            opened.write((start + some).astype(_ROW).tobytes())
            filled[cell] += len(some)


class Cells:
    """An index that is searched where it lies.

    Args:
        folder: Where it is.
        index: Which one.

    Raises:
        InputError: If it is damaged, or another than the manifest says.
        MissingExtraError: If faiss is not installed.
    """

    def __init__(self, folder: Path, index: Searchable) -> None:
        faiss = load_faiss()
        main, lists = (check_sealed(folder, file) for file in index.files)
        try:
            self._index = faiss.read_index(str(main))
            n_cells, width = self._index.nlist, self._index.code_size
            mapped = faiss.OnDiskInvertedLists(n_cells, width, str(lists))
        except (RuntimeError, AttributeError) as error:
            raise InputError(f"{main} cannot be read as an index: {error}", hint=MEND) from error
        mapped.read_only = True
        mapped.totsize = index.rows * (width + _ROW.itemsize)
        sizes = np.fromfile(lists, _SIZE, offset=mapped.totsize).astype(np.uint64)
        if len(sizes) != n_cells or sizes.sum() != index.rows:
            raise InputError(f"{lists} does not hold the {index.rows} vectors of its manifest", hint=MEND)
        mapped.set_all_lists_sizes(faiss.swig_ptr(sizes))
        mapped.do_mmap()
        # FAISS would start 32 threads a query to read ahead: that takes longer than all the rest.
        mapped.prefetch_nthread = 0
        self._index.replace_invlists(mapped, True)
        mapped.this.disown()  # the index frees them
        self._index.ntotal = index.rows

    def candidates(
        self, queries: NDArray[np.float32], number: int, n_probe: int, *, least: int
    ) -> NDArray[np.int64]:
        """Return the rows that may be nearest to each query [queries, number], −1 where there are no more.

        More cells are looked into where these hold fewer than ``least``.
        """
        faiss = load_faiss()
        found: NDArray[np.int64]
        while True:
            wanted = faiss.SearchParametersIVF(nprobe=min(n_probe, self._index.nlist))
            _, found = self._index.search(queries, number, params=wanted)
            if n_probe >= self._index.nlist or (found[:, least - 1] >= 0).all():
                return found
            n_probe *= 2


def _trained(stored: StoredRows, plan: Plan) -> Any:
    """Return an index without vectors, whose cells are learnt."""
    faiss = load_faiss()
    index = faiss.IndexIVFScalarQuantizer(
        faiss.IndexFlatIP(stored.dimensions),
        stored.dimensions,
        plan.n_cells,
        getattr(faiss.ScalarQuantizer, _KINDS[plan.quantizer]),
        faiss.METRIC_INNER_PRODUCT,
    )
    index.cp.spherical, index.cp.seed, index.cp.min_points_per_centroid = True, _SEED, 1
    chosen = np.random.default_rng(_SEED).choice(stored.rows, plan.n_training, replace=False)
    index.train(stored.some(np.sort(chosen)))
    return index


def _blocks(stored: StoredRows) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for start in range(0, stored.rows, BLOCK):
        yield start, stored.block(start, BLOCK)
