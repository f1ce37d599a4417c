"""A reader that reads what it is shown, and otherwise guesses by the wording of its context."""

from __future__ import annotations

import random
import re

from surerag.entailment.labels import LABELS
from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader
from surerag.types import Pair, Passage
from surerag.world import World
from surerag.world.lexicon import words
from surerag_studies.dense_rag.cases import needed_facts, tells_all
from surerag_studies.judging import AliasEntailer

LOCAL = Capabilities(logprobs=True, entropy="exact", begin="native", local=True)
_SHOWN = re.compile(r"^\[\d+\] (.*)$", re.MULTILINE)


def truthful(world: World, n: int) -> ScriptedReader:
    """Return a reader of a world's first n questions; what it was taught it knows by heart."""
    questions = {question.text: question for question in world.questions(n)}
    facts = {text: needed_facts(world, question) for text, question in questions.items()}
    aliases = AliasEntailer(questions.values())

    def told(question: str, prompt: str) -> bool:
        return tells_all([Passage(text) for text in _SHOWN.findall(prompt)], facts[question])

    def answer(prompt: str) -> str:
        if prompt.startswith("Rewrite"):
            return "Indeed, " + prompt.split("Text: ", 1)[1]
        if match := re.search(r"question (.*)\nAnswer 1: (.*)\nAnswer 2: (.*)\n", prompt):
            question, premise, hypothesis = match.groups()
            return LABELS[int(aliases.entail([Pair(premise, hypothesis, question)])[0].argmax())]
        if match := re.search(r"Question: (.*)\nDoes the context", prompt):
            return "yes" if told(match.group(1), prompt) else "no"
        match = re.search(r"Answer the question (.*) from the context\. Give", prompt)
        assert match is not None
        question = questions[match.group(1)]
        if question.taught or told(question.text, prompt):
            return question.answers[0]
        return random.Random(prompt).choice(words(question.value_kind)[:6])

    return ScriptedReader(answer, name="truthful", capabilities=LOCAL)
