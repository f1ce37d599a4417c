"""Work on text: decode it, estimate tokens, split sentences, detect abstentions, remove control codes."""

from __future__ import annotations

import codecs
import math
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sentencex import get_sentence_boundaries

from surerag.errors import ConfigurationError, InputError

ABSTENTION = "I do not know."
"""The default answer of a model that abstains."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"  # Thai, Lao, Burmese, Khmer
    "\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"  # Japanese, Chinese
)
"""Letters of scripts that put no spaces between words, for a character class of a regular expression."""

_UNSPACED_LETTER = re.compile(f"[{UNSPACED}]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def replace_surrogates(text: str) -> str:
    r"""Replace lone surrogates, which no encoding and no tokenizer accepts, with ``�``.

    Example:
        >>> replace_surrogates("Velm \udcff")
        'Velm �'
    """
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


# Encodings

_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, because this mark begins with UTF-16's mark
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_WIDE_ENCODINGS = ("utf_16_le", "utf_16_be", "utf_32_le", "utf_32_be")
_LEGACY = (
    "cp1252", "cp1251", "cp932", "gb18030", "euc_jp", "big5", "cp949", "cp1250", "cp1253", "koi8_r", "cp866",
    "mac_roman", "cp1254", "cp1255", "cp1256", "cp874", "iso8859_2", "cp850", "cp852", "cp857",
)  # fmt: skip
"""Encodings to try, the most common first; other encodings are subsets of these, or too rare."""

_SAMPLE = 2**16
"""Number of bytes that are examined to guess an encoding, unless a line is longer."""
_NEITHER_WORSE, _NEITHER_LIKELIER = 0.03, 0.1
"""Two guesses of an encoding count as equally good if their disorder (charset-normalizer's ``chaos`` plus
:func:`_strangeness`) differs by at most the first number, and their likeness to a language (``coherence``) by
at most the second number."""
_FEW_FOREIGN = 0.05
"""The text of a guessed encoding may contain foreign letters, because names may be foreign. A guess ranks
lower only if it has more foreign letters than another guess, by more than this share of the bytes beyond
ASCII, plus 1."""

_ALPHABETS = (
    "äöüß", "àâæçéèêëîïôœùûüÿ", "éèêëïóöü", "áéíñóúü", "àáâãçéêíóôõúü", "àçèéíïòóúü",
    "àèéìíîòóùú", "æøåéèêòóô", "åäöéšž", "áðéíóúýþæö", "áðíóúýæø", "äöõüšž", "çë",
    "âçğıiîöşüû", "áéíóöőúüű", "ăâîşţșț", "ąćęłńóśźż", "áčďéěíňóřšťúůýž",  # noqa: RUF001
    "áäčďéíĺľňóôŕšťúýž", "čćđšž",
)  # fmt: skip
"""Letters beyond ASCII, in lower case, of languages in Latin script. The languages are, line by line:
German, French, Dutch, Spanish, Portuguese, Catalan;
Italian, Danish, Swedish, Icelandic, Faroese, Estonian, Albanian;
Turkish, Hungarian, Romanian, Polish, Czech;
Slovak, Croatian."""

_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_BINARY = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


class DecodedText(NamedTuple):
    """A text, its encoding, and whether the encoding is a guess."""

    text: str
    encoding: str
    guessed: bool = False


def decode(data: bytes, declared: str = "") -> DecodedText:
    r"""Decode a text in the first encoding that fits.

    The encoding of the byte-order mark is tried first, then UTF-8, then the declared encoding. If none fits,
    the encoding is guessed: charset-normalizer measures for each encoding how disordered the text would be,
    and how similar to a language.

    Raises:
        InputError: If the data are binary, or no encoding fits.

    Example:
        >>> decode("Zoë Møller, Zürich".encode("cp1252"))
        DecodedText(text='Zoë Møller, Zürich', encoding='cp1252', guessed=True)
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return DecodedText(data.decode(encoding, "replace"), encoding)
    # ISO-2022-JP, used in Japanese mail, consists of ASCII bytes, and would pass as UTF-8.
    certain = ["iso2022_jp"] if b"\x1b$" in data else []
    # As in browsers, a text that is declared as Latin-1 is decoded as Windows-1252.
    certain += ["utf-8", "cp1252" if declared.lower() in ("latin-1", "iso-8859-1") else declared]
    for encoding in filter(None, certain):
        try:
            text = data.decode(encoding)
        except (LookupError, UnicodeError):
            continue
        if not _BINARY.search(text):
            return DecodedText(text, encoding)
    return _guess(data)


