"""``surerag evaluate``: measures how much contexts help a model (ΔSePer), or confuse it (DENSE)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from surerag.cli.display import show, show_findings
from surerag.cli.models import (
    AskAgain,
    AtATime,
    BaseUrl,
    Columns,
    Dtype,
    Model,
    RunFile,
    ask_systems,
    check_run_of,
    load_reader,
    provenance,
    read_with_notes,
)
from surerag.entailment import ExactEntailer, JudgeEntailer, NLIEntailer
from surerag.errors import InputError
from surerag.evaluation import EvaluationAnswer, Question
from surerag.evaluation.causes import NOTES
from surerag.evaluation.findings import findings
from surerag.evaluation.report import terminal_table, write_report
from surerag.evaluation.systems import System
from surerag.messages import Passage
from surerag.methods.dense.component import DenseEvaluator
from surerag.methods.seper.component import SePer
from surerag.readers.protocol import BaseReader
from surerag.services import Entailer
from surerag.text import counted

Score = Literal["seper", "dense"]
Measure = Callable[[Question, list[Passage]], EvaluationAnswer]
File = Annotated[
    Path,
    typer.Argument(
        help="File with questions, contexts and reference answers: JSONL, JSON, CSV, TSV, XLSX or Parquet. "
        "With a column 'system', several retrievers are compared."
    ),
]
ScoreOption = Annotated[
    Score,
    typer.Option(
        help="seper: how much the contexts raise the model's probability of a reference answer. dense: how "
        "much the model's answer changes if the contexts are rephrased."
    ),
]
EntailerName = Annotated[
    str,
    typer.Option(
        help="What decides whether two answers mean the same: judge (the model itself), exact (comparison of "
        "the words), or the Hugging Face id or folder of an NLI classifier."
    ),
]


def evaluate(
    file: File,
    base_url: BaseUrl = None,
    model: Model = None,
    dtype: Dtype = "auto",
    score: ScoreOption = "seper",
    entailer: EntailerName = "judge",
    columns: Columns = "",
    run: RunFile = Path("evaluation.db"),
    at_a_time: AtATime = 1,
    ask_again: AskAgain = False,
) -> None:
    """Measure how much retrieved contexts help a model, question by question."""
    rows, notes = read_with_notes(file, columns)
    if not any(row.contexts for row in rows):
        raise InputError(
            f"{file} has no contexts",
            hint="if the column of contexts has another name, pass --columns contexts=NAME",
        )
    if score == "seper" and not all(row.references for row in rows):
        raise InputError(
            f"{file} has questions without reference answers, which ΔSePer needs",
            hint="pass --score dense, or --columns references=NAME if the column has another name",
        )
    contexts: dict[str, dict[str, tuple[str, ...]]] = {}
    questions: dict[str, Question] = {}
    for row in rows:
        question = Question(row.text, row.references, id=row.id, group=row.group)
        questions.setdefault(question.key, question)
        contexts.setdefault(row.system or "contexts", {})[question.key] = row.contexts
    check_run_of([*questions.values()], run, ask_again)
    reader = load_reader(base_url, model, dtype)
    measure, settings = _measure(score, reader, _entailer(entailer, reader))

    def build(name: str) -> System:
        def answer(question: Question) -> EvaluationAnswer:
            return measure(question, [Passage(text) for text in contexts[name].get(question.key, ())])

        return System(name, answer, {**settings, "contexts": contexts[name]})

    systems = {name: build(name) for name in contexts}
    with ask_systems(systems, [*questions.values()], run, at_a_time, ask_again, metrics={}) as result:
        result.record(
            provenance(
                reader,
                base_url,
                {"contexts": f"{file} ({counted(len(questions), 'question')})", NOTES: "\n".join(notes)},
            )
        )
        show_findings(findings(result))
        show(terminal_table(result))
        page = run.with_suffix(".html")
        write_report(result, page)
    show(f"Report: {page}. All results: {run}.")


def _measure(score: Score, reader: BaseReader, entailer: Entailer) -> tuple[Measure, dict[str, Any]]:
    if score == "seper":
        seper = SePer(reader, entailer)

        def measure_seper(question: Question, passages: list[Passage]) -> EvaluationAnswer:
            result = seper.run(question.text, list(question.references), passages)
            scores = {
                "delta_seper": result.delta,
                "seper_before": result.before.seper,
                "seper_after": result.after.seper,
            }
            return EvaluationAnswer("", tuple(p.text for p in passages), result.usage, scores=scores)

        return measure_seper, {**seper.to_dict(), "entailer": entailer.name}
    dense = DenseEvaluator(reader, entailer)

    def measure_dense(question: Question, passages: list[Passage]) -> EvaluationAnswer:
        result = dense.run(question.text, passages)
        texts = tuple(passage.text for passage in passages)
        scores = {"dse": result.score} if result.conclusive else {}
        return EvaluationAnswer(result.answer, texts, result.usage, scores=scores)

    return measure_dense, {**dense.to_dict(), "entailer": entailer.name}


def _entailer(name: str, reader: BaseReader) -> Entailer:
    if name == "judge":
        return JudgeEntailer(reader)
    return ExactEntailer() if name == "exact" else NLIEntailer.from_pretrained(name)
