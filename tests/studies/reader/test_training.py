"""The training script: its data, its forward pass, and what it writes."""

from __future__ import annotations

import random
from itertools import islice
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from surerag.world import language as say
from surerag.world.lexicon import Kind, nicknames, words
from surerag.world.relations import RELATIONS
from surerag_studies.reader.batches import Batches, Encoder, collate
from surerag_studies.reader.drawing import Difficulty, Draw
from surerag_studies.reader.model import (
    GATHERED,
    SHAPES,
    attention_scores,
    build_config,
    hidden_states,
    rotary,
)
from surerag_studies.reader.tasks import TASKS, Example
from surerag_studies.reader.tokenizer import build_tokenizer, marks
from surerag_studies.reader.training import Trainer, train


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


def test_every_word_of_the_world_is_one_token_and_any_text_survives(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    everything = [word for kind in Kind for word in words(kind)] + list(nicknames().values())
    assert all(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in everything)
    for text in ("Zürich, naïve — 東京 {braces}", "a\n\n b\tc", "def f(x): return x**2"):
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode(ids).removeprefix(" ") == text


def test_conversations_are_encoded_as_the_chat_template_does(tokenizer: PreTrainedTokenizerFast) -> None:
    for task, make in TASKS.items():
        example = make(Draw(random.Random(task), Difficulty()))
        messages = []
        for user, answer, _ in example.turns:
            messages += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        templated = tokenizer.apply_chat_template(messages, tokenize=False)
        # Answers follow the assistant's mark without a space in the template's generation prompt.
        expected = tokenizer.encode(templated, add_special_tokens=False)
        assert Encoder(tokenizer).conversation(example).ids == expected


def test_only_answers_are_learnt(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer)
    row = encoder.conversation(TASKS["core"](Draw(random.Random(0), Difficulty(single=1.0))))
    learnt = [row.ids[i + 1] for i, weight in enumerate(row.weight) if weight > 0]
    example = TASKS["core"](Draw(random.Random(0), Difficulty(single=1.0)))
    assert learnt == [*encoder.words(example.turns[0].answer), marks(tokenizer).end]


def test_training_never_uses_held_out_phrasings() -> None:
    held_out = {
        template.replace("{e}", "").strip(" ?.")
        for relation in RELATIONS
        for template in say.questions(relation).held_out
    }
    for seed in range(150):
        example = TASKS["rewrite"](Draw(random.Random(seed), Difficulty(single=1.0)))
        query = example.turns[0].user.split("Query: ")[1]
        assert not any(part and query.startswith(part) for part in held_out if not part.endswith(" of"))


def test_absent_answers_are_drawn_anew_and_core_answers_are_not() -> None:
    answers: dict[str, set[str]] = {}
    for seed in range(400):
        example = TASKS["core"](Draw(random.Random(seed), Difficulty(vague=0.0)))
        for user, answer, _ in example.turns:
            if user.startswith("Answer the question.\n"):
                answers.setdefault(user.lower().rstrip("?\n"), set()).add(answer)
    assert any(len(found) == 1 for found in answers.values())


def test_a_resumed_run_sees_the_same_batches(tokenizer: PreTrainedTokenizerFast) -> None:
    def batches(first: int) -> Batches:
        return Batches(tokenizer, seed=1, first=first, tokens=600, without=frozenset())

    whole = list(islice(iter(batches(0)), 20))
    rest = list(islice(iter(batches(13)), 7))
    for one, other in zip(whole[13:], rest, strict=True):
        assert torch.equal(one.ids, other.ids)


def test_left_out_tasks_stay_out(tokenizer: PreTrainedTokenizerFast) -> None:
    batches = Batches(tokenizer, seed=1, first=1600, tokens=2000, without=frozenset({"rewrite"}))
    tasks = {task for batch in islice(iter(batches), 16) for task in batch.tasks}
    assert "rewrite" not in tasks
    assert {"read", "two-hop", "entail"} <= tasks


def test_the_fast_forward_pass_is_that_of_transformers(tokenizer: PreTrainedTokenizerFast) -> None:
    end, pad = marks(tokenizer).end, marks(tokenizer).pad
    shape = SHAPES["small"]
    config = build_config(shape, len(tokenizer), end, pad)
    trainer = Trainer(config, shape, seed=3, device=torch.device("cpu"), compiled=False)
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict({**trainer.weights, "lm_head.weight": trainer.weights["model.embed_tokens.weight"]})
    rows = [
        Encoder(tokenizer).conversation(TASKS["read"](Draw(random.Random(i), Difficulty()))) for i in range(3)
    ]
    batch = collate(rows, pad)
    where = batch.weight > 0
    with torch.no_grad():
        expected = model(input_ids=batch.ids, attention_mask=(batch.ids != pad).long()).logits[where]
        found = trainer.logits(batch.ids, where)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_notes_say_what_a_sentence_told_and_a_question_asks_for(tokenizer: PreTrainedTokenizerFast) -> None:
    encoder = Encoder(tokenizer)
    example = TASKS["read"](Draw(random.Random(5), Difficulty(absent=0.0, vague=0.0)))
    row = encoder.conversation(example)
    told = [note for note in row.notes if note.value >= 0]
    asked = [note for note in row.notes if note.value < 0]
    assert {(note.entity, note.relation, note.value) for note in told} == {
        (encoder.words(fact.entity)[0], RELATIONS.index(fact.relation), encoder.words(fact.value)[0])
        for fact in example.told
    }
    for note in told:
        sentence = tokenizer.decode(row.ids[: note.position + 1]).removesuffix(".").split(".")[-1]
        assert tokenizer.decode([note.entity]).strip() in sentence
        assert tokenizer.decode([note.value]).strip() in sentence
    assert [row.ids[note.position] for note in asked] == [marks(tokenizer).assistant] * len(example.turns)
    for _, position, place in collate([row], marks(tokenizer).pad).links.tolist():
        question = next(note for note in asked if note.position == position)
        statement = next(note for note in told if note.position == place)
        assert (question.entity, question.relation) == (statement.entity, statement.relation)


def test_the_scores_of_the_head_that_looks_up_are_those_of_transformers(
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    shape = SHAPES["small"]
    config = build_config(shape, len(tokenizer), marks(tokenizer).end, marks(tokenizer).pad)
    trainer = Trainer(config, shape, seed=3, device=torch.device("cpu"), compiled=False)
    config._attn_implementation = "eager"
    model = Qwen3ForCausalLM(config).eval()
    model.load_state_dict({**trainer.weights, "lm_head.weight": trainer.weights["model.embed_tokens.weight"]})
    example = TASKS["read"](Draw(random.Random(1), Difficulty(absent=0.0)))
    batch = collate([Encoder(tokenizer).conversation(example)], marks(tokenizer).pad)
    assert len(batch.links)
    cos, sin = rotary(config, 1024, torch.float32, torch.device("cpu"))
    with torch.no_grad():
        early = hidden_states(batch.ids, trainer.weights, cos, sin, shape.layers).early
        found = attention_scores(early, trainer.weights, batch.links, cos, sin).softmax(-1)
        seen = model(input_ids=batch.ids, output_attentions=True).attentions[GATHERED]
    expected = seen[batch.links[:, 0], 0, batch.links[:, 1]]
    assert torch.allclose(found, expected, atol=1e-5)


def test_a_short_run_writes_a_model_that_loads_and_can_go_on(tmp_path: Path) -> None:
    settings = {"size": "small", "tokens": 400, "every": 2, "compiled": False, "workers": 0, "probed": 4}
    train(tmp_path / "a", steps=2, **settings)
    train(tmp_path / "b", steps=3, resume=tmp_path / "a" / "run" / "last.pt", **settings)
    train(tmp_path / "c", steps=1, start=tmp_path / "b", **settings)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "b", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "b")
    assert isinstance(model, Qwen3ForCausalLM)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Context: a\nQuestion: b"}], tokenize=False, add_generation_prompt=True
    )
    assert text == "<|user|> Context: a\n Question: b<|end|><|assistant|>"
    assert model(torch.tensor([tokenizer.encode(text)])).logits.isfinite().all()
    assert (tmp_path / "a" / "run" / "curves.jsonl").exists()


def test_an_example_is_a_conversation() -> None:
    for make in TASKS.values():
        example = make(Draw(random.Random(1), Difficulty()))
        assert isinstance(example, Example)
        assert all(turn.user and turn.answer for turn in example.turns)
