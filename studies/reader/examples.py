"""Training examples of the demo's reader: public questions in the prompts of this package.

An example is a prompt as the methods write it and the answer that the reader should give. Examples that
begin with the same text (a paragraph and all its questions) stand in one group, which training reads as a
tree: the beginning once, then a branch for each question.
"""

from __future__ import annotations

import csv
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from surerag import prompts as wording
from surerag.demo import EXTRACT_PROMPT
from surerag.prompts import NOTHING_TO_EXTRACT, PromptTemplate, format_passages
from surerag.text import Sentence, split_sentences

ABSTENTION = "I do not know."
ABSTAIN_INSTRUCTION = f"Where nothing supports an answer, reply only: {ABSTENTION}\n"
"""What the methods put before a prompt that allows an abstention."""

EXTRACT = PromptTemplate("extract", EXTRACT_PROMPT, "the demo's reader")


@dataclass(frozen=True)
class Question:
    """A question on a paragraph; without references it has no answer there.

    Attributes:
        text: What is asked.
        references: Its answers.
        place: Where in the paragraph its answer begins, or what looks like one; None where nobody marked it.
        plausible: What looks like an answer, where there is none.
    """

    text: str
    references: tuple[str, ...]
    place: int | None = None
    plausible: str = ""

    @property
    def answer(self) -> str:
        """The reference that most annotators gave, and of several the shortest."""
        counts = Counter(self.references)
        return min(counts, key=lambda text: (-counts[text], len(text)))


@dataclass
class Paragraph:
    """A paragraph of an article, and the questions on it."""

    title: str
    text: str
    questions: list[Question] = field(default_factory=list)

    @property
    def answerable(self) -> list[Question]:
        """Questions that have an answer here."""
        return [question for question in self.questions if question.references]

    @property
    def unanswerable(self) -> list[Question]:
        """Questions that have none."""
        return [question for question in self.questions if not question.references]


@dataclass(frozen=True)
class Group:
    """Examples whose prompts begin alike: (prompt, answer) for each."""

    task: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class MultiHop:
    """A question that takes several of its passages; sentences and passages that support it are marked."""

    text: str
    answer: str
    supporting: tuple[str, ...]
    others: tuple[str, ...]
    facts: tuple[str, ...] = ()


@cache
def _cut(text: str) -> list[Sentence]:
    return split_sentences(text)


def sentences(text: str) -> list[str]:
    """Cut a paragraph into its sentences."""
    return [one.text for one in _cut(text)]


def supporting(text: str, place: int) -> str:
    """Return the sentence at a place of a paragraph, with the one before it and the one after it.

    They say what its pronouns mean; and a reader that misses the sentence by one still extracts it.
    """
    found = _cut(text)
    at = next(number for number, one in enumerate(found) if place < one.end)
    return text[found[max(at - 1, 0)].start : found[min(at + 1, len(found) - 1)].end]


def read_squad(*paths: Path) -> dict[str, list[Paragraph]]:
    """Read files in SQuAD's format; articles in several of them are joined by title and paragraph."""
    articles: dict[str, dict[str, Paragraph]] = defaultdict(dict)
    for path in paths:
        for article in json.loads(path.read_text("utf-8"))["data"]:
            for each in article["paragraphs"]:
                text = " ".join(each["context"].split())
                paragraph = articles[article["title"]].setdefault(text, Paragraph(article["title"], text))
                seen = {question.text for question in paragraph.questions}
                for qa in each["qas"]:
                    asked = " ".join(qa["question"].split())
                    if asked not in seen:
                        references = tuple(" ".join(answer["text"].split()) for answer in qa["answers"])
                        marked = qa["answers"] or qa.get("plausible_answers", ())
                        before = each["context"][: marked[0]["answer_start"]] if marked else None
                        place = None if before is None else len(" ".join(f"{before}|".split())) - 1
                        plausible = "" if references or not marked else " ".join(marked[0]["text"].split())
                        paragraph.questions.append(Question(asked, references, place, plausible))
    return {title: list(paragraphs.values()) for title, paragraphs in articles.items()}


