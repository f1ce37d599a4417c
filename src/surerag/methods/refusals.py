"""When a model says that there is nothing to extract."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal

from surerag.prompts import NOTHING_TO_EXTRACT

NothingRule = Literal["anchored", "sentinel", "legacy"]
"""``"sentinel"``: the agreed words alone (the paper). ``"anchored"``: those, or a reply of which every
sentence is a refusal. ``"legacy"``: any of many substrings anywhere, even "?" (the authors' code)."""

_LEGACY = (
    "No content to",
    "no content to",
    "I'm sorry",
    "I am sorry",
    "I can not provide",
    "I can't provide",
    "Could you clarify",
    "Sorry, I",
    "?",
)

_CANNOT = r"cannot|can't|can not|could not|couldn't|did not|didn't|do not|don't|am unable to"
_TELL = r"contain|mention|provide|include|address|state|say|give|discuss|specify"
_TEXTS = r"(?:documents?|passages?|texts?|contexts?|references?|sources?)"
_THESE = rf"(?:the|these|this) (?:\w+ )?{_TEXTS}"
_MATTER = (
    r"(?:there (?:is|are|was|were) )?no(?: \w+){0,2} "
    r"(?:content|information|details?|answers?|evidence|mention|passages?|documents?)"
)
_REFUSALS = (
    r"none|n/a|nothing(?: relevant)?(?: (?:to extract|found))?",
    rf"{_MATTER}(?: (?:to extract|found|available|provided|given|relevant.*|that .*))?",
    rf"{_MATTER}\b.*\b(?:in|from) (?:the|these|any of the) (?:\w+ )?{_TEXTS}\b.*",
    r"there (?:is|are|was|were) no(?: \w+){0,2} (?:content|information|details?|mention) (?:about|of|on)\b.*",
    rf"{_THESE} (?:do|does|did)(?: not|n't) (?:{_TELL})\b.*",
    rf"{_THESE} (?:(?:{_TELL})s? (?:no|nothing)\b|(?:is|are) not relevant).*",
    rf"none of {_THESE} (?:{_TELL})s?\b.*",
    r"(?:i am |i'm )?sorry\b.*",
    rf"i (?:{_CANNOT}) (?:find|extract|provide|answer|identify|see|know|have)\b.*",
)
_REFUSAL = re.compile("|".join(f"(?:{pattern})" for pattern in _REFUSALS), re.IGNORECASE | re.DOTALL)
_SENTINEL = NOTHING_TO_EXTRACT.casefold()
_FRAME = " \t\r\n\"'`*.!“”"


def says_nothing(text: str, rule: NothingRule, split: Callable[[str], list[str]]) -> bool:
    """Tell whether a reply means that the documents hold nothing relevant; an empty one always does.

    Args:
        text: The model's reply.
        rule: How to tell.
        split: Sentences of a text.

    Example:
        >>> split = str.splitlines
        >>> says_nothing("No content to extract.", "sentinel", split)
        True
        >>> says_nothing("The documents do not mention her.", "anchored", split)
        True
        >>> says_nothing("No evidence of life was found on Mars.", "anchored", split)
        False
        >>> says_nothing("He asked: who goes there?", "legacy", split)
        True
    """
    if not text.strip(_FRAME):
        return True
    if rule == "legacy":
        return any(mark in text for mark in _LEGACY)
    if text.strip(_FRAME).casefold() == _SENTINEL:
        return True
    return rule == "anchored" and all(_refuses(sentence) for sentence in split(text))


def _refuses(sentence: str) -> bool:
    bare = sentence.strip(_FRAME).replace("’", "'")
    return bare.casefold() == _SENTINEL or _REFUSAL.fullmatch(bare) is not None
