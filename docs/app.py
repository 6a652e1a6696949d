"""Make the screenshots of docs/app.md with scikit-image's photos: python docs/app.py. Needs Chromium."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

IMAGES = Path(__file__).parent / "images"
DESKTOP, PHONE = {"width": 1366, "height": 900}, {"width": 390, "height": 844}
MOST = 200_000  # bytes of a screenshot


def main() -> None:
    """Start the server and save a screenshot of every tab."""
    browser_path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser_path is None:
        sys.exit("docs/app.py needs a browser: install chromium.")
    command = [sys.executable, "-m", "finola.cli", "app", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, sync_playwright() as playwright:
        assert server.stdout is not None
        address = server.stdout.readline().split()[4].rstrip(",")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        try:
            for scheme, viewport, name in (
                ("light", DESKTOP, "app-compare"),
                ("dark", DESKTOP, "app-dark"),
                ("light", PHONE, "app-phone"),
            ):
                page = browser.new_page(viewport=viewport, color_scheme=scheme)  # type: ignore[arg-type]
                page.goto(address)
                page.wait_for_selector("#compared table.figures")
                if scheme == "dark":
                    look(page, "Waves", "#waved img", name)
                else:
                    shoot(page, name, whole=True)
                if name == "app-compare":
                    look(page, "Morph", "#mixed img", "app-moves")
                page.close()
        finally:
            browser.close()
            server.terminate()


def look(page: Page, tab: str, until: str, name: str) -> None:
    """Open a tab, wait for the selector `until`, and save a screenshot."""
    page.get_by_role("tab", name=tab).click()
    page.wait_for_selector(until)
    page.mouse.move(0, 0)
    page.wait_for_timeout(700)
    shoot(page, name)


def shoot(page: Page, name: str, whole: bool = False) -> None:
    """Save the page as WebP with the highest quality that fits into `MOST` bytes."""
    photo = Image.open(io.BytesIO(page.screenshot(full_page=whole)))
    for quality in (90, 80, 70, 60):
        stream = io.BytesIO()
        photo.save(stream, "WEBP", quality=quality, method=6)
        if stream.tell() < MOST:
            break
    (IMAGES / f"{name}.webp").write_bytes(stream.getvalue())
    print(f"{name}.webp: {photo.width}×{photo.height}, {stream.tell():,} bytes")


if __name__ == "__main__":
    main()
