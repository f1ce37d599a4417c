"""Build what is published, check it, and install each distribution into an empty environment.

    python -m tools.check_distributions build/dist

Source and wheel of surerag, and of the thin distributions that bring it under their framework's name. Their
descriptions have to render on the package index, the source has to hold what it takes to test and to build
the documentation, and each thin one has to bring its framework and the module that people import.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
THIN = {
    "langchain-surerag": "from langchain_surerag import LazyRetrievalChain",
    "llama-index-surerag": "from llama_index_surerag import LazyRetrievalQueryEngine",
}
"""Each with what people import from the module that it brings."""

SOURCE = (
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "Makefile",
    "README.md",
    "SECURITY.md",
    "constraints.txt",
    "docs/index.md",
    "docs/studies/printed/l-rag.txt",
    "distributions/langchain-surerag/pyproject.toml",
    "examples/README.md",
    "mkdocs.yml",
    "pyproject.toml",
    "src/surerag/__init__.py",
    "tests/conftest.py",
    "tools/check_site.py",
)
"""What a packager needs to test, and to build the site, besides what is installed."""

NEVER = ("tests/", "docs/", "examples/", "benchmarks/", "tools/")
"""Rooms that no wheel may hold."""


def build(folder: Path) -> list[Path]:
    """Build everything into a folder; return the files."""
    for project in (ROOT, *(ROOT / "distributions" / name for name in THIN)):
        _run(sys.executable, "-m", "build", "--outdir", str(folder), str(project))
    return sorted(folder.iterdir())


def missing(files: list[Path]) -> list[str]:
    """Return a line for everything that a file lacks, or should not hold."""
    found = []
    for file in files:
        if file.name.startswith("surerag-") and file.name.endswith(".tar.gz"):
            with tarfile.open(file) as archive:
                held = {name.partition("/")[2] for name in archive.getnames()}
            found += [f"{file.name} lacks {name}" for name in SOURCE if name not in held]
        elif file.suffix == ".whl":
            with zipfile.ZipFile(file) as wheel:
                found += [f"{file.name} holds {name}" for name in wheel.namelist() if name.startswith(NEVER)]
    return found


def install(files: list[Path], folder: Path) -> None:
    """Install each thin distribution into an environment of its own, and import what it brings."""
    for name, line in THIN.items():
        place = folder / name
        venv.create(place, with_pip=True, clear=True)
        python = str(place / "bin/python")
        _run(python, "-m", "pip", "install", "--quiet", "--find-links", str(files[0].parent), "--pre", name)
        _run(python, "-c", line)
        sys.stdout.write(f"{name}: {line}\n")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603  # our own words
    if done.returncode:
        sys.stderr.write(done.stdout + done.stderr)
        raise SystemExit(f"{' '.join(command[:4])} failed")
    return done.stdout


def main() -> int:
    """Build, check, install."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    shutil.rmtree(given.folder, ignore_errors=True)
    files = build(given.folder)
    _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, files))
    found = missing(files)
    sys.stderr.writelines(f"{line}\n" for line in found)
    if found:
        return 1
    install(files, given.folder.parent / "dist-environments")
    return 0


if __name__ == "__main__":
    sys.exit(main())
