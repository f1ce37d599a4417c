"""How prompts become one text, and what is settled there about thinking.

Many chat templates have a switch for thinking: a variable, under one of two names. Whether a name is a
switch cannot be read off a template's text, where it may be a local variable or part of a message; so a
template that holds the name writes a small conversation both ways, and it is one if that makes a difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from surerag.errors import ConfigurationError
from surerag.messages import Message
from surerag.readers.thinking import CHANNEL, ThoughtSplitter, open_mark, mentions_thoughts

Render = Callable[[Sequence[Message]], str]
"""Writes a conversation as one text, control tokens included, up to where the answer begins."""

SWITCHES = ("enable_thinking", "thinking")
"""Variables by which templates switch thinking on and off: Qwen3, SmolLM3, GLM, Gemma 4 and most others have
the first, DeepSeek-V3.1 and Granite the second."""

_OURS = frozenset(
    "conversation messages chat_template add_generation_prompt continue_final_message tokenize padding "
    "truncation max_length return_tensors return_dict return_assistant_tokens_mask sanitize_control_tokens "
    "tokenizer_kwargs".split()
)
# Longer descriptions of variables would make a name unreadable; they are hashed.
_SHORT = 60
_ASKED = (Message("user", "x"),)
# Stands for an answer where a template is asked what it writes before one; no template contains it.
_ANSWER = "\U000f5a12"


class Manner(NamedTuple):
    """How a model is asked, as far as thinking goes.

    Attributes:
        thinking: As in :class:`surerag.readers.protocol.Capabilities`.
        expected: Whether an answer is known to begin with thoughts, even if the prompt does not open them.
        scores: Whether it is known how an answer begins that nothing was thought before.
        options: Variables that the template is given.
    """

    thinking: Literal["none", "off", "apart"]
    expected: bool
    scores: bool
    options: Mapping[str, Any]


class ChatTemplate:
    """A tokenizer's chat template, with its variables settled.

    Args:
        tokenizer: Whose template it is.
        options: Variables that the caller sets.
        thinking: Whether the model shall think; None switches it off where that can be done.

    Raises:
        ConfigurationError: If a variable cannot be set, or thinking not be switched as asked.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], thinking: bool | None
    ) -> None:
        self._tokenizer = tokenizer
        text = str(tokenizer.chat_template)
        _check(options)
        switch = self._switch(text, options)
        on = _switched(switch, options, thinking)
        self._options = dict(options) if switch is None or on is None else {**options, switch: on}
        # A template that opens thoughts all the same has not switched them off.
        off = on is False and not open_mark(self._write(_ASKED, self._options))
        thinks = not off and (bool(on) or thinking is True or mentions_thoughts(text))
        # The variables, and the text after the prompt, with which an answer follows without any thought.
        self._unthought: tuple[Mapping[str, Any], str] | None = (self._options, "")
        if thinks and switch is not None:
            self._unthought = ({**options, switch: False}, "")
        elif thinks:
            block = self._empty_thought()
            self._unthought = None if block is None else (self._options, block)
        self.manner = Manner(
            "off" if off else "apart" if thinks else "none",
            thinks and (bool(on) or thinking is True or CHANNEL in text),
            self._unthought is not None,
            self._options,
        )

    def render(self, messages: Sequence[Message], *, unthought: bool = False) -> str:
        """Write a conversation, up to where the model goes on.

        Args:
            messages: The turns.
            unthought: Whether up to where an answer follows that nothing was thought before.
        """
        if unthought and self._unthought is not None:
            options, block = self._unthought
            return self._write(messages, options) + block
        return self._write(messages, self._options)

    def _write(self, messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        try:
            return self._apply(messages, options)
        except TemplateError:
            # Some templates know no system role: its text then opens the first user turn.
            if not messages or messages[0].role != "system" or len(messages) == 1:
                raise
            system, user, *rest = messages
            merged = Message(user.role, f"{system.content}\n\n{user.content}")
            return self._apply([merged, *rest], options)

    def _apply(
        self, messages: Sequence[Message], options: Mapping[str, Any], *, answered: bool = False
    ) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return str(
            self._tokenizer.apply_chat_template(
                turns, tokenize=False, add_generation_prompt=not answered, **options
            )
        )

    def _switch(self, text: str, options: Mapping[str, Any]) -> str | None:
        """Return the variable that switches thinking, if there is one."""
        for name in SWITCHES:
            if re.search(rf"\b{name}\b", text):
                try:
                    on, off = (self._apply(_ASKED, {**options, name: value}) for value in (True, False))
                except TemplateError:
                    # A template that does not take this conversation fails on others as well, and says why.
                    continue
                if on != off:
                    return name
        return None

    def _empty_thought(self) -> str | None:
        """Return what the template itself writes between the prompt and an answer without thoughts."""
        try:
            asked = self._apply(_ASKED, self._options)
            whole = self._apply((*_ASKED, Message("assistant", _ANSWER)), self._options, answered=True)
        except TemplateError:
            return None
        before = whole[: whole.find(_ANSWER)]
        thoughts = ThoughtSplitter(opened=open_mark(asked))
        thoughts.feed(before[len(asked) :])
        return before[len(asked) :] if before.startswith(asked) and thoughts.closed else None


def manner_without_template(
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, Any],
    thinking: bool | None,
    render: Render | None,
) -> Manner:
    """Return how a model is asked where the caller writes the prompts, or they are plain text.

    Raises:
        ConfigurationError: If something is set that only a template could heed.
    """
    if options or thinking is False:
        raise ConfigurationError(
            "there is no chat template in use that could heed "
            + ("template_options" if options else "thinking=False"),
            hint="leave it out; thoughts are told from answers all the same",
        )
    opened = render is not None and bool(open_mark(render(_ASKED)))
    apart = thinking is True or opened or mentions_thoughts(str(tokenizer.chat_template or ""))
    # After a plain text the model goes on, it does not answer: nothing is thought before.
    scores = not apart or (render is None and not thinking)
    return Manner("apart" if apart else "none", bool(thinking), scores, {})


