"""Writes the summaries of runs.

``python -m studies.real.tables add TABLE … --run FILE`` reads a run and writes its summary into
``studies/real/results``. ``python -m studies.real.tables traces DATA`` writes the summary of answers that
others recorded. :mod:`studies.pages` fills the pages from the summaries.
"""

from __future__ import annotations

import argparse
import json
import math
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from studies.common import separation
from studies.pages import markdown
from studies.real.certainty import certainty_rows, promise_rows, steps_of, trace_rows
from studies.real.gate_scores import gate_score_rows
from studies.real.run import ABSTENTION, cpu_hours, load_data, parse
from surerag.errors import InputError, SureragError
from surerag.evaluation import EvaluationRun
from surerag.evaluation.statistics import questions_to_show
from surerag.measures import break_even_latency
from surerag.measures.statistics import Estimate, Groups, mean_interval, paired_difference
from surerag.methods.lazy_rag.gates import DisagreementGate
from surerag.text import is_abstention

RESULTS = Path(__file__).parent / "results"
GATE_MS = 50
"""Milliseconds that a gate takes, as in L-RAG's Table III."""

TableRow = dict[str, Any]


def right_of(run: EvaluationRun, system: str) -> dict[str, float]:
    """Return by the key of the question whether the answer contains a reference."""
    return run.values(system, "contains")


def common_keys(run: EvaluationRun, systems: Sequence[str]) -> list[str]:
    """Return the keys of the questions that all systems answered, in the order of the run."""
    answered = [set(run.answered(system)) for system in systems]
    return [question.key for question in run.questions if all(question.key in keys for keys in answered)]


def _keys_of_all(run: EvaluationRun, systems: Sequence[str]) -> list[str]:
    if keys := common_keys(run, systems):
        return keys
    raise InputError(f"no question was answered by all of {', '.join(systems)}", hint="go on with the run")


def row_of(
    name: str,
    right: Sequence[float],
    baseline: Sequence[float] | None,
    costs: Mapping[str, Sequence[float]],
    groups: Groups = None,
    **further: Any,
) -> TableRow:
    """Return a row: share of right answers, difference to the baseline in points, and mean costs."""
    row: TableRow = {"system": name, "n": len(right), "right": _numbers(mean_interval(right, groups))}
    if baseline is not None:
        change = paired_difference(right, baseline, groups)
        row["difference"] = _numbers(change)
        if change.interval and change.interval.lower <= 0 <= change.interval.upper:
            row["to_show"] = questions_to_show(right, baseline)
    row |= {cost: float(np.mean(values)) for cost, values in costs.items()}
    return row | further


def _numbers(estimate: Estimate, scale: float = 100, digits: int = 1) -> list[float | None]:
    ends = estimate.interval or (None, None)
    return [None if one is None else round(scale * one, digits) for one in (estimate.value, *ends)]


def of_references(
    likely: Sequence[float | None], baseline: Sequence[float | None] | None, groups: Sequence[str]
) -> TableRow:
    """Return the mean log-probability of a token of the reference, and its difference to the baseline.

    Questions without a measurement are left out. The row is empty if no question has one.
    """
    pairs = zip(likely, baseline or likely, groups, strict=True)
    there = [(one, base, group) for one, base, group in pairs if one is not None and base is not None]
    if not there:
        return {}
    values, of_baseline, of_each = zip(*there, strict=True)
    row: TableRow = {"reference": float(np.mean(values))}
    if baseline is not None:
        row["reference_difference"] = _numbers(
            paired_difference(values, of_baseline, of_each, bounds=None), 1, 2
        )
    return row


def _likely(run: EvaluationRun, system: str, keys: Sequence[str]) -> list[float | None]:
    rows = run.answered(system)
    return [rows[key].measured("reference") for key in keys]


def _costs(run: EvaluationRun, system: str, keys: Sequence[str]) -> dict[str, list[float]]:
    rows = run.answered(system)
    costs = {}
    for cost in (
        "tokens",
        "calls",
        "seconds",
        "searches",
        "hit",
        "words",
        "context_share",
        "fell_back",
        "gold_shown",
        "kept",
        "read",
    ):
        values = [rows[key].measured(cost) for key in keys]
        if all(value is not None for value in values):
            costs[cost] = [float(value) for value in values if value is not None]
    return costs


