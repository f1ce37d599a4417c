"""Which column is what: by our names, by those of RAGAS, LangSmith and DeepEval, or as the user says."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from surerag.errors import ConfigurationError, InputError
from surerag.evaluation.inputs.entries import Place

Field = Literal["question", "answers", "contexts", "id", "system"]
FIELDS: Final[tuple[Field, ...]] = ("question", "answers", "contexts", "id", "system")

NAMES: Final[Mapping[Field, tuple[str, ...]]] = {
    "question": (
        "question", "user_input", "query", "input", "inputs.question", "inputs.input", "inputs.query",
        "inputs.user_input", "input_question",
    ),
    "answers": (
        "answers", "golds", "gold_answers", "golden_answers", "gold", "ground_truths", "ground_truth",
        "reference", "references", "reference_answer", "expected_output", "expected_answer",
        "possible_answers",
        "reference.answer", "reference.output", "reference.expected", "reference.expected_output",
        "reference.ground_truth", "reference_outputs.answer", "reference_outputs.output",
        "reference_outputs.expected",
    ),
    "contexts": (
        "contexts", "retrieved_contexts", "retrieval_context", "outputs.contexts", "outputs.documents",
        "outputs.retrieved_contexts", "outputs.context", "ctxs", "passages", "paragraphs", "documents",
        "context",
    ),
    # A row of an experiment has the run's own id as well, which is another one for each system.
    "id": ("example_id", "reference_example_id", "id", "_id", "qid", "question_id", "query_id"),
    "system": ("system",),
}  # fmt: skip
"""The names that are looked for, the first one found counts; case and separators do not matter."""

_EXAMPLES: Final = ("outputs.answer", "outputs.output", "outputs.expected", "output_answer")
"""A gold answer in an exported example; in an exported run, what the system said."""

_RUNS: Final = (
    "runtype",
    "referenceexampleid",
    "exampleid",
    "executiontime",
    "reference.",
    "referenceoutputs.",
)
"""How columns begin that only a run has: its outputs are what the system said, whatever else is missing."""

_ALSO: Final = (
    "answer", "outputs", "supporting_facts", "is_impossible", "run_type", "execution_time",
)  # fmt: skip
"""Columns that say what the others mean."""


class Columns(NamedTuple):
    """Which column holds what.

    Attributes:
        question: The column of the question; a dot leads into an object.
        answers: Of the gold answers.
        contexts: Of what was retrieved.
        id: Of the question's name.
        system: Of the system's name.
    """

    question: str | None = None
    answers: str | None = None
    contexts: str | None = None
    id: str | None = None
    system: str | None = None

    def told(self) -> str:
        """Return in words what was taken from columns of other names; nothing if none was."""
        other = [
            f"{field} from {column!r}"
            for field, column in zip(FIELDS, self, strict=True)
            if column is not None and column != field
        ]
        return ", ".join(other)


def given_columns(pairs: Sequence[str]) -> dict[Field, str]:
    """Read what the user said, such as ``question=query``.

    Raises:
        ConfigurationError: If it names no field of ours, or no column.
    """
    found: dict[Field, str] = {}
    for pair in pairs:
        name, equals, column = pair.partition("=")
        field = next((field for field in FIELDS if field == name), None)
        if field is None or not equals or not column:
            near = difflib.get_close_matches(name, FIELDS, 1)
            raise ConfigurationError(
                f"--columns takes {', '.join(f'{field}=NAME' for field in FIELDS)}; got {pair!r}",
                hint=f"if {near[0]!r} is meant, write {near[0]}={column or 'NAME'}" if near else "",
            )
        found[field] = column
    return found


def columns_of(
    record: Mapping[str, Any],
    given: Mapping[Field, str],
    needed: Sequence[Field],
    place: Place,
) -> Columns:
    """Find out which column of a record is what.

    Raises:
        InputError: If one that is needed, or that the user named, is not there; the near ones are named.
    """
    here = available(record)
    found: dict[Field, str | None] = {}
    for field in FIELDS:
        if field in given:
            if given[field] not in here:
                raise InputError(
                    f"{place}: there is no column {given[field]!r}; found {_listed(here)}",
                    hint=_near_hint(field, given[field], here),
                )
            found[field] = given[field]
        else:
            found[field] = _known(field, record, here)
        if field in needed and found[field] is None:
            raise _missing(field, here, needed, place)
    return Columns(**found)


def available(record: Mapping[str, Any]) -> list[str]:
    """Return the columns of a record, and what stands in objects as ``object.name``."""
    found: list[str] = []
    for name, value in record.items():
        found.append(str(name))
        inner = _object(value)
        found += [f"{name}.{key}" for key in inner] if inner else []
    return found


def value_of(record: Mapping[str, Any], column: str | None) -> Any:
    """Return what stands in a column; None if nothing does."""
    if column is None:
        return None
    if column in record:
        return record[column]
    name, dot, key = column.partition(".")
    inner = _object(record.get(name)) if dot else None
    return None if inner is None else inner.get(key)


def wanted(names: Sequence[str], given: Mapping[Field, str]) -> list[str]:
    """Return which columns of a table may hold something that is looked for."""
    known = {_plain(name.partition(".")[0]) for every in NAMES.values() for name in every}
    known |= {_plain(name) for name in _ALSO}
    named = {part for column in given.values() for part in (column, column.partition(".")[0])}
    return [name for name in names if name in named or _plain(name.partition(".")[0]) in known] or list(names)


def missing_value(
    field: Field, record: Mapping[str, Any], needed: Sequence[Field], place: Place
) -> InputError:
    """Say that a row has nothing where something is needed."""
    return _missing(field, available(record), needed, place)


def _known(field: Field, record: Mapping[str, Any], here: Sequence[str]) -> str | None:
    by_plain: dict[str, str] = {}
    for name in here:
        if value_of(record, name) is not None:
            by_plain.setdefault(_plain(name), name)
    names = NAMES[field]
    if field == "answers":
        # One text under this name is what a system said, in RAGAS and elsewhere; a list of texts is not.
        names += ("answer",) if isinstance(record.get("answer"), list) else ()
        names += () if any(name.startswith(_RUNS) for name in by_plain) else _EXAMPLES
    return next((by_plain[_plain(name)] for name in names if _plain(name) in by_plain), None)


def _missing(field: Field, here: Sequence[str], needed: Sequence[Field], place: Place) -> InputError:
    every = ", ".join(map(repr, needed))
    return InputError(
        f"{place}: the field {field!r} is missing; found {_listed(here) or 'no field'}",
        hint=f"every row needs {every}; {_near_hint(field, field, here)}",
    )


def _near_hint(field: Field, asked: str, here: Sequence[str]) -> str:
    near = difflib.get_close_matches(_plain(asked), [_plain(name) for name in here], 1, cutoff=0.5)
    guess = next((name for name in here if near and _plain(name) == near[0]), None)
    if guess is None:
        return f"name the column with --columns {field}=NAME"
    return f"if {guess!r} is it, say so with --columns {field}={guess}"


def _object(value: Any) -> Mapping[str, Any] | None:
    """Return an object, or what a cell holds as the JSON text of one."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, str) and value.startswith("{"):
        try:
            found = json.loads(value)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None
    return None


def _plain(name: str) -> str:
    return "".join(char for char in name.lower() if char.isalnum() or char == ".")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))
