"""The page of `make web` in Chromium: the same integers as Python for the same file, both ways, and the same pixels."""

from __future__ import annotations

import base64
import functools
import hashlib
import http.server
import io
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright import sync_api

from finola.codec.calibration import load_codec
from finola.codec.codec import compress, decompress
from finola.codec.container import read_container
from finola.codec.elastic_photo import stored_tiles

ROOT = Path(__file__).parents[2]
BUILT = ROOT / "site" / "browser"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
TIMEOUT = 300_000  # milliseconds, for slow and busy machines
LEVELS = 2  # by which pixels may differ from Python's


def is_current() -> bool:
    """Whether the built page belongs to the sources."""
    web, stamp = ROOT / "web", BUILT / "assets" / "sources.txt"
    names = ["index.html", "style.css", "build.mjs", "assets.py", "package.json"]
    names += [f"src/{path.name}" for path in (web / "src").iterdir()]
    contents = b"".join((web / name).read_bytes() for name in sorted(names))
    return stamp.exists() and stamp.read_text().strip() == hashlib.sha256(contents).hexdigest()


pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (Debian: apt install chromium)"),
    pytest.mark.skipif(not is_current(), reason="site/browser is missing or outdated: run make web"),
]


class Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


class Visit:
    """The page in a browser context of its own, recording errors and requests."""

    def __init__(self, browser: sync_api.Browser, address: str, **options: Any) -> None:
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(TIMEOUT)
        self.requests: list[str] = []
        self.wrong: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda m: self.wrong.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.home = address
        self.page.goto(f"{address}/index.html")
        self.until_rebuilt("")

    def until_rebuilt(self, before: str) -> None:
        """Wait for the complete reconstruction of another photo than that of job `before`."""
        script = "before => (document.documentElement.dataset.rebuilt ?? '') !== before"
        self.page.wait_for_function(script, arg=before)

    def open(self, name: str, data: bytes) -> None:
        before = self.page.evaluate("document.documentElement.dataset.rebuilt")
        self.page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": data})
        self.until_rebuilt(before)

    def refused(self, name: str, data: bytes) -> str:
        """The sentence that the page says about a file that it cannot open."""
        self.page.evaluate("document.getElementById('status').className = ''")
        self.page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": data})
        self.page.wait_for_selector("#status.alarm")
        return self.page.inner_text("#status")

    def pixels(self) -> torch.Tensor:
        """Pixels (3, H, W) of the reconstruction on show."""
        uri = self.page.evaluate("document.getElementById('rebuilt').toDataURL()")
        image = Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).convert("RGB")
        return torch.from_numpy(np.array(image)).permute(2, 0, 1)

    def integers(self) -> list[dict[str, Any]]:
        script = """async () => (await finola.integers()).tiles.map(
            ({means, basis, values}) => ({means, basis, values: Array.from(values)}))"""
        found: list[dict[str, Any]] = self.page.evaluate(script)
        return found

    def download(self, link: str = "#download") -> tuple[str, bytes]:
        with self.page.expect_download() as download:
            self.page.click(link)
        return download.value.suggested_filename, Path(download.value.path()).read_bytes()

    def leave(self) -> None:
        self.context.close()
        assert self.wrong == []
        assert [url for url in self.requests if not url.startswith((self.home, "data:", "blob:"))] == []


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(BUILT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield launched
        launched.close()


def made_photo(height: int = 100, width: int = 150) -> Image.Image:
    """Gradients, a disc and noise; the size is no multiple of that of a tile."""
    y, x = np.mgrid[:height, :width]
    noise = np.random.default_rng(0).normal(0, 12, (height, width))
    disc = 90 * (np.hypot(y - height / 2, x - width / 2) < height / 3)
    planes = [255 * x / width + noise, 255 * y / height, 120 + disc - noise]
    return Image.fromarray(np.stack(planes, 2).clip(0, 255).astype(np.uint8))


def png(image: Image.Image) -> bytes:
    target = io.BytesIO()
    image.save(target, "PNG")
    return target.getvalue()


def python_integers(file: bytes) -> list[dict[str, Any]]:
    codec = load_codec("tile32")
    tiles = stored_tiles(read_container(file), codec.coder)
    rows = zip(tiles.lengths, tiles.means, tiles.index, tiles.values, strict=True)
    return [
        {"means": means.tolist(), "basis": int(index), "values": values[: codec.coder.contexts.sizes[kind]].tolist()}
        for kind, means, index, values in rows
    ]


def difference(a: torch.Tensor, b: torch.Tensor) -> int:
    return int((a.int() - b.int()).abs().max())


def test_files_of_python_and_of_the_page_mean_the_same(browser, address):
    visit = Visit(browser, address)
    grey = made_photo(40, 70).convert("L").convert("RGB")
    for photo, quality in ((made_photo(), 20), (made_photo(), 90), (grey, 50)):
        file = compress(photo, quality=quality).data
        visit.open("python.finola", file)
        assert visit.integers() == python_integers(file)
        assert difference(visit.pixels(), decompress(file)) <= LEVELS
        assert visit.download()[1] == file

    for photo in (made_photo(), grey):
        visit.open("made.png", png(photo))
        name, file = visit.download()
        assert name == "made.finola" and visit.integers() == python_integers(file)
        assert difference(visit.pixels(), decompress(file)) <= LEVELS
        own = compress(photo, quality=50)
        assert read_container(file).grey == read_container(own.data).grey
        # The same quantiser in other floating-point arithmetic: only ties may be decided differently.
        assert abs(len(file) - len(own.data)) <= 0.02 * len(own.data)
    name, picture = visit.download("#download-png")
    assert name == "made.png"
    assert difference(torch.from_numpy(np.array(Image.open(io.BytesIO(picture)).convert("RGB"))).permute(2, 0, 1),
                      visit.pixels()) == 0  # fmt: skip
    visit.leave()


def test_quality_and_growth_change_the_picture(browser, address):
    visit = Visit(browser, address)
    page = visit.page
    visit.open("made.png", png(made_photo()))
    complete, size, before = visit.pixels(), page.inner_text("#size"), page.inner_text("#psnr")
    page.focus("#quality")
    page.keyboard.press("End")
    page.wait_for_function("before => document.getElementById('size').textContent !== before", arg=size)
    page.wait_for_function("() => !document.getElementById('growing').disabled")
    finest = visit.pixels()
    assert page.inner_text("#quality-value") == "100" and not torch.equal(finest, complete)
    assert float(page.inner_text("#psnr").split()[0]) > float(before.split()[0])

    for growth in ("latents", "propagation"):
        page.check(f"input[value={growth}]", force=True)
        shown = page.evaluate("document.getElementById('rebuilt').toDataURL()")
        page.focus("#frame")
        page.keyboard.press("Home")
        page.wait_for_function("before => document.getElementById('rebuilt').toDataURL() !== before", arg=shown)
        first = visit.pixels()
        if growth == "latents":  # the mean colours alone: no detail within a tile
            assert float(first[:, :32, :32].float().std((1, 2)).max()) < 1
        else:  # only the position in the centre of a tile
            assert first[:, :32, :32].flatten(1).eq(128).all(0).sum() >= 32 * 32 - 16
        page.keyboard.press("End")
        page.wait_for_function("() => document.getElementById('caption').textContent.startsWith('The complete')")
        assert torch.equal(visit.pixels(), finest)
    visit.leave()


def test_models_are_fetched_once(browser, address):
    visit = Visit(browser, address)
    models = [url for url in visit.requests if url.endswith((".safetensors", ".onnx", ".wasm"))]
    assert len(models) == len(set(models)) == 5
    visit.requests.clear()
    visit.page.reload()
    visit.until_rebuilt("")
    assert [url for url in visit.requests if url in models] == []
    assert visit.requests != []
    visit.leave()


def test_wrong_files_give_one_sentence_and_keep_the_picture(browser, address):
    visit = Visit(browser, address, viewport={"width": 390, "height": 844}, color_scheme="dark")
    before = visit.pixels()
    file = compress(made_photo(40, 40)).data
    other = compress(made_photo(70, 70), model="waves512").data
    for name, data, value in (
        ("photo.jpg", b"\xff\xd8\xff no photo", "photo.jpg"),
        ("cut.finola", file[:-1], "checksum"),
        ("other.finola", other, "waves512"),
        ("note.finola", b"hello", "signature"),
    ):
        sentence = visit.refused(name, data)
        assert value in sentence and sentence.count(". ") == 0 and sentence.endswith(".")
        assert torch.equal(visit.pixels(), before)
        assert visit.page.is_enabled("#quality") and visit.page.is_enabled("#growing")
    assert visit.download()[0] == "astronaut.finola"
    size = visit.page.inner_text("#size")
    visit.page.focus("#quality")
    visit.page.keyboard.press("Home")  # the photo is still open
    visit.page.wait_for_function("before => document.getElementById('size').textContent !== before", arg=size)
    visit.page.wait_for_function("() => !document.getElementById('growing').disabled")
    assert visit.download()[0] == "astronaut.finola"
    visit.open("wide.png", png(Image.linear_gradient("L").resize((9000, 8))))
    assert "9000 × 8" in visit.page.inner_text("#status") and visit.pixels().shape[2] == 8192
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390  # no horizontal scrolling on phones
    visit.leave()
