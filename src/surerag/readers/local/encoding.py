"""From prompts to token ids: chat templates, and document text that stays text.

A document may contain ``<|im_end|>`` or whatever else a tokenizer takes for a control token. Such
text must reach the model as plain characters. So control tokens inside messages are set aside while
the template is rendered, the template's own ones are renamed to something no text contains, and a
copy of the tokenizer that knows only the new names encodes the result: everything else, spaces around
control tokens included, comes out as the tokenizer itself would do it.

Some tokenizers look for control tokens in normalised text, and find one in ``<|IM_END|>``, or where the
brackets are full-width characters. Which texts they take for one cannot be read from the tokens. There,
what comes out is looked at: if it holds a control token that the template did not write, the copy encodes
the text.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, cast

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase

from surerag.errors import InputError
from surerag.messages import Message, Prompt, as_messages
from surerag.readers.local.templates import ChatTemplate, Manner, Render, manner_without_template
from surerag.readers.thinking import open_mark

_BRACKETS = frozenset("<>[]{}|")

# The other names stand between these. They are drawn anew in every process, so that no document can
# contain them, on purpose or not; they never reach the model.
_NONCE = secrets.token_hex(8)
_OPEN, _CLOSE = f"\U000f5a10{_NONCE}.", f".{_NONCE}\U000f5a11"


class Encoded(NamedTuple):
    """A prompt as the model reads it.

    Attributes:
        ids: Its tokens.
        opened: The mark of the thoughts that it opens and does not close; empty if there are none.
    """

    ids: list[int]
    opened: str


class PromptEncoder:
    """Encodes prompts as the model was trained to see them.

    Args:
        tokenizer: The model's tokenizer.
        chat_template: Whether to use its chat template, if it has one.
        template_options: Further variables of the template, such as ``enable_thinking``.
        render: What writes prompts in place of the template.
        thinking: Whether the model shall think; None switches it off where the template can do that.

    Attributes:
        manner: What is settled about thinking.

    Raises:
        ConfigurationError: If a setting cannot work.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: bool = True,
        template_options: Mapping[str, Any] | None = None,
        render: Render | None = None,
        thinking: bool | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._own = render
        self._template: ChatTemplate | None = None
        options = template_options or {}
        if render is None and chat_template and tokenizer.chat_template:
            self._template = ChatTemplate(tokenizer, options, thinking)
            self.manner: Manner = self._template.manner
        else:
            self.manner = manner_without_template(tokenizer, options, thinking, render)
        self._templated = render is not None or self._template is not None
        # What stands behind the last message, for prompts and for prompts that an unthought answer follows.
        self._endings: dict[bool, str] = {}

    def encode(self, prompt: Prompt, *, unthought: bool = False) -> list[int]:
        """Return the token ids of a prompt, ready to be answered.

        Args:
            prompt: What is asked.
            unthought: Whether an answer shall follow before which nothing was thought.

        Raises:
            InputError: If nothing is left to read.
        """
        return self.read(prompt, unthought=unthought).ids

    def read(self, prompt: Prompt, *, unthought: bool = False) -> Encoded:
        """Like :meth:`encode`, and tell whether the prompt leaves thoughts open."""
        encoded = self._encode(prompt, "", unthought)
        if not encoded.ids:
            raise InputError("a prompt has no tokens", hint="ask something")
        return encoded

    def encode_with(self, prompt: Prompt, continuation: str, *, unthought: bool = False) -> list[int]:
        """Return the ids of what follows the prompt when both stand in one text.

        Where the last token of the prompt and the first of the continuation would fuse, the
        continuation is encoded by itself, so that the prompt stays what :meth:`encode` makes of it.
        """
        before = self._encode(prompt, "", unthought).ids
        both = self._encode(prompt, continuation, unthought).ids
        if both[: len(before)] == before:
            return both[len(before) :]
        # Behind a line break, so that tokenizers that begin a text with a space do not add one.
        anchor = self._plain("\n")
        behind = self._plain("\n" + continuation)
        return behind[len(anchor) :] if behind[: len(anchor)] == anchor else self._plain(continuation)

    def count(self, text: str) -> int:
        """Return how many tokens a text has by itself."""
        return len(self._plain(text))

    def _encode(self, prompt: Prompt, continuation: str, unthought: bool) -> Encoded:
        messages = as_messages(prompt)
        if not self._templated:
            text = "\n\n".join(message.content for message in messages)
            return Encoded([*self._opening, *self._plain(text + continuation)], "")
        aside = _SetAside(self._controls.pattern)
        hidden = [Message(m.role, aside.hide(m.content)) for m in messages]
        rendered = self._render(hidden, unthought)
        opened = self._open_mark(rendered, unthought)
        continuation = aside.hide(continuation)
        if not aside.found:
            ids = self._ids(rendered + continuation)
            if not self._controls.in_disguise or self._controls.among(ids) == self._written(
                messages, unthought
            ):
                return Encoded(ids, opened)
        text = aside.restore(self._guarded.rename(rendered) + continuation)
        return Encoded(self._guarded.encode(text), opened)

    def _written(self, messages: Sequence[Message], unthought: bool) -> list[int]:
        """Return the ids of the control tokens that the template itself writes around such messages."""
        blank = [Message(m.role, f"{_CLOSE}0{_OPEN}" if m.content.strip() else m.content) for m in messages]
        return self._controls.among(self._ids(self._render(blank, unthought)))

    def _render(self, messages: Sequence[Message], unthought: bool) -> str:
        if self._own is not None:
            return self._opened(self._own(messages))
        if self._template is None:
            raise RuntimeError("plain text is not rendered")
        return self._template.render(messages, unthought=unthought)

    def _open_mark(self, rendered: str, unthought: bool) -> str:
        """Return the mark of thoughts that the template, not a message, leaves open."""
        if unthought not in self._endings:
            asked = self._render((Message("user", _OPEN),), unthought)
            self._endings[unthought] = asked[asked.rfind(_OPEN) + len(_OPEN) :]
        ending = self._endings[unthought]
        if rendered.endswith(ending):
            return open_mark(ending)
        # Some templates end according to what was said.
        return open_mark("\n".join(rendered.rstrip().splitlines()[-1:]))

    def _opened(self, text: str) -> str:
        """Begin a text as the tokenizer begins one, unless it does already."""
        opening = str(self._tokenizer.decode(self._opening)) if self._opening else ""
        return text if text.startswith(opening) else opening + text

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

    def _plain(self, text: str) -> list[int]:
        if not self._controls.pattern.search(text):
            ids = self._ids(text)
            if not self._controls.in_disguise or not self._controls.among(ids):
                return ids
        return self._guarded.encode(text)

    @cached_property
    def _opening(self) -> list[int]:
        """Ids that the tokenizer puts before a plain text, such as the begin token."""
        bare = self._ids("a")
        dressed = list(self._tokenizer("a")["input_ids"])
        for start in range(len(dressed) - len(bare) + 1):
            if dressed[start : start + len(bare)] == bare:
                return dressed[:start]
        return []

    @cached_property
    def _controls(self) -> _Controls:
        template = str(self._tokenizer.chat_template or "") if self._templated else ""
        # Which markup a function writes cannot be read from it, so all that the tokenizer knows counts.
        found = {
            token.content: token.normalized
            for token in self._tokenizer.added_tokens_decoder.values()
            if token.special
            or _is_bracketed(token.content)
            or (_is_markup(token.content) and (self._own is not None or token.content in template))
        }
        normalizes = self._tokenizer.is_fast and self._tokenizer.backend_tokenizer.normalizer is not None
        ids = cast("list[int]", self._tokenizer.convert_tokens_to_ids(list(found)))
        return _Controls(
            tuple(sorted({*found, *self._tokenizer.all_special_tokens}, key=len, reverse=True)),
            # Unknown words are no attempt at anything.
            frozenset(ids) - {self._tokenizer.unk_token_id},
            normalizes and any(found.values()),
        )

    @cached_property
    def _guarded(self) -> _GuardedTokenizer | _SplitTokenizer:
        if self._tokenizer.is_fast:
            return _GuardedTokenizer(self._tokenizer, self._controls)
        return _SplitTokenizer(self._tokenizer, self._controls)


