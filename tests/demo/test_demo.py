"""The demo's corpus is sound, and its reader says where its base comes from."""

from __future__ import annotations

import socket
import time
from importlib.resources import files
from pathlib import Path

import pytest

from surerag.demo import fetch_base, load_corpus, load_questions, load_reader
from surerag.demo import reader as demo_reader
from surerag.errors import ConfigurationError
from surerag.messages import SamplingParams
from surerag.prompts import FROM_CONTEXT

torch = pytest.importorskip("torch")


def test_each_question_is_about_a_paragraph_that_holds_its_references() -> None:
    texts = {passage.id: passage.text for passage in load_corpus()}
    questions = load_questions()
    assert len(texts) == len(load_corpus()) == 179
    assert len({question.id for question in questions}) == len(questions) == 204
    assert all(reference in texts[one.passage_id] for one in questions for reference in one.references)


def test_a_base_that_is_nowhere_is_an_error_that_says_how_to_fetch_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="fetch_base"):
        load_reader(tmp_path)


def test_what_is_here_is_taken_before_a_hub_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(demo_reader, "_hub_answers", lambda: pytest.fail("a hub was asked"))
    monkeypatch.setattr(demo_reader, "base_folder", lambda: tmp_path)
    assert demo_reader.find_base() == str(tmp_path)
    monkeypatch.setattr(demo_reader, "base_folder", lambda: tmp_path / "base")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda _, name: f"/hub/{name}")
    assert demo_reader.find_base() == "/hub"


def test_a_hub_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(demo_reader, "base_folder", lambda: tmp_path / "base")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda _, name: None)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(demo_reader, "HUB_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes connections, and never answers
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", address)
        started = time.monotonic()
        assert demo_reader.find_base() is None
        assert time.monotonic() - started < 2
    with pytest.raises(ConfigurationError, match=r"no model hub answers.*fetch_base"):
        load_reader()


def test_another_file_than_the_expected_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("gguf")
    monkeypatch.setattr(demo_reader, "base_folder", lambda: tmp_path / "base")
    wheel = tmp_path / "other.whl"
    wheel.write_bytes(b"no wheel")
    with pytest.raises(ConfigurationError, match="does not have the expected SHA-256"):
        fetch_base(wheel)
    assert not (tmp_path / "base").exists()


def test_the_adapter_is_small_and_has_two_matrices_for_each_layer() -> None:
    from safetensors.torch import load

    content = files("surerag.demo").joinpath("adapter/adapter.safetensors").read_bytes()
    tensors = load(content)
    assert len(content) <= 10_000_000
    assert {key.rpartition(".")[2] for key in tensors} == {"a", "b"}
    assert all(tensors[f"{key[:-2]}.a"].shape[0] == tensors[f"{key[:-2]}.b"].shape[1] for key in tensors)


@pytest.mark.skipif(not demo_reader.base_folder().is_dir(), reason="the base was not fetched")
def test_the_reader_answers_from_a_paragraph_of_the_corpus() -> None:
    context = "The Normans were descended from Norse raiders under their leader Rollo."
    prompt = FROM_CONTEXT.render(context=context, question="Who was the leader of the Norse raiders?")
    [[answer]] = load_reader().generate([prompt], SamplingParams(max_tokens=16))
    assert "Rollo" in answer.text
