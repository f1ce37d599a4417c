"""Look at built pages in a browser, as people do: on a telephone and on a desk, by day and by night.

Every page is opened as a file in headless Chromium, at 375 and 1280 pixels, light and dark. It must not
scroll sideways, write an error to the console or ask for anything from the network; axe looks for what people
with little sight cannot read or reach. A site with a search is searched::

    python -m tools.look_at_site build/site --pictures build/pictures

The browser is one that the machine has: Debian's package ``chromium``, or ``CHROMIUM=/path``.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

Scheme = Literal["light", "dark"]
SCHEMES: tuple[Scheme, ...] = ("light", "dark")
WIDTHS = (375, 1280)
HEIGHT = 900
GRAVE = ("serious", "critical")
"""What axe calls a finding that keeps somebody from reading or using a page."""

SEARCHED = "entropy"
WIDER = """() => {
  const room = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth <= room) return [];
  const all = [...document.querySelectorAll('body *')];
  const wide = all.filter(it => it.getBoundingClientRect().right > room + 1);
  return [document.documentElement.scrollWidth + ' > ' + room,
          ...wide.slice(0, 3).map(it => it.tagName + '.' + it.className)];
}"""


class Look:
    """One page, open in a browser.

    Args:
        browser: Opens it.
        file: The page.
        scheme: By day or by night.

    Attributes:
        found: What is wrong with it.
    """

    def __init__(self, browser: Browser, file: Path, scheme: Scheme) -> None:
        self.found: list[str] = []
        self._scheme: Scheme = scheme
        self._seen: str = scheme
        self._context = browser.new_context(
            color_scheme=scheme,
            reduced_motion="reduce",
            viewport={"width": WIDTHS[0], "height": HEIGHT},
        )
        self.page: Page = self._context.new_page()
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("pageerror", lambda error: self._wrong(f"script: {error}"))
        self.page.on("request", lambda asked: self._asked(asked.url))
        self.page.goto(file.resolve().as_uri(), wait_until="load")

    def check(self, pictures: Path | None, name: str) -> list[str]:
        """Look at it in all sizes; return what is wrong."""
        for width in WIDTHS:
            self._seen = f"{self._scheme}, {width}"
            self.page.set_viewport_size({"width": width, "height": HEIGHT})
            wide = self.page.evaluate(WIDER)
            if wide:
                self._wrong(f"scrolls sideways: {'; '.join(wide)}")
            if pictures is not None:
                self.page.screenshot(path=pictures / f"{name}-{width}-{self._scheme}.png")
        self._ask_axe()
        self._context.close()
        return self.found

    def _ask_axe(self) -> None:
        """Ask axe about everything by day, and about contrast by night."""
        from axe_playwright_python.sync_playwright import Axe

        asked: dict[str, Any] = {"preload": False, "resultTypes": ["violations"]}
        if self._scheme == "dark":
            asked["runOnly"] = ["color-contrast"]
        for finding in Axe().run(self.page, options=asked).response["violations"]:
            if finding["impact"] in GRAVE:
                nodes: list[dict[str, Any]] = finding["nodes"]
                where = "; ".join(_told(node) for node in nodes[:2])
                self._wrong(f"{finding['id']} at {len(nodes)} places: {where}")

    def _said(self, kind: str, text: str) -> None:
        if kind == "error":
            self._wrong(f"console: {text}")

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:", "blob:")):
            self._wrong(f"asks for {url}")

    def _wrong(self, what: str) -> None:
        self.found.append(f"{self._seen}: {what}")


def _told(node: dict[str, Any]) -> str:
    """Return what axe says of one place, on a line."""
    data: dict[str, Any] = next((one["data"] for one in node["any"] if isinstance(one.get("data"), dict)), {})
    colours = f" ({data['fgColor']} on {data['bgColor']})" if "fgColor" in data else ""
    return " ".join(str(node["html"]).split())[:100] + colours


def search(browser: Browser, home: Path) -> list[str]:
    """Search a site for a word that it holds; return what is wrong."""
    page = browser.new_page()
    page.goto(home.resolve().as_uri())
    page.get_by_role("button", name="Search").first.click()
    page.wait_for_timeout(1000)
    page.keyboard.type(SEARCHED)
    try:
        page.get_by_text(re.compile(r"\d+ results")).first.wait_for(timeout=20_000)
    except Exception as error:  # whatever it was, there is no result
        return [f"search for {SEARCHED!r} finds nothing: {str(error).splitlines()[0]}"]
    finally:
        page.close()
    return []


def pages_of(folder: Path) -> list[Path]:
    """Return the pages to look at; a server's page for missing pages is none of them."""
    return sorted(path for path in folder.rglob("*.html") if path.name != "404.html")


def look(folder: Path, pictures: Path | None, *, chromium: str, only: Sequence[str] = ()) -> Iterator[str]:
    """Yield a line for everything that is wrong with a folder's pages."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for path in pages_of(folder):
            name = str(path.relative_to(folder))
            if only and name not in only:
                continue
            flat = name.removesuffix(".html").replace("/", "-")
            for scheme in SCHEMES:
                for wrong in Look(browser, path, scheme).check(pictures, flat):
                    yield f"{name}: {wrong}"
        if (folder / "search.json").is_file() or (folder / "search.js").is_file():
            yield from search(browser, folder / "index.html")
        browser.close()


def main() -> int:
    """Look, and print what is wrong; 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pictures", type=Path, help="where a picture of every page goes")
    parser.add_argument("--only", nargs="*", default=(), help="pages, such as guides/costs.html")
    given = parser.parse_args()
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.stderr.write("no Chromium here: apt-get install chromium, or say where it is: CHROMIUM=/path\n")
        return 1
    if given.pictures is not None:
        given.pictures.mkdir(parents=True, exist_ok=True)
    found = list(look(given.folder, given.pictures, chromium=chromium, only=given.only))
    sys.stderr.writelines(f"{line}\n" for line in found)
    sys.stdout.write(f"looked at {len(pages_of(given.folder))} pages; {len(found)} things are wrong\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
