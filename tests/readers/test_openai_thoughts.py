"""Thoughts are told from answers in every form that servers have for them, whole and in any pieces."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.errors import LogprobsError, ThinkingBudgetError
from surerag.messages import Generation, Usage
from surerag.readers.hosted.parse import Draft, Wanted, usage_of

WANTED = Wanted(True, 0, 100)
THOUGHT = ["Is", " it", " Velm", "?", " Velm"]
ANSWER = ["Velm", " or", " Velm"]
HARMONY = (
    ["<|channel|>", "analysis", "<|message|>"],
    ["<|end|>", "<|start|>", "assistant", "<|channel|>", "final", "<|message|>"],
)
MARKS = {
    "tags": (["<think>"], ["</think>", "\n\n"]),
    "magistral": (["[THINK]"], ["[/THINK]"]),
    "harmony": HARMONY,
    "in pieces": (["<", "think", ">"], ["</", "think", ">", "\n"]),
}


def listed(tokens: list[str]) -> dict[str, Any]:
    return {"content": [{"token": token, "logprob": -0.1} for token in tokens]}


def whole(draft: Draft, message: dict[str, Any], tokens: list[str], finish: str = "stop") -> Generation:
    draft.feed({"message": message, "finish_reason": finish, "logprobs": listed(tokens)})
    return draft.generation()


def told(generation: Generation) -> tuple[str, int, int]:
    assert generation.trace is not None
    assert list(generation.trace.tokens) == ANSWER
    return generation.text, generation.completion_tokens, generation.thinking_tokens


@pytest.mark.parametrize("marks", MARKS)
def test_thoughts_in_the_text_are_left_out_of_text_and_trace(marks: str) -> None:
    before, after = MARKS[marks]
    tokens = [*before, *THOUGHT, *after, *ANSWER]
    answer = whole(Draft(WANTED), {"content": "".join(tokens)}, tokens)
    assert told(answer) == ("Velm or Velm", 3, len(before) + 5 + len(after))


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("marks", [*MARKS, None])
@pytest.mark.parametrize("space", ["", "\n\n"])
def test_one_list_of_tokens_for_both_is_recognised_by_the_text(
    field: str, marks: str | None, space: str
) -> None:
    before, after = MARKS[marks] if marks else ([], [])
    tokens = [*before, *THOUGHT, *after, *([space] if space else []), *ANSWER]
    message = {field: "".join(THOUGHT), "content": space + "".join(ANSWER)}
    answer = whole(Draft(WANTED), message, [*tokens, "<|im_end|>"])
    assert told(answer) == ("Velm or Velm", 3, len(tokens) - 3)


def test_a_list_of_the_answer_alone_stays_as_it_is() -> None:
    message = {"reasoning": "".join(THOUGHT), "content": "".join(ANSWER)}
    draft = Draft(WANTED, usage=Usage(1, 2, 3, 5))
    assert told(whole(draft, message, ANSWER)) == ("Velm or Velm", 3, 5)


def test_thoughts_that_are_hidden_but_listed_are_recognised_by_their_mark() -> None:
    answer = whole(Draft(WANTED), {"content": "".join(ANSWER)}, [*THOUGHT, "</think>", "\n", *ANSWER])
    assert told(answer) == ("Velm or Velm", 3, 7)


def test_thoughts_listed_apart_are_counted() -> None:
    draft = Draft(WANTED)
    choice = {
        "message": {"reasoning": "".join(THOUGHT), "content": "".join(ANSWER)},
        "finish_reason": "stop",
        "logprobs": listed(ANSWER),
        "reasoning_logprobs": listed(THOUGHT),
    }
    draft.feed(choice)
    assert told(draft.generation()) == ("Velm or Velm", 3, 5)


def test_tokens_of_another_answer_are_refused_also_after_thoughts() -> None:
    message = {"reasoning": "".join(THOUGHT), "content": "Orun"}
    with pytest.raises(LogprobsError, match="another text"):
        whole(Draft(WANTED), message, [*THOUGHT, "</think>", *ANSWER])


@pytest.mark.parametrize("opened", [True, False])
def test_a_template_that_opened_the_thoughts_is_seen_in_a_whole_answer(opened: bool) -> None:
    tokens = [*THOUGHT, "</think>", "\n", *ANSWER]
    draft = Draft(WANTED, opened=opened)
    assert told(whole(draft, {"content": "".join(tokens)}, tokens)) == ("Velm or Velm", 3, 7)
    assert draft.opened


def test_an_answer_without_thoughts_is_one_also_of_a_model_whose_template_opens_them() -> None:
    draft = Draft(WANTED, opened=True)
    shown = "".join(
        draft.feed({"delta": {"content": token}, "logprobs": listed([token])}) for token in ANSWER
    )
    shown += draft.feed({"delta": {}, "finish_reason": "stop"})
    assert told(draft.generation()) == ("Velm or Velm", 3, 0)
    assert shown == "Velm or Velm"
    assert not draft.thought


def test_marks_with_nothing_between_them_are_no_thoughts() -> None:
    tokens = ["<think>", "\n\n", "</think>", "\n\n", *ANSWER]
    draft = Draft(WANTED)
    assert told(whole(draft, {"content": "".join(tokens)}, tokens))[0] == "Velm or Velm"
    assert not draft.thought


@pytest.mark.parametrize(
    "message",
    [
        {"content": "<think>Is it"},
        {"content": None, "reasoning": "Is it"},
        {"content": "", "reasoning_content": "Is it"},
        {"content": "<|channel|>analysis<|message|>Is it"},
    ],
)
def test_an_end_inside_the_thoughts_is_no_answer(message: dict[str, Any]) -> None:
    with pytest.raises(ThinkingBudgetError, match="still thinking"):
        whole(Draft(Wanted(False, 0, 100), limit=4), message, [], "length")


def pieces_of(style: str) -> list[tuple[dict[str, str], list[str]]]:
    """Deltas of a stream, one for each token, and the tokens that are listed with them."""
    if style in MARKS:
        before, after = MARKS[style]
        return [({"content": token}, [token]) for token in [*before, *THOUGHT, *after, *ANSWER]]
    answer = [({"content": token}, [token]) for token in ANSWER]
    if style == "sglang":  # https://github.com/sgl-project/sglang/issues/26778
        return [*(({"reasoning_content": token}, []) for token in THOUGHT), *answer]
    mark: list[tuple[dict[str, str], list[str]]] = [({}, ["</think>"])] if style == "vllm with marks" else []
    return [*(({"reasoning": token}, [token]) for token in THOUGHT), *mark, *answer]


@pytest.mark.parametrize("style", [*MARKS, "vllm", "vllm with marks", "sglang"])
@given(cuts=st.sets(st.integers(1, 30)), stop=st.booleans())
def test_any_pieces_of_a_stream_say_the_same(style: str, cuts: set[int], stop: bool) -> None:
    parts = pieces_of(style)
    places = sorted({0, len(parts), *(cut for cut in cuts if cut < len(parts))})
    draft = Draft(WANTED, stop=(" Orun",) if stop else ())
    shown = ""
    for start, end in pairwise(places):
        delta: dict[str, str] = {}
        for part, _ in parts[start:end]:
            for name, text in part.items():
                delta[name] = delta.get(name, "") + text
        tokens = [token for _, several in parts[start:end] for token in several]
        shown += draft.feed({"delta": delta, "logprobs": listed(tokens) if tokens else None})
        if draft.tokens:
            first = draft.generation(1)
            assert first.trace is not None
            assert first.trace.tokens == ("Velm",)
            assert first.text == "Velm"
    shown += draft.feed({"delta": {}, "finish_reason": "stop"})
    answer = draft.generation()
    assert told(answer)[:2] == ("Velm or Velm", 3)
    assert answer.thinking_tokens >= (1 if style == "sglang" else 5)
    assert shown.strip() == answer.text


@given(st.lists(st.sampled_from(["Velm", " or", "\n", "Que", "stion", ": x", "Q"]), max_size=12))
def test_a_stop_text_is_kept_to_however_it_comes(words: list[str]) -> None:
    draft = Draft(WANTED, stop=("\nQuestion:", "QQ"))
    shown = ""
    for word in words:
        if not draft.full:
            shown += draft.feed({"text": word, "logprobs": {"tokens": [word], "token_logprobs": [-0.1]}})
    if not draft.full:
        shown += draft.feed({"text": "", "finish_reason": "stop"})
    text = "".join(words)
    ends = [text.find(stop) for stop in ("\nQuestion:", "QQ") if stop in text]
    expected = text[: min(ends)] if ends else text
    answer = draft.generation()
    assert shown == expected
    assert answer.text == expected.strip()
    assert answer.trace is not None
    assert "".join(answer.trace.tokens).strip().startswith(answer.text)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 2, "completion_tokens": 9}, Usage(1, 2, 9, 0)),
        (
            {
                "prompt_tokens": 2,
                "completion_tokens": 9,
                "completion_tokens_details": {"reasoning_tokens": 6},
            },
            Usage(1, 2, 3, 6),
        ),
        # Some count thoughts beside the completion: their total tells.
        (
            {
                "prompt_tokens": 2,
                "completion_tokens": 9,
                "total_tokens": 17,
                "completion_tokens_details": {"reasoning_tokens": 6},
            },
            Usage(1, 2, 9, 6),
        ),
        (
            {"input_tokens": 2, "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 6}},
            Usage(1, 2, 3, 6),
        ),
        ({"completion_tokens_details": None}, Usage(1, 0, 0, 0)),
    ],
)
def test_thoughts_are_counted_apart_wherever_the_server_counts_them(
    usage: dict[str, Any], expected: Usage
) -> None:
    assert usage_of({"usage": usage}) == expected


def test_a_text_that_is_longer_than_its_limit_is_cut_where_its_tokens_are_not_known() -> None:
    draft = Draft(Wanted(False, 0, 100), limit=3, budget=50, usage=Usage(1, 2, 6, 10))
    message = {"content": "one two three four five six", "reasoning": "Hm."}
    draft.feed({"message": message, "finish_reason": "stop"})
    answer = draft.generation()
    assert (answer.text, answer.finish, answer.completion_tokens) == ("one two", "length", 3)
