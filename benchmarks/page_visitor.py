"""Visitors of `page_load.py`: each sends photos and files of its own to the page and checks that the answer is its own.

A visitor speaks to the page as its browser does: it opens a heartbeat, uploads a file, joins the queue and reads the
event stream. Photos are made from the number of the visitor and of the visit, so every upload differs from all others.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
import re
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from PIL import Image

API = "/gradio_api"
PATIENCE = 600.0  # seconds to wait for one answer
HUGE_BYTES = 41_000_000  # above the limit of the page
HUGE_SIZE = (10_000, 6_000)  # 60 megapixels, above the limit of the page
LARGE_SIZE = (4_000, 3_000)  # accepted, and scaled down by the page
MODEL, EFFORT = "tile32", 0
CLOSEST_DB = 26.0  # of a reconstruction to the photo that was sent; photos of two visitors are below it
SCALED_ERROR = 6.0  # mean levels between a photo scaled down by the page and here

Pixels = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]
KINDS = {"photo": 0.4, "photo and slider": 0.2, "bad file": 0.2, "huge": 0.1, "leaves": 0.1}
BAD = ("text", "empty", "truncated", "damaged .finola", "too many pixels declared")
HUGE = ("41 MB", "60 megapixels", "12 megapixels")


class WrongAnswer(Exception):
    """The page answered with something else than this visitor's own photo or message."""


