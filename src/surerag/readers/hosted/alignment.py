"""Where the tokens of an answer begin among those of the thoughts before it; no I/O.

Some servers list the log-probabilities of everything that the model said, thoughts and marks included, beside
a text that is the answer alone. Others leave both in the text. The text decides: the tokens of the answer are
those that spell it.
"""

from __future__ import annotations

from collections.abc import Sequence

from surerag.readers.hosted.spelling import Token, spelled
from surerag.readers.thinking import CLOSING_MARKS


def is_closing(token: str) -> bool:
    """Whether a token is a mark after which an answer may stand.

    Example:
        >>> is_closing("</think>"), is_closing(" think")
        (True, False)
    """
    return token.strip() in CLOSING_MARKS


def after_head(head: str, tokens: Sequence[Token]) -> int | None:
    r"""Return how many tokens spell the thoughts that a text begins with, and the white space after them.

    Returns:
        Where the answer's tokens begin; None if the tokens spell other thoughts.

    Example:
        >>> said = [Token("<think>"), Token("Hm."), Token("</think>"), Token("\n\n"), Token("Velm")]
        >>> after_head("<think>Hm.</think>", said)
        4
    """
    found = spelled(head, tokens)
    return _past_space(tokens, found.tokens) if found is not None and found.whole else None


def answer_start(answer: str, tokens: Sequence[Token]) -> int | None:
    r"""Return where the tokens of an answer begin in a list that may cover its thoughts as well.

    They begin after the last mark that closes thoughts, if they then spell the answer; otherwise at the last
    place from which they do.

    Returns:
        That place; None if the end of the list does not spell the answer.

    Example:
        >>> said = [Token("Velm"), Token("?"), Token("</think>"), Token("\n"), Token("Velm"), Token("<end>")]
        >>> answer_start("Velm", said), answer_start("Velm", said[4:]), answer_start("Orun", said)
        (4, 0, None)
    """
    marks = [place for place, token in enumerate(tokens, start=1) if is_closing(token.text)]
    starts = list(range(len(tokens), -1, -1))
    if marks:
        starts.insert(0, _past_space(tokens, marks[-1]))
    for start in starts:
        found = spelled(answer, tokens[start:])
        if found is not None and found.whole:
            return start
    return None


def _past_space(tokens: Sequence[Token], start: int) -> int:
    while start < len(tokens) and tokens[start].text.isspace():
        start += 1
    return start
