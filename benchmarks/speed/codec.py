"""Time of compressing a photo to a `.finola` file and decompressing it, beside matrix products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from finola.codec.codec import compress, decompress
from finola.config import DEFAULT_CODEC
from finola.image_io import read_photo, to_uint8
from finola.metrics import psnr_by_strips
from speed.machine import gemm_rate, peak_memory, timed

REPEATS = 5
SIDE = 512  # of the product that times are also given in
PHOTOS = ("skimage:astronaut", "skimage:coffee", "skimage:chelsea", "skimage:rocket")
RATE = 0.19  # bits per pixel, at which efforts are compared
EFFORTS = (0, 1, 2, 3, 5, 7, 9)


def bench_codec(model: str = DEFAULT_CODEC, size: tuple[int, int] = (512, 768), quick: bool = False) -> dict[str, Any]:
    """A photo of scikit-image's, tiled to `size`, once loaded: fixed quality, fixed rate, back; what effort buys."""
    device = torch.device("cpu")
    height, width = size
    photo = read_photo("skimage:coffee")
    photo = photo.repeat(1, -(-height // photo.shape[1]), -(-width // photo.shape[2]))[:, :height, :width]
    data = compress(photo, quality=50, model=model).data
    works: dict[str, Callable[[], object]] = {
        "compress, quality 50": lambda: compress(photo, quality=50, model=model),
        f"compress, {RATE} bits per pixel": lambda: compress(photo, bpp=RATE, model=model),
        "decompress": lambda: decompress(data, model=model),
    }
    product = 2 * SIDE**3 / gemm_rate(device, SIDE, SIDE)
    stations = {}
    for name, work in works.items():
        work()
        seconds = statistics.median(timed(work, device) for _ in range(REPEATS))
        stations[name] = {"seconds": seconds, "peak_bytes": peak_memory(work), "gemm_products": seconds / product}
    facts = {"model": model, "width": width, "height": height, "threads": torch.get_num_threads()}
    found = facts | {"bpp": 8 * len(data) / (height * width), "stations": stations}
    return found if quick else found | {"effort": [effort_row(effort, model) for effort in EFFORTS]}


def effort_row(effort: int, model: str) -> dict[str, float]:
    """Means over a few photos at one rate: what an effort costs and gives."""
    rows = []
    for name in PHOTOS:
        photo = read_photo(name)
        begin = time.perf_counter()
        made = compress(photo, bpp=RATE, model=model, effort=effort)
        seconds = time.perf_counter() - begin
        rebuilt = decompress(made.data, model=model)
        rows.append((made.bits_per_pixel, psnr_by_strips([(rebuilt, to_uint8(photo))]), seconds))
    bpp, quality, seconds = (statistics.fmean(column) for column in zip(*rows, strict=True))
    return {"effort": effort, "bpp": bpp, "psnr": quality, "seconds": seconds}
