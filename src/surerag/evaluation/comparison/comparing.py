"""Compare retrievers, rerankers, compressors, values of k and workflows by their worth to a reader."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice

from surerag.drivers.progress import Progress, reporting
from surerag.errors import InputError
from surerag.evaluation.comparison.analysis import Analysis, Tally, settings_of
from surerag.evaluation.comparison.measuring import measure, recorded, warned_once
from surerag.evaluation.comparison.results import Item, SystemComparison, TestName
from surerag.evaluation.comparison.systems import System, as_system, asked_once, found_rows
from surerag.evaluation.comparison.units import (
    EVALUATION,
    FIGURES,
    check_unit,
    item_from,
    measure_unit,
    records_of,
    row_schema,
    source_of,
    spent_in,
)
from surerag.evaluation.inputs.dataset import UNIT
from surerag.evaluation.rows import Question, Row
from surerag.journal import Memory, OnChange
from surerag.methods.seper.component import SePer
from surerag.places import Anywhere
from surerag.prices import Costs
from surerag.recording import Tab
from surerag.runs import Run, read_manifest, records_in
from surerag.runs.run import ROWS
from surerag.runs.store import fetched
from surerag.services import Retriever
from surerag.types import Usage


def compare_contexts(
    systems: Mapping[str, System | Retriever],
    questions: Iterable[Question | tuple[str, Sequence[str]]],
    seper: SePer,
    *,
    k: int = 5,
    confidence: float = 0.95,
    test: TestName = "permutation",
    baseline: str | None = None,
    window: int = 64,
    folder: str | Anywhere | None = None,
    on_change: OnChange = "error",
    progress: Progress = False,
) -> SystemComparison:
    """Measure what each system is worth to a reader, on the same questions (SePer, RQ1 to 4).

    The reader's belief without context is asked once a question and shared by all systems; so is any
    context that several systems found. Questions are taken some at a time, however many there are, and only
    figures of them are held.

    Args:
        systems: By name: retrievers, or functions from a question to passages or texts. A function that
            returns one list for each of its steps is also measured after each of them. See
            :func:`at_k` for values of k and :func:`then` for rerankers and compressors.
        questions: With their gold answers, and ids where texts are not unique; may be a generator.
        seper: The reader, the entailer and how belief is measured.
        k: Passages to ask of systems that are retrievers.
        confidence: Of intervals over questions; one minus it is the level of the tests.
        test: Paired test of differences: ``"permutation"`` of signs, on the mean; or ``"wilcoxon"``.
        baseline: Test all systems against this one only; by default, all pairs.
        window: Rows that a local model reads, or requests that a server gets, at the same time.
        folder: Where rows and answers are kept (see ``docs/evaluation.md``), so that a run that was killed
            goes on where it was, and asks for nothing that is there; or a URL, such as ``s3://bucket/run``.
            :func:`items_in` reads the rows.
        on_change: If the folder holds a comparison of something else; see :class:`surerag.runs.Run`.
        progress: True shows a bar on a terminal; a callable gets (done, total), in rows.

    Returns:
        Mean ΔSePer of each system, the best first, with intervals, and the tests.

    Raises:
        InputError: If there is no system or no question, or one of them cannot be used.
        ConfigurationError: If a setting is out of range, or the folder holds something else.
        Exception: If reader or entailer fails for all of many questions; single failures are listed.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> found = compare_contexts(
        ...     {"good": lambda q: ["Ada was born in Velm."], "none": lambda q: ["Bo paints."]},
        ...     [("Where was Ada born?", ["Velm"]), ("Ada's town of birth?", ["Velm"])],
        ...     SePer(reader, ExactEntailer()),
        ... )
        >>> [(row.system, row.delta.value) for row in found.systems]
        [('good', 1.0), ('none', 0.0)]
        >>> found.tests[0].p_holm
        0.5
    """
    total = len(questions) if isinstance(questions, Sized) else None
    if not systems or total == 0:
        raise InputError(f"a comparison of {len(systems)} systems on {total} questions")
    analysis = Analysis(confidence=confidence, test=test, baseline=baseline, seed=seper.seed)
    analysis.check(list(systems))
    finders = {name: as_system(name, given, k) for name, given in systems.items()}
    asked = asked_once(Question(*question) for question in questions)
    expected = None if total is None else total * len(systems)
    with warned_once(), reporting(progress, expected) as advance:
        if folder is None:
            return _held(finders, asked, seper, window, analysis, advance)
        about = {**settings_of(seper), "reader": seper.reader.name, "entailer": seper.entailer.name}
        about["systems"] = list(systems)
        with Run.open(folder, about, row_schema(), kind=EVALUATION, on_change=on_change) as run:
            return _kept(run, finders, asked, seper, window, analysis, advance)


def items_in(folder: str | Anywhere) -> Iterator[Item]:
    """Yield every measured question of every system that a run's folder or URL holds, in figures.

    Raises:
        InputError: If it holds no run.
    """
    here = fetched(folder, EVALUATION)
    for part in read_manifest(here, EVALUATION):
        for record in records_in(here / part.files[ROWS].name, list(FIGURES)):
            if record["error"] is None:
                yield item_from(record)


def _held(
    systems: Mapping[str, System],
    questions: Iterator[Question],
    seper: SePer,
    window: int,
    analysis: Analysis,
    advance: Callable[[], None],
) -> SystemComparison:
    """Compare without keeping anything but figures."""
    tally, worked, usage, began = Tally(list(systems)), False, Usage(), time.perf_counter()
    while group := list(islice(questions, UNIT)):
        rows = list(found_rows(systems, group))
        tab = Tab()
        kept = recorded(seper, Memory(), tab, window=window)
        for measured in measure(rows, kept, window=window, worked=worked):
            tally.measured(measured)
            advance()
        worked, usage = True, usage + tab.usage
    return tally.compared(seper, analysis, Costs.of(usage, time.perf_counter() - began))


def _kept(
    run: Run,
    systems: Mapping[str, System],
    questions: Iterator[Question],
    seper: SePer,
    window: int,
    analysis: Analysis,
    advance: Callable[[], None],
) -> SystemComparison:
    """Compare what is not in the folder yet, unit by unit, and tell from the folder what came of it."""
    units = 0
    while group := list(islice(questions, UNIT)):
        source = source_of([Row(one.id or one.text, "", one.text, tuple(one.golds), ()) for one in group])
        known = run.manifest.parts.get(units)
        if known is not None:
            check_unit(run, units, source)
        if known is None or known.note["failed"]:
            measure_unit(
                run,
                units,
                list(found_rows(systems, group)),
                lambda answers, tab: recorded(seper, answers, tab, window=window),
                window=window,
                worked=bool(run.units),
                source=source,
            )
        units += 1
        for _ in range(len(group) * len(systems)):
            advance()
    if run.units != list(range(units)):
        raise InputError(
            f"{run.place} holds {len(run.units)} units of questions, and {units} were given now",
            hint="give all questions again, write to another folder, or begin anew (on_change='restart')",
        )
    run.finish()
    tally = Tally(list(systems))
    for _, _, record in records_of(run):
        tally.take(record)
    return tally.compared(seper, analysis, spent_in(run))
