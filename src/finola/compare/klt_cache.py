"""KLTs fitted to a train split, cached on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from finola.baselines.klt import fit_klt, save_klt
from finola.data import CentreCrop, open_data
from finola.errors import InputError
from finola.tiling import cut
from finola.wave.codebook import REFERENCE_PIXELS

WHOLE = 256
TILE = 64
MAX_WHOLE = 1024  # components of whole photos: 1024 take 0.8 GB, and every photo is multiplied by all of them


def fit(
    train: str,
    words: Sequence[str],
    cache: Path,
    crop: int | None = None,
    say: Callable[[str], object] = lambda message: None,
) -> dict[int, Path]:
    """Fit the KLTs named by `words` (`klt64:256`, …) unless they are cached, and return their files by tile side.

    The short side of each photo is resized to `crop` pixels (default: 256), and its centre is cut into tiles. Photos
    that cannot be read are left out, and `say` is called with the reason of each.
    """
    whole = crop or WHOLE
    requested: dict[int, int] = {}  # components by tile side
    for word in words:
        side, components = (int(number) for number in word.removeprefix("klt").split(":"))
        if whole % side:
            raise InputError(f"{word}: the tile side {side} does not divide {whole}; use a divisor of {whole}.")
        requested[side] = max(components, requested.get(side, 0))
    if not requested:
        return {}
    key = f"{open_data(train, 'train').source.fingerprint()[:16]}-{whole}"
    images: Tensor | None = None
    fitted = {}
    for side, components in requested.items():
        path = cache / f"klt-{key}-{side}.safetensors"
        if not path.exists() or _component_count(path) < components:
            images = _load(train, whole, say) if images is None else images
            save_klt(fit_klt(cut(images, (side, side))[0], components), path)
        fitted[side] = path
    return fitted


def _component_count(path: Path) -> int:
    """Number of components in a file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return int(file.get_slice("components").get_shape()[0])


def _load(train: str, side: int, say: Callable[[str], object]) -> Tensor:
    data = open_data(train, "train", transform=CentreCrop(side))
    items = (data[0, index] for index in range(len(data)))
    images = torch.stack([item.images[0] for item in items if not item.replaced])
    for _, reason in data.unreadable:
        say(reason)
    return images


def klt_words(budgets: Sequence[int], photos: int, whole: int = WHOLE) -> tuple[list[str], list[str]]:
    """KLTs with the given numbers per 256×256 pixels: (those that can be fitted, those that cannot).

    Each is on 64×64 tiles and, up to 1024 numbers, on whole photos of `whole` pixels a side. A KLT needs at least as
    many samples as components.

    >>> klt_words([64, 1024], photos=500)
    (['klt64:4', 'klt64:64', 'klt256:64'], ['klt256:1024'])
    """
    tiles = 1 if whole % TILE else (whole // TILE) ** 2
    area = REFERENCE_PIXELS // TILE**2
    requested = [(TILE, budget // area, photos * tiles) for budget in budgets if tiles > 1 and area <= budget]
    by_photo = [budget * whole**2 // REFERENCE_PIXELS for budget in budgets]
    requested += [(whole, count, photos) for count in by_photo if 0 < count <= MAX_WHOLE]
    possible = [f"klt{side}:{components}" for side, components, samples in requested if components <= samples]
    return possible, [f"klt{side}:{components}" for side, components, samples in requested if components > samples]
