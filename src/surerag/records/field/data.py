"""Public questions with the paragraphs that they are about."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

from surerag.documents import Document
from surerag.errors import ConfigurationError, InputError, ServiceError
from surerag.evaluation.inputs import read_records
from surerag.evaluation.rows import Question
from surerag.extras import extra
from surerag.types import Passage

WORLD = "world"
HUB = "hf:"
_MOST_EXAMPLES = 20_000


@dataclass(frozen=True, slots=True)
class Example:
    """A question as a data set has it.

    Attributes:
        id: Its name there; may be empty.
        question: As asked.
        golds: Gold answers.
        paragraphs: Title and text of each paragraph that comes with it.
    """

    id: str
    question: str
    golds: tuple[str, ...]
    paragraphs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FieldData:
    """What a field test asks, and where it looks.

    Attributes:
        name: Of the data.
        questions: Drawn from all that there are.
        passages: Paragraphs of all examples, each text once.
        documents: The same by their titles, for summaries.
        available: Questions that there are.
        digest: Of questions and passages.
    """

    name: str
    questions: tuple[Question, ...]
    passages: tuple[Passage, ...]
    documents: tuple[Document, ...]
    available: int
    digest: str


def field_data(spec: str, n: int, *, seed: int = 0, paragraphs: int | None = None) -> FieldData:
    """Read data by its name.

    Args:
        spec: ``world`` (the closed world); a file: SQuAD or XQuAD JSON, HotpotQA JSON, Parquet or JSONL; or
            ``hf:NAME``, ``hf:NAME:CONFIG`` or ``hf:NAME:CONFIG:SPLIT`` of the Hugging Face hub.
        n: Questions to draw.
        seed: Of the draw, and of the world.
        paragraphs: To search, at about most: those of the questions drawn, and others drawn beside. None
            takes all; the closed world has all of its own.

    Raises:
        InputError: If the file cannot be read, or holds no question with paragraphs.
        ServiceError: If the hub's data cannot be had.
        MissingExtraError: If a package that reads it is not installed.
    """
    if spec == WORLD:
        return _world(n, seed)
    if spec.startswith(HUB):
        return drawn(spec, _hub(spec.removeprefix(HUB)), n, seed=seed, paragraphs=paragraphs)
    file = Path(spec)
    if not file.exists():
        raise InputError(
            f"there is no file {spec}", hint=f"give a file, {WORLD}, or {HUB}NAME for the Hugging Face hub"
        )
    return drawn(file.name, _file(file), n, seed=seed, paragraphs=paragraphs)


def drawn(
    name: str, examples: Iterable[Example], n: int, *, seed: int = 0, paragraphs: int | None = None
) -> FieldData:
    """Draw questions, and gather the paragraphs of all examples, or of as many as are wanted.

    Raises:
        InputError: If there is no question with gold answers, or no paragraph.
    """
    given = list(islice(examples, _MOST_EXAMPLES))
    if not given:
        raise InputError(f"{name} holds no question with gold answers and paragraphs", hint=_SHAPES)
    chosen = random.Random(f"surerag field test {seed}").sample(given, min(n, len(given)))
    wanted = _wanted(chosen, given, paragraphs, seed)
    texts: dict[str, Passage] = {}
    documents: dict[str, list[str]] = {}
    for example in given:
        for title, text in example.paragraphs:
            if text not in texts and (wanted is None or text in wanted):
                of_title = documents.setdefault(title, [])
                metadata = {"title": title} if title else {}
                texts[text] = Passage(text, id=f"{title or 'p'}#{len(of_title)}", metadata=metadata)
                of_title.append(text)
    names: dict[str, int] = {}
    questions = []
    for example in chosen:
        name_ = example.id or example.question
        names[name_] = names.get(name_, 0) + 1
        times = names[name_]
        questions.append(
            Question(example.question, example.golds, name_ if times == 1 else f"{name_} ({times})")
        )
    whole = tuple(
        Document(title or f"d{at}", "\n\n".join(parts), title)
        for at, (title, parts) in enumerate(_titled(documents))
    )
    passages = tuple(texts.values())
    return FieldData(name, tuple(questions), passages, whole, len(given), _digest(questions, passages))


def _wanted(
    chosen: Sequence[Example], given: Sequence[Example], most: int | None, seed: int
) -> set[str] | None:
    """Return the texts of the paragraphs to keep: those of the questions drawn, then others at random."""
    if most is None:
        return None
    wanted = {text for example in chosen for _, text in example.paragraphs}
    others = {text: None for example in given for _, text in example.paragraphs if text not in wanted}
    room = max(0, most - len(wanted))
    drawn_ = random.Random(f"surerag field test paragraphs {seed}").sample(
        list(others), min(room, len(others))
    )
    return wanted.union(drawn_)


def _titled(documents: Mapping[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Paragraphs without a title are documents of their own."""
    for title, parts in documents.items():
        if title:
            yield title, parts
        else:
            yield from (("", [part]) for part in parts)


def _world(n: int, seed: int) -> FieldData:
    from surerag.world import World

    world = World(seed=seed)
    questions = tuple(Question(one.text, one.answers, one.id) for one in world.questions(n))
    documents = tuple(Document(one.id, one.lead, one.title) for one in world.documents)
    return FieldData(
        f"the closed world of seed {seed}",
        questions,
        world.passages,
        documents,
        n,
        _digest(questions, world.passages),
    )


