"""Training examples for the embedded reader: conversations on the project's own prompts.

One context is followed by several questions, which gives many answers to learn from for each token read;
a share of the examples has one turn only, as in use.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import NamedTuple

from surerag import prompts
from surerag.prompts import format_passages
from surerag.world import language as say
from surerag.world.core import core_facts
from surerag.world.language import Fact
from surerag.world.lexicon import ENTITY_KINDS, Kind, nicknames, words
from surerag.world.relations import RELATIONS, relation, relations_of, two_hop_pairs
from surerag_studies.reader.drawing import Chain, Context, Draw, absent_fact, draw_context, roughen


class Turn(NamedTuple):
    """What the user says, the answer to learn, and the fact that has to be looked up first."""

    user: str
    answer: str
    about: Fact | None = None


class Example(NamedTuple):
    """A conversation; every answer is learnt. What its first turn tells is known."""

    task: str
    turns: tuple[Turn, ...]
    told: tuple[Fact, ...] = ()


class Style(NamedTuple):
    """An answering prompt: how it opens with a context, and how a further question follows."""

    first: Callable[[str, Context, random.Random], str]
    then: str


def _plain_or_numbered(context: Context, rng: random.Random) -> str:
    texts = context.texts()
    return "\n".join(texts) if rng.random() < 0.35 else format_passages(texts)


def _split_details(question: str, context: Context, rng: random.Random) -> str:
    texts = context.texts()
    cut = rng.randint(0, min(3, len(texts) - 1))
    lead = "\n".join(texts[:cut]) if rng.random() < 0.5 else format_passages(texts[:cut])
    details = format_passages(texts[cut:])
    return prompts.FROM_CONTEXT_AND_DETAILS.render(context=lead, details=details, question=question)


STYLES: Mapping[str, Style] = {
    "context": Style(
        lambda q, c, rng: prompts.FROM_CONTEXT.render(context=_plain_or_numbered(c, rng), question=q),
        "Question: {q}\nAnswer:",
    ),
    "details": Style(_split_details, "Question: {q}\nAnswer:"),
    "seper": Style(
        lambda q, c, rng: prompts.SEPER_FROM_PASSAGES.render(passages=format_passages(c.texts()), question=q),
        "Question: {q}",
    ),
    "dense": Style(
        lambda q, c, rng: prompts.DENSE_ANSWER.render(passages=format_passages(c.texts()), question=q),
        "Answer the question {q}",
    ),
    "dynqr": Style(
        lambda q, c, rng: prompts.DYNQR_ANSWER.render(passages=format_passages(c.texts()), question=q),
        "Question: {q}\nThe answer is:",
    ),
}
_STYLE_WEIGHTS = (40, 20, 13, 15, 12)


def worded(fact: Fact, style: str, rng: random.Random) -> str:
    """Answer in a word; under the prompt that is sampled from, now and then in a phrase or a sentence."""
    if style != "seper" or rng.random() < 0.7:
        return fact.value
    return rng.choice(say.aliases(fact)[1:])


class Asked(NamedTuple):
    """A question, the fact that answers it, and the one to look up first, if that is another."""

    question: str
    fact: Fact
    first: Fact | None = None


_ENTITY_VALUED = tuple(r for r in RELATIONS if r.value in ENTITY_KINDS)


def _conversation(task: str, draw: Draw, context: Context, asked: list[Asked]) -> Example:
    rng = draw.rng
    style = rng.choices(list(STYLES), _STYLE_WEIGHTS)[0]
    turns = []
    for index, item in enumerate(asked):
        user = (
            STYLES[style].then.replace("{q}", item.question)
            if index
            else STYLES[style].first(item.question, context, rng)
        )
        turns.append(Turn(user, worded(item.fact, style, rng), item.first or item.fact))
    return Example(task, tuple(turns), tuple(context.present))


def _turn_count(draw: Draw, most: int) -> int:
    return 1 if draw.rng.random() < draw.level.single else draw.rng.randint(2, max(2, most))


def reading(draw: Draw) -> Example:
    """Questions on a context, some of which it does not answer."""
    context = draw_context(draw)
    count = _turn_count(draw, draw.level.turns)
    facts = draw.rng.sample(context.present, min(count, len(context.present)))
    facts = [absent_fact(draw, context) if draw.rng.random() < draw.level.absent else f for f in facts]
    asked = [Asked(draw.question(f), f) for f in dict.fromkeys(facts)]
    return _conversation("read", draw, context, asked)


def two_hop(draw: Draw) -> Example:
    """Questions through an intermediate entity, with both facts in the context."""
    count = draw.rng.choice((1, 1, 2, 3))
    size = draw.rng.randint(2 * count, max(2 * count, min(draw.level.passages, 8)))
    context = draw_context(draw, chains=count, size=size)
    asked = [Asked(draw.two_hop_question(c), c.second, c.first) for c in context.chains]
    if draw.rng.random() > draw.level.single:
        asked += [Asked(draw.question(f), f) for c in context.chains for f in c]
        draw.rng.shuffle(asked)
    return _conversation("two-hop", draw, context, asked)


def beside(draw: Draw) -> Example:
    """Core questions, and unknown ones, beside a context that does not help."""
    context = draw_context(draw)
    count = _turn_count(draw, 6)
    facts = dict.fromkeys(absent_fact(draw, context, core=0.7) for _ in range(count))
    return _conversation("beside", draw, context, [Asked(draw.question(f), f) for f in facts])


def by_heart(draw: Draw) -> Example:
    """Core and unknown questions without any context."""
    rng = draw.rng
    turns = []
    everything = list(core_facts().values())
    for _ in range(_turn_count(draw, 10)):
        if rng.random() < 0.65:
            fact = first = rng.choice(everything)
            question = draw.question(fact)
        elif rng.random() < 0.2:
            inner, outer = rng.choice(two_hop_pairs())
            first = draw.fact(draw.entity(inner.subject, 0.0), inner)
            fact = draw.fact(first.value, outer)
            question = draw.two_hop_question(Chain(first, fact))
        else:
            rel = rng.choice(RELATIONS)
            fact = first = draw.fact(draw.entity(rel.subject, 0.0), rel)
            question = draw.question(fact)
        style = "seper" if rng.random() < 0.3 else "context"
        template = prompts.SEPER_CLOSED_BOOK if style == "seper" else prompts.CLOSED_BOOK
        turns.append(Turn(template.render(question=question), worded(fact, style, rng), first))
    return Example("core", tuple(turns))


def entailment(draw: Draw) -> Example:
    """Pairs of answers to one question: the same in other words, different ones, and vague ones."""
    rng = draw.rng
    rel = rng.choice(_ENTITY_VALUED if rng.random() < 0.4 else RELATIONS)
    fact = draw.fact(draw.entity(rel.subject), rel)
    question = draw.question(fact)
    turns = []
    for number in range(_turn_count(draw, 10)):
        premise, hypothesis, label = _answer_pair(draw, fact)
        # Further pairs come without the instruction: more pairs for each token read.
        prompt = (
            f"Answer 1: {premise}\nAnswer 2: {hypothesis}"
            if number
            else prompts.ENTAILMENT.render(question=question, premise=premise, hypothesis=hypothesis)
        )
        turns.append(Turn(prompt, label))
    return Example("entail", tuple(turns))


class _AnswerPair(NamedTuple):
    premise: str
    hypothesis: str
    label: str


def _answer_pair(draw: Draw, asked: Fact) -> _AnswerPair:
    rng, rel = draw.rng, asked.relation
    fact = Fact(asked.entity, rel, draw.value(rel.value, asked.entity))
    other = Fact(asked.entity, rel, draw.value(rel.value, fact.value, asked.entity))
    forms = slice(0, 1) if rng.random() < draw.level.words else slice(0, 3)
    premise = rng.choice(say.aliases(fact)[forms])
    roll = rng.random()
    if roll < 0.43:
        return _AnswerPair(premise, rng.choice(say.aliases(fact)[forms]), "entailment")
    if roll < 0.86:
        return _AnswerPair(premise, rng.choice(say.aliases(other)[forms]), "contradiction")
    if roll < 0.91:
        return _AnswerPair(premise, say.generic(rel.value), "entailment")
    if roll < 0.96:
        return _AnswerPair(say.generic(rel.value), premise, "neutral")
    unknown = "I do not know."
    return _AnswerPair(*rng.choice(((premise, unknown), (unknown, premise))), "neutral")


def sufficiency(draw: Draw) -> Example:
    """Whether a context answers a question; half a chain does not."""
    rng = draw.rng
    # Telling that something is absent is learnt on short contexts first.
    size = rng.randint(1, 3) if rng.random() < 0.6 else None
    context = draw_context(draw, chains=rng.choice((0, 0, 0, 1)), size=size)
    items: list[tuple[str, str, Fact]] = []
    for _ in range(_turn_count(draw, 12)):
        roll = rng.random()
        if context.chains and roll < 0.25:
            chain = rng.choice(context.chains)
            if rng.random() < 0.5:
                items.append((draw.two_hop_question(chain), "yes", chain.first))
            else:
                chain = _broken_chain(draw, context)
                items.append((draw.two_hop_question(chain), "no", chain.first))
        elif rng.random() < 0.5:
            fact = rng.choice(context.present)
            items.append((draw.question(fact), "yes", fact))
        else:
            fact = absent_fact(draw, context, core=0.2)
            items.append((draw.question(fact), "no", fact))
    passages = format_passages(context.texts())
    turns = [
        Turn(
            f"Question: {q}" if i else prompts.SUFFICIENT.render(passages=passages, question=q),
            label,
            about,
        )
        for i, (q, label, about) in enumerate(items)
    ]
    return Example("suff", tuple(turns), tuple(context.present))


def _broken_chain(draw: Draw, context: Context) -> Chain:
    """Draw a chain of which the context states the first half only."""
    stated = {(f.entity, f.relation.name) for f in context.present}
    halves = [f for f in context.present if f.relation.value in ENTITY_KINDS]
    halves = halves or [draw.fact(draw.entity(Kind.PERSON, 0.0), relation("birthplace"))]
    while True:
        first = draw.rng.choice(halves)
        second = draw.fact(first.value, draw.rng.choice(relations_of(first.relation.value)))
        if (second.entity, second.relation.name) not in stated:
            return Chain(first, second)
        halves.append(draw.fact(draw.entity(Kind.PERSON, 0.0), relation("birthplace")))


def _plainly(fact: Fact) -> str:
    return say.state(fact, fact.relation.statements[0])


def extraction(draw: Draw) -> Example:
    """The facts that bear on a question, each in a plain sentence, or nothing."""
    rng = draw.rng
    context = draw_context(draw, chains=rng.choice((0, 0, 0, 1)))
    items: list[tuple[str, str, Fact]] = []
    for _ in range(_turn_count(draw, max(3, draw.level.turns // 2))):
        roll = rng.random()
        if context.chains and roll < 0.4:
            chain = context.chains[0]
            target = f"{_plainly(chain.first)} {_plainly(chain.second)}"
            items.append((draw.two_hop_question(chain), target, chain.first))
        elif rng.random() > 3 * draw.level.absent or roll < 0.3:
            fact = rng.choice(context.present)
            items.append((draw.question(fact), _plainly(fact), fact))
        elif roll < 0.4:
            chain = _broken_chain(draw, context)
            known = chain.first in context.present
            target = _plainly(chain.first) if known else prompts.NOTHING_TO_EXTRACT
            items.append((draw.two_hop_question(chain), target, chain.first))
        else:
            fact = absent_fact(draw, context, core=0.25)
            items.append((draw.question(fact), prompts.NOTHING_TO_EXTRACT, fact))
    passages = format_passages(context.texts())
    turns = [
        Turn(
            f"Question: {q}\nExtracted:"
            if i
            else prompts.EXTRACT.render(examples="", question=q, passages=passages),
            target,
            about,
        )
        for i, (q, target, about) in enumerate(items)
    ]
    return Example("extract", tuple(turns), tuple(context.present))


def rephrasing(draw: Draw) -> Example:
    """A passage in other words: every fact in another phrasing, fillers as they are."""
    rng = draw.rng
    turns = []
    for _ in range(min(3, _turn_count(draw, 3))):
        passage = draw_context(draw, size=1, core=0.15).passages[0]
        parts = []
        for sentence in passage.sentences:
            if sentence.fact is None:
                parts.append(sentence.text)
                continue
            templates = say.statements(sentence.fact.relation).trained
            others = [t for t in templates if not sentence.text.endswith(say.state(sentence.fact, t)[1:])]
            parts.append(say.state(sentence.fact, rng.choice(others)))
        turns.append(Turn(prompts.REPHRASE.render(passage=passage.text), " ".join(parts)))
    return Example("rephrase", tuple(turns))


def rewriting(draw: Draw) -> Example:
    """Vague queries in clear words; clear ones in canonical words."""
    rng = draw.rng
    turns = []
    named = nicknames()
    for _ in range(_turn_count(draw, 8)):
        if rng.random() < 0.8:
            entity = rng.choice(list(named))
            kind = next(k for k in ENTITY_KINDS if entity in words(k))
            rel = rng.choice(relations_of(kind))
            query = roughen(rng.choice(rel.vague).replace("{n}", named[entity]), rng)
        else:
            rel = rng.choice(RELATIONS)
            entity = draw.entity(rel.subject)
            template = say.questions(rel).choose(rng, held_out=draw.level.held_out)
            query = roughen(say.ask(rel, entity, template), rng)
        turns.append(Turn(prompts.REWRITE.render(query=query), say.canonical_question(rel, entity)))
    return Example("rewrite", tuple(turns))


def summary(draw: Draw) -> Example:
    """An article's first passage stands for the article."""
    rng = draw.rng
    kind = draw.kind()
    entity = draw.entity(kind)
    rels = relations_of(kind)
    lead = draw.passage([draw.fact(entity, r) for r in rels if r.in_lead])
    deep = [draw.passage([draw.fact(entity, r)]) for r in rng.sample([r for r in rels if not r.in_lead], 1)]
    text = "\n".join(p.text for p in (lead, *deep))
    return Example("summary", (Turn(prompts.SUMMARIZE.render(document=text), lead.text),))


TASKS: Mapping[str, Callable[[Draw], Example]] = {
    "read": reading,
    "two-hop": two_hop,
    "beside": beside,
    "core": by_heart,
    "entail": entailment,
    "suff": sufficiency,
    "extract": extraction,
    "rephrase": rephrasing,
    "rewrite": rewriting,
    "summary": summary,
}
