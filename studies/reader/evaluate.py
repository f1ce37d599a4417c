"""Measure the demo's reader on the articles that nobody trained on: the figures of its card.

Answers are greedy. An answer is right where it equals a reference after the usual normalisation; it contains
one where the reference's words stand in it, in a row. Uncertainty is the mean entropy of an answer's tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from studies.reader.examples import (
    ABSTAIN_INSTRUCTION,
    ABSTENTION,
    EXTRACT,
    MultiHop,
    Paragraph,
    Question,
    held_out_titles,
    read_2wiki,
    read_hotpot,
    read_snli,
    read_squad,
    sentences,
)
from surerag import TransformersReader
from surerag import prompts as wording
from surerag.demo import load_reader
from surerag.measures import exact_match, normalize_answer, token_f1
from surerag.messages import SamplingParams
from surerag.prompts import NOTHING_TO_EXTRACT, format_passages


class Answer(NamedTuple):
    """What the reader wrote, and how uncertain it was."""

    text: str
    entropy: float


def answers(reader: Any, prompts: Sequence[str], most: int = 32) -> list[Answer]:
    """Return one greedy answer of at most so many tokens for each prompt."""
    found = []
    for start in range(0, len(prompts), 32):
        for [answer] in reader.generate(prompts[start : start + 32], SamplingParams(max_tokens=most)):
            entropies = answer.trace.entropy.middle
            found.append(Answer(answer.text.strip(), float(np.mean(entropies)) if entropies else 0.0))
    return found


def contains(answer: str, references: Sequence[str]) -> bool:
    """Whether a reference's words stand in an answer."""
    return any(f" {normalize_answer(one)} " in f" {normalize_answer(answer)} " for one in references)


def begins(answer: str, beginning: str) -> bool:
    """Whether an answer begins with these words."""
    return normalize_answer(answer).startswith(normalize_answer(beginning))


