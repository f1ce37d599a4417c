"""A set of prompts in a file: the papers' own, typed in once, or yours.

Our prompts follow the papers' structure in words of our own; who has the papers can use theirs. A file is
TOML, a table a method, a prompt by its name::

    [edc2]
    extract = '''
    Given a question and documents …
    {question}
    {passages!plain}
    '''

    [edc2.fact_check_about]
    text = "… about {person} … {query} … {docs}"
    slots = { person = "subject", query = "statement", docs = "passages" }

Slots are those of the prompt that is replaced; ``slots`` maps the paper's names to them.
``{passages!plain}`` shows passages one a line without our numbers. The slot ``examples`` may be left out: a
one-shot example is typed into the text. A brace that is no slot is doubled.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from surerag.errors import PromptError
from surerag.prompts import PromptSet, PromptTemplate

_NAME = re.compile(r"\{([^{}!]+)(![a-z]+)?\}")


def load_prompts(file: str | Path) -> dict[str, dict[str, str]]:
    r"""Read prompts from a file.

    Args:
        file: TOML, as above.

    Returns:
        Texts by method (``lazy_rag``, ``seper``, ``edc2``, ``dense_rag``, ``dynqr``; ``judge``: SePer's B.2)
        and name, as the option ``prompts`` of each method and of its parts in both frameworks takes them.

    Raises:
        PromptError: If the file cannot be read, a method or prompt is unknown, or slots do not fit.

    Example:
        >>> import pathlib, tempfile
        >>> file = pathlib.Path(tempfile.mkdtemp(), "prompts.toml")
        >>> _ = file.write_text('[dynqr]\nrewrite = "Rewrite: {query}"')
        >>> load_prompts(file)["dynqr"]
        {'rewrite': 'Rewrite: {query}'}
    """
    try:
        given = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise PromptError(f"{file} cannot be read as TOML: {error}") from error
    known = prompt_sets()
    found: dict[str, dict[str, str]] = {}
    for method, prompts in given.items():
        if method not in known or not isinstance(prompts, Mapping):
            raise PromptError(f"{file}: there is no method {method!r}", hint=f"there are {', '.join(known)}")
        found[method] = {
            name: _text(f"{method}.{name}", name, value, known[method]) for name, value in prompts.items()
        }
        known[method].replaced(found[method])
    return found


def prompt_sets() -> dict[str, PromptSet]:
    """Return every method's own prompts, by the method's name in a file."""
    from surerag.evaluation.rivals import RatingJudge
    from surerag.methods.dense_rag.options import RefinerOptions
    from surerag.methods.dynqr.options import DynQROptions
    from surerag.methods.edc2.options import EDC2Options
    from surerag.methods.lazy_rag.options import LazyRAGOptions
    from surerag.methods.seper.options import SePerOptions

    return {
        "lazy_rag": LazyRAGOptions.PROMPTS,
        "seper": SePerOptions.PROMPTS,
        "edc2": EDC2Options.PROMPTS,
        "dense_rag": RefinerOptions.PROMPTS,
        "dynqr": DynQROptions.PROMPTS,
        "judge": RatingJudge.PROMPTS,
    }


def _text(place: str, name: str, given: Any, own: PromptSet) -> str:
    table = {"text": given} if isinstance(given, str) else given
    unknown = sorted(set(table) - {"text", "slots"}) if isinstance(table, Mapping) else ["?"]
    if unknown or not isinstance(table.get("text"), str):
        raise PromptError(
            f"the prompt {place} must be a text, or a table of text and slots", hint="write text = '''…'''"
        )
    renamed: dict[str, str] = dict(table.get("slots") or {})  # type: ignore[arg-type]  # a table in TOML
    unused = sorted(slot for slot in renamed if f"{{{slot}" not in table["text"])
    if unused:
        raise PromptError(f"the prompt {place} has no slot {{{unused[0]}}}, which it maps")
    text = _NAME.sub(lambda match: _renamed(match, renamed), table["text"])
    wanted = PromptTemplate(name, own[name].text).slots if name in own else frozenset()
    # What is typed into the text needs no slot for examples; those that are given all the same come first.
    missing = "examples" in wanted and "examples" not in PromptTemplate(name, text).slots
    return "{examples}" + text if missing else text


def _renamed(match: re.Match[str], names: Mapping[str, str]) -> str:
    return f"{{{names.get(match[1], match[1])}{match[2] or ''}}}"
