"""Contact sheet of an evaluation: originals beside reconstructions with the best, median and worst PSNR."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageDraw

from finola.image_io import pixels, save_photo, to_pillow

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset

SIDE, CAPTION = 224, 18


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
            rebuilt = model(original.to(parameter), **options)
            left, top = column * (2 * SIDE + 12), row_number * (SIDE + CAPTION)
            text = f"{word}: {row[key]:.2f} dB  {row['name'][-40:]}"
            ImageDraw.Draw(sheet).text((left + 4, top + 2), text, fill="black")
            for number, image in enumerate((original, rebuilt)):
                picture = to_pillow(image[0])
                picture.thumbnail((SIDE, SIDE))
                sheet.paste(picture, (left + number * (SIDE + 2), top + CAPTION))
    save_photo(pixels(sheet), path)
