"""The two embedded readers: both read, only the larger one rewrites."""

from __future__ import annotations

import pytest

from surerag import prompts
from surerag.errors import ConfigurationError
from surerag.types import Sampling
from surerag.world import QuestionKind, World, embedded_reader, embedded_reader_path, is_correct


@pytest.mark.parametrize("size", ["default", "small"])
def test_a_reader_reads_a_world_it_never_saw(size: str) -> None:
    world = World(seed=9001, size=60)
    questions = world.questions(30, [QuestionKind.SINGLE])
    asked = [
        prompts.FROM_CONTEXT.render(
            context="\n".join(passage.text for passage in world.context(question, 5)), question=question.text
        )
        for question in questions
    ]
    answers = embedded_reader(size).generate(asked, Sampling(max_tokens=16))
    right = sum(is_correct(question, row[0].text) for row, question in zip(answers, questions, strict=True))
    assert right >= 27


def test_the_small_reader_was_never_taught_to_rewrite() -> None:
    world = World(seed=9001, size=60)
    questions = world.questions(10, [QuestionKind.UNDER_SPECIFIED])
    asked = [prompts.REWRITE.render(query=question.text) for question in questions]

    def rewritten(size: str) -> int:
        answers = embedded_reader(size).generate(asked, Sampling(max_tokens=32))
        return sum(row[0].text == q.rewrite for row, q in zip(answers, questions, strict=True))

    assert rewritten("default") >= 8
    assert rewritten("small") == 0


def test_a_size_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of default, small, got 'huge'"):
        embedded_reader_path("huge")