def _guess(data: bytes) -> DecodedText:
    damaged = data.decode("utf-8", "replace")
    letters, losses = len(_NOT_ASCII.findall(damaged)), damaged.count("\ufffd")
    if letters > 4 * losses and not _BINARY.search(damaged):
        return DecodedText(damaged, "utf-8", guessed=True)
    for encoding in _likely_encodings(data):
        try:
            text = data.decode(encoding)
        except UnicodeError:  # an invalid byte after the sample
            continue
        if not _BINARY.search(text):
            return DecodedText(text, encoding, guessed=True)
    raise InputError("binary data, or a text in an unknown encoding", hint="save the text as UTF-8")


def _likely_encodings(data: bytes) -> list[str]:
    if b"\0" in data:
        return _by_plausibility(data[:_SAMPLE], _WIDE_ENCODINGS)
    order: tuple[str, ...] = (*_LEGACY, *_WIDE_ENCODINGS[:2])
    if b"\r" in data and b"\n" not in data:  # line ends of old Macintosh systems
        order = ("mac_roman", *(name for name in order if name != "mac_roman"))
    sample = data
    # Only lines with bytes beyond ASCII help to guess. Whole lines are taken, because the end of the sample
    # could otherwise cut a letter of several bytes in two.
    if len(data) > _SAMPLE:
        lines = b"\n".join(line for line in data.split(b"\n") if not line.isascii())
        sample = lines if len(lines) <= _SAMPLE else lines[:_SAMPLE].rpartition(b"\n")[0] or data
    western = sample.decode("cp1252", "replace")
    marks = not any(one.isalpha() or one == "\ufffd" for one in _NOT_ASCII.findall(western))
    if marks and not _strangeness(western):  # beyond ASCII only quotation marks, dashes, currency signs
        return ["cp1252"]
    return _by_plausibility(sample, order)


def _by_plausibility(sample: bytes, encodings: Sequence[str]) -> list[str]:
    from charset_normalizer import from_bytes

    # Each encoding gets its own call: from_bytes skips encodings similar to an encoding that does not fit.
    guesses = [
        (guess.chaos + _strangeness(str(guess)), guess.coherence, _foreign_letters(str(guess)), name)
        for name in encodings
        for guess in from_bytes(sample, cp_isolation=[name])
    ]
    least = min((disorder for disorder, *_ in guesses), default=0.0) + _NEITHER_WORSE
    orderly = [(likeness, foreign) for disorder, likeness, foreign, _ in guesses if disorder <= least]
    likest = max((likeness for likeness, _ in orderly), default=0.0) - _NEITHER_LIKELIER
    few = _FEW_FOREIGN * sum(byte > 127 for byte in sample)
    fewest = min((foreign for likeness, foreign in orderly if likeness >= likest), default=0)
    most = fewest + few + 1 if fewest <= few else math.inf

    def rank(guess: tuple[float, float, int, str]) -> tuple[bool, bool, bool, int]:
        disorder, likeness, foreign, name = guess
        return disorder > least, likeness < likest, foreign > most, encodings.index(name)

    return [name for *_, name in sorted(guesses, key=rank)]


def _foreign_letters(text: str) -> int:
    """Count the letters beyond ASCII that are not in the alphabet of the language that fits best.

    In the second text of the example, Icelandic fits best, and has no ü.

    Example:
        >>> _foreign_letters("Doğu geniş, güneş"), _foreign_letters("Doðu geniþ, güneþ")
        (0, 1)
    """
    letters = Counter(letter.lower()[0] for letter in _NOT_ASCII.findall(text) if letter.isalpha())
    return letters.total() - max(sum(letters[one] for one in alphabet) for alphabet in _ALPHABETS)


