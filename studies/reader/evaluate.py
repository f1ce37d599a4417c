"""Measure the demo's reader on the articles that nobody trained on: the figures of its card.

Answers are greedy. An answer is right where it equals a reference after the usual normalisation; it contains
one where the reference's words stand in it, in a row. Uncertainty is the mean entropy of the answer's tokens.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from reader.examples import (
    ABSTENTION,
    ASK_TO_ABSTAIN,
    Paragraph,
    Question,
    held_out_titles,
    read_2wiki,
    read_hotpot,
    read_snli,
    read_squad,
    sentences,
)
from reader.train import Encoder, add_lora, load_adapter
from surerag import prompts as wording
from surerag.measures import exact_match, normalize_answer, token_f1
from surerag.prompts import NOTHING_TO_EXTRACT, format_passages


class Answer(NamedTuple):
    """What the reader wrote, and how uncertain it was."""

    text: str
    entropy: float


class Greedy:
    """Answers prompts greedily, prompts of like length together."""

    def __init__(self, model: Any, tokenizer: Any, batch: int = 16) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._encoder = Encoder(tokenizer)
        self._batch = batch

    def answers(self, prompts: Sequence[str], most: int = 32) -> list[Answer]:
        """Return one answer of at most so many tokens for each prompt."""
        rows = [self._encoder.prompt(prompt) for prompt in prompts]
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        found: dict[int, Answer] = {}
        for start in range(0, len(order), self._batch):
            some = order[start : start + self._batch]
            found.update(zip(some, self._together([rows[number] for number in some], most), strict=True))
        return [found[number] for number in range(len(rows))]

    @torch.no_grad()
    def _together(self, rows: Sequence[Sequence[int]], most: int) -> list[Answer]:
        end, width = self._encoder.end, max(map(len, rows))
        ids = torch.tensor([[end] * (width - len(row)) + list(row) for row in rows])
        seen = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        places = (seen.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache()
        written: list[list[int]] = [[] for _ in rows]
        entropies: list[list[float]] = [[] for _ in rows]
        done = [False] * len(rows)
        for _ in range(most):
            out = self._model(
                input_ids=ids,
                attention_mask=seen,
                position_ids=places,
                past_key_values=cache,
                logits_to_keep=1,
            )
            logs = out.logits[:, -1].float().log_softmax(-1)
            entropy = -(logs.exp() * logs).sum(-1)
            best = logs.argmax(-1)
            for number, token in enumerate(best.tolist()):
                done[number] = done[number] or token == end
                if not done[number]:
                    written[number].append(token)
                    entropies[number].append(float(entropy[number]))
            if all(done):
                break
            ids, places = best[:, None], places[:, -1:] + 1
            seen = torch.cat([seen, torch.ones(len(rows), 1, dtype=torch.long)], dim=1)
        return [
            Answer(self._tokenizer.decode(tokens).strip(), float(np.mean(each)) if each else 0.0)
            for tokens, each in zip(written, entropies, strict=True)
        ]


def contains(answer: str, references: Sequence[str]) -> bool:
    """Whether a reference's words stand in an answer."""
    return any(f" {normalize_answer(one)} " in f" {normalize_answer(answer)} " for one in references)


def abstains(answer: str) -> bool:
    """Whether an answer is the abstention."""
    return normalize_answer(answer).startswith(normalize_answer(ABSTENTION))


def share(flags: Sequence[bool]) -> dict[str, float]:
    """Return a share with its Wilson interval of 95 %."""
    interval = stats.binomtest(sum(flags), len(flags)).proportion_ci(method="wilson")
    return _figure(sum(flags) / len(flags), interval.low, interval.high, len(flags))


def mean(values: Sequence[float]) -> dict[str, float]:
    """Return a mean with its bootstrap interval."""
    chance = np.random.default_rng(0)
    draws = chance.choice(np.asarray(values), (2000, len(values))).mean(1)
    return _figure(float(np.mean(values)), *_ends(draws), len(values))


def area(entropies: Sequence[float], wrong: Sequence[bool]) -> dict[str, float]:
    """Return how often a wrong answer is less certain than a right one, with its bootstrap interval."""
    values, flags = np.asarray(entropies), np.asarray(wrong)
    if flags.all() or not flags.any():
        return {}
    chance = np.random.default_rng(0)
    draws = []
    for _ in range(1000):
        picks = chance.integers(0, len(values), len(values))
        if flags[picks].any() and not flags[picks].all():
            draws.append(_area(values[picks], flags[picks]))
    return _figure(_area(values, flags), *_ends(draws), len(values))


def _area(values: Any, flags: Any) -> float:
    high, low = values[flags], values[~flags]
    return float(stats.mannwhitneyu(high, low).statistic) / (len(high) * len(low))


def _ends(draws: Any) -> tuple[float, float]:
    low, high = np.quantile(draws, (0.025, 0.975))
    return float(low), float(high)


def _figure(value: float, low: float, high: float, n: int) -> dict[str, float]:
    return {"value": round(value, 3), "low": round(float(low), 3), "high": round(float(high), 3), "n": n}