def share(flags: Sequence[bool]) -> dict[str, float]:
    """Return a share with its Wilson interval of 95 %."""
    interval = stats.binomtest(sum(flags), len(flags)).proportion_ci(method="wilson")
    return _figure(sum(flags) / len(flags), (interval.low, interval.high), len(flags))


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return a mean with its bootstrap interval."""
    draws = np.random.default_rng(0).choice(np.asarray(values), (2000, len(values))).mean(1)
    return _figure(float(np.mean(values)), np.quantile(draws, (0.025, 0.975)), len(values))


def area(entropies: Sequence[float], wrong: Sequence[bool]) -> dict[str, float]:
    """Return how often a wrong answer is less certain than a right one, with its bootstrap interval."""
    values, flags = np.asarray(entropies), np.asarray(wrong)
    picks = np.random.default_rng(0).integers(0, len(values), (1000, len(values)))
    draws = [_area(values[one], flags[one]) for one in picks if 0 < flags[one].sum() < len(one)]
    if not draws or not 0 < flags.sum() < len(flags):
        return {}
    return _figure(_area(values, flags), np.quantile(draws, (0.025, 0.975)), len(values))


def _area(values: Any, flags: Any) -> float:
    high, low = values[flags], values[~flags]
    return float(stats.mannwhitneyu(high, low).statistic) / (len(high) * len(low))


def _figure(value: float, ends: Any, n: int) -> dict[str, float]:
    return {
        "value": round(value, 3),
        "low": round(float(ends[0]), 3),
        "high": round(float(ends[1]), 3),
        "n": n,
    }


class Card:
    """The figures of one reader.

    Args:
        reader: Who answers.
        articles: The held-out articles by title.
        number: Questions of each row.
    """

    def __init__(self, reader: Any, articles: dict[str, list[Paragraph]], number: int) -> None:
        self._reader = reader
        self._articles = articles
        paragraphs = [paragraph for article in articles.values() for paragraph in article]
        draw = random.Random(1).sample
        pairs = [(p, q) for p in paragraphs for q in p.answerable]
        self._answerable = draw(pairs, min(number, len(pairs)))
        pairs = [(p, q) for p in paragraphs for q in p.unanswerable]
        self._unanswerable = draw(pairs, min(number, len(pairs)))

    def rows(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what can be measured, by name."""
        plain, tiers = wording.FROM_CONTEXT, wording.FROM_CONTEXT_AND_DETAILS
        instruction, numbered = ABSTAIN_INSTRUCTION, format_passages
        with_support, without = self._answerable, self._unanswerable

        def gold(p: Paragraph, q: Question) -> str:
            return plain.render(context=p.text, question=q.text)

        def foreign(p: Paragraph, q: Question) -> str:
            return instruction + plain.render(context=self._stranger(p).text, question=q.text)

        def sufficient(p: Paragraph, q: Question) -> str:
            return wording.SUFFICIENT.render(passages=numbered([p.text]), question=q.text)

        answering: dict[str, Callable[[Paragraph, Question], str]] = {
            "gold_paragraph": gold,
            "gold_paragraph_may_abstain": lambda p, q: instruction + gold(p, q),
            "three_passages": lambda p, q: plain.render(context=numbered(self._among(p, 2)), question=q.text),
            "two_tiers": lambda p, q: tiers.render(
                context=self._leads(p), details=numbered(self._among(p, 1)), question=q.text
            ),
            "summaries_alone": lambda p, q: plain.render(context=self._leads(p), question=q.text),
            "dynqr_two_passages": lambda p, q: wording.DYNQR_ANSWER.render(
                passages=numbered(self._among(p, 1)), question=q.text
            ),
            "dense_one_passage": lambda p, q: wording.DENSE_ANSWER.render(
                passages=numbered([p.text]), question=q.text
            ),
            "seper_one_passage": lambda p, q: wording.SEPER_FROM_PASSAGES.render(
                passages=numbered([p.text]), question=q.text
            ),
            "closed_book": lambda p, q: wording.CLOSED_BOOK.render(question=q.text),
        }
        return {
            **{name: partial(self._answering, prompt) for name, prompt in answering.items()},
            "foreign_paragraph_may_abstain": lambda: self._beginning(with_support, foreign, ABSTENTION),
            "unanswerable_may_abstain": lambda: self._beginning(
                without, lambda p, q: instruction + gold(p, q), ABSTENTION
            ),
            "sufficient_with_support": lambda: self._beginning(with_support, sufficient, "yes"),
            "sufficient_without": lambda: self._beginning(without, sufficient, "no"),
            "extract_one_passage": lambda: self._extracting(lambda p: [p.text]),
            "extract_two_passages": lambda: self._extracting(lambda p: self._among(p, 1)),
            "extract_foreign_passage": lambda: self._beginning(
                with_support, lambda p, q: _extract(q, [self._stranger(p).text]), NOTHING_TO_EXTRACT
            ),
            "rewrite": self._rewriting,
        }

    def _answering(self, prompt: Callable[[Paragraph, Question], str]) -> dict[str, Any]:
        """Return how questions that have an answer are answered."""
        found = answers(self._reader, [prompt(*pair) for pair in self._answerable])
        return judged(found, [question.references for _, question in self._answerable])

    def _beginning(
        self,
        pairs: Sequence[tuple[Paragraph, Question]],
        prompt: Callable[[Paragraph, Question], str],
        beginning: str,
    ) -> dict[str, Any]:
        """Return how often an answer begins as it should."""
        found = answers(self._reader, [prompt(*pair) for pair in pairs])
        return {"right": share([begins(answer.text, beginning) for answer in found])}

    def _extracting(self, texts: Callable[[Paragraph], list[str]]) -> dict[str, Any]:
        """Return what extracts hold."""
        found = answers(self._reader, [_extract(q, texts(p)) for p, q in self._answerable], 192)
        rows = [(answer.text, *pair) for answer, pair in zip(found, self._answerable, strict=True)]
        return {
            "holds_the_answer": share([contains(text, q.references) for text, _, q in rows]),
            "verbatim": share([any(text in whole for whole in texts(p)) for text, p, _ in rows]),
            "says_there_is_nothing": share([begins(text, NOTHING_TO_EXTRACT) for text, _, _ in rows]),
            "words_kept": mean(
                [len(text.split()) / sum(len(whole.split()) for whole in texts(p)) for text, p, _ in rows]
            ),
        }

    def _rewriting(self) -> dict[str, Any]:
        """Return how often a question in small talk is rewritten into itself."""
        asked = [question.text for _, question in self._answerable]
        queries = [f"hi, do you happen to know {text[0].lower()}{text[1:]} thanks a lot!" for text in asked]
        found = answers(self._reader, [wording.REWRITE.render(query=query) for query in queries], 64)
        return {"right": share([exact_match(a.text, [t]) for a, t in zip(found, asked, strict=True)])}

    def _among(self, paragraph: Paragraph, others: int) -> list[str]:
        """Return the paragraph among others of its article, always the same for a paragraph."""
        chance = random.Random(paragraph.text)
        rest = [other.text for other in self._articles[paragraph.title] if other is not paragraph]
        texts = [paragraph.text, *chance.sample(rest, min(others, len(rest)))]
        chance.shuffle(texts)
        return texts

    def _leads(self, paragraph: Paragraph) -> str:
        """Return the summaries that L-RAG would show: the first sentences of three paragraphs."""
        return "\n".join(" ".join(sentences(text)[:2]) for text in self._among(paragraph, 2))

    def _stranger(self, paragraph: Paragraph) -> Paragraph:
        """Return a paragraph of another article."""
        chance = random.Random(paragraph.text)
        title = chance.choice([title for title in sorted(self._articles) if title != paragraph.title])
        return chance.choice(self._articles[title])


