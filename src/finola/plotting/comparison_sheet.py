"""Contact sheet: crops of photos and of their reconstructions by several methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from finola.baselines import Method
from finola.compare.report import label
from finola.compare.runner import Photos
from finola.image_io import pixels, save_photo, to_pillow, to_uint8
from finola.metrics import psnr

CROP, SCALE, CAPTION = 128, 2, 34


def draw_sheet(photos: Photos, methods: Mapping[str, Method], path: str | Path, limit: int = 4) -> Path:
    """Write centre crops of the first photos, enlarged twice: the original and the reconstruction of each method."""
    dataset = photos.open()
    rows = []
    for index in range(min(limit, len(photos.names(dataset)))):
        image = photos.image(dataset, index)
        if image is None:
            continue
        tiles = [_captioned(image, "original", "")]
        for word, method in methods.items():
            code = method.encode(image)
            rebuilt = method.decode(code)
            bits = "" if code.bits is None else f"{code.bits / (image.shape[-2] * image.shape[-1]):.3f} bpp  "
            quality = float(psnr(rebuilt[None], image[None]))
            tiles.append(_captioned(rebuilt, label(word), f"{bits}{quality:.2f} dB"))
        rows.append(torch.cat(tiles, dim=-1))
    return save_photo(torch.cat(rows, dim=-2), path)


def _captioned(image: Tensor, title: str, metrics: str) -> Tensor:
    """Crop, enlarged twice without interpolation, below two lines of text."""
    from PIL import Image, ImageDraw

    height, width = image.shape[-2:]
    top, left = max(0, (height - CROP) // 2), max(0, (width - CROP) // 2)
    crop = to_uint8(image)[:, top : top + CROP, left : left + CROP]
    crop = crop.repeat_interleave(SCALE, -1).repeat_interleave(SCALE, -2)
    tile = Image.new("RGB", (SCALE * CROP + 6, SCALE * CROP + CAPTION), "white")
    pen = ImageDraw.Draw(tile)
    pen.text((3, 3), title, fill="black")
    pen.text((3, 17), metrics, fill="black")
    tile.paste(to_pillow(crop), (3, CAPTION - 2))
    return pixels(tile)
