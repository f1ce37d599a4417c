"""Make a built site whole: nothing is loaded from elsewhere, and tables can be read on a telephone.

The theme's search works on pages that are opened as files with the help of a small script, which it loads
from a public server. The site brings that script along. A cell of a table gets the name of its column as
``data-label``: where there is no room for columns, the site's style puts a row's cells below each other::

    python -m tools.finish_site build/site
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
HERE = "assets/iframe-worker.js"


_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_CELL = re.compile(r"<td\b")
_TAG = re.compile(r"<[^>]+>")


def labelled(text: str) -> str:
    """Give each cell of a page's tables the name of its column."""
    return _TABLE.sub(lambda table: _labelled_table(table[0]), text)


def _labelled_table(table: str) -> str:
    names = [_TAG.sub("", name).strip().replace('"', "&quot;") for name in _HEAD.findall(table)]

    def labelled_row(row: re.Match[str]) -> str:
        left = iter(names)
        return _CELL.sub(lambda _: f'<td data-label="{next(left, "")}"', row[0])

    return _ROW.sub(labelled_row, table)


def finish(site: Path) -> int:
    """Change every page of a site; return how many load their search from it now."""
    changed = 0
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        above = "../" * (len(path.relative_to(site).parts) - 1)
        whole = labelled(text.replace(ELSEWHERE, f"{above}{HERE}"))
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        changed += ELSEWHERE in text
    return changed


if __name__ == "__main__":
    sys.stdout.write(f"{finish(Path(sys.argv[1]))} pages load their search from the site\n")
