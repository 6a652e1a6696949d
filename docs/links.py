"""Check every local link, image and anchor of the built site and of the Markdown files beside it: python docs/links.py

The strict build checks links between pages; this also checks images, other files, and pages outside of docs/.
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
OPTIONAL = SITE.resolve() / "browser"  # built by make web, which needs npm
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")


class Page(HTMLParser):
    """Targets of links and images of one HTML page, and its anchors."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_in_site() -> list[str]:
    """Links of the built site that lead nowhere."""
    pages = {path.resolve(): Page(path) for path in SITE.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for target in page.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (path.parent / unquote(url.path)).resolve() if url.path else path
            if OPTIONAL in file.parents and not OPTIONAL.exists():
                continue
            if file.is_dir():
                file = file / "index.html"
            missing = not file.is_file() or SITE.resolve() not in file.parents
            if missing or (url.fragment and file in pages and unquote(url.fragment) not in pages[file].anchors):
                found.append(f"site/{path.relative_to(SITE.resolve())}: {target}")
    return found


def broken_in_repository() -> list[str]:
    """Links of README.md and the other Markdown files of the root folder to files that do not exist."""
    found = []
    for path in sorted(ROOT.glob("*.md")):
        for target in MARKDOWN_LINK.findall(path.read_text(encoding="utf-8")):
            url = urlsplit(target)
            if not url.scheme and url.path and not (ROOT / unquote(url.path)).exists():
                found.append(f"{path.name}: {target}")
    return found


if __name__ == "__main__":
    if not (SITE / "index.html").exists():
        sys.exit("No site/index.html: run make docs")
    broken = [*broken_in_site(), *broken_in_repository()]
    print(*(f"Broken link in {link}" for link in broken), sep="\n", end="\n" if broken else "")
    sys.exit(1 if broken else 0)
