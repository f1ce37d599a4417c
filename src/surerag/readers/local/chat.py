"""Turn prompts into token ids, with chat templates and switches for thinking; document text stays text.

A document may contain ``<|im_end|>`` or other text that a tokenizer takes for a control token. The model must
treat such text as plain characters. So a conversation with such text is rendered around place-holders, each
message is encoded by itself, and any text that looks like a control token is encoded in two parts. The
tokenizer encodes all other conversations as usual.
"""

from __future__ import annotations

import json
import re
import secrets
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from surerag.errors import ConfigurationError, InputError
from surerag.messages import Message, Prompt, as_messages
from surerag.readers.pieces import CHANNEL, begun_thoughts, mentions_thoughts

# The mark is random in every process, so that no document can contain it; the model never sees the mark.
_MARK = f"\U000f5a10{secrets.token_hex(8)}"
_QUESTION = (Message("user", "x"),)
# Qwen3, SmolLM3, GLM and most templates use the first name; DeepSeek-V3.1 and Granite use the second.
_SWITCHES = ("enable_thinking", "thinking")

ThinkingMode = Literal["none", "off", "apart"]


class PromptEncoder:
    """Encodes prompts as the model was trained to see them.

    The arguments are those of ``TransformersReader``.

    Attributes:
        thinking: As in :class:`surerag.readers.protocol.Capabilities`.
        expects_thoughts: Whether an answer begins with thoughts, even if the prompt has no opening mark of
            thoughts.
        options: Variables for the chat template.

    Raises:
        ConfigurationError: If a setting or the template cannot work.
    """

    thinking: ThinkingMode

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat_template: bool = True,
        options: Mapping[str, Any] | None = None,
        thinking: bool | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._template = str(tokenizer.chat_template or "") if chat_template else ""
        self.options = dict(options or {})
        _check_options(self.options, bool(self._template))
        switch = self._switch() if self._template else None
        on = self._switch_value(switch, thinking)
        if switch is not None:
            self.options = {switch: on, **self.options}
        self.thinking, self.expects_thoughts = self._how_it_thinks(on, thinking)

    def _how_it_thinks(self, on: bool | None, requested: bool | None) -> tuple[ThinkingMode, bool]:
        """Return the values of the attributes ``thinking`` and ``expects_thoughts``.

        Args:
            on: Value of the template's switch for thinking; None if the template has no switch.
            requested: The user's setting ``thinking``.
        """
        prompt = self._render(_QUESTION, self.options) if self._template else ""
        if on is False and not begun_thoughts(prompt):
            return "off", False
        chosen = bool(on) or requested is True
        if not chosen and not mentions_thoughts(str(self._tokenizer.chat_template or "")):
            return "none", False
        return "apart", chosen or CHANNEL in self._template

    def _switch_value(self, switch: str | None, thinking: bool | None) -> bool | None:
        """Return the value of the template variable that switches thinking; None without such a variable."""
        on = None if switch is None else bool(self.options.get(switch, thinking))
        if thinking is not None and on is not None and on is not thinking:
            raise ConfigurationError(
                f"thinking={thinking} contradicts template_options={self.options}",
                hint="leave out thinking or template_options",
            )
        if thinking is False and switch is None:
            raise ConfigurationError(
                f"the chat template has no switch for thinking ({' or '.join(_SWITCHES)})",
                hint="leave out thinking=False: the reader separates thoughts from answers. If the template "
                "has another variable for thinking, set it: template_options={'reasoning_effort': 'low'}",
            )
        return on

    def _switch(self) -> str | None:
        """Return the template variable that switches thinking; None without such a variable."""
        for name in _SWITCHES:
            if re.search(rf"\b{name}\b", self._template):
                on, off = (self._render(_QUESTION, {**self.options, name: value}) for value in (True, False))
                if on != off:
                    return name
        return None

    def encode(self, prompt: Prompt) -> tuple[list[int], str]:
        """Return a prompt's token ids, and the mark at its end that opens the thoughts, such as ``<think>``.

        If the prompt does not end with a mark, the second value is empty.

        Raises:
            InputError: If the prompt has no tokens.
        """
        messages = as_messages(prompt)
        ids = self._encode(messages)
        if not ids:
            raise InputError("a prompt has no tokens", hint="pass a prompt that is not empty")
        if not self._template:
            return ids, ""
        rendered = self._render(messages, self.options)
        # Only the text that the template writes after the last message counts, because messages may hold
        # marks. If this text depends on the messages, the prompt's last line counts.
        own = rendered.endswith(self._template_ending)
        return ids, begun_thoughts(self._template_ending if own else rendered.rstrip().rpartition("\n")[2])

    def count(self, text: str) -> int:
        """Return how many tokens a text has, not counting tokens that a chat template would add."""
        return len(self._encode_plain(text))

    def _encode(self, messages: Sequence[Message]) -> list[int]:
        texts = [message.content for message in messages]
        if not self._template:
            return [*self._opening, *self._encode_plain("\n\n".join(texts))]
        if not self._finds_disguised_tokens and not self._pattern.search("\n".join(texts)):
            return self._ids(self._render(messages, self.options))
        marked = [Message(m.role, f"{_MARK}{i}." if m.content else "") for i, m in enumerate(messages)]
        parts = re.split(rf"{_MARK}([0-9]+)\.", self._render(marked, self.options))
        pieces = [self._encode_plain(texts[int(p)]) if i % 2 else self._ids(p) for i, p in enumerate(parts)]
        return [i for piece in pieces for i in piece]

    def _render(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        try:
            try:
                return self._apply(messages, options)
            except TemplateError:
                # Some templates have no system role: the system text then opens the first user turn.
                if len(messages) < 2 or messages[0].role != "system":
                    raise
                system, user, *rest = messages
                merged = Message(user.role, f"{system.content}\n\n{user.content}")
                return self._apply([merged, *rest], options)
        except Exception as error:
            raise ConfigurationError(
                f"the tokenizer's chat template fails: {error}",
                hint="correct the template, pass chat_template=False, or use only the template's roles",
            ) from error

    def _apply(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        turns = [message._asdict() for message in messages]
        return str(
            self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **options)
        )

    def _ids(self, text: str) -> list[int]:
        # A tokenizer does not accept a lone surrogate.
        text = text.encode(errors="replace").decode()
        return (
            list(self._tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]) if text else []
        )

    def _encode_plain(self, text: str) -> list[int]:
        """Encode a text so that no part of the text becomes a control token."""
        control = self._pattern.search(text)
        if control is not None:
            cut = control.start() + 1
            return self._encode_plain(text[:cut]) + self._encode_plain(text[cut:])
        ids = self._ids(text)
        if self._finds_disguised_tokens and not self._control_ids.isdisjoint(ids):
            return [i for character in text for i in self._ids(character)]
        return ids

    @cached_property
    def _template_ending(self) -> str:
        """Text with which the template ends a prompt whose last message is the user's."""
        return self._render((Message("user", _MARK),), self.options).rpartition(_MARK)[2]

    @cached_property
    def _opening(self) -> list[int]:
        """Ids that the tokenizer puts before a plain text, such as the begin token."""
        bare, whole = self._ids("a"), list(self._tokenizer("a")["input_ids"])
        starts = range(len(whole) - len(bare) + 1)
        return next((whole[:start] for start in starts if whole[start : start + len(bare)] == bare), [])

    @cached_property
    def _control_tokens(self) -> dict[str, bool]:
        """Texts of control tokens; the value tells whether the tokenizer also finds normalised spellings.

        The texts include the template's markup. Added words such as ``C++`` and runs of spaces are no control
        tokens.
        """
        controls = {}
        for token in self._tokenizer.added_tokens_decoder.values():
            text = token.content
            brackets = set(unicodedata.normalize("NFKC", text)) & set("<>[]{}|")
            markup = text in self._template and text.strip() and not text.strip().isalnum()
            if token.special or brackets or markup:
                controls[text] = token.normalized
        return controls

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        texts = sorted({*self._control_tokens, *self._tokenizer.all_special_tokens}, key=len, reverse=True)
        return re.compile("|".join(map(re.escape, texts)) or r"(?!)")

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        vocabulary = self._tokenizer.get_vocab()
        # The token for unknown words is no control token.
        return frozenset(vocabulary[text] for text in self._control_tokens) - {self._tokenizer.unk_token_id}

    @cached_property
    def _finds_disguised_tokens(self) -> bool:
        """Whether the tokenizer also finds control tokens in capitals or full-width letters."""
        fast = self._tokenizer.is_fast and self._tokenizer.backend_tokenizer.normalizer is not None
        return fast and any(self._control_tokens.values())


def _check_options(options: Mapping[str, Any], templated: bool) -> None:
    if options and not templated:
        raise ConfigurationError(
            "there is no chat template in use that takes template_options", hint="leave template_options out"
        )
    try:
        plain = json.loads(json.dumps(options, allow_nan=False)) == options
    except (TypeError, ValueError):
        plain = False
    if not plain:
        raise ConfigurationError(
            f"template_options must be plain values by name, as JSON has them, got {options!r}",
            hint="such as {'enable_thinking': False}",
        )


def describe_options(options: Mapping[str, Any]) -> str:
    """Return a template's variables as part of a model's name; empty if there are none.

    Example:
        >>> describe_options({"enable_thinking": False})
        '(enable_thinking=false)'
    """
    text = ",".join(f"{name}={json.dumps(options[name], sort_keys=True)}" for name in sorted(options))
    return f"({text})" if text else ""
