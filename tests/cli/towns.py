"""Where people were born: a corpus, and questions that one document of it answers."""

from __future__ import annotations

import json
from pathlib import Path

TOWNS = ("Velm", "Orun", "Toren", "Sarl")


def corpus(folder: Path, n: int = 24, golds: bool = True) -> tuple[Path, Path]:
    """Write questions and documents; return both files."""
    rows = [
        {"id": f"q{at}", "question": f"Where was Person{at} born?"}
        | ({"answers": [TOWNS[at % 4]]} if golds else {})
        for at in range(n)
    ]
    texts = [
        {"id": f"d{at}", "text": f"Person{at} was born in {TOWNS[at % 4]}. Person{at} likes <b>boats</b>."}
        for at in range(n)
    ]
    questions, documents = folder / "q.jsonl", folder / "d.jsonl"
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    documents.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return questions, documents