def plain_rows(run: EvaluationRun, baseline: str) -> list[TableRow]:
    """Return a row for each system; differences to the baseline use the questions that both answered."""
    rows = []
    for name in sorted(run.systems, key=lambda name: name != baseline):
        keys = common_keys(run, [baseline, name])
        if not keys:
            continue
        base = [right_of(run, baseline)[key] for key in keys]
        right = [right_of(run, name)[key] for key in keys]
        costs = _costs(run, name, keys)
        costs["exact"] = [run.values(name, "exact_match")[key] for key in keys]
        groups, first = [run.groups[key] for key in keys], name == baseline
        row = row_of(name, right, None if first else base, costs, groups)
        likely, of_base = (_likely(run, one, keys) for one in (name, baseline))
        rows.append(row | of_references(likely, None if first else of_base, groups))
    return rows


def judging_rows(run: EvaluationRun) -> list[TableRow]:
    """Return for each way to choose passages the share of gold passages that it keeps, and its cost."""
    rows = []
    for name in sorted(run.systems, key=lambda name: name != "each"):
        keys = common_keys(run, ["each", name])
        if not keys:
            continue
        groups = [run.groups[key] for key in keys]
        gold, base = ([run.values(one, "gold_shown")[key] for key in keys] for one in (name, "each"))
        row: TableRow = {"system": name, "n": len(keys), "gold_kept": _numbers(mean_interval(gold, groups))}
        if name != "each":
            row["gold_difference"] = _numbers(paired_difference(gold, base, groups))
        for cost in ("kept", "all_gold_shown", "calls", "tokens", "read"):
            row[cost] = float(np.mean([run.answered(name)[key].measured(cost) or 0 for key in keys]))
        rows.append(row)
    return rows


def compression_rows(run: EvaluationRun) -> list[TableRow]:
    """Return a row for each system, with the right answers of EDC² minus those of the system."""
    rows = plain_rows(run, "plain")
    whole = [name for name in run.systems if name.startswith("EDC² top")]
    for ours, row in product(whole, rows):
        keys = common_keys(run, [ours, row["system"]]) if row["system"] != ours else []
        if keys:
            both, groups = (ours, row["system"]), [run.groups[key] for key in keys]
            first, second = ([right_of(run, name)[key] for key in keys] for name in both)
            row["ahead"] = _numbers(paired_difference(first, second, groups))
            likely, of_other = (_likely(run, name, keys) for name in both)
            of_both = of_references(likely, of_other, groups)
            row["reference_ahead"] = of_both.get("reference_difference")
    return rows


def refining_rows(run: EvaluationRun) -> list[TableRow]:
    """Return a row for each system over all questions, and over those whose first context was uncertain."""
    rows = plain_rows(run, "plain")
    refined = run.answered("DENSE refined")
    acted = {key for key, row in refined.items() if row.answer is not None and row.answer.acted}
    for name in run.systems:
        keys = [key for key in common_keys(run, ["plain", "DENSE refined", name]) if key in acted]
        if not keys:
            continue
        right, base = ([right_of(run, one)[key] for key in keys] for one in (name, "plain"))
        label = f"{name}, uncertain questions"
        rows.append(row_of(label, right, None if name == "plain" else base, _costs(run, name, keys)))
    return rows


