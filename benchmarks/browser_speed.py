"""Time from navigation to the first complete reconstruction of the browser page: python benchmarks/browser_speed.py

Needs `make web` and Chromium. The page rebuilds its example photo, 512×512 pixels, as soon as it is loaded. Visits with
an empty cache and visits with the model in the cache take turns. Writes results/browser-speed.json.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import statistics
import threading
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

ROOT = Path(__file__).parents[1]
VISITS = 3


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def first_picture(page: Page) -> float:
    """Seconds from the start of the navigation to the first complete reconstruction."""
    page.wait_for_selector("html[data-rebuilt]", timeout=120_000)
    return float(page.evaluate("performance.now()")) / 1000


def main() -> None:
    handler = functools.partial(Handler, directory=str(ROOT / "site" / "browser"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    seconds: dict[str, list[float]] = {"empty cache": [], "cached": []}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(VISITS):
            context = browser.new_context()
            page = context.new_page()
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            seconds["empty cache"].append(first_picture(page))
            page.reload()
            seconds["cached"].append(first_picture(page))
            context.close()
        version = browser.version
        browser.close()
    server.shutdown()
    found = {
        "photo": "skimage:astronaut, 512×512, quality 50",
        "chromium": version,
        "cores": os.cpu_count(),
        "load average": os.getloadavg()[0],
        "note": "the machine was shared with other programs",
        "seconds to the first picture": {name: [round(each, 2) for each in times] for name, times in seconds.items()},
        "median": {name: round(statistics.median(times), 2) for name, times in seconds.items()},
    }
    (ROOT / "results" / "browser-speed.json").write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(found, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
