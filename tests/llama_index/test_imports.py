"""Importing the integration stays light."""

from __future__ import annotations

import subprocess
import sys

import llama_index_surerag

HEAVY = ("torch", "transformers", "openai", "faiss", "sklearn")


def test_every_public_name_loads_without_a_model_library() -> None:
    code = (
        "import sys, llama_index_surerag\n"
        "assert not any(name.startswith('llama_index.') for name in sys.modules)\n"
        "for name in llama_index_surerag.__all__: getattr(llama_index_surerag, name)\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_names_are_listed_and_unknown_ones_refused() -> None:
    assert set(dir(llama_index_surerag)) == set(llama_index_surerag.__all__)
    assert not hasattr(llama_index_surerag, "NoSuchThing")