class _Controls:
    """What a tokenizer would not read as text: special tokens, the template's markup, and what looks like it.

    Attributes:
        texts: As they are written, the longest first.
        in_disguise: Whether other texts than these are taken for them.
        pattern: Finds them as they are written.
    """

    def __init__(self, texts: tuple[str, ...], ids: frozenset[int], in_disguise: bool) -> None:
        self.texts = texts
        self.in_disguise = in_disguise
        self.pattern = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        self._ids = ids

    def among(self, ids: Iterable[int]) -> list[int]:
        """Return those ids that belong to control tokens, in order."""
        return [i for i in ids if i in self._ids]


def _is_markup(text: str) -> bool:
    # Added words and runs of spaces are text; they need no guard.
    return bool(text.strip()) and not text.strip().isalnum()


def _is_bracketed(text: str) -> bool:
    # Added words such as "COVID-19" and "C++" stay words; "<|fim_prefix|>" and "[PREFIX]" command a model.
    return any(mark in _BRACKETS for mark in unicodedata.normalize("NFKC", text))


class _SetAside:
    """Takes control texts out of messages while a template is rendered, and puts them back."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern
        self.found: list[str] = []

    def hide(self, text: str) -> str:
        return self._pattern.sub(self._replace, text)

    def restore(self, text: str) -> str:
        marks = re.compile(f"{re.escape(_CLOSE)}([0-9]+){re.escape(_OPEN)}")
        return marks.sub(lambda match: self.found[int(match.group(1))], text)

    def _replace(self, match: re.Match[str]) -> str:
        self.found.append(match.group(0))
        # Close before open, so that a mark can never be taken for a renamed control token.
        return f"{_CLOSE}{len(self.found) - 1}{_OPEN}"


class _GuardedTokenizer:
    """A copy of a fast tokenizer in which every control token goes by another name."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: _Controls) -> None:
        self._names = {control: f"{_OPEN}{i}{_CLOSE}" for i, control in enumerate(controls.texts)}
        self._pattern = controls.pattern
        settings = json.loads(tokenizer.backend_tokenizer.to_str())
        for token in settings["added_tokens"]:
            token["content"] = self._renamed(token["content"])
        _rename_vocabulary(settings["model"], self._names)
        settings["post_processor"] = settings["truncation"] = settings["padding"] = None
        self._backend = Tokenizer.from_str(json.dumps(settings))
        # Names that are not in the model's own vocabulary are numbered anew when the copy is made.
        self._ids = {
            new: old
            for control, name in self._names.items()
            if (new := self._backend.token_to_id(name)) is not None
            and isinstance(old := tokenizer.convert_tokens_to_ids(control), int)
        }

    def rename(self, text: str) -> str:
        """Give the control tokens of rendered template text their other names."""
        return self._pattern.sub(lambda match: self._names[match.group(0)], text)

    def encode(self, text: str) -> list[int]:
        """Encode text in which only renamed control tokens count as such."""
        return [self._ids.get(i, i) for i in self._backend.encode(text, add_special_tokens=False).ids]

    def _renamed(self, content: str) -> str:
        return self._names.get(content, content)


