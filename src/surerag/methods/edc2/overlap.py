"""Check whether a source supports a sentence, by words, names, numbers and negations, without a model.

The check is strict. Up to three successive sentences of the source together must contain most words, all
names and all numbers of the sentence. A name or number must also follow the same word in the source as in the
sentence.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal, NamedTuple

from surerag.text import UNSPACED, split_sentences

WORD = re.compile(rf"[{UNSPACED}]|[^\W_{UNSPACED}]+")
_TOGETHER = 3
"""Maximum number of successive sentences of a source that together may support one sentence."""
_TOKEN = re.compile(rf"{WORD.pattern}|[.,;:!?]")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:[,'’\u00a0\u2009\u202f]\d{3})+|(?:\.\d{3}){2,})(?!\d)")
"""Pattern of a number with digit groups such as 1,200. A single point is taken for a decimal point."""
_COMMON = frozenset(
    "a all also an and are as at be been both but by did do does for from had has have he her his however "
    "i in is it its me my of on or our s she so some than that the their them then there these they this "
    "those to was we were when where which while who will with would you your".split()
)
_DENIALS = frozenset(
    "not no never none neither nor nobody nothing without cannot hardly nicht kein keine keinen keiner "
    "nie niemals ohne pas jamais aucun aucune sans nunca jamás sin non mai senza não nem sem не нет ни "
    "никогда без nigdy bez 不 没 沒 未 无 無 非".split()
)
_NUMERALS = frozenset(
    "two three four five six seven eight nine ten eleven twelve dozen twenty thirty forty fifty hundred "
    "thousand million billion first second third fourth fifth".split()
)
_JAPANESE_DENIAL = re.compile("ない|なかった|ません|ず、")
_CONTRACTED = re.compile(r"n['’]t\b", re.IGNORECASE)
_SAME_BEGINNING, _OF_LENGTH = 4, 0.55
"""Minimum length of the common prefix of two forms of a word: in letters, and as share of the longer form."""

Kind = Literal["word", "name", "number", "letter", "common", "denial", "mark"]


class _Token(NamedTuple):
    text: str
    kind: Kind


def overlap_support(sentence: str, source: str, names: Collection[str] = ()) -> float:
    """Return the share of a sentence's content words that a source contains; 0 without support.

    The source supports the sentence if it contains all names and numbers of the sentence, and more than half
    of the other content words. Each name or number must follow the same word in both texts, and both texts
    must negate the same words. A name is a word with a capital letter. The first word of a sentence is a name
    only if neither text has it in lower case, and it is not a common word such as "she". 1,200 and 1200 are
    the same number.

    Args:
        sentence: The sentence.
        source: The text that may support the sentence.
        names: Further words that count as names, in lower case (see :func:`names_in`).

    Example:
        >>> overlap_support("She was born in Velm.", "Ada was born in Velm in 1815.")
        1.0
        >>> overlap_support("Ada was born in Orun.", "Ada was born in Velm in 1815.")
        0.0
        >>> overlap_support("Ada was not born in Velm.", "Ada was born in Velm in 1815.")
        0.0
        >>> overlap_support("Ada moved to Velm.", "Ada was born in Velm and moved to Orun.")
        0.0
        >>> overlap_support("It cost 1,200 dollars.", "The bridge cost 1200 dollars.")
        1.0
        >>> overlap_support("Bo was born in Velm.", "Ada was born in Velm.", names_in("Where was Bo born?"))
        0.0
    """
    of_source, of_sentence = _read(source), _read(sentence)
    without_capital = of_source.words | of_sentence.words
    begin = {word for word in of_source.begin | of_sentence.begin if word not in without_capital}
    all_names = frozenset(names) | of_source.names | of_sentence.names | begin
    claim = _tokens(sentence, all_names)
    strict = {token.text for token in claim if token.kind in ("name", "number", "letter")}
    if not strict <= of_source.all:
        return 0.0
    if bool(_JAPANESE_DENIAL.search(sentence)) > bool(_JAPANESE_DENIAL.search(source)):
        return 0.0
    return max((_share(claim, unit) for unit in _units(source, all_names)), default=0.0)


def names_in(text: str) -> set[str]:
    """Return, in lower case, the capitalised words of a text, except the first word of each sentence.

    Example:
        >>> sorted(names_in("The town of Velm is old. Its mayor, Bo, paints."))
        ['bo', 'velm']
    """
    names, begins = set(), True
    for token in _TOKEN.findall(_composed(text)):
        if token[0].isupper() and not begins:
            names.add(token.casefold())
        begins = not token[0].isalnum() and token not in (",", ";")
    return names


class _Reading(NamedTuple):
    sentences: tuple[str, ...]
    words: frozenset[str]
    all: frozenset[str]  # the words in lower case
    begin: frozenset[str]  # the first words of sentences, in lower case
    names: frozenset[str]  # in lower case


@lru_cache(maxsize=1024)
def _read(text: str) -> _Reading:
    plain = _plain(text)
    sentences = tuple(one.text for one in split_sentences(text))
    words = frozenset(WORD.findall(plain))
    begin = {match[0].casefold() for one in sentences if (match := WORD.search(_composed(one)))}
    names = frozenset(names_in(text))
    every = frozenset(map(str.casefold, words))
    return _Reading(sentences, words, every, frozenset(begin - _COMMON - _DENIALS - _NUMERALS), names)


def _plain(text: str) -> str:
    """Return a text with uniform spelling: Unicode NFKC, no thousands separators, and "not" for "n't"."""
    composed = _CONTRACTED.sub(" not", _composed(text))
    return _GROUPED.sub(lambda number: re.sub(r"\D", "", number[0]), composed)


def word_share(sentence: str, source: str) -> float:
    """Return the share of a sentence's content words, names and numbers that a source contains anywhere.

    Example:
        >>> word_share("Ada was not born in Orun.", "Ada was born in Velm.")
        0.6666666666666666
    """
    content = [token.text for token in _tokens(sentence, frozenset()) if token.kind in _CONTENT]
    there = _read(source).all
    return sum(word in there for word in content) / len(content) if content else 0.0


_STRICT = ("name", "number", "letter")
"""Kinds of tokens that a source must contain unchanged; a word may occur in another form."""
_CONTENT = ("word", *_STRICT)


def _composed(text: str) -> str:
    # Texts from PDF files contain separate accents, and ligatures such as ﬁ.
    return unicodedata.normalize("NFKC", text)


@lru_cache(maxsize=4096)
def _tokens(text: str, names: frozenset[str]) -> list[_Token]:
    tokens, begins = [], True
    for token in _TOKEN.findall(_plain(text)):
        low = token.casefold()
        kind: Kind = "word"
        if not token[0].isalnum():
            kind = "mark"
        elif token[0].isdigit() or low in _NUMERALS:
            kind = "number"
        elif low in _DENIALS:
            kind = "denial"
        elif low in names or (token[0].isupper() and not begins):
            kind = "name"
        elif low in _COMMON:
            kind = "common"
        elif re.match(f"[{UNSPACED}]", token):
            kind = "letter"
        tokens.append(_Token(low, kind))
        begins = kind == "mark" and token not in (",", ";")
    return tokens


def _units(source: str, names: frozenset[str]) -> Iterator[list[_Token]]:
    sentences = [_tokens(one, names) for one in _read(source).sentences]
    for count in range(1, _TOGETHER + 1):
        for start in range(len(sentences) - count + 1):
            yield [token for sentence in sentences[start : start + count] for token in sentence]


def _share(claim: Sequence[_Token], unit: Sequence[_Token]) -> float:
    texts = {token.text for token in unit}
    strict = [token.text for token in claim if token.kind in _STRICT]
    words = [token.text for token in claim if token.kind == "word"]
    if not (strict or words) or not texts.issuperset(strict):
        return 0.0
    n_common = sum(any(_same_word(word, text) for text in texts) for word in words)
    few_common = bool(words) and n_common <= len(words) / 2
    if few_common or _negated_words(claim) != _negated_words(unit, claim) or not _in_place(claim, unit):
        return 0.0
    return (len(strict) + n_common) / (len(strict) + len(words))


def _same_word(first: str, second: str) -> bool:
    if first == second:
        return True
    length = max(_SAME_BEGINNING, round(_OF_LENGTH * max(len(first), len(second))))
    return len(first) >= length <= len(second) and first[:length] == second[:length]


def _negated_words(tokens: Sequence[_Token], claim: Sequence[_Token] | None = None) -> set[str]:
    denied = set()
    for at, token in enumerate(tokens):
        if token.kind == "denial":
            after = (one.text for one in tokens[at + 1 :] if one.kind in _CONTENT)
            denied.add(next(after, token.text))
    if claim is None:
        return denied
    words = [token.text for token in claim if token.kind in _CONTENT or token.kind == "denial"]
    return {word for word in words if any(_same_word(word, one) for one in denied)}


def _in_place(claim: Sequence[_Token], unit: Sequence[_Token]) -> bool:
    beside = set(pairwise(unit))
    for at, token in enumerate(claim):
        if token.kind == "letter" and at and claim[at - 1].kind == "letter":
            if not any(a.text == claim[at - 1].text and b.text == token.text for a, b in beside):
                return False
        elif token.kind in ("name", "number") and not _has_same_context(claim, at, unit):
            return False
    return True


def _has_same_context(claim: Sequence[_Token], at: int, unit: Sequence[_Token]) -> bool:
    token = claim[at]
    before = next((place for place in range(at - 1, -1, -1) if claim[place].kind == "word"), None)
    if before is None:
        return _is_subject(claim, at, unit)
    if _follows(claim, at, unit):
        return True
    runs = [_names_after(unit, place, token.kind) for place in _places(unit, claim[before].text)]
    return token.text in set().union(*runs) if any(runs) else True


def _places(unit: Sequence[_Token], word: str) -> list[int]:
    return [
        place for place, token in enumerate(unit) if token.kind == "word" and _same_word(token.text, word)
    ]


def _names_after(unit: Sequence[_Token], place: int, kind: Kind) -> set[str]:
    run: set[str] = set()
    for token in unit[place + 1 :]:
        if token.kind == "word" or (token.kind == "mark" and run):
            break
        if token.kind == kind:
            run.add(token.text)
    return run


def _follows(claim: Sequence[_Token], at: int, unit: Sequence[_Token]) -> bool:
    def before(tokens: Sequence[_Token], place: int) -> str:
        for token in reversed(tokens[:place]):
            if token.kind == "word":
                return ""
            if token.kind == claim[at].kind:
                return token.text
        return ""

    other = before(claim, at)
    return bool(other) and any(
        before(unit, place) == other for place, token in enumerate(unit) if token.text == claim[at].text
    )


def _is_subject(claim: Sequence[_Token], at: int, unit: Sequence[_Token]) -> bool:
    # In "Ada was born", the name Ada must precede the word "was" in the source, too.
    token = claim[at]
    word = next((one.text for one in claim[at + 1 :] if one.kind == "word"), None)
    places = _places(unit, word) if word else []
    if not places:
        return True
    before = {one.text for one in unit[: max(places)] if one.kind == token.kind}
    return token.text in before or not before
