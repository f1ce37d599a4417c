"""The example programs are run as they stand, offline."""

from __future__ import annotations

import json
import runpy
import shlex
import sys
import types
from importlib import util

import httpx
import pytest
import yaml

from surerag.errors import ConfigurationError, TransientServiceError
from tests.snippets import ROOT, check_command

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))


def example(name: str) -> types.ModuleType:
    spec = util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = util.module_from_spec(spec)
    sys.modules[name] = module  # where annotations are looked up
    spec.loader.exec_module(module)
    return module


def printed(name: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def test_the_table_names_every_program() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert PROGRAMS
    assert [name for name in PROGRAMS if f"| [`{name}`]" not in table] == []


def test_the_workflow_of_ci_is_one_and_asks_for_options_that_there_are() -> None:
    workflow = yaml.safe_load((EXAMPLES / "ci" / "compare.yml").read_text(encoding="utf-8"))
    steps = workflow["jobs"]["compare"]["steps"]
    script = "\n".join(step.get("run", "") for step in steps).replace("\\\n", " ")
    calls = [shlex.split(line)[1:] for line in script.splitlines() if line.strip().startswith("surerag ")]
    assert [call[0] for call in calls] == ["compare"]
    for call in calls:
        check_command(call)


def test_the_graph_searches_where_it_is_unsure_and_asks_where_nothing_supports_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert printed("langgraph_agent", capsys) == [
        "Where was Maela born? Drafstad (searched: False)",
        "Which instrument does Maela play? mandolin (searched: True)",
        "Who is married to Maela? A person is asked; the draft was 'Brautis'.",
        "Who is married to Maela? nobody knows (searched: True)",
    ]


def test_the_workflow_streams_what_it_decides_and_answers(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed("llama_index_workflow", capsys)
    assert [line for line in lines if not line.startswith("gate:")] == [
        "Where was Maela born?",
        "+ Drafstad",
        "Drafstad (searched: False; understood: True)",
        "Which instrument does Maela play?",
        "+ mandolin",
        "mandolin (searched: True; understood: True)",
    ]
    gates = [line for line in lines if line.startswith("gate:")]
    assert ["above" in gate for gate in gates] == [False, True]


@pytest.fixture
def service() -> types.ModuleType:
    pytest.importorskip("fastapi", reason="of the example alone; the group `test` has it")
    return example("fastapi_service")


def client(service: types.ModuleType) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://here")


async def test_the_service_tells_its_decision_and_then_streams_the_answer(service: types.ModuleType) -> None:
    async with client(service) as asking:
        sure = await asking.post("/ask", json={"question": "Where was Maela born?"})
        unsure = await asking.post("/ask", json={"question": "Which instrument does Maela play?"})
    told = [[json.loads(line) for line in answer.text.splitlines()] for answer in (sure, unsure)]
    assert [lines[0]["searched"] for lines in told] == [False, True]
    assert all("shown" in lines[0] and "answer" not in lines[0] for lines in told)
    assert ["".join(line.get("answer", "") for line in lines) for lines in told] == ["Drafstad", "mandolin"]


@pytest.mark.parametrize(
    ("error", "status"), [(TransientServiceError("overloaded"), 503), (ConfigurationError("top_n is 0"), 500)]
)
async def test_what_goes_wrong_has_a_status_before_the_first_line(
    service: types.ModuleType, error: Exception, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        async def astream(self, question: str):
            raise error
            yield {}

    monkeypatch.setattr(service, "chain", Failing)
    async with client(service) as asking:
        answer = await asking.post("/ask", json={"question": "Where was Maela born?"})
    assert (answer.status_code, answer.json()) == (status, {"detail": type(error).__name__})


async def test_an_empty_question_is_refused(service: types.ModuleType) -> None:
    async with client(service) as asking:
        for empty in ("", " "):
            assert (await asking.post("/ask", json={"question": empty})).status_code == 422
