"""The embedded reader's tokenizer: byte-level BPE in which every word of the closed world is one token."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import NamedTuple

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from surerag.world.lexicon import Kind, nicknames, words
from surerag.world.relations import RELATIONS
from surerag_studies.reader.drawing import Difficulty, Draw
from surerag_studies.reader.tasks import TASKS

PAD, END, USER, ASSISTANT, SYSTEM = "<|pad|>", "<|end|>", "<|user|>", "<|assistant|>", "<|system|>"
WINDOW = 2048


class Marks(NamedTuple):
    """Ids of the special tokens."""

    pad: int
    end: int
    user: int
    assistant: int


def marks(tokenizer: PreTrainedTokenizerFast) -> Marks:
    """Look up the special tokens."""
    ids = tokenizer.get_vocab()
    return Marks(*(ids[token] for token in (PAD, END, USER, ASSISTANT)))


CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|> ' + message['content'].replace('\\n', '\\n ') + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def build_tokenizer(vocabulary: int = 4096) -> PreTrainedTokenizerFast:
    """Learn merges until every word of the world is whole.

    The split into words is GPT-2's, which other runtimes know by that name. A space stands before the
    first word of a text (the tokenizer puts it there) and of a line (the chat template does), so that a
    word has the same token wherever it stands.

    Args:
        vocabulary: Upper bound on the number of tokens.

    Returns:
        The tokenizer, with its chat template.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=[PAD, END, USER, ASSISTANT, SYSTEM],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(), trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[USER, ASSISTANT, SYSTEM],
        chat_template=CHAT_TEMPLATE,
        model_max_length=WINDOW,
        clean_up_tokenization_spaces=False,
    )


def _texts() -> Iterator[str]:
    """Yield each distinct word a few times: every word must be learnt, common or not."""
    found = {f" {word}" for kind in Kind for word in words(kind)} | {
        f" {word}" for word in nicknames().values()
    }
    rng = random.Random("surerag.training tokenizer")
    texts = [" ".join((*r.nouns, *r.statements, *r.questions, *r.vague)) for r in RELATIONS]
    for make in TASKS.values():
        for _ in range(300):
            texts += [
                text for turn in make(Draw(rng, Difficulty())).turns for text in (turn.user, turn.answer)
            ]
    for text in texts:
        plain = re.sub(r"\{\w\}", " ", text)
        found.update(f" {word}" for word in re.findall(r"[A-Za-z]+", plain))
    for word in sorted(found):
        yield " ".join([word] * 2)
