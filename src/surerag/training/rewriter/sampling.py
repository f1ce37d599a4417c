"""Stage two, uncertainty-aware sampling (DynQR, section 2.2): try many rewrites, measure each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from surerag.drivers import run_many
from surerag.drivers.answering import is_local
from surerag.drivers.progress import reporting
from surerag.effects import Program
from surerag.journal import Answers, Journal, OnChange
from surerag.measures import exact_match
from surerag.methods.dynqr.component import require_metric
from surerag.methods.dynqr.metrics import SAMPLED, metric_name
from surerag.methods.dynqr.options import DynQROptions
from surerag.methods.dynqr.result import RewriteCosts
from surerag.readers.protocol import BaseReader, Reader
from surerag.recording import while_kept
from surerag.services import Encoder, Retriever, Services, as_reader
from surerag.training.rewriter.asking import (
    IsCorrect,
    Tried,
    chunks,
    incomplete,
    key_of,
    total,
    try_rewrites,
    write_rewrites,
)
from surerag.training.rewriter.options import SampleOptions
from surerag.training.rewriter.queries import Query, as_queries, digest_of
from surerag.training.rewriter.results import Sampled, StageProgress, named
from surerag.training.rewriter.tables import written

JOURNAL, SAMPLES = "journal.jsonl", "samples.parquet"


def sample(
    queries: Iterable[Query | str],
    rewriter: Reader | str | Path,
    reader: Reader,
    retriever: Retriever,
    output: str | Path,
    options: SampleOptions | None = None,
    *,
    encoder: Encoder | None = None,
    is_correct: IsCorrect = exact_match,
    corpus: str = "",
    on_change: OnChange = "error",
    progress: StageProgress = False,
) -> Sampled:
    """Sample rewrites of queries, answer from what each retrieves, and record what it was worth.

    ``output`` then holds ``samples.parquet``, with every reward that can be measured: the reader's
    uncertainty always; whether the answer was right, and whether the passages contain a gold answer, for
    queries with gold answers; the passages' relevance to the original query, given an encoder. All local
    models are asked in large batches. A run that is killed goes on when the same is called again, and ends
    with the same file: with a local reader, a batch of queries is kept when all of it is done; with a served
    one, each query.

    Args:
        queries: To be rewritten; equal ones count once.
        rewriter: The distilled rewriter: a folder, a Hugging Face id, or a reader.
        reader: Answers; it has to report what the metric needs.
        retriever: Finds passages.
        output: Folder for everything; made if it is not there.
        options: What steers this stage; None for the defaults.
        encoder: For the reward ``"relevance"``: mean inner product of query and passages.
        is_correct: For the reward ``"answer"``: whether an answer matches one of the gold answers.
        corpus: What the retriever searches, in words that change with it; with it, a folder is not gone on
            with on another corpus by mistake.
        on_change: What to do if the folder belongs to a run with other data, models or settings.
        progress: How far it is.

    Raises:
        InputError: If there is no query.
        CapabilityError: If the reader cannot give what the metric needs.
        ConfigurationError: If the folder belongs to another run.
        ServiceError: If some queries failed, after all others were asked.
        MissingExtraError: If a package is not installed.
    """
    options, output = options or SampleOptions(), Path(output)
    asked = as_queries(queries)
    writes = as_reader(_loaded(rewriter, options) if isinstance(rewriter, str | Path) else rewriter)
    answers = as_reader(reader)
    require_metric(options.metric, answers)
    services = Services(reader=answers, retriever=retriever, encoder=encoder)
    services.require("sample", "reader", "retriever")
    method = _method(options, services)
    names = {
        "rewriter": writes.name,
        "reader": answers.name,
        "retriever": str(getattr(retriever, "name", type(retriever).__name__)),
        "encoder": None if encoder is None else encoder.name,
        "corpus": corpus,
        "is_correct": getattr(is_correct, "__qualname__", type(is_correct).__name__),
        **_settings(options, method),
    }
    run = {"stage": "sample", "queries": f"{len(asked)}, digest {digest_of(asked)}", **names}
    costs: list[RewriteCosts] = []
    failures: list[BaseException] = []
    sampled = tried = 0
    with (
        Journal(output / JOURNAL, run, on_change=on_change) as journal,
        written(output / SAMPLES, "samples", run) as write,
        reporting(named(progress, "Sampling"), len(asked), "Sampling") as advance,
    ):
        trial = _Trial(writes, services, options, method, is_correct, journal, key_of(names))
        for chunk in chunks(asked, options.window):
            for outcome in trial.tried(chunk):
                if isinstance(outcome, BaseException):
                    failures.append(outcome)
                else:
                    sampled, tried = sampled + 1, tried + sum("uncertainty" in row for row in outcome.rows)
                    costs.append(outcome.costs)
                    write(map(_restored, outcome.rows))
                advance()
        if failures and (options.on_failure == "raise" or not sampled):
            raise incomplete(failures, len(asked), "sampled") from failures[0]
    return Sampled(output / SAMPLES, sampled, tried, len(failures), total(costs))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries the rewrites of some queries at a time, and keeps what came of it."""

    rewriter: BaseReader
    services: Services
    options: SampleOptions
    method: DynQROptions
    is_correct: IsCorrect
    answers: Answers
    whose: str

    def tried(self, queries: Sequence[Query]) -> list[Tried | BaseException]:
        """Return what came of each query, or why nothing did.

        A local model's numbers depend, in their last digits, on what else is in its batch. So that a resumed
        run ends with the same file, a batch is kept whole or not at all, and asked again as it was.
        """
        local = is_local(self.services.reader)
        units = [list(queries)] if local else [[query] for query in queries]
        missing = [query for unit in units if self._known(unit) is None for query in unit]
        fresh = self._ask(missing, keep=not local)
        if local and missing and not any(isinstance(outcome, BaseException) for outcome in fresh.values()):
            self._keep(missing, [fresh[query.text] for query in missing])
        found: list[Tried | BaseException] = []
        for unit in units:
            known = self._known(unit)
            found += [fresh[query.text] for query in unit] if known is None else known
        return found

    def _ask(self, queries: Sequence[Query], keep: bool) -> dict[str, Any]:
        window = self.options.window
        prompts = [self.options.prompts["rewrite"].render(query=query.text) for query in queries]
        writing = [
            write_rewrites(q, p, self.options.rewriting) for q, p in zip(queries, prompts, strict=True)
        ]
        outcomes: list[Any] = run_many(
            writing, Services(reader=self.rewriter), window=window, return_exceptions=True
        )
        replies = dict(zip(queries, outcomes, strict=True))
        failed = {query.text: reply for query, reply in replies.items() if isinstance(reply, BaseException)}
        written_for = [query for query in queries if query.text not in failed]
        programs = [
            self._trying(
                query, try_rewrites(query, replies[query], self.method, self.is_correct, self._judges), keep
            )
            for query in written_for
        ]
        tried: list[Any] = run_many(programs, self.services, window=window, return_exceptions=True)
        return {**failed, **{query.text: outcome for query, outcome in zip(written_for, tried, strict=True)}}

    @property
    def _judges(self) -> bool:
        return self.services.encoder is not None

    def _trying(self, query: Query, program: Program[Tried], keep: bool) -> Program[Tried]:
        tried = yield from while_kept(program, self.answers)
        if keep:
            self._keep([query], [tried])
        return tried

    def _known(self, unit: Sequence[Query]) -> list[Tried] | None:
        kept = self.answers.get(self._key(unit))
        return None if kept is None else [Tried(rows, RewriteCosts(**costs)) for rows, costs in kept]

    def _keep(self, unit: Sequence[Query], tried: Sequence[Tried]) -> None:
        self.answers.put({self._key(unit): [[item.rows, asdict(item.costs)] for item in tried]})

    def _key(self, unit: Sequence[Query]) -> str:
        return key_of(self.whose, [[query.id, query.text, list(query.golds)] for query in unit])


