"""Token ids to train on: the prompt as the reader encodes it, and what the model is to say after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from surerag.errors import ConfigurationError
from surerag.readers.transformers.encoding import PromptEncoder
from surerag.types import Message


class RewriteEncoder:
    """Encodes prompts and rewrites as the rewriter will see and say them.

    The prompt comes from the reader's own encoder, so that training and use cannot differ, and what looks
    like a control token in a query stays text. The rewrite is what the chat template makes of the
    assistant's turn, up to the token that ends it. Without a template it stands on a line of its own after
    the prompt, and the tokenizer's end token follows.

    Args:
        tokenizer: The base's tokenizer.
        template_options: Variables of its chat template.

    Attributes:
        variables: Of the chat template, as training sets them; thinking is off where it can be.

    Raises:
        ConfigurationError: If the tokenizer has no end token, or the template opens thoughts.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_options: Mapping[str, Any]) -> None:
        if not isinstance(tokenizer.eos_token_id, int):
            raise ConfigurationError(
                "the base's tokenizer has no end token, so that a rewrite would never end",
                hint="set its eos_token and save it, or take another base",
            )
        self._tokenizer = tokenizer
        self._prompts = PromptEncoder(tokenizer, template_options=template_options)
        self.variables: Mapping[str, Any] = dict(self._prompts.manner.options)
        if opened := self._prompts.read("a").opened:
            raise ConfigurationError(
                f"the base's chat template opens thoughts ({opened}) whatever it is told",
                hint="a rewriter answers at once: take a base whose thinking can be switched off",
            )
        self._whole = PromptEncoder(tokenizer, render=self._rendered) if tokenizer.chat_template else None
        self._ends = set(tokenizer.all_special_ids)
        self._end = tokenizer.eos_token_id

    def prompt(self, prompt: str) -> list[int]:
        """Return the ids of a prompt, up to where the rewrite begins."""
        return self._prompts.encode(prompt)

    def rewrite(self, prompt: str, rewrite: str) -> list[int]:
        """Return the ids of a rewrite after a prompt, the end token included."""
        if self._whole is None:
            return [*self._prompts.encode_with(prompt, f"\n{rewrite}"), self._end]
        before = self._prompts.encode(prompt)
        both = self._whole.encode((Message("user", prompt), Message("assistant", rewrite)))
        if both[: len(before)] != before:
            # Some templates write a turn that is to be answered in another way than one that was.
            return [*self._prompts.encode_with(prompt, rewrite), self._end]
        after = both[len(before) :]
        last = max((place for place, token in enumerate(after) if token in self._ends), default=None)
        return [*after, self._end] if last is None else after[: last + 1]

    @property
    def end(self) -> int:
        """The token that ends a rewrite."""
        return self.rewrite("a", "b")[-1]

    def _rendered(self, messages: Sequence[Message]) -> str:
        turns = [{"role": message.role, "content": message.content} for message in messages]
        return str(self._tokenizer.apply_chat_template(turns, tokenize=False, **self.variables))
