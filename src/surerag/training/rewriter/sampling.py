"""Stage two, uncertainty-aware sampling (DynQR, section 2.2): try many rewrites, measure each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
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
    check_failures,
    chunks,
    judged,
    key_of,
    total,
    try_rewrites,
    write_rewrites,
)
from surerag.training.rewriter.locking import locked
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
        is_correct: For the reward ``"answer"``: whether an answer matches one of the gold answers. It is
            asked again whenever the file is written.
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
    if options.metric is not None:
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
        **_settings(options, method),
    }
    run = {"stage": "sample", "queries": f"{len(asked)}, digest {digest_of(asked)}", **names}
    costs: list[RewriteCosts] = []
    failures: list[BaseException] = []
    sampled = tried = 0
    with (
        locked(output),
        Journal(output / JOURNAL, run, on_change=on_change) as journal,
        written(output / SAMPLES, "samples", run) as write,
        reporting(named(progress, "Sampling"), len(asked), "Sampling") as advance,
    ):
        trial = _Trial(writes, services, options, method, journal, key_of(names))
        for chunk in chunks(asked, options.window):
            for query, outcome in zip(chunk, trial.tried(chunk), strict=True):
                if isinstance(outcome, BaseException):
                    failures.append(outcome)
                else:
                    sampled, tried = sampled + 1, tried + sum("answer" in row for row in outcome.rows)
                    costs.append(outcome.costs)
                    write(judged(outcome, query, is_correct))
                advance()
        check_failures(failures, len(asked), "sampled", options.on_failure)
    return Sampled(output / SAMPLES, sampled, tried, len(failures), total(costs))


@dataclass(frozen=True, slots=True)
class _Trial:
    """Tries the rewrites of some queries at a time, and keeps what came of it."""

    rewriter: BaseReader
    services: Services
    options: SampleOptions
    method: DynQROptions
    answers: Answers
    whose: str
    read: dict[str, Any] = field(default_factory=dict)

    def tried(self, queries: Sequence[Query]) -> list[Tried | BaseException]:
        """Return what came of each query, or why nothing did.

        A local model's numbers depend, in their last digits, on what else is in its batch. So that a resumed
        run ends with the same file, what a batch brought is kept whole or not at all.
        """
        local = is_local(self.services.reader)
        known = [self._known(query) for query in queries]
        missing = [query for query, kept in zip(queries, known, strict=True) if kept is None]
        fresh = self._ask(missing, keep=not local)
        done = [query for query in missing if not isinstance(fresh[query.text], BaseException)]
        if local and done:
            self._keep(done, [fresh[query.text] for query in done])
        return [
            fresh[query.text] if kept is None else kept for query, kept in zip(queries, known, strict=True)
        ]

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
        measures = self.options.metric is not None
        programs = [
            self._trying(
                query,
                try_rewrites(query, replies[query], self.method, measures, self._judges),
                keep,
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

    def _known(self, query: Query) -> Tried | None:
        where = self.answers.get(self._key(query))
        if where is None:
            return None
        batch, place = where
        if batch not in self.read:
            self.read.clear()
            self.read[batch] = self.answers.get(batch)
        if self.read[batch] is None:
            return None
        rows, costs, _ = self.read[batch][place]
        return Tried([self._with_texts(row) for row in rows], RewriteCosts(**costs))

    def _with_texts(self, row: dict[str, Any]) -> dict[str, Any]:
        if "texts" not in row:
            return row
        return {**row, "texts": [self.answers.get(key) for key in row["texts"]]}

    def _keep(self, queries: Sequence[Query], tried: Sequence[Tried]) -> None:
        """Keep passages' texts once each, where each query's answers stand, and last the answers themselves.

        A kill in between leaves places without answers, which count for nothing.
        """
        texts: dict[str, str] = {}
        payload = []
        for query, item in zip(queries, tried, strict=True):
            rows = []
            for row in item.rows:
                if "texts" in row:
                    keys = {key_of("text", text): text for text in row["texts"]}
                    texts |= keys
                    row = {**row, "texts": list(keys)}
                rows.append(row)
            payload.append([rows, asdict(item.costs), query.text])
        batch = key_of(self.whose, "batch", [query.text for query in queries])
        places = {self._key(query): [batch, place] for place, query in enumerate(queries)}
        new = {key: text for key, text in texts.items() if self.answers.get(key) is None}
        self.answers.put({**new, **places, batch: payload})

    def _key(self, query: Query) -> str:
        return key_of(self.whose, query.text)


def _loaded(rewriter: str | Path, options: SampleOptions) -> Reader:
    from surerag.readers.transformers import TransformersReader

    return TransformersReader.from_pretrained(str(rewriter), template_options=options.template_options)


def _method(options: SampleOptions, services: Services) -> DynQROptions:
    """Return the method's own options: a rewrite is answered from as at inference."""
    return DynQROptions(
        metric=options.metric or "perplexity",
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
        "metric": None if options.metric is None else metric_name(options.metric),
        "n_samples": options.n_samples if options.metric in SAMPLED else None,
        "top_n": options.top_n,
        "max_tokens": method.max_tokens,
        "stop": list(options.stop),
        "prompts": {name: options.prompts[name].text for name in ("rewrite", "answer", "closed_book")},
    }
