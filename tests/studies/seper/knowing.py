"""A reader whose belief is known: it answers from what its prompt tells, in several forms."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence

from surerag.entailment.labels import LABELS
from surerag.readers.protocol import BaseReader, Capabilities
from surerag.readers.scripted import reply
from surerag.types import Generation, Pair, Prompt, Sampling
from surerag.world import World
from surerag.world.lexicon import words
from surerag_studies.judging import AliasEntailer

SURE, HALF_SURE = 0.95, 0.5


class KnowingReader(BaseReader):
    """Knows the taught core, reads what it is shown, guesses otherwise; the same sample is always the same.

    Args:
        world: Whose questions it can be asked.
        judges: Share of entailment questions that it gets right.
        n: Questions of the world that it may be asked.
    """

    name = "knowing"
    capabilities = Capabilities(logprobs=True, entropy=None, local=True)

    def __init__(self, world: World, *, judges: float = 0.98, n: int = 60) -> None:
        questions = world.questions(n, ["single-hop", "two-hop"])
        self._world = world
        self._questions = {question.text: question for question in questions}
        self._told = {
            q.text: [
                [fact for fact in world.contexts.facts_of(world.passage[place]) if self._matters(q, fact)]
                for place in q.gold_passages
            ]
            for q in questions
        }
        self._aliases = AliasEntailer(questions)
        self._judges = judges
        self.asked: list[tuple[str, int]] = []
        self.judged = 0

    def _matters(self, question, fact) -> bool:
        return fact.value == question.answers[0] or (question.hops == 2 and fact.entity == question.entity)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[list[Generation]]:
        found = []
        for prompt in map(str, prompts):
            if "Does answer 1 entail" in prompt:
                self.judged += 1
                found.append([self._judgement(prompt)])
                continue
            if prompt.endswith("Rating:"):
                found.append([reply("as the records show", entropy=None, logprobs=-0.1)])
                continue
            self.asked.append((prompt, sampling.n))
            found.append([self._answer(prompt, sampling.seed, i) for i in range(sampling.n)])
        return found

    def _judgement(self, prompt: str) -> Generation:
        match = re.search(r"question (.*)\nAnswer 1: (.*)\nAnswer 2: (.*)\n", prompt)
        assert match is not None
        question, premise, hypothesis = match.groups()
        label = int(self._aliases.entail([Pair(premise, hypothesis, question)])[0].argmax())
        if random.Random(prompt).random() > self._judges:
            label = 2 - label
        return reply(LABELS[label], entropy=None, logprobs=math.log(0.9))

    def _answer(self, prompt: str, seed: int, sample: int) -> Generation:
        rng = random.Random(f"{prompt} {seed} {sample}")
        question = self._questions[prompt.rsplit("Question: ", 1)[1]]
        shown = prompt.split("\nQuestion: ")[0]
        told = [
            any(fact.entity in shown and fact.value in shown for fact in facts)
            for facts in self._told[question.text]
        ]
        known = question.taught or all(told)
        belief = SURE if known else HALF_SURE * sum(told) / len(told)
        pool = [value for value in words(question.value_kind) if value != question.answers[0]][:40]
        value, probability = rng.choice(pool), (1 - belief) / len(pool)
        if rng.random() < belief:
            value, probability = question.answers[0], belief
        form = rng.choice(question.answers).replace(question.answers[0], value)
        log = math.log(max(probability / 3, 1e-9)) / len(form.split())
        return reply(form, entropy=None, logprobs=log)