def _rename_vocabulary(model: dict[str, Any], names: Mapping[str, str]) -> None:
    vocabulary = model.get("vocab")
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(piece, piece): i for piece, i in vocabulary.items()}
    elif isinstance(vocabulary, list):
        model["vocab"] = [[names.get(piece, piece), score] for piece, score in vocabulary]
    if "merges" in model:
        # A merge into a piece that bears another name now would make it of plain text, if it could.
        model["merges"] = [merge for merge in model["merges"] if not _pieces(merge) & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]


def _pieces(merge: str | list[str]) -> set[str]:
    """Return what is merged, and what into."""
    pair = merge.split(" ") if isinstance(merge, str) else merge
    return {*pair, "".join(pair)}


class _SplitTokenizer:
    """The same for tokenizers in Python: encodes the text between control tokens piece by piece."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, controls: _Controls) -> None:
        self._tokenizer = tokenizer
        self._controls = controls.texts
        self._ids = cast("list[int]", tokenizer.convert_tokens_to_ids(list(controls.texts)))
        self._pattern = controls.pattern

    def rename(self, text: str) -> str:
        """Mark the control tokens of rendered template text."""
        return self._pattern.sub(lambda match: f"{_OPEN}{self._controls.index(match.group(0))}{_CLOSE}", text)

    def encode(self, text: str) -> list[int]:
        """Encode text in which only marked control tokens count as such."""
        ids: list[int] = []
        for place, piece in enumerate(re.split(f"{re.escape(_OPEN)}([0-9]+){re.escape(_CLOSE)}", text)):
            if place % 2:
                ids.append(self._ids[int(piece)])
            elif piece:
                encoded = self._tokenizer(piece, add_special_tokens=False, split_special_tokens=True)
                ids += encoded["input_ids"]
        return ids
