"""Entailers: labels by name, pairs once, nothing unclear taken for entailment."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from surerag import FakeReader, OpenAIReader, entailment
from surerag.encoders import packaged_minilm_path
from surerag.entailment import LABELS, ExactEntailer, JudgeEntailer, NLIEntailer, parse_label
from surerag.errors import ConfigurationError, ContextLengthError, PromptError
from surerag.messages import Generation, Pair, TokenTrace
from surerag.prompts import PromptTemplate
from surerag.readers.fake import reply
from surerag.readers.protocol import Capabilities
from tests.blocking import Gate, cancelled_without_trace
from tests.servers.fake_openai import FakeOpenAI

PAIRS = [
    Pair("Velm", "the town of Velm", "Where?"),
    Pair("Orun", "Velm"),
    Pair("Velm", "the town of Velm", "Where?"),
]


def tiny(id2label: dict[int, str], **config: Any) -> tuple[Any, Any]:
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(packaged_minilm_path())
    settings = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = BertForSequenceClassification(
        BertConfig(vocab_size=len(tokenizer), id2label=id2label, num_labels=3, **settings, **config)
    )
    return model, tokenizer


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_the_order_of_labels_is_read_from_the_config(order: tuple[int, ...]) -> None:
    names = ("Contradiction", "NEUTRAL", "entailment")
    model, tokenizer = tiny({index: names[label] for index, label in enumerate(order)})
    found = NLIEntailer(model, tokenizer).entail(PAIRS[1:2])
    with torch.inference_mode():
        plain = model(**tokenizer("Orun", "Velm", return_tensors="pt")).logits.softmax(-1)[0].numpy()
    assert found[0] == pytest.approx([plain[order.index(label)] for label in range(3)], abs=1e-6)


def test_batches_of_any_size_give_the_same_and_equal_pairs_are_judged_once() -> None:
    model, tokenizer = tiny({0: "contradiction", 1: "neutral", 2: "entailment"})
    pairs = [Pair("a " * n, "b " * (20 - n), "q") for n in range(1, 15)] + PAIRS
    one_by_one = np.concatenate([NLIEntailer(model, tokenizer).entail([pair]) for pair in pairs])
    seen: list[int] = []
    model.register_forward_pre_hook(lambda m, a, kw: seen.append(len(kw["input_ids"])), with_kwargs=True)
    merged = NLIEntailer(model, tokenizer, max_batch_tokens=100).entail(pairs)
    assert merged == pytest.approx(one_by_one, abs=1e-5)
    assert merged.sum(axis=1) == pytest.approx(1)
    assert sum(seen) == len(pairs) - 1
    assert len(seen) > 1


def counted(model: Any) -> list[int]:
    """Note how many pairs each pass judges."""
    seen: list[int] = []
    model.register_forward_pre_hook(lambda m, a, kw: seen.append(len(kw["input_ids"])), with_kwargs=True)
    return seen


def test_a_pair_is_judged_once_and_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(entailment, "_PAIRS_KEPT", 2)
    model, tokenizer = tiny({0: "contradiction", 1: "neutral", 2: "entailment"})
    entailer = NLIEntailer(model, tokenizer)
    seen = counted(model)
    one, two, three = (Pair(word, "Velm") for word in ("a", "b", "c"))
    first = entailer.entail([one, two])
    assert (entailer.entail([one])[0] == first[0]).all()
    entailer.entail([three, one])
    assert sum(seen) == 3
    entailer.entail([two, Pair("Velm", "c"), Pair("c", "Velm", "Who?")])
    assert sum(seen) == 6


def test_out_of_memory_halves_the_batch() -> None:
    model, tokenizer = tiny({0: "contradiction", 1: "neutral", 2: "entailment"})
    expected = NLIEntailer(model, tokenizer).entail(PAIRS)
    forward = model.forward

    def small_only(**inputs: Any) -> Any:
        if len(inputs["input_ids"]) > 1:
            raise torch.OutOfMemoryError
        return forward(**inputs)

    model.forward = small_only
    assert NLIEntailer(model, tokenizer).entail(PAIRS) == pytest.approx(expected, abs=1e-5)


def test_a_question_gives_way_and_an_answer_never_does() -> None:
    model, tokenizer = tiny({0: "contradiction", 1: "neutral", 2: "entailment"}, max_position_embeddings=32)
    entailer = NLIEntailer(model, tokenizer)
    with pytest.warns(UserWarning, match="question is too long"):
        long = entailer.entail([Pair("Velm", "Orun", "why " * 40)])
    assert long == pytest.approx(entailer.entail([Pair("Velm", "Orun")]), abs=1e-6)
    with pytest.raises(ContextLengthError, match="more than"):
        entailer.entail([Pair("Velm " * 40, "Orun")])


def test_a_classifier_of_something_else_is_refused() -> None:
    model, tokenizer = tiny({0: "bad", 1: "so so", 2: "good"})
    with pytest.raises(ConfigurationError, match="natural language inference"):
        NLIEntailer(model, tokenizer)


def test_nothing_to_judge() -> None:
    model, tokenizer = tiny({0: "contradiction", 1: "neutral", 2: "entailment"})
    for entailer in (NLIEntailer(model, tokenizer), ExactEntailer(), JudgeEntailer(FakeReader([]))):
        assert entailer.entail([]).shape == (0, 3)


@pytest.mark.parametrize(
    ("reply", "label"),
    [
        ("entailment", 2),
        ("  ENTAILMENT.\n", 2),
        ("**Contradiction**", 0),
        ("Answer 1 entails answer 2", 2),
        ("They contradict each other: contradiction", 0),
        ("neutral", 1),
        ("not entailment", None),
        ("non-entailment", None),
        ("entailment or neutral", None),
        ("yes", None),
        ("", None),
        ("蕴含", None),
    ],
)
def test_a_judges_words(reply: str, label: int | None) -> None:
    assert parse_label(reply) == label


async def test_a_judge_asks_once_a_pair_and_counts_what_it_cannot_read() -> None:
    reader = FakeReader(["entailment", "who knows", "Contradiction."], logprob=-0.1)
    judge = JudgeEntailer(reader)
    rows = await judge.aentail(PAIRS)
    sure = np.exp(-0.1)
    assert rows[0] == pytest.approx([(1 - sure) / 2, (1 - sure) / 2, sure])
    assert rows[1].tolist() == [0, 0, 0], "no label, no probability"
    assert rows[2].argmax() == 0
    assert (judge.judged, judge.unparsed) == (3, 1)
    assert "Answer 1: Velm\nAnswer 2: the town of Velm" in reader.prompts[0]


def test_a_judge_without_log_probabilities_is_sure_of_its_word() -> None:
    judge = JudgeEntailer(FakeReader(["neutral"], logprob=None, entropy=None))
    assert judge.entail(PAIRS[:1]).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("probability", [0.1, 0.3, 0.5, 0.9])
def test_what_a_judge_writes_is_its_likeliest_label_however_unsure_it_is(
    label: int, probability: float
) -> None:
    said = reply(LABELS[label], logprobs=math.log(probability))
    [row] = JudgeEntailer(FakeReader([said])).entail(PAIRS[:1])
    assert (row.argmax(), row[label]) == (label, pytest.approx(probability))


def test_a_judges_prompt_keeps_its_slots() -> None:
    with pytest.raises(PromptError, match="slots"):
        JudgeEntailer(FakeReader([]), prompt=PromptTemplate("mine", "{premise}"))


def test_only_the_label_counts_however_chatty_the_judge_is() -> None:
    tokens = ("The", " answer", " is:", " ent", "ailment", ",", " clearly")
    trace = TokenTrace(tokens, (-2.0, -1.5, -0.7, -0.1, -0.05, -1.0, -3.0))
    judge = JudgeEntailer(FakeReader([Generation("".join(tokens), trace=trace)]))
    [row] = judge.entail(PAIRS[:1])
    assert row[2] == pytest.approx(np.exp(-0.15))
    assert row.sum() == pytest.approx(1)


@pytest.mark.parametrize(
    ("server", "listed"),
    [
        ({}, [True, True]),
        ({"refuses": ("logprobs",)}, [True, False, False]),
        ({"no_logprobs": True}, [True, False]),
    ],
)
@pytest.mark.filterwarnings("ignore::surerag.readers.parameters.LeftOutWarning")
async def test_a_judge_is_asked_for_log_probabilities_where_it_gives_them(
    server: dict[str, Any], listed: list[bool]
) -> None:
    with FakeOpenAI(lambda _: "neutral", **server) as running:
        judge = JudgeEntailer(OpenAIReader("toy", base_url=running.base_url, api_key="k"))
        judge.entail(PAIRS[:1])
        await judge.aentail(PAIRS[:1])
    assert ["logprobs" in request for request in running.requests] == listed
    assert (judge.judged, judge.unparsed) == (2, 0)


async def test_a_judgement_that_is_cancelled_leaves_nothing_behind() -> None:
    gate = Gate()

    class Slow(FakeReader):
        @property
        def capabilities(self) -> Capabilities:
            return Capabilities(logprobs=False, entropy=None, native_async=False)

        def generate(self, prompts: Any, sampling: Any) -> Any:
            gate.wait()
            return super().generate(prompts, sampling)

    judge = JudgeEntailer(Slow(["neutral"]))
    await cancelled_without_trace(lambda: judge.aentail([Pair("q", "a", "b")]), gate)