class Card:
    """The figures of one reader.

    Args:
        reader: Who answers.
        articles: The held-out articles by title.
        number: Questions of each row.
    """

    def __init__(self, reader: Greedy, articles: dict[str, list[Paragraph]], number: int) -> None:
        self._reader = reader
        self._articles = articles
        self._number = number
        paragraphs = [paragraph for article in articles.values() for paragraph in article]
        self._answerable = self._draw([(p, q) for p in paragraphs for q in p.answerable])
        self._unanswerable = self._draw([(p, q) for p in paragraphs for q in p.unanswerable])

    def _draw(self, pairs: list[tuple[Paragraph, Question]]) -> list[tuple[Paragraph, Question]]:
        chosen = random.Random(1).sample(pairs, min(self._number, len(pairs)))
        return sorted(chosen, key=lambda pair: (pair[0].title, pair[0].text))

    def _among(self, paragraph: Paragraph, others: int) -> list[str]:
        """Return the paragraph among others of its article, always the same for a paragraph."""
        chance = random.Random(paragraph.text)
        rest = [other.text for other in self._articles[paragraph.title] if other is not paragraph]
        texts = [paragraph.text, *chance.sample(rest, min(others, len(rest)))]
        chance.shuffle(texts)
        return texts

    def _stranger(self, paragraph: Paragraph) -> Paragraph:
        """Return a paragraph of another article."""
        chance = random.Random(paragraph.text)
        title = chance.choice([title for title in sorted(self._articles) if title != paragraph.title])
        return chance.choice(self._articles[title])

    def _answers(
        self,
        pairs: Sequence[tuple[Paragraph, Question]],
        prompt: Callable[[Paragraph, Question], str],
        most: int = 32,
    ) -> list[Answer]:
        return self._reader.answers([prompt(*pair) for pair in pairs], most)

    def answering(self, prompt: Callable[[Paragraph, Question], str]) -> dict[str, Any]:
        """Return how questions that have an answer are answered."""
        answers = self._answers(self._answerable, prompt)
        references = [question.references for _, question in self._answerable]
        right = [exact_match(a.text, r) for a, r in zip(answers, references, strict=True)]
        row: dict[str, Any] = {
            "exact_match": share(right),
            "f1": mean([token_f1(a.text, r) for a, r in zip(answers, references, strict=True)]),
            "contains": share([contains(a.text, r) for a, r in zip(answers, references, strict=True)]),
            "auroc": area([answer.entropy for answer in answers], [not yes for yes in right]),
        }
        refused = [abstains(answer.text) for answer in answers]
        return row | ({"abstains": share(refused)} if any(refused) else {})

    def abstaining(
        self,
        pairs: Sequence[tuple[Paragraph, Question]],
        prompt: Callable[[Paragraph, Question], str],
    ) -> dict[str, Any]:
        """Return how often questions without support are not answered."""
        return {"abstains": share([abstains(answer.text) for answer in self._answers(pairs, prompt)])}

    def extracting(self) -> dict[str, Any]:
        """Return what extracts hold."""
        kept = self._answerable[:: max(1, len(self._answerable) // 300)][:300]
        alone = self._answers(kept, lambda p, q: _extract(q, [p.text]), 96)
        among = self._answers(kept, lambda p, q: _extract(q, self._among(p, 1)), 96)
        nothing = self._answers(kept, lambda p, q: _extract(q, [self._stranger(p).text]), 96)
        figures: dict[str, Any] = {}
        for name, answers in (("one_passage", alone), ("two_passages", among)):
            both = [(answer.text, *pair) for answer, pair in zip(answers, kept, strict=True)]
            figures[name] = {
                "holds_the_answer": share([contains(text, q.references) for text, _, q in both]),
                "verbatim": share([_verbatim(text, self._among(p, 1)) for text, p, _ in both]),
                "says_there_is_nothing": share([_nothing(text) for text, _, _ in both]),
                "words": mean([float(len(text.split())) for text, _, _ in both]),
            }
        figures["foreign_passage"] = {"says_there_is_nothing": share([_nothing(a.text) for a in nothing])}
        return figures

    def rows(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """Return what can be measured, by name."""
        from_context = wording.FROM_CONTEXT
        return {
            "gold_paragraph": lambda: self.answering(
                lambda p, q: from_context.render(context=p.text, question=q.text)
            ),
            "gold_paragraph_may_abstain": lambda: self.answering(
                lambda p, q: ASK_TO_ABSTAIN + from_context.render(context=p.text, question=q.text)
            ),
            "foreign_paragraph_may_abstain": lambda: self.abstaining(
                self._answerable,
                lambda p, q: ASK_TO_ABSTAIN
                + from_context.render(context=self._stranger(p).text, question=q.text),
            ),
            "unanswerable_may_abstain": lambda: self.abstaining(
                self._unanswerable,
                lambda p, q: ASK_TO_ABSTAIN + from_context.render(context=p.text, question=q.text),
            ),
            "three_passages": lambda: self.answering(
                lambda p, q: from_context.render(context=format_passages(self._among(p, 2)), question=q.text)
            ),
            "two_tiers": lambda: self.answering(
                lambda p, q: wording.FROM_CONTEXT_AND_DETAILS.render(
                    context=_leads(self._among(p, 2)),
                    details=format_passages(self._among(p, 1)),
                    question=q.text,
                )
            ),
            "summaries_alone": lambda: self.answering(
                lambda p, q: from_context.render(context=_leads(self._among(p, 2)), question=q.text)
            ),
            "dynqr": lambda: self.answering(
                lambda p, q: wording.DYNQR_ANSWER.render(
                    passages=format_passages(self._among(p, 1)), question=q.text
                )
            ),
            "dense": lambda: self.answering(
                lambda p, q: wording.DENSE_ANSWER.render(passages=format_passages([p.text]), question=q.text)
            ),
            "seper": lambda: self.answering(
                lambda p, q: wording.SEPER_FROM_PASSAGES.render(
                    passages=format_passages([p.text]), question=q.text
                )
            ),
            "closed_book": lambda: self.answering(lambda p, q: wording.CLOSED_BOOK.render(question=q.text)),
            "extract": self.extracting,
            "sufficient": self.sufficient,
        }  # fmt: skip

    def sufficient(self) -> dict[str, Any]:
        """Return how often the verdict on a context is right."""

        def prompt(p: Paragraph, q: Question) -> str:
            return wording.SUFFICIENT.render(passages=format_passages([p.text]), question=q.text)

        with_support = self._answers(self._answerable, prompt, 4)
        without = self._answers(self._unanswerable, prompt, 4)
        return {
            "yes_with_support": share([a.text.lower().startswith("yes") for a in with_support]),
            "no_without": share([a.text.lower().startswith("no") for a in without]),
        }

    def rewriting(self) -> dict[str, Any]:
        """Return how often a question in small talk is rewritten into itself."""
        asked = [question.text for _, question in self._answerable][:200]
        prompts = [
            wording.REWRITE.render(
                query=f"hi, do you happen to know {text[0].lower()}{text[1:]} thanks a lot!"
            )
            for text in asked
        ]
        answers = self._reader.answers(prompts, 64)
        return {
            "is_the_question": share([exact_match(a.text, [t]) for a, t in zip(answers, asked, strict=True)])
        }


def entailing(reader: Greedy, rows: Sequence[tuple[str, str, str]]) -> dict[str, Any]:
    """Return how often a verdict on a pair of SNLI is right."""
    prompts = [
        wording.ENTAILMENT.render(
            question="What does the picture show?", premise=premise, hypothesis=hypothesis
        )
        for premise, hypothesis, _ in rows
    ]
    answers = reader.answers(prompts, 4)
    return {"right": share([a.text.lower().startswith(row[2]) for a, row in zip(answers, rows, strict=True)])}


def hopping(reader: Greedy, items: Sequence[Any]) -> dict[str, Any]:
    """Return how multi-hop questions are answered from what supports them and one other passage."""
    answers = reader.answers(
        [
            wording.DYNQR_ANSWER.render(
                passages=format_passages([*item.supporting, item.others[0]]), question=item.text
            )
            for item in items
        ]
    )
    right = [exact_match(a.text, [i.answer]) for a, i in zip(answers, items, strict=True)]
    return {
        "exact_match": share(right),
        "contains": share([contains(a.text, [i.answer]) for a, i in zip(answers, items, strict=True)]),
        "auroc": area([a.entropy for a in answers], [not yes for yes in right]),
    }


def _extract(question: Question, texts: Sequence[str]) -> str:
    return wording.EXTRACT.render(examples="", question=question.text, passages=format_passages(texts))


def _leads(texts: Sequence[str]) -> str:
    return "\n".join(" ".join(sentences(text)[:2]) for text in texts)


def _nothing(text: str) -> bool:
    return normalize_answer(text).startswith(normalize_answer(NOTHING_TO_EXTRACT))


def _verbatim(text: str, sources: Sequence[str]) -> bool:
    return any(text in source for source in sources)


def main() -> None:
    """Measure, and write the figures as JSON, row by row."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("base", "squad2", "xquad", "hotpot", "wiki", "snli", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--adapter", type=Path, help="without one, the base is measured")
    parser.add_argument("--rank", type=int, default=24)
    parser.add_argument("--first-layer", type=int, default=10)
    parser.add_argument("--number", type=int, default=400)
    parser.add_argument("--rows", nargs="*", default=[])
    parser.add_argument("--dtype", default="bfloat16")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(args.base)
    model = AutoModelForCausalLM.from_pretrained(args.base, dtype=getattr(torch, args.dtype))
    if args.adapter:
        load_adapter(add_lora(model, args.rank, 2.0, args.first_layer), args.adapter)
    titles = held_out_titles(args.squad2, args.xquad)
    held_out = {t: a for t, a in read_squad(args.squad2, args.xquad).items() if t in titles}
    reader = Greedy(model.eval(), tokenizer)
    card = Card(reader, held_out, args.number)
    rows = card.rows() | {
        "rewrite": card.rewriting,
        "entailment_snli": lambda: entailing(reader, read_snli(args.snli)[:300]),
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