def held_out_titles(squad2: Path, xquad: Path, seed: int = 33) -> list[str]:
    """Choose the articles nobody trains on: 4 that are in both files, and 6 that are in XQuAD alone."""
    both = sorted(read_squad(squad2))
    alone = sorted(set(read_squad(xquad)) - set(both))
    chance = random.Random(seed)
    return sorted(chance.sample(both, 4) + chance.sample(alone, 6))


def read_hotpot(path: Path) -> list[MultiHop]:
    """Read HotpotQA with its supporting sentences."""
    items = []
    for row in json.loads(path.read_text("utf-8")):
        facts = {(title, number) for title, number in row["supporting_facts"]}
        titles = {title for title, _ in facts}
        texts = {title: "".join(lines) for title, lines in row["context"]}
        said = [
            line.strip()
            for title, lines in row["context"]
            for number, line in enumerate(lines)
            if (title, number) in facts
        ]
        items.append(
            MultiHop(
                row["question"],
                row["answer"],
                tuple(text for title, text in texts.items() if title in titles),
                tuple(text for title, text in texts.items() if title not in titles),
                tuple(said),
            )
        )
    return items


def read_2wiki(path: Path) -> list[MultiHop]:
    """Read 2WikiMultiHopQA with its supporting paragraphs."""
    import pyarrow.parquet as parquet

    rows: list[dict[str, Any]] = parquet.read_table(path).to_pylist()
    return [
        MultiHop(
            row["question"],
            row["golds"][0],
            tuple(t for t, yes in zip(row["paragraphs"], row["supporting"], strict=True) if yes),
            tuple(t for t, yes in zip(row["paragraphs"], row["supporting"], strict=True) if not yes),
        )
        for row in rows
    ]


def read_snli(path: Path) -> list[tuple[str, str, str]]:
    """Read premise, hypothesis and label."""
    with path.open(encoding="utf-8") as file:
        rows = [(row["premise"], row["hypothesis"], row["label"]) for row in csv.DictReader(file)]
    return [row for row in rows if row[2] in ("entailment", "contradiction", "neutral")]


_GREETINGS = (
    "", "", "", "hi, ", "hello! ", "hey there, ", "good morning, ", "um, ", "ok so ",
    "sorry to bother you, but ", "quick question, ", "dear all, ", "hi everyone, ",
    "i need help with my homework: ",
)  # fmt: skip
_OPENINGS = (
    "", "", "do you know ", "do you happen to know ", "can you tell me ", "could you please tell me ",
    "i was wondering ", "please tell me ", "i would like to know ", "could you look up for me ", "i forgot, ",
    "my teacher asked us ", "we talked about this at dinner and nobody knew: ", "any chance you know ",
    "i am trying to find out ", "someone asked me ", "not sure how to put it, ",
)  # fmt: skip
_AFTER = (
    "", "", "", " thanks!", " thank you so much", " any idea?", " i really can't remember", " please help",
    " i looked everywhere", " it's for a quiz", " or something like that", " if you know", " asap", " cheers",
)  # fmt: skip
_MOVABLE = re.compile(
    r"(?:In|During|After|Before|On|At|By|From|Since|Under|As|For|With|Until) [^,.]{3,60}, ([^.]+)\."
)


