"""Pictures of the documentation: what happens inside each method, and what measuring it looks like.

``python -m tools.draw_pictures`` draws them into ``docs/pictures``; ``--measure`` first measures anew, on the
closed world, what is drawn from numbers (``docs/pictures/measured.json``: seed, n and all). Each picture has
a ground of its own in both colour schemes, so that it can be read on any page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).parent.parent / "docs" / "pictures"
MEASURED = FOLDER / "measured.json"
WIDTH = 400
LEFT, MIDDLE, RIGHT = 105, 200, 295
LINE, GAP, EDGE = 16, 30, 16

Kind = Literal["given", "reader", "search", "ask", "answer", "gone"]

STYLE = """
  .ground { fill: #ffffff }
  text { fill: #1c1f24; font: 13px system-ui, "Segoe UI", Roboto, Arial, sans-serif }
  .small { font-size: 11.5px } .strong { font-weight: 600 } .soft { fill: #5d6470 }
  rect.given { fill: #f1f3f6; stroke: #8a929e } rect.reader { fill: #e3eefa; stroke: #1b6ca8 }
  rect.search { fill: #fdebdd; stroke: #b4622a } rect.ask { fill: #fff7d9; stroke: #9a7a12 }
  rect.answer { fill: #e4f3e3; stroke: #3c7a3b }
  rect.gone { fill: none; stroke: #8a929e; stroke-dasharray: 4 3 }
  path.arrow, path.line { fill: none; stroke: #5d6470; stroke-width: 1.4 } path.head { fill: #5d6470 }
  .up { fill: #3c7a3b } .down { fill: #b3422f } .whole { fill: #7c8592 } .curve { fill: none; stroke: #1b6ca8;
  stroke-width: 2 } .band { fill: #1b6ca8; opacity: .16 } .mark { fill: #1b6ca8 } .other { fill: #c8553d }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #16191e } text { fill: #e4e7eb } .soft { fill: #a3abb6 }
    rect.given { fill: #23272e } rect.reader { fill: #14314a; stroke: #6cb4ec }
    rect.search { fill: #40281a; stroke: #e0a470 } rect.ask { fill: #3a3212; stroke: #d9bb54 }
    rect.answer { fill: #1b3a1f; stroke: #86c983 }
    path.arrow, path.line { stroke: #a3abb6 } path.head { fill: #a3abb6 }
    .up { fill: #58a05a } .down { fill: #d8695a } .curve { stroke: #6cb4ec } .band { fill: #6cb4ec }
    .mark { fill: #6cb4ec } .other { fill: #ef8d7d }
  }
"""


@dataclass(frozen=True, slots=True)
class Box:
    """A step.

    Attributes:
        kind: What sort of step it is, which decides its colour.
        lines: Its text; the first is set off.
    """

    kind: Kind
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """A method as steps from top to bottom.

    Attributes:
        title: What the drawing shows, also for those who cannot see it.
        rows: One box in the middle, or two side by side; None leaves a place empty.
        arrows: From a box to a box, each as (row, place), with what is written beside it.
    """

    title: str
    rows: tuple[tuple[Box | None, ...], ...]
    arrows: tuple[tuple[tuple[int, int], tuple[int, int], str], ...]


def _given(*lines: str) -> Box:
    return Box("given", lines)


def _reader(*lines: str) -> Box:
    return Box("reader", lines)


def _search(*lines: str) -> Box:
    return Box("search", lines)


def _ask(*lines: str) -> Box:
    return Box("ask", lines)


def _answer(*lines: str) -> Box:
    return Box("answer", lines)


def _gone(*lines: str) -> Box:
    return Box("gone", lines)


FLOWS: Mapping[str, Flow] = {
    "lazy-rag": Flow(
        "L-RAG: it answers from summaries, and fetches passages only where it is unsure",
        (
            (_given("Question"),),
            (_search("Summaries", "two sentences of each near document"),),
            (_reader("Reader begins to answer", "entropy of its first 8 tokens"),),
            (_ask("Unsure?", "mean entropy above τ"),),
            (_answer("It goes on", "nothing is read twice"), _search("Passages", "are fetched")),
            (None, _reader("Reader begins anew", "summaries and passages")),
            (None, _answer("Answer")),
        ),
        (
            ((0, 0), (1, 0), ""), ((1, 0), (2, 0), ""), ((2, 0), (3, 0), ""), ((3, 0), (4, 0), "no"),
            ((3, 0), (4, 1), "yes"), ((4, 1), (5, 1), ""), ((5, 1), (6, 1), ""),
        ),
    ),
    "seper": Flow(
        "ΔSePer: how much more the reader believes in the right answer with what was fetched",
        (
            (_given("Question and right answer"),),
            (_reader("10 answers", "without passages"), _reader("10 answers", "with the passages")),
            (_ask("Which mean the", "right answer?"), _ask("Which mean the", "right answer?")),
            (_given("Belief before", "0 to 1"), _given("Belief after", "0 to 1")),
            (_answer("ΔSePer = after − before", "what the passages were worth"),),
        ),
        (
            ((0, 0), (1, 0), ""), ((0, 0), (1, 1), ""), ((1, 0), (2, 0), ""), ((1, 1), (2, 1), ""),
            ((2, 0), (3, 0), ""), ((2, 1), (3, 1), ""), ((3, 0), (4, 0), ""), ((3, 1), (4, 0), ""),
        ),
    ),
    "edc2-rag": Flow(
        "EDC²-RAG: similar passages together, and of each cluster only what is about the question",
        (
            (_given("Question and passages found"),),
            (_search("Clusters", "nearest to the question first, each", "twice as large as the one before"),),
            (
                _reader("Cluster 1", "extract what is", "about the question"),
                _reader("Cluster 2 …", "the same, in", "a call of its own"),
            ),
            (_ask("Does a source say it?", "what none says goes"), _gone("Nothing there?", "dropped")),
            (_answer("A short context", "each piece knows its sources"),),
        ),
        (
            ((0, 0), (1, 0), ""), ((1, 0), (2, 0), ""), ((1, 0), (2, 1), ""), ((2, 0), (3, 0), ""),
            ((2, 1), (3, 1), ""), ((3, 0), (4, 0), ""),
        ),
    ),
    "dense-rag": Flow(
        "DENSE-RAG: an answer that changes with the wording was not understood",
        (
            (_given("Question and k passages"),),
            (
                _reader("Answer", "from the passages"),
                _reader("k answers, each", "with one passage", "in other words"),
            ),
            (_ask("Which answers mean the same?", "an entailment model, or the reader"),),
            (_given("DENSE, in nats", "0: the wording does not matter"),),
            (_answer("Up to 0.2:", "understood"), _ask("Above:", "which passages count?")),
            (None, _search("Those stay, others", "are exchanged", "for near ones")),
        ),
        (
            ((0, 0), (1, 0), ""), ((0, 0), (1, 1), ""), ((1, 0), (2, 0), ""), ((1, 1), (2, 0), ""),
            ((2, 0), (3, 0), ""), ((3, 0), (4, 0), ""), ((3, 0), (4, 1), ""), ((4, 1), (5, 1), ""),
        ),
    ),
    "dynqr": Flow(
        "DynQR: an unsure answer has the question rewritten, and the surer answer is kept",
        (
            (_given("Question"),),
            (_search("Passages", "for the question as asked"),),
            (_reader("Reader answers", "perplexity of its answer"),),
            (_ask("Unsure?", "perplexity above θ"),),
            (
                _answer("This is the answer", "nothing is rewritten"),
                _reader("Rewriter", "the question in", "other words"),
            ),
            (None, _search("Passages", "for the rewrite")),
            (None, _reader("Reader answers", "the question as asked")),
            (None, _answer("The surer of the two", "answers is kept")),
        ),
        (
            ((0, 0), (1, 0), ""), ((1, 0), (2, 0), ""), ((2, 0), (3, 0), ""), ((3, 0), (4, 0), "no"),
            ((3, 0), (4, 1), "yes"), ((4, 1), (5, 1), ""), ((5, 1), (6, 1), ""), ((6, 1), (7, 1), ""),
        ),
    ),
}  # fmt: skip


def flow(one: Flow) -> str:
    """Return a method's drawing."""
    tops, places, parts = [], {}, []
    top = EDGE
    for row, boxes in enumerate(one.rows):
        height = max(len(box.lines) for box in boxes if box is not None) * LINE + 14
        tops.append(top)
        for place, box in enumerate(boxes):
            if box is None:
                continue
            x = MIDDLE if len(boxes) == 1 else (LEFT, RIGHT)[place]
            width = 250 if len(boxes) == 1 else 174
            places[row, place] = (x, top, height)
            parts.append(
                f'<rect class="{box.kind}" x="{x - width / 2:g}" y="{top}" width="{width}" '
                f'height="{height}" rx="7"/>'
            )
            first = top + height / 2 - (len(box.lines) - 1) * LINE / 2 + 4.5
            for number, line in enumerate(box.lines):
                kind = "strong" if number == 0 else "small"
                parts.append(_text(x, first + number * LINE, line, kind))
        top += height + GAP
    for start, end, word in one.arrows:
        parts.append(_arrow(places[start], places[end], word))
    return _picture(one.title, WIDTH, top - GAP + EDGE, parts)


def waterfall(measured: Mapping[str, Any]) -> str:
    """Return what each passage added to the reader's belief, one after the other."""
    levels: Sequence[float] = measured["levels"]
    names = ["without", *(f"+ passage {number}" for number in range(1, len(levels))), "with all"]
    bars = [(0.0, levels[0]), *pairwise(levels), (0.0, levels[-1])]
    row, left, width = 34, 108, 230
    parts = [_text(16, 26, measured["question"], "strong", "start")]
    gold = f"right answer: {measured['gold']}; bars are belief in it, from 0 to 1"
    parts.append(_text(16, 44, gold, "small soft", "start"))
    for number, ((low, high), name) in enumerate(zip(bars, names, strict=True)):
        y = 60 + number * row
        whole = number in (0, len(bars) - 1)
        kind = "whole" if whole else "up" if high >= low else "down"
        x, length = left + width * min(low, high), max(width * abs(high - low), 1.5)
        parts.append(_text(left - 8, y + 15, name, "small", "end"))
        parts.append(f'<rect class="{kind}" x="{x:.1f}" y="{y}" width="{length:.1f}" height="20" rx="2"/>')
        change = f"{high:.2f}" if whole else f"{high - low:+.2f}"
        parts.append(_text(left + width * max(low, high) + 6, y + 15, change, "small", "start"))
        if number < len(bars) - 1:
            at = left + width * high
            parts.append(f'<path class="line" d="M{at:.1f} {y + 20} V{y + row}"/>')
    bottom = 60 + len(bars) * row + 12
    told = [
        f"ΔSePer {levels[-1] - levels[0]:+.2f}: what all passages together were worth.",
        f"Passage {_best(levels)} holds the answer; the others do not help."
        if measured["gold_passage"] == _best(levels)
        else f"Passage {_best(levels)} adds most.",
        f"World seed {measured['seed']}, {measured['n_samples']} samples each.",
    ]
    parts += [
        _text(16, bottom + number * 17, line, "small soft", "start") for number, line in enumerate(told)
    ]
    return _picture("A waterfall of ΔSePer", WIDTH, bottom + 2 * 17 + 14, parts)


def trade_off(measured: Mapping[str, Any]) -> str:
    """Return accuracy against retrieval over a gate's thresholds, with intervals."""
    sweep = sorted(measured["sweep"], key=lambda point: point["retrieval"])
    floor = min(min(point["low"] for point in sweep), measured["none"]) - 0.03
    ceiling = max(point["high"] for point in sweep) + 0.03
    left, top, width, height = 52, 50, 320, 210

    def at(retrieval: float, accuracy: float) -> str:
        y = top + height * (1 - (accuracy - floor) / (ceiling - floor))
        return f"{left + width * retrieval:.1f} {y:.1f}"

    upper = [at(point["retrieval"], point["high"]) for point in sweep]
    lower = [at(point["retrieval"], point["low"]) for point in reversed(sweep)]
    middle = [at(point["retrieval"], point["accuracy"]) for point in sweep]
    parts = [
        _text(16, 26, "What a gate trades: right answers for fetches", "strong", "start"),
        f'<path class="band" d="M{" L".join(upper + lower)} Z"/>',
        f'<path class="curve" d="M{" L".join(middle)}"/>',
        f'<path class="line" d="M{left} {top} V{top + height} H{left + width}"/>',
    ]
    parts += [
        _text(left + width * share, top + height + 17, f"{100 * share:.0f} %", "small soft")
        for share in (0, 0.25, 0.5, 0.75, 1)
    ]
    for tenth in range(11):
        if floor <= tenth / 10 <= ceiling and tenth % 2 == 0:
            _, level = at(0, tenth / 10).split()
            parts.append(_text(left - 6, float(level) + 4, f"{10 * tenth} %", "small soft", "end"))
    parts.append(_text(left + width / 2, top + height + 36, "questions that fetch", "small"))
    chosen = measured["chosen"]["retrieval"], measured["chosen"]["accuracy"]
    for point, name, kind, anchor, dx, dy in (
        ((0.0, measured["none"]), "never fetches, no summaries", "other", "start", 9, 4),
        ((1.0, measured["standard"]), "always fetches", "other", "end", 0, 22),
        (chosen, "calibrated τ", "mark", "middle", 0, -12),
    ):
        x, y = map(float, at(*point).split())
        parts.append(f'<circle class="{kind}" cx="{x}" cy="{y}" r="5.5"/>')
        parts.append(_text(x + dx, y + dy, name, "small", anchor))
    told = f"World seed {measured['seed']}, {measured['n']} questions; band: 95 % interval."
    parts.append(_text(16, top + height + 60, told, "small soft", "start"))
    return _picture(
        "Accuracy against retrievals over the threshold of a gate", WIDTH, top + height + 76, parts
    )


def tokens(measured: Mapping[str, Any]) -> str:
    """Return what became of a context's tokens, cluster by cluster."""
    clusters = measured["clusters"]
    total = sum(one["before"] for one in clusters)
    left, width = 16, 368
    parts = [_text(16, 26, "Where a compressor's tokens went", "strong", "start")]
    parts.append(_text(16, 44, f"“{measured['query']}”", "small soft", "start"))
    parts.append(_text(16, 60, f"{total} tokens were found.", "small soft", "start"))
    y = 78
    for number, one in enumerate(clusters, 1):
        before = width * one["before"] / total
        after = width * one["after"] / total
        name = f"Cluster {number}: {one['passages']} passages, {one['before']} → {one['after']} tokens"
        parts.append(_text(left, y + 12, name, "small", "start"))
        parts.append(f'<rect class="gone" x="{left}" y="{y + 20}" width="{before:.1f}" height="22" rx="3"/>')
        if one["after"]:
            shown = f'width="{max(after, 2):.1f}" height="22" rx="2"'
            parts.append(f'<rect class="up" x="{left}" y="{y + 20}" {shown}/>')
        parts.append(_text(left, y + 60, one["kept"] or f"dropped: {one['reason']}", "small soft", "start"))
        y += 78
    kept = sum(one["after"] for one in clusters)
    told = (
        f"{total} tokens became {kept}; {measured['read']} were read once for that. Seed {measured['seed']}."
    )
    parts.append(_text(16, y + 6, told, "small soft", "start"))
    return _picture("Where a compressor's tokens went", WIDTH, y + 22, parts)


def pictures(measured: Mapping[str, Any]) -> dict[str, str]:
    """Return every picture by its file's name."""
    drawn = {f"{name}.svg": flow(one) for name, one in FLOWS.items()}
    drawn["waterfall.svg"] = waterfall(measured["waterfall"])
    drawn["trade-off.svg"] = trade_off(measured["trade_off"])
    drawn["tokens.svg"] = tokens(measured["tokens"])
    return drawn


def measure(results: Path, seed: int = 1) -> dict[str, Any]:
    """Measure what is drawn from numbers.

    Args:
        results: ``results.json`` of ``surerag demo --seed SEED``; its sweep is the gate's trade-off.
        seed: Of the world.
    """
    from surerag import ClusterCompressor, SePer
    from surerag.encoders import packaged_minilm
    from surerag.entailment import JudgeEntailer
    from surerag.world import QuestionKind, Source, World, embedded_reader
    from surerag.world.tiers import index_world

    world, encoder, reader = World(seed=seed), packaged_minilm(), embedded_reader()
    tiers = index_world(world, encoder)
    asked = world.questions(20, [QuestionKind.SINGLE], sources=[Source.DEEP])
    found = [(one, tiers.passages.retrieve(one.text, 4)) for one in asked]
    # The first question whose answer is found, but not in the first place: there is something to see.
    question, shown = next(
        (one, top) for one, top in found if one.gold_passages[0] in [passage.id for passage in top[1:]]
    )
    seper = SePer(reader, JudgeEntailer(reader), max_tokens=16)
    golds = question.answers[:1]
    steps = [seper.run(question.text, golds, shown[:count]) for count in range(1, len(shown) + 1)]
    held = [at for at, one in enumerate(shown, 1) if one.id in question.gold_passages]
    compressed = ClusterCompressor(reader, encoder).run(
        question.text, tiers.passages.retrieve(question.text, 8)
    )
    report = json.loads(results.read_text(encoding="utf-8"))
    if report["seed"] != seed:
        raise ValueError(f"{results} is of seed {report['seed']}, wanted {seed}")
    report = report["report"]
    modes = {row["label"]: row for row in report["modes"]}
    chosen = modes["L-RAG (calibrated)"]
    return {
        "waterfall": {
            "seed": seed, "n_samples": seper.n_samples, "question": question.text, "gold": golds[0],
            "gold_passage": held[0] if held else 0,
            "levels": [
                _rounded(value) for value in (steps[0].before.seper, *(one.after.seper for one in steps))
            ],
        },
        "trade_off": {
            "seed": seed, "n": report["n"],
            "sweep": [
                {"retrieval": _rounded(point["retrieval"]["value"]),
                 "accuracy": _rounded(point["accuracy"]["value"]),
                 "low": _rounded(point["accuracy"]["low"]), "high": _rounded(point["accuracy"]["high"])}
                for point in report["sweep"]
            ],
            "none": _rounded(modes["No retrieval"]["accuracy"]["value"]),
            "standard": _rounded(modes["Standard RAG"]["accuracy"]["value"]),
            "chosen": {
                "retrieval": _rounded(chosen["retrieval"]["value"]),
                "accuracy": _rounded(chosen["accuracy"]["value"]),
            },
        },
        "tokens": {
            "seed": seed, "query": question.text, "read": compressed.prompt_tokens,
            "clusters": [
                {"passages": len(one.members), "before": one.tokens_before, "after": one.tokens_after,
                 "kept": one.text, "reason": one.reason}
                for one in compressed.clusters
            ],
        },
    }  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Draw all pictures; after ``--measure RESULTS``, from new numbers."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if arguments:
        _, results = arguments
        found = json.dumps(measure(Path(results)), indent=1, ensure_ascii=False)
        MEASURED.write_text(found + "\n", encoding="utf-8")
    for name, text in pictures(json.loads(MEASURED.read_text(encoding="utf-8"))).items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def _best(levels: Sequence[float]) -> int:
    return max(range(1, len(levels)), key=lambda at: levels[at] - levels[at - 1])


def _rounded(value: float) -> float:
    return round(value, 3)


def _arrow(start: tuple[float, float, float], end: tuple[float, float, float], word: str) -> str:
    (x0, top, height), (x1, y1, _) = start, end
    y0 = top + height
    bend = y0 + (y1 - y0) / 2
    path = f"M{x0:g} {y0:g} V{y1 - 7:g}" if x0 == x1 else f"M{x0:g} {y0:g} V{bend:g} H{x1:g} V{y1 - 7:g}"
    head = f'<path class="head" d="M{x1 - 4:g} {y1 - 8:g} h8 l-4 8 z"/>'
    left = x1 < x0
    told = (
        _text(x1 + (-8 if left else 8), bend + 11, word, "small", "end" if left else "start") if word else ""
    )
    return f'<path class="arrow" d="{path}"/>{head}{told}'


def _text(x: float, y: float, words: str, kind: str, anchor: str = "middle") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _picture(title: str, width: float, height: float, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">\n<title>{escape(title)}</title>\n'
        f'<style>{STYLE}</style>\n<rect class="ground" width="100%" height="100%" rx="10"/>\n'
        f"{inside}\n</svg>\n"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
