"""The data sets of the tables, read from a folder that the user names. The project contains none of them.

``squad2_dev.json`` and ``xquad.en.json`` (SQuAD's JSON format), ``hotpotqa_100.json`` and
``hotpot_dev_distractor_v1.json`` (HotpotQA with distractors; the latter as its authors publish it, of which a
beginning will do), ``hotpot_100.json`` (a hundred other questions in that format), ``disfl_qa.json``
(Disfl-QA) and ``traces/2wiki.parquet`` (2WikiMultiHopQA).
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from surerag import Passage
from surerag.errors import InputError, extra
from surerag.evaluation import Question
from surerag.text import split_sentences


@dataclass(frozen=True)
class Item:
    """A question with its references and passages.

    Attributes:
        text: Text of the question.
        references: Right answers.
        gold: Passages that contain the answer.
        passages: Gold passages and distractors in the order of the prompt; empty if passages are retrieved.
        clean: The question without slips of the tongue; empty if ``text`` has none.
        article: Title of the article; items of one article share their passages.
    """

    text: str
    references: tuple[str, ...]
    gold: tuple[Passage, ...]
    passages: tuple[Passage, ...] = ()
    clean: str = ""
    article: str = ""

    @property
    def question(self) -> Question:
        """The question of an evaluation; its contexts are the gold passages."""
        return Question(self.text, self.references, tuple(passage.text for passage in self.gold))


@dataclass(frozen=True)
class Data:
    """Items of a data set, and the corpus that their passages come from.

    Attributes:
        name: Name of the data set with its settings, for tables.
        items: The questions.
        corpus: Passages to search; empty if every item has its own.
    """

    name: str
    items: tuple[Item, ...]
    corpus: tuple[Passage, ...] = field(default=(), repr=False)

    @property
    def by_text(self) -> Mapping[str, Item]:
        """Items by the text of the question."""
        return {item.text: item for item in self.items}


def load_squad(folder: Path, n: int, seed: int, articles: Sequence[str] = ()) -> Data:
    """Return answerable questions of SQuAD 2.0, n at most, in a random order; the corpus are the paragraphs.

    Args:
        folder: Folder with ``squad2_dev.json``.
        n: Number of questions.
        seed: Seed of the sample.
        articles: Titles to take questions from; empty for all.
    """
    corpus, items = [], []
    for _, paragraph, questions in _squad(folder, ("squad2_dev.json",), articles):
        corpus.append(paragraph)
        items += [
            Item(question, references, (paragraph,), article=paragraph.metadata["title"])
            for question, references in questions
        ]
    return Data(f"SQuAD 2.0 ({_listed(articles)})", _sample(items, n, seed), tuple(corpus))


def load_disfl(folder: Path, n: int, seed: int, articles: Sequence[str] = ()) -> Data:
    """Return questions of Disfl-QA that have an answer; the corpus are the paragraphs of their articles."""
    slips = {
        (one["source"], one["question"]): one["disfluent"]
        for one in json.loads((folder / "disfl_qa.json").read_text(encoding="utf-8"))
    }
    corpus, items = [], []
    for file, paragraph, questions in _squad(folder, ("squad2_dev.json", "xquad.en.json"), articles):
        corpus.append(paragraph)
        for clean, references in questions:
            if text := slips.get((file.partition("_")[0].partition(".")[0], clean)):
                title = paragraph.metadata["title"]
                items.append(Item(text, references, (paragraph,), clean=clean, article=title))
    return Data(f"Disfl-QA ({_listed(articles)})", _sample(items, n, seed), tuple(corpus))


def load_hotpot(file: Path, places: slice = slice(None), k: int = 10, repeats: int = 0) -> Data:
    """Return questions of HotpotQA with k passages: the gold ones and distractors, in a random order.

    With fewer than ten passages, distractors are left out. With more, paragraphs of the following questions
    are added as noise. ``repeats`` of the k passages repeat others (:func:`with_repeats`). Yes-or-no
    questions are left out, because any text may contain the word yes or no.
    """
    rows = json.loads(file.read_text(encoding="utf-8"))
    rows = [row for row in rows if row["answer"].lower() not in ("yes", "no")]
    contexts = [
        [
            Passage("".join(lines).strip(), id=title, metadata={"title": title})
            for title, lines in row["context"]
        ]
        for row in rows
    ]
    items = []
    for at, row in list(enumerate(rows))[places]:
        titles = {title for title, _ in row["supporting_facts"]}
        gold = [passage for passage in contexts[at] if passage.id in titles]
        others = [passage for passage in contexts[at] if passage.id not in titles]
        noise = contexts[(at + 1) % len(rows)] + contexts[(at + 2) % len(rows)]
        distinct = gold + others + [passage for passage in noise if passage.id not in titles]
        _check_room(k, repeats, len(gold), len(distinct))
        shown = with_repeats(distinct[: k - repeats], repeats)
        random.Random(at).shuffle(shown)
        items.append(Item(row["question"], (row["answer"],), tuple(gold), tuple(shown)))
    return Data(f"HotpotQA with distractors, {k} passages", tuple(items))


def with_repeats(passages: Sequence[Passage], repeats: int) -> list[Passage]:
    """Return passages with repeats of the first passages, as overlapping chunks repeat one another.

    A repeat is its passage without the last sentence or, for every second passage, without the first.
    """
    copies = []
    for at, passage in enumerate(passages[:repeats]):
        texts = [sentence.text for sentence in split_sentences(passage.text)]
        rest = (texts[1:] if at % 2 else texts[:-1]) or texts
        copies.append(Passage(" ".join(rest), id=f"{passage.id}, again", metadata=passage.metadata))
    return [*passages, *copies]


def load_2wiki(folder: Path, n: int, seed: int, k: int = 10) -> Data:
    """Return questions of 2WikiMultiHopQA with k passages: the gold ones and distractors."""
    with extra("evaluation"):
        import pyarrow.parquet as pq
    items = []
    for at, row in enumerate(pq.read_table(folder / "traces" / "2wiki.parquet").to_pylist()):
        passages = [Passage(text, id=str(number)) for number, text in enumerate(row["paragraphs"])]
        gold = [one for one, supports in zip(passages, row["supporting"], strict=True) if supports]
        _check_room(k, 0, len(gold), len(passages))
        shown = (gold + [one for one in passages if one not in gold])[:k]
        random.Random(at).shuffle(shown)
        if not {"yes", "no"} & {one.lower() for one in row["golds"]}:
            items.append(Item(row["question"], tuple(row["golds"]), tuple(gold), tuple(shown)))
    return Data(f"2WikiMultiHopQA, {k} passages", _sample(items, n, seed))


def _check_room(k: int, repeats: int, gold: int, passages: int) -> None:
    """Raise if k passages cannot hold the gold passages and the repeats, or if there are fewer than k."""
    if not max(gold, repeats) <= k - repeats <= passages:
        raise InputError(
            f"a question has {gold} gold passages and {passages} in all, of which k = {k} are to be shown, "
            f"{repeats} of them repeats of others",
            hint="choose another --k or --repeats",
        )


def _squad(
    folder: Path, files: Sequence[str], articles: Sequence[str]
) -> Iterator[tuple[str, Passage, list[tuple[str, tuple[str, ...]]]]]:
    """Yield for every paragraph of the articles its file, its passage, and its questions with answers."""
    titles: set[str] = set()
    for file in files:
        for article in json.loads((folder / file).read_text(encoding="utf-8"))["data"]:
            title = article["title"]
            titles.add(title)
            if articles and title not in articles:
                continue
            for number, paragraph in enumerate(article["paragraphs"]):
                answered = [
                    (one["question"], references)
                    for one in paragraph["qas"]
                    if (references := tuple(dict.fromkeys(answer["text"] for answer in one["answers"])))
                ]
                passage = Passage(paragraph["context"], id=f"{title}/{number}", metadata={"title": title})
                yield file, passage, answered
    if unknown := sorted(set(articles) - titles):
        raise InputError(
            f"there is no article {', '.join(unknown)}", hint=f"choose from {', '.join(sorted(titles))}"
        )


def _sample(items: Sequence[Item], n: int, seed: int) -> tuple[Item, ...]:
    """Return n random items, sorted by paragraph so that successive prompts share their beginning."""
    distinct = list({item.text: item for item in items}.values())
    drawn = random.Random(seed).sample(distinct, min(n, len(distinct)))
    places: dict[str, int] = {}
    for item in drawn:
        places.setdefault(item.gold[0].text, len(places))
    return tuple(sorted(drawn, key=lambda item: places[item.gold[0].text]))


def _listed(articles: Sequence[str]) -> str:
    return ", ".join(articles) if articles else "all articles"
