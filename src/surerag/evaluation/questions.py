"""Read questions with reference answers from JSONL, JSON, CSV, XLSX or Parquet files."""

from __future__ import annotations

import ast
import hashlib
import json
import math
import re
import shlex
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from surerag.documents import FileNotesWarning
from surerag.documents.converted import workbook_rows
from surerag.errors import InputError, extra, kind_of
from surerag.records import Record, csv_records, csv_rows, json_records, key_of_rows
from surerag.text import decode

ALIASES: Final[Mapping[str, tuple[str, ...]]] = {
    "question": (
        "question", "query", "user_input", "input", "inputs.question", "inputs.input", "inputs.query",
        "inputs.user_input", "prompt",
    ),
    "references": (
        "references", "answers", "answer", "reference", "ground_truth", "ground_truths", "gold_answers",
        "golden_answers", "gold", "golds", "expected_output", "expected_answer", "reference_answer",
        "reference_outputs.answer", "reference_outputs.output", "outputs.answer", "outputs.output",
        "reference.answer", "reference.output", "possible_answers",
    ),
    "contexts": (
        "contexts", "retrieved_contexts", "retrieval_context", "reference_contexts", "outputs.contexts",
        "outputs.documents", "ctxs", "passages", "documents", "context",
    ),
    "id": ("id", "_id", "example_id", "qid", "question_id", "query_id"),
    "system": ("system", "retriever"),
    "group": ("group", "document", "document_id", "doc_id", "article", "title"),
}  # fmt: skip
"""Accepted column names of each field, which include the names in RAGAS, LangSmith, DeepEval and SQuAD. If a
file has several columns for a field, the first name with a value is used."""

_EXAMPLE = '{"question": "Who founded it?", "answers": ["Ada Voss"]}'
TABLES = (".csv", ".tsv", ".xlsx")
"""Suffixes of table files, whose cells are texts."""
_DIVIDERS = (r"\s*\n\s*", r"\|", ";")
"""Patterns of the separators of several answers in one cell."""
_ANSWER_WORDS = 8
"""A cell is divided at line breaks or semicolons only if each part has at most this number of words."""
_HEADER_ROWS = 10
"""Number of first rows of a table in which the header is looked for."""
_LONGEST_NAME = 200
"""Maximum length of a group's name in characters; a longer name is replaced by its hash."""
_TEXT_KEYS = ("text", "page_content", "content", "passage", "chunk")
_QUESTION_MARKS = ("?", "\uff1f", "\u061f", "\u037e")
_DOCUMENT_KEYS = (
    "document_id",
    "doc_id",
    "ref_doc_id",
    "document",
    "source",
    "file_path",
    "file_name",
    "title",
    "id",
)
"""Keys of a context, or of the context's metadata, that may hold the name of the document; the first key with
a value is used."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an evaluation.

    Attributes:
        text: The question; it is not empty.
        references: Right answers; empty if they are not known.
        contexts: Texts of passages for the question: retrieved passages, or passages that contain the answer.
        id: Name of the question in reports.
        system: Name of the retriever that found the contexts, if a file compares several retrievers.
        group: Name of the group of questions, such as the document that they are about. Intervals and tests
            treat questions of one group as dependent. By default, the group is a hash of the first context.
            A question with neither group nor contexts is independent of all other questions.
    """

    text: str
    references: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    id: str = ""
    system: str = ""
    group: str = ""

    def __post_init__(self) -> None:
        if len(self.group) > _LONGEST_NAME:  # a column may hold the text of the document
            text = self.group
        elif self.contexts and not self.group:
            text = self.contexts[0]
        else:
            return
        object.__setattr__(self, "group", hashlib.sha256(text.encode()).hexdigest()[:12])

    @property
    def key(self) -> str:
        """Hash of ``text``, ``references``, ``contexts``, ``id`` and ``system``; it is the key in a run."""
        compared = (self.text, self.references, self.contexts, self.id, self.system)
        return hashlib.sha256(json.dumps(compared).encode()).hexdigest()[:24]


