"""KLTs fitted to a train split once, and kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from finola.baselines.klt import fit_klt, save_klt
from finola.compare.runner import Photos, fingerprint
from finola.data import CentreCrop, open_data
from finola.tiling import cut

WHOLE = 256
TILE = 64
MOST = 1024  # components of whole photos: 1024 are 0.8 GB already, and every photo is multiplied by all of them


def fit(train: str, words: Sequence[str], cache: Path) -> dict[int, Path]:
    """Where the KLT of every tile side that `words` ask for is kept, fitted now where it is not yet.

    Photos are cropped to 256×256 in their middle and cut into tiles of that side.
    """
    asked: dict[int, int] = {}
    for word in words:
        side, components = (int(number) for number in word.removeprefix("klt").split(":"))
        if WHOLE % side:
            raise ValueError(f"{word}: the tiles of a {WHOLE}x{WHOLE} photo have sides that divide {WHOLE}.")
        asked[side] = max(components, asked.get(side, 0))
    if not asked:
        return {}
    photos = Photos((train,), "train")
    dataset = photos.open()
    key = fingerprint(photos, dataset, photos.names(dataset))
    images: Tensor | None = None
    fitted = {}
    for side, components in asked.items():
        path = cache / f"klt-{key}-{side}.safetensors"
        if not path.exists() or _fitted(path) < components:
            images = _load(train) if images is None else images
            save_klt(fit_klt(cut(images, (side, side))[0], components), path)
        fitted[side] = path
    return fitted


def _fitted(path: Path) -> int:
    """How many components are kept in a file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return int(file.get_slice("components").get_shape()[0])


def _load(train: str) -> Tensor:
    data = open_data(train, "train", transform=CentreCrop(WHOLE))
    return torch.stack([data.sample(index)[0] for index in range(len(data))])


def klt_words(latents: Sequence[int], photos: int) -> tuple[list[str], list[str]]:
    """The KLTs with these counts of numbers per 256×256 photo, on tiles and, up to 1024, whole; apart, those for which
    there are fewer photos than components.

    >>> klt_words([64, 1024], photos=500)
    (['klt64:4', 'klt64:64', 'klt256:64'], ['klt256:1024'])
    """
    tiles = (WHOLE // TILE) ** 2
    asked = [(TILE, count // tiles, photos * tiles) for count in latents if count >= tiles]
    asked += [(WHOLE, count, photos) for count in latents if count <= MOST]
    fitting = [f"klt{side}:{components}" for side, components, samples in asked if components <= samples]
    return fitting, [f"klt{side}:{components}" for side, components, samples in asked if components > samples]