class Examples:
    """Endless groups of examples from the articles that are not held out.

    Args:
        articles: The articles to learn from, by title.
        hops: Multi-hop questions.
        pairs: SNLI's rows.
        seed: Settles every choice.
        unanswerable: Questions of SQuAD 2.0 without an answer, for each one with, where it may abstain.
    """

    def __init__(
        self,
        articles: dict[str, list[Paragraph]],
        hops: Sequence[MultiHop],
        pairs: Sequence[tuple[str, str, str]],
        seed: int = 0,
        unanswerable: float = 0.33,
    ) -> None:
        self._articles = articles
        self._paragraphs = [paragraph for article in articles.values() for paragraph in article]
        self._hops = [hop for hop in hops if hop.supporting and hop.others]
        self._pairs = list(pairs)
        self._chance = random.Random(seed)
        self._unanswerable = unanswerable

    def __iter__(self) -> Iterator[Group]:
        """Go through all paragraphs again and again, each time with other prompts and other company."""
        while True:
            groups = [group for paragraph in self._paragraphs for group in self._of_paragraph(paragraph)]
            hops = self._chance.sample(self._hops, -(-len(self._hops) // 3))
            groups += [self._of_hop(hop) for hop in hops]
            each = len(self._paragraphs)
            groups += [self._rewrites() for _ in range(1 + each // 12)]
            groups += [self._closed_book() for _ in range(1 + each // 24)]
            groups += [self._entailments() for _ in range(1 + each // 4)]
            self._chance.shuffle(groups)
            yield from (group for group in groups if group.pairs)

    def _of_paragraph(self, paragraph: Paragraph) -> Iterator[Group]:
        chance = self._chance
        kinds = [self._plain, self._numbered, self._two_tiers, self._dynqr, self._seper]
        for make in chance.choices(kinds, (8, 2, 2, 2, 1), k=2):
            yield make(paragraph)
        optional = ((self._dense, 0.3), (self._extract, 1.0), (self._sufficient, 0.3))
        more = ((self._first_pass, 0.15), (self._summarize, 0.06), (self._rephrase, 0.06))
        for one, share in (*optional, *more):
            if chance.random() < share:
                yield one(paragraph)

    def _answered_questions(
        self, paragraph: Paragraph, *, abstain: bool, most: int = 12
    ) -> list[tuple[Question, str]]:
        """Choose questions for one beginning, and the answer to each."""
        chance = self._chance
        asked = [(question, question.answer) for question in self._some(paragraph.answerable, most)]
        if not abstain:
            # Who may not abstain gives the likeliest answer.
            guessable = [question for question in paragraph.unanswerable if question.plausible]
            asked += [(question, question.plausible) for question in self._some(guessable, most // 3)]
        else:
            without = self._some(paragraph.unanswerable, round(self._unanswerable * len(asked)))
            foreign = [self._foreign(paragraph.title) for _ in range(chance.choice((1, 1, 2)))]
            asked += [(question, ABSTENTION) for question in (*without, *foreign)]
        chance.shuffle(asked)
        return asked

    def _some(self, questions: Sequence[Question], most: int) -> list[Question]:
        return self._chance.sample(list(questions), min(most, len(questions)))

    def _foreign(self, title: str) -> Question:
        while True:
            paragraph = self._chance.choice(self._paragraphs)
            if paragraph.title != title and paragraph.answerable:
                return self._chance.choice(paragraph.answerable)

    def _among(self, paragraph: Paragraph, least: int, most: int) -> list[str]:
        """Return the paragraph among others of its article, in any order."""
        others = [other.text for other in self._articles[paragraph.title] if other is not paragraph]
        number = min(self._chance.randint(least, most), len(others))
        texts = [paragraph.text, *self._chance.sample(others, number)]
        self._chance.shuffle(texts)
        return texts

    def _group(self, task: str, paragraph: Paragraph, template: Any, **values: str) -> Group:
        abstain = self._chance.random() < 0.5
        before = ABSTAIN_INSTRUCTION if abstain else ""
        return Group(
            task,
            tuple(
                (before + template.render(question=question.text, **values), answer)
                for question, answer in self._answered_questions(paragraph, abstain=abstain)
            ),
        )

    def _plain(self, paragraph: Paragraph) -> Group:
        return self._group("answer", paragraph, wording.FROM_CONTEXT, context=paragraph.text)

    def _numbered(self, paragraph: Paragraph) -> Group:
        context = format_passages(self._among(paragraph, 0, 2))
        return self._group("answer", paragraph, wording.FROM_CONTEXT, context=context)

    def _two_tiers(self, paragraph: Paragraph) -> Group:
        details = format_passages(self._among(paragraph, 0, 1))
        return self._group(
            "answer",
            paragraph,
            wording.FROM_CONTEXT_AND_DETAILS,
            context=self._leads(paragraph),
            details=details,
        )

    def _dynqr(self, paragraph: Paragraph) -> Group:
        shown = format_passages(self._among(paragraph, 0, 2))
        return self._group("answer", paragraph, wording.DYNQR_ANSWER, passages=shown)

    def _seper(self, paragraph: Paragraph) -> Group:
        shown = format_passages(self._among(paragraph, 0, 1))
        return self._group("answer", paragraph, wording.SEPER_FROM_PASSAGES, passages=shown)

    def _leads(self, paragraph: Paragraph) -> str:
        texts = self._among(paragraph, 1, 2)
        if self._chance.random() < 0.5:
            texts.remove(paragraph.text)
        return "\n".join(" ".join(sentences(text)[: self._chance.choice((1, 2))]) for text in texts)

    def _first_pass(self, paragraph: Paragraph) -> Group:
        """Ask from summaries alone, which hold some of the answers."""
        lead = " ".join(sentences(paragraph.text)[:2])
        texts = [
            " ".join(sentences(text)[:2]) for text in self._among(paragraph, 2, 2) if text != paragraph.text
        ]
        context = "\n".join([lead, *texts])
        asked = []
        for question in self._some(paragraph.answerable, 8):
            prompt = wording.FROM_CONTEXT.render(context=context, question=question.text)
            answered = question.answer in lead
            asked.append((ABSTAIN_INSTRUCTION + prompt, question.answer if answered else ABSTENTION))
        return Group("first_pass", tuple(asked))

    def _dense(self, paragraph: Paragraph) -> Group:
        """Ask with the question first: nothing is shared but the instruction."""
        shown = format_passages(self._among(paragraph, 0, 1))
        return Group(
            "answer",
            tuple(
                (wording.DENSE_ANSWER.render(question=question.text, passages=shown), answer)
                for question, answer in self._answered_questions(paragraph, abstain=False, most=2)
            ),
        )

    def _extract(self, paragraph: Paragraph) -> Group:
        """Ask for what bears on a question, also where it only looks like an answer."""
        shown = format_passages(self._among(paragraph, 0, self._chance.choice((0, 1, 2))))
        asked = [
            (question, supporting(paragraph.text, question.place))
            for question in self._some([q for q in paragraph.questions if q.place is not None], 7)
            if question.place is not None
        ]
        foreign = self._chance.choice((0, 1, 1, 2))
        asked += [(self._foreign(paragraph.title), NOTHING_TO_EXTRACT) for _ in range(foreign)]
        self._chance.shuffle(asked)
        return Group(
            "extract", tuple((EXTRACT.render(passages=shown, question=q.text), said) for q, said in asked)
        )

    def _sufficient(self, paragraph: Paragraph) -> Group:
        shown = format_passages(self._among(paragraph, 0, 1))
        asked = [(q, "yes") for q in self._some(paragraph.answerable, 4)]
        asked += [(q, "no") for q in (*self._some(paragraph.unanswerable, 2), self._foreign(paragraph.title))]
        return Group(
            "sufficient",
            tuple((wording.SUFFICIENT.render(passages=shown, question=q.text), reply) for q, reply in asked),
        )

    def _summarize(self, paragraph: Paragraph) -> Group:
        lead = " ".join(sentences(paragraph.text)[:2])
        return Group("summarize", ((wording.SUMMARIZE.render(document=paragraph.text), lead),))

    def _rephrase(self, paragraph: Paragraph) -> Group:
        """Move what opens a sentence to its end: another structure, the same meaning."""
        lines, moved = [], 0
        for line in sentences(paragraph.text)[:4]:
            match = _MOVABLE.fullmatch(line)
            if match:
                opening = line[: match.start(1)].rstrip(", ")
                rest = match[1]
                lines.append(f"{rest[0].upper()}{rest[1:]}, {opening[0].lower()}{opening[1:]}.")
                moved += 1
            else:
                lines.append(line)
        text = " ".join(sentences(paragraph.text)[:4])
        pair = (wording.REPHRASE.render(passage=text), " ".join(lines))
        return Group("rephrase", (pair,) if moved else ())

    def _of_hop(self, hop: MultiHop) -> Group:
        chance = self._chance
        if len(hop.answer) > 60:
            return Group("hops", ())
        if hop.facts and chance.random() < 0.4:
            texts = [*hop.supporting, *chance.sample(hop.others, min(1, len(hop.others)))]
            chance.shuffle(texts)
            prompt = EXTRACT.render(question=hop.text, passages=format_passages(texts))
            return Group("extract", ((prompt, " ".join(hop.facts)),))
        abstain = chance.random() < 0.3
        supported = not abstain or chance.random() < 0.6
        texts = [*(hop.supporting if supported else ()), *chance.sample(hop.others, min(1, len(hop.others)))]
        chance.shuffle(texts)
        shown = format_passages([" ".join(text.split()[:120]) for text in texts])
        template = chance.choice((wording.DYNQR_ANSWER, wording.FROM_CONTEXT))
        slot = "passages" if template is wording.DYNQR_ANSWER else "context"
        prompt = template.render(question=hop.text, **{slot: shown})
        answer = hop.answer if supported else ABSTENTION
        return Group("hops", (((ABSTAIN_INSTRUCTION if abstain else "") + prompt, answer),))

    def _any_questions(self, number: int) -> list[Question]:
        chosen: list[Question] = []
        while len(chosen) < number:
            chosen += self._some(self._chance.choice(self._paragraphs).answerable, 1)
        return chosen

    def _rewrites(self) -> Group:
        chance = self._chance
        pairs = []
        for question in self._any_questions(8):
            text = question.text
            if chance.random() < 0.8:
                query = text.rstrip("?").strip()
                query = chance.choice(_GREETINGS) + chance.choice(_OPENINGS) + query[0].lower() + query[1:]
                query += chance.choice(("?", "")) + chance.choice(_AFTER)
                query = query.lower() if chance.random() < 0.3 else query
            else:
                query = text
            pairs.append((wording.REWRITE.render(query=query), text))
        return Group("rewrite", tuple(pairs))

    def _closed_book(self) -> Group:
        pairs = []
        template = self._chance.choice((wording.CLOSED_BOOK, wording.SEPER_CLOSED_BOOK))
        abstain = self._chance.random() < 0.4
        for question in self._any_questions(8):
            prompt = template.render(question=question.text)
            pairs.append((ABSTAIN_INSTRUCTION + prompt, ABSTENTION) if abstain else (prompt, question.answer))
        return Group("closed_book", tuple(pairs))

    def _entailments(self) -> Group:
        """Pairs of SNLI, or two answers to one question."""
        chance = self._chance
        if chance.random() < 0.7:
            asked = chance.choice(("What does the picture show?", "What is happening?", "What is true?"))
            rows = [(asked, *row) for row in chance.sample(self._pairs, 12)]
        else:
            rows = []
            while len(rows) < 12:
                paragraph = chance.choice(self._paragraphs)
                if len(paragraph.answerable) < 2:
                    continue
                one, other = chance.sample(paragraph.answerable, 2)
                forms = list(dict.fromkeys(one.references))
                if len(forms) > 1 and chance.random() < 0.7:
                    premise, hypothesis = sorted(chance.sample(forms, 2), key=len, reverse=True)
                    rows.append((one.text, premise, hypothesis, "entailment"))
                elif one.answer.lower() not in other.answer.lower() and other.answer not in one.answer:
                    rows.append((one.text, one.answer, other.answer, "contradiction"))
        return Group(
            "entailment",
            tuple(
                (wording.ENTAILMENT.render(question=asked, premise=premise, hypothesis=hypothesis), label)
                for asked, premise, hypothesis, label in rows
            ),
        )
