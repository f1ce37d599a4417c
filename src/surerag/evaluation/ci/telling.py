"""What a gate found, in words, as Markdown and as JUnit XML."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as ET

from surerag.evaluation.ci.condition import COSTS
from surerag.evaluation.ci.gate import LEAST_DISCORDANCE, Checked, Undecided
from surerag.visible import visible

WORDS = {"pass": "passes", "fail": "fails", "undecided": "cannot be told"}


def sentence(checked: Checked, confidence: float) -> str:
    """Say what a condition's test found."""
    judged, condition = checked.judged, checked.condition
    against = f"{condition.reference} " if condition.reference else ""
    bound = (
        f"{amount(checked, judged.low)} or more"
        if condition.better > 0
        else (f"{amount(checked, -judged.low)} or less")
    )
    difference = judged.difference * condition.better
    metric = condition.metric.replace("_", " ")
    return (
        f"{metric} of {condition.system} {level(checked, checked.value)}, {against}"
        f"{level(checked, checked.reference)}: {amount(checked, difference)} on {judged.n:,} questions; "
        f"with {100 * confidence:g} % confidence {bound}"
    )


def reason(checked: Checked) -> str:
    """Say why the outcome is what it is."""
    margin, condition = checked.condition.margin, checked.condition
    allowed = (
        "the bound holds"
        if margin <= 0 or not condition.reference
        else (f"no more than {size(checked, margin)} is lost")
    )
    if checked.outcome == "pass":
        return f"It is shown that {allowed}."
    if checked.outcome == "fail":
        worse = "something is lost" if margin > 0 and condition.reference else "the bound is broken"
        return f"It is not shown that {allowed}, and it is shown that {worse}."
    needs = checked.needed.get(margin)
    more = f" With this margin it takes about {needs:,} questions." if needs else ""
    return f"It is not shown that {allowed}, nor the contrary.{more}"


def operating(checked: Checked) -> list[str]:
    """Say what so many questions and this margin catch, and what other margins need."""
    lines = []
    assumed = "" if checked.discordance >= LEAST_DISCORDANCE else f" ({100 * LEAST_DISCORDANCE:g} % assumed)"
    if checked.curve:
        lines.append(
            f"With {checked.judged.n:,} questions of which {100 * checked.discordance:.1f} % differ"
            f"{assumed}, by what is true:"
        )
        lines += [
            f"{amount(checked, point.change)}: passes {_times(point.passes)}, fails {_times(point.fails)}, "
            f"cannot be told {_times(point.undecided)} of 100 times"
            for point in checked.curve
        ]
    elif checked.unchanged is not None:
        lines.append(f"A pipeline that did not change passes {_times(checked.unchanged)} of 100 times.")
    if checked.needed:
        told = ", ".join(
            f"{n:,} with a margin of {size(checked, margin)}" for margin, n in checked.needed.items()
        )
        lines.append(f"Questions for an unchanged pipeline to pass 95 of 100 times: {told}.")
    return lines


def markdown(found: Sequence[Checked], confidence: float, undecided: Undecided, lead: str = "") -> str:
    """Return a summary, as GitHub's ``GITHUB_STEP_SUMMARY`` takes it."""
    broken = [one for one in found if one.breaks(undecided)]
    lines = [f"## surerag compare: {'build broken' if broken else 'conditions hold'}", ""]
    lines += [_escaped(lead), ""] if lead else []
    lines += ["| Breaks the build if | Outcome | Found |", "| --- | --- | --- |"]
    lines += [
        f"| {_cell(f'{one.condition.text}')} | {_mark(one, undecided)} {WORDS[one.outcome]} "
        f"| {_cell(sentence(one, confidence))}. {_cell(reason(one))} |"
        for one in found
    ]
    for one in found:
        told = operating(one)
        if told:
            lines += [
                "",
                f"**{_escaped(one.condition.text)}**",
                "",
                *(f"- {_escaped(line)}" for line in told),
            ]
    return "\n".join(lines) + "\n"


def junit(found: Sequence[Checked], confidence: float, undecided: Undecided, seconds: float = 0.0) -> str:
    """Return JUnit XML: a test case for each condition; one that cannot be told is an error or skipped."""
    failures = sum(one.outcome == "fail" for one in found)
    open_ = sum(one.outcome == "undecided" for one in found)
    suite = ET.Element(
        "testsuite",
        name="surerag compare",
        tests=str(len(found)),
        failures=str(failures + (open_ if undecided == "fail" else 0)),
        errors="0",
        skipped=str(open_ if undecided == "pass" else 0),
        time=f"{seconds:.3f}",
    )
    for one in found:
        case = ET.SubElement(
            suite, "testcase", name=_xml(one.condition.text), classname="surerag.compare", time="0"
        )
        told = f"{sentence(one, confidence)}. {reason(one)}"
        if one.breaks(undecided):
            kind = "regression" if one.outcome == "fail" else "undecided"
            ET.SubElement(case, "failure", message=_xml(told), type=kind).text = _xml(
                "\n".join(operating(one))
            )
        elif one.outcome == "undecided":
            ET.SubElement(case, "skipped", message=_xml(told))
        ET.SubElement(case, "system-out").text = _xml("\n".join([told, *operating(one)]))
    root = ET.Element("testsuites")
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def level(checked: Checked, value: float) -> str:
    """Write a value in the metric's unit."""
    if checked.condition.is_share:
        return f"{100 * value:.1f} %" if abs(value) <= 1 else f"{100 * value:.0f} %"
    return f"{value:,.4g}" if checked.condition.metric in COSTS else f"{value:.3f}"


def size(checked: Checked, value: float) -> str:
    """Write a margin in the metric's unit."""
    return f"{100 * value:g} points" if checked.condition.is_share else f"{value:,.4g}"


def amount(checked: Checked, value: float) -> str:
    """Write a difference in the metric's unit, with its sign."""
    if checked.condition.is_share:
        return f"{100 * value:+.1f} points"
    return f"{value:+,.4g}"


def _mark(one: Checked, undecided: Undecided) -> str:
    return "❌" if one.breaks(undecided) else "✅" if one.outcome == "pass" else "⚠️"


def _times(probability: float) -> str:
    return f"{100 * probability:.0f}"


def _cell(text: str) -> str:
    return _escaped(text).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Return text that Markdown takes for text: names of systems are a user's own."""
    told = " ".join(visible(text).split()).replace("\\", "\\\\").replace("`", "\\`")
    return told.replace("*", "\\*").replace("_", "\\_").replace("<", "&lt;").replace(">", "&gt;")


def _xml(text: str) -> str:
    """Leave out what XML 1.0 cannot hold."""
    return "".join(char for char in text if char in "\t\n" or " " <= char < "\ud800" or char > "\udfff")
