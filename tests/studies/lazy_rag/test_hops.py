"""The study of a gate before each hop, on a reader that sees all it is shown."""

from __future__ import annotations

import io

from rich.console import Console

from surerag.encoders import HashingEncoder
from surerag.readers.scripted import ScriptedReader, reply
from surerag.types import Generation
from surerag.world.world import World
from surerag_studies.lazy_rag.hops import hop_study, study_tables


def test_a_second_hop_finds_what_the_first_one_names() -> None:
    world = World(seed=3)
    chains = {one.text: one for one in world.questions(12, ["two-hop"])}
    links = {text: [world.passage[place].text for place in one.gold_passages] for text, one in chains.items()}

    def reading(prompt: str) -> Generation:
        question = prompt.split("Question: ")[-1].split("\n")[0]
        first, second = links[question]
        if first in prompt and second in prompt:
            return reply(chains[question].answers[0], entropy=0.1)
        # Whoever has the first fact only says that; all of it, so that a search finds what it names.
        return reply(first if first in prompt else "no idea", entropy=2.0)

    study = hop_study(ScriptedReader(reading), HashingEncoder(), seed=3, n=12, hops=(1, 2))
    one, two = study.rows
    assert (one.retrievals, one.against_one) == (1.0, None) and 1 < two.retrievals <= 2
    assert two.against_one is not None and two.passages > one.passages
    # This reader is right where both facts stand before it, and nowhere else.
    assert one.accuracy.value == one.told.value <= two.told.value == two.accuracy.value
    console = Console(file=io.StringIO(), width=100)
    console.print(study_tables(study))
    assert "Both facts shown" in console.file.getvalue()  # type: ignore[attr-defined]  # written to memory
