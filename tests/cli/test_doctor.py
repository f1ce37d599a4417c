"""``surerag doctor``, and the options that say how a model is to be asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from surerag.cli.doctor import Examined, diagnose
from surerag.cli.readers import ReaderChoice
from surerag.readers.openai import OpenAIReader
from surerag.readers.scripted import ScriptedReader
from tests.servers.providers import provider
from tests.servers.toy_model import ToyModel

SURE = ToyModel(sharpness=3.0)
pytestmark = pytest.mark.filterwarnings("ignore::surerag.readers.refusals.LeftOutWarning")


def test_a_server_with_log_probabilities_serves_every_method(surerag: Any) -> None:
    with provider("gpt-4o", SURE) as server:
        ran = surerag("doctor", "--base-url", server.url, "--model", "gpt-4o")
    assert ran.code == 0, ran.err
    assert "likeliest tokens listed 20" in ran.out
    for words in (
        "L-RAG",
        "mean entropy",
        "2 × 10 answers",
        "1 + 2k = 11",
        "3 answers for 20 passages",
        "DynQR",
    ):
        assert words in ran.out


def test_a_model_without_them_serves_every_method_by_disagreement(surerag: Any) -> None:
    with provider("gpt-5", SURE) as server:
        ran = surerag("doctor", "--base-url", server.url, "--model", "gpt-5")
    assert ran.code == 0, ran.err
    assert "thinks before it answers yes, and cannot be told not to" in ran.out
    assert "You are not allowed to request logprobs from this model" in ran.out
    assert "refuses logprobs, temperature" in ran.out
    assert "L-RAG: the gate entropy needs entropies" in ran.out
    assert 'with gate="disagreement"' in ran.out
    assert 'with metric="disagreement"' in ran.out
    assert "by how often it comes" in ran.out
    assert 'reasoning_effort="none"' in ran.out


def test_what_switches_thinking_off_is_named_and_works(surerag: Any) -> None:
    with provider("vllm-qwen3", SURE) as server:
        where = ("--base-url", server.url, "--model", "Qwen/Qwen3-8B")
        ran = surerag("doctor", *where)
        assert "yes; thinking=False switches it off" in ran.out
        assert "--no-thinking (thinking=False) has it answer at once" in ran.out
        ran = surerag("doctor", *where, "--no-thinking")
        assert ran.code == 0
        assert "thinks before it answers no" in ran.out
        server.requests.clear()
        surerag(
            "doctor", *where, "--template-option", "enable_thinking=false", "--extra-body", '{"min_p": 0.1}'
        )
        template = server.requests[0].body["chat_template_kwargs"]
        assert template == {"enable_thinking": False}
        assert server.requests[0].body["min_p"] == 0.1


def test_a_model_that_cannot_be_told_not_to_think_is_not_examined_as_if_it_could(surerag: Any) -> None:
    with provider("deepseek-reasoner", SURE) as server:
        ran = surerag("doctor", "--base-url", server.url, "--model", "deepseek-reasoner", "--no-thinking")
    assert ran.code == 2
    assert "thinks before it answers, although it was told not to" in ran.err


def test_a_server_that_samples_one_by_one_costs_more_requests() -> None:
    costs = []
    for name in ("gpt-4o", "ollama"):
        with provider(name, SURE) as server:
            reader = OpenAIReader(server.personality.model, base_url=server.url)
            costs.append(diagnose(Examined(reader, reader.probe()))[1].cost)
    assert "in 2 requests" in costs[0]
    assert "in 20 requests" in costs[1]


def test_a_local_model_is_examined_without_being_asked(surerag: Any) -> None:
    ran = surerag("doctor", "--model", "m", reader=ScriptedReader(["Velm"], entropy=0.1))
    assert ran.code == 0, ran.err
    assert "entropies exact" in ran.out
    assert "10 answers of at most 512" in ran.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--base-url", "http://127.0.0.1:9/v1", "--model", "m"], "nobody answers at 127.0.0.1:9"),
        (["--model", "m", "--extra-body", "{}"], "goes with --base-url"),
        (["--base-url", "http://127.0.0.1:9/v1", "--extra-body", "{"], "is no JSON"),
        (["--base-url", "http://127.0.0.1:9/v1", "--extra-body", "3"], "expected a JSON object"),
        (["--template-option", "a=b"], "goes with --model or --base-url"),
        (["--model", "m", "--template-option", "thinking"], "expected KEY=VALUE"),
    ],
)
def test_misuse_and_servers_that_do_not_answer_are_two(
    surerag: Any, arguments: list[str], words: str
) -> None:
    ran = surerag("doctor", *arguments)
    assert ran.code == 2
    assert words in ran.err.replace("│ ", "").replace(" │", "")


def test_template_options_reach_a_local_model(monkeypatch: pytest.MonkeyPatch, surerag: Any) -> None:
    from surerag.readers.transformers import TransformersReader

    given: dict[str, Any] = {}

    def from_pretrained(path: str, **options: Any) -> ScriptedReader:
        given.update(options, path=path)
        return ScriptedReader(["Velm"], entropy=0.1)

    monkeypatch.setattr(TransformersReader, "from_pretrained", from_pretrained)
    options = ("--template-option", "enable_thinking=false", "--template-option", "style=short")
    assert surerag("doctor", "--model", "m", *options).code == 0
    assert given == {"path": "m", "template_options": {"enable_thinking": False, "style": "short"}}
    surerag("doctor", "--model", "m", "--no-thinking")
    assert given["thinking"] is False


@pytest.mark.parametrize(
    "command", [["demo"], ["evaluate"], ["doctor"], ["train-rewriter"], ["reproduce", "l-rag"]]
)
def test_every_command_that_reads_has_these_options(surerag: Any, command: list[str]) -> None:
    shown = surerag(*command, "--help").out
    for option in ("--base-url", "--api-key-env", "--template-option", "--extra-body", "--no-thinking"):
        assert option in shown


def test_a_choice_without_options_asks_as_before(tmp_path: Path) -> None:
    reader = ReaderChoice("m", "http://127.0.0.1:9/v1", "OPENAI_API_KEY").connected("http://127.0.0.1:9/v1")
    assert reader.capabilities.thinking == "none"
