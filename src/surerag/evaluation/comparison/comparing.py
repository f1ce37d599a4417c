"""Compare retrievers, rerankers, compressors, values of k and workflows by their worth to a reader."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from surerag.drivers.progress import Progress, reporting
from surerag.errors import InputError
from surerag.evaluation.comparison.analysis import Analysis, Tally, settings_of
from surerag.evaluation.comparison.measuring import measure, recorded
from surerag.evaluation.comparison.results import SystemComparison, TestName
from surerag.evaluation.comparison.systems import Question, System, as_system, found_rows
from surerag.journal import Journal, Memory, OnChange
from surerag.methods.seper.component import SePer
from surerag.services import Retriever


def compare(
    systems: Mapping[str, System | Retriever],
    questions: Sequence[Question | tuple[str, Sequence[str]]],
    seper: SePer,
    *,
    k: int = 5,
    confidence: float = 0.95,
    test: TestName = "permutation",
    baseline: str | None = None,
    window: int = 64,
    journal: Path | None = None,
    on_change: OnChange = "error",
    progress: Progress = False,
) -> SystemComparison:
    """Measure what each system is worth to a reader, on the same questions (SePer, RQ1 to 4).

    The reader's belief without context is asked once a question and shared by all systems; so is any
    context that several systems found.

    Args:
        systems: By name: retrievers, or functions from a question to passages or texts. A function that
            returns one list for each of its steps is also measured after each of them. See
            :func:`at_k` for values of k and :func:`then` for rerankers and compressors.
        questions: With their gold answers, and ids where texts are not unique.
        seper: The reader, the entailer and how belief is measured.
        k: Passages to ask of systems that are retrievers.
        confidence: Of intervals over questions; one minus it is the level of the tests.
        test: Paired test of differences: ``"permutation"`` of signs, on the mean; or ``"wilcoxon"``.
        baseline: Test all systems against this one only; by default, all pairs.
        window: Rows that a local model reads, or requests that a server gets, at the same time.
        journal: File in which the answers of reader and entailer are noted, so that a run that was
            killed goes on where it was; what the systems find is asked again.
        on_change: If the journal belongs to another run; see :class:`Journal`.
        progress: True shows a bar on a terminal; a callable gets (done, total), in rows.

    Returns:
        Mean ΔSePer of each system, the best first, with intervals, and the tests.

    Raises:
        InputError: If there is no system or no question, or one of them cannot be used.
        ConfigurationError: If a setting is out of range, or the journal belongs to another run.
        Exception: If reader or entailer fails for all of many questions; single failures are listed.

    Example:
        >>> from surerag import ScriptedReader
        >>> from surerag.entailment import ExactEntailer
        >>> reader = ScriptedReader(lambda prompt: "Velm" if "born in Velm" in prompt else "Orun")
        >>> found = compare(
        ...     {"good": lambda q: ["Ada was born in Velm."], "none": lambda q: ["Bo paints."]},
        ...     [("Where was Ada born?", ["Velm"]), ("Ada's town of birth?", ["Velm"])],
        ...     SePer(reader, ExactEntailer()),
        ... )
        >>> [(row.system, row.delta.value) for row in found.systems]
        [('good', 1.0), ('none', 0.0)]
        >>> found.tests[0].p_holm
        0.5
    """
    if not systems or not questions:
        raise InputError(f"a comparison of {len(systems)} systems on {len(questions)} questions")
    analysis = Analysis(confidence=confidence, test=test, baseline=baseline, seed=seper.seed)
    analysis.check(list(systems))
    asked = [Question(*question) for question in questions]
    rows = found_rows({name: as_system(name, given, k) for name, given in systems.items()}, asked)
    run = {**settings_of(seper), "reader": seper.reader.name, "entailer": seper.entailer.name}
    kept = nullcontext(Memory()) if journal is None else Journal(journal, run, on_change=on_change)
    tally = Tally(list(systems))
    with kept as answers, reporting(progress, len(asked) * len(systems)) as advance:
        for measured in measure(rows, recorded(seper, answers, window=window), window=window):
            tally.add(measured)
            advance()
    return tally.compared(seper, analysis)
