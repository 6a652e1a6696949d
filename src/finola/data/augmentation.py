"""Augmentation of crops: RandAugment of timm, and the augmentation of MoCo-v2."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from finola.errors import InputError, UnknownNameError

Augment = Callable[[Tensor], Tensor]  # uint8 (3, H, W) → uint8 (3, H, W)


def build_augment(name: str) -> Augment:
    """Build an augmentation by name: `moco`, or RandAugment in timm's notation.

    `rand-m9-mstd0.5` is the paper's RandAug (9, 0.5).

    >>> with seeded(np.random.default_rng(0)):
    ...     build_augment("rand-m9-mstd0.5")(torch.zeros(3, 32, 32, dtype=torch.uint8)).shape
    torch.Size([3, 32, 32])
    """
    if name == "moco":
        return _moco()
    if name.startswith("rand-m"):
        return _randaug(name)
    raise UnknownNameError(f"Unknown data.augment {name!r}; use moco or a RandAugment such as rand-m9-mstd0.5.")


def _randaug(name: str) -> Augment:
    from timm.data.auto_augment import rand_augment_transform  # the paper's "RandAug (9, 0.5)" is timm's notation

    from finola.image_io import pixels, to_pillow

    try:
        change = rand_augment_transform(name, {})
    except (AssertionError, ValueError, LookupError, OverflowError) as error:
        raise InputError(f"data.augment {name!r} is not a valid RandAugment configuration of timm.") from error
    return lambda image: pixels(change(to_pillow(image)))


def _moco() -> Augment:
    """Colour jitter with probability 0.8, greyscale with 0.2, Gaussian blur with 0.5."""
    from torchvision.transforms import v2

    jitter = v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    blur = v2.RandomApply([v2.GaussianBlur(9, sigma=(0.1, 2.0))], p=0.5)
    change: Augment = v2.Compose([jitter, v2.RandomGrayscale(0.2), blur])
    return change


@contextmanager
def seeded(random: np.random.Generator) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and PyTorch from `random`, and restore their states on exit."""
    seed = int(random.integers(2**32))
    python, numpy = python_random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        python_random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            python_random.setstate(python)
            np.random.set_state(numpy)
