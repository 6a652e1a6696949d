"""How soon the page answers: seconds from opening it, and from dropping a 512×512 photo, to the compared pictures.

Needs finola[app], Playwright and Chromium. Prints JSON.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

from finola.image_io import read_photo, save_photo

VISITS = 5
CHANGED = (
    "before => { const all = document.querySelectorAll('#compared .shot img'); return all[1] && all[1].src !== before }"
)


def main() -> None:
    browser_path = shutil.which("chromium")
    if browser_path is None:
        sys.exit("page_speed.py needs Chromium (Debian: apt install chromium).")
    with tempfile.TemporaryDirectory() as folder:
        photo = Path(folder) / "photo.png"
        save_photo(read_photo("skimage:astronaut").flip(2), photo)  # turned round, so that the pictures change
        command = [sys.executable, "-m", "finola.cli", "app", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert server.stdout is not None
        address = server.stdout.readline().split()[4].rstrip(",")
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
                visits = [_visit(browser, address, photo) for _ in range(VISITS)]
                browser.close()
        finally:
            server.terminate()
    names = ("open_to_first_result", "load_to_first_result", "drop_to_result")
    found = {name: round(statistics.median(visit[i] for visit in visits), 3) for i, name in enumerate(names)}
    print(json.dumps({"photo": "512x512", "visits": VISITS, "median_seconds": found}, indent=1))


def _visit(browser, address: str, photo: Path) -> tuple[float, float, float]:  # type: ignore[no-untyped-def]
    page = browser.new_page()
    begin = time.perf_counter()
    page.goto(address)
    loaded = time.perf_counter()
    page.wait_for_selector("#compared table.figures")
    shown = time.perf_counter()
    before = page.locator("#compared .shot img").nth(1).get_attribute("src")
    dropped = time.perf_counter()
    page.set_input_files("#drop input[type=file]", photo)
    page.wait_for_function(CHANGED, arg=before)
    done = time.perf_counter()
    page.close()
    return shown - begin, shown - loaded, done - dropped


if __name__ == "__main__":
    main()
