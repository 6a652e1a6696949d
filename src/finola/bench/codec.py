"""How long a photo takes into a `.finola` file and out of it, beside the machine's matrix products."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

import torch

from finola.bench.machine import gemm_rate, peak_memory, timed
from finola.codec.photo import compress, decompress
from finola.images import read_photo

REPEATS = 5
SIDE = 512  # of the product that times are also given in


def bench_codec(model: str = "waves512", size: tuple[int, int] = (512, 768)) -> dict[str, Any]:
    """A photo of scikit-image's, tiled to `size`, once loaded: fixed quality, fixed rate, and back."""
    device = torch.device("cpu")
    height, width = size
    photo = read_photo("skimage:coffee")
    photo = photo.repeat(1, -(-height // photo.shape[1]), -(-width // photo.shape[2]))[:, :height, :width]
    data = compress(photo, quality=50, model=model).data
    works: dict[str, Callable[[], object]] = {
        "compress, quality 50": lambda: compress(photo, quality=50, model=model),
        "compress, 0.19 bits per pixel": lambda: compress(photo, bpp=0.19, model=model),
        "decompress": lambda: decompress(data, model=model),
    }
    product = 2 * SIDE**3 / gemm_rate(device, SIDE, SIDE)
    stations = {}
    for name, work in works.items():
        work()
        seconds = statistics.median(timed(work, device) for _ in range(REPEATS))
        stations[name] = {"seconds": seconds, "peak_bytes": peak_memory(work), "gemm_products": seconds / product}
    facts = {"model": model, "width": width, "height": height, "threads": torch.get_num_threads()}
    return facts | {"bpp": 8 * len(data) / (height * width), "stations": stations}
