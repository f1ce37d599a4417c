"""The notebooks, with their results: run them, check that a rerun says the same, and make pages of them.

``python -m tools.notebooks run`` runs them and keeps what they print; ``check`` runs them, changes nothing,
and fails where a figure differs; ``try`` tells of differences, and fails where a cell does; ``pages`` writes
``docs/notebooks`` from what is kept. Names of files after the verb pick some. Timings may differ, and so may
the last digits of figures, which no two processors share: on another one an answer on the edge may tip.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "cookbooks"
PAGES = ROOT / "docs" / "notebooks"
TIMEOUT = 600
WORKERS = 2
ABSOLUTE, RELATIVE = 0.011, 0.02
"""How far a figure of a rerun may be from the one that is kept."""

_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?(?![A-Za-z_])")
_TIMING = re.compile(r"\b(?:ms|milliseconds?|seconds?|minutes?|it/s)\b|\d ?s\b")
Notebook = dict[str, Any]


class Difference(NamedTuple):
    """A line that a rerun printed otherwise."""

    cell: str
    kept: str
    now: str

    def __str__(self) -> str:
        return f"cell {self.cell}\n  kept: {self.kept}\n  now:  {self.now}"


def found(names: Sequence[str] = ()) -> list[Path]:
    """Return the notebooks, or those of these names."""
    files = sorted(NOTEBOOKS.glob("*.ipynb"))
    return [file for file in files if not names or any(name in file.name for name in names)]


def read(file: Path) -> Notebook:
    """Return a notebook."""
    notebook: Notebook = json.loads(file.read_text(encoding="utf-8"))
    return notebook


def run(file: Path) -> Notebook:
    """Run a notebook from its beginning and return it with what it printed and drew."""
    import nbformat
    from nbclient import NotebookClient

    # Nbformat's functions are without types.
    notebook = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(NOTEBOOKS)}}
    NotebookClient(notebook, timeout=TIMEOUT, kernel_name="python3", resources=where).execute()
    kept: Notebook = json.loads(nbformat.writes(notebook))  # type: ignore[no-untyped-call]
    for cell in kept["cells"]:
        cell["metadata"].pop("execution", None)
        if cell["cell_type"] == "code":
            cell["outputs"] = list(_kept(cell["outputs"]))
    return kept


def _kept(outputs: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Keep what was printed and drawn; progress and warnings on standard error are of the moment."""
    printed = ""
    for output in outputs:
        if output["output_type"] == "stream":
            printed += "".join(output["text"]) if output["name"] == "stdout" else ""
            continue
        if printed:
            yield _stream(printed)
            printed = ""
        if output["output_type"] in ("display_data", "execute_result"):
            data = output["data"]
            kind = "image/png" if "image/png" in data else "text/plain"
            shown = {kind: data[kind]}
            more = {"execution_count": None} if output["output_type"] == "execute_result" else {}
            yield {"output_type": output["output_type"], "data": shown, "metadata": {}, **more}
    if printed:
        yield _stream(printed)


def _stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}


def differences(kept: Notebook, now: Notebook) -> list[Difference]:
    """Return where a rerun says something else than what is kept."""
    different = []
    for old, new in zip(kept["cells"], now["cells"], strict=True):
        if old["cell_type"] != "code":
            continue
        before, after = _lines(old), _lines(new)
        for at in range(max(len(before), len(after))):
            one, other = (lines[at] if at < len(lines) else "(nothing)" for lines in (before, after))
            if not same_line(one, other):
                different.append(Difference(old["id"], one, other))
    return different


def same_line(kept: str, now: str) -> bool:
    """Whether two lines say the same: the same words, and figures that are near enough.

    Example:
        >>> same_line("AUROC 0.951, n = 60", "AUROC 0.953, n = 60"), same_line("n = 60", "n = 61")
        (True, False)
        >>> same_line("took 12.1 ms", "took 90.4 ms"), same_line("Velm", "Orun")
        (True, False)
    """
    if kept == now:
        return True
    if " ".join(_NUMBER.sub("#", kept).split()) != " ".join(_NUMBER.sub("#", now).split()):
        return False
    if _TIMING.search(kept):
        return True
    return all(map(_near, _NUMBER.findall(kept), _NUMBER.findall(now)))


def _near(kept: str, now: str) -> bool:
    if "." not in kept and "e" not in kept:
        return kept == now
    one, other = (float(text.replace(",", "").replace("−", "-")) for text in (kept, now))
    return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)


def _lines(cell: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            lines += "".join(output["text"]).splitlines()
        elif "image/png" in output["data"]:
            lines.append("(a picture)")
        else:
            lines += "".join(output["data"]["text/plain"]).splitlines()
    return lines


def page(file: Path) -> dict[str, bytes]:
    """Return a notebook as a page of the site, and its pictures, by the names of their files."""
    name = file.stem
    parts: list[str] = []
    made: dict[str, bytes] = {}
    for cell in read(file)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "](../"))
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            if output["output_type"] == "stream":
                parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
            elif "image/png" in output["data"]:
                picture = f"{name}-{len(made) + 1}.png"
                made[picture] = base64.b64decode(output["data"]["image/png"])
                parts.append(f"![What the cell above draws]({picture})")
            else:
                parts.append(f"```text\n{''.join(output['data']['text/plain']).rstrip()}\n```")
    origin = f"*This page is the notebook `cookbooks/{file.name}`, with what it printed.*"
    parts.insert(1, origin)
    return {f"{name}.md": ("\n\n".join(parts) + "\n").encode(), **made}


def pages() -> dict[str, bytes]:
    """Return all pages and their pictures."""
    made: dict[str, bytes] = {}
    for file in found():
        made.update(page(file))
    return made


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def renewed(file: Path) -> str:
    """Run a notebook, keep what it says, and return what to say about it."""
    try:
        notebook = run(file)
    except Exception as error:
        return f"{file.name}: it failed: {error}"
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return ""


def checked(file: Path) -> str:
    """Run a notebook, and return where it says something else than what is kept."""
    try:
        different = differences(read(file), run(file))
    except Exception as error:
        return f"{file.name}: it failed: {error}"
    return "\n".join(
        [f"{file.name}: {len(different)} lines differ", *map(str, different)] if different else []
    )


def tried(file: Path) -> str:
    """Run a notebook, tell where it says something else than what is kept, and return why it failed."""
    told = checked(file)
    if ": it failed: " in told:
        return told
    if told:
        say(told)
    return ""


VERBS = {"run": (renewed, "kept"), "check": (checked, "the same"), "try": (tried, "it runs")}


def main(arguments: Sequence[str]) -> int:
    """Do what is asked; return 1 where a notebook says something else than what is kept."""
    verb, *names = arguments
    if verb == "pages":
        PAGES.mkdir(parents=True, exist_ok=True)
        for old in PAGES.iterdir():
            old.unlink()
        for name, content in pages().items():
            (PAGES / name).write_bytes(content)
        return 0
    if verb not in VERBS:
        raise SystemExit(f"say {', '.join(VERBS)} or pages")
    work, done_well = VERBS[verb]
    failed = 0
    with ProcessPoolExecutor(WORKERS) as pool:
        asked = {pool.submit(work, file): file for file in found(names)}
        for done in as_completed(asked):
            trouble = done.result()
            say(trouble or f"{asked[done].name}: {done_well}")
            failed |= bool(trouble)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