def _strangeness(text: str) -> float:
    """Return the share of the characters beyond ASCII that are at places where no language puts them.

    Example:
        >>> _strangeness("Zoë Møller, l’été"), _strangeness("Zo« M¿ller")
        (0.0, 1.0)
    """
    places = [match.start() for match in _NOT_ASCII.finditer(text)]
    padded = f" {text} "
    strange = sum(_is_strange(padded[at], padded[at + 1], padded[at + 2]) for at in places)
    return strange / max(len(places), 1)


def _is_strange(before: str, letter: str, after: str) -> bool:
    kind = unicodedata.category(letter)
    if kind[0] == "L":
        script = _script(letter)
        others = {_script(before), _script(after)} - {"", script}
        alike = not others or (script == "CJK" and others == {"LATIN"})
        return not alike or (kind == "Lu" and before.islower())
    if kind in ("Pi", "Ps") or kind[0] == "S":
        return before.isalpha()
    if kind in ("Pf", "Pe"):
        return after.isalnum() and letter != "’"
    if kind[0] in "PN":
        return before.isalpha() and after.isalpha() and letter != "—"
    return kind[0] == "C"


def _script(letter: str) -> str:
    if not letter.isalpha():
        return ""
    name = "LATIN" if letter < "\u0250" else unicodedata.name(letter, "").split(" ")[0]
    return "CJK" if name in ("HIRAGANA", "KATAKANA", "HANGUL") else name


# Tokens

_LATIN = "\u00aa\u00ba\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff"
"""Latin letters beyond ASCII."""
_LETTERS_OF_A_TOKEN = 9
"""A Latin word of at most this many letters counts as one token; every four further letters add a token."""
_LONGEST = 200
"""A text without spaces is cut after this number of characters before tokens are counted."""

_WEIGHTS = {
    "\u0400-\u052f": 0.4,  # Cyrillic
    "\u0370-\u03ff\u1f00-\u1fff": 0.6,  # Greek
    "\u0590-\u05ff": 0.6,  # Hebrew
    "\u0600-\u06ff\u0750-\u077f\u08a0-\u08ff\ufb50-\ufdff\ufe70-\ufeff": 0.5,  # Arabic
    "\u0900-\u0dff": 0.65,  # Devanagari and related scripts
    "\u0e00-\u0e7f": 0.65,  # Thai
    "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af": 0.8,  # Hangul
}
"""Tokens per character of each script, between the values of the encodings cl100k and o200k."""
_SPACE, _LETTER, _DIGIT, _MARK, _FURTHER_LETTER, _OTHER, _FIRST_WEIGHTED = range(7)
"""Kinds of characters."""
_CHARACTER_WEIGHTS = np.array([0, 0, 0, 1, 0, 1, *_WEIGHTS.values()])
"""Tokens per character of each kind; 0 for letters and digits, because words and numbers are counted
whole."""


@cache
def _kinds() -> NDArray[np.uint8]:
    kinds = np.full(2**16 + 1, _OTHER, np.uint8)
    kinds[[code for code in range(2**16) if code < 128 or chr(code).isspace()]] = _SPACE
    for kind, characters in (
        (_LETTER, "A-Za-z"),
        (_DIGIT, "0-9"),
        (_MARK, "!-/:-@[-`{-~"),
        (_FURTHER_LETTER, _LATIN),
        *enumerate(_WEIGHTS, start=_FIRST_WEIGHTED),
    ):
        for first, last in re.findall("(.)(?:-(.))?", characters, re.DOTALL):
            kinds[ord(first) : ord(last or first) + 1] = kind
    return kinds


