"""The page in a real browser: every control has a visible effect, and there are no outgoing connections."""

from __future__ import annotations

import base64
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from playwright import sync_api

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: apt install chromium)")
TIMEOUT = 300_000  # milliseconds, for slow and busy machines; nothing waits in vain
HOME = "http://127.0.0.1:"
# The server may talk to this machine alone: what it would send elsewhere is refused, and said on standard error.
SERVER = """
import sys
def watch(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple) and arguments[1][0] not in ("127.0.0.1", "::1"):
        print("OUTSIDE", arguments[1], file=sys.stderr, flush=True)
        raise PermissionError("the page stays offline")
sys.addaudithook(watch)
from finola.cli import main
sys.exit(main(["app", "--port", "0"]))
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run a server of the page, and check at the end that it made no outgoing connection, no error and left no file."""
    folder = tmp_path_factory.mktemp("server")
    noise = folder / "noise"
    with noise.open("w") as errors:
        environment = os.environ | {"TMPDIR": str(folder)}
        command = [sys.executable, "-c", SERVER]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment)
        assert server.stdout is not None
        line = server.stdout.readline()
        assert "http" in line, noise.read_text()
        yield line.split()[4].rstrip(",")
        left = [path for path in folder.rglob("*") if path.is_file() and path != noise]
        server.terminate()
        server.wait(TIMEOUT / 1000)
        server.stdout.close()
    assert left == []
    assert faults(noise.read_text()) == []
    assert not list(folder.glob("finola-*"))


def faults(log: str) -> list[str]:
    """Connections to the outside, and tracebacks through this package; what a library logs about itself is not ours."""
    found = [line for line in log.splitlines() if line.startswith("OUTSIDE")]
    for traceback in re.split(r"(?=Traceback \(most recent call last\))", log)[1:]:
        files = re.findall(r'File "([^"]+)", line', traceback)
        ours = [name for name in files if "/finola/" in name.replace("\\", "/")]
        passed_on = all(name.endswith(("guard.py", "streams.py")) for name in ours) and ours[-1:] != files[-1:]
        if ours and not passed_on:  # every request passes through the guard, whoever fails behind it
            found.append(traceback)
    return found


def test_own_errors_are_distinguished_from_library_logs():
    def traceback(*names: str) -> str:
        frames = "".join(f'  File "/site-packages/{name}", line 1, in f\n    g()\n' for name in names)
        return f"Traceback (most recent call last):\n{frames}RuntimeError: broken\n"

    library = "Task exception was never retrieved\n" + traceback("finola/app/guard.py", "gradio/routes.py")
    library += "RuntimeError: async generator ignored GeneratorExit\n" + traceback("uvicorn/server.py")
    assert faults(library) == []
    for ours in (traceback("gradio/utils.py", "finola/app/waves.py", "torch/x.py"), traceback("finola/app/guard.py")):
        assert len(faults(library + ours + library)) == 1
    assert faults("OUTSIDE ('203.0.113.1', 80)\n") == ["OUTSIDE ('203.0.113.1', 80)"]


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


