"""Reference pages: every public name of a module with its signature, docstring and source.

Griffe reads the docstrings; signatures come from the objects, as ``help`` and a notebook show them.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Collection, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import griffe
from pydantic import BaseModel

from surerag.methods import methods_by_name
from surerag.signatures import public_fields

ROOT = Path(__file__).parents[1]
REPOSITORY = "https://github.com/surerag/surerag/blob/main"
PACKAGES = ("surerag", "langchain_surerag", "llama_index_surerag")
MODULES = {
    "surerag": "This module has the methods, the gates, the readers, and the certainty of an answer.",
    "langchain_surerag": "This package has the methods as components of LangChain pipelines.",
    "llama_index_surerag": "This package has the methods as components of LlamaIndex pipelines.",
    "surerag.evaluation": "This module asks systems the same questions and compares their answers.",
    "surerag.calibration": "This module chooses thresholds with guarantees.",
    "surerag.training": "This module trains a rewriter for DynQR.",
    "surerag.errors": "These are the errors that surerag raises, and how to mend their causes.",
    "surerag.measures": "These functions are the formulas of the papers.",
    "surerag.documents": "This module reads files as documents.",
    "surerag.retrieval": "This module has indexes in memory, and summaries of documents.",
    "surerag.encoders": "Encoders turn texts into vectors.",
    "surerag.entailment": "Entailers judge whether one text entails another.",
    "surerag.drivers": "Drivers run methods: in a thread, async, in batches, or as streams.",
}
"""The documented modules with a description of each."""
WIDTH = 88

_GROUPS = {
    "surerag.certainty": "Certainty of an answer",
    "surerag.methods.second_opinion": "Certainty of an answer",
    **{".".join(one.__module__.split(".")[:3]): name for name, one in methods_by_name().items()},
    "surerag.calibration": "Calibration and evaluation",
    "surerag.evaluation": "Calibration and evaluation",
    "surerag.readers": "Readers and data",
    "surerag": "Readers and data",
}
_ROLE = re.compile(r":\w+:`~?([\w.]+)`")
_LITERAL = re.compile(r"``(.+?)``", re.DOTALL)
_LITERAL_BLOCK = re.compile(r"::\n\n((?: {4}.*\n?|\n)+)")
_DOCTEST = re.compile(r"^(?:>>>|\.\.\.) ?")


def public_names(module: str) -> dict[str, Any]:
    """Return the public names of a module with their values: those of ``__all__``, or what it defines."""
    loaded = import_module(module)
    names = getattr(loaded, "__all__", None) or [
        name
        for name, value in vars(loaded).items()
        if not name.startswith("_") and getattr(value, "__module__", "") == module and has_source(value)
    ]
    values = {name: getattr(loaded, name) for name in names}
    return {name: value for name, value in values.items() if not isinstance(value, ModuleType)}


def has_source(value: Any) -> bool:
    """Whether a value is a class or a function, and not a constant or a type alias."""
    return inspect.isclass(value) or inspect.isroutine(value)


def reference_page(module: str) -> str:
    """Return the page of a module as Markdown: a list of its names, and a section for each."""
    names = public_names(module)
    groups: dict[str, list[str]] = {}
    for name, value in names.items():
        groups.setdefault(_group_of(module, value), []).append(name)
    order = [*dict.fromkeys(_GROUPS.values()), ""]
    titles = sorted(groups, key=lambda title: order.index(title) if title in order else len(order))
    lines = [f"# {module}", "", MODULES[module], ""]
    for title in titles:
        lines += [f"**{title}**", ""] if title else []
        lines += [f"- [`{name}`](#{module}.{name}): {_first_sentence(names[name])}" for name in groups[title]]
        lines.append("")
    for title in titles:
        for name in groups[title]:
            lines += _section(module, name, names[name], names)
    shared = _shared_bases(names)
    if shared:
        lines += ["## Shared methods", "", "Several classes above inherit these methods.", ""]
    for base in shared:
        lines += [f"### {base.__name__} {{#{_anchor(base)}}}", "", *_text(_summary(base)), ""]
        lines += _methods(base, 4)
    return "\n".join(lines).rstrip() + "\n"


def _group_of(module: str, value: Any) -> str:
    """Return the group of a name in the list of a page; the packages of frameworks are one group."""
    if module != "surerag":
        return ""
    home = _home_of(value)
    return next(title for prefix, title in _GROUPS.items() if f"{home}.".startswith(f"{prefix}."))


def _home_of(value: Any) -> str:
    own = getattr(value, "__module__", None)
    return own if isinstance(own, str) else "surerag.methods.edc2" if isinstance(value, str) else "surerag"


def _section(module: str, name: str, value: Any, names: Collection[str]) -> list[str]:
    """Return the section of a name: signature, docstring, methods, and a link to its source."""
    lines = [f"## {name} {{#{module}.{name}}}", ""]
    if not has_source(value):
        return [*lines, *_code([f"{name} = {_plain_value(value)}"]), *_text(_constant_doc(module, name)), ""]
    lines += _code(_signature_lines(name, value))
    lines += _docstring(value, names)
    if inspect.isclass(value):
        lines += _methods(value, 3)
        inherited = [base for base in _our_bases(value) if list(_own_methods(base))]
        if inherited:
            several = [
                f"{', '.join(f'`{name}`' for name, _ in _own_methods(base))} of {base.__name__}"
                for base in inherited
            ]
            lines += [f"Further methods: {'; '.join(several)}.", ""]
    return [*lines, f"[Source]({source_link(value)})", ""]


def source_link(value: Any) -> str:
    """Return the address of the line where a class or function begins."""
    value = inspect.unwrap(value)
    file = Path(inspect.getsourcefile(value) or "").resolve()
    line = inspect.getsourcelines(value)[1]
    return f"{REPOSITORY}/{file.relative_to(ROOT).as_posix()}#L{max(line, 1)}"


def _signature_lines(name: str, value: Any) -> list[str]:
    """Return a signature of at most ``WIDTH`` columns, on one line or with a line for each parameter."""
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return [f"{name}(...)"]
    parameters = [item for item in signature.parameters.values() if item.name not in ("self", "cls")]
    texts, keyword_only = [], False
    for item in parameters:
        if item.kind is item.KEYWORD_ONLY and not keyword_only:
            keyword_only = True
            if not any(one.kind is one.VAR_POSITIONAL for one in parameters):
                texts.append("*")
        texts.append(_parameter_text(value, item))
    returned = signature.return_annotation
    shown = "" if returned in (signature.empty, "None", None) else f" -> {_annotation_text(returned)}"
    prefix = "async " if inspect.iscoroutinefunction(value) or inspect.isasyncgenfunction(value) else ""
    line = f"{prefix}{name}({', '.join(texts)}){shown}"
    if len(line) <= WIDTH:
        return [line]
    return [f"{prefix}{name}(", *[part for text in texts for part in _cut(f"    {text},")], f"){shown}"]


def _cut(line: str) -> list[str]:
    """Return a line of a signature, cut before a bar of its type or after a comma where it is too long."""
    lines = [line]
    while len(lines[-1]) > WIDTH:
        breaks = [match.start() for match in re.finditer(r" (?=\| )|(?<=,) ", lines[-1][:WIDTH])]
        if not breaks or breaks[-1] < len("        | "):
            break
        lines[-1:] = [lines[-1][: breaks[-1]], f"        {lines[-1][breaks[-1] + 1 :]}"]
    return lines


def _parameter_text(value: Any, item: inspect.Parameter) -> str:
    stars = 2 if item.kind is item.VAR_KEYWORD else int(item.kind is item.VAR_POSITIONAL)
    text = "*" * stars + item.name
    if item.annotation is not item.empty:
        text += f": {_annotation_text(item.annotation)}"
    if item.default is not item.empty:
        text += f" = {_default_text(value, item)}"
    return text


def _default_text(value: Any, item: inspect.Parameter) -> str:
    text = repr(item.default)
    if text == "<factory>" and dataclasses.is_dataclass(value):
        factory: Any = next(one.default_factory for one in dataclasses.fields(value) if one.name == item.name)
        text = repr(factory())
    if inspect.isroutine(item.default) or isinstance(item.default, type):
        text = str(item.default.__name__)
    text = re.sub(r"<(?:[\w.]*\.)?(\w+) object at 0x\w+>", r"\1()", text)
    return text if len(text) < WIDTH else f"{type(item.default).__name__}(...)"


def _annotation_text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(text))


def _docstring(value: Any, listed: Collection[str] = ()) -> list[str]:
    """Return the docstring of a class or function as Markdown, without the options of ``listed`` classes."""
    lines: list[str] = []
    document = griffe.Docstring(inspect.getdoc(value) or "", parser="google")
    for section in document.parse(warnings=False):
        kind, content = section.kind.value, section.value
        if kind == "text":
            lines += _text(content)
        elif kind == "attributes":
            lines += _parameters(value, content, "Attributes", ())
        elif kind == "parameters":
            is_model = inspect.isclass(value) and issubclass(value, BaseModel)
            lines += _parameters(value, content, "Options" if is_model else "Arguments", listed)
        elif kind in ("raises", "warns"):
            title = "Errors" if kind == "raises" else "Warnings"
            lines += _definitions(title, [(f"`{item.annotation}`", "", item.description) for item in content])
        elif kind in ("returns", "yields"):
            lines += [f"**{kind.title()}**", "", *_text(" ".join(item.description for item in content)), ""]
        elif kind == "admonition":
            lines += [f"**{section.title or content.kind.title()}**", "", *_example(content.contents)]
        elif kind == "examples":
            lines += ["**Example**", "", *_example("\n".join(text for _, text in content))]
        lines.append("")
    return lines


def _parameters(value: Any, items: list[Any], title: str, listed: Collection[str]) -> list[str]:
    """Return arguments or attributes; the options of ``listed`` base classes are named by a link."""
    bases = inspect.getmro(value)[1:] if inspect.isclass(value) else ()
    shared = [base for base in bases if base.__name__ in listed and issubclass(base, BaseModel)]
    elsewhere = {name for base in shared for name in public_fields(base)}
    lines = []
    if elsewhere:
        names = ", ".join(f"[`{base.__name__}`](#{_anchor(base)})" for base in shared)
        lines += [f"Its options are those of {names}.", ""]
    own = [item for item in items if item.name not in elsewhere]
    return [
        *lines,
        *_definitions(title, [(f"`{item.name}`", _type_of(value, item), item.description) for item in own]),
    ]


def _type_of(value: Any, item: Any) -> str:
    """Return type, bounds and default of an argument or attribute, as docstring or signature have them."""
    if isinstance(item.annotation, str) and "default " in item.annotation:
        return item.annotation
    parameters = inspect.signature(value).parameters
    name = item.name.lstrip("*")
    if item.name.startswith("**"):
        return ""
    if name in parameters and parameters[name].annotation is not inspect.Parameter.empty:
        text = _parameter_text(value, parameters[name]).partition(": ")[2]
        kind, equals, default = text.rpartition(" = ")
        return f"{kind}, default {default}" if equals else text
    annotation = getattr(value, "__annotations__", {}).get(name, item.annotation or "")
    return _annotation_text(annotation) if annotation else ""


def _definitions(title: str, entries: list[tuple[str, str, str]]) -> list[str]:
    """Return a definition list: names with types, and what they mean."""
    lines = [f"**{title}**", ""]
    for name, kind, text in entries:
        lines += [f"{name}{f' ({_code_types(kind)})' if kind else ''}"]
        body = _text(text)
        lines += [f":   {body[0] if body else ''}", *[f"    {line}".rstrip() for line in body[1:]], ""]
    return lines


def _code_types(text: str) -> str:
    """Set the type and the default of a summary as code: ``int, at least 1, default 3``."""
    match = re.fullmatch(
        r"(.*?)((?:, (?:at least|at most|above|below) [^,]+)*)(?:, default (.*))?", text, re.DOTALL
    )
    kind, bounds, default = match.groups() if match else (text, "", None)
    return f"`{kind}`{bounds}{f', default `{default}`' if default else ''}"


def _text(text: str) -> list[str]:
    """Return prose of a docstring as Markdown."""
    blocks: list[str] = []

    def hold(match: re.Match[str]) -> str:
        blocks.append(inspect.cleandoc(match[1]))
        return f":\n\n\0{len(blocks) - 1}\n\n"

    text = _LITERAL_BLOCK.sub(hold, f"{text}\n")
    text = _ROLE.sub(lambda match: f"`{match[1].removeprefix('surerag.')}`", text)
    text = _LITERAL.sub(lambda match: f"`{' '.join(match[1].split())}`", text)
    text = text.replace("<", "&lt;") if "<" in re.sub(r"`[^`]*`", "", text) else text
    for index, block in enumerate(blocks):
        text = text.replace(f"\0{index}", "\n".join(_code(block.splitlines())).strip())
    return text.strip().splitlines()


def _example(text: str) -> list[str]:
    """Return a doctest as code without prompts; what it prints stands in comments."""
    lines = []
    for line in text.splitlines():
        code = _DOCTEST.sub("", line)
        prints = not _DOCTEST.match(line) and line.strip()
        lines.append(f"# {line}" if prints else code.partition("  # doctest:")[0])
    if all(len(line) <= WIDTH for line in lines):
        return _code(lines)
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", str(WIDTH), "-"]
    code = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout  # noqa: S603  # its own words
    cut = [
        textwrap.wrap(line, WIDTH, subsequent_indent="#   ") or [""] if line[:1] == "#" else [line]
        for line in code.splitlines()
    ]
    return _code([line for lines in cut for line in lines])


def _code(lines: list[str]) -> list[str]:
    return ["```python", *lines, "```", ""]


def _methods(kind: type, level: int) -> list[str]:
    """Return the methods and properties that a class itself defines."""
    lines = []
    for name, value in _own_methods(kind):
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        lines += [f"{'#' * level} {kind.__name__}.{name} {{#{_anchor(kind)}.{name}}}", ""]
        if not isinstance(value, property):
            lines += _code(_signature_lines(name, function))
        lines += _docstring(function)
    return lines


def _own_methods(kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties with a docstring that a class itself defines."""
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        ours = inspect.isfunction(function) and function.__module__.split(".")[0] in PACKAGES
        if ours and not name.startswith("_") and function.__doc__:
            yield name, value


