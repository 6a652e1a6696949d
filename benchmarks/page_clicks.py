"""One person who clicks fast: the page in Chromium, with a new action before the last one is answered.

Passes if the server neither ends nor prints a traceback, the browser logs no error, the page still answers with the
photo that was sent last, and memory stays flat: the median of the last fifth of the time is at most 5 % above that of
the second fifth. Writes results/page-clicks.json, and exits with 1 if it does not pass.

    python benchmarks/page_clicks.py [--minutes 10] [--note "shared machine"]

Needs finola[app], Playwright, Chromium, and Linux, whose /proc tells the memory of the server.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from finola.files import write_text

RESULT = Path(__file__).parents[1] / "results" / "page-clicks.json"
EVERY = 2.0  # seconds between two readings of the memory
GROWTH = 1.05  # allowed factor between the medians of the second and the last fifth
PAUSE = 0.8  # seconds between two actions, at most
PATIENCE = 300_000  # milliseconds
TABS = {
    "Compare": ("#quality", "#effort"),
    "Latents": ("#budget", "#effort"),
    "Morph": ("#fade", "#components", "#mix"),
    "Grow": (),
    "Waves": ("#wave",),
}


def memory(process: int) -> float:
    """Resident megabytes of a process."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def flatness(readings: Sequence[float]) -> dict[str, Any]:
    """Memory at the start, after warm-up (median of the second fifth) and at the end (median of the last fifth).

    >>> flatness([100, 100, 200, 210, 220, 215, 210, 205, 220, 214])["flat"]
    False
    >>> flatness([100, 100, 200, 212, 220, 215, 210, 205, 208, 214])["flat"]
    True
    """
    fifth = max(1, len(readings) // 5)
    warm, end = statistics.median(readings[fifth : 2 * fifth]), statistics.median(readings[-fifth:])
    return {
        "start_MB": round(readings[0]),
        "warm_MB": round(warm),
        "end_MB": round(end),
        "peak_MB": round(max(readings)),
        "growth": round(end / warm, 4),
        "flat": end <= GROWTH * warm,
    }


def sent_files(folder: Path) -> list[Path]:
    """Photos of several sizes, and files that the page refuses."""
    rng = np.random.default_rng(0)
    for number, (width, height) in enumerate([(96, 128), (300, 200), (512, 512), (2000, 1500)]):
        noise = Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8))
        noise.resize((width, height), Image.Resampling.BICUBIC).save(folder / f"photo-{number}.jpg")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff no photo")
    (folder / "empty.png").write_bytes(b"")
    Image.new("1", (10_000, 10_000)).save(folder / "huge.png")
    return sorted(folder.iterdir())


class Person:
    """Someone at the page. Every method is an action and returns before it is answered."""

    def __init__(self, page: Page, files: list[Path]) -> None:
        self.page, self.files, self.random = page, files, random.Random(0)
        self.tab = "Compare"
        self.reloading = False
        self.actions: dict[Callable[[], None], float] = {
            self.change_tab: 3,
            self.move_slider: 8,
            self.choose_example: 3,
            self.send_file: 2,
            self.select_wave: 2,
            self.grow: 0.3,
            self.change_model: 0.5,
            self.reload: 0.5,
        }

    def act(self) -> str:
        """Do something at random, and return what it was."""
        action = self.random.choices(list(self.actions), list(self.actions.values()))[0]
        action()
        return action.__name__.replace("_", " ")

    def change_tab(self) -> None:
        self.tab = self.random.choice(list(TABS))
        self.page.get_by_role("tab", name=self.tab).click()

    def move_slider(self) -> None:
        for place in self.random.sample(TABS[self.tab], min(1, len(TABS[self.tab]))):
            slider = self.page.locator(f"{place} input[type=range]")
            if slider.is_visible():
                slider.focus()
                for _ in range(self.random.randint(1, 4)):
                    self.page.keyboard.press(self.random.choice(("ArrowLeft", "ArrowRight", "PageUp", "PageDown")))

    def choose_example(self) -> None:
        self.page.locator("#examples button").nth(self.random.randrange(4)).click()

    def send_file(self) -> None:
        if self.page.locator("#drop input[type=file]").count():  # not while the page reads another file
            self.send(self.random.choice(self.files))

    def send(self, path: Path) -> None:
        self.page.set_input_files("#drop input[type=file]", path)

    def select_wave(self) -> None:
        dots = self.page.locator("#plane .dot")
        if self.tab == "Waves" and (count := dots.count()):
            dots.nth(self.random.randrange(count)).dispatch_event("click")

    def grow(self) -> None:
        if self.tab == "Grow":
            self.page.click("#grow")

    def change_model(self) -> None:
        self.choose_model(self.random.randrange(2))

    def choose_model(self, number: int) -> None:
        self.page.click("#model input")
        self.page.get_by_role("option").nth(number).click()

    def reload(self) -> None:
        self.reloading = True
        self.page.reload()
        self.reloading = False
        self.page.wait_for_selector("#compared table.figures")
        self.tab = "Compare"


