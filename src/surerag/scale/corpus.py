"""A corpus in batches: cut into passages, summarised, embedded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar, Final

from surerag.drivers import run_many
from surerag.effects import Program, generate
from surerag.errors import ConfigurationError, InputError
from surerag.extras import extra
from surerag.options import check_among
from surerag.prompts import SUMMARIZE, PromptTemplate
from surerag.retrieval import LeadSummaries, chunk_text, lead_summary
from surerag.scale.batch import Batch, Cells, Column
from surerag.scale.batch_fields import Given, found_columns, rows_of
from surerag.services import Services
from surerag.types import Generation, Sampling

with extra("parquet"):
    import pyarrow as pa

_TEXT, _WHOLE = pa.string(), pa.int64()


class ChunkBatch(Batch):
    """Documents cut into passages, a row each: :func:`surerag.retrieval.chunk_text`.

    The column of the text then holds the passage, and that of the id ``document#number``; all other
    columns are repeated. A document that cannot be cut keeps its row, without a text.

    Settings: ``tokens`` (100) of a passage and ``overlap`` (20) with the one before, in words and marks.
    """

    PREFIX = "chunk"
    FIELDS = ("id", "text")
    OPTIONS: ClassVar[Mapping[str, Any]] = {"tokens": 100, "overlap": 20}
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "document": Column(_TEXT, "id of the document"),
        "start": Column(_WHOLE, "where the passage begins in it, in characters"),
        "end": Column(_WHOLE, "where it ends"),
    }

    def _check(self) -> None:
        self._cut("")

    def _cut(self, text: str) -> list[Any]:
        sizes = {
            **self.OPTIONS,
            **{name: self._settings[name] for name in self.OPTIONS if name in self._settings},
        }
        for name, value in sizes.items():
            if not isinstance(value, int) or isinstance(value, bool):
                raise ConfigurationError(f"{name} must be a whole number, got {value!r}")
        return chunk_text(text, **sizes)

    def __call__(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """Cut the documents of a table; see :meth:`Batch.__call__`."""
        given = self._checked(table)
        columns = found_columns(given.schema, self._columns, self.fields)
        rows, pieces = [], list[Cells | Exception]()
        for at, row in enumerate(rows_of(given, columns)):
            found = self._pieces(row)
            rows += [at] * len(found)
            pieces += found
        repeated = given.take(pa.array(rows, pa.int64()))
        for field in ("id", "text"):
            where = repeated.schema.get_field_index(columns[field])
            if where < 0:
                raise InputError(
                    f"{columns[field]!r} lies within an object", hint="give it a column of its own"
                )
            written = pa.array([None if isinstance(one, Exception) else one[field] for one in pieces], _TEXT)
            if field == "id":  # a document that failed keeps its own
                written = written.fill_null(repeated.column(where).cast(_TEXT).combine_chunks())
            repeated = repeated.set_column(where, columns[field], written)
        return self._with_results(repeated, pieces)

    def _pieces(self, row: Given) -> list[Cells | Exception]:
        try:
            document, text = row.id, row.text
            found = self._cut(text)
            if not found:
                raise InputError("the document holds no words")
        except Exception as error:
            return [error]
        return [
            {
                "id": f"{document}#{number}",
                "text": piece.text,
                "document": document,
                "start": piece.start,
                "end": piece.end,
            }
            for number, piece in enumerate(found)
        ]


_LEAD: Final = {item.name: item.default for item in fields(LeadSummaries)}
_WRITTEN: Final = {"prompt": SUMMARIZE.text, "max_tokens": 96, "max_characters": None}


class SummarizeBatch(Batch):
    """A summary of each document: its first sentences, or what a reader writes.

    Settings: those of :class:`surerag.retrieval.LeadSummaries`; with ``reader`` instead ``prompt`` (with
    the slot ``{document}``), ``max_tokens`` (96) and ``max_characters`` that the reader is shown. Where it
    writes nothing, the first two sentences stand in.
    """

    PREFIX = "summary"
    FIELDS = ("text",)
    PARTS = ("reader",)
    OPTIONS: ClassVar[Mapping[str, Any]] = {**_LEAD, **_WRITTEN}
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "text": Column(_TEXT, "the summary"),
        "prompt_tokens": Column(_WHOLE, "tokens that the reader read for it; 0 without one"),
        "completion_tokens": Column(_WHOLE, "tokens that it wrote"),
        "calls": Column(_WHOLE, "answers that were asked for"),
    }

    def _check(self) -> None:
        known = _WRITTEN if "reader" in self._parts else _LEAD
        given = {name: self._settings[name] for name in self.OPTIONS if name in self._settings}
        check_among(
            known, given, "SummarizeBatch with a reader" if "reader" in self._parts else "SummarizeBatch"
        )
        self._options = {**known, **given}
        if "reader" in self._parts:
            self._prompt = PromptTemplate("summarize", self._options["prompt"]).require("document")
            self._sampling = Sampling(max_tokens=self._options["max_tokens"], trace="none")
        else:
            lead_summary("", **self._options)

    def _results(self, rows: Sequence[Given]) -> list[Cells | Exception]:
        texts = [_text_of(row) for row in rows]
        right = [text for text in texts if isinstance(text, str)]
        found: Any = iter(self._written(right) if "reader" in self._parts else map(self._lead, right))
        return [next(found) if isinstance(text, str) else text for text in texts]

    def _lead(self, text: str) -> Cells:
        return {
            "text": lead_summary(text, **self._options),
            "prompt_tokens": 0,
            "completion_tokens": 0,
            "calls": 0,
        }

    def _written(self, texts: Sequence[str]) -> list[Cells | Exception]:
        services = Services(reader=self._parts["reader"])
        window = max(len(texts), 1) if services.reader and services.reader.capabilities.local else 64
        programs = [self._summary(text) for text in texts]
        return run_many(programs, services, window=window, return_exceptions=True)

    def _summary(self, text: str) -> Program[Cells]:
        prompt = self._prompt.render(document=text[: self._options["max_characters"]])
        replies = yield from generate([prompt], self._sampling)
        reply: Generation = replies[0][0]
        return {
            "text": reply.text or lead_summary(text),
            "prompt_tokens": reply.prompt_tokens,
            "completion_tokens": reply.completion_tokens + reply.thinking_tokens,
            "calls": 1,
        }


class EmbedBatch(Batch):
    """A vector of each text, by an encoder.

    With these columns a table is what ``retriever={"passages": …}`` reads. Settings: ``encoder``;
    ``kind``, which is ``"document"`` or ``"query"``.
    """

    PREFIX = "embed"
    FIELDS = ("text",)
    PARTS = ("encoder",)
    OPTIONS: ClassVar[Mapping[str, Any]] = {"kind": "document"}
    COLUMNS: ClassVar[Mapping[str, Column]] = {
        "vector": Column(pa.list_(pa.float32()), "of length 1"),
        "encoder": Column(_TEXT, "who made it"),
    }

    def _check(self) -> None:
        self._kind: Any = self._settings.get("kind", "document")
        if self._kind not in ("document", "query"):
            raise ConfigurationError(f"kind must be document or query, got {self._kind!r}")
        self._parts.require("encoder", type(self).__name__)

    def _results(self, rows: Sequence[Given]) -> list[Cells | Exception]:
        texts = [_text_of(row) for row in rows]
        right = [text for text in texts if isinstance(text, str)]
        found = iter(self._vectors(right))
        return [next(found) if isinstance(text, str) else text for text in texts]

    def _vectors(self, texts: Sequence[str]) -> list[Cells | Exception]:
        encoder = self._parts["encoder"]
        if not texts:
            return []
        try:
            vectors = encoder.encode(list(texts), self._kind)
        except Exception as error:
            if len(texts) == 1:
                return [error]
            # One text that an encoder cannot take costs the others nothing.
            return [one for text in texts for one in self._vectors([text])]
        return [{"vector": vector, "encoder": encoder.name} for vector in vectors]


def _text_of(row: Given) -> str | Exception:
    try:
        return row.text
    except InputError as error:
        return error
