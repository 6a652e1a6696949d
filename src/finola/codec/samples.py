"""Samples of a data set for the calibration of codecs: random tiles, or whole photos."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.data.dataset import PhotoDataset
from finola.errors import InputError
from finola.latents import CodebookSpace
from finola.photos import Pixels, analyse
from finola.tiling import grid_of

BATCH = 32  # photos per batch of tiles
TILES_PER_SIDE = 16  # larger photos are cropped, which bounds the memory


def random_tiles(data: PhotoDataset, count: int) -> Iterator[Tensor]:
    """Yield at least `count` tiles in batches (N, 3, H, W) in [0, 1], in random crops of a data set of tiles.

    >>> from finola.data import RandomCrop, open_data
    >>> data = open_data("smoke", "train", transform=RandomCrop(16), crops_per_image=2)
    >>> [len(tiles) for tiles in random_tiles(data, 100)]
    [64, 36]
    """
    photos = -(-count // data.crops_per_image)
    for first in range(0, photos, BATCH):
        numbers = range(first, min(first + BATCH, photos))
        items = [data[number // len(data), number % len(data)] for number in numbers]
        yield torch.cat([item.images for item in items]).float() / 255


def photo_coordinates(model: Autoencoder, data: PhotoDataset) -> Iterator[tuple[Tensor, int]]:
    """Yield coordinates p (T, D) of the tiles of every readable photo, and its number of tiles per row.

    Photos with more than 16 tiles per side are cropped to their centre.
    """
    tile = model.config.image_size
    found = False
    for index in range(len(data)):
        item = data[0, index]
        if item.replaced:
            continue
        source = Pixels(_centre(item.images[0], (TILES_PER_SIDE * tile[0], TILES_PER_SIDE * tile[1])))
        found = True
        ((p,),) = analyse(CodebookSpace(model, filtered=False), source)
        yield p.cpu(), grid_of(source.size, tile)[1]
    if not found:
        raise InputError(f"{data.source.where} has no readable photo.")


def _centre(image: Tensor, size: tuple[int, int]) -> Tensor:
    """Centre of an image (3, H, W), at most `size`."""
    top, left = (max(0, (side - most) // 2) for side, most in zip(image.shape[1:], size, strict=True))
    return image[:, top : top + size[0], left : left + size[1]]