@dataclass
class Tally:
    """Outcomes of all visits."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    folder: str = ""  # where the page stores uploads

    @property
    def visits(self) -> int:
        return sum(map(len, self.seconds.values())) + len(self.wrong) + len(self.failed)


def made_photo(visitor: int, visit: int, size: tuple[int, int] | None = None) -> Pixels:
    """Photo (H, W, 3) of a visitor: its own size, colour and stripes, whose phase changes with every visit.

    >>> first, second = made_photo(3, 0), made_photo(4, 0)
    >>> first.shape, second.shape
    ((102, 134, 3), (104, 136, 3))
    >>> bool((made_photo(3, 1) != first).any())
    True
    """
    width, height = size or (128 + 2 * visitor, 96 + 2 * visitor)
    y, x = np.mgrid[:height, :width] / height
    angle = 0.7 * visitor
    stripes = np.sin(2 * np.pi * ((2 + visitor % 3) * (x * np.cos(angle) + y * np.sin(angle)) + visit / 16))
    colour = 0.5 + 0.5 * np.cos(2 * np.pi * (np.arange(3) / 3 + visitor * 0.382))  # golden angle: far apart
    values = 255 * (0.15 + 0.5 * colour + 0.1 * stripes[..., None] * np.roll(colour, 1) + 0.1 * x[..., None])
    found: Pixels = values.clip(0, 255).astype(np.uint8)
    return found


def encoded(photo: Pixels, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.fromarray(photo).save(stream, kind)
    return stream.getvalue()


def bad_file(kind: str, mark: bytes, finola_file: bytes) -> tuple[str, bytes]:
    """Name and content of a file that the page cannot show; `mark` makes it differ from those of other visitors."""
    photo = encoded(made_photo(0, 0))
    if kind == "text":
        return "notes.txt", b"This is not a photo. " + mark
    if kind == "empty":
        return "empty.jpg", b""
    if kind == "truncated":
        return "half.png", photo[: len(photo) // 2] + mark
    if kind == "damaged .finola":
        middle = len(finola_file) // 2
        return "damaged.finola", finola_file[:middle] + mark + finola_file[middle + len(mark) :]
    declared = (60_000).to_bytes(4, "big")
    return "bomb.png", photo[:16] + declared + declared + photo[24:] + mark


def pictures(html: str) -> dict[str, Pixels]:
    """Images of an answer by their titles."""
    found = re.findall(r'<img src="data:image/png;base64,([^"]+)" alt="([^"]*)"', html)
    return {title: np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")) for data, title in found}


def decibels(image: Pixels, photo: Pixels) -> float:
    error = float(((image.astype(float) - photo.astype(float)) ** 2).mean())
    return 10 * float(np.log10(255**2 / max(error, 1e-9)))


def check_comparison(html: str, photo: Pixels) -> None:
    """Raise WrongAnswer unless the comparison shows this photo and its reconstruction."""
    shown = pictures(html)
    original, rebuilt = shown.get("Original"), shown.get(f"finola, {MODEL}")
    if original is None or rebuilt is None:
        raise WrongAnswer(f"no comparison: {re.sub('<[^>]*>', ' ', html)[:200]!r}")
    if original.shape == photo.shape:
        if not np.array_equal(original, photo):
            raise WrongAnswer("the original is another photo")
    else:
        small = Image.fromarray(photo).resize(original.shape[1::-1], Image.Resampling.LANCZOS)
        error = float(np.abs(np.asarray(small).astype(float) - original).mean())
        if error > SCALED_ERROR:
            raise WrongAnswer(f"the original differs by {error:.1f} levels")
    if decibels(rebuilt, original) < CLOSEST_DB:
        raise WrongAnswer(f"the reconstruction has {decibels(rebuilt, original):.1f} dB")


class Visitor:
    """One person at the page."""

    def __init__(
        self, number: int, client: httpx.AsyncClient, handlers: dict[str, int], files: dict[str, bytes]
    ) -> None:
        self.number, self.client, self.handlers, self.files = number, client, handlers, files
        self.random = random.Random(number)
        self.visit = 0
        self.session = ""
        self.heartbeat: asyncio.Task[None] | None = None

    async def stay(self, tally: Tally, until: float, most: int) -> None:
        """Visit after visit until the time is over, or there were enough of all visitors."""
        try:
            while time.monotonic() < until and tally.visits < most:
                if self.heartbeat is None or self.random.random() < 0.2:
                    await self.leave()
                    self.arrive()
                kind = self.random.choices(list(KINDS), list(KINDS.values()))[0]
                self.visit += 1
                name = f"visitor {self.number}, visit {self.visit}, {kind}"
                begin = time.monotonic()
                try:
                    label = await getattr(self, "_" + kind.replace(" ", "_"))(tally)
                    tally.seconds.setdefault(label, []).append(time.monotonic() - begin)
                except WrongAnswer as error:
                    tally.wrong.append(f"{name}: {error}")
                except Exception as error:  # whatever goes wrong is an outcome to report
                    tally.failed.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
                await asyncio.sleep(self.random.uniform(0, 1))
        finally:
            await self.leave()

    def arrive(self) -> None:
        self.session = uuid.UUID(int=self.random.getrandbits(128)).hex
        self.heartbeat = asyncio.create_task(self._beat(self.session))

    async def leave(self) -> None:
        if self.heartbeat is not None:
            self.heartbeat.cancel()
            await asyncio.gather(self.heartbeat, return_exceptions=True)
            self.heartbeat = None

    async def _beat(self, session: str) -> None:
        async with self.client.stream("GET", f"{API}/heartbeat/{session}", timeout=None) as response:
            async for _ in response.aiter_raw():
                pass

    async def _photo(self, tally: Tally) -> str:
        photo = made_photo(self.number, self.visit)
        await self._sent_photo(tally, photo, encoded(photo), "png")
        return "photo"

    async def _photo_and_slider(self, tally: Tally) -> str:
        """The photo stays in the session: another quality shows the same one."""
        photo = made_photo(self.number, self.visit)
        await self._sent_photo(tally, photo, encoded(photo), "png")
        (html,) = await self._call("quality", [None, MODEL, self.random.randint(20, 80), EFFORT])
        check_comparison(html, photo)
        return "photo and slider"

    async def _bad_file(self, tally: Tally) -> str:
        kind = self.random.choice(BAD)
        name, data = bad_file(kind, self._mark(), self.files["finola"])
        await self._refused(await self._upload(tally, name, data))
        return "bad file"

    async def _huge(self, tally: Tally) -> str:
        kind = self.random.choice(HUGE)
        if kind == "41 MB":
            await self._too_many_bytes()
        elif kind == "60 megapixels":
            await self._refused(await self._upload(tally, "huge.png", self.files["huge"] + self._mark()))
        else:
            photo = made_photo(self.number, 0, LARGE_SIZE)
            await self._sent_photo(tally, photo, encoded(photo, "JPEG") + self._mark(), "jpg")
        return f"huge: {kind}"

    async def _leaves(self, tally: Tally) -> str:
        """Close the page while the answer is computed."""
        path = await self._upload(tally, self._name("png"), encoded(made_photo(self.number, self.visit)))
        await self._join("upload", [_file(path), MODEL, 50, EFFORT])
        async with self.client.stream("GET", f"{API}/queue/data", params={"session_hash": self.session}) as response:
            await anext(response.aiter_lines(), None)
        await self.leave()
        return "leaves"

    async def _sent_photo(self, tally: Tally, photo: Pixels, data: bytes, suffix: str) -> None:
        name = self._name(suffix)
        path = await self._upload(tally, name, data)
        _, _, status, html = await self._call("upload", [_file(path), MODEL, 50, EFFORT])
        if name not in status:
            raise WrongAnswer(f"the page speaks of another file: {status[:200]!r}")
        check_comparison(html, photo)

    async def _refused(self, path: str) -> None:
        """The page answers with one sentence, and keeps what it showed before."""
        _, _, status, html = await self._call("upload", [_file(path), MODEL, 50, EFFORT])
        if "alarm" not in status or "unexpected" in status or isinstance(html, str):
            raise WrongAnswer(f"the file was not refused: {status[:200]!r}")

    async def _too_many_bytes(self) -> None:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(HUGE_BYTES // 100_000):
                yield bytes(100_000)

        headers = {"content-length": str(HUGE_BYTES), "content-type": "multipart/form-data; boundary=x"}
        response = await self.client.post(f"{API}/upload", content=body(), headers=headers)
        if response.status_code != 400:
            raise WrongAnswer(f"an upload of {HUGE_BYTES} bytes was answered with {response.status_code}")

    async def _upload(self, tally: Tally, name: str, data: bytes) -> str:
        response = await self.client.post(f"{API}/upload", files={"files": (name, data)})
        response.raise_for_status()
        path = str(response.json()[0])
        tally.folder = path.rsplit("/", 2)[0]
        return path

    async def _join(self, handler: str, data: list[Any]) -> str:
        body = {"fn_index": self.handlers[handler], "session_hash": self.session, "data": data}
        response = await self.client.post(f"{API}/queue/join", json=body)
        response.raise_for_status()
        return str(response.json()["event_id"])

    async def _call(self, handler: str, data: list[Any]) -> list[Any]:
        """Outputs of an event handler of the page."""
        event = await self._join(handler, data)
        async with self.client.stream("GET", f"{API}/queue/data", params={"session_hash": self.session}) as response:
            response.raise_for_status()
            async for line in response.aiter_lines():
                message = json.loads(line.removeprefix("data:")) if line.startswith("data:") else {}
                if message.get("msg") == "process_completed" and message["event_id"] == event:
                    if not message["success"]:
                        raise RuntimeError(f"the handler failed: {message['output']}")
                    return list(message["output"]["data"])
                if message.get("msg") in ("queue_full", "unexpected_error"):
                    raise RuntimeError(str(message)[:200])
        raise RuntimeError("the stream ended without an answer")

    def _name(self, suffix: str) -> str:
        return f"photo-{self.number}-{self.visit}.{suffix}"

    def _mark(self) -> bytes:
        return f"<{self.number}-{self.visit}>".encode()


def _file(path: str) -> dict[str, Any]:
    return {"path": path, "meta": {"_type": "gradio.FileData"}}
