"""Studies on real readers: every system answers, runs resume, and the pages show what the summaries hold."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from studies import pages
from studies.common import load_reader
from studies.real import certainty, tables
from studies.real import run as study
from studies.real.data import load_hotpot, load_squad
from studies.real.judging import ways_to_choose
from studies.real.reading import KeepingReader
from studies.real.systems import Meter
from surerag import FakeReader, Passage, SamplingParams, TransformersReader
from surerag.cli.demo import EVIDENCE
from surerag.encoders import HashingEncoder
from surerag.errors import ConfigurationError, InputError
from surerag.evaluation import EvaluationAnswer, EvaluationRun, Question, evaluate
from surerag.evaluation.systems import as_system
from surerag.messages import FinishReason, Usage
from tests.readers.tiny_models import tiny_model, tiny_tokenizer

LONG = "Ada was born in Velm. She plays the harp. "


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with a small data set of each kind."""
    asked = [
        {"question": f"Where was Ada born, {at}?", "answers": [{"text": "Velm"}], "is_impossible": False}
        for at in range(4)
    ]
    nowhere = {"question": "Where was Bo born?", "answers": [], "is_impossible": True}
    others = [{"context": f"Rivers are wet in spring {at}.", "qas": []} for at in range(3)]
    article = {"title": "Velm", "paragraphs": [{"context": LONG * 20, "qas": [*asked, nowhere]}, *others]}
    for name in ("squad2_dev.json", "xquad.en.json"):
        (tmp_path / name).write_text(json.dumps({"data": [article] if name.startswith("squad") else []}))
    slips = [
        {"source": "squad2", "question": one["question"], "disfluent": f"Where is no {one['question']}"}
        for one in asked
    ]
    (tmp_path / "disfl_qa.json").write_text(json.dumps(slips))
    rows = [
        {
            "question": f"Which harbour has Velm, {at}?",
            "answer": answer,
            "supporting_facts": [["Velm", 0], ["Ada", 0]],
            "context": [["Velm", ["Velm has the harbour Orun."]], ["Ada", [LONG, LONG]]]
            + [[f"Bo {other}", [f"Bo lives in Tarn {other}. ", "He sings."]] for other in range(8)],
        }
        for at, answer in enumerate(("Orun", "yes", "Orun", "Orun"))
    ]
    (tmp_path / "hotpotqa_100.json").write_text(json.dumps(rows))
    return tmp_path


def answer(prompt: str) -> str:
    if "yes or no" in prompt.lower():
        return "Yes" if len(prompt) % 2 else "No"
    if "entailment" in prompt:
        return "neutral"
    if "from 0 (useless)" in prompt:
        return "10"
    return "In Velm" if "born" in prompt else "Orun"


