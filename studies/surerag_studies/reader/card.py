"""The embedded reader's model card: what it can do, measured on a world it never saw.

Everything goes through the public reader protocol, so that any reader can be measured the same way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from surerag import prompts
from surerag.errors import CapabilityError
from surerag.evaluation.formatting import plain_table
from surerag.evaluation.statistics import auroc, wilson_interval
from surerag.prompts import format_passages
from surerag.readers.protocol import Reader
from surerag.types import Generation, Passage, Sampling
from surerag.world import Question, QuestionKind, Source, World, is_correct
from surerag.world import language as say
from surerag.world.core import core_facts
from surerag.world.language import Fact
from surerag.world.lexicon import words
from surerag.world.questions import normalise
from surerag_studies.transfer import carrying

GATE_TOKENS = 8


@dataclass(frozen=True, slots=True)
class CardRow:
    """One line of a model card.

    Attributes:
        task: What was measured.
        value: Share of successes, or the area under the curve.
        low: Lower end of the 95 % interval (Wilson's for shares).
        high: Upper end.
        n: Number of items.
        target: What was aimed at; None where the figure is only reported.
    """

    task: str
    value: float
    low: float
    high: float
    n: int
    target: float | None

    @property
    def met(self) -> bool | None:
        """Whether the value reaches the target."""
        return None if self.target is None else self.value >= self.target


@dataclass(frozen=True, slots=True)
class Card:
    """A model card, as it is stored.

    Attributes:
        model: Identity of the reader.
        seed: Seed of the world.
        n: Questions that were asked for in each task; rows say how many there were.
        rows: One for each task.
    """

    model: str
    seed: int
    n: int
    rows: tuple[CardRow, ...]


class _Item(NamedTuple):
    prompt: str
    right: Callable[[str], bool]


def measure_card(reader: Reader, *, seed: int, n: int = 400, size: int | None = None) -> list[CardRow]:
    """Measure every task of the model card on one world.

    Args:
        reader: What to measure; it must give entropies.
        seed: Seed of the world. The embedded reader was trained on no world, but on fresh facts of its
            own, so that any seed is held out.
        n: Items for each task.
        size: Size of the world; the default is that of `World`.

    Returns:
        The card's rows, in order.

    Raises:
        CapabilityError: If the reader gives no entropies.
    """
    if reader.capabilities.entropy is None:
        raise CapabilityError(
            f"{reader.name} gives no entropies, which one row of the card is about",
            hint="measure a local model, or a server that returns log-probabilities",
        )
    world = World(seed) if size is None else World(seed, size)
    fresh_places = [Source.LEAD, Source.DEEP]
    single = world.questions(n, [QuestionKind.SINGLE], sources=fresh_places)
    fresh = world.questions(n, [QuestionKind.SINGLE], sources=fresh_places, phrasing="held-out")
    # Every taught fact has two held-out phrasings.
    core = world.questions(
        min(n, 2 * len(core_facts())), [QuestionKind.SINGLE], sources=[Source.CORE], phrasing="held-out"
    )
    vague = world.questions(n, [QuestionKind.UNDER_SPECIFIED])
    chains = world.questions(n, [QuestionKind.TWO_HOP])

    def row(task: str, items: Iterable[_Item], target: float | None = None) -> CardRow:
        return _measure(reader, task, list(items), target)

    rows = [
        row(f"answer from {k} passage{'s' * (k > 1)}", _answering(world, single, k), 0.90 if k == 5 else None)
        for k in (1, 5, 10, 20)
    ]
    rows += [
        row("answer from 5 passages, vague question", _answering(world, vague, 5)),
        row("answer from 5 passages, one out of date", _answering(world, single, 5, stale=True)),
        row("taught core by heart, untrained phrasings", _by_heart(core), 0.95),
        row("taught core beside 5 irrelevant passages", _beside(world, core, 5), 0.90),
        _separation(reader, core, fresh),
        row("two-hop from its two gold passages", _answering(world, chains, 2), 0.75),
        row("two-hop from 5 passages", _answering(world, chains, 5)),
        row("entailment between answers", _entailment(single), 0.95),
        row("rephrasing keeps every fact", _rephrasing(world, single), 0.90),
        row("extraction from 5 passages", _extraction(world, single), 0.90),
        row('extraction says "nothing"', _nothing(world, single), 0.90),
        row("sufficiency, answer there", _sufficiency(world, single, there=True), 0.90),
        row("sufficiency, answer not there", _sufficiency(world, single, there=False), 0.90),
        row("rewriting of vague questions", _rewriting(vague), 0.85),
    ]
    return rows


def card_view(card: Card) -> Table:
    """Show a model card."""
    table = plain_table(f"{card.model} on the closed world, seed {card.seed}")
    table.add_column("Task")
    for name in ("Measured [95 %]", "n", "Aim"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("")
    verdicts = {None: Text(""), True: Text("met", style="green"), False: Text("missed", style="bold red")}
    for row in card.rows:
        aim = "" if row.target is None else f"{row.target:.2f}"
        measured = f"{row.value:.3f} [{row.low:.3f}, {row.high:.3f}]"
        table.add_row(row.task, measured, f"{row.n:,}", aim, verdicts[row.met])
    return carrying(table, None, "a single figure: this is what this reader can do in this world")


def card_table(rows: Sequence[CardRow]) -> str:
    """Lay out a card as a Markdown table."""
    lines = ["| task | measured | 95 % interval | n | target |", "|---|---|---|---|---|"]
    for r in rows:
        target = "" if r.target is None else f"{r.target:.2f}{'' if r.met else ' (missed)'}"
        lines.append(f"| {r.task} | {r.value:.3f} | {r.low:.3f} to {r.high:.3f} | {r.n} | {target} |")
    return "\n".join(lines)


def _ask(reader: Reader, texts: Sequence[str], tokens: int) -> list[Generation]:
    return [samples[0] for samples in reader.generate(list(texts), Sampling(max_tokens=tokens))]


def _measure(reader: Reader, task: str, items: Sequence[_Item], target: float | None) -> CardRow:
    answers = _ask(reader, [item.prompt for item in items], 64)
    right = sum(item.right(answer.text) for item, answer in zip(items, answers, strict=True))
    share = wilson_interval(right, len(items))
    return CardRow(task, share.value, share.low, share.high, len(items), target)


def _judge(question: Question) -> Callable[[str], bool]:
    return lambda text: is_correct(question, text)


def _texts(passages: Sequence[Passage]) -> str:
    return format_passages(passage.text for passage in passages)


def _answering(world: World, asked: Sequence[Question], k: int, *, stale: bool = False) -> Iterable[_Item]:
    for question in asked:
        k_needed = max(k, len(question.gold_passages))
        context = _texts(world.context(question, k_needed, stale=stale))
        yield _Item(prompts.FROM_CONTEXT.render(context=context, question=question.text), _judge(question))


def _by_heart(asked: Sequence[Question]) -> Iterable[_Item]:
    for question in asked:
        yield _Item(prompts.CLOSED_BOOK.render(question=question.text), _judge(question))


def _beside(world: World, asked: Sequence[Question], k: int) -> Iterable[_Item]:
    for question in asked:
        context = _texts(world.contexts.lacking(question, k, noise=1.0))
        yield _Item(prompts.FROM_CONTEXT.render(context=context, question=question.text), _judge(question))


def _separation(reader: Reader, core: Sequence[Question], fresh: Sequence[Question]) -> CardRow:
    """Tell taught from fresh facts by the mean entropy of the first tokens, with no context."""

    def entropies(asked: Sequence[Question]) -> list[float]:
        texts = [prompts.CLOSED_BOOK.render(question=q.text) for q in asked]
        return [_mean_entropy(generation) for generation in _ask(reader, texts, GATE_TOKENS)]

    area = auroc(entropies(fresh), entropies(core))
    task = "closed-book entropy tells fresh from taught facts (AUROC)"
    return CardRow(task, area.value, area.low, area.high, len(fresh) + len(core), 0.95)


def _mean_entropy(generation: Generation) -> float:
    if generation.trace is None or generation.trace.entropy is None or not generation.trace.tokens:
        return 0.0
    steps = generation.trace.entropy.middle
    return sum(steps) / len(steps)


def _entailment(asked: Sequence[Question]) -> Iterable[_Item]:
    """Pairs of answers in different forms, one half of them to the same effect."""
    for number, question in enumerate(asked):
        rng = random.Random(f"surerag card entailment {question.id}")
        premise = rng.choice(question.answers)
        if number % 2:
            hypothesis, label = rng.choice(question.answers), "entailment"
        else:
            others = [
                v for v in words(question.value_kind) if v not in (question.answers[0], question.entity)
            ]
            other = rng.choice(others)
            hypothesis = rng.choice(question.answers).replace(question.answers[0], other)
            label = "contradiction"
        prompt = prompts.ENTAILMENT.render(question=question.text, premise=premise, hypothesis=hypothesis)
        yield _Item(prompt, _equals(label))


def _equals(expected: str) -> Callable[[str], bool]:
    return lambda text: normalise(text) == normalise(expected)


def _gold(world: World, question: Question) -> Passage:
    return world.passage[question.gold_passages[0]]


def _rephrasing(world: World, asked: Sequence[Question]) -> Iterable[_Item]:
    for question in asked:
        passage = _gold(world, question)
        facts = world.contexts.facts_of(passage)
        yield _Item(prompts.REPHRASE.render(passage=passage.text), _keeps(facts, passage.text))


def _keeps(facts: Sequence[Fact], original: str) -> Callable[[str], bool]:
    """Accept a text that says every fact in one of the world's phrasings, and is not the original."""
    return lambda text: text != original and all(_says(text, fact) for fact in facts)


def _says(text: str, fact: Fact) -> bool:
    templates = say.statements(fact.relation)
    return any(say.state(fact, t)[1:] in text for t in (*templates.trained, *templates.held_out))


def _extraction(world: World, asked: Sequence[Question]) -> Iterable[_Item]:
    for question in asked:
        passages = _texts(world.context(question, 5))
        fact = next(
            f for f in world.contexts.facts_of(_gold(world, question)) if f.value == question.answers[0]
        )
        prompt = prompts.EXTRACT.render(examples="", question=question.text, passages=passages)
        yield _Item(prompt, _only(fact))


def _only(fact: Fact) -> Callable[[str], bool]:
    """Accept one sentence that says the fact."""
    return lambda text: _says(text, fact) and text.count(".") == 1


def _nothing(world: World, asked: Sequence[Question]) -> Iterable[_Item]:
    for question in asked:
        passages = _texts(world.contexts.lacking(question, 5))
        prompt = prompts.EXTRACT.render(examples="", question=question.text, passages=passages)
        yield _Item(prompt, _equals(prompts.NOTHING_TO_EXTRACT))


def _sufficiency(world: World, asked: Sequence[Question], *, there: bool) -> Iterable[_Item]:
    for question in asked:
        context = world.context(question, 5) if there else world.contexts.lacking(question, 5)
        prompt = prompts.SUFFICIENT.render(passages=_texts(context), question=question.text)
        yield _Item(prompt, _equals("yes" if there else "no"))


def _rewriting(asked: Sequence[Question]) -> Iterable[_Item]:
    for question in asked:
        yield _Item(prompts.REWRITE.render(query=question.text), _equals(question.rewrite or question.text))
