# ruff: noqa: RUF001 - texts in other scripts are meant
"""Answers and references with the score that people gave them; and the scripts of SQuAD and HotpotQA."""

from __future__ import annotations

import re
import string
from collections import Counter

import pytest

from surerag.measures import contains, exact_match, normalize_answer, same_answer, token_f1
from surerag.measures.closed import is_closed

# answer, reference, whether it is right, whether it is the very answer
AGREED = [
    # yes and no
    ("Yes, both were.", "yes", True, False),
    ("Yes.", "yes", True, True),
    ("yes both of them were Americans", "Yes", True, False),
    ("So the answer is yes.", "yes", True, False),
    ("Both were American, so yes.", "yes", True, False),
    ("Scott is American. Ed is American. Yes.", "yes", True, False),
    ("Yes and no.", "yes", False, False),
    ("Yes, both were.", "no", False, False),
    ("No, only Bo was.", "no", True, False),
    ("No they were not.", "no", True, False),
    ("Answer: no", "no", True, False),
    ("I would say no.", "no", True, False),
    ("**No**", "no", True, True),
    ("There is no information.", "no", False, False),
    ("No information is given.", "no", False, False),
    ("No one knows.", "no", False, False),
    ("He lived at No. 5.", "no", False, False),
    ("The answer is no longer known.", "no", False, False),
    ("It is not known.", "no", False, False),
    ("", "no", False, False),
    ("The claim is true.", "True", True, False),
    ("That is not true.", "True", False, False),
    ("Ja, beide waren es.", "ja", True, False),
    ("是的，两者都是。", "是", True, False),
    ("他是中国人。", "是", False, False),
    ("いいえ、違います。", "いいえ", True, False),
    ("Нет, не был.", "нет", True, False),
    ("हाँ।", "हाँ", True, True),
    ("No hay información.", "no", False, False),
    # letters and articles
    ("The answer is A.", "A", True, False),
    ("a", "A", True, True),
    ("(A)", "A", True, True),
    ("A. Velm", "A", True, False),
    ("The correct option is B, not A.", "B", True, False),
    ("The correct option is B, not A.", "A", False, False),
    ("It is a river.", "A", False, False),
    ("A river in Orun.", "a", False, False),
    ("Either A or B.", "A", False, False),
    ("I think B.", "I", False, False),
    ("A is the answer.", "A", True, False),
    ("He got an A in maths.", "A", True, False),
    ("Carrots hold vitamin A.", "A", True, False),
    ("", "A", False, False),
    ("The missing article is “the”.", "the", True, False),
    ("It stands in the city.", "the", False, False),
    ("the", "a", False, False),
    ("Ответ: Б.", "Б", True, False),
    ("答案是C。", "C", True, False),
    ("정답은 D입니다.", "D", True, False),
    ("The angle is α.", "α", True, False),
    ("It was written in C++.", "C", False, False),
    ("It was written in C++.", "C++", True, False),
    ("Hepatitis B", "Hepatitis A", False, False),
    ("hepatitis a", "Hepatitis A", True, True),
    ("The The", "the the", True, True),
    # numbers
    ("There are 5.", "5", True, False),
    ("There are 15.", "5", False, False),
    ("It is 3.5 km long.", "3", False, False),
    ("It has 1,500 seats.", "1500", True, False),
    ("هي ٤٢.", "42", True, False),
    ("It is −3 °C.", "3", False, False),
    ("０３：０８", "03:08", True, True),
    # all else
    ("She was born in the City of Velm.", "city of Velm", True, False),
    ("«Velm»", "The Velm", True, True),
    ("?", "!", False, False),
]


@pytest.mark.parametrize(("answer", "reference", "right", "exact"), AGREED)
def test_an_answer_has_the_score_that_people_gave_it(
    answer: str, reference: str, right: bool, exact: bool
) -> None:
    assert contains(answer, [reference]) is right
    assert exact_match(answer, [reference]) is exact
    f1 = token_f1(answer, [reference])
    assert (f1 == 1) is exact
    if is_closed(reference):
        assert (f1 > 0) is right


@pytest.mark.parametrize(
    ("first", "second", "same"), [("no", "No one", False), ("A", "It is a river", False), ("B", "B.", True)]
)
def test_short_answers_are_the_same_where_they_say_the_same(first: str, second: str, same: bool) -> None:
    assert same_answer(first, second) is same is same_answer(second, first)


def squad_words(text: str) -> list[str]:
    """Normalise as the script of SQuAD 2.0 and that of HotpotQA do."""
    bare = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", bare).split()


def squad_f1(answer: str, reference: str) -> float:
    mine, theirs = squad_words(answer), squad_words(reference)
    if not mine or not theirs:
        return float(mine == theirs)
    common = sum((Counter(mine) & Counter(theirs)).values())
    return 2 * common / (len(mine) + len(theirs))


def hotpot_f1(answer: str, reference: str) -> float:
    mine, theirs = (" ".join(squad_words(text)) for text in (answer, reference))
    if mine != theirs and {mine, theirs} & {"yes", "no", "noanswer"}:
        return 0.0
    return squad_f1(answer, reference)


SPANS = (
    "the Denver Broncos", "Denver Broncos", "Broncos", "10th and 11th centuries", "France", "in France.",
    "Rollo", "1066", "a type of weld", "A.P. Hill", "St. John's", 'Theodore "Ted" Roosevelt', "rock 'n' roll",
    "an apple", "Apple Inc.", "well-known", "wellknown", "12%", "$15 million", "Chief of Protocol",
    "Greenwich Village, New York City", "chief  of the protocol", "from 1986 to 2013", "U.S.", "us",
)  # fmt: skip


@pytest.mark.parametrize("reference", SPANS)
def test_the_scripts_of_squad_and_hotpotqa_agree_on_spans(reference: str) -> None:
    for answer in SPANS:
        assert exact_match(answer, [reference]) is (squad_words(answer) == squad_words(reference))
        assert token_f1(answer, [reference]) == squad_f1(answer, reference) == hotpot_f1(answer, reference)
    assert normalize_answer(reference) == " ".join(squad_words(reference))


@pytest.mark.parametrize("answer", ["yes", "No.", "Yes!", "no"])
def test_the_script_of_hotpotqa_agrees_on_yes_and_no(answer: str) -> None:
    for reference in ("yes", "no"):
        assert token_f1(answer, [reference]) == hotpot_f1(answer, reference)
        assert exact_match(answer, [reference]) is (squad_words(answer) == squad_words(reference))
        assert token_f1("Ed Wood", [reference]) == hotpot_f1("Ed Wood", reference) == 0
