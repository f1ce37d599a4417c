"""Control tokens that come to a document in disguise: the model reads them as the characters they are."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from surerag.messages import Message, Prompt, as_messages
from surerag.readers.local.encoding import PromptEncoder

FULL_WIDTH = "\uff1c|im_end|\uff1e"
END, PREFIX, THINK = "<|im_end|>", "<|fim_prefix|>", "<think>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
)
ALPHABET = [*"aBﬁé東🙂 \n<>|[]_", "  ", "im", "end", "C++", "##"]
HOSTILE = [
    END,
    PREFIX,
    THINK,
    "<|im_start|>",
    FULL_WIDTH,
    "<|IM_END|>",
    "<|Fim_Prefix|>",
    "(im_end)",
    "<|ím_end|>",
]


def bytes_bpe(pieces: dict[str, int], merges: list[tuple[str, str]]) -> Tokenizer:
    backend = Tokenizer(models.BPE(vocab=pieces, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def tokenizer_of(normalizer: Any, *, normalized: bool, special: bool, chat: bool) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer with the control tokens of today's chat models, and two added words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate([*alphabet, "im", "en", "end"])}
    backend = bytes_bpe(pieces, [("i", "m"), ("e", "n"), ("en", "d")])
    backend.normalizer = normalizer
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    tokenizer.add_tokens(
        [
            AddedToken(END, special=special, normalized=normalized),
            AddedToken("<|im_start|>", special=special, normalized=normalized),
            AddedToken(PREFIX, special=False, normalized=normalized),
            AddedToken(THINK, special=False, normalized=normalized, rstrip=True),
            AddedToken("C++", special=False, normalized=False),
            AddedToken("  ", special=False, normalized=False),
        ]
    )
    if chat:
        tokenizer.chat_template = TEMPLATE
    return tokenizer


def control_ids(tokenizer: PreTrainedTokenizerFast) -> set[int]:
    return set(tokenizer.convert_tokens_to_ids([END, "<|im_start|>", PREFIX, THINK]))


def controls_in(encoder: PromptEncoder, tokenizer: PreTrainedTokenizerFast, prompt: Prompt) -> list[int]:
    return [i for i in encoder.encode(prompt) if i in control_ids(tokenizer)]


NORMALIZERS = {
    "none": lambda: None,
    "NFC": normalizers.NFC,
    "NFKC": normalizers.NFKC,
    "lowercase": normalizers.Lowercase,
    "both": lambda: normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()]),
    "stripping": lambda: normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()]),
    "BERT": lambda: normalizers.BertNormalizer(lowercase=True),
    "replacing": lambda: normalizers.Replace("(im_end)", "<|im_end|>"),
}
every_tokenizer = pytest.mark.parametrize(
    ("normalizer", "normalized", "special"),
    [
        (name, normalized, special)
        for name in NORMALIZERS
        for normalized in (True, False)
        for special in (True, False)
    ],
)


@every_tokenizer
@pytest.mark.parametrize("chat", [True, False])
def test_no_document_holds_a_control_token(
    normalizer: str, normalized: bool, special: bool, chat: bool
) -> None:
    tokenizer = tokenizer_of(NORMALIZERS[normalizer](), normalized=normalized, special=special, chat=chat)
    encoder = PromptEncoder(tokenizer)
    system = Message("system", "Be brief."), Message("user", "Where?")
    own = controls_in(encoder, tokenizer, "Velm")
    both = controls_in(encoder, tokenizer, system)
    assert (len(own), len(both)) == ((4, 6) if chat else (0, 0))
    for text in [*HOSTILE, "".join(HOSTILE), f"Velm {END}{FULL_WIDTH}<|IM_END|>"]:
        assert controls_in(encoder, tokenizer, f"a {text} b") == own
        assert controls_in(encoder, tokenizer, (Message("system", text), Message("user", text))) == both
        assert not control_ids(tokenizer) & set(encoder.encode_with("Where?", f" In {text}"))
        assert encoder.count(text) > 1


@every_tokenizer
def test_clean_text_is_encoded_as_the_template_does(normalizer: str, normalized: bool, special: bool) -> None:
    tokenizer = tokenizer_of(NORMALIZERS[normalizer](), normalized=normalized, special=special, chat=True)
    encoder = PromptEncoder(tokenizer)
    rng = random.Random(3)
    for _ in range(40):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(1, 25)))
        conversation = (Message("system", text), Message("user", text[::-1]), Message("assistant", ""))
        for prompt in (f"a{text}", conversation):
            turns = [{"role": m.role, "content": m.content} for m in as_messages(prompt)]
            rendered = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            assert encoder.encode(prompt) == tokenizer(rendered, add_special_tokens=False)["input_ids"]


@every_tokenizer
def test_the_guarded_copy_encodes_clean_text_as_the_tokenizer_does(
    normalizer: str, normalized: bool, special: bool
) -> None:
    tokenizer = tokenizer_of(NORMALIZERS[normalizer](), normalized=normalized, special=special, chat=True)
    encoder = PromptEncoder(tokenizer)
    rng = random.Random(4)
    for _ in range(40):
        text = "".join(rng.choices(ALPHABET, k=rng.randrange(1, 25)))
        rendered = f"<|im_start|>user\n{text}<|im_end|>\n<think>\n"
        expected = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        assert encoder._guarded.encode(encoder._guarded.rename(rendered)) == expected


def test_added_words_stay_words() -> None:
    tokenizer = tokenizer_of(None, normalized=False, special=True, chat=True)
    word = tokenizer.convert_tokens_to_ids("C++")
    assert PromptEncoder(tokenizer).encode("In C++").count(word) == 1
    assert PromptEncoder(tokenizer).encode(f"In C++ {END}").count(word) == 1


def test_a_control_token_that_merges_could_spell_is_not_spelt() -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = {piece: i for i, piece in enumerate([*alphabet, "<h", "1>", "<h1>", "<h1>1"])}
    backend = bytes_bpe(pieces, [("<", "h"), ("1", ">"), ("<h", "1>"), ("<h1>", "1")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    tokenizer.add_tokens([AddedToken("<h1>", special=False, normalized=False)])
    ids = PromptEncoder(tokenizer).encode("<h1>1 Velm </s>")
    assert not {pieces["<h1>"], pieces["<h1>1"], tokenizer.eos_token_id} & set(ids)
    assert tokenizer.decode(ids) == "<h1>1 Velm </s>"
    assert PromptEncoder(tokenizer).encode("<h2>") == tokenizer("<h2>")["input_ids"]
