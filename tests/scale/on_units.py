"""Run by `test_units_on_ray` in a process of its own, on a cluster of two nodes: what came of each trial."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from surerag.cli.readers import ReaderChoice
from surerag.cli.unit_makers import row_maker, row_settings
from surerag.errors import SureragError
from surerag.evaluation.comparison.units import EVALUATION, row_schema
from surerag.evaluation.inputs.dataset import check_rows
from surerag.methods.seper.options import SePerOptions
from surerag.records import record
from surerag.records.schema import TRACE
from surerag.runs import IN_PROCESS, Engine, Maker, Run, Task
from surerag.scale.engine import RayUnits
from surerag.scale.engine_cluster import Actors
from surerag.scale.units import Job
from tests.evaluation.noting import NotingReader, notes_of, write_rows
from tests.records.corpora import pipeline, questions
from tests.scale import unit_makers
from tests.scale.digests import digests
from tests.scale.unit_makers import PART, QUESTIONS, WINDOW

ROWS = 6


def recorded(folder: Path, engine: Engine = IN_PROCESS) -> dict[str, Any]:
    """Record on an engine, and say what came of it."""
    notes = folder / "notes"
    folder.mkdir(parents=True, exist_ok=True)
    said = ""
    try:
        reader = NotingReader(notes, local=True)
        record(
            pipeline(reader, QUESTIONS),
            questions(QUESTIONS),
            folder / "out",
            n_samples=2,
            part_size=PART,
            window=WINDOW,
            engine=engine,
        )
    except SureragError as error:
        said = f"{type(error).__name__}: {error}"
    twice = [prompt for prompt, times in Counter(notes_of(notes)).items() if times > 1]
    pids = notes.with_suffix(".pids")
    return {
        "said": said,
        "units": digests(folder / "out", TRACE),
        "lines": (folder / "out" / "manifest.jsonl").read_text().count('"unit"'),
        "twice": twice,
        "asked": len(notes_of(notes)),
        "pids": len(set(pids.read_text().split())) if pids.exists() else 0,
    }


def evaluated(folder: Path, engine: Callable[[Job], Engine]) -> dict[str, list[str]]:
    """Measure some rows with the embedded reader, as ``surerag evaluate`` does."""
    folder.mkdir(parents=True)
    data = check_rows(write_rows(folder / "d.jsonl", ROWS))
    told = row_settings(
        ReaderChoice(None, None, "NO_KEY"), "exact", SePerOptions(n_samples=2, max_tokens=6), 4, worked=False
    )
    maker: Maker = row_maker(told)
    with Run.open(folder / "out", {}, row_schema(), kind=EVALUATION) as run:
        rows = data.unit(0)
        tasks = [Task(unit, "", lambda unit=unit: rows[4 * unit : 4 * unit + 4]) for unit in range(3)]  # type: ignore[misc]  # bound now
        for _ in engine(Job(row_maker, told))(run, tasks, maker):
            pass
        run.finish()
    return digests(folder / "out", EVALUATION)


def main(folder: Path) -> None:
    """Write what came of each trial."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    second = cluster.add_node(num_cpus=1)
    ray.init(address=cluster.address, log_to_driver=False, logging_level="error")

    def engine(name: str, least: int = 2, **told: Any) -> RayUnits:
        return RayUnits(unit_makers.job(folder / name / "notes", **told), Actors(least, max(least, 2)))

    found: dict[str, Any] = {
        "plain": recorded(folder / "plain"),
        "actors": recorded(folder / "actors", engine("actors")),
        **{
            moment: recorded(folder / moment, engine(moment, person=9, moment=moment))
            for moment in ("before", "during", "made")
        },
        "always": recorded(folder / "always", engine("always", person=9, always=True)),
        "refused": recorded(folder / "refused", RayUnits(Job(unit_makers.refusing, {}), Actors())),
        "secrets": recorded(
            folder / "secrets", RayUnits(Job(unit_makers.recorder, {}, ["NOT_SET"]), Actors())
        ),
        "crowded": recorded(folder / "crowded", engine("crowded", 3)),
        "gpus": recorded(
            folder / "gpus", RayUnits(unit_makers.job(folder / "gpus" / "notes"), Actors(gpus=1))
        ),
        "rows": [
            evaluated(folder / "rows", lambda _: IN_PROCESS),
            evaluated(folder / "rows on ray", lambda job: RayUnits(job, Actors(2, 2))),
        ],
    }
    # Units that were there are not asked for again: their notes stay as they are.
    found["again"] = recorded(folder / "actors", engine("actors"))

    class NodeEnds(RayUnits):
        def __call__(self, run: Run, tasks: Any, maker: Maker) -> Any:
            for at, part in enumerate(super().__call__(run, tasks, maker)):
                if at == 1:
                    cluster.remove_node(second, allow_graceful=False)
                yield part

    job = unit_makers.job(folder / "node" / "notes", seconds=0.05)
    found["node"] = recorded(folder / "node", NodeEnds(job, Actors(2, 2)))
    (folder / "found.json").write_text(json.dumps(found))
    ray.shutdown()
    cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
