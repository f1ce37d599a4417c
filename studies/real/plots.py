"""Draws the pictures of the pages from the summaries, into ``docs/assets``: ``python -m studies.real.plots``.

Text and lines are of a grey that can be read on white and on black.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from studies.real.tables import ROOT, read_summary
from surerag.certainty import DEFAULT_MEASURE
from surerag.errors import extra

ASSETS = ROOT / "docs" / "assets"
INK, BETTER, WORSE, PLAIN = "#7a8290", "#2a9d4a", "#d9534f", "#7a8290"

FOREST: Sequence[tuple[str, Sequence[tuple[str, str, str, str]]]] = (
    (
        "Against plain RAG (L-RAG: against always searching)",
        (
            ("L-RAG · SQuAD 2.0", "gatesnew-qwen", "lazy", "difference"),
            ("DynQR · Disfl-QA", "rewriting-qwen", "DynQR", "difference"),
            ("EDC² · HotpotQA, 10 passages", "compressiondev-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · HotpotQA, half repeats", "compressionrepeatsnew-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · 2WikiMultiHopQA", "compression2wiki-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · SQuAD 2.0, 10 paragraphs", "compressionsquad-qwen", "EDC² top 3 whole", "difference"),
            ("DENSE refiner · HotpotQA", "refiningdev-qwen", "DENSE refined", "difference"),
        ),
    ),
    (
        "Against the cheap alternative",
        (
            ("L-RAG − searching at random", "gatesnew-qwen", "at random, as often as lazy", "gate_ahead"),
            ("EDC² − EmbeddingsFilter · HotpotQA", "compressiondev-qwen", "EmbeddingsFilter", "ahead"),
            ("EDC² − EmbeddingsFilter · 2Wiki", "compression2wiki-qwen", "EmbeddingsFilter", "ahead"),
            ("EDC² − EmbeddingsFilter · SQuAD", "compressionsquad-qwen", "EmbeddingsFilter", "ahead"),
        ),
    ),
)
"""Rows of the forest plot: a label, a summary, a system in it, and the column with the difference."""


def forest(path: Path) -> None:
    """Draw the differences in right answers, with their intervals."""
    figure, axes = _figure(7.2, 4.6)
    place, labels = 0, []
    for title, rows in FOREST:
        labels.append((place, title, True))
        place += 1
        for label, name, system, column in rows:
            values = {row["system"]: row for row in read_summary(name)["rows"]}[system]
            middle, lower, upper = values[column]
            colour = BETTER if lower > 0 else WORSE if upper < 0 else PLAIN
            axes.plot([lower, upper], [place, place], color=colour, linewidth=2)
            axes.plot([middle], [place], "o", color=colour, markersize=6)
            labels.append((place, f"{label}, n = {values['n']}", False))
            place += 1
    axes.axvline(0, color=INK, linewidth=1)
    axes.set_ylim(place - 0.5, -0.7)
    axes.set_yticks([at for at, *_ in labels], [text for _, text, _ in labels])
    for tick, (_, _, bold) in zip(axes.get_yticklabels(), labels, strict=True):
        tick.set_fontweight("bold" if bold else "normal")
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("difference in right answers, points", loc="right")
    _save(figure, path)


def certainty_curves(path: Path, summaries: Sequence[tuple[str, str]]) -> None:
    """Draw what is right among the surest answers against the share of answers that is shown.

    Args:
        path: Of the picture.
        summaries: A label and a summary of the study of certainty for each curve.
    """
    figure, axes = _figure(6.4, 3.8)
    for place, (label, name) in enumerate(summaries):
        rows = {row["system"]: row for row in read_summary(name)["rows"]}
        curve = [point for point in rows[DEFAULT_MEASURE]["curve"] if point[0] >= 0.2]
        shares = [100 * share for share, *_ in curve]
        colour = ("#2a9d4a", "#3b82f6", "#d98e04")[place % 3]
        axes.plot(shares, [right for _, right, *_ in curve], color=colour, linewidth=2, label=label)
        axes.fill_between(
            shares,
            [one[2] for one in curve],
            [one[3] for one in curve],
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
    axes.set_xlabel("answers shown, the surest first, %")
    axes.set_ylabel("right among them, %")
    axes.set_xlim(20, 100)
    legend = axes.legend(frameon=False, loc="best")
    for text in legend.get_texts():
        text.set_color(INK)
    _save(figure, path)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    with extra("evaluation"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis="x", color=INK, alpha=0.2, linewidth=0.5)
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    with extra("evaluation"):
        import matplotlib as mpl
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "surerag", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw all pictures."""
    forest(ASSETS / "expect_forest.svg")
    certainty_curves(
        ASSETS / "certainty_curve.svg",
        [("SQuAD 2.0, six articles", "certainty-qwen"), ("HotpotQA, five passages", "certaintyhotpot-qwen")],
    )


if __name__ == "__main__":
    main()
