"""Draws the pictures of the methods, the packages and the home page as SVG: ``python -m studies.drawings``.

Boxes are filled and their text is dark, so that the pictures are legible on a white and on a black page.
Pictures of methods are 420 pixels wide, so that a phone shows them nearly at full size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from studies.pages import ROOT

ASSETS = ROOT / "docs" / "assets"
INK, LINE = "#1b2430", "#7a8290"
FILLS = {
    "data": "#dfe5ee",
    "reader": "#cfe1fb",
    "search": "#fbe3b5",
    "choice": "#eadcf8",
    "result": "#c9ebcf",
    "frame": "none",
}
"""Colours of boxes by their kind: data, a call of the reader, a search, a decision, or a result."""
LEADING = 18
"""Pixels from one line of text to the next."""


class Box(NamedTuple):
    """A box with its place in pixels, its text and its kind; the text of a frame is at its top."""

    x: int
    y: int
    width: int
    height: int
    text: str
    kind: str = "data"


class Arrow(NamedTuple):
    """A line through points with a tip at its end.

    The label is centred at ``at``, or at the middle of the first segment if ``at`` is None.
    """

    points: Sequence[tuple[int, int]]
    label: str = ""
    at: tuple[int, int] | None = None


class Drawing(NamedTuple):
    """A picture: its size, a description for readers who cannot see it, its boxes and its arrows."""

    width: int
    height: int
    title: str
    boxes: Sequence[Box]
    arrows: Sequence[Arrow]


def down(x: int, top: int, bottom: int, label: str = "") -> Arrow:
    """Return an arrow that points down."""
    return Arrow([(x, top), (x, bottom)], label)


DRAWINGS: Mapping[str, Drawing] = {
    "answer": Drawing(
        420,
        284,
        "A question goes through your pipeline, unchanged. Its answer comes with a certainty. A sure answer "
        "is shown. In place of an unsure answer the user reads: I do not know.",
        [
            Box(120, 6, 180, 34, "Question"),
            Box(100, 66, 220, 34, "Your pipeline, unchanged", "reader"),
            Box(100, 126, 220, 34, "Answer and its certainty", "choice"),
            Box(14, 222, 180, 52, "The user reads\nthe answer", "result"),
            Box(226, 222, 180, 52, "The user reads\n“I do not know”", "search"),
        ],
        [
            down(210, 40, 64),
            down(210, 100, 124),
            Arrow([(160, 160), (104, 220)], "sure", (112, 190)),
            Arrow([(260, 160), (316, 220)], "unsure", (312, 190)),
        ],
    ),
    "lazy-rag": Drawing(
        420,
        356,
        "The reader answers from summaries. If it is sure, the answer is returned. If it is unsure, a "
        "search follows, and the reader answers again from summaries and passages.",
        [
            Box(120, 6, 180, 34, "Question"),
            Box(90, 66, 240, 50, "Reader begins to answer\nfrom summaries", "reader"),
            Box(130, 142, 160, 40, "Is the reader sure?", "choice"),
            Box(14, 226, 150, 50, "Reader continues\nthis answer", "reader"),
            Box(226, 226, 180, 34, "Search", "search"),
            Box(226, 284, 180, 66, "Reader answers\nfrom summaries\nand passages", "reader"),
            Box(14, 306, 150, 44, "Answer", "result"),
        ],
        [
            down(210, 40, 64),
            down(210, 116, 140),
            Arrow([(150, 182), (89, 224)], "yes", (96, 200)),
            Arrow([(270, 182), (316, 224)], "no, or “I do not know”", (328, 200)),
            down(89, 276, 304),
            down(316, 260, 282),
            Arrow([(226, 328), (166, 328)]),
        ],
    ),
    "dynqr": Drawing(
        420,
        430,
        "The reader answers. If the answer is certain, it is returned. If it is uncertain, the query "
        "is rewritten, a second search follows, and the reader answers again. The more certain answer"
        " is returned.",
        [
            Box(120, 6, 180, 34, "Question"),
            Box(120, 64, 180, 34, "Search", "search"),
            Box(120, 122, 180, 34, "Reader answers", "reader"),
            Box(110, 180, 200, 40, "Is the answer certain?", "choice"),
            Box(14, 380, 150, 44, "Answer", "result"),
            Box(206, 262, 206, 34, "Reader rewrites the query", "reader"),
            Box(206, 316, 206, 34, "Search and answer again", "search"),
            Box(206, 374, 206, 50, "Keep the more\ncertain answer", "choice"),
        ],
        [
            down(210, 40, 62),
            down(210, 98, 120),
            down(210, 156, 178),
            Arrow([(140, 220), (89, 260), (89, 378)], "yes", (92, 236)),
            Arrow([(270, 220), (309, 260)], "no", (318, 236)),
            down(309, 296, 314),
            down(309, 350, 372),
            Arrow([(206, 400), (166, 400)]),
        ],
    ),
    "edc2": Drawing(
        420,
        388,
        "By default the reader judges each passage, and the passages that help most are kept whole. "
        "As in the paper, passages can also be clustered and each cluster compressed. The reader "
        "answers from the passages that are left.",
        [
            Box(90, 6, 240, 34, "Question, and passages found"),
            Box(8, 66, 196, 250, "Select (the default)", "frame"),
            Box(216, 66, 196, 250, "Compress (the paper)", "frame"),
            Box(18, 98, 176, 52, "Remove passages\nthat others contain", "data"),
            Box(18, 174, 176, 52, "Ask the reader: does\nthis passage help?", "reader"),
            Box(18, 250, 176, 52, "Keep the best third,\nword for word", "choice"),
            Box(226, 98, 176, 52, "Cluster\nsimilar passages", "data"),
            Box(226, 174, 176, 52, "Reader shortens\neach cluster", "reader"),
            Box(226, 250, 176, 52, "Remove sentences that\nno passage supports", "choice"),
            Box(90, 346, 240, 36, "Reader answers", "reader"),
        ],
        [
            Arrow([(150, 40), (106, 64)]),
            Arrow([(270, 40), (314, 64)]),
            down(106, 150, 172),
            down(106, 226, 248),
            down(314, 150, 172),
            down(314, 226, 248),
            Arrow([(106, 316), (150, 344)]),
            Arrow([(314, 316), (270, 344)]),
        ],
    ),
    "dense": Drawing(
        420,
        428,
        "The reader answers from the passages, and again with each passage reworded. If the answers "
        "agree, the context is certain. If they differ, passages that confuse the reader are removed, "
        "similar passages are added, and the new context is measured.",
        [
            Box(90, 6, 240, 34, "Question, and passages found"),
            Box(90, 66, 240, 50, "Reader answers, and again\nwith each passage reworded", "reader"),
            Box(110, 142, 200, 40, "Do the answers agree?", "choice"),
            Box(14, 226, 130, 50, "The context\nis certain", "result"),
            Box(186, 226, 196, 50, "Which passages\nchange the answer?", "choice"),
            Box(186, 300, 196, 50, "Remove passages that\nare unnecessary", "data"),
            Box(186, 374, 196, 48, "Add passages similar\nto necessary ones", "search"),
        ],
        [
            down(210, 40, 64),
            down(210, 116, 140),
            Arrow([(150, 182), (79, 224)], "yes", (90, 200)),
            Arrow([(250, 182), (284, 224)], "no", (294, 200)),
            down(284, 276, 298),
            down(284, 350, 372),
            Arrow([(382, 398), (406, 398), (406, 91), (332, 91)], "measure again", (358, 128)),
        ],
    ),
    "seper": Drawing(
        420,
        336,
        "The reader samples answers without passages and with them. A judge decides which samples mean "
        "the reference answer. ΔSePer is the belief in it with passages, minus the belief without.",
        [
            Box(14, 6, 186, 50, "Question\nwithout passages"),
            Box(220, 6, 186, 50, "Question\nwith passages"),
            Box(14, 82, 186, 50, "Reader samples\n10 answers", "reader"),
            Box(220, 82, 186, 50, "Reader samples\n10 answers", "reader"),
            Box(14, 158, 392, 34, "Judge: do they mean the reference answer?", "choice"),
            Box(14, 218, 186, 36, "Belief without"),
            Box(220, 218, 186, 36, "Belief with"),
            Box(
                40,
                284,
                340,
                46,
                "ΔSePer = belief with − belief without:\nwhat the passages are worth to this reader",
                "result",
            ),
        ],
        [
            down(107, 56, 80),
            down(313, 56, 80),
            down(107, 132, 156),
            down(313, 132, 156),
            down(107, 192, 216),
            down(313, 192, 216),
            Arrow([(107, 254), (150, 282)]),
            Arrow([(313, 254), (270, 282)]),
        ],
    ),
    "rooms": Drawing(
        640,
        520,
        "Your pipeline calls an integration, which calls a component. The component's method is a "
        "generator that yields effects. A driver answers each effect from a service: reader, "
        "retriever, encoder or entailer.",
        [
            Box(110, 6, 420, 34, "Your pipeline: LangChain or LlamaIndex"),
            Box(
                110,
                72,
                420,
                50,
                "integrations/langchain_surerag, llama_index_surerag\n"
                "chains, engines, retrievers, postprocessors",
                "result",
            ),
            Box(8, 152, 624, 362, "src/surerag: the core", "frame"),
            Box(40, 184, 240, 50, "component\nrun, arun, run_many, stream", "reader"),
            Box(360, 184, 240, 50, "options and prompts,\nwith their defaults", "data"),
            Box(40, 274, 240, 68, "methods/: generators\nlazy_rag, edc2, dynqr,\ndense, seper", "choice"),
            Box(360, 274, 240, 68, "measures/\nformulas of the papers,\nand statistics", "data"),
            Box(40, 384, 240, 50, "drivers/\nrun, batch and stream", "search"),
            Box(360, 384, 240, 50, "services: reader, retriever,\nencoder, entailer", "search"),
            Box(360, 464, 240, 36, "models, servers, indexes", "data"),
            Box(40, 464, 240, 36, "result, usage, events", "result"),
        ],
        [
            Arrow([(320, 40), (320, 70)], "1 question", (372, 56)),
            Arrow([(160, 122), (160, 182)], "2", (180, 137)),
            Arrow([(160, 234), (160, 272)], "3 program", (206, 253)),
            Arrow([(360, 209), (282, 209)]),
            Arrow([(360, 308), (282, 308)]),
            Arrow([(110, 342), (110, 382)], "4 effect", (70, 362)),
            Arrow([(210, 382), (210, 344)], "6 value", (252, 362)),
            Arrow([(280, 409), (358, 409)], "5", (319, 409)),
            Arrow([(480, 434), (480, 462)]),
            Arrow([(160, 434), (160, 462)], "7", (180, 448)),
        ],
    ),
}


def svg(drawing: Drawing) -> str:
    """Return a drawing as SVG."""
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{drawing.height}" '
            f'viewBox="0 0 {drawing.width} {drawing.height}" role="img" font-family="system-ui, sans-serif" '
            f'font-size="14" text-anchor="middle" fill="{INK}">'
        ),
        f"<title>{escape(drawing.title)}</title>",
        (
            f'<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>'
        ),
    ]
    for box in sorted(drawing.boxes, key=lambda box: box.kind != "frame"):
        parts += _box(box)
    for arrow in drawing.arrows:
        path = "L".join(f"{x} {y}" for x, y in arrow.points)
        parts.append(
            f'<path d="M{path}" fill="none" stroke="{LINE}" stroke-width="1.6" marker-end="url(#tip)"/>'
        )
    for arrow in drawing.arrows:
        if arrow.label:
            (x0, y0), (x1, y1) = arrow.points[:2]
            x, y = arrow.at or ((x0 + x1) // 2, (y0 + y1) // 2)
            width = 7 * len(arrow.label) + 12
            parts += [
                (
                    f'<rect x="{x - width / 2:g}" y="{y - 10}" width="{width}" height="20" rx="10" '
                    'fill="#f4f6f9"/>'
                ),
                f'<text x="{x}" y="{y + 4.5:g}" font-size="13">{escape(arrow.label)}</text>',
            ]
    return "\n".join([*parts, "</svg>\n"])


def _box(box: Box) -> list[str]:
    lines = box.text.split("\n")
    dash = ' stroke-dasharray="4 4"' if box.kind == "frame" else ""
    parts = [
        (
            f'<rect x="{box.x}" y="{box.y}" width="{box.width}" height="{box.height}" rx="8" '
            f'fill="{FILLS[box.kind]}" stroke="{LINE}"{dash}/>'
        )
    ]
    first = box.y + box.height / 2 - LEADING * (len(lines) - 1) / 2 + 5
    if box.kind == "frame":
        first = box.y + 21
    colour = f' fill="{LINE}" font-weight="bold"' if box.kind == "frame" else ""
    for at, line in enumerate(lines):
        place = f'x="{box.x + box.width / 2:g}" y="{first + LEADING * at:g}"'
        parts.append(f"<text {place}{colour}>{escape(line)}</text>")
    return parts


def main(folder: Path = ASSETS) -> None:
    """Write all drawings."""
    for name, drawing in DRAWINGS.items():
        (folder / f"{name}.svg").write_text(svg(drawing), encoding="utf-8")


if __name__ == "__main__":
    main()
