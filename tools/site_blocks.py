"""Blocks of the documentation site that are made, not written: formulas, options, and printed studies.

A fence names what it shows, so that a page cannot drift from the code::

    ```options
    surerag.LazyRAGOptions
    ```

Formulas become MathML: browsers draw it themselves, without scripts or fonts from elsewhere.
"""

from __future__ import annotations

import re
import types
import typing
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from surerag.options import Option, Options
from surerag.prompts import PromptSet

PRINTED = Path(__file__).parent.parent / "docs/studies/printed"


def formula(source: str, *_: Any, **__: Any) -> str:
    """Return a formula, written in TeX, as MathML."""
    from latex2mathml.converter import convert

    made = "".join(convert(line, display="block") for line in source.strip().split("\n\n"))
    if "\\" in made:
        raise ValueError(f"a formula has TeX that was not understood: {source}")
    return f'<div class="formula" tabindex="0">{made}</div>'


def options_table(source: str, *_: Any, **__: Any) -> str:
    """Return a table of all options of a class, which is named as ``package.Class``."""
    owner = _named(source.strip())
    rows = "".join(map(_option_row, owner.OPTIONS.values()))
    head = "<tr><th>option</th><th>type, bound, default</th><th>what it does</th></tr>"
    return f'<table class="options"><thead>{head}</thead><tbody>{rows}</tbody></table>'


def study(source: str, *_: Any, **__: Any) -> str:
    """Return what a command printed, from the file of that name in ``docs/studies/printed``."""
    file = PRINTED / f"{source.strip()}.txt"
    if not file.is_file():
        raise ValueError(f"{file.name} is not among what was printed")
    return f'<pre class="study" tabindex="0"><code>{escape(file.read_text(encoding="utf-8"))}</code></pre>'


def _named(path: str) -> type[Options]:
    package, _, name = path.rpartition(".")
    owner = getattr(import_module(package), name)
    if not (isinstance(owner, type) and issubclass(owner, Options)):
        raise TypeError(f"{path} has no options")
    return owner


def _option_row(option: Option) -> str:
    bound = f", {escape(str(option.bound))}" if option.bound is not None else ""
    default = "the method's own" if isinstance(option.default, PromptSet) else _code(repr(option.default))
    kind = f"{escape(_kind(option.kind))}{bound}<br>default {default}"
    return f"<tr><td>{_code(option.name)}</td><td>{kind}</td><td>{_prose(option.doc)}</td></tr>"


def _kind(kind: Any) -> str:
    """Return a type in a user's words."""
    origin = get_origin(kind)
    if origin is typing.Annotated:
        return _kind(get_args(kind)[0])
    if origin is Literal:
        return " or ".join(f'"{choice}"' for choice in get_args(kind))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_kind, get_args(kind))))
    words = {
        types.NoneType: "None",
        int: "integer",
        float: "number",
        str: "text",
        bool: "yes or no",
        tuple: "list",
    }
    found = origin or kind
    return words.get(found) or {"Mapping": "mapping", "Callable": "function"}.get(
        found.__name__, found.__name__
    )


def _code(text: str) -> str:
    return f"<code>{escape(text)}</code>"


def _prose(doc: str) -> str:
    """Return an option's sentences with the marks of docstrings taken out."""
    plain = re.sub(r":\w+:`~?([^`]+)`", r"``\1``", doc)
    return re.sub(r"``(.+?)``", r"<code>\1</code>", escape(plain, quote=False))