def gates_rows(run: EvaluationRun) -> list[TableRow]:
    """Return L-RAG's Table I: fixed modes, and gates over their answers (Eq. 4).

    Answers are greedy, so the answer after a gate's decision is that of a fixed mode. As in the component, a
    search follows a first answer that is empty or cut off. The row ``lazy`` is the component itself, if the
    run has it. Rows that search at random mix ``always`` with ``summary``, because random searches do not use
    abstentions. ``gate_ahead`` is the gate's right answers minus theirs, on the same questions.
    """
    fixed: list[str] = [
        name for name in ("never", "plain", "always", "summary", "summary or abstain") if name in run.systems
    ]
    own = [name for name in run.systems if name not in fixed]
    keys = _keys_of_all(run, fixed)
    right = {name: [right_of(run, name)[key] for key in keys] for name in fixed}
    answers = {name: run.answered(name) for name in run.systems}
    costs = {name: _costs(run, name, keys) for name in fixed}
    base = right["always"]
    groups = [run.groups[key] for key in keys]
    likely = {name: _likely(run, name, keys) for name in fixed}

    def row_with_references(
        name: str,
        right: Sequence[float],
        spent: Mapping[str, Any],
        mixed: Sequence[float | None],
        **more: Any,
    ) -> TableRow:
        always = name == "always"
        row = row_of(name, right, None if always else base, spent, groups, **more)
        return row | of_references(mixed, None if always else likely["always"], groups)

    rows = [row_with_references(name, right[name], costs[name], likely[name]) for name in fixed]

    def entropy(name: str, key: str, n: int = 8) -> float:
        scores = answers[name][key].answer.scores  # type: ignore[union-attr]  # rows with an answer
        steps = steps_of(scores, "entropy")[:n]
        return sum(steps) / len(steps) if steps else math.inf

    def gated(name: str, first: str, opens: Sequence[bool]) -> TableRow:
        mixed = [a if o else f for o, f, a in zip(opens, right[first], base, strict=True)]
        spent = {
            cost: [
                f + a * o for o, f, a in zip(opens, costs[first][cost], costs["always"][cost], strict=True)
            ]
            for cost in ("tokens", "calls")
        }
        spent["searches"] = [float(one) for one in opens]
        rate = float(np.mean(opens))
        latency = break_even_latency(rate, GATE_MS) if rate < 1 else None
        last = zip(opens, likely[first], likely["always"], strict=True)
        references = [a if o else f for o, f, a in last]
        return row_with_references(name, mixed, spent, references, break_even_ms=latency)

    for first in ("summary", "summary or abstain"):
        if first not in run.systems:
            continue
        label = "" if first == "summary" else ", may abstain"
        scores = [entropy(first, key) for key in keys]
        firsts = [answers[first][key].answer for key in keys]
        abstains = [bool(label) and is_abstention(one.text, ABSTENTION) for one in firsts]  # type: ignore[union-attr]
        unusable = [one.finish == "length" or not one.text.strip() for one in firsts]  # type: ignore[union-attr]
        anyway = [said or bad for said, bad in zip(abstains, unusable, strict=True)]
        if label:
            rows.append(gated("abstention", first, anyway))
        for tau in (0.3, 0.5, 1.0, 1.5):
            opens = [score > tau or must for score, must in zip(scores, anyway, strict=True)]
            name = f"τ = {tau:g}{label}"
            rows.append(gated(f"entropy, {name}", first, opens))
            if (label or tau == 1.0) and "summary" in right:
                chosen = [a if o else f for o, f, a in zip(opens, right[first], base, strict=True)]
                rows.append(_at_random(name, float(np.mean(opens)), chosen, base, right["summary"]))
    shut = DisagreementGate().threshold or 0.0
    for name in own:  # over the questions that it answered, which may be fewer
        both = [(at, key) for at, key in enumerate(keys) if key in answers[name]]
        if not both:
            continue
        found = [answers[name][key].answer for _, key in both]
        theirs = [right_of(run, name)[key] for _, key in both]
        always = [base[at] for at, _ in both]
        spent = _costs(run, name, [key for _, key in both])
        opens = searched = [bool(one.acted) for one in found]  # type: ignore[union-attr]
        if sampled := name == "semantic entropy":  # it searched for abstentions alone, and the rest is Eq. 4
            scores = [one.uncertainty or 0.0 for one in found]  # type: ignore[union-attr]
            opens = [had or score > shut for had, score in zip(searched, scores, strict=True)]
            theirs = [a if o else f for o, f, a in zip(opens, theirs, always, strict=True)]
            for cost in ("tokens", "calls"):
                more = [costs["always"][cost][at] for at, _ in both]
                late = [a * (o > had) for a, o, had in zip(more, opens, searched, strict=True)]
                spent[cost] = [f + a for f, a in zip(spent[cost], late, strict=True)]
        spent["searches"] = [float(one) for one in opens]
        label = f"{name}, τ = {shut:g}" if sampled else name
        rows.append(row_of(label, theirs, always, spent))
        if name == "lazy" and "summary" in right:
            without = [right["summary"][at] for at, _ in both]
            rows.append(_at_random(name, float(np.mean(opens)), theirs, always, without))
    return rows


