"""Trade-offs as one HTML page that loads nothing from elsewhere; whatever models say is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from surerag.evaluation.pages import data_uri, template
from surerag.records.tradeoff.curve import TradeOff
from surerag.records.tradeoff.tables import trade_off_grids

LOADING = {
    "l-rag": """policy = Policy.load("{file}")
settings = dict({settings})
engine = LazyRetrievalQueryEngine.from_args(index, reader, threshold=policy, **settings)  # LlamaIndex
chain = LazyRetrievalChain(reader, retriever, summaries, threshold=policy, **settings)  # LangChain""",
    "dynqr": """policy = Policy.load("{file}")
settings = dict({settings})
engine = UncertaintyRewriteQueryEngine.from_args(  # LlamaIndex
    index, reader, threshold=policy, **settings
)
part = UncertaintyRewriter(llm=reader, retriever=retriever, threshold=policy, **settings)  # LangChain""",
    "edc2": """policy = Policy.load("{file}")
settings = dict({settings})
part = ClusterCompressorPostprocessor(llm=reader, threshold=policy, **settings)  # LlamaIndex
part = ClusterCompressor(llm=reader, threshold=policy, **settings)  # LangChain""",
}
"""How a policy is used: with the reader that was calibrated, and the settings that it belongs to."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A trade-off, where its files are, and the settings that its policy belongs to.

    Attributes:
        found: The trade-off.
        pictures: SVG files.
        file: The policy's file, as the page names it.
        settings: Of the pipeline, as keyword arguments.
    """

    found: TradeOff
    pictures: tuple[Path, ...]
    file: str
    settings: str

    @property
    def code(self) -> str:
        """Lines that load the policy in both frameworks."""
        return LOADING[self.found.method].format(file=self.file, settings=self.settings)


def render_trade_offs(shown_: Sequence[Shown], *, title: str, lead: str, footer: str = "") -> str:
    """Return the page.

    Args:
        shown_: A part for each.
        title: Heading.
        lead: What was run.
        footer: How to get this page again.

    Raises:
        MissingExtraError: If the template engine is not installed.
    """
    return template("trade_off.html.jinja", capitalise=_capitalised, what=_what).render(
        title=title, lead=lead, footer=footer, parts=[_part(one) for one in shown_]
    )


def _part(one: Shown) -> dict[str, Any]:
    found = one.found
    return {
        "model": found.model,
        "verb": found.verb,
        "method": found.method,
        "verdict": found.policy.verdict,
        "promise": found.policy.promise,
        "words": found.words,
        "grids": trade_off_grids(found),
        "pictures": [(data_uri(file), _caption(found, at)) for at, file in enumerate(one.pictures)],
        "file": one.file,
        "code": one.code,
    }


def _caption(found: TradeOff, number: int) -> str:
    if number:
        return "Milliseconds a question, by how long one retrieval takes."
    what = "Score" if found.scored == "gold answers" else "Agreement with always acting"
    return f"{what}, by the share of questions that {found.verb}."


def _capitalised(text: str) -> str:
    """Return a text whose first letter is a capital; the others stay."""
    return text[:1].upper() + text[1:]


def _what(title: str) -> str:
    """Return a table's title without whose it is, which stands above."""
    return _capitalised(title.rpartition(": ")[2])
