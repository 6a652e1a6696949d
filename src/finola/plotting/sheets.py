"""Contact sheets: photos beside their reconstructions by one model, or by several methods."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from finola.errors import printable
from finola.image_io import pixels, save_photo, to_pillow, to_uint8
from finola.metrics import psnr
from finola.photos import decode, encode

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.baselines import Method
    from finola.compare.runner import Photos
    from finola.data import PhotoDataset

SIDE, CAPTION = 224, 18
CROP, SCALE, CROP_CAPTION = 128, 2, 34


@torch.no_grad()
def save_contact_sheet(
    path: Path,
    rows: list[dict[str, Any]],
    model: Autoencoder,
    dataset: PhotoDataset,
    columns: int = 3,
    **options: Any,
) -> None:
    """Write the sheet for the rows of `finola.evaluation.reconstruction.evaluate`, one line per rank.

    `options` are those of `finola.evaluation.reconstruction.reconstruct`; with an effort, the refined images are shown.
    """
    parameter = next(model.parameters())
    key = "refined_psnr" if "refined_psnr" in rows[0] else "psnr"
    by_psnr = sorted(rows, key=lambda row: -row[key])
    middle = max(0, len(by_psnr) // 2 - columns // 2)
    lines = {"best": by_psnr[:columns], "median": by_psnr[middle : middle + columns], "worst": by_psnr[-columns:]}
    sheet = Image.new("RGB", (columns * (2 * SIDE + 12), len(lines) * (SIDE + CAPTION)), "white")
    for row_number, (word, chosen) in enumerate(lines.items()):
        for column, row in enumerate(chosen):
            original = dataset[(0, row["index"])].images.float() / 255
            rebuilt = decode(model, encode(model, original.to(parameter), **options)).clamp(0, 1)
            left, top = column * (2 * SIDE + 12), row_number * (SIDE + CAPTION)
            text = f"{word}: {row[key]:.2f} dB  {printable(row['photo'])[-40:]}"
            ImageDraw.Draw(sheet).text((left + 4, top + 2), text, fill="black")
            for number, image in enumerate((original, rebuilt)):
                picture = to_pillow(image[0])
                picture.thumbnail((SIDE, SIDE))
                sheet.paste(picture, (left + number * (SIDE + 2), top + CAPTION))
    save_photo(pixels(sheet), path)


def save_comparison_sheet(photos: Photos, methods: Mapping[str, Method], path: str | Path, limit: int = 4) -> Path:
    """Write centre crops of the first photos, enlarged twice: the original and the reconstruction of each method."""
    from finola.compare.report import label
    from finola.compare.runner import read_image

    dataset = photos.open()
    rows = []
    for index in range(min(limit, len(dataset))):
        image = read_image(dataset, index)
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
    height, width = image.shape[-2:]
    top, left = max(0, (height - CROP) // 2), max(0, (width - CROP) // 2)
    crop = to_uint8(image)[:, top : top + CROP, left : left + CROP]
    crop = crop.repeat_interleave(SCALE, -1).repeat_interleave(SCALE, -2)
    tile = Image.new("RGB", (SCALE * CROP + 6, SCALE * CROP + CROP_CAPTION), "white")
    pen = ImageDraw.Draw(tile)
    pen.text((3, 3), printable(title), fill="black")
    pen.text((3, 17), metrics, fill="black")
    tile.paste(to_pillow(crop), (3, CROP_CAPTION - 2))
    return pixels(tile)
