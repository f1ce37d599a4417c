"""Check a built site: every link leads somewhere, nothing is loaded from elsewhere, and it can be read aloud.

The builder checks links between pages as they were written; this checks what it made of them, anchors in
docstrings and the theme's own files included. Of what people without sight need it checks what can be told
without a browser (a language, words for pictures and links, headings in order); the rest is checked in one,
by ``tools.look_at_site``::

    python -m tools.check_site build/site

Absolute paths, which the page for missing pages has, begin with the site's own place on its server.
"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "source": "src", "iframe": "src", "link": "href"}
"""What a browser fetches without being asked to, by its tag."""


PLACE = "/surerag/"
"""Where the site stands on its server: the path of ``site_url``."""


class Link(NamedTuple):
    """Where a tag points, and whether the browser loads it."""

    target: str
    loaded: bool


HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
NAMES = ("aria-label", "aria-labelledby", "title")


class Page(HTMLParser):
    """The links and anchors of a page, and what a screen reader would stumble over."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[Link] = []
        self.anchors: set[str] = set()
        self.unreadable: list[str] = []
        self._heading = 0
        self._words: str | None = None
        """What stands in the link or button that is open, so far."""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note where a tag points, and what it can be pointed at by."""
        given = dict(attrs)
        self.anchors |= {given[name] or "" for name in ("id", "name") if name in given}
        attribute = LOADED.get(tag, "href" if tag == "a" else "")
        target = given.get(attribute)
        if target is not None:
            # A canonical address and the like name a page; they load nothing.
            passive = tag == "link" and given.get("rel") in ("canonical", "prev", "next", "alternate")
            self.links.append(Link(target, tag in LOADED and not passive))
        self._listen(tag, given)

    def handle_endtag(self, tag: str) -> None:
        """Look whether a link or button that ends has words."""
        if tag in ("a", "button") and self._words is not None:
            if not self._words.strip():
                self.unreadable.append(f"a link or button without words, line {self.getpos()[0]}")
            self._words = None

    def handle_data(self, data: str) -> None:
        """Note the words of a link or button."""
        if self._words is not None:
            self._words += data

    def _listen(self, tag: str, given: dict[str, str | None]) -> None:
        named = next((given[name] or "" for name in NAMES if given.get(name)), "")
        if tag == "html" and not given.get("lang"):
            self.unreadable.append("the page does not say its language")
        elif tag == "img":
            if "alt" not in given:
                self.unreadable.append(f"a picture without words: {given.get('src')}")
            self._words = None if self._words is None else self._words + (given.get("alt") or "")
        elif tag in ("a", "button") and ("href" in given or tag == "button"):
            self._words = named
        elif tag in HEADINGS:
            level = HEADINGS.index(tag) + 1
            if level > self._heading + 1:
                self.unreadable.append(
                    f"a heading of level {level} after one of {self._heading}: {given.get('id')}"
                )
            self._heading = level


def problems(site: Path) -> list[str]:
    """Return a line for every broken link, for what is loaded from elsewhere, and for what cannot be read."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        found += [f"{path.relative_to(site)}: {wrong}" for wrong in page.unreadable]
        for link in page.links:
            wrong = _wrong(link, path, site, pages)
            if wrong:
                found.append(f"{path.relative_to(site)}: {link.target}: {wrong}")
    return found


def _wrong(link: Link, path: Path, site: Path, pages: dict[Path, Page]) -> str:
    parts = urlsplit(link.target)
    if parts.scheme or parts.netloc:
        return "loaded from elsewhere" if link.loaded and parts.scheme != "data" else ""
    if not parts.path:
        target = path
    elif parts.path.startswith("/"):
        target = site / unquote(parts.path).removeprefix(PLACE).lstrip("/")
    else:
        target = (path.parent / unquote(parts.path)).resolve()
    if target.is_dir():
        target /= "index.html"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    # "__" begins the theme's own places, some of which its script makes.
    if anchor and target in pages and not anchor.startswith("__") and anchor not in pages[target].anchors:
        return "no such place on that page"
    return ""


def main(folder: str) -> int:
    """Print what is wrong with a site; return 1 if anything is."""
    site = Path(folder).resolve()
    if not (site / "index.html").is_file():
        sys.stderr.write(f"{folder} holds no site\n")
        return 1
    found = problems(site)
    sys.stderr.writelines(f"{line}\n" for line in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
