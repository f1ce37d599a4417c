"""From prompts to tokens and back: templates, control tokens in documents, whole characters, stop texts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from surerag.errors import ConfigurationError
from surerag.messages import Message, Prompt, SamplingParams, as_messages
from surerag.readers.local import TransformersReader
from surerag.readers.local.chat import PromptEncoder
from surerag.readers.local.sequences import Detokenizer, Vocabulary
from tests.readers.local.support import ONE, reader_of, traced
from tests.readers.tiny_models import (
    BEGIN,
    BEGIN_ID,
    END,
    END_ID,
    PAD,
    ROLE,
    ROLE_ID,
    metaspace_tokenizer,
    tiny_model,
    tiny_tokenizer,
)

CONVERSATION = (Message("system", "Be brief."), Message("user", "Where?"), Message("assistant", "In Velm."))


def ids_of(encoder: PromptEncoder, prompt: Prompt) -> list[int]:
    return encoder.encode(prompt)[0]


def applied(tokenizer: Any, prompt: Prompt) -> list[int]:
    turns = [message._asdict() for message in as_messages(prompt)]
    return list(tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False))


@pytest.mark.parametrize("prompt", ["Where?", "  spaces \n stay ", "Ünïcödé 🙂", CONVERSATION])
def test_prompts_are_encoded_as_the_chat_template_does(prompt: Prompt) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    assert ids_of(PromptEncoder(tokenizer), prompt) == applied(tokenizer, prompt)


@pytest.mark.parametrize("control", [BEGIN, END, PAD, ROLE])
@pytest.mark.parametrize("shape", ["{}", "a {} b", "{}{}", "x{}", "<|en{}d|>"])
def test_control_tokens_in_a_document_are_plain_text(control: str, shape: str) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    document = shape.replace("{}", control)
    ids, harmless = (ids_of(PromptEncoder(tokenizer), text) for text in (document, "harmless"))
    assert [i for i in ids if i >= BEGIN_ID] == [i for i in harmless if i >= BEGIN_ID]
    # Nothing is lost, and the template's own tokens stand where they stood.
    assert tokenizer.decode(ids) == tokenizer.decode(harmless).replace("harmless", document)


@pytest.mark.parametrize("chat", [True, False])
def test_control_tokens_are_text_in_prompts(chat: bool) -> None:
    encoder = PromptEncoder(tiny_tokenizer(chat=chat))
    if not chat:
        ids = ids_of(encoder, f"so {END} it is")
        assert END_ID not in ids
        assert tiny_tokenizer().decode(ids) == f"so {END} it is"
    controls = [[i for i in ids_of(encoder, text) if i >= BEGIN_ID] for text in ("q", f"q {ROLE}")]
    assert controls[0] == controls[1]


@pytest.mark.parametrize("document", ["In</s>Velm", "Where <s>is</s>", "[INST] In", "<unk>In"])
def test_tokenizers_with_pieces_for_their_control_tokens_are_guarded_too(document: str) -> None:
    tokenizer = metaspace_tokenizer()
    encoder = PromptEncoder(tokenizer)
    mark = tokenizer.convert_tokens_to_ids("[INST]")
    assert ids_of(encoder, "In Velm") == applied(tokenizer, "In Velm")
    assert [i for i in ids_of(encoder, document) if i in {0, 1, mark}] == [0, mark, 1]
    assert ids_of(PromptEncoder(tokenizer, chat_template=False), document).count(0) == 1


def test_tokenizers_in_python_are_guarded_too() -> None:
    tokenizer = ByT5Tokenizer(extra_ids=0)
    tokenizer.chat_template = "{{ messages[0]['content'] }}</s>"
    ids = ids_of(PromptEncoder(tokenizer), "Velm</s>, Örn")
    assert ids.count(tokenizer.eos_token_id) == 1
    detokenizer = Detokenizer(Vocabulary.of(tokenizer, frozenset()).decode)
    assert "".join(detokenizer.feed(i) for i in ids) == "Velm</s>, Örn"


def disguising(normalizer: Any, *, special: bool) -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    names = ("<|im_end|>", "<|im_start|>", "<|fim_prefix|>")
    tokenizer.add_tokens([AddedToken(name, special=special, normalized=True) for name in names])
    tokenizer.add_tokens([AddedToken("C++", special=False, normalized=False)])
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    return tokenizer


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("normalizer", [None, normalizers.NFKC(), normalizers.Lowercase()])
def test_control_tokens_in_disguise_are_plain_text(normalizer: Any, special: bool) -> None:
    tokenizer = disguising(normalizer, special=special)
    encoder = PromptEncoder(tokenizer)
    controls = set(tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|im_start|>", "<|fim_prefix|>"]))
    for text in ("<|im_end|>", "\uff1c|im_end|\uff1e", "<|IM_END|>", "<|Fim_Prefix|> a <|im_start|>"):
        found = [i for i in ids_of(encoder, f"a {text} b") if i in controls]
        assert found == [i for i in ids_of(encoder, "Velm") if i in controls]
    word = tokenizer.convert_tokens_to_ids("C++")
    assert ids_of(encoder, "In C++ <|im_end|>").count(word) == 1


def test_plain_prompts_begin_as_the_tokenizer_begins_a_text() -> None:
    tokenizer = metaspace_tokenizer()
    assert ids_of(PromptEncoder(tokenizer), "In Velm").count(0) == 1
    plain = PromptEncoder(tokenizer, chat_template=False)
    assert ids_of(plain, "In Velm") == tokenizer("In Velm")["input_ids"]
    joined = ids_of(PromptEncoder(tiny_tokenizer(chat=True), chat_template=False), CONVERSATION)
    assert tiny_tokenizer().decode(joined) == "Be brief.\n\nWhere?\n\nIn Velm."


def test_a_template_without_a_system_role_gets_it_in_the_first_turn() -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = (
        "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "{{ messages[0]['content'] }}|"
    )
    assert tokenizer.decode(ids_of(PromptEncoder(tokenizer), CONVERSATION)) == "Be brief.\n\nWhere?|"


@pytest.mark.parametrize("template", ["{% for %}", "{{ raise_exception('no') }}", "{{ 1 + 'a' }}"])
def test_a_broken_template_is_refused_at_construction(template: str) -> None:
    tokenizer = tiny_tokenizer(chat=True)
    tokenizer.chat_template = template
    with pytest.raises(ConfigurationError, match="chat template fails") as caught:
        TransformersReader(tiny_model("llama"), tokenizer)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("make", [tiny_tokenizer, metaspace_tokenizer])
@given(data=st.data())
def test_pieces_join_to_the_text_of_any_tokens(make: Any, data: Any) -> None:
    tokenizer = make()
    ids = data.draw(st.lists(st.integers(0, min(ROLE_ID, len(tokenizer) - 1)), max_size=30))
    detokenizer = Detokenizer(Vocabulary.of(tokenizer, frozenset()).decode)
    pieces = [detokenizer.feed(i) for i in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids, skip_special_tokens=True)
    assert not any(piece.endswith("\ufffd") for piece in pieces)


@pytest.fixture(scope="module")
def reader() -> TransformersReader:
    return reader_of(chat=True)


def test_a_stop_text_ends_the_answer_and_its_trace(reader: TransformersReader) -> None:
    whole = reader.generate(["Where?"], ONE)[0][0]
    first, second, *_ = whole.text.split()
    # The stop text begins inside one token and ends inside the next.
    stop = f"{first[-1]} {second[0]}"
    cut = reader.generate(["Where?"], replace(ONE, stop=("never", stop)))[0][0]
    assert (cut.text, cut.finish) == (whole.text[: whole.text.find(stop)].strip(), "stop")
    # The token that reaches into the stop text counts, its text up to there.
    assert "".join(traced(cut).tokens).strip() == cut.text
    assert traced(cut).logprobs == traced(whole).logprobs[: len(traced(cut))]
    nothing = reader.generate(["Where?"], replace(ONE, stop=(f" {first}",)))[0][0]
    assert (nothing.text, nothing.finish, len(traced(nothing))) == ("", "empty", 0)


@pytest.mark.parametrize("stop", [(), ("zzz",), (" ",)])
def test_streams_join_to_the_text(reader: TransformersReader, stop: tuple[str, ...]) -> None:
    sampling = replace(ONE, stop=stop)
    whole = reader.generate(["Where?"], sampling)[0][0]
    chunks = list(reader.stream("Where?", sampling))
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert [chunk.generation for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].generation == whole


def test_streams_show_whole_characters_and_no_part_of_a_stop_text() -> None:
    model, tokenizer = tiny_model("llama"), tiny_tokenizer()
    script = tokenizer("né 🙂 so END", add_special_tokens=False)["input_ids"]
    prompt = tokenizer("?")["input_ids"]
    reader = TransformersReader(model, tokenizer)

    def recite(module: Any, inputs: Any, keywords: dict[str, Any], output: Any) -> Any:
        step = int(keywords.get("position_ids", torch.zeros(1)).max()) + 1 - len(prompt)
        token = torch.full_like(output.logits[..., 0], script[min(step, len(script) - 1)], dtype=torch.long)
        output.logits = torch.nn.functional.one_hot(token, output.logits.shape[-1]).float()
        return output

    hook = model.register_forward_hook(recite, with_kwargs=True)
    try:
        chunks = list(reader.stream("?", SamplingParams(max_tokens=len(script), stop=(" END",))))
    finally:
        hook.remove()
    assert "".join(chunk.text for chunk in chunks) == "né 🙂 so"
    assert not any("\ufffd" in chunk.text or "E" in chunk.text for chunk in chunks)
    assert len([chunk for chunk in chunks if chunk.text]) > 3
