"""Checks of a compression: detect replies without content, and sentences that no source supports."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from surerag.effects import ENTAILMENT, Program
from surerag.messages import Pair
from surerag.methods.edc2.options import Guard
from surerag.methods.edc2.overlap import WORD, names_in, overlap_support, word_share
from surerag.methods.shared import judge
from surerag.prompts import NOTHING_TO_EXTRACT
from surerag.text import UNSPACED, split_sentences

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
_BUT = re.compile(r",? (?:but|however|except|although|though)\b,? ?", re.IGNORECASE)
_SENTINEL = NOTHING_TO_EXTRACT.casefold()
_FRAME = " \t\r\n\"'`*_.!。“”„«»「」()[]<>"


def is_empty_extraction(text: str) -> bool:
    """Return whether a reply is empty, or only says that the documents contain nothing relevant.

    A sentence about "they" is kept, because "they" may be persons.

    Example:
        >>> is_empty_extraction("No content to extract."), is_empty_extraction("They do not mention her.")
        (True, False)
        >>> is_empty_extraction("The documents do not mention her.")
        True
        >>> is_empty_extraction("No evidence of life was found on Mars.")
        False
        >>> is_empty_extraction("The documents do not mention her birth, but say that she lived in Velm.")
        False
    """
    return all(_says_nothing(part.text) for part in split_sentences(text))


def _says_nothing(sentence: str) -> bool:
    bare = sentence.strip(_FRAME).replace("’", "'")
    clauses = _BUT.split(bare)
    return not bare or bare.casefold() == _SENTINEL or all(map(_REFUSAL.fullmatch, clauses))


_NUMBER = r"\[\d{1,2}(?:, ?\d{1,2})*\]"
_NUMBERS = re.compile(rf"[^\S\n]*{_NUMBER}|^[^\S\n]*(?:\d{{1,2}}[.)]|[-*•])[^\S\n]+", re.MULTILINE)
_SAME_CHARACTERS = 8
"""A list mark is kept only if the mark and this number of following characters also occur in a source."""
_ONLY_NUMBERS = re.compile(
    rf"(?:\W*(?:and|(?:the )?(?:passages?|documents?))?\W*{_NUMBER})+\W*", re.IGNORECASE
)


def named_passages(text: str, n: int) -> list[int]:
    """Return the positions of the passages whose numbers a reply lists.

    The list is empty if the reply contains anything other than passage numbers and words such as "Documents".

    Args:
        text: The reply.
        n: Number of passages in the prompt.

    Returns:
        The positions, from 0; the prompt numbers the passages from 1.

    Example:
        >>> named_passages("Documents [1] and [3].", 3), named_passages("[1] Ada was born in Velm.", 3)
        ([0, 2], [])
    """
    if not _ONLY_NUMBERS.fullmatch(text.strip()):
        return []
    numbers = dict.fromkeys(int(number) for number in re.findall(r"\d+", text))
    return [number - 1 for number in numbers if 1 <= number <= n]


def without_numbers(text: str, sources: Sequence[str] = ()) -> str:
    """Remove passage numbers such as ``[1]`` and list marks such as ``1.`` from a reply.

    A list mark stays if a source contains the mark before the same words, because the mark may belong to the
    text.

    Example:
        >>> without_numbers("[1] Ada was born in Velm [2]. She left [in 1815].")
        'Ada was born in Velm. She left [in 1815].'
        >>> without_numbers("1. Ada was born in 1815.")
        'Ada was born in 1815.'
        >>> without_numbers("1. Mai 1815: Ada wird geboren.", ["Chronik: 1. Mai 1815: Ada wird geboren."])
        '1. Mai 1815: Ada wird geboren.'
    """

    def replaced(mark: re.Match[str]) -> str:
        begin = text[mark.start() : mark.end() + _SAME_CHARACTERS].strip()
        return mark[0] if "[" not in mark[0] and any(begin in source for source in sources) else ""

    return _NUMBERS.sub(replaced, text).strip()


_QUOTATION = re.compile(
    r"[“„]([^“”]*)(?:[“”]|$)|«([^»]*)(?:»|$)|\"([^\"]*)(?:\"|$)|「([^」]*)(?:」|$)|『([^』]*)(?:』|$)"
)
_QUOTED_WORDS = 3
_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")


def quotations(sentence: str) -> list[str]:
    """Return the quotations that a sentence contains, except quotations of one or two words.

    In a script without spaces between words, two letters count as one word.

    Example:
        >>> quotations('It says: "Ada was born in Velm."'), quotations('She wrote "Tin Roofs" in Velm.')
        (['Ada was born in Velm.'], [])
        >>> quotations("书上说「艾达出生在维尔姆」。"), quotations("她住在「维尔姆」。")
        (['艾达出生在维尔姆'], [])
    """
    pieces = ("".join(filter(None, match.groups())) for match in _QUOTATION.finditer(sentence))
    return [
        piece.strip()
        for piece in pieces
        if max(len(piece.split()), len(_UNSPACED_LETTER.findall(piece)) // 2) >= _QUOTED_WORDS
    ]


def whole_sentences(piece: str, texts: Sequence[str]) -> list[str]:
    """Return the whole sentences of ``texts`` that contain ``piece``.

    If no sentence contains ``piece``, return the sentences that contain the quotations in
    ``piece``, or else ``[piece]``. Models that are told to copy sentences often copy only a part, such as a
    name.

    Example:
        >>> texts = ["Ada was born in Velm. She painted.", "Bo left Velm."]
        >>> whole_sentences("Velm", texts), whole_sentences("It says: “was born in Velm”.", texts)
        (['Ada was born in Velm.', 'Bo left Velm.'], ['Ada was born in Velm.'])
        >>> whole_sentences("In Orun.", texts)
        ['In Orun.']
    """
    sentences = {one.text: _words_of(one.text) for text in texts for one in split_sentences(text)}
    for part in ([piece], quotations(piece)):
        keys = [words for words in map(_words_of, part) if words.strip()]
        containing = [text for text, words in sentences.items() if any(key in words for key in keys)]
        if containing:
            return containing
    return [piece]


def nearest_sentence(piece: str, texts: Sequence[str], least: float = 0.5) -> tuple[int, str] | None:
    """Return the position of a text, and the sentence of this text with the most words of ``piece``.

    If several sentences contain equally many words of ``piece``, return the sentence with the fewest other
    words. Return None if each sentence contains less than the share ``least`` of the words of ``piece``.

    Example:
        >>> texts = ["She painted.", "Ada, a painter, was born in Velm. She left Velm."]
        >>> nearest_sentence("Ada was not born in Velm.", texts)
        (1, 'Ada, a painter, was born in Velm.')
        >>> nearest_sentence("Bo lived in Tarn.", texts) is None
        True
    """
    candidates = [
        (word_share(piece, one.text), word_share(one.text, piece), -place, one.text)
        for place, text in enumerate(texts)
        for one in split_sentences(text)
    ]
    share, _, place, sentence = max(candidates, default=(0.0, 0.0, 0, ""))
    return (-place, sentence) if share >= max(least, 1e-9) else None


def _words_of(text: str) -> str:
    return f" {' '.join(WORD.findall(unicodedata.normalize('NFKC', text).casefold()))} "


class Claim(NamedTuple):
    """A sentence of a compression, and the texts that may support it."""

    sentence: str
    sources: Sequence[str]


ENTAILMENT_SUPPORT = 0.6
"""Minimum probability of entailment at which a source supports a sentence."""


def supporting_sources(claims: Sequence[Claim], guard: Guard, question: str) -> Program[list[int | None]]:
    """Return, for each claim, the position of the source that supports the claim best, or None.

    With the guard ``"overlap"``, words that are names in the question or in another claim count as names in
    each claim. A source that does not contain all names of a claim does not support the claim.
    """
    if guard == "entailment":
        pairs = dict.fromkeys(Pair(source, claim.sentence) for claim in claims for source in claim.sources)
        rows = (yield from judge(list(pairs))).rows
        scores = [[float(rows[s, claim.sentence][ENTAILMENT]) for s in claim.sources] for claim in claims]
        return [_best(row, ENTAILMENT_SUPPORT) for row in scores]
    names = names_in(question).union(*(names_in(claim.sentence) for claim in claims))
    return [
        _best([overlap_support(claim.sentence, source, names) for source in claim.sources], 1e-9)
        for claim in claims
    ]


def _best(scores: Sequence[float], smallest: float) -> int | None:
    best = max(range(len(scores)), key=lambda place: scores[place])
    return best if scores[best] >= smallest else None
