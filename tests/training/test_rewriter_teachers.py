"""Teachers that do not rewrite are noticed before they are paid in full, and never learnt from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from surerag.errors import InputError
from surerag.training.rewriter import DistilOptions, FineTuning, Query, distil
from surerag.training.rewriter.tables import queries_of
from tests.training.rewriter_models import Talker, tiny_base

MANY = [Query(f"Where was Ada the {number}. raised?") for number in range(1, 61)]
FAST = FineTuning(learning_rate=1e-3, batch=10, device="cpu")


def name_in(prompt: str) -> str:
    return prompt.rpartition("Ada the ")[2].split(".")[0]


def query_in(prompt: str) -> str:
    return f"Where was Ada the {name_in(prompt)}. raised?"


BAD: dict[str, Callable[[str], str]] = {
    "20 refusals": lambda prompt: f"I'm sorry, I don't know who Ada the {name_in(prompt)}. is.",
    "20 thoughts": lambda prompt: f"<think>Who is Ada the {name_in(prompt)}.",
    "19 repeated": lambda prompt: "What genre is this?",
    "20 unchanged": query_in,
    "20 other": lambda prompt: "\udce9 " + query_in(prompt),
}


@pytest.mark.parametrize("found", BAD)
def test_a_teacher_that_does_not_rewrite_is_asked_twenty_times(tmp_path: Path, found: str) -> None:
    teacher = Talker(lambda prompt, _: (BAD[found](prompt), -0.1))
    with pytest.raises(InputError, match=rf"does not rewrite: [01] of 20 .*{found}.*max_unusable=1"):
        distil(MANY, teacher, "never/loaded", tmp_path, DistilOptions(FAST))
    assert len(teacher.asked) == 20


FRAMES = (
    "Sure! Here is the rewritten query:\n\n**{}**",
    "<think>Hm.</think>\n{}",
    "**Rewritten Query:** {}",
    "1. {}\n2. Ada?",
    "{}\n\nExplanation: I replaced the verb.",
)


def test_what_stands_around_a_rewrite_is_not_learnt(tmp_path: Path) -> None:
    def frame(prompt: str, _: int) -> tuple[str, float]:
        wanted = f"Where was Ada the {name_in(prompt)}. born?"
        return FRAMES[int(name_in(prompt)) % len(FRAMES)].format(wanted), -0.1

    base = tiny_base(tmp_path / "base")
    done = distil(MANY, Talker(frame), base, tmp_path / "out", DistilOptions(FAST))
    assert (done.examples, done.replies.usable, done.replies.n) == (60, 60, 60)
    rows = [row for [row] in queries_of(done.rewrites, "rewrites")]
    assert [row["rewrite"] for row in rows] == [query.text.replace("raised", "born") for query in MANY]


def test_some_bad_replies_are_left_out_and_counted(tmp_path: Path) -> None:
    def say(prompt: str, _: int) -> tuple[str, float]:
        number = int(name_in(prompt))
        if number % 4 == 0:
            return "I cannot determine that.", -0.1
        return f"Where was Ada the {number}. born?", -0.1

    base = tiny_base(tmp_path / "base")
    done = distil(MANY, Talker(say), base, tmp_path / "out", DistilOptions(FAST))
    assert (done.examples, done.replies.refusals) == (45, 15)
    assert str(done.replies) == "45 of 60 replies of the teacher are rewrites; 15 refusals"
    with pytest.raises(InputError, match="15 of 20"):
        distil(MANY, Talker(say), base, tmp_path / "strict", DistilOptions(FAST, max_unusable=0.1))


def test_whoever_wants_to_learns_from_echoes(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    echo = Talker(lambda prompt, _: (query_in(prompt), -0.1))
    done = distil(MANY, echo, base, tmp_path / "out", DistilOptions(FAST, max_unusable=1))
    assert (done.examples, done.replies.unchanged) == (60, 60)
