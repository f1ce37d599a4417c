from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from surerag.retrieval.disk import rows as rows_module
from surerag.retrieval.disk.lists import DiskIndexOptions, planned
from tests.failing_disk import FailingDisk

from surerag.documents import Document
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError, ServiceError, StorageError
from surerag.messages import Passage
from surerag.retrieval import DiskSummaryIndex, LeadSummaries, SummaryIndex, each
from surerag.services import Retriever

WORDS = "harp river gate copper mill tower orchard lantern ferry quarry anvil meadow".split()


class Counting(HashingEncoder):
    """Remembers which documents it encoded, and stops at one of them."""

    def __init__(self, stop_at: int = 10**9) -> None:
        super().__init__(512)
        self.encoded = 0
        self._stop_at = stop_at

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        if kind == "document":
            if self.encoded + len(texts) > self._stop_at:
                raise KeyboardInterrupt
            self.encoded += len(texts)
        return super().encode(texts, kind)


class Given(HashingEncoder):
    """Returns the query's vector that its number names."""

    def __init__(self, queries: NDArray[np.float32]) -> None:
        super().__init__(queries.shape[1])
        self._queries = queries

    def encode(self, texts: Sequence[str], kind: Literal["query", "document"]) -> NDArray[np.float32]:
        return self._queries[[int(text) for text in texts]]