def _at_random(
    name: str, rate: float, gated: Sequence[float], base: Sequence[float], summary: Sequence[float]
) -> TableRow:
    """Return the expected right answers of random searches at this rate, and the gate's minus these."""
    mixed = [rate * a + (1 - rate) * f for a, f in zip(base, summary, strict=True)]
    return {
        "system": f"at random, as often as {name}",
        "n": len(mixed),
        "right": _numbers(mean_interval(mixed)),
        "difference": _numbers(mean_interval(np.subtract(mixed, base), bounds=(-1, 1))),
        "gate_ahead": _numbers(mean_interval(np.subtract(gated, mixed), bounds=(-1, 1))),
        "searches": rate,
    }


def understanding_rows(run: EvaluationRun) -> list[TableRow]:
    """Return the AUROC of each score for wrong answers of plain RAG.

    A system with its own prompt also has the AUROC for its own answers.
    """
    keys = _keys_of_all(run, run.systems)
    rights = {system: right_of(run, system) for system in run.systems}
    rows = []
    for system in run.systems:
        answered = run.answered(system)
        texts = [answered[key].answer.text for key in keys]  # type: ignore[union-attr]  # rows with an answer
        plain = [run.answered("plain")[key].answer.text for key in keys]  # type: ignore[union-attr]
        for score in sorted({name for key in keys for name in answered[key].answer.scores}):  # type: ignore[union-attr]
            values = {key: answered[key].measured(score) for key in keys}
            there = {key: value for key, value in values.items() if value is not None}
            calls = float(np.mean([answered[key].measured("calls") or 0 for key in keys]))
            row: TableRow = {"system": score, "n": len(there)}
            row["further calls"] = 0.0 if system == "plain" else calls
            row["auroc"] = _auroc(there, rights["plain"])
            if texts != plain:
                row["own_auroc"] = _auroc(there, rights[system])
            rows.append(row)
    return rows


def _auroc(scores: Mapping[str, float], right: Mapping[str, float]) -> list[float | None] | None:
    found = separation(
        [score for key, score in scores.items() if not right[key]],
        [score for key, score in scores.items() if right[key]],
    )
    return None if found is None else _numbers(found, 1, 2)


UTILITY = {"gold": 1.0, "half": 0.5, "distractors": 0.0}


def worth_rows(run: EvaluationRun) -> list[TableRow]:
    """Return the correlation of each measure with the known worth of passages (Pearson's r, cf. Table 2)."""
    answered = [run.answered(kind) for kind in run.systems]
    rows = []
    for measure in run.scores:
        keys = [
            key
            for key in _keys_of_all(run, run.systems)
            if all(rows_of[key].measured(measure) is not None for rows_of in answered)
        ]
        values = np.array([[rows_of[key].measured(measure) for key in keys] for rows_of in answered])
        known = np.array([[UTILITY[kind]] * len(keys) for kind in run.systems])
        rng = np.random.default_rng(0)
        resamples = [rng.integers(0, len(keys), len(keys)) for _ in range(2000)]

        def pearson(at: Any, values: Any = values, known: Any = known) -> float:
            one = values[:, at].ravel().astype(float)
            return float(np.corrcoef(one, known[:, at].ravel())[0, 1]) if np.ptp(one) else 0.0

        ends = np.quantile([pearson(at) for at in resamples], (0.025, 0.975))
        r = [round(float(one), 2) for one in (pearson(slice(None)), *ends)]
        means = {
            kind: round(float(np.mean(values[at].astype(float))), 2) + 0.0  # no −0
            for at, kind in enumerate(run.systems)
        }
        rows.append({"system": measure, "n": len(keys), "r": r, **means})
    return rows


