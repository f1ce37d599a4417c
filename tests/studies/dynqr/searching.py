"""A reader that is sure of what it is shown, and that knows which clear question a vague one means."""

from __future__ import annotations

import random
import re

from surerag.readers.protocol import Capabilities
from surerag.readers.scripted import ScriptedReader, reply
from surerag.types import Generation
from surerag.world.world import World

LOCAL = Capabilities(logprobs=True, entropy="exact", begin="native", local=True)


def searching(*worlds: World, n: int, rewrites: bool = True) -> ScriptedReader:
    """Return a reader for questions of several worlds; one that does not rewrite repeats the query."""
    known = [
        {
            question.text: (question, [world.passage[place].text for place in question.gold_passages])
            for question in world.questions(n)
        }
        for world in worlds
    ]
    clear = {text: found[0].rewrite for questions in known for text, found in questions.items()}

    def answer(prompt: str) -> Generation:
        if prompt.startswith("Rewrite the query"):
            query = prompt.rsplit("Query: ", 1)[1]
            return reply((clear.get(query) if rewrites else None) or query)
        match = re.search(r"Question: (.*)\n", prompt)
        assert match is not None
        asked = [questions[match.group(1)] for questions in known if match.group(1) in questions]
        told = [question for question, gold in asked if all(text in prompt for text in gold)]
        rng = random.Random(prompt)
        doubt = rng.uniform(0.0, 0.1) if told else rng.uniform(0.1, 2.0)
        return reply(told[0].answers[0] if told else "Nobody", logprobs=-doubt, entropy=doubt)

    return ScriptedReader(answer, name="searching", capabilities=LOCAL)
