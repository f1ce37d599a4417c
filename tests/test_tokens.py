"""The estimate of tokens, against tokenizers of real models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from surerag.retrieval import chunk_text
from surerag.tokens import estimated_tokens
from tests.languages import PROSE, gpt, wordpiece


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
@pytest.mark.parametrize("language", PROSE)
def test_the_estimate_is_of_the_size_that_widespread_models_count(language: str, encoding: str) -> None:
    text = PROSE[language]
    real = gpt(encoding)(text)
    assert real / 2.2 <= estimated_tokens(text) <= real * 2.2, (real, estimated_tokens(text))


# It knows no Thai, Khmer, Burmese and Lao: whole runs are one unknown token. Emoji, likewise.
@pytest.mark.parametrize("language", sorted(PROSE.keys() - {"Thai", "Khmer", "Burmese", "Lao", "emoji"}))
def test_the_estimate_is_of_the_size_that_minilm_counts(language: str) -> None:
    real = wordpiece()(PROSE[language])
    assert real / 2.5 <= estimated_tokens(PROSE[language]) <= real * 2.5


def test_a_run_without_spaces_is_as_long_as_its_characters() -> None:
    for language in ("Chinese", "Japanese", "Thai", "Khmer"):
        run = PROSE[language].replace(" ", "")[:30]
        assert estimated_tokens(run * 20) > 10 * estimated_tokens(run)
        assert estimated_tokens(run) >= 15


@given(st.text(), st.text())
def test_a_text_has_no_fewer_tokens_than_its_beginning(text: str, more: str) -> None:
    # A word that goes on, or a number, is counted once more at most.
    assert 0 <= estimated_tokens(text) <= estimated_tokens(text + " " + more)
    assert estimated_tokens(text) <= len(text)


def test_passages_of_an_index_are_as_long_in_any_script() -> None:
    chinese = chunk_text(PROSE["Chinese"] * 10, tokens=100, overlap=0)
    assert max(len(chunk.text) for chunk in chinese) <= 100
    assert "".join(chunk.text for chunk in chinese) == PROSE["Chinese"] * 10