def ask(table: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> list[str]:
    """Run a table on a scripted reader; return the arguments."""
    monkeypatch.setattr(study, "load_reader", lambda *_: FakeReader(answer, entropy=0.7))
    monkeypatch.setattr(study, "load_encoder", HashingEncoder)
    arguments = [
        table,
        "--data",
        str(folder),
        "--reader",
        "fake",
        "--run",
        str(folder / "run.db"),
        "--n",
        "3",
    ]
    monkeypatch.setattr(sys, "argv", ["run", *arguments, *more])
    study.main()
    return [*arguments, *more]


@pytest.mark.parametrize("table", list(study.TABLES))
def test_every_system_of_a_table_answers(
    table: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    more = ["--reader-judges"] if table in ("understanding", "worth") else []
    arguments = ask(table, folder, monkeypatch, *more)
    with study.EvaluationRun(folder / "run.db") as run:
        assert [row.error for row in run.rows if row.error] == []
        names, questions = run.systems, len(run.questions)
        assert len(run.rows) == len(names) * questions
    assert questions == 3
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(pages, "RESULTS", (tmp_path / "results",))
    path = tables.add([*arguments, "--name", "one", "--label", "org/model"])
    summary = json.loads(path.read_text())
    assert summary["command"].startswith(f"python -m studies.real.run {table} --reader org/model")
    assert str(tmp_path) not in path.read_text()  # no path of a machine in what is published
    assert {row["n"] for row in summary["rows"]} == {questions}
    page = pages.filled("# A page\n\n<!-- table one -->\nsomething else\n<!-- end -->\n")
    assert "something else" not in page
    assert f"We asked org/model {questions} questions" in page
    assert pages.filled(page) == page


def test_a_gate_has_the_answers_that_its_decisions_lead_to(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("gates", folder, monkeypatch)
    with study.EvaluationRun(folder / "run.db") as run:
        rows = {row["system"]: row for row in tables.gates_rows(run)}
    never, always = rows["entropy, τ = 1"], rows["entropy, τ = 0.5"]  # the scripted entropy is 0.7
    assert (never["searches"], always["searches"]) == (0, 1)
    assert never["right"] == rows["summary"]["right"]
    assert always["right"] == rows["always"]["right"]
    assert always["difference"][0] == 0
    assert always["tokens"] == rows["summary"]["tokens"] + rows["always"]["tokens"]


def stored(path: Path, **systems: list[EvaluationAnswer]) -> Path:
    """Store a run of systems that give prepared answers; every reference is Velm."""
    questions = [f"Where was P{at} born?" for at in range(len(next(iter(systems.values()))))]

    def system(answers: list[EvaluationAnswer]) -> Callable[[str], EvaluationAnswer]:
        return lambda question: answers[questions.index(question)]

    built = {name.replace("_", " "): system(answers) for name, answers in systems.items()}
    evaluate(built, [(text, "Velm") for text in questions], path, metrics=("contains",)).close()
    return path


def said(text: str, finish: FinishReason = "stop", **scores: float) -> EvaluationAnswer:
    return EvaluationAnswer(text, (), Usage(1, 10, 2), finish, scores=scores)


def test_a_first_answer_that_cannot_be_used_opens_the_gate_as_in_the_component(tmp_path: Path) -> None:
    certain = {"entropy 1": 0.1}
    first = [said("Orun, and", "length", **certain), said("  ", **certain), said("Orun", **certain)]
    run = stored(tmp_path / "a.db", always=[said("Velm")] * 3, summary=first, summary_or_abstain=first)
    with study.EvaluationRun(run) as opened:
        rows = {row["system"]: row for row in tables.gates_rows(opened)}
    for gate in ("entropy, τ = 1", "entropy, τ = 1, may abstain", "abstention"):
        assert rows[gate]["searches"] == pytest.approx(2 / 3), gate


def test_searching_at_random_does_not_answer_with_abstentions(tmp_path: Path) -> None:
    certain = {"entropy 1": 0.1}
    first = [said("Velm", **certain)] * 3 + [said("Orun", **certain)]
    asked = [said("Velm", **certain)] * 2 + [said("I do not know.", **certain)] * 2
    run = stored(tmp_path / "a.db", always=[said("Velm")] * 4, summary=first, summary_or_abstain=asked)
    with study.EvaluationRun(run) as opened:
        rows = {row["system"]: row for row in tables.gates_rows(opened)}
    control = rows["at random, as often as τ = 1, may abstain"]
    assert control["searches"] == 0.5
    assert control["right"][0] == 87.5  # half of always (4 of 4), half of the summary (3 of 4)
    assert control["gate_ahead"][0] == 12.5


def test_samples_that_abstain_have_searched_already(tmp_path: Path) -> None:
    by_score = [EvaluationAnswer("Orun", (), Usage(5, 10, 2), uncertainty=score) for score in (0.0, 0.9)]
    abstained = EvaluationAnswer("Velm", (), Usage(6, 20, 4), acted=True)
    sampled = [*by_score, abstained]
    run = stored(tmp_path / "a.db", always=[said("Velm")] * 3, semantic_entropy=sampled)
    with study.EvaluationRun(run) as opened:
        *_, row = tables.gates_rows(opened)
    assert row["searches"] == pytest.approx(2 / 3)
    assert row["calls"] == pytest.approx((5 + 6 + 6) / 3)
    assert row["right"][0] == 66.7


def test_a_score_of_another_prompt_is_also_held_against_its_own_answers(tmp_path: Path) -> None:
    plain = [said(text, entropy=score) for text, score in (("Velm", 0.1), ("Velm", 0.2), ("Orun", 0.9))]
    dense = [said(text, DSE=score) for text, score in (("Orun", 0.9), ("Velm", 0.1), ("Velm", 0.1))]
    with study.EvaluationRun(stored(tmp_path / "a.db", plain=plain, DENSE=dense)) as opened:
        rows = {row["system"]: row for row in tables.understanding_rows(opened)}
    assert "own_auroc" not in rows["entropy"]
    assert rows["DSE"]["auroc"][0] < 0.5
    assert rows["DSE"]["own_auroc"][0] == 1


def test_a_summary_says_that_a_run_was_ended_early_and_how_it_was_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ask("compression", folder, monkeypatch, "--systems", "plain,EDC² top 3 whole")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    with sqlite3.connect(folder / "run.db") as rows:  # as if it had been killed
        rows.execute("DELETE FROM rows WHERE key = (SELECT key FROM questions WHERE place = 2)")
    more = ["--dtype", "bfloat16", "--name", "one", "--label", "org/model"]
    summary = json.loads(tables.add([*arguments, *more]).read_text())
    assert "--dtype bfloat16 --systems 'plain,EDC² top 3 whole'" in summary["command"]
    monkeypatch.setitem(pages.CAPTIONS, "one", "Each row is a system.")
    table = pages.markdown(summary, source="one")
    assert table.startswith("We asked org/model 2 questions of HotpotQA. Each row is a system.\n")
    assert "on 2 of 3 planned questions, because the time ran out" in table


def test_a_set_with_fewer_questions_is_asked_whole_and_was_not_ended_early(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ask("compression", folder, monkeypatch, "--systems", "plain,gold alone", "--n", "9")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    summary = json.loads(tables.add([*arguments, "--name", "one", "--label", "org/model"]).read_text())
    monkeypatch.setitem(pages.CAPTIONS, "one", "Each row is a system.")
    table = pages.markdown(summary, source="one")
    assert "We asked org/model 3 questions" in table
    assert "planned" not in table


def test_a_summary_of_other_questions_or_another_table_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    arguments = ask("gates", folder, monkeypatch)
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    named = ["--name", "one", "--label", "org/model"]
    for more, message in (
        (["--n", "2"], "has other questions than these arguments name"),
        (["--seed", "1"], "has other questions"),
    ):
        with pytest.raises(InputError, match=message):
            tables.add([*arguments, *more, *named])
    with pytest.raises(ConfigurationError, match="the run has no system 'DENSE refined'"):
        tables.refining_rows(EvaluationRun(folder / "run.db"))
    assert not (tmp_path / "results").exists()
    assert tables.add([*arguments, *named]).is_file()


def test_the_cpu_time_of_a_killed_run_counts(tmp_path: Path) -> None:
    def die(question: str) -> str:
        raise KeyboardInterrupt

    system = study.metered(as_system("a", die), study.cpu_file(tmp_path / "run.db"))
    with pytest.raises(KeyboardInterrupt):
        evaluate({"a": system}, ["one"], tmp_path / "run.db")
    assert 0 < study.cpu_hours(tmp_path / "run.db") < 1
    study.cpu_file(tmp_path / "run.db").write_text("1@7 3000\n2@8 40\n1@7 3600\n2@8 3600\n3600\n")
    assert study.cpu_hours(tmp_path / "run.db") == 3


def test_systems_without_answers_have_no_row(tmp_path: Path) -> None:
    answers = {"plain": [said("Velm")] * 2, "DENSE refined": [said("Velm")] * 2, "HyDE": [said("Velm")] * 2}
    run = stored(tmp_path / "a.db", **answers)
    with sqlite3.connect(run) as rows:
        rows.execute("DELETE FROM rows WHERE system = 'HyDE'")
    with study.EvaluationRun(run) as opened:
        for made in (tables.plain_rows(opened, "plain"), tables.compression_rows(opened)):
            assert [row["system"] for row in made] == ["plain", "DENSE refined"]
        assert len(tables.refining_rows(opened)) == 2  # nothing was uncertain
        with pytest.raises(InputError, match="no question was answered by all of plain, DENSE refined, HyDE"):
            tables.understanding_rows(opened)


def test_a_measure_that_some_answers_lack_is_of_the_others(tmp_path: Path) -> None:
    scores = {"gold": (1.0, 0.9, 0.8), "half": (0.4, 0.6, 0.5), "distractors": (0.0, 0.1, 0.2)}
    run = stored(
        tmp_path / "a.db",
        **{
            kind: [said("Velm", all=one, **({"judged": one} if at else {})) for at, one in enumerate(values)]
            for kind, values in scores.items()
        },
    )
    with study.EvaluationRun(run) as opened:
        rows = {row["system"]: row for row in tables.worth_rows(opened)}
    assert (rows["all"]["n"], rows["judged"]["n"]) == (3, 2)
    assert rows["judged"]["gold"] == 0.85 and rows["judged"]["r"][0] > 0.9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("gates --data nowhere", "the set squad cannot be read from nowhere.*No such file"),
        ("gates --set disfl --data bad", "the set disfl cannot be read from bad: KeyError: 'source'"),
        ("worth --data bad", "the set hotpot cannot be read from bad: JSONDecodeError"),
        ("gates --data . --set hotpot", "gates goes with --set squad or disfl, and not with hotpot"),
        ("rewriting --data . --set squad", "rewriting goes with --set disfl,"),
        ("prompts --data . --set 2wiki", "prompts goes with --set disfl or squad,"),
        ("gates --data . --articles Velm,Orun", "there is no article Orun. Choose from Velm"),
        ("worth --data . --articles Velm", "--articles goes with --set squad or disfl"),
        ("gates --data . --skip 2", "--skip goes with --set hotpot or hotpot-dev"),
        ("gates --data . --repeats 2", "--repeats goes with --set hotpot or hotpot-dev"),
        ("gates --data . --reader-judges", "--reader-judges is for understanding and worth"),
        ("worth --data . --references-alone", "--references-alone is for compression and gates"),
        ("worth --data . --skip 99", "no question at this place. Lower --skip"),
        ("worth --data . --k 99", "2 gold passages and 26 in all, of which k = 99"),
        ("worth --data . --k 1", "2 gold passages and 26 in all, of which k = 1 are"),
        ("worth --data . --k 6 --repeats 4", "of which k = 6 are to be shown, 4 of them repeats"),
        ("worth --data . --n 0", "--n and --at-a-time are 1 or more"),
        ("gates --data . --run no/run.db", "no/run.db cannot be written.*Name a file in an existing folder"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_reader_is_loaded(
    arguments: str,
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "bad").mkdir()
    (folder / "bad" / "hotpotqa_100.json").write_text("id,question")
    (folder / "bad" / "disfl_qa.json").write_text('[{"question": "Who?"}]')
    monkeypatch.chdir(folder)
    monkeypatch.setattr(study, "load_reader", lambda *_: pytest.fail("a reader was loaded"))
    monkeypatch.setattr(sys, "argv", ["run", "--reader", "x", "--run", "run.db", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        study.main()
    assert re.search(message, f"{ended.value.code} {capsys.readouterr().err}")


def test_a_misspelt_system_is_refused_before_anything_is_asked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit, match=r"there is no system plane\. Choose from never, plain,"):
        ask("gates", folder, monkeypatch, "--systems", "plane,plain")
    with EvaluationRun(folder / "run.db") as run:
        assert run.rows == []
    with pytest.raises(InputError, match="ADDRESS#MODEL"):
        load_reader("http://localhost:8000/v1")


def test_titles_with_a_comma_are_titles() -> None:
    arguments = [
        "gates",
        "--data",
        ".",
        "--reader",
        "x",
        "--run",
        "r",
        "--articles",
        "Fresno,_California,Normans",
    ]
    assert study.parse(arguments).articles == ["Fresno,_California", "Normans"]


@pytest.mark.parametrize("path", sorted(tables.RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_the_command_of_a_summary_is_one(path: Path) -> None:
    summary = json.loads(path.read_text(encoding="utf-8"))
    if summary["command"] == "python -m studies.real.tables traces DATA":
        return  # its test is below
    found = study.parse(shlex.split(summary["command"])[3:])
    assert (found.table, found.set, found.reader) == (summary["table"], summary["set"], summary["reader"])


def test_what_recorded_measures_tell_is_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    (tmp_path / "traces").mkdir()
    rows = [
        {"dataset": name, "id": f"{name}{at}", "golds": ["Velm"], "answer": "Velm" if at % 3 else "Orun"}
        | dict.fromkeys(("perplexity", "ln_entropy", "eigen_score"), 1.0 if at % 3 else 2.0)
        | {"energy": -1.0}
        for name in ("nq", "triviaqa")
        for at in range(12)
    ]
    table = pytest.importorskip("pyarrow").Table.from_pylist(rows)
    parquet.write_table(table, tmp_path / "traces" / "single_hop.parquet")
    monkeypatch.setattr(tables, "RESULTS", tmp_path / "results")
    summary = json.loads(tables.add_traces(tmp_path).read_text(encoding="utf-8"))
    found = {row["system"]: row for row in summary["rows"]}
    assert found["NQ: all answers"]["right"][0] == 66.7
    assert found["TriviaQA: perplexity"]["auroc"][0] == 1.0
    assert found["NQ: perplexity"]["surest 50%"][0] == 100.0
    assert found["NQ: energy"]["auroc"][0] == 0.5  # it is the same for all answers


def test_an_abstention_promise_is_tried_on_other_paragraphs(tmp_path: Path) -> None:
    """Certain answers are right, and uncertain ones wrong, so that a policy finds them in any half."""
    questions = [
        Question(f"Where was P{at} born?", ("Velm",), (f"Paragraph {at // 5}",)) for at in range(400)
    ]

    def answer(question: str) -> EvaluationAnswer:
        at = int("".join(c for c in question if c.isdigit()))
        sure = at % 4 > 0
        scores = {
            "logprob 1": -0.1 if sure else -2.0,
            "entropy 1": 0.1 + at / 1e5 if sure else 2.0 + at / 1e5,
        }
        return said("Velm" if sure else "Orun", **scores)

    run = evaluate({"plain": as_system("plain", answer)}, questions, tmp_path / "a.db", metrics=("contains",))
    with run:
        rows = {row["system"]: row for row in certainty.promise_rows(run)}
        [everything] = [row for row in certainty.certainty_rows(run) if row["system"] == "all answers"]
    assert everything["right"][0] == 75.0
    assert rows["at most 10% wrong"]["broken"] <= 0.1
    assert 0.7 < rows["at most 10% wrong"]["answered"] < 0.8
    assert rows["at most 30% wrong"]["answered"] > 0.9  # a quarter of all answers are wrong


def test_a_run_says_which_difference_its_questions_show() -> None:
    assert study.what_can_be_shown(600, "certainty").startswith("600 questions show an AUROC of 0.57")
    assert "a difference of 13 points" in study.what_can_be_shown(100, "gates")
    assert "of 0.28 nats a token of the reference" in study.what_can_be_shown(100, "compression")


def test_passages_are_repeated_as_overlapping_chunks(folder: Path) -> None:
    data = load_hotpot(folder / "hotpotqa_100.json", k=6, repeats=3)
    for item in data.items:
        assert len(item.passages) == 6
        assert all(passage in item.passages for passage in item.gold)
        texts = {passage.id: passage.text for passage in item.passages}
        again = {name: text for name, text in texts.items() if name.endswith(", again")}
        assert len(again) == 3
        assert all(text in texts[name.removesuffix(", again")] for name, text in again.items())
        assert any(len(text) < len(texts[name.removesuffix(", again")]) for name, text in again.items())


def test_questions_without_passages_are_answered_from_a_search(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask("compression", folder, monkeypatch, "--set", "squad", "--k", "4")
    with study.EvaluationRun(folder / "run.db") as run:
        rows = {row["system"]: row for row in tables.compression_rows(run)}
    assert {row["n"] for row in rows.values()} == {3}
    assert rows["gold alone"]["gold_shown"] == rows["plain"]["gold_shown"] == 1


def test_no_reader_is_tested_on_what_it_was_trained_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["worth", "--data", str(folder), "--reader", "demo", "--run", str(folder / "run.db")]
    with pytest.raises(SystemExit):
        study.parse(arguments)
    assert "trained on these questions" in capsys.readouterr().err
    assert study.parse([*arguments, "--set", "hotpot-dev"]).k == 10


def test_noise_fills_a_context_and_gold_stays(folder: Path) -> None:
    for k, own in ((4, 4), (10, 10)):
        data = load_hotpot(folder / "hotpotqa_100.json", k=k)
        assert [len(item.passages) for item in data.items] == [own] * len(data.items)
        assert all(passage in item.passages for item in data.items for passage in item.gold)


def test_unanswerable_questions_are_left_out_and_articles_chosen(folder: Path) -> None:
    assert {item.article for item in load_squad(folder, 9, 0).items} == {"Velm"}
    assert len(load_squad(folder, 9, 0).items) == 4
    assert load_squad(folder, 9, 0, ["Velm"]).items == load_squad(folder, 9, 0).items


def test_the_first_sentence_of_the_demo_is_of_a_real_model() -> None:
    rows = {row["system"]: row for row in pages.read_summary("gatesnew-qwen")["rows"]}
    lazy, always = rows["lazy"], rows["always"]
    random = rows["at random, as often as lazy"]
    assert random["searches"] == lazy["searches"]
    assert f"{lazy['n']} questions of SQuAD 2.0, L-RAG answers {lazy['right'][0]} % right" in EVIDENCE
    assert f"calls the retriever for {100 * lazy['searches']:.1f} % of the questions" in EVIDENCE
    assert f"always calls the retriever answers {always['right'][0]} % right" in EVIDENCE
    assert f"picks them at random, answers {random['right'][0]} % right" in EVIDENCE


def test_a_reference_is_measured_from_the_reading_that_the_answer_grows_from() -> None:
    local = TransformersReader(tiny_model("llama"), tiny_tokenizer())
    read: list[int] = []
    forward = local._model.forward
    local._model.forward = lambda tokens, *more: read.append(tokens.shape[1]) or forward(tokens, *more)  # type: ignore[method-assign,func-returns-value]
    reader = KeepingReader(local, decodes=False)
    context = " ".join(f"bo da ri {at}" for at in range(60))
    prompts = [f"{context} ka?", f"{context} lo mi?"]
    for prompt in prompts:
        reader.expect(prompt, "ba do")
        [[reply]] = reader.generate([prompt], SamplingParams(max_tokens=9))
        assert len(reply.text.split()) <= 1
    whole, rest = read[0], read[1]
    assert whole > 256 and rest < 16  # the second prompt goes on from what the first one has read
    reference = local._encoder._encode_plain("ba do")
    for prompt in prompts:
        ids = [*local._encoder.encode(prompt)[0], *reference]
        logits = local._model.model(torch.tensor([ids])).logits[0, -len(reference) - 1 : -1]
        expected = logits.log_softmax(-1).gather(-1, torch.tensor(reference)[:, None]).mean().item()
        assert reader.likelihood(prompt) == pytest.approx(expected, abs=1e-3)
    before = len(read)
    reader.generate(prompts, SamplingParams(max_tokens=9))
    assert len(read) == before  # replies are kept
    other = f"{context[:400]} {'ko ' * 100}"
    reader.generate([f"{other} ka?", f"{other} lo mi?"], SamplingParams(max_tokens=9))
    long = [width for width in read[before:] if width > 64]
    assert len(long) == 1 and long[0] < 256  # beyond what was kept, they read what they share once


def test_the_likelihood_of_references_is_compared_by_documents_where_it_was_measured() -> None:
    likely = [-1.0, None, -2.0, -1.5]
    row = tables.of_references(likely, [-1.5, -1.0, -2.5, None], ["a", "a", "b", "b"])
    assert row["reference"] == -1.5 and row["reference_difference"][0] == 0.5
    assert tables.of_references([None], [None], ["a"]) == {}
    changes = np.random.default_rng(0).normal(size=20).repeat(5)
    groups = [str(at // 5) for at in range(100)]
    alone = tables.of_references(changes.tolist(), [0.0] * 100, [""] * 100)["reference_difference"]
    together = tables.of_references(changes.tolist(), [0.0] * 100, groups)["reference_difference"]
    assert together[2] - together[1] > 2 * (alone[2] - alone[1])


def test_ways_to_judge_keep_what_helps(folder: Path) -> None:
    """Rounds end once enough passages help; a reply may name passages, or a yes may keep them."""
    shown = [Passage(f"Velm {at}." if at in (1, 4) else f"Bo {at}.", id=str(at)) for at in range(6)]

    def judged(prompt: str) -> str:
        if "their numbers" in prompt:
            return "Passages [5], [2]."
        return "Yes" if "Velm" in prompt.splitlines()[0] else "No"

    reader = FakeReader(judged)
    ways = ways_to_choose(HashingEncoder(), {"Velm?": shown}, 2)
    chosen = {name: sorted(choose(Meter(reader), "Velm?")) for name, choose in ways.items()}
    for name in ("each", "together", "each that helps", "together that help", "each until 2 help"):
        assert chosen[name] == [1, 4], name
    rounds = Meter(reader)
    ways["each until 2 help"](rounds, "Velm?")
    assert rounds.usage.requests == 2  # the nearest two say yes
