"""The table as a page: which part works with which kind of model, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tests.models.parts import House
from tests.models.trying import Cell, Model, Outcome

SIGNS: Mapping[Outcome, str] = {
    "works": "yes",
    "works, with a note": "yes, warns",
    "refuses": "no",
    "fails": "**fails**",
}
_HEAD = """# Which model can do what: {title}

This page is written by a command, `make models`, from runs of every part with every kind of model. A provider
stands there as a server on one's own machine that behaves as its documentation says, with its refusals in its
own words; the client libraries are the providers' own. **Nothing here was tried on the services themselves.**

- **yes**: the part did what it is for;
- **yes, warns**: it did, and said what it had to leave out;
- **no**: it refuses, at construction or at the first call, and says what to change. The reasons stand below.

Parts that need only text work with any model. Without log-probabilities, L-RAG and DynQR go by the
disagreement of a few sampled answers (`gate="disagreement"`, `metric="disagreement"`), and ΔSePer weights
answers by how often they come (`weights="frequency"`). `surerag doctor --base-url … --model …` asks a server
of your own.
"""


def page(house: House, found: Sequence[tuple[Model, Sequence[Cell]]]) -> str:
    """Return a house's page as Markdown."""
    names = [cell.part for cell in found[0][1]]
    rows = [[model.name, *(SIGNS[cell.outcome] for cell in cells)] for model, cells in found]
    title = "the core" if house == "core" else house
    lines = [_HEAD.format(title=title), *_table(["model", *names], rows), "", "## What was sent and said", ""]
    for model, cells in found:
        note = f" ({model.note})" if model.note else ""
        lines += [f"**{model.name}**{note}", "", *_details(cells), ""]
    return "\n".join(lines)


def _details(cells: Sequence[Cell]) -> list[str]:
    """Say what was sent, what came out where it was not plain, and what was told, each once."""
    sent: dict[tuple[str, ...], list[str]] = {}
    said: dict[str, list[str]] = {}
    for cell in cells:
        if cell.requests:
            sent.setdefault(cell.sent, []).append(cell.part)
        if cell.outcome in ("refuses", "fails"):
            said.setdefault(cell.said, []).append(cell.part)
        for told in cell.told:
            said.setdefault(told, []).append(cell.part)
    lines = [f"- sent for {_listed(names)}: {_code(what)}" for what, names in sent.items()]
    return lines + [f"- {_listed(names)}: {_plain(what)}" for what, names in said.items()]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _code(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "nothing but the prompt"


def _plain(text: str) -> str:
    """Return a message as text: what is markup in it is shown as it is."""
    text = re.sub(r"127\.0\.0\.1:\d+", "SERVER", text)
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
