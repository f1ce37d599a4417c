"""The notebooks as pages, with their outputs."""

from __future__ import annotations

from pathlib import Path

from nbconvert import MarkdownExporter

SOURCE = "https://github.com/surerag/surerag/blob/main/cookbooks"


def write_notebooks(source: Path, target: Path) -> None:
    """Write each notebook of a folder as Markdown, with its pictures beside it."""
    target.mkdir()
    for path in sorted(source.glob("*.ipynb")):
        names = {"output_files_dir": path.stem, "unique_key": "picture"}
        text, resources = MarkdownExporter().from_filename(  # type: ignore[no-untyped-call]
            str(path), resources=names
        )
        title, _, rest = text.partition("\n")
        rest = rest.replace("](../docs/", "](../")
        link = f"*This page is a notebook with its outputs: [open it]({SOURCE}/{path.name}).*"
        (target / f"{path.stem}.md").write_text(f"{title}\n\n{link}\n{rest}", encoding="utf-8")
        for name, content in resources.get("outputs", {}).items():
            picture = target / name
            picture.parent.mkdir(exist_ok=True)
            picture.write_bytes(content)