def _switched(switch: str | None, options: Mapping[str, Any], thinking: bool | None) -> bool | None:
    """Return whether the switch is to be on or off; None where there is none."""
    if switch is None:
        if thinking is False:
            raise ConfigurationError(
                f"the chat template has no switch for thinking ({' or '.join(SWITCHES)})",
                hint="leave thinking=False out: thoughts are told from answers. Where the template knows "
                "another variable, set it, such as template_options={'reasoning_effort': 'low'}",
            )
        return None
    if switch not in options:
        return bool(thinking)
    if thinking is not None and bool(options[switch]) is not thinking:
        raise ConfigurationError(
            f"thinking={thinking} contradicts template_options={{{switch!r}: {options[switch]!r}}}",
            hint="leave one of them out",
        )
    return bool(options[switch])


def _check(options: Mapping[str, Any]) -> None:
    """Refuse variables that are no plain values, or are not the caller's to set."""
    taken = sorted(_OURS & options.keys())
    if taken:
        raise ConfigurationError(
            f"template_options may not set {', '.join(taken)}",
            hint="only variables of the chat template go there",
        )
    try:
        plain = json.loads(json.dumps(dict(options))) == options
    except (TypeError, ValueError):
        plain = False
    if not plain:
        raise ConfigurationError(
            f"template_options must be plain values by name, as JSON has them, got {dict(options)!r}",
            hint="such as {'enable_thinking': False}",
        )


def variables(options: Mapping[str, Any]) -> str:
    """Return a template's variables as part of a model's name; empty if there are none.

    Example:
        >>> variables({"enable_thinking": False})
        '(enable_thinking=false)'
    """
    text = ",".join(f"{name}={json.dumps(options[name], sort_keys=True)}" for name in sorted(options))
    if len(text) > _SHORT:
        text = hashlib.sha256(text.encode()).hexdigest()[:10]
    return f"({text})" if text else ""