def click(address: str, server: subprocess.Popen[str], browser: str, minutes: float) -> dict[str, Any]:
    """Counts of actions, errors in the browser, and the memory of the server every few seconds."""
    actions: Counter[str] = Counter()
    errors: list[str] = []
    readings = [memory(server.pid)]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = launched.new_page()
        page.set_default_timeout(PATIENCE)
        files = sent_files(Path(folder))
        person = Person(page, files)

        def note(error: str) -> None:
            if not person.reloading:  # a page that is left reports the requests that it aborts
                errors.append(error)

        page.on("console", lambda told: note(told.text) if told.type == "error" else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.goto(address)
        page.wait_for_selector("#compared table.figures")
        for number in (1, 0):  # models stay in memory once they are loaded
            person.choose_model(number)
        begin = read = time.monotonic()
        while time.monotonic() - begin < 60 * minutes and server.poll() is None:
            actions[person.act()] += 1
            page.wait_for_timeout(1000 * person.random.uniform(0, PAUSE))
            if time.monotonic() - read > EVERY:
                read = time.monotonic()
                readings.append(memory(server.pid))
        seconds = time.monotonic() - begin
        page.get_by_role("tab", name="Compare").click()
        person.send(next(path for path in files if path.name == "photo-1.jpg"))
        page.locator("#status").get_by_text("photo-1.jpg: 300 × 200 pixels").wait_for()
        page.locator("#compared").get_by_text("Original").wait_for()
        answered = page.locator("#compared .shot img").first.get_attribute("width") == "300"
        launched.close()
    return {
        "minutes": round(seconds / 60, 1),
        "actions": sum(actions.values()),
        "actions_by_kind": dict(sorted(actions.items())),
        "last_photo_answered": answered,
        "browser_errors": errors[:10],
        "memory": flatness(readings),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--note", default="", help="circumstances of the measurement, stored with the results")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    browser = shutil.which("chromium")
    if browser is None:
        sys.exit("page_clicks.py needs Chromium (Debian: apt install chromium).")
    with tempfile.TemporaryFile("w+") as log:
        command = [sys.executable, "-m", "finola.cli", "app", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert server.stdout is not None
            found = click(server.stdout.readline().split()[4].rstrip(","), server, browser, args.minutes)
            found["server_ended"] = server.poll() is not None
        finally:
            server.terminate()
            server.wait()
        log.seek(0)
        text = log.read()
        found["tracebacks"] = text.count("Traceback (most recent call last)")
        sys.stderr.write(text)
    sound = found["last_photo_answered"] and not (
        found["server_ended"] or found["tracebacks"] or found["browser_errors"]
    )
    found = {"passed": bool(sound and found["memory"]["flat"])} | found
    machine = {"cpus": len(os.sched_getaffinity(0)), "python": platform.python_version(), "note": args.note}
    text = json.dumps(machine | found, indent=1) + "\n"
    print(text, end="")
    write_text(args.out, text)
    sys.exit(0 if found["passed"] else 1)


if __name__ == "__main__":
    main()