def read_questions(path: str | Path, *, columns: Mapping[str, str] | None = None) -> list[Question]:
    """Read questions from a file: ``.jsonl``, ``.json``, ``.csv``, ``.tsv``, ``.xlsx`` or ``.parquet``.

    A file may have any text encoding. Cells may be separated by commas, semicolons, tabs or bars (``|``). The
    header of a table is the first row that names a column of questions; ten rows are searched for the header.
    Rows above the header are skipped. Of an Excel workbook, only the first sheet that has a header is read.
    The case of column names is ignored, unless two columns differ only in case. A cell may contain several
    answers, as a JSON list or separated by line breaks, ``|`` or ``;``.

    Args:
        path: Path of the file.
        columns: The file's column names by field (question, references, contexts, id, system, group). A field
            may be omitted if its column has one of the names in :data:`ALIASES`.

    Raises:
        InputError: If the file cannot be read, has no column of questions, or a row has no question. The
            message names the line and the column.
        MissingExtraError: If pyarrow or openpyxl is needed and not installed.

    Warns:
        FileNotesWarning: If the encoding was guessed, a cell was divided into several answers, or sheets of a
            workbook were ignored. If there are no reference answers, but unused columns may contain them.
    """
    path = Path(path)
    names = _columns_by_field(columns or {})
    divide = _Divider() if path.suffix.lower() in TABLES else None
    records = list(_records(path, names))
    questions = [_to_question(row.value, names, f"{path}, {row.place}", divide) for row in records]
    if divide is not None and divide.cells:
        warnings.warn(f"{path}: {divide}", FileNotesWarning, stacklevel=2)
    if not questions:
        raise InputError(
            f"{path} contains no questions",
            hint="write a header, and below it a row for each question, such as the two lines "
            '"question,answers" and "Who founded it?,Ada Voss"'
            if divide
            else f"write one question per line, such as {_EXAMPLE}",
        )
    unused = _unused_columns(records[0].value, names)
    if unused and not any(question.references for question in questions):
        advice = _name_columns(_flatten(records[0].value), names)
        warnings.warn(
            f"{path} has no reference answers, and these columns are not used: {', '.join(unused)}; if one "
            f"of these columns holds the reference answers, {advice}",
            FileNotesWarning,
            stacklevel=2,
        )
    return list({question.key: question for question in questions}.values())


