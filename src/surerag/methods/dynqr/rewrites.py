"""Extract the rewritten query from a rewriter's reply, and merge the passages of two queries."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal, NamedTuple

from surerag.messages import Generation, Passage

Problem = Literal["empty", "the question again", "too long", "a refusal", "thoughts", "unreadable"]

_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "„": "“", "«": "»", "「": "」", "『": "』"}
_FRAME = " \t\r\n\"'`*.?!…“”„«»「」『』。！？؟۔।¿¡"  # noqa: RUF001

_GREETING = re.compile(
    r"(?:sure|certainly|of course|okay|ok|absolutely)(?: thing)?\s*[!.,:]+\s*", re.IGNORECASE
)
_LABEL = re.compile(
    r"(?:here(?:'s|’s| is| are) )?(?:(?:the|a|your|some|one|my) )?"
    r"(?:(?:rewritten|rewrite|revised|rephrased|reformulated|improved|standalone|stand-alone|search|better|"
    r"clearer|more specific|new)\s+)*(?:query|queries|questions?|rewrites?|rewritten|output)"
    r"(?: (?:is|would be|could be|for|of|in|that)\b[^.:?!\n]{0,60})?\s*:\s*",
    re.IGNORECASE,
)
_ITEM = re.compile(r"(?:\d{1,2}[.)]|[-*•])\s+")
_FENCE = re.compile(r"```\w*$")
_BOLD = re.compile(r"(\*\*|__)([^*_\n]+)\1")
_COMMENT = (
    r"(?:explanation|notes?:|reason(?:ing)?:|rationale|justification|let me know|feel free"
    r"|(?:this|the) (?:rewrite|rewritten|rephrased|revised|original query|query (?:is|now|adds|asks)|version)"
    r"|i (?:have |[’']ve )?(?:made|added|kept|replaced|changed|rewrote|rephrased|removed|clarified))"
)
_COMMENT_LINE = re.compile(rf"[\W_]{{0,5}}{_COMMENT}\b", re.IGNORECASE)
_COMMENT_BEHIND = re.compile(
    rf"(?<=[?.!\"”'»])\s+[\W_]{{0,5}}{_COMMENT}.*$|\s*[(\[]{_COMMENT}[^)\]]*[)\]]\s*$", re.IGNORECASE
)
_REFUSAL = re.compile(
    r"[\W_]{0,5}(?:(?:i['’]?m|i am|we are) (?:sorry|afraid|unable|not able)|sorry(?:[,.!]| (?:but|i|for)\b)"
    r"|apologies|i apologi[sz]e|i (?:cannot|can['’]?t|can not|could not|won['’]?t|do not|don['’]?t)\b"
    r"|unfortunately,|as an? (?:ai|language model)|there is (?:no|not enough) (?:context|information)"
    r"|please (?:provide|clarify|share|specify)\b)",
    re.IGNORECASE,
)
_THOUGHTS = re.compile(r"\s*<(think|thinking|thought|reasoning)>.*?</\1>", re.IGNORECASE | re.DOTALL)
_THOUGHT_OPENS = re.compile(r"\s*<(?:think|thinking|thought|reasoning)>", re.IGNORECASE)


class Rewrite(NamedTuple):
    """A rewritten query, with the problem that makes it unusable; ``problem`` is None for a usable query."""

    text: str
    problem: Problem | None = None


def read_rewrite(reply: Generation, query: str, max_words: int) -> Rewrite:
    """Extract the rewritten query from a rewriter's reply.

    Thoughts, greetings, labels ("Rewritten query:"), Markdown, list numbers, quotes and explanations are
    removed, and lines are joined. Of several queries, the first is returned. The rewrite has a problem if it
    is empty, repeats ``query``, has more than ``max_words`` words, was truncated, or is an English refusal.

    Example:
        >>> read_rewrite(Generation('Rewritten query: "Where was Ada born?"'), "Where was she born?", 64)
        Rewrite(text='Where was Ada born?', problem=None)
        >>> read_rewrite(Generation("where was Ada  born"), "Where was Ada born?", 64).problem
        'the question again'
        >>> read_rewrite(Generation("I'm sorry, but I need more context."), "Where?", 64).problem
        'a refusal'
    """
    text = reply.text.encode("utf-8", errors="replace").decode("utf-8")
    if text != reply.text:
        return Rewrite(_joined(text), "unreadable")
    answer = _THOUGHTS.sub("", text, count=1) if _THOUGHTS.match(text) else text
    if _THOUGHT_OPENS.match(answer):
        return Rewrite(_joined(answer), "thoughts")
    rewrite = _unframed(answer)
    if not rewrite.strip(_FRAME):
        return Rewrite("", "empty" if answer is text else "thoughts")
    if _bare(rewrite) == _bare(query):
        return Rewrite(rewrite, "the question again")
    # A query may begin like a refusal: "I cannot log in".
    if _REFUSAL.match(rewrite) and not _REFUSAL.match(query):
        return Rewrite(rewrite, "a refusal")
    if reply.is_cut or len(rewrite.split()) > max_words:
        return Rewrite(rewrite, "too long")
    return Rewrite(rewrite)


def alternated(first: Sequence[Passage], second: Sequence[Passage], top_n: int | None) -> list[Passage]:
    """Merge two lists of passages by taking one passage from each list in turn (EXPAND, section 3.2).

    Repeated texts are left out. At most ``top_n`` passages are returned, or as many as in the longer list if
    ``top_n`` is None.

    Example:
        >>> a, b, c = (Passage(text) for text in "abc")
        >>> "".join(passage.text for passage in alternated([a, b], [b, c], 3))
        'abc'
    """
    limit = max(len(first), len(second)) if top_n is None else top_n
    texts: dict[str, Passage] = {}
    for pair in zip_longest(first, second):
        for passage in pair:
            if passage is not None:
                texts.setdefault(passage.text, passage)
    return list(texts.values())[:limit]


def _unframed(answer: str) -> str:
    parts: list[str] = []
    lines = _BOLD.sub(r"\2", answer).strip().splitlines()
    for place, line in enumerate(map(str.strip, lines), start=1):
        item = _ITEM.match(line)
        text = line[item.end() :] if item else line
        if parts and (not text or item or _COMMENT_LINE.match(text)):
            break
        text = text if parts else _without(_LABEL, _without(_GREETING, text))
        if not parts and _announces(text) and place < len(lines):
            continue
        if text and not _FENCE.match(text):
            parts.append(text.lstrip("# "))
    return _unquoted(_COMMENT_BEHIND.sub("", _joined(" ".join(parts))))


def _announces(line: str) -> bool:
    return line.endswith(":") or (line.startswith("#") and not line.endswith("?"))


def _without(label: re.Pattern[str], text: str) -> str:
    match = label.match(text)
    return text[match.end() :] if match else text


def _joined(text: str) -> str:
    return " ".join(text.split())


def _unquoted(text: str) -> str:
    inner = text[1:-1]
    framed = len(text) > 1 and _QUOTES.get(text[0]) == text[-1]
    return inner.strip() if framed and text[0] not in inner and text[-1] not in inner else text


def _bare(text: str) -> str:
    return " ".join(text.strip(_FRAME).casefold().split())