def _our_bases(kind: type) -> list[type]:
    """Return the bases of a class that these packages define."""
    return [base for base in kind.__mro__[1:] if base.__module__.split(".")[0] in PACKAGES]


def _shared_bases(names: dict[str, Any]) -> list[type]:
    """Return the bases with methods that are no public names themselves, each once."""
    bases = dict.fromkeys(
        base for value in names.values() if inspect.isclass(value) for base in _our_bases(value)
    )
    return [base for base in bases if base not in names.values() and list(_own_methods(base))]


def _anchor(kind: type) -> str:
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def _summary(value: Any) -> str:
    return (inspect.getdoc(value) or "").partition("\n\n")[0]


def _first_sentence(value: Any) -> str:
    """Return the first sentence of a docstring on one line, without its full stop."""
    if not has_source(value):
        return _plain_value(value)
    return " ".join(_text(_summary(value))).rstrip(".:")


def _plain_value(value: Any) -> str:
    text = repr(value)
    return text if len(text) < WIDTH else type(value).__name__


def _constant_doc(module: str, name: str) -> str:
    """Return the docstring below a constant, from its source."""
    home = getattr(import_module(module), "_MODULE_OF", {}).get(name, module)
    file = Path(str(import_module(home).__file__))
    found = griffe.visit(home, file, file.read_text(encoding="utf-8")).members[name]
    if isinstance(found, griffe.Alias):
        return _constant_doc(found.target_path.rpartition(".")[0], name)
    return found.docstring.value if found.docstring else ""