def _unused_columns(record: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
    flat = _flatten(record)
    used = {_column(field, flat, names, "") for field in ALIASES}
    parents = {name.rpartition(".")[0] for name in used if name}
    return [name for name in flat if name not in used | parents]


def as_questions(
    items: Iterable[Any] | str | Path, columns: Mapping[str, str] | None = None
) -> list[Question]:
    """Return questions as ``Question`` objects.

    ``items`` is a file, or a list of texts, pairs (question, references), mappings or ``Question`` objects.
    ``columns`` has the column names of the file, or the keys of the mappings, by field.
    """
    if isinstance(items, str | Path):
        return read_questions(items, columns=columns)
    names = _columns_by_field(columns or {})
    if isinstance(items, Mapping) or hasattr(items, "columns"):
        raise InputError(
            f"expected a list of questions, got {kind_of(items)}",
            hint='pass [question], or frame.to_dict("records") for a DataFrame of pandas',
        )
    questions = []
    for place, item in enumerate(items, 1):
        fields = [names.get(field, field) for field in ("question", "references")]
        if isinstance(item, str):
            item = {fields[0]: item}
        elif isinstance(item, tuple) and len(item) == 2:
            item = dict(zip(fields, item, strict=True))
        is_question = isinstance(item, Question)
        questions.append(item if is_question else _to_question(item, names, f"question {place}"))
    if not questions:
        raise InputError("expected questions, got an empty list", hint="pass at least one question")
    return list({question.key: question for question in questions}.values())


def _columns_by_field(columns: Mapping[str, str]) -> dict[str, str]:
    names: dict[str, str] = {}
    for name, column in columns.items():
        field = next((field for field in ALIASES if name == field or name in ALIASES[field]), None)
        if field is None:
            raise InputError(f"there is no field {name!r}", hint=f"fields are {', '.join(ALIASES)}")
        if field in names:
            raise InputError(f"the column of {field} is named twice: {names[field]!r} and {column!r}")
        names[field] = column
    return names


class _Divider:
    def __init__(self) -> None:
        self.cells, self.first = 0, ""

    def __call__(self, value: Any) -> Any:
        for mark in _DIVIDERS if isinstance(value, str) else ():
            parts = [part.strip() for part in re.split(mark, value) if part.strip()]
            if len(parts) > 1 and (
                mark == r"\|" or max(len(part.split()) for part in parts) <= _ANSWER_WORDS
            ):
                self.cells += 1
                self.first = self.first or value
                return parts
        return value

    def __str__(self) -> str:
        cells = "1 cell holds" if self.cells == 1 else f"{self.cells} cells hold"
        return (
            f"{cells} several right answers, which were divided at line breaks, | or ;, such as "
            f"{ascii(self.first)[:80]}; if | or ; belongs to an answer, write the cell as a JSON list: "
            '["one; and the same"]'
        )


def _records(path: Path, names: Mapping[str, str]) -> Iterable[Record]:
    kind = path.suffix.lower()
    if kind not in (*TABLES, ".json", ".jsonl", ".ndjson", ".parquet"):
        raise InputError(
            f"{path} has an unknown suffix", hint="save it as .xlsx, .csv, .tsv, .jsonl, .json or .parquet"
        )
    data = _contents(path)
    if not isinstance(data, bytes):
        return data
    if kind == ".xlsx":
        return _table(_question_sheet(data, path, names), path)
    text = _decode_file(data, path)
    if kind in TABLES:
        try:
            rows = csv_rows(text, "\t" if kind == ".tsv" else "")
            return _table(rows[_header_row(rows, names) or 0 :], path)
        except InputError as error:
            raise InputError(f"{path}, {error}") from error
    records = json_records(text, str(path))
    key = key_of_rows(records)
    if key is not None and not any(name in records[0].value for name in ALIASES["question"]):
        records = [Record(number, row, "element") for number, row in enumerate(records[0].value[key], 1)]
    return records


def _contents(path: Path) -> bytes | list[Record]:
    if path.exists() and not path.is_file():  # reading a named pipe or a device may never end
        raise InputError(f"{path} is not a regular file", hint="pass the path of a file")
    try:
        if path.suffix.lower() != ".parquet":
            return path.read_bytes()
        with extra("evaluation"):
            from pyarrow.parquet import read_table
        return [Record(number, row, "row") for number, row in enumerate(read_table(path).to_pylist(), 1)]
    except FileNotFoundError:
        raise InputError(f"there is no file {path}", hint="correct the path of the questions") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _header_row(rows: Sequence[Record], names: Mapping[str, str]) -> int | None:
    expected = [names["question"]] if "question" in names else ALIASES["question"]
    parents = [name.partition(".")[0] for name in expected]  # a cell may hold a mapping
    for index, row in enumerate(rows[:_HEADER_ROWS]):
        if any(_same_column(name, row.value) is not None for name in (*expected, *parents)):
            return index
    return None


def _question_sheet(data: bytes, path: Path, names: Mapping[str, str]) -> list[Record]:
    try:
        sheets = {title: rows for title, rows in workbook_rows(data).items() if rows}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    headers = {title: _header_row(rows, names) for title, rows in sheets.items()}
    title = next((title for title, header in headers.items() if header is not None), None)
    if title is None:
        if not sheets:
            return []
        first_rows = [
            f"the sheet {name!r} begins with {', '.join(filter(None, rows[0].value))[:80]}"
            for name, rows in sheets.items()
        ]
        rows = csv_records(max(sheets.values(), key=len))
        fullest = max(rows, key=lambda row: len(row.value))
        column = f"column {names['question']!r}" if "question" in names else "column of questions"
        raise InputError(
            f"{path} has no {column} in the first {_HEADER_ROWS} rows of a sheet; {'; '.join(first_rows)}",
            hint=_name_columns(fullest.value, {}),
        )
    if others := [repr(other) for other in sheets if other != title]:
        warnings.warn(
            f"{path}: only the sheet {title!r} is read, not {', '.join(others)}",
            FileNotesWarning,
            stacklevel=2,
        )
    return sheets[title][headers[title] or 0 :]


def _table(records: Sequence[Record], path: Path) -> Iterator[Record]:
    header, *rows = records or [Record(1, [])]
    for row in rows:
        if any(row.value[len(header.value) :]):
            raise InputError(
                f"{path}, {row.place} has {len(row.value)} cells, and the header has {len(header.value)}",
                hint='put a text that contains the delimiter into quotation marks: "What, then?"',
            )
        cells = dict(zip(header.value, row.value, strict=False))
        yield Record(row.number, {name: _parse_cell(value) for name, value in cells.items() if name})


def _decode_file(data: bytes, path: Path) -> str:
    try:
        text, encoding, guessed = decode(data)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if guessed:
        warnings.warn(f"{path}: its encoding is a guess: {encoding}", FileNotesWarning, stacklevel=2)
    return text


def _parse_cell(value: Any) -> Any:
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        for parse in (json.loads, ast.literal_eval):
            try:
                return parse(value)
            except (ValueError, SyntaxError, MemoryError, RecursionError):
                continue
    return value


def _to_question(
    record: Any, names: Mapping[str, str], place: str, divide: _Divider | None = None
) -> Question:
    if not isinstance(record, Mapping):
        raise InputError(
            f"{place} is {kind_of(record)}, not an object with columns", hint=f"write {_EXAMPLE}"
        )
    flat = _flatten(record)
    columns = {field: _column(field, flat, names, place) for field in ALIASES}
    column = columns["question"]
    if column is None:
        raise InputError(
            f"{place} has no question; its columns are {', '.join(flat) or '(none)'}",
            hint=_name_columns(flat, names),
        )
    answers, passages = (flat.get(columns[field] or "") for field in ("references", "contexts"))
    references = _texts(divide(answers) if divide else answers, f"{place}, column {columns['references']!r}")
    contexts = _texts(passages, f"{place}, column {columns['contexts']!r}")
    others = (flat.get(columns[field] or "") for field in ("id", "system", "group"))
    name, system, group = ("" if value is None else str(value) for value in others)
    group = group or _document_of(passages)
    return Question(
        _text(flat[column], f"{place}, column {column!r}"), references, contexts, name, system, group
    )


def _name_columns(flat: Mapping[str, Any], names: Mapping[str, str]) -> str:
    # The question is guessed from its name or question mark; the reference answer often stands behind it.
    named = {field: name for field, name in names.items() if _same_column(name, flat) is not None}
    columns_of_fields = {field: named.get(field) or _column(field, flat, {}, "") for field in ALIASES}
    question = columns_of_fields["question"] or _likely_question(flat)
    guess = {"question": question or "NAME"}
    if columns_of_fields["references"] is None:
        free = [name for name in flat if name == question or name not in columns_of_fields.values()]
        behind = free[free.index(question) + 1 :] if question else []
        if len(free) > 1:
            guess["references"] = behind[0] if behind else "NAME"
    columns = {**named, **guess}
    option = shlex.quote(",".join(f"{field}={name}" for field, name in columns.items()))
    is_guess = " (a guess from the first row)" if question else ""
    return f"name the columns{is_guess}: --columns {option}, or in Python columns={columns}"


def _likely_question(flat: Mapping[str, Any]) -> str | None:
    near = [name for name in flat if get_close_matches(name, ALIASES["question"], 1)]
    near += [name for name, value in flat.items() if str(value).strip().endswith(_QUESTION_MARKS)]
    return next(iter(near), None)


def _document_of(contexts: Any) -> str:
    contexts = _parse_cell(contexts)
    first = contexts[0] if isinstance(contexts, list | tuple) and contexts else contexts
    if not isinstance(first, Mapping):
        return ""
    inner = first.get("metadata")
    named = {**first, **inner} if isinstance(inner, Mapping) else first
    return next((str(named[key]) for key in _DOCUMENT_KEYS if named.get(key)), "")


def _flatten(record: Mapping[str, Any]) -> dict[str, Any]:
    flat = {str(name): _plain_value(value) for name, value in record.items()}
    for name, value in list(flat.items()):
        if isinstance(value := _parse_cell(value), Mapping):
            flat |= {f"{name}.{inner}": _plain_value(item) for inner, item in value.items()}
    return flat


def _column(field: str, flat: Mapping[str, Any], names: Mapping[str, str], place: str) -> str | None:
    if (column := names.get(field)) is None:
        there = [name for alias in ALIASES[field] if (name := _same_column(alias, flat)) is not None]
        return next((name for name in there if flat[name] is not None), next(iter(there), None))
    if (name := _same_column(column, flat)) is None:
        raise InputError(f"{place} has no column {column!r}", hint=f"its columns are {', '.join(flat)}")
    return name


def _same_column(name: str, columns: Collection[str]) -> str | None:
    return name if name in columns else _columns_by_case(tuple(columns)).get(name.casefold())


@lru_cache(maxsize=64)
def _columns_by_case(columns: tuple[str, ...]) -> Mapping[str, str]:
    lower = [column.casefold() for column in columns]
    return {name: column for name, column in zip(lower, columns, strict=True) if lower.count(name) == 1}


def _plain_value(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, float) and (math.isnan(value) or value.is_integer()):
        return None if math.isnan(value) else int(value)
    return value


def _text(value: Any, place: str) -> str:
    value = _plain_value(value)
    if isinstance(value, bool | int | float):
        value = str(value)
    if not isinstance(value, str) or not value.strip():
        raise InputError(
            f"{place}: expected a text that is not empty, got {ascii(value)[:80]}",
            hint="fill the cell in, or leave the row out",
        )
    return value


def _texts(value: Any, place: str) -> tuple[str, ...]:
    if value is None or (isinstance(value, str) and not value.strip()):
        return ()
    if isinstance(value, Mapping):
        value = next((value[key] for key in _TEXT_KEYS if key in value), value)
    if not isinstance(value, list | tuple):
        value = [value]
    texts = []
    for item in value:
        if isinstance(item, Mapping):
            item = next((item[key] for key in _TEXT_KEYS if key in item), item)
        texts.append(_text(item, place))
    return tuple(dict.fromkeys(texts))