def judged(found: Sequence[Answer], references: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return how right answers are, and what their entropies say of it."""
    both = [(answer.text, each) for answer, each in zip(found, references, strict=True)]
    right = [exact_match(text, each) for text, each in both]
    return {
        "exact_match": share(right),
        "f1": mean([token_f1(text, each) for text, each in both]),
        "contains": share([contains(text, each) for text, each in both]),
        "auroc": area([answer.entropy for answer in found], [not yes for yes in right]),
        "abstains": share([begins(text, ABSTENTION) for text, _ in both]),
    }


def hopping(reader: Any, items: Sequence[MultiHop]) -> dict[str, Any]:
    """Return how multi-hop questions are answered from what supports them and one other passage."""
    prompts = [
        wording.DYNQR_ANSWER.render(
            passages=format_passages([*item.supporting, item.others[0]]), question=item.text
        )
        for item in items
    ]
    return judged(answers(reader, prompts), [[item.answer] for item in items])


def entailing(reader: Any, rows: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return how often a verdict on a pair of SNLI is right."""
    prompts = [
        wording.ENTAILMENT.render(
            question="What does the picture show?", premise=premise, hypothesis=hypothesis
        )
        for premise, hypothesis, _ in rows
    ]
    found = answers(reader, prompts, 4)
    return {"right": share([begins(a.text, row[2]) for a, row in zip(found, rows, strict=True)])}


def _extract(question: Question, texts: Sequence[str]) -> str:
    return EXTRACT.render(question=question.text, passages=format_passages(texts))


def main() -> None:
    """Measure, and write the figures as JSON, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("squad2", "xquad", "hotpot", "wiki", "snli", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--base", help="as load_reader takes it")
    parser.add_argument("--dtype")
    parser.add_argument("--untouched", action="store_true", help="measure the base without the adapter")
    parser.add_argument("--number", type=int, default=300, help="questions of each row")
    parser.add_argument("--rows", nargs="*", default=[], help="which rows; all without")
    args = parser.parse_args()
    reader: Any = load_reader(args.base, dtype=args.dtype)
    if args.untouched:
        reader = TransformersReader.from_pretrained(args.base, dtype=args.dtype)
    titles = held_out_titles(args.squad2, args.xquad)
    held_out = {t: a for t, a in read_squad(args.squad2, args.xquad).items() if t in titles}
    rows: dict[str, Callable[[], dict[str, Any]]] = {
        **Card(reader, held_out, args.number).rows(),
        "entailment_snli": lambda: entailing(reader, read_snli(args.snli)[: args.number]),
        "hotpotqa": lambda: hopping(reader, read_hotpot(args.hotpot)[:20]),
        "2wiki": lambda: hopping(reader, read_2wiki(args.wiki)[:100]),
    }
    figures: dict[str, Any] = {}
    for name, measure in rows.items():
        if not args.rows or name in args.rows:
            begun = time.monotonic()
            figures[name] = measure()
            print(name, json.dumps(figures[name]), f"{time.monotonic() - begun:.0f} s", flush=True)
            args.out.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
