"""A small real reader and a small real corpus, for demonstrations and tests."""

from __future__ import annotations

from surerag.demo.corpus import DemoQuestion, load_corpus, load_questions
from surerag.demo.reader import fetch_base, find_base, load_reader

EXTRACT_PROMPT = (
    "Documents:\n{passages}\n"
    "Extract from the documents only what is relevant to the question, without inferring anything. "
    "If nothing is relevant, reply: No content to extract\n"
    "Question: {question}\nExtracted:"
)
"""The prompt that the demo's reader was trained with: EDC²-RAG's prompt, with the question after the
documents.

A model of this size extracts better if it reads the question last. Pass the prompt to the compressor:
``ClusterCompressor(..., variant="copy", prompts={"extract": EXTRACT_PROMPT})``.
"""

__all__ = [
    "EXTRACT_PROMPT", "DemoQuestion", "fetch_base", "find_base", "load_corpus", "load_questions",
    "load_reader",
]  # fmt: skip
