"""Make a built site whole: what its theme would load from elsewhere is loaded from the site itself.

The theme's search works on pages that are opened as files with the help of a small script, which it loads
from a public server. The site brings that script along::

    python -m tools.finish_site build/site
"""

from __future__ import annotations

import sys
from pathlib import Path

ELSEWHERE = "https://unpkg.com/iframe-worker/shim"
HERE = "assets/iframe-worker.js"


def finish(site: Path) -> int:
    """Change every page of a site; return how many were changed."""
    changed = 0
    for path in sorted(site.rglob("*.html")):
        text = path.read_text(encoding="utf-8")
        above = "../" * (len(path.relative_to(site).parts) - 1)
        whole = text.replace(ELSEWHERE, f"{above}{HERE}")
        if whole != text:
            path.write_text(whole, encoding="utf-8")
            changed += 1
    return changed


if __name__ == "__main__":
    sys.stdout.write(f"{finish(Path(sys.argv[1]))} pages load their search from the site\n")