def _file(file: Path) -> Iterator[Example]:
    if file.suffix.lower() == ".json":
        yield from _json(file)
        return
    for place, record in read_records(file):
        if not isinstance(record, dict):
            raise InputError(f"{place}: the row must be an object, found {type(record).__name__}")
        yield from _row(record)


def _json(file: Path) -> Iterator[Example]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"{file} cannot be read as JSON: {str(error).splitlines()[0]}") from error
    if isinstance(found, dict) and isinstance(found.get("data"), list):
        found = found["data"]
    if not isinstance(found, list):
        raise InputError(f"{file} holds no list of questions", hint=_SHAPES)
    for record in found:
        if not isinstance(record, dict):
            raise InputError(f"{file} holds {type(record).__name__} where a question should be", hint=_SHAPES)
        if "paragraphs" in record and "question" not in record:
            yield from _squad_article(record)
        else:
            yield from _row(record)


def _squad_article(article: Mapping[str, Any]) -> Iterator[Example]:
    """Yield the questions of an article in SQuAD's JSON; those that have no answer are left out."""
    title = str(article.get("title", ""))
    for paragraph in article["paragraphs"]:
        text = " ".join(str(paragraph["context"]).split())
        for asked in paragraph["qas"]:
            golds = _golds([answer["text"] for answer in asked.get("answers", ())])
            if golds:
                yield Example(str(asked.get("id", "")), str(asked["question"]), golds, ((title, text),))


def _row(record: Mapping[str, Any]) -> Iterator[Example]:
    """Yield the question of a row, in whichever of the known shapes it comes."""
    question = record.get("question")
    golds = _golds(next((record[name] for name in _GOLDS if record.get(name) is not None), ()))
    shown = next((record[name] for name in _PARAGRAPHS if record.get(name) is not None), ())
    paragraphs = tuple((title, text) for title, text in _paragraphs(shown, record) if text)
    if isinstance(question, str) and question.strip() and golds and paragraphs:
        name = next((record[key] for key in ("id", "_id") if record.get(key) is not None), "")
        yield Example(str(name), question, golds, paragraphs)


_GOLDS = ("golds", "answers", "answer")
_PARAGRAPHS = ("paragraphs", "contexts", "context")
_SHAPES = (
    "each question needs 'question', its gold answers in 'answers', 'answer' or 'golds', and its paragraphs "
    "in 'paragraphs', 'contexts' or 'context', as texts or as HotpotQA and SQuAD have them"
)


def _golds(value: Any) -> tuple[str, ...]:
    if isinstance(value, Mapping):  # SQuAD on the hub: {"text": [...], "answer_start": [...]}
        value = value.get("text", ())
    given = [value] if isinstance(value, str) else list(value)
    return tuple(dict.fromkeys(str(gold).strip() for gold in given if str(gold).strip()))


def _paragraphs(shown: Any, record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if isinstance(shown, str):
        yield str(record.get("title", "")), _joined(shown)
    elif isinstance(shown, Mapping):  # HotpotQA on the hub: {"title": [...], "sentences": [[...]]}
        sentences = shown.get("sentences", shown.get("content", ()))
        for title, parts in zip(shown.get("title", ()), sentences, strict=True):
            yield str(title), _joined(parts)
    else:
        for one in shown:
            if isinstance(one, str):
                yield "", _joined(one)
            elif isinstance(one, Mapping):
                text = one.get("text", one.get("paragraph_text", ""))
                yield str(one.get("title", "")), _joined(text)
            else:  # HotpotQA's JSON: [title, [sentence, ...]]
                title, parts = one
                yield str(title), _joined(parts)


def _joined(parts: str | Sequence[str]) -> str:
    text = parts if isinstance(parts, str) else " ".join(parts)
    return " ".join(text.split())


def _hub(spec: str) -> Iterator[Example]:
    """Yield the questions of a data set of the Hugging Face hub; no code of it is run."""
    name, _, rest = spec.partition(":")
    config, _, split = rest.partition(":")
    if not name:
        raise ConfigurationError("no data set is named", hint=f"such as {HUB}rajpurkar/squad")
    with extra("field-test"):
        from datasets import get_dataset_split_names, load_dataset
    try:
        there = get_dataset_split_names(name, config or None)
        wanted = split or next((one for one in ("validation", "test", "train") if one in there), there[0])
        rows = load_dataset(name, config or None, split=wanted)
        for row in rows:
            yield from _row(row)
    except (OSError, ValueError, RuntimeError) as error:
        raise ServiceError(
            f"the data set {name!r} cannot be had: {str(error).splitlines()[0]}",
            hint=f"check its name, or write {HUB}NAME:CONFIG:SPLIT; or give a file",
        ) from error


def _digest(questions: Iterable[Question], passages: Iterable[Passage]) -> str:
    digest = sha256()
    for content in ([list(one) for one in questions], [[one.id, one.text] for one in passages]):
        digest.update(json.dumps(content).encode("ascii"))
    return digest.hexdigest()[:32]
