"""The demo's corpus: articles of SQuAD that the demo's reader was not trained on, and questions on them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from surerag.messages import Passage


@dataclass(frozen=True, slots=True)
class DemoQuestion:
    """A question on the demo's corpus, with its id in SQuAD, its right answers, and its paragraph's id."""

    id: str
    question: str
    references: tuple[str, ...]
    passage_id: str


def load_corpus() -> list[Passage]:
    """Return all paragraphs, article by article; the article's title is in the metadata.

    Example:
        >>> load_corpus()[0].metadata["title"]
        'Force'
    """
    return [
        Passage(
            text, id=f"{article['title']}/{number}", metadata={"title": article["title"].replace("_", " ")}
        )
        for article in _content()["articles"]
        for number, text in enumerate(article["paragraphs"])
    ]


def load_questions() -> list[DemoQuestion]:
    """Return the questions that the corpus answers."""
    return [
        DemoQuestion(one["id"], one["question"], tuple(one["references"]), one["passage_id"])
        for one in _content()["questions"]
        if one["references"]
    ]


def _content() -> dict[str, Any]:
    text = files("surerag.demo").joinpath("corpus.json").read_text("utf-8")
    return dict(json.loads(text))
