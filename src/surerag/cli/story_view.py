"""A story on a terminal of any width from forty columns on."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from surerag.evaluation.story import Chapter, Line, Story

_STYLES = {"plain": "", "soft": "dim", "good": "green", "bad": "red"}
_BAR = 10


def story_view(story: Story) -> RenderableType:
    """Show a story: the question, then a chapter for each method."""
    head = [Text(story.question, style="bold")]
    if story.gold:
        head.append(Text(f"Right would be: {story.gold}", style="dim"))
    head.append(Text(story.chosen, style="dim"))
    return Group(*head, *(_chapter(number, one) for number, one in enumerate(story.chapters, 1)))


def _chapter(number: int, chapter: Chapter) -> RenderableType:
    parts: list[RenderableType] = [
        Rule(style="dim"),
        Text(f"{number}. {chapter.method}: {chapter.asks}", style="bold"),
    ]
    if chapter.lines:
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=max(6, min(14, max(len(line.label) for line in chapter.lines))), style="dim")
        grid.add_column(ratio=1)
        for line in chapter.lines:
            grid.add_row(line.label, _text(line))
        parts.append(grid)
    cost = f" ({chapter.cost})" if chapter.cost else ""
    parts.append(Text.assemble((f"{chapter.means}", "italic"), (cost, "dim")))
    return Padding(Group(*parts), (1, 0, 0, 0))


def _text(line: Line) -> Text:
    text = Text(line.text, style=_STYLES[line.tone])
    if line.bar is None:
        return text
    length = min(_BAR, round(_BAR * abs(line.bar)))
    colour = "red" if line.bar < 0 else "blue"
    return Text.assemble(("█" * length, colour), ("·" * (_BAR - length), "dim"), " ", text)
