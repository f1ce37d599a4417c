"""``surerag.compare``: systems of any kind, asked the same questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sized
from typing import Any

from surerag.drivers.progress import Progress, counted_not_logged, reporting
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs.questions import Asked, QuestionFile, groups_of
from surerag.evaluation.systems.analysis import Aim, analyse
from surerag.evaluation.systems.asking import Waiter, Work
from surerag.evaluation.systems.results import SystemsReport
from surerag.evaluation.systems.rows import KIND, part_batches, schemas
from surerag.evaluation.systems.scoring import Scoring
from surerag.evaluation.systems.system import ProgramSystem, System, as_system
from surerag.evaluation.systems.tally import COLUMNS, Tally
from surerag.evaluation.systems.units import UNIT, Purse, UnitMaker, run_units, spent_on
from surerag.journal import Memory, OnChange
from surerag.methods.dense_rag.component import Dense
from surerag.methods.functions import name_of
from surerag.methods.seper.component import SePer
from surerag.places import Anywhere
from surerag.prices import Prices, load_prices
from surerag.readers.protocol import Reader
from surerag.records.judging import Judge
from surerag.runs import IN_PROCESS, WHOLE, Engine, Run, Shard
from surerag.services import Entailer, Services, as_reader

Questions = QuestionFile | Iterable[Asked]
"""Texts, texts with gold answers, :class:`surerag.evaluation.rows.Question`; or a file that was checked."""


def compare(
    systems: Mapping[str, Any],
    questions: Questions,
    folder: str | Anywhere | None = None,
    *,
    reader: Reader | None = None,
    entailer: Entailer | None = None,
    judge: bool = False,
    rule: Judge = "contains",
    seper: bool = False,
    understanding: bool = False,
    consistency: int = 0,
    prices: Prices | None = None,
    top_n: int = 3,
    baseline: str = "",
    measure: str = "",
    cost: str = "",
    margin: float = 0.05,
    confidence: float = 0.95,
    window: int = 32,
    max_concurrency: int = 16,
    max_money: float | None = None,
    on_change: OnChange = "error",
    engine: Engine = IN_PROCESS,
    shard: Shard = WHOLE,
    progress: Progress = False,
) -> SystemsReport:
    """Ask several systems the same questions, and tell which helps, at which price, and what is undecided.

    With a folder the results are written there as they come, 128 questions at a time; what is asked in
    between is noted as it is answered. The same call goes on after a kill, and asks nothing again but what
    was being asked at that moment. Memory holds one unit of questions, however many there are.

    A question that fails in one system is a row with an error: it is counted, and left out of the pairs with
    that system. What would fail for every question (a wrong setting, a model that is not there) raises.

    Args:
        systems: By name, the baseline first: query engines, chains, runnables, components of the core,
            retrievers (with ``reader``), functions and coroutine functions from a question to an answer.
        questions: With gold answers; without, what is measured is named for what it is, and never accuracy.
        folder: Where results are kept, or a URL, such as ``s3://bucket/run``; None keeps them in memory.
        reader: Who answers from what retrievers find, samples for self-consistency, and is measured by SePer.
        entailer: Who judges meanings, for ``judge``, ``seper`` and ``understanding``.
        judge: Whether an entailer judges answers against gold answers, and by the passages shown.
        rule: What makes an answer right by its words: ``"contains"``, ``"exact_match"``, ``"token_f1"``, or a
            function of an answer and its gold answers.
        seper: Whether to measure ΔSePer of what was shown; needs a reader with log-probabilities.
        understanding: Whether to measure the reader's understanding of what was shown (DENSE-RAG).
        consistency: Answers to sample for self-consistency; 0 for none.
        prices: What tokens cost; None for the packaged prices.
        top_n: Passages that a retriever is asked for.
        baseline: What others are compared with; the first system if left out.
        measure: What counts; accuracy, or agreement with the baseline where there are no gold answers.
        cost: What "cheaper" is about: ``"tokens"``, ``"money"``, ``"seconds"``, ``"calls"``; money where all
            prices are known, and else tokens.
        margin: Difference that matters.
        confidence: Of intervals and verdicts.
        window: Questions at work at a time in a model of this process.
        max_concurrency: Calls of a system, or requests at a server, at a time.
        max_money: What may be spent, in the prices' currency; all prices have to be known.
        on_change: If the folder holds a comparison of something else; see :meth:`surerag.runs.Run.open`.
        engine: Has the units of a folder made: in this process, or by ``surerag.scale.engine.RayUnits``.
        shard: Which of the units to ask, of those in a folder; the whole by default.
        progress: True for a bar on a terminal, or a function of what is done and the total, in questions.

    Returns:
        Figures, tests and a recommendation.

    Raises:
        ConfigurationError: If a system is nothing that answers, something that is measured has nobody who
            measures it, or the folder holds something else.
        InputError: If there are no questions, or other ones than those that were answered already.
        StorageError: If the folder cannot be written.
        BudgetError: If ``max_money`` would not last for another unit of questions, or a price is not known.

    Example:
        >>> def plain(question):
        ...     return {"answer": "Velm", "context": ["Ada was born in Velm."]}
        >>> report = compare({"plain": plain, "silent": lambda question: "I do not know"},
        ...                  [("Where was Ada born?", ["Velm"])] * 1)
        >>> report.system("plain").measures["accuracy"].value, report.system("silent").measures["f1"].value
        (1.0, 0.0)
    """
    with Waiter() as wait:
        return _compared(
            systems,
            questions,
            folder,
            wait,
            Services(
                reader=None if reader is None else as_reader(reader),
                entailer=entailer,
            ),
            Aim(baseline, measure, cost, margin, confidence),
            prices,
            wanted=Measuring(judge, rule, seper, understanding, consistency),
            top_n=top_n,
            window=window,
            max_concurrency=max_concurrency,
            max_money=max_money,
            on_change=on_change,
            engine=engine,
            shard=shard,
            progress=progress,
        )


async def acompare(
    systems: Mapping[str, Any], questions: Questions, folder: str | Anywhere | None = None, **more: Any
) -> SystemsReport:
    """Like :func:`compare`, without blocking the event loop; coroutine functions run on this loop."""
    loop = asyncio.get_running_loop()
    settings = {**_DEFAULTS, **more}
    unknown = sorted(settings.keys() - _DEFAULTS.keys())
    if unknown:
        raise TypeError(f"acompare() got unexpected arguments {unknown}")
    reader = settings.pop("reader")
    return await asyncio.to_thread(
        _compared,
        systems,
        questions,
        folder,
        Waiter(loop),
        Services(reader=None if reader is None else as_reader(reader), entailer=settings.pop("entailer")),
        Aim(*(settings.pop(name) for name in ("baseline", "measure", "cost", "margin", "confidence"))),
        settings.pop("prices"),
        wanted=Measuring(
            *(settings.pop(name) for name in ("judge", "rule", "seper", "understanding", "consistency"))
        ),
        **settings,
    )


_DEFAULTS: Mapping[str, Any] = dict(compare.__kwdefaults__ or {})


class Measuring:
    """What is to be measured."""

    def __init__(self, judge: bool, rule: Judge, seper: bool, understanding: bool, consistency: int) -> None:
        self.judge, self.rule, self.seper = judge, rule, seper
        self.understanding, self.consistency = understanding, consistency

    def scoring(self, services: Services, reference: str) -> Scoring:
        """Return how answers are scored.

        Raises:
            ConfigurationError: If somebody is missing who measures.
        """
        for asked, name in ((self.seper, "seper"), (self.understanding, "understanding")):
            if asked and (services.reader is None or services.entailer is None):
                raise ConfigurationError(
                    f"{name} needs a reader and an entailer",
                    hint="pass reader=… and entailer=…, such as NLIEntailer() or JudgeEntailer(reader)",
                )
        reader, entailer = services.reader, services.entailer
        return Scoring(
            rule=self.rule,
            judge=self.judge,
            seper=SePer(reader, entailer) if self.seper and reader and entailer else None,
            dense=Dense(reader, entailer) if self.understanding and reader else None,
            consistency=self.consistency,
            reference=reference,
            services=services,
        )


def _compared(
    systems: Mapping[str, Any],
    questions: Questions,
    folder: str | Anywhere | None,
    wait: Callable[[Awaitable[Any]], Any],
    services: Services,
    aim: Aim,
    prices: Prices | None,
    *,
    wanted: Measuring,
    top_n: int,
    window: int,
    max_concurrency: int,
    max_money: float | None,
    on_change: OnChange,
    engine: Engine,
    shard: Shard,
    progress: Progress,
) -> SystemsReport:
    work = work_of(
        systems,
        services,
        wanted,
        wait,
        baseline=aim.baseline,
        prices=prices,
        top_n=top_n,
        window=window,
        max_concurrency=max_concurrency,
    )
    made = work.systems
    about = {**about_of(made, work.scoring, services), **shard.about}
    total = len(questions) if isinstance(questions, Sized) else None
    if folder is None and (engine is not IN_PROCESS or shard != WHOLE):
        raise ConfigurationError("an engine or a shard needs a folder", hint="pass folder=…")
    if total is not None:
        shard.check(total, UNIT)
    tally, purse = Tally(list(made)), Purse(max_money, engine.at_once)
    with counted_not_logged(), reporting(progress, total) as advance:
        if folder is None:
            for unit in groups_of(questions, UNIT, unique=True):
                purse.check()
                rows = work.rows(unit.read(), Memory())
                purse.pay(spent_on(rows))
                tally.add(rows)
                for _ in range(unit.size):
                    advance()
        else:
            with Run.open(folder, about, schemas(), kind=KIND, on_change=on_change) as run:
                run_units(run, UnitMaker(work), questions, purse, advance, engine=engine, shard=shard)
                tally.add_batches(
                    batch for part in run.manifest for batch in part_batches(run.held(part), part, COLUMNS)
                )
    if not tally.questions:
        raise InputError("there are no questions to ask", hint="give at least one")
    return analyse(tally, aim, about)


def work_of(
    systems: Mapping[str, Any],
    services: Services,
    measuring: Measuring,
    wait: Callable[[Awaitable[Any]], Any] | None = None,
    *,
    baseline: str = "",
    prices: Prices | None = None,
    top_n: int = 3,
    window: int = 32,
    max_concurrency: int = 16,
) -> Work:
    """Return what is done with each unit; see :func:`compare` for what its arguments mean.

    Raises:
        ConfigurationError: If a system is nothing that answers, or somebody is missing who measures.
    """
    if not systems:
        raise ConfigurationError("there is no system to ask", hint='compare({"plain": engine, …}, questions)')
    made = {name: as_system(name, one, reader=services.reader, top_n=top_n) for name, one in systems.items()}
    reference = baseline or next(iter(made))
    if reference not in made:
        raise ConfigurationError(
            f"the baseline {reference!r} is none of the systems", hint=f"there are {', '.join(made)}"
        )
    scoring = measuring.scoring(services, reference)
    return Work(made, scoring, prices or load_prices(), window, max_concurrency, wait or Waiter())


def about_of(systems: Mapping[str, System], scoring: Scoring, services: Services) -> dict[str, Any]:
    """Return what a folder's results belong to: plain values."""
    return {
        "systems": {
            name: dict(one.about) if isinstance(one, ProgramSystem) else name_of(one.answer)
            for name, one in systems.items()
        },
        "measured": list(scoring.measured),
        "rule": scoring.rule if isinstance(scoring.rule, str) else f"custom: {name_of(scoring.rule)}",
        "reader": None if services.reader is None else services.reader.name,
        "entailer": None if services.entailer is None else services.entailer.name,
        "reference": scoring.reference,
        "unit": UNIT,
    }