class Visit:
    """A visitor with a separate browser context, recording errors."""

    def __init__(self, browser: sync_api.Browser, address: str, **options: object) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}} | options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.wrong: list[str] = []
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on(
            "request", lambda r: self.wrong.append(r.url) if not r.url.startswith((HOME, "data:", "blob:")) else None
        )
        self.page.goto(address)
        self.page.wait_for_selector("#compared table.figures")

    def picture(self, place: str, number: int = 0) -> str:
        """Data URI of an image."""
        return self.page.locator(f"{place} .shot img").nth(number).get_attribute("src") or ""

    def until_changed(self, place: str, before: str, number: int = 0) -> str:
        self.page.wait_for_function(
            "([place, number, before]) => { const all = document.querySelectorAll(place + ' .shot img');"
            " return all[number] && all[number].src !== before; }",
            arg=[place, number, before],
        )
        return self.picture(place, number)

    def press(self, slider: str, key: str = "ArrowRight") -> None:
        self.page.locator(f"{slider} input[type=range]").focus()
        self.page.keyboard.press(key)

    def drop(self, path: Path, place: str = "#drop") -> None:
        self.page.set_input_files(f"{place} input[type=file]", path)

    def tab(self, name: str) -> None:
        self.page.get_by_role("tab", name=name).click()

    def said(self, words: str, place: str = "#status") -> None:
        self.page.locator(place).get_by_text(words).wait_for()

    def leave(self) -> None:
        self.context.close()
        assert self.wrong == []


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A synthetic photo whose size is not a multiple of the tile size."""
    path = tmp_path / "made-photo.png"
    y, x = Image.linear_gradient("L").resize((150, 100)), Image.linear_gradient("L").rotate(90).resize((150, 100))
    Image.merge("RGB", (x, y, Image.radial_gradient("L").resize((150, 100)))).save(path)
    return path


def test_every_control_updates_the_images_of_an_uploaded_photo(browser, address, photo):
    visit = Visit(browser, address)
    page = visit.page
    first = visit.picture("#compared", 1)

    visit.drop(photo)
    visit.said("made-photo.png: 150 × 100 pixels")
    rebuilt = visit.until_changed("#compared", first, 1)
    figures = page.locator("#compared table.figures tbody tr").all_inner_texts()
    assert len(figures) == 5 and all("dB" in row and ("bytes" in row or "kB" in row) for row in figures)
    assert page.locator("#compared .shot").count() == 7 and "48 or more" in page.inner_text("#compared .legend")

    visit.press("#quality", "End")
    rebuilt = visit.until_changed("#compared", rebuilt, 1)
    visit.press("#effort")
    visit.until_changed("#compared", rebuilt, 1)
    file = page.locator("#compared a[download]")
    assert file.get_attribute("download") == "made-photo.finola"

    visit.tab("Latents")
    page.get_by_text("Refined q, effort 1").wait_for()
    before = visit.picture("#reconstructed", 2)
    visit.press("#effort")
    visit.until_changed("#reconstructed", before, 2)

    visit.tab("Morph")
    page.wait_for_selector("#mixed .shot img")
    for place, slider in (("#faded", "#fade"), ("#projected", "#components"), ("#mixed", "#mix")):
        before = visit.picture(place)
        visit.press(slider)
        visit.until_changed(place, before)
    before = visit.picture("#mixed")
    page.click("#other-examples button[title=Rocket]")
    before = visit.until_changed("#mixed", before)
    visit.drop(photo, "#other-drop")
    visit.until_changed("#mixed", before)
    visit.said("150 × 100 pixels", "#source")

    visit.tab("Grow")
    page.click("#grow")
    page.wait_for_selector("#grown .shot img")
    assert visit.picture("#grown").startswith("data:image/webp")

    visit.tab("Waves")
    page.wait_for_selector("#waved .shot img")
    before = visit.picture("#waved")
    visit.press("#wave")
    before = visit.until_changed("#waved", before)
    rank = page.input_value("#wave input[type=number]")
    page.locator("#plane .dot:not(.chosen)").nth(20).click(force=True)
    visit.until_changed("#waved", before)
    assert page.input_value("#wave input[type=number]") != rank

    visit.tab("Compare")
    page.click("#model input")
    page.get_by_role("option", name="waves/1024x1@16").click()
    page.get_by_text("so there is no size to match").wait_for()
    visit.said("It writes no file", "#abilities")
    visit.leave()


def test_the_last_of_several_fast_clicks_wins(browser, address):
    visit = Visit(browser, address)
    for title in ("Cat", "Coffee", "Rocket", "Cat", "Coffee"):
        visit.page.click(f"#examples button[title={title}]")
    for name in ("Waves", "Latents", "Morph", "Waves"):
        visit.tab(name)
    visit.press("#wave")  # before the tab is drawn
    visit.page.wait_for_selector("#waved .shot img")
    visit.tab("Compare")
    visit.page.locator("#compared a[download='Coffee.finola']").wait_for()
    visit.said("Coffee, an example")
    visit.leave()


def test_downloaded_file_can_be_uploaded_again(browser, address, tmp_path):
    visit = Visit(browser, address)
    uri = visit.page.locator("#compared a[download]").get_attribute("href")
    (tmp_path / "back.finola").write_bytes(base64.b64decode(uri.partition(",")[2]))
    rebuilt = visit.picture("#compared", 1)
    visit.drop(tmp_path / "back.finola")
    visit.said("back.finola: 512 × 512 pixels")
    visit.page.get_by_text("Decoded with").wait_for()
    assert visit.picture("#compared", 0) == rebuilt
    visit.leave()


def test_invalid_uploads_show_a_message_and_keep_the_photo(browser, address, tmp_path):
    visit = Visit(browser, address, viewport={"width": 390, "height": 844}, color_scheme="dark")
    before = visit.picture("#compared", 1)
    (tmp_path / "broken.jpg").write_bytes(b"\xff\xd8\xff no photo")
    visit.drop(tmp_path / "broken.jpg")
    visit.said("broken.jpg cannot be read as a photo")
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    visit.drop(tmp_path / "huge.png")
    visit.said("100 megapixels; the maximum is 50")
    (tmp_path / "large.jpg").write_bytes(bytes(41_000_000))
    visit.drop(tmp_path / "large.jpg")
    visit.said("large.jpg has 41 MB; the maximum is 40", "#limits")
    assert "Traceback" not in visit.page.inner_text("body")
    assert visit.picture("#compared", 1) == before
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390  # no horizontal scrolling on phones
    assert visit.page.evaluate("document.body.classList.contains('dark')")
    visit.leave()


def test_large_photo_is_scaled_down_with_a_message(browser, address, tmp_path):
    visit = Visit(browser, address)
    before = visit.picture("#compared", 1)
    Image.linear_gradient("L").resize((20_000, 8)).save(tmp_path / "wide.png")
    visit.drop(tmp_path / "wide.png")
    visit.until_changed("#compared", before, 1)
    visit.said("wide.png: 20000 × 8 pixels")
    visit.said("Scaled down from 20000 × 8 to 16383 × 7 pixels", "#compared")
    visit.leave()


def test_visitors_see_only_their_own_photos(browser, address, photo):
    one, other = Visit(browser, address), Visit(browser, address)
    shared = one.picture("#compared", 1)
    assert other.picture("#compared", 1) == shared
    one.drop(photo)
    other.page.click("#examples button[title=Cat]")
    mine, theirs = one.until_changed("#compared", shared, 1), other.until_changed("#compared", shared, 1)
    assert mine != theirs
    for visit in (other, one):  # each goes on with their own
        visit.press("#quality", "Home")
    mine, theirs = one.until_changed("#compared", mine, 1), other.until_changed("#compared", theirs, 1)
    one.said("made-photo.png")
    other.said("Cat, an example")
    assert one.page.locator("#compared a[download]").get_attribute("download") == "made-photo.finola"
    assert other.page.locator("#compared a[download]").get_attribute("download") == "Cat.finola"
    one.leave()
    other.leave()