MAKE: dict[str, Callable[[EvaluationRun], list[TableRow]]] = {
    "gates": gates_rows,
    "compression": compression_rows,
    "judging": judging_rows,
    "rewriting": lambda run: plain_rows(run, "plain"),
    "prompts": lambda run: plain_rows(run, "plain"),
    "understanding": understanding_rows,
    "refining": refining_rows,
    "worth": worth_rows,
    "certainty": certainty_rows,
}


def add(arguments: Sequence[str]) -> Path:
    """Write the summary of a run; the arguments are those of the run, ``--name`` and ``--label``.

    Raises:
        InputError: If the run has other questions than the arguments name, or lacks a system of the table.
    """
    parser = argparse.ArgumentParser("studies.real.tables add", allow_abbrev=False, epilog=add.__doc__)
    parser.add_argument("--name", required=True, help="name of the summary")
    parser.add_argument("--label", required=True, help="name of the reader in the table")
    named, rest = parser.parse_known_args(arguments)
    settings = parse(rest)
    with EvaluationRun(settings.run) as run:
        questions = {question.key for question in run.questions}
        if questions != {item.question.key for item in load_data(settings).items}:
            raise InputError(
                f"{settings.run} has other questions than these arguments name",
                hint="repeat its --data, --set, --n, --seed, --skip and --articles",
            )
        rows = MAKE[settings.table](run)
        systems = set(run.systems)
        if settings.references_alone:
            rows = [{name: row[name] for name in row if name not in _OF_ANSWERS} for row in rows]
        answered = max(len(run.answered(system)) for system in run.systems)
    options = {"n": settings.n, "seed": settings.seed, "k": settings.k}
    options |= {name: getattr(settings, name) for name in ("skip", "repeats") if getattr(settings, name)}
    command = ["python", "-m", "studies.real.run", settings.table, "--reader", named.label]
    command += ["--set", settings.set]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    command += ["--reader-judges"] if settings.reader_judges else []
    command += ["--references-alone"] if settings.references_alone else []
    command += ["--articles", ",".join(settings.articles)] if settings.articles else []
    command += ["--dtype", settings.dtype] if settings.dtype else []
    command += ["--systems", ",".join(settings.systems)] if settings.systems else []
    summary: dict[str, Any] = {
        "table": settings.table,
        "set": settings.set,
        "reader": named.label,
        "questions": answered,
        "asked": len(questions),
        "seed": settings.seed,
        "articles": settings.articles,
        "command": f"{shlex.join(command)} --data DATA --run RUN",
        "version": version("surerag"),
        "date": datetime.now(UTC).date().isoformat(),
        "cpu_hours": round(cpu_hours(settings.run), 2),
        "rows": rows,
    }
    if settings.table == "certainty":
        with EvaluationRun(settings.run) as run:
            summary["promise"] = promise_rows(run)
    if settings.table == "gates" and {"always", "summary"} <= systems:
        with EvaluationRun(settings.run) as run:
            summary["scores"] = gate_score_rows(run)
    return write_summary(named.name, summary)


def add_traces(folder: Path) -> Path:
    """Write the summary of recorded answers and uncertainties of an 8 B model."""
    rows = trace_rows(folder / "traces" / "single_hop.parquet")
    summary = {
        "table": "certainty",
        "set": "NQ and TriviaQA, answered without passages, as recorded",
        "reader": "meta-llama/Llama-3.1-8B-Instruct",
        "questions": rows[0]["n"],
        "command": "python -m studies.real.tables traces DATA",
        "version": version("surerag"),
        "date": datetime.now(UTC).date().isoformat(),
        "rows": rows,
    }
    return write_summary("certaintytraces-llama", summary)


_OF_ANSWERS = ("right", "difference", "to_show", "exact", "ahead")


def write_summary(name: str, summary: Mapping[str, Any]) -> Path:
    """Write a summary into ``studies/real/results``."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def main() -> None:
    """Add a summary."""
    match sys.argv[1:]:
        case ["add", *arguments]:
            try:
                print(markdown(json.loads(add(arguments).read_text(encoding="utf-8"))))
            except SureragError as error:
                sys.exit(f"Error: {error}")
        case ["traces", folder]:
            print(markdown(json.loads(add_traces(Path(folder)).read_text(encoding="utf-8"))))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