def _loaded(rewriter: str | Path, options: SampleOptions) -> Reader:
    from surerag.readers.transformers import TransformersReader

    return TransformersReader.from_pretrained(str(rewriter), template_options=options.template_options)


def _method(options: SampleOptions, services: Services) -> DynQROptions:
    """Return the method's own options: a rewrite is answered from as at inference."""
    return DynQROptions(
        metric=options.metric,
        top_n=options.top_n,
        n_samples=options.n_samples,
        max_tokens=services.answer_tokens(options.max_tokens),
        stop=options.stop,
        rewrite_words=options.rewrite_words,
        prompts=options.prompts,
    )


def _settings(options: SampleOptions, method: DynQROptions) -> dict[str, Any]:
    """Return what the recorded numbers depend on, as plain values."""
    return {
        "rewrites": options.rewrites,
        "temperature": options.temperature,
        "top_p": options.top_p,
        "seed": options.seed,
        "rewrite_tokens": options.rewrite_tokens,
        "rewrite_words": options.rewrite_words,
        "metric": metric_name(options.metric),
        "n_samples": options.n_samples if options.metric in SAMPLED else None,
        "top_n": options.top_n,
        "max_tokens": method.max_tokens,
        "stop": list(options.stop),
        "window": options.window,
        "prompts": {name: options.prompts[name].text for name in ("rewrite", "answer", "closed_book")},
    }


def _restored(row: dict[str, Any]) -> dict[str, Any]:
    """An answer without a word is infinitely uncertain; the journal could not say so."""
    infinite = "uncertainty" in row and row["uncertainty"] is None
    return {**row, "uncertainty": math.inf} if infinite else row
