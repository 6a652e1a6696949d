"""Draw boxes, masks, class names and scores over a photo."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from finola.heads.detection_model import Detections
from finola.image_io import pixels, to_pillow

_GOLDEN = 0.618034


def colour_of(label: int) -> tuple[int, int, int]:
    """Fixed colour of a class; consecutive labels have distant hues."""
    red, green, blue = colorsys.hsv_to_rgb(label * _GOLDEN % 1.0, 0.85, 0.95)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_detections(image: Tensor, detections: Detections, names: Sequence[str]) -> Tensor:
    """The image (3, H, W) with its detections drawn in order of increasing score, as uint8.

    >>> import torch
    >>> none = Detections(torch.zeros(0, 4), torch.zeros(0), torch.zeros(0, dtype=torch.int64))
    >>> draw_detections(torch.zeros(3, 8, 8), none, []).unique().tolist()
    [0]
    """
    canvas = to_pillow(image)
    order = range(len(detections.labels) - 1, -1, -1)
    labels = detections.labels.tolist()
    if detections.masks is not None:
        canvas = _masked(canvas, detections.masks, labels, order)
    pen = ImageDraw.Draw(canvas)
    line = max(2, round(max(canvas.size) / 320))
    font = ImageFont.load_default(size=max(10, round(max(canvas.size) / 45)))
    captions = []
    for number in order:
        colour = colour_of(labels[number])
        pen.rectangle(tuple(detections.boxes[number].tolist()), outline=colour, width=line)
        captions.append((number, f"{names[labels[number]]} {float(detections.scores[number]):.2f}", colour))
    for number, text, colour in captions:  # after all boxes, which would hide them
        _caption(pen, detections.boxes[number].tolist(), text, colour, font, canvas.size)
    return pixels(canvas)


def _masked(canvas: Image.Image, masks: Tensor, labels: Sequence[int], order: Sequence[int]) -> Image.Image:
    values = np.array(canvas)
    for number in order:
        inside = masks[number].cpu().numpy()
        values[inside] = (0.5 * values[inside] + 0.5 * np.array(colour_of(labels[number]))).astype(np.uint8)
    return Image.fromarray(values)


def _caption(
    pen: ImageDraw.ImageDraw,
    box: Sequence[float],
    text: str,
    colour: tuple[int, int, int],
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
    size: tuple[int, int],
) -> None:
    """Draw a caption above its box, or inside if there is no room above; it stays within the image."""
    _, _, width, height = pen.textbbox((0, 0), text, font=font)
    left = min(max(0.0, box[0]), max(0.0, size[0] - width - 4))
    top = box[1] - height - 3 if box[1] >= height + 3 else box[1]
    top = min(max(0.0, top), max(0.0, size[1] - height - 3))
    pen.rectangle((left, top, left + width + 4, top + height + 3), fill=colour)
    dark = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2] < 140
    pen.text((left + 2, top + 1), text, fill="white" if dark else "black", font=font)
