# ruff: noqa: RUF001 - letters of other scripts are intended
"""Recognise closed answers: yes or no, true or false, a single letter, "I do not know.".

A lone article, such as "the", also counts: ``normalize_answer`` removes articles, so no word would be left to
compare. The words of closed answers also occur with another meaning, as in "There is no information." and "It
is a river." So a text is divided into clauses, and each clause is checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from surerag.measures.normalization import MARKS, UNSPACED, normalize_answer, unify_characters
from surerag.text import is_abstention

_YES = frozenset(
    "yes yeah yep oui ja sí si sì sim да так tak evet ναι כן نعم हाँ हां 是 是的 对 對 はい ええ 네 예 có "
    "ใช่".split()
)
_NO = frozenset(
    "no nope nein non nee nej não нет ні nie hayır όχι לא لا नहीं 否 不 不是 不对 不對 いいえ 아니요 아니오 "
    "không ไม่ ไม่ใช่".split()
)
_BREAKS = re.compile(rf"(?!(?<=\w)['\u2019-](?=\w)){MARKS.pattern}|[\u2013\u2014\n]")
"""Pattern of punctuation between clauses: all punctuation except apostrophes and hyphens inside words."""
_NUMERO = re.compile(r"\bno\.\s*(?=\d)", re.IGNORECASE)
_YES_CLAUSE = re.compile(r"(?:yes|yeah|yep|oui|ja|sí|да) (?!(?:and|or|und|oder|et|ou|y|o|и|или) )")
_NO_CLAUSE = re.compile(
    "no (?:it|they|he|she|we|i|you|there|the|this|that|these|both|neither|only|not|because|since|but) "
)
"""Pattern of the beginning of a clause that answers no: "No they were not", not "No evidence was found"."""
_ANSWER = frozenset("answer antwort réponse respuesta risposta resposta ответ απάντηση الجواب उत्तर".split())
_CHOICE = frozenset("option choice letter article".split())
_FILLERS = frozenset(
    "so then thus hence therefore well oh i i'd i\u2019d would think say it is it's it\u2019s".split()
)
"""Words that may precede the answer yes or no in a clause, as in "I would say no"."""
_BEHIND_A_LETTER = frozenset("is was and or because since".split())
"""Words that can follow the answer A, but cannot follow the article "a"."""
_WORDS_OF_ONE_LETTER = frozenset("aeioyuàéèêòóасвикояуіηο")
"""Letters that are also words in English, Greek, Romance or Slavic languages."""
_BETWEEN_SCRIPTS = re.compile("(?<=[A-Za-z])(?=[\uac00-\ud7af])")


def is_closed(answer: str) -> bool:
    """Return whether an answer is yes, no, true, false, a letter, a word like "the", or "I do not know.".

    "Yes", "no" and "I do not know." are recognised in several languages; a letter must belong to an alphabet.

    Example:
        >>> [is_closed(one) for one in ("Yes.", "нет", "(B)", "the", "I don't know", "Velm", "7", "水")]
        [True, True, True, True, True, False, False, False]
    """
    bare = normalize_answer(answer)
    return bare in _YES | _NO | {"true", "false"} or _is_letter(bare) or is_abstention(answer)


def says(answer: str, closed: str) -> bool:
    """Return whether an answer says the same as a closed answer, and nothing that contradicts it.

    The opposite (no for yes, false for true) and another letter (B for A) contradict a closed answer.

    Args:
        answer: The answer, such as a sentence.
        closed: A closed answer; see :func:`is_closed`.

    Example:
        >>> [says(one, "no") for one in ("No, he was not.", "So the answer is no.", "No one knows.", "Yes.")]
        [True, True, False, False]
        >>> [says(one, "A") for one in ("A. Velm", "The answer is A, not B.", "Either A or B", "A river.")]
        [True, True, False, False]
        >>> says("It is not true.", "false"), says("Yes and no.", "yes")
        (True, False)
        >>> says("I don't know. No passage says so.", "I do not know.")
        True
    """
    if is_abstention(closed):
        return is_abstention(answer)
    closed = normalize_answer(closed)
    clauses = [
        part.strip() for part in _BREAKS.split(_NUMERO.sub("", unify_characters(answer))) if part.strip()
    ]
    if closed in ("true", "false"):
        return set(_truths(clauses)) == {closed == "true"}
    if closed in _YES | _NO:
        return set(_verdicts(clauses)) == {closed in _YES}
    return _letters(clauses) == {closed}


def _is_letter(word: str) -> bool:
    return word in ("an", "the") or (len(word) == 1 and word.isalpha() and not UNSPACED.match(word))


def _truths(clauses: Sequence[str]) -> Iterator[bool]:
    for clause in clauses:
        words = clause.casefold().split()
        denied = any(word == "not" or word.endswith(("n't", "n\u2019t")) for word in words)
        yield from ((word == "true") != denied for word in words if word in ("true", "false"))


def _verdicts(clauses: Sequence[str]) -> Iterator[bool]:
    for clause in map(str.casefold, clauses):
        *before, last = clause.split()
        concludes = not before or (before[-1] != "not" and (_ANSWER & set(before) or set(before) <= _FILLERS))
        if clause in _YES | _NO or (last in _YES | _NO and concludes):
            yield (clause if clause in _YES | _NO else last) in _YES
        elif _YES_CLAUSE.match(clause):
            yield True
        elif _NO_CLAUSE.match(clause):
            yield False


def _letters(clauses: Sequence[str]) -> set[str]:
    # Letters after a word such as "answer" are preferred to other letters.
    by_rank: tuple[set[str], ...] = (set(), set(), set(), set())
    for clause in clauses:
        words = _BETWEEN_SCRIPTS.sub(" ", UNSPACED.sub(r" \1 ", clause)).split()
        for place, word in enumerate(words):
            if not _is_letter(word.lower()) or not _is_choice(words, place):
                continue
            before = {one.lower() for one in words[:place]}
            is_last = place == len(words) - 1
            rank = 0 if before & _ANSWER and is_last else 1 if before & (_ANSWER | _CHOICE) else 3
            by_rank[2 if len(words) == 1 else rank].add(word.lower())
    return next(filter(None, by_rank), set())


def _is_choice(words: Sequence[str], place: int) -> bool:
    word = words[place]
    if place and words[place - 1].lower() in ("not", "nor", "neither"):
        return False
    if place == len(words) - 1:
        return True
    is_word = word.lower() in _WORDS_OF_ONE_LETTER or len(word) > 1
    if not is_word or (words[place + 1] in _BEHIND_A_LETTER and word not in ("I", "i")):
        return True
    return place > 0 and word.isupper() and word != "I"
