"""The recipe of the demo's reader fits the prompts of today, and its trees are what separate prompts are."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from studies.reader.evaluate import Card, entailing, hopping
from studies.reader.examples import ABSTENTION, Examples, MultiHop, Paragraph, read_squad, supporting
from surerag import FakeReader

FIRST = "Ada was born in Velm in 1815. She lived in Orun. In 1830, the king moved the court to Tarn."
SECOND = "Bo Carver built the bridge of Tarn. It fell in 1877. After the war, the city built another one."
HOPS = [MultiHop("Where did Ada's king live?", "Tarn", (FIRST,), (SECOND,), (FIRST[:29],))]
PAIRS = [("A dog runs.", "An animal moves.", "entailment")] * 12


def _question(text: str, context: str, answer: str, *, answerable: bool = True) -> dict[str, Any]:
    marked = [{"text": answer, "answer_start": context.index(answer)}]
    return {"question": text, "answers": marked if answerable else [], "plausible_answers": marked}


@pytest.fixture
def articles(tmp_path: Path) -> dict[str, list[Paragraph]]:
    data = []
    for title in ("One", "Two"):
        first = [
            _question(f"Where was Ada of {title} born?", FIRST, "Velm"),
            _question(f"Where did Ada of {title} live?", FIRST, "Orun"),
            _question(f"Who lived in Orun before Ada of {title}?", FIRST, "Ada", answerable=False),
        ]
        second = [_question(f"Who built the bridge of {title}?", SECOND, "Bo Carver")]
        paragraphs = [{"context": FIRST, "qas": first}, {"context": f"{SECOND} ", "qas": second}]
        data.append({"title": title, "paragraphs": paragraphs})
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": data}), "utf-8")
    return read_squad(path)


def test_an_extract_is_the_sentence_that_holds_the_answer_and_its_neighbours() -> None:
    text = f"{FIRST} The end."
    assert supporting(text, text.index("Velm")) == "Ada was born in Velm in 1815. She lived in Orun."
    assert supporting(text, text.index("Orun")) == FIRST
    assert supporting(text, text.index("end")) == "In 1830, the king moved the court to Tarn. The end."


def test_each_task_has_examples_in_the_prompts_of_today(articles: dict[str, list[Paragraph]]) -> None:
    answers = defaultdict(set)
    for group in islice(Examples(articles, HOPS, PAIRS), 400):
        for prompt, answer in group.pairs:
            assert prompt
            assert answer
            answers[group.task].add(answer)
    tasks = {"answer", "extract", "sufficient", "first_pass", "summarize", "rephrase", "hops", "rewrite"}
    assert {*tasks, "closed_book", "entailment"} == set(answers)
    assert answers["sufficient"] == {"yes", "no"}
    assert {"Velm", "Bo Carver", ABSTENTION} <= answers["answer"]
    assert "No content to extract" in answers["extract"]


def test_a_tree_has_the_losses_of_separate_prompts(articles: dict[str, list[Paragraph]]) -> None:
    torch = pytest.importorskip("torch")
    from transformers import LlamaConfig, LlamaForCausalLM

    from studies.reader.train import Encoder, check

    class Letters:
        """A tokenizer of one token a letter."""

        def convert_tokens_to_ids(self, token: str) -> int:
            return 1

        def apply_chat_template(self, turns: Any, **settings: Any) -> str:
            return f"user: {turns[0]['content']}\nassistant: "

        def __call__(self, text: str, **settings: Any) -> dict[str, list[int]]:
            return {"input_ids": [ord(letter) % 126 + 2 for letter in text]}

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    model = LlamaForCausalLM(config).eval()
    groups = iter(Examples(articles, HOPS, PAIRS))
    assert 0 < check(model, Encoder(Letters()), groups, 40) < 1e-4


def test_every_row_of_the_card_can_be_measured(articles: dict[str, list[Paragraph]]) -> None:
    reader = FakeReader(lambda prompt: "Velm" if "Velm" in prompt else "no", entropy=0.5)
    rows = {name: measure() for name, measure in Card(reader, articles, 4).rows().items()}
    assert rows["gold_paragraph"]["contains"]["n"] == 4
    assert rows["gold_paragraph"]["exact_match"]["value"] == rows["gold_paragraph"]["contains"]["value"] > 0
    assert rows["sufficient_without"]["right"]["value"] == 0.0  # "Velm" is no verdict
    assert rows["extract_one_passage"]["holds_the_answer"]["value"] > 0
    assert hopping(reader, HOPS)["contains"]["n"] == 1
    assert entailing(reader, PAIRS[:2])["right"]["value"] == 0.0