def documents(number: int) -> Iterator[Document]:
    for place in range(number):
        one, two, three = (WORDS[place // 12**power % 12] for power in range(3))
        text = f"The {one} of the {two} stands by the {three} since {place}. It is old. Nobody knows more."
        yield Document(f"d{place}", text, f"{one} {two}", {"place": place, "tags": ["a", {"b": None}]})


def vectors_of(number: int, dimensions: int, seed: int) -> NDArray[np.float32]:
    found = np.random.default_rng(seed).normal(size=(number, dimensions)).astype(np.float32)
    return found / np.linalg.norm(found, axis=1, keepdims=True)


QUERIES = ["the harp of the river", "which copper gate is old?", "lantern 77", "the quarry by the anvil"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("summaries")
    DiskSummaryIndex.from_documents(made, documents(700), Counting(), batch_size=200)
    return made


def test_it_finds_what_the_index_in_memory_finds(folder: Path) -> None:
    disk, memory = (
        DiskSummaryIndex(folder, Counting()),
        SummaryIndex.from_documents(documents(700), Counting()),
    )
    assert isinstance(disk, Retriever)
    assert len(disk) == 700
    for query in QUERIES:
        found, expected = disk.retrieve(query, 4), memory.retrieve(query, 4)
        for one, other in zip(found, expected, strict=True):
            assert (one.id, one.text, one.metadata) == (other.id, other.text, other.metadata)
            assert one.score == pytest.approx(other.score, abs=1e-3)
    assert len(disk.retrieve("harp")) == len(memory.retrieve("harp")) == 5
    assert len(DiskSummaryIndex(folder, Counting(), k=2).retrieve("harp")) == 2


async def test_many_queries_and_awaited_ones_find_the_same(folder: Path) -> None:
    class Awaited(Counting):
        async def aencode(self, texts: Sequence[str], kind: Any) -> Any:
            return self.encode(texts, kind)

    disk = DiskSummaryIndex(folder, Counting())
    alone = [disk.retrieve(query, 3) for query in QUERIES]
    assert disk.retrieve_many(QUERIES, 3) == alone
    assert disk.retrieve_many([], 3) == []
    assert [await disk.aretrieve(query, 3) for query in QUERIES] == alone
    assert await DiskSummaryIndex(folder, Awaited()).aretrieve(QUERIES[0], 3) == alone[0]


def test_more_than_there_is_gives_all_there_is(tmp_path: Path) -> None:
    passages = [Passage(str(place), id=str(place)) for place in range(300)]
    queries = vectors_of(2, 16, 1)
    batches = [(passages, vectors_of(300, 16, 0))]
    index = DiskSummaryIndex.from_vectors(tmp_path, batches, Given(queries), n_cells=32, n_probe=1)
    for found in index.retrieve_many(["0", "1"], 999):
        assert {passage.id for passage in found} == {passage.id for passage in passages}
        assert np.diff([passage.score for passage in found]).max() < 1e-5, "best first"


def test_equal_ones_come_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    same = [Passage("The harp is old.", id=str(place)) for place in range(50)]
    index = DiskSummaryIndex.from_passages(tmp_path, same, HashingEncoder(16))
    assert [passage.id for passage in index.retrieve("harp", 5)] == ["0", "1", "2", "3", "4"]


def test_cells_are_looked_into_where_the_query_is_near(tmp_path: Path) -> None:
    centres = vectors_of(40, 32, 0)
    stored = np.repeat(centres, 100, axis=0) + 0.5 * vectors_of(4000, 32, 1)
    stored /= np.linalg.norm(stored, axis=1, keepdims=True)
    queries = stored[::200] + 0.1 * vectors_of(20, 32, 2)
    batches = [([Passage(str(place), id=str(place)) for place in range(4000)], stored)]
    encoder = Given(queries.astype(np.float32))
    index = DiskSummaryIndex.from_vectors(tmp_path, batches, encoder, n_cells=40, n_probe=4)
    asked = [str(place) for place in range(20)]
    expected = np.argsort(-(queries @ stored.T), axis=1)[:, :3]
    for found, rows in zip(index.retrieve_many(asked, 3), expected, strict=True):
        assert [int(passage.id) for passage in found] == rows.tolist()
    assert index.recall(asked) == 1.0


def test_more_cells_find_more_of_what_is_nowhere_near(tmp_path: Path) -> None:
    batches = [([Passage(str(place), id=str(place)) for place in range(4000)], vectors_of(4000, 32, 5))]
    encoder, asked = Given(vectors_of(50, 32, 6)), [str(place) for place in range(50)]
    few = DiskSummaryIndex.from_vectors(tmp_path, batches, encoder, n_cells=40, n_probe=1)
    assert few.recall(asked) < 0.6
    assert DiskSummaryIndex(tmp_path, encoder, n_probe=40).recall(asked) > 0.98
    assert few.recall(asked) == pytest.approx(few.recall(asked[:25]) / 2 + few.recall(asked[25:]) / 2)


@pytest.mark.parametrize("quantizer", ["SQ8", "SQ6", "SQ4", "SQfp16"])
def test_each_quantiser_finds_a_vector_itself(tmp_path: Path, quantizer: Any) -> None:
    stored = vectors_of(500, 24, 3)
    batches = [([Passage(str(place), id=str(place)) for place in range(500)], stored)]
    index = DiskSummaryIndex.from_vectors(tmp_path, batches, Given(stored), quantizer=quantizer, n_cells=5)
    assert [found[0].id for found in index.retrieve_many(["7", "499"], 1)] == ["7", "499"]


def test_the_layout_follows_from_the_number() -> None:
    left_open = DiskIndexOptions()
    assert [planned(rows, left_open).n_cells for rows in (1, 8192, 8193, 10**6, 10**8)] == [
        1, 1, 256, 2048, 16_384,
    ]  # fmt: skip
    assert planned(100, DiskIndexOptions(n_cells=1000, n_probe=2000)) == planned(
        100, DiskIndexOptions(n_cells=100, n_training=100, n_probe=100)
    )


def test_what_is_on_the_disk_is_neither_summarized_nor_encoded_again(tmp_path: Path) -> None:
    summarized = 0

    def lead(document: Document) -> str:
        nonlocal summarized
        summarized += 1
        return LeadSummaries()([document])[0]

    with pytest.raises(KeyboardInterrupt):
        DiskSummaryIndex.from_documents(
            tmp_path, documents(500), Counting(350), summarize=each(lead), batch_size=100
        )
    assert summarized == 400
    with pytest.raises(InputError, match="300 summaries and no index"):
        DiskSummaryIndex(tmp_path, Counting())
    again = Counting()
    index = DiskSummaryIndex.from_documents(
        tmp_path, documents(500), again, summarize=each(lead), batch_size=100
    )
    assert (again.encoded, summarized, len(index)) == (200, 600, 500)
    idle = Counting(0)
    before = (tmp_path / "manifest.jsonl").read_bytes()
    DiskSummaryIndex.from_documents(tmp_path, documents(500), idle, summarize=each(lead), batch_size=7)
    assert (idle.encoded, summarized) == (0, 600)
    assert (tmp_path / "manifest.jsonl").read_bytes() == before, "the search index was not made again either"


def test_documents_that_are_added_at_the_end_are_added(tmp_path: Path) -> None:
    DiskSummaryIndex.from_documents(tmp_path, documents(150), Counting(), batch_size=100)
    open_before = DiskSummaryIndex(tmp_path, Counting())
    more = Counting()
    index = DiskSummaryIndex.from_documents(tmp_path, documents(230), more, batch_size=100)
    assert (more.encoded, len(index), len(open_before)) == (80, 230, 150)
    assert index.retrieve("since 229", 1)[0].id == "d229"
    assert open_before.retrieve("since 149", 1)[0].id == "d149"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "index-2.faiss", "index-2.lists", "manifest.jsonl", "summaries.arrow", "vectors.f16",
    ]  # fmt: skip


def test_a_build_that_adds_and_is_killed_leaves_what_was_there(tmp_path: Path) -> None:
    DiskSummaryIndex.from_documents(tmp_path, documents(200), Counting(), batch_size=100)
    with pytest.raises(KeyboardInterrupt):
        DiskSummaryIndex.from_documents(tmp_path, documents(500), Counting(100), batch_size=100)
    index = DiskSummaryIndex(tmp_path, Counting())
    assert (len(index), index.retrieve("since 199", 1)[0].id) == (200, "d199")
    rest = Counting()
    assert len(DiskSummaryIndex.from_documents(tmp_path, documents(500), rest)) == 500
    assert rest.encoded == 200


def test_what_a_kill_left_behind_is_cut_off(tmp_path: Path, folder: Path) -> None:
    cut = tmp_path / "cut"
    shutil.copytree(folder, cut)
    lines = (cut / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (cut / "manifest.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:40])
    again = Counting()
    index = DiskSummaryIndex.from_documents(cut, documents(700), again, batch_size=200)
    assert again.encoded == 300
    assert index.retrieve_many(QUERIES, 3) == DiskSummaryIndex(folder, Counting()).retrieve_many(QUERIES, 3)
    for name in ("summaries.arrow", "vectors.f16"):
        assert (cut / name).read_bytes() == (folder / name).read_bytes()
    index.verify()


KILLED = """
import os, signal, sys
from surerag.retrieval.disk import index as module
from tests.retrieval.test_disk_index import Counting, documents

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Mortal(Counting):
    def encode(self, texts, kind):
        return die() if sys.argv[2] == "encoding" and self.encoded == 300 else super().encode(texts, kind)

if sys.argv[2] == "sealing":
    module.RowWriter.seal = die
module.DiskSummaryIndex.from_documents(sys.argv[1], documents(500), Mortal(), batch_size=100)
"""


@pytest.mark.parametrize(("moment", "left"), [("encoding", 200), ("sealing", 0)])
def test_a_killed_build_goes_on(tmp_path: Path, moment: str, left: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), moment], check=False)
    assert done.returncode == -9
    again = Counting()
    index = DiskSummaryIndex.from_documents(tmp_path, documents(500), again, batch_size=100)
    assert (again.encoded, len(index)) == (left, 500)
    index.verify()


def test_other_documents_encoders_and_summaries_are_refused(tmp_path: Path, folder: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy")
    there = tmp_path / "copy"
    changed = [*documents(450), Document("new", "It is new."), *documents(700)]
    with pytest.raises(ConfigurationError, match="given as numbers 400 to 599 is not what was there"):
        DiskSummaryIndex.from_documents(there, changed, Counting())
    with pytest.raises(ConfigurationError, match="is not what was there"):
        DiskSummaryIndex.from_documents(there, documents(100), Counting())
    with pytest.raises(ConfigurationError, match='its summarizer is "LeadSummaries'):
        DiskSummaryIndex.from_documents(there, documents(700), Counting(), summarize=LeadSummaries(1))
    with pytest.raises(ConfigurationError, match="its encoder is 'hashing-512', not 'hashing-64'"):
        DiskSummaryIndex.from_documents(there, documents(700), HashingEncoder(64))
    with pytest.raises(ConfigurationError, match="encoded by 'hashing-512', and this is 'hashing-64'"):
        DiskSummaryIndex(there, HashingEncoder(64))
    assert len(DiskSummaryIndex(there, Counting())) == 700, "nothing was changed"
    anew = DiskSummaryIndex.from_documents(there, documents(20), HashingEncoder(64), on_change="restart")
    assert len(anew) == 20
    anew.verify()


def test_a_damaged_or_foreign_folder_is_named(tmp_path: Path, folder: Path) -> None:
    def damaged(name: str) -> Path:
        made = tmp_path / name
        shutil.copytree(folder, made)
        return made

    with pytest.raises(InputError, match="is no folder of summaries"):
        DiskSummaryIndex(tmp_path / "nowhere", Counting())
    (tmp_path / "manifest.jsonl").write_text('{"format":"surerag trace"}\n')
    with pytest.raises(InputError, match="is no manifest of a folder of summaries"):
        DiskSummaryIndex(tmp_path, Counting())
    with pytest.raises(InputError, match="is not a manifest of a folder of summaries"):
        DiskSummaryIndex.from_documents(tmp_path, documents(3), Counting(), on_change="restart")
    for name in ("summaries.arrow", "vectors.f16", "index-1.faiss", "index-1.lists"):
        short, gone, other = (damaged(f"{name} {how}") for how in ("short", "gone", "other"))
        os.truncate(short / name, (short / name).stat().st_size - 9)
        (gone / name).unlink()
        data = bytearray((other / name).read_bytes())
        data[-5] ^= 1
        (other / name).write_bytes(data)
        for made in (short, gone, other):
            with pytest.raises(InputError, match=r"missing|cut short|not the file|not what its manifest"):
                DiskSummaryIndex(made, Counting())
    middle = damaged("middle")
    data = bytearray((middle / "vectors.f16").read_bytes())
    data[300 * 1024] ^= 1
    (middle / "vectors.f16").write_bytes(data)
    with pytest.raises(InputError, match="summaries 200 to 399"):
        DiskSummaryIndex(middle, Counting()).verify()
    lines = (damaged("line") / "manifest.jsonl").read_text().splitlines()
    lines[1] = json.dumps({"unit": {"rows": 200}})
    (tmp_path / "line" / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match="damaged in line 2"):
        DiskSummaryIndex(tmp_path / "line", Counting())
    later = damaged("later") / "manifest.jsonl"
    later.write_text(later.read_text().replace('"version":1', '"version":9'))
    with pytest.raises(InputError, match="version 9"):
        DiskSummaryIndex(later.parent, Counting())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "vectors.f16").write_bytes(b"mine")
    with pytest.raises(ConfigurationError, match=r"holds vectors\.f16, and no manifest"):
        DiskSummaryIndex.from_documents(tmp_path / "mine", documents(3), Counting())
    assert (tmp_path / "mine" / "vectors.f16").read_bytes() == b"mine"


def test_one_process_builds_at_a_time(tmp_path: Path) -> None:
    def also() -> Iterator[Document]:
        yield from documents(3)
        with pytest.raises(ConfigurationError, match="another process is writing"):
            DiskSummaryIndex.from_documents(tmp_path, documents(3), Counting())

    assert len(DiskSummaryIndex.from_documents(tmp_path, also(), Counting())) == 3


def test_a_full_disk_says_so_and_the_build_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(rows_module, "os", FailingDisk("fsync", 28, after=5))
        with pytest.raises(StorageError, match="No space left"):
            DiskSummaryIndex.from_documents(tmp_path, documents(500), Counting(), batch_size=100)
    again = Counting()
    DiskSummaryIndex.from_documents(tmp_path, documents(500), again, batch_size=100).verify()
    assert again.encoded == 300


def test_wrong_input_and_settings_are_refused(tmp_path: Path, folder: Path) -> None:
    make = DiskSummaryIndex.from_passages
    with pytest.raises(InputError, match="nothing to index"):
        make(tmp_path / "a", [], Counting())
    with pytest.raises(InputError, match="'blank'"):
        make(tmp_path / "b", [Passage(" ", id="blank")], Counting())
    with pytest.raises(InputError, match="metadata of 'x' cannot be written down"):
        make(tmp_path / "c", [Passage("text", id="x", metadata={"who": object()})], Counting())
    with pytest.raises(ConfigurationError, match="batch_size"):
        make(tmp_path / "d", [Passage("text")], Counting(), batch_size=0)
    with pytest.raises(ConfigurationError, match="quantizer"):
        make(tmp_path / "e", [Passage("text")], Counting(), quantizer="PQ")
    with pytest.raises(ConfigurationError, match="n_cell"):
        make(tmp_path / "f", [Passage("text")], Counting(), n_cell=3)
    with pytest.raises(ServiceError, match="1 summaries were made of 3 documents"):
        DiskSummaryIndex.from_documents(
            tmp_path / "g", documents(3), Counting(), summarize=lambda documents: ["one"]
        )
    with pytest.raises(ServiceError, match="expected 1 vectors"):
        DiskSummaryIndex.from_vectors(tmp_path / "h", [([Passage("a")], np.zeros((2, 3)))], Counting())
    index = DiskSummaryIndex(folder, Counting())
    with pytest.raises(InputError, match="query is empty"):
        index.retrieve(" ")
    with pytest.raises(ConfigurationError, match="k must be"):
        index.retrieve("harp", 0)
    with pytest.raises(ConfigurationError, match="n_probe"):
        DiskSummaryIndex(folder, Counting(), n_probe=0)
    with pytest.raises(ConfigurationError, match="n_candidates"):
        DiskSummaryIndex(folder, Counting(), n_candidates=0)
    narrow = Counting()
    narrow.dimensions = 64
    narrow.__class__ = type("Renamed", (Counting,), {"name": "hashing-512"})
    with pytest.raises(ServiceError, match="64 dimensions, passages 512"):
        DiskSummaryIndex(folder, narrow).retrieve("harp")


def test_a_lone_surrogate_is_no_reason_to_stop(tmp_path: Path) -> None:
    index = DiskSummaryIndex.from_passages(tmp_path, [Passage("harp \ud800", id="s\ud800")], Counting())
    assert index.retrieve("harp", 1)[0].text == "harp ?"
