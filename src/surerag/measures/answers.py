"""Compare answers with reference answers by their words, as in open-domain question answering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from surerag.measures.closed import is_closed, says
from surerag.measures.normalization import normalize_answer, words_of


def exact_match(answer: str, references: Sequence[str]) -> bool:
    """Return whether an answer equals one of the references after normalisation (L-RAG, section IV-E).

    Example:
        >>> exact_match("the Orun", ["Orun", "river Orun"]), exact_match("1.5", ["15"])
        (True, False)
    """
    return normalize_answer(answer) in {normalize_answer(reference) for reference in references}


def contains(answer: str, references: Sequence[str]) -> bool:
    """Return whether an answer contains the words of one of the references as one sequence.

    The function suits answers in whole sentences. A closed reference (yes, no, true, false, a single letter,
    an article or "I do not know.") is compared by :func:`surerag.measures.closed.says`.

    Example:
        >>> contains("It was built in 1889.", ["1889"]), contains("At 4:51, 3:08 later", ["308"])
        (True, False)
        >>> contains("Yes, both were.", ["yes"]), contains("There is no information.", ["no"])
        (True, False)
        >>> contains("The answer is A.", ["A"]), contains("It is a river.", ["A"])
        (True, False)
    """
    words = words_of(answer)
    return any(
        says(answer, reference) if is_closed(reference) else _in_a_row(words_of(reference), words)
        for reference in references
    )


def same_answer(first: str, second: str) -> bool:
    """Return whether the words of one short answer occur in the other answer as one sequence.

    Words are compared as in :func:`contains`. For answers of a few words, the function takes the place of an
    entailment model (Farquhar et al. 2024). It recognises no synonyms and no negations. Two empty answers are
    the same.

    Example:
        >>> same_answer("Velm.", "in the town of Velm"), same_answer("Velm", "Orun"), same_answer("", "Velm")
        (True, False, False)
    """
    shorter, longer = sorted((first, second), key=lambda answer: len(words_of(answer)))
    if not words_of(shorter):
        return not words_of(longer)
    return contains(longer, [shorter])


def token_f1(answer: str, references: Sequence[str]) -> float:
    """Return the largest token F1 of an answer over the references, in [0, 1].

    Token F1 is the harmonic mean of token precision and recall. In scripts without spaces between words, each
    letter is a token (as in CMRC 2018 and MLQA). If the reference is a closed answer, such as yes, no or "I
    do not know.", F1 is 0 unless the answer says the same as the reference (as in HotpotQA).

    Example:
        >>> token_f1("river Orun", ["Orun"]), token_f1("no one", ["no"])
        (0.6666666666666666, 0.0)
    """
    return max((_f1_of(answer, reference) for reference in references), default=0.0)


def _in_a_row(words: list[str], text: list[str]) -> bool:
    starts = range(len(text) - len(words) + 1)
    return bool(words) and any(text[start : start + len(words)] == words for start in starts)


def _f1_of(answer: str, reference: str) -> float:
    words, right = words_of(answer), words_of(reference)
    if is_closed(reference):
        if not says(answer, reference):
            return 0.0
        # Normalisation removes the letter A of "an A" as if it were an article.
        words += [word for word in right if word not in words]
    return _f1(words, right)


def _f1(answer: list[str], reference: list[str]) -> float:
    if not answer or not reference:
        return float(answer == reference)
    common = sum((Counter(answer) & Counter(reference)).values())
    return 2 * common / (len(answer) + len(reference))