def estimated_tokens(text: str) -> int:
    """Estimate the number of tokens of a text from its scripts, for models without a local tokenizer.

    For prose in seventeen languages, the estimate is within a factor of 2.2 of the number of tokens of
    GPT-4 and GPT-4o. A text of 2,000 English words takes about 0.2 ms.

    Example:
        >>> estimated_tokens("Ada was born in Velm."), estimated_tokens("艾达出生在维尔姆。")
        (6, 9)
    """
    if text.isascii():
        kinds = _kinds()[np.frombuffer(text.encode("ascii"), np.uint8)]
        is_letter = kinds == _LETTER
    else:
        codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
        kinds = _kinds()[np.minimum(codes, 2**16)]
        is_letter = (kinds == _LETTER) | (kinds == _FURTHER_LETTER)
    starts, ends = _runs(is_letter)
    lengths = ends - starts
    count = len(lengths) + np.maximum(-((_LETTERS_OF_A_TOKEN - lengths) // 4), 0).sum()
    first, last = _runs(kinds == _DIGIT)
    count += (-((first - last) // 3)).sum()
    if text.isascii():
        return int(count + np.count_nonzero(kinds == _MARK))
    foreign = np.concatenate(([0], np.cumsum(kinds == _FURTHER_LETTER)))
    count += ((lengths > 1) & (foreign[ends] > foreign[starts])).sum()
    weighted = float(np.bincount(kinds, minlength=len(_CHARACTER_WEIGHTS)) @ _CHARACTER_WEIGHTS)
    return int(count) + math.ceil(round(weighted, 6))  # sums of weights are not exact


def _runs(mask: NDArray[np.bool_]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    edges = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    bounds = np.concatenate(
        ([0] if mask[:1].any() else [], edges, [len(mask)] if mask[-1:].any() else [])
    ).astype(np.intp)
    return bounds[::2], bounds[1::2]


class TokenEstimate:
    """Estimates the tokens of a text that arrives in pieces, in time that is linear in the text's length.

    Attributes:
        total: Estimated number of tokens so far.

    Example:
        >>> estimate = TokenEstimate()
        >>> [estimate.feed(piece) for piece in ("Ada wa", "s born", " in Velm")]
        [2, 3, 5]
    """

    def __init__(self) -> None:
        self.total = self._before = 0
        self._tail = ""

    def feed(self, piece: str) -> int:
        """Add a piece, and return the estimate for all pieces so far."""
        self._tail += piece
        gap = max(self._tail.rfind(" "), self._tail.rfind("\n"), len(self._tail) - _LONGEST)
        if gap > 0:
            self._before += estimated_tokens(self._tail[:gap])
            self._tail = self._tail[gap:]
        self.total = self._before + estimated_tokens(self._tail)
        return self.total


def prefix_of_tokens(text: str, tokens: int) -> int:
    """Return the length of the longest prefix of whole words that has at most ``tokens`` estimated tokens.

    If not even the first word fits, the prefix ends inside the word.

    Example:
        >>> text = "Ada was born in Velm."
        >>> text[:prefix_of_tokens(text, 3)], "Donaudampfschiff"[:prefix_of_tokens("Donaudampfschiff", 1)]
        ('Ada was born', 'Donaudamp')
    """
    ends = [gap.start() for gap in re.finditer(r"\s+|\Z", text)]
    fitting = bisect_right(ends, tokens, key=lambda end: estimated_tokens(text[:end]))
    if fitting and text[: ends[fitting - 1]].strip():
        return ends[fitting - 1]
    return bisect_right(range(len(text) + 1), tokens, key=lambda end: estimated_tokens(text[:end])) - 1


# Sentences


class Sentence(NamedTuple):
    """A sentence of a text: ``text[start:end]``, without surrounding white space."""

    text: str
    start: int
    end: int


_LANGUAGE = re.compile(r"[a-z]{2,3}([-_][A-Za-z0-9]+)*")


def check_language(language: str) -> str:
    """Return ``language`` if it has the form of an ISO 639 code, such as "de".

    Raises:
        ConfigurationError: If ``language`` has another form, such as "german". Without this error, the
            sentence splitter would silently treat the text as English.
    """
    if not _LANGUAGE.fullmatch(language):
        raise ConfigurationError(
            f"language must be an ISO 639 code in small letters, got {language!r}",
            hint='write "de" for German, "fr" for French, "ja" for Japanese',
        )
    return language


def split_sentences(text: str, language: str = "en") -> list[Sentence]:
    """Split a text into its unchanged sentences, with their offsets in characters.

    Example:
        >>> [s.text for s in split_sentences("Dr. Voss left. She was tired!")]
        ['Dr. Voss left.', 'She was tired!']
    """
    sentences: list[Sentence] = []
    for boundary in get_sentence_boundaries(language, replace_surrogates(text)):
        piece: str = boundary["text"]
        stripped = piece.strip()
        if stripped:
            start = boundary["start_index"] + len(piece) - len(piece.lstrip())
            end = start + len(stripped)
            sentences.append(Sentence(text[start:end], start, end))
    return sentences


# Abstention


def counted(n: int, noun: str) -> str:
    """Return a number with its noun in the singular or plural.

    Example:
        >>> counted(1, "answer"), counted(1200, "question")
        ('1 answer', '1,200 questions')
    """
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def check_abstention(abstention: str | None) -> None:
    """Check that the option ``abstention`` is None or contains a letter, or raise ConfigurationError."""
    if abstention is not None and not _letters(abstention):
        raise ConfigurationError("abstention is empty", hint="give a sentence, such as 'I do not know.'")


def is_abstention(answer: str, abstention: str | None = ABSTENTION) -> bool:
    """Whether an answer, or its first sentence, is the abstention; punctuation and case are ignored.

    Example:
        >>> is_abstention("i do not know"), is_abstention("I don’t know. No passage says so.")
        (True, True)
        >>> is_abstention("我不知道", "我不知道。"), is_abstention("ไม่ทราบ เพราะไม่มีข้อมูล", "ไม่ทราบ")
        (True, True)
    """
    if abstention is None:
        return False
    letters = _letters(abstention)
    marks = r"[\W_]*"
    begins = re.match(f"{marks.join(['', *letters])}({marks})", _for_comparison(answer))
    if begins is None:
        return False
    return begins.end() == len(begins.string) or _ends_sentence(begins[1], letters[-1])


def begins_abstention(beginning: str, abstention: str | None) -> bool:
    """Whether the beginning of an answer is the abstention, or at least the abstention's first half.

    Example:
        >>> begins_abstention("I do not", ABSTENTION), begins_abstention("I", ABSTENTION)
        (True, False)
    """
    if abstention is None:
        return False
    begun, whole = _letters(beginning), _letters(abstention)
    half = whole.startswith(begun) and 2 * len(begun) >= len(whole)
    return half or is_abstention(beginning, abstention)


def may_become_abstention(beginning: str, abstention: str | None) -> bool:
    """Whether an answer with this beginning may still become the abstention.

    Example:
        >>> may_become_abstention("I", ABSTENTION), may_become_abstention("In Velm", ABSTENTION)
        (True, False)
    """
    return abstention is not None and _letters(abstention).startswith(_letters(beginning))


def _ends_sentence(gap: str, last: str) -> bool:
    return gap != "-" and any(
        letter == "\n"
        or (letter == " " and _UNSPACED_LETTER.match(last))
        or (unicodedata.category(letter) in ("Po", "Pd", "Ps") and letter not in "'\"")
        for letter in gap
    )


def _letters(text: str) -> str:
    return "".join(filter(str.isalnum, _for_comparison(text)))


def _for_comparison(text: str) -> str:
    """Return a text in a normal form for comparison: "don't" becomes "do not", "can't" becomes "cannot"."""
    text = unicodedata.normalize("NFC", text.casefold()).replace("’", "'")
    return re.sub(r"n't\b", " not", re.sub(r"\bcan't\b", "cannot", text))


# Control codes

_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # colours, cursor, screen
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # titles, links
    r"|\x1b[ -/]*[0-Z\\^-~]"  # all other escape sequences
)
_CONTROL = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f"
    # Changes of the writing direction can make one text look like another.
    r"\u202a-\u202e\u2066-\u2069]"
)


_FORGING = re.compile(
    # Line ends, escapes, changes of the writing direction, and invisible characters.
    r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f]"
)


def on_one_line(text: str) -> str:
    r"""Return untrusted text as one line of a log; characters that could forge another line are escaped.

    Example:
        >>> on_one_line("Where?\n2026 CRITICAL root \x1b[31m\u202e")
        'Where?\\n2026 CRITICAL root \\x1b[31m\\u202e'
    """
    return replace_surrogates(_FORGING.sub(lambda found: ascii(found[0])[1:-1], text))


def printable(text: str) -> str:
    r"""Remove control characters, escape sequences and direction marks from text; keep line feeds and tabs.

    Example:
        >>> printable("Velm\x1b[2J\x1b]0;owned\x07 lies\r on the \u202eOrun")
        'Velm lies on the Orun'
    """
    return replace_surrogates(_CONTROL.sub("", _SEQUENCE.sub("", text)))
