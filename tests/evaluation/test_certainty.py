"""What certainty tells in a run, and how many passages are enough."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from surerag import FakeReader, LazyRAG, OpenAIReader, Passage, Usage
from surerag.calibration import calibrate_abstention
from surerag.certainty import MEASURES, Certainty, certainty_of
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError
from surerag.evaluation import EvaluationAnswer, EvaluationRun, build_system, evaluate, write_report
from surerag.evaluation.certainty import surest_answers, surest_answers_by_system
from surerag.evaluation.findings import certainties, findings, numbers_of_passages
from surerag.evaluation.passages import passage_counts
from surerag.evaluation.pipelines import NAMES, PipelineSetup
from surerag.evaluation.report import example_answers, forecast, notes, terminal_table
from surerag.evaluation.systems import System, as_answer
from surerag.messages import EntropyTrace, TokenTrace
from surerag.methods.lazy_rag.component import FixedSummary
from surerag.readers.fake import reply
from tests.servers.fake_openai import FakeOpenAI

PASSAGES = [
    Passage(f"Ada {number} was born in Velm.", metadata={"path": f"{number}.md"}) for number in range(12)
]


class Retriever:
    """Finds the first passages."""

    def retrieve(self, query: str, k: int | None) -> list[Passage]:
        return PASSAGES[: k or 5]


def traced(*entropies: float) -> TokenTrace:
    return TokenTrace(
        ("x",) * len(entropies), (-0.1,) * len(entropies), EntropyTrace(entropies, entropies, exact=True)
    )


def run_of(n: int, **systems: Callable[[int], tuple[bool, Certainty | None]]) -> EvaluationRun:
    def answering(of: Callable[[int], tuple[bool, Certainty | None]]) -> Callable[[str], EvaluationAnswer]:
        def answer(question: str) -> EvaluationAnswer:
            right, certainty = of(int(question.split()[1]))
            return EvaluationAnswer("yes, it is" if right else "it is", certainty=certainty)

        return answer

    questions = [(f"q {number}", "yes, it is") for number in range(n)]
    return evaluate({name: answering(of) for name, of in systems.items()}, questions, metrics=("contains",))


def of_chance(seed: int, slope: float) -> Callable[[int], tuple[bool, Certainty]]:
    """Answers of which more are wrong where the model is less sure, by a slope."""
    rng = np.random.default_rng(seed)
    doubts, chances = rng.uniform(size=(2, 1000))

    def answer(number: int) -> tuple[bool, Certainty]:
        right = chances[number] < 0.7 - slope * (doubts[number] - 0.5)
        return bool(right), certainty_of(traced(float(doubts[number])))

    return answer


@pytest.mark.parametrize("name", [*NAMES, "lazy+compressed", "plain@2"])
def test_every_pipeline_stores_how_sure_its_answer_was(name: str, tmp_path: Path) -> None:
    reader = FakeReader(lambda prompt: reply("in Velm", entropy=[0.2, 1.4], logprobs=[-0.1, -1.2]))
    setup = PipelineSetup(
        reader, Retriever(), FixedSummary("A town."), HashingEncoder(), top_n=3, max_tokens=8
    )
    questions = [{"question": "Where?", "answers": "Velm", "contexts": ["In Velm."]}]
    evaluate({name: build_system(name, setup)}, questions, tmp_path / "run.db").close()
    with EvaluationRun(tmp_path / "run.db") as run:
        [row] = run.rows
    assert row.answer and row.answer.certainty, row.error
    assert set(row.answer.certainty.uncertainties) == set(MEASURES)
    assert row.answer.certainty.uncertainty == pytest.approx(0.8)
    if name.startswith("plain"):
        assert row.answer.usage and row.answer.usage.requests == len(reader.history) == 1
        assert row.answer.sources == tuple(f"{n}.md" for n in range(2 if "@" in name else 3))


def test_certainty_after_reasons_is_that_of_the_answer_alone() -> None:
    def answer(prompt: str) -> object:
        if prompt.startswith("Compare the candidate"):
            return reply("Reasoning: both.\nSelected answer: Velm", entropy=[2, 2, 2, 2, 0.5])
        return "Velm."

    setup = PipelineSetup(FakeReader(answer), Retriever(), None, HashingEncoder())  # type: ignore[arg-type]
    [row] = evaluate({"answered": build_system("answered", setup)}, ["Where?"]).rows
    assert row.answer and row.answer.text == "Velm" and row.answer.certainty
    assert row.answer.certainty.tokens == 1 and row.answer.certainty.uncertainty == 0.5


def test_a_model_without_log_probabilities_answers_and_the_page_says_so(tmp_path: Path) -> None:
    setup = PipelineSetup(FakeReader("Velm", logprob=None, entropy=None), Retriever())
    run = evaluate({"plain": build_system("plain", setup)}, [("Where?", "Velm"), ("Who?", "Ada")])
    assert [row.error for row in run.rows] == ["", ""]
    text = "no log-probabilities with the answers of plain, so their certainty is not known."
    assert text in findings(run)[-1]
    write_report(run, tmp_path / "page.html")
    assert text in (tmp_path / "page.html").read_text("utf-8")


@pytest.mark.parametrize("probed", [True, False])
@pytest.mark.filterwarnings("ignore::surerag.readers.parameters.LeftOutWarning")
def test_on_a_server_without_log_probabilities_the_page_says_which_gate_decided(
    probed: bool, tmp_path: Path
) -> None:
    with FakeOpenAI(["Velm"] * 40, no_logprobs=True) as server:
        reader = OpenAIReader("toy", base_url=server.base_url, api_key="k", max_retries=0)
        if probed:
            reader.probe()
        setup = PipelineSetup(reader, Retriever(), FixedSummary("A town."), max_tokens=8)
        names = ["plain", "lazy"] + (["rewritten"] if probed else [])
        systems = {name: build_system(name, setup) for name in names}
        run = evaluate(systems, [("Where is it?", "Velm"), ("Where was Ada?", "Velm")])
        deployed = LazyRAG(
            reader, Retriever(), FixedSummary("A town."), gate=systems["lazy"].settings["gate"]
        )
        assert deployed.gate_in_use.name == "abstention"
    assert [row.error for row in run.rows] == [""] * 2 * len(systems)
    found = findings(run)
    assert any(
        "(lazy) used the gate abstention in place of the default entropy, because the model returned no" in t
        for t in found
    )
    told = "DynQR (rewritten) used the metric semantic_entropy in place of the default perplexity"
    assert any(told in text and 'pass metric="semantic_entropy"' in text for text in found) == probed
    assert any("no log-probabilities with the answers of plain" in text for text in found)
    write_report(run, tmp_path / "page.html")
    assert "L-RAG (lazy) used the gate abstention" in (tmp_path / "page.html").read_text("utf-8")


def test_certainty_comes_from_metadata_of_frameworks_and_other_things_of_this_name_do_not_matter() -> None:
    values = certainty_of(traced(0.5, 1.5)).to_dict()
    for answer in (
        {"answer": "x", "certainty": values},
        {"answer": "x", "metadata": {"certainty": values}},
        {"content": "x", "response_metadata": {"certainty": values}},
    ):
        found = as_answer(answer).certainty
        assert found is not None and found.uncertainty == 1.0
    assert as_answer({"answer": "x", "certainty": 0.9}).certainty is None
    assert as_answer({"answer": "x", "certainty": {"of": "what"}}).certainty is None


def test_what_certainty_tells_is_said_and_also_that_it_tells_nothing() -> None:
    run = run_of(
        300,
        useful=of_chance(0, 0.6),
        useless=of_chance(1, 0.0),
        reversed=of_chance(2, -0.6),
        perfect=lambda number: (True, certainty_of(traced(0.1 * number))),
        silent=lambda number: (True, None),
    )
    names = {name: name for name in run.systems}
    useful, useless, backwards, perfect = (
        certainties(run, surest_answers_by_system(run), name, names)[0] for name in run.systems[:4]
    )
    surest = surest_answers(run, "useful")
    assert surest and surest.auroc and surest.tells == "wrong answers" and surest.n == 300
    half, everything = surest.right[0.5], surest.right[1]
    assert half.value > everything.value + 0.05 and half.n == 150 and everything.n == 300
    assert surest.curve[1.0] == everything and min(surest.curve) == pytest.approx(0.1)
    area = surest.auroc.text(digits=2)
    assert f"(AUROC {area}; 0.5 is chance)" in useful
    assert f"Of the surest 50 % of the answers, {100 * half.value:.0f} % are right" in useful
    assert (
        "does not clearly predict useless's wrong answers" in useless
        and "its interval contains 0.5" in useless
    )
    assert "Ignore its certainty" in backwards
    assert (
        perfect
        == "All 300 answers of perfect are right, so it is not known whether certainty predicts wrong "
        "answers."
    )
    assert surest_answers(run, "silent") is None
    found = certainties(run, surest_answers_by_system(run), "perfect", names)
    assert (
        found[1]
        == f"The model is less sure of wrong answers than of right answers for useful (AUROC {area})."
    )
    assert (
        found[2].startswith("Certainty does not clearly predict wrong answers (the")
        and "for useless (" in found[2]
    )
    assert len(found) == 4


def test_a_handful_of_answers_is_too_few_for_a_verdict_on_certainty() -> None:
    """An interval that holds chance and a useful AUROC shows neither."""

    def answer(number: int) -> tuple[bool, Certainty]:
        return number % 3 > 0, certainty_of(traced(2.0 if number % 3 == 0 else 0.5))

    run = run_of(6, first=answer, second=answer)
    surest = surest_answers(run, "first")
    assert surest and surest.auroc and surest.auroc.value == 1.0 and surest.tells == "too few answers"
    first, second = certainties(run, surest_answers_by_system(run), "first", {"first": "a", "second": "b"})
    assert first.startswith("6 answers of a are too few to see whether") and "tells nothing" not in first
    assert second.startswith("There are too few answers to see whether") and "for b (AUROC 1.00" in second
    withheld = calibrate_abstention(run.certainty_rows("first"), max_risk=0.2).withheld
    assert first == f"{withheld.replace('answers', 'answers of a', 1)}."  # the same words as the report's


def test_a_run_is_calibrated_for_abstention_without_a_pair_of_thresholds() -> None:
    def answer(number: int) -> tuple[bool, Certainty]:
        return number < 60, certainty_of(traced(0.01 * number))

    run, both = run_of(100, mine=answer), run_of(100, mine=answer, other=answer)
    policy = calibrate_abstention(run, max_risk=0.2)
    assert policy == calibrate_abstention(run.certainty_rows("mine"), max_risk=0.2) and policy.coverage > 0.5
    with pytest.raises(
        ConfigurationError, match=r"2 systems .* from mine, other.*run.certainty_rows\('mine'\)"
    ):
        calibrate_abstention(both, max_risk=0.2)
    without = evaluate({"echo": lambda question: question}, [("Is it?", "yes")])
    with pytest.raises(ConfigurationError, match=r"0 systems of the run have a certainty\. Evaluate systems"):
        calibrate_abstention(without, max_risk=0.2)


@pytest.mark.parametrize(("n", "rows"), [(3, 0), (12, 1), (20, 3)])
def test_a_share_of_a_handful_of_answers_is_not_shown(n: int, rows: int, tmp_path: Path) -> None:
    run = run_of(n, plain=lambda number: (number > 0, certainty_of(traced(0.01 * number))))
    assert str(terminal_table(run)).count("right in the surest") == rows
    write_report(run, tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8").count("<th>right in the surest") == rows


def test_one_is_written_in_the_singular(tmp_path: Path) -> None:
    def answer(question: str) -> EvaluationAnswer:
        return EvaluationAnswer("yes", ("yes",), certainty=certainty_of(traced(0.5)))

    run = evaluate({"a": answer, "b": answer}, [("Is it?", "yes")])
    write_report(run, tmp_path / "page.html")
    texts = [*findings(run), notes(run), forecast(run, 1), (tmp_path / "page.html").read_text("utf-8")]
    assert "The only answer of a is right, so it is not known whether certainty predicts" in " ".join(texts)
    nouns = "questions|answers|passages|tokens|files|calls|systems"
    assert [found for text in texts for found in re.findall(rf"\b1 (?:{nouns})\b", text)] == []


def test_the_surest_answers_are_those_of_a_calibration_and_empty_ones_are_never_sure() -> None:
    def answer(number: int) -> tuple[bool, Certainty]:
        return number < 60, certainty_of(traced(0.01 * number) if number < 90 else TokenTrace((), ()))

    run = run_of(100, plain=answer)
    rows = run.certainty_rows("plain")
    assert sum(row.uncertainty == math.inf for row in rows) == 10
    surest = surest_answers(run, "plain")
    assert surest and surest.right[0.5].value == 1 and surest.right[0.9].value == pytest.approx(60 / 90)
    assert calibrate_abstention(rows, max_risk=0.2).threshold >= 0.5
    by_logprobs = run.certainty_rows("plain", measure="negative_log_likelihood")
    assert {row.uncertainty for row in by_logprobs} == {0.1, math.inf}


def test_equally_sure_answers_count_as_their_mean_whatever_their_order() -> None:
    shares = []
    for order in (1, -1):
        run = run_of(
            20, plain=lambda number, order=order: ((number * order) % 20 < 10, certainty_of(traced(0.5)))
        )
        surest = surest_answers(run, "plain")
        assert surest and surest.auroc
        shares += [surest.right[0.5].value, surest.auroc.value]
    assert shares == [0.5] * 4


def test_the_page_lists_the_answers_by_uncertainty_the_surest_first(tmp_path: Path) -> None:
    def answer(question: str) -> EvaluationAnswer:
        number = int(question.split()[1].strip("?"))
        text = "<b>yes</b>" if number < 150 else "it is"
        trace = traced(0.01 * number) if number else TokenTrace((), ())
        return EvaluationAnswer(text, certainty=certainty_of(trace))

    def lists(questions: list[object]) -> list[str]:
        run = evaluate({"a": answer, "b": answer, "c": lambda question: "yes"}, questions)
        write_report(run, tmp_path / "page.html", baseline="b")
        page = (tmp_path / "page.html").read_text("utf-8")
        return re.findall('<details class="answers".*?</details>', page)

    first, second = lists([(f"q {number}?", "yes") for number in range(205)])
    assert first.startswith('<details class="answers" open><summary>b: 205 answers, the surest first')
    assert second.startswith('<details class="answers"><summary>a: 205 answers')
    rows = re.findall(r'<tr class="(\w+)">(.*?)</tr>', first)
    assert [kind for kind, _ in rows] == ["right"] * 149 + ["wrong"] * 51
    cells = [re.findall('data-label="([^"]+)"><span>([^<]*)', row) for _, row in rows]
    names, texts = zip(*cells[0], strict=True)
    assert names == ("question", "answer", "uncertainty", "right?")
    assert texts == ("q 1?", "&lt;b&gt;yes&lt;/b&gt;", "0.01", "right")
    assert "<p>5 less certain answers not listed.</p>" in first
    few, _ = lists(["q 3?", "q 0?", "q 1?"])  # without references, nothing is right or wrong
    assert re.findall('"uncertainty"><span>([^<]*)', few) == ["0.01", "0.03", "empty or cut off"]
    assert "right?" not in few
    run = evaluate({"a": answer, "c": lambda question: "yes"}, [("q 7?", "yes")])
    assert "  a: <b>yes</b> (uncertainty 0.07)\n  c: yes" in example_answers(run)


def test_the_page_and_the_terminal_show_the_surest(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run = run_of(60, plain=of_chance(0, 0.8), other=of_chance(1, 0))
    write_report(run, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text("utf-8")
    assert text.count("right answers among the surest, %") >= 2 and "How sure is each answer?" in text
    assert 'data-label="right in the surest 70 %"' in text and "no further call" in text
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(terminal_table(run))
    assert "AUROC of" in console.export_text()


def test_the_legend_of_a_table_is_as_wide_as_the_terminal_and_says_how_many_answers_are_scored() -> None:
    run = evaluate({"f": lambda question: "yes"}, [*((f"q{number}?", "yes") for number in range(11)), "why?"])
    console = Console(width=80, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
    console.print(terminal_table(run))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) > 60
    printed = str(terminal_table(run))
    assert "contains" in printed and "n is the number of questions" in printed and "\x1b" not in printed
    shown = terminal_table(run)._repr_mimebundle_((), ())
    assert "contains" in shown["text/plain"] and "n is the number of questions" in shown["text/html"]
    assert [line.split() for line in lines if line.startswith(("n   ", "scored "))] == [
        ["n", "12"],
        ["scored", "11"],
    ]


def test_a_time_is_stated_only_if_the_difference_is_no_chance() -> None:
    run = evaluate({"a": lambda q: "x", "b": lambda q: "x"}, [(str(number), "x") for number in range(8)])
    assert "time" not in " ".join(findings(run))  # two functions that take microseconds
    for factor, text in ((1.05, []), (2.0, ["b takes 100 % more time."])):
        times = {key: [1.0, 0.2, 3.0, 0.5][place % 4] for place, key in enumerate(run.values("a", "errors"))}
        run._values["a", "seconds"] = times
        run._values["b", "seconds"] = {
            key: factor * value + [0.4, -0.1, -0.9, 0.5][place % 4] * (factor < 2)
            for place, (key, value) in enumerate(times.items())
        }
        assert re.findall("b takes.*", findings(run)[1]) == text
    unscored = evaluate({"a": lambda q: "x", "b": lambda q: "x"}, list("12345678"))
    for name, factor in (("a", 1.0), ("b", 2.0)):
        keys = enumerate(unscored.values(name, "errors"))
        unscored._values[name, "seconds"] = {key: factor * (1 + place % 4) for place, key in keys}
    assert "Compared with a, b takes 100 % more time." in findings(unscored)


def plain_with(n: int, **rights: Callable[[int], bool]) -> EvaluationRun:
    """Return a run of plain RAG with some numbers of passages, such as plain_10."""

    def build(name: str, right: Callable[[int], bool]) -> System:
        passages = int(name.partition("_")[2])

        def answer(question: object) -> EvaluationAnswer:
            number = int(question.text.split()[1])  # type: ignore[attr-defined]
            shown = tuple(f"passage {place}" for place in range(passages))
            usage = Usage(1, 100 * passages, 10)
            return EvaluationAnswer("right" if right(number) else "wrong", shown, usage)

        return System(f"plain@{passages}", answer, {"system": f"plain@{passages}", "top_n": passages})

    systems = {f"plain@{name.partition('_')[2]}": build(name, right) for name, right in rights.items()}
    return evaluate(systems, [(f"q {number}", "right") for number in range(n)], metrics=("contains",))


def test_the_fewest_passages_that_lose_nothing_that_matters() -> None:
    run = plain_with(
        900, plain_10=lambda i: i % 5 > 0, plain_2=lambda i: i % 3 > 0, plain_4=lambda i: i % 5 > 0 or i == 0
    )
    most, four, two = passage_counts(run, 0.02)
    assert (most.passages, four.within_margin, two.within_margin) == (10, True, False)
    first, second = numbers_of_passages(run)
    assert first.startswith(
        "Use 4 passages in place of 10: the share of right answers falls by less than 2 points (+0.1 ["
    )
    assert (
        "Plain RAG with 4 passages takes 59 % fewer tokens and as many calls." in first
    )  # the times differ by chance
    assert second.startswith("With 2 passages, fewer answers are right than with 10: -13.3 [")
    [sentence] = numbers_of_passages(run, 0.5)
    assert sentence.startswith("Use 2 passages in place of 10")


def test_few_questions_do_not_show_that_fewer_passages_are_enough() -> None:
    run = plain_with(35, plain_10=lambda i: i % 5 > 0, plain_4=lambda i: i % 5 != 1)
    [sentence] = numbers_of_passages(run)
    assert (
        "4 passages in place of 10, the share of right answers may fall by 2 points or more: +0.0 ["
        in sentence
    )
    assert "questions are needed to show it" in sentence
    # With more passages not shown to be as good, no smaller number is, however good it looks.
    run = plain_with(
        900, plain_10=lambda i: i % 5 > 0, plain_4=lambda i: i % 2 > 0, plain_1=lambda i: i % 5 > 0
    )
    assert [one.within_margin for one in passage_counts(run, 0.02)] == [True, False, False]
    assert passage_counts(plain_with(5, plain_3=lambda i: True), 0.02) == []


def test_the_page_has_the_uncertainty_beside_each_answer_of_any_system(tmp_path: Path) -> None:
    run = run_of(2, plain=lambda number: (True, certainty_of(traced(0.25 + number))))
    write_report(run, tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert "uncertainty of the answer 0.25" in page
    assert "uncertainty of the answer 1.2" in page
