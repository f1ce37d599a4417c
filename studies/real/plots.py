"""Draws the plots of the pages from the summaries into ``docs/assets``: ``python -m studies.real.plots``.

Text and lines have a grey that is legible on white and on black.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.pages import ROOT, read_summary
from surerag.certainty import DEFAULT_MEASURE
from surerag.errors import extra

ASSETS = ROOT / "docs" / "assets"
INK, BETTER, WORSE, PLAIN = "#7a8290", "#2a9d4a", "#d9534f", "#7a8290"

FOREST: Sequence[tuple[str, Sequence[tuple[str, str, str, str]]]] = (
    (
        "Compared with plain RAG",
        (
            ("L-RAG − always searching", "gatesnew-qwen", "lazy", "difference"),
            ("DynQR · Disfl-QA", "rewriting-qwen", "DynQR", "difference"),
            ("EDC² · HotpotQA", "compressiondev-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · HotpotQA, repeats", "compressionrepeatsnew-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · 2Wiki", "compression2wiki-qwen", "EDC² top 3 whole", "difference"),
            ("EDC² · SQuAD 2.0", "compressionsquad-qwen", "EDC² top 3 whole", "difference"),
            ("DENSE refiner · HotpotQA", "refiningdev-qwen", "DENSE refined", "difference"),
        ),
    ),
    (
        "Compared with a cheap alternative",
        (
            ("L-RAG − random searches", "gatesnew-qwen", "at random, as often as lazy", "gate_ahead"),
            ("EDC² − filter · HotpotQA", "compressiondev-qwen", "EmbeddingsFilter", "ahead"),
            ("EDC² − filter · 2Wiki", "compression2wiki-qwen", "EmbeddingsFilter", "ahead"),
            ("EDC² − filter · SQuAD 2.0", "compressionsquad-qwen", "EmbeddingsFilter", "ahead"),
        ),
    ),
)
"""Groups of the forest plot; each row has a label, a summary, a system in it, and the column to draw."""


def forest(path: Path) -> None:
    """Draw the differences in right answers, with their intervals."""
    figure, axes = _figure(5.6, 4.6)
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
    """Draw the share of right answers among the most certain ones, against the share of answers shown.

    Args:
        path: File of the picture.
        summaries: For each curve a label and the name of a summary of the study of certainty.
    """
    figure, axes = _figure(5, 3.4)
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
    axes.set_xlabel("share of answers shown (most certain first), %")
    axes.set_ylabel("shown answers that are right, %")
    axes.set_xlim(20, 100)
    legend = axes.legend(frameon=False, loc="best")
    for text in legend.get_texts():
        text.set_color(INK)
    _save(figure, path)


COSTS: Sequence[tuple[str, str, Mapping[str, str]]] = (
    (
        "SQuAD 2.0: L-RAG",
        "gatesnew-qwen",
        {"summary": "never searching", "always": "always searching", "lazy": "L-RAG"},
    ),
    (
        "HotpotQA, 10 passages: EDC²",
        "compressiondev-qwen",
        {"plain": "plain RAG", "EmbeddingsFilter": "EmbeddingsFilter", "EDC² top 3 whole": "EDC²"},
    ),
    (
        "Disfl-QA: DynQR",
        "rewriting-qwen",
        {
            "plain": "plain RAG",
            "RePhraseQuery": "RePhraseQuery",
            "HyDE": "HyDE",
            "DynQR": "DynQR",
            "rewritten always": "rewriting always",
        },
    ),
    (
        "HotpotQA: DENSE refiner",
        "refiningdev-qwen",
        {"plain": "plain RAG", "plain 6": "six passages", "DENSE refined": "DENSE refiner"},
    ),
)
"""Panels of right answers against tokens: a title, a summary, and the labels of its systems."""
OURS = ("L-RAG", "EDC²", "DynQR", "DENSE refiner")
BELOW = ("always searching", "RePhraseQuery")
"""Labels to write below the interval, so that they do not overlap other labels."""


def right_against_tokens(path: Path) -> None:
    """Draw the share of right answers of each system, with its interval, against the tokens of a question."""
    figure, panels = _figure(5, 8.8, len(COSTS))
    for axes, (title, name, labels) in zip(panels.flat, COSTS, strict=True):
        rows = {row["system"]: row for row in read_summary(name)["rows"]}
        points = sorted((rows[system]["tokens"], rows[system]["right"], labels[system]) for system in labels)
        for tokens, (middle, lower, upper), label in points:
            colour = BETTER if label in OURS else PLAIN
            axes.plot([tokens, tokens], [lower, upper], color=colour, linewidth=2)
            axes.plot([tokens], [middle], "o", color=colour, markersize=6)
            above = label not in BELOW
            axes.annotate(
                label,
                (tokens, upper if above else lower),
                (0, 5 if above else -5),
                textcoords="offset points",
                ha="center",
                va="bottom" if above else "top",
                color=colour,
                fontsize=9,
            )
        axes.set_xscale("log")
        axes.margins(x=0.2, y=0.25)
        axes.set_title(title, color=INK, fontsize=10, loc="left")
        axes.set_ylabel("right, %")
        ticks = sorted({_rounded(points[0][0]), _rounded(points[-1][0])})
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
    panels[-1, 0].set_xlabel("tokens of a question, all calls together")
    _save(figure, path)


def _rounded(value: float) -> float:
    return float(f"{value:.1g}")


def _figure(width: float, height: float, panels: int = 1) -> tuple[Any, Any]:
    with extra("evaluation"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_alpha(0)
    drawn = figure.subplots(panels, squeeze=False)
    for axes in drawn.flat:
        _without_frame(axes)
    return figure, drawn if panels > 1 else drawn[0, 0]


def _without_frame(axes: Any) -> None:
    axes.set_facecolor("none")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(INK)
    axes.tick_params(colors=INK, labelsize=9)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.grid(axis="x", color=INK, alpha=0.2, linewidth=0.5)


def _save(figure: Any, path: Path) -> None:
    with extra("evaluation"):
        import matplotlib as mpl
    path.parent.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "surerag", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Draw all pictures."""
    forest(ASSETS / "expect_forest.svg")
    right_against_tokens(ASSETS / "right_against_tokens.svg")
    certainty_curves(
        ASSETS / "certainty_curve.svg",
        [("SQuAD 2.0, six articles", "certainty-qwen"), ("HotpotQA, five passages", "certaintyhotpot-qwen")],
    )


if __name__ == "__main__":
    main()
