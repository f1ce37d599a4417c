"""Fills the pages with tables and figures from the summaries of the studies: ``python -m studies.pages``.

A summary is a JSON file with the results of one study, in ``studies/real/results`` or ``studies/results``.
The name of a summary is the name of its file. ``NAME.TABLE`` is one of several tables in the file.

A table of a page stands between ``<!-- table NAME -->`` and ``<!-- end -->``, and has the rows of the summary
NAME. The table ``legend`` explains the columns of the page's other tables. The figures of a sentence come
from a list of sources after the sentence:
``L-RAG answers 81.0 % of 200 questions right. <!-- from gates-qwen / lazy / right; n -->``.

A source is ``SUMMARY / ROW / COLUMN``. A source can leave out its first parts, and then has those of the
source before. The row ``run`` holds the settings of the study. ``COLUMN %`` is a share in percent,
``COLUMN #2`` is the second figure of a cell with several figures, ``= FUNCTION(…)`` calls a function of
``surerag.measures``, and ``−COLUMN`` reverses the sign, for losses. A new figure has as many digits as the
old figure in the text, and has an interval only if the old figure has an interval. A figure that comes from
no study needs a word of :data:`REASONS` as its source. A table that is written by hand needs such a word,
too, in ``<!-- rows from REASON -->`` above the table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from studies.captions import CAPTIONS, COLUMNS, HEADS, READERS, ROWS, SETS
from surerag import measures
from surerag.evaluation.findings import MANY

STUDIES = Path(__file__).parent
RESULTS = (STUDIES / "real" / "results", STUDIES / "results")
ROOT = STUDIES.parent
README = STUDIES / "README.md"

REASONS = {
    "paper": "the figure is in the paper that the sentence names",
    "option": "the figure is the value of an option, a default, or the size of a prompt or model",
    "set-up": "the figure is a setting of the study, in its command or its code",
    "example": "the figure is an example or a unit",
}
"""Words that replace the source of a figure that comes from no study, and the meanings of the words."""

TWO_DIGITS = ("auroc", "auroc_ahead", "own_auroc", "r", "reference_difference", "reference_ahead")
WHOLE = ("tokens", "read", "further tokens", "break_even_ms")
SHARES = (
    "answered", "wrong among them", "broken", "exact", "hit", "context_share", "fell_back", "gold_shown",
    "all_gold_shown",
)  # fmt: skip


def read_summary(name: str) -> dict[str, Any]:
    """Return the summary with a name; for ``NAME.TABLE``, the key ``rows`` holds the rows of TABLE.

    Raises:
        LookupError: If no summary has the name, or the summary does not have the table.
    """
    file, _, table = name.partition(".")
    for folder in RESULTS:
        if (path := folder / f"{file}.json").exists():
            summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            if table in summary:
                return summary | {"rows": summary[table]}
            if not table:
                return summary
    raise LookupError(f"no summary {name!r}")


def cell(column: str, value: Any) -> str:
    """Return a value of a summary as the text of a table's cell, in the form of the value's column."""
    if value is None:
        return ""
    if isinstance(value, list):
        digits = 2 if column in TWO_DIGITS else 1
        form = f"{'+' if column.endswith(('difference', 'ahead')) else ''}.{digits}f"
        middle, *ends = (format(one, form) for one in value if one is not None)
        return _minus(f"{middle} [{', '.join(ends)}]" if ends else middle)
    if isinstance(value, str):
        return value
    if column in SHARES:
        return f"{100 * value:.0f}"
    if column == "to_show":
        return f"{float(f'{value:.2g}'):,.0f}" if value <= MANY else f"over {MANY:,}"
    if column in WHOLE:
        return f"{value:.0f}"
    return _minus(f"{value:.2f}".rstrip("0").rstrip("."))


def _minus(text: str) -> str:
    return text.replace("-", "−")


def markdown(summary: Mapping[str, Any], only: Sequence[str] = (), *, source: str | None = None) -> str:
    """Return a summary as a Markdown table.

    Args:
        summary: Content of a file that :func:`studies.real.tables.add` or a study with ``--json`` wrote.
        only: Names of the systems to show, in this order. If the sequence is empty, all systems are shown.
        source: Name of the summary. The table then has a caption above and the date below; if ``source`` is
            None, the table has neither.
    """
    rows = summary["rows"]
    if only:
        named = {row["system"]: row for row in rows}
        rows = [named[name] for name in only]
    own = list(dict.fromkeys(column for row in rows for column in row))
    if real := "table" in summary:
        rows = [row | {"system": label_of(row["system"])} for row in rows]
    sizes = sorted({row["n"] for row in rows if real and "n" in row})
    columns = [name for name in (HEADS if real else own) if any(row.get(name) is not None for row in rows)]
    if real:
        columns = [name for name in columns if name != "n" or len(sizes) > 1]
    if source is None:
        columns = [name for name in columns if name != "break_even_ms"]
    lines = [
        f"| {' | '.join(HEADS.get(name, name) for name in columns)} |",
        f"|---|{'---:|' * (len(columns) - 1)}",
        *(f"| {' | '.join(cell(name, row.get(name)) for name in columns)} |" for row in rows),
    ]
    if source is not None:
        lines = [caption(summary, source, sizes), "", *lines, "", measured(summary, source, sizes)]
    return "\n".join(lines)


_AT_RANDOM, _UNCERTAIN = "at random, as often as ", ", uncertain questions"
_GATE = re.compile(r"(?:entropy, )?τ = ([\d.]+)(, may abstain)?")


def label_of(system: str) -> str:
    """Return the words with which the tables show a system of a summary.

    Example:
        >>> label_of("at random, as often as τ = 0.5, may abstain")
        'search at random, as often as the rule “entropy above 0.5, or an abstention” searches'
    """
    if system in ROWS:
        return ROWS[system]
    if match := _GATE.fullmatch(system):
        return f"search if entropy is above {match[1]}{', or after an abstention' if match[2] else ''}"
    if system.startswith(_AT_RANDOM):
        gate = _GATE.fullmatch(system.removeprefix(_AT_RANDOM))
        rule = (
            f"the rule “entropy above {gate[1]}{', or an abstention' if gate[2] else ''}”"
            if gate
            else "L-RAG"
        )
        return f"search at random, as often as {rule} searches"
    if system.endswith(_UNCERTAIN):
        return f"{label_of(system.removesuffix(_UNCERTAIN))}{_UNCERTAIN}"
    dataset, colon, measure = system.partition(": ")
    return f"{dataset}: {label_of(measure)}" if colon else system


def caption(summary: Mapping[str, Any], name: str, sizes: Sequence[int]) -> str:
    """Return sentences about a table: the model and the data set, what a row is, and what follows."""
    begun = ""
    if sizes and "seed" in summary:  # recorded data have no seed
        reader, data = READERS.get(summary["reader"], summary["reader"]), SETS[summary["set"]]
        fewer = (
            f", and for some rows of the table only {sizes[0]} of these questions"
            if sizes[0] < sizes[-1]
            else ""
        )
        begun = f"We asked {reader} {sizes[-1]} questions of {data}{fewer}. "
    return f"{begun}{CAPTIONS.get(name, '')}".rstrip()


def measured(summary: Mapping[str, Any], name: str, sizes: Sequence[int]) -> str:
    """Return a sentence with the date of a table, and a link to the command that measures the table again."""
    parts = [f"We measured this table on {summary['date']}"]
    if spent := summary.get("cpu_hours"):
        parts.append(f"in {spent} CPU hours")
    if sizes and summary.get("asked", 0) > max(sizes):
        parts.append(f"on {max(sizes)} of {summary['asked']} planned questions, because the time ran out")
    anchor = name.partition(".")[0].replace(".", "")
    link = f"https://github.com/surerag/surerag/blob/main/studies/README.md#{anchor}"
    return f"{' '.join(parts)} ([command]({link}))."


# Sentences

_NUMBER = r"[+−]?(?:\d[\d,]*(?<!,)(?:\.\d+)?|\.\d+)"
FIGURE = re.compile(rf"(?<![\w.,/#§-])({_NUMBER})(\s+\[{_NUMBER}, {_NUMBER}\])?(?![\w-]|[.,]\d)")
"""Matches a number, with its interval if it has one."""

NAMES = re.compile(
    r"`[^`]*`"  # code
    r"|^[ \t]*\d+\. "  # items of a list
    r"|\]\([^)]*\)"  # where a link leads
    r"|<[^>]*>"  # comments and tags
    r"|\$[^$]*\$"
    r"|SQuAD 2\.0|[Tt]ier 1|CC BY-SA 4\.0"
    r"|arXiv \d+\.\d+"
    r"|\b95 %"  # the level of all intervals
    r"|\b(?:19|20)\d\d\b"  # years
    r"|\bMB\b"
    r"|\b(?:Eq\.|Tables?|Figures?|[Ss]ections?|Algorithms?|[Ll]ines?|[Aa]ppendix|Definition|Python|[Nn]otebook)"
    r" [A-Z]?\.?[\d.]*\d(?:(?:,| and| to| or|–) [A-Z]?\.?[\d.]*\d)*",
    re.MULTILINE,
)
"""Matches numbers that need no source: in code, names, places in a paper, years, the level of intervals."""

_SOURCES = re.compile(r"<!-- from (?P<sources>[^>]*?) -->")
_START = re.compile(
    r"\n[ \t]*\n|^[ \t]*(?:[-*]|\d+\.) |^:   |<!-- from [^>]*? -->|<!-- end -->|^\|", re.MULTILINE
)


def figures(text: str) -> list[re.Match[str]]:
    """Return all numbers of a text except those in names and references."""
    return list(FIGURE.finditer(NAMES.sub(lambda match: " " * len(match[0]), text)))


def sentences(page: str) -> Iterator[tuple[int, int, str]]:
    """Yield each list of sources, after the start and the end of the text that the sources fill."""
    for match in _SOURCES.finditer(page):
        starts = [found.end() for found in _START.finditer(page, 0, match.start())]
        yield (starts[-1] if starts else 0), match.start(), match["sources"]


def source_values(sources: str) -> list[str | float | None]:
    """Return, for each source of a list, a number or the text of a cell; None for a word of :data:`REASONS`.

    Raises:
        LookupError: If a source names a summary, row or column that does not exist.
    """
    found: list[str | float | None] = []
    name = row = column = ""
    for source in (one.strip() for one in sources.split(";")):
        if source in REASONS:
            found.append(None)
        elif source.startswith("="):
            function, _, values = source[1:].strip().removesuffix(")").partition("(")
            found.append(float(getattr(measures, function)(*map(float, values.split(",")))))
        else:
            given = [part.strip() for part in source.split(" / ")]
            name, row, column = [name, row, column][: 3 - len(given)] + given
            found.append(_looked_up(name, row, column))
    return found


def _looked_up(name: str, row: str, column: str) -> str | float:
    minus, column = column.startswith("−"), column.removeprefix("−")
    column, _, which = column.partition(" #")
    summary = read_summary(name)
    rows = {"run": summary} | {one["system"]: one for one in summary.get("rows", ())}
    percent = column.endswith(" %") and column not in rows.get(row, ())
    column = column.removesuffix(" %") if percent else column
    if row not in rows or rows[row].get(column) is None:
        raise LookupError(f"{name} has no {column!r} of {row!r}")
    value = rows[row][column]
    if isinstance(value, int | float) and column != "to_show":
        shown = 100.0 * value if percent or column in SHARES else float(value)
        return -shown if minus else shown
    text = cell(column, [-value[at] for at in (0, 2, 1)] if minus else value)
    return FIGURE.findall(text)[int(which) - 1][0] if which else text


def in_form_of(value: str | float, before: str) -> str:
    """Return a new figure in the form of the old figure: as many digits, a sign and an interval or not."""
    if isinstance(value, str):
        value = value if "[" in before else value.split(" [")[0]
        return value if before[0] in "+−" else value.replace("+", "")
    digits = len(before.partition(".")[2])
    sign = "+" if before[0] in "+−" else ""
    return _minus(f"{value:{sign}{',' if ',' in before else ''}.{digits}f}")


def filled_sentence(text: str, sources: str) -> str:
    """Return a text in which the values of the sources, in their order, replace the figures.

    Raises:
        LookupError: If the numbers of figures and of sources differ, or a source does not exist.
    """
    places, values = figures(text), source_values(sources)
    if len(places) != len(values):
        raise LookupError(f"{len(places)} figures, {len(values)} sources: {text.strip()!r}")
    for place, value in reversed([*zip(places, values, strict=True)]):
        if value is not None:
            text = text[: place.start()] + in_form_of(value, place[0]) + text[place.end() :]
    return text


# Tables of several summaries

_ELSEWHERE = {
    "Qwen, HotpotQA, 20 passages": "compression20-qwen / EDC² top 6 whole",
    "Qwen, 2WikiMultiHopQA": "compression2wiki-qwen / EDC² top 3 whole",
    "Qwen, SQuAD 2.0, 10 paragraphs that a search found": "compressionsquad-qwen / EDC² top 3 whole",
    "Qwen, HotpotQA, 5 passages": "compression5-qwen / EDC² top 3 whole",
    "Qwen, HotpotQA, 10 passages, 5 of which repeat other passages": (
        "compressionrepeats-qwen / EDC² top 3 whole"
    ),
    "Qwen, HotpotQA, 10 passages, 5 of which repeat other passages; another sample of questions": (
        "compressionrepeatsnew-qwen / EDC² top 3 whole"
    ),
    "fine-tuned SmolLM2-135M, HotpotQA": "compressiondev-demo / EDC² top 3 whole",
    "fine-tuned SmolLM2-135M, HotpotQA, 10 passages, 5 of which repeat other passages": (
        "compressionrepeats-demo / EDC² top 3 whole"
    ),
    "SmolLM2-135M, HotpotQA": "compressiondev-smollm2 / EDC² top 3 whole",
}
_READERS = {"Qwen2.5-Coder-1.5B": "understanding-qwen", "fine-tuned SmolLM2-135M": "understanding-demo"}
_TRACED = {
    "right answers without a search, %": "right / without retrieval / %",
    "right answers after one search, %": "right / with one retrieval / %",
    "wrong answers that a search repairs, % of the questions": "right / questions that retrieval helps / %",
    "right answers that a search spoils, % of the questions": "right / questions that it hurts / %",
    "AUROC of perplexity for wrong answers to another prompt": "retrieving / perplexity / AUROC wrong",
    "AUROC of perplexity for answers that a search repairs": "retrieving / perplexity / AUROC helps",
    "right answers if the retriever is called for the most uncertain half of the questions, minus right "
    "answers if it is called for a random half, points": "retrieving / perplexity / gain at 50%",
}
COMPOSED: dict[str, tuple[Sequence[str], Mapping[str, str]]] = {
    "edc2-elsewhere": (
        ("", "questions", "EDC² minus plain RAG, points", "EDC² minus `EmbeddingsFilter`, points"),
        {label: f"{one} / n; difference; EmbeddingsFilter / ahead" for label, one in _ELSEWHERE.items()},
    ),
    "dense-readers": (
        (
            "AUROC of",
            *(f"{label}, n = {float(_looked_up(one, 'DSE', 'n')):.0f}" for label, one in _READERS.items()),
        ),
        {
            "DSE, for answers to DENSE-RAG's own prompt": "; ".join(
                f"{one} / DSE / own_auroc" for one in _READERS.values()
            ),
            "DSE, for plain RAG's answers": "; ".join(f"{one} / DSE / auroc" for one in _READERS.values()),
            "entropy, for plain RAG's answers": "; ".join(
                f"{one} / entropy / auroc" for one in _READERS.values()
            ),
        },
    ),
    "traces": (
        ("", "NQ", "TriviaQA"),
        {
            label: "; ".join(f"traces-llama.{name} {place}" for name in ("nq", "triviaqa"))
            for label, place in _TRACED.items()
        },
    ),
    "lazy-latency": (
        (
            "share of the questions for which the retriever is called",
            "break-even, ms",
            *(f"a search takes {ms} ms: ms saved per question" for ms in (200, 500, 1000)),
        ),
        {
            f"{rate:.0%}".replace("%", " %"): "; ".join(
                [
                    f"= break_even_latency({rate}, 50)",
                    *(f"= latency_saving({rate}, {one}, 50)" for one in (200, 500, 1000)),
                ]
            )
            for rate in (0.92, 0.74, 0.54)
        },
    ),
}
"""Tables made from several summaries: the heads of the columns, and for each row the sources of its cells."""


def composed(name: str) -> str:
    """Return the table of :data:`COMPOSED` with a name, in Markdown."""
    heads, rows = COMPOSED[name]
    cells = {
        label: [one if isinstance(one, str) else _minus(f"{one or 0:.0f}") for one in source_values(sources)]
        for label, sources in rows.items()
    }
    return "\n".join(
        [
            f"| {' | '.join(heads)} |",
            f"|---|{'---:|' * (len(heads) - 1)}",
            *(f"| {label} | {' | '.join(row)} |" for label, row in cells.items()),
        ]
    )


LEGEND = "legend"
"""Name of the table that explains the columns of the other tables of a page."""


def legend(page: str) -> str:
    """Return a table that explains each column of the tables of a page."""
    summaries = [
        read_summary(match["name"])
        for match in _TABLE.finditer(page)
        if match["name"] not in (LEGEND, *COMPOSED)
    ]
    rows = [row for summary in summaries if "table" in summary for row in summary["rows"]]
    names = [name for name in COLUMNS if any(row.get(name) is not None for row in rows)]
    lines = [f"| {head} | {meaning} |" for head, meaning in (COLUMNS[name] for name in names) if head]
    return "\n".join(["| column | meaning |", "|---|---|", *lines])


# Pages

_TABLE = re.compile(
    r"(<!-- table (?P<name>[^>]+?)(?P<bare> bare)?(?: only (?P<only>[^>]*?))? -->\n)"
    r".*?(?P<end><!-- end -->)",
    re.DOTALL,
)

_ROWS = re.compile(rf"<!-- rows from (?:{'|'.join(REASONS)}) -->\n(?:\|[^\n]*\n)+")


def filled(page: str) -> str:
    """Return the text of a page with all tables and figures filled from the summaries."""
    for start, end, sources in reversed([*sentences(page)]):
        page = page[:start] + filled_sentence(page[start:end], sources) + page[end:]

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        only = [one.strip() for one in (match["only"] or "").split(";") if one.strip()]
        if name == LEGEND or name in COMPOSED:
            table = legend(page) if name == LEGEND else f"{CAPTIONS[name]}\n\n{composed(name)}"
            return f"{match[1]}{table}\n{match['end']}"
        table = markdown(read_summary(name), only, source=None if match["bare"] else name)
        return f"{match[1]}{table}\n{match['end']}"

    return _TABLE.sub(fill, page)


_NO_SENTENCES = re.compile(
    r"^```.*?^```|^\n(?: {4}[^\n]*\n)+|^#[^\n]*$|<summary>.*?</summary>", re.MULTILINE | re.DOTALL
)
"""Matches code, headings, and titles of folded sections."""


def bare_figures(page: str) -> list[str]:
    """Return all figures without a source in the sentences of a page."""
    page = _NO_SENTENCES.sub("\n\n", page)
    page = _ROWS.sub("\n\n", _TABLE.sub("\n\n", page))
    for start, end, _ in reversed([*sentences(page)]):
        page = page[:start] + "\n\n" + page[end:]
    return [match[0] for match in figures(page)]


_COMMANDS = "<!-- commands -->\n"


def with_commands(page: str) -> str:
    """Return the page of commands; a list of all summaries with their dates and commands is its end."""
    parts = []
    for path in sorted((path for folder in RESULTS for path in folder.glob("*.json")), key=lambda p: p.stem):
        summary = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"### {path.stem}\n\n{summary['date']}\n\n```console\n$ {summary['command']}\n```\n")
    return page.partition(_COMMANDS)[0] + _COMMANDS + "\n" + "\n".join(parts)


def pages() -> list[Path]:
    """Return the paths of all pages that may hold tables and figures."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    """Fill the pages and the page of commands, and print the paths of the changed pages."""
    for path in (*pages(), README):
        text = path.read_text(encoding="utf-8")
        new = with_commands(text) if path == README else filled(text)
        if new != text:
            path.write_text(new, encoding="utf-8")
            print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
