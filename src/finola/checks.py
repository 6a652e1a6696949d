"""Validation of image tensors, used by all models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from finola.config import show_size
from finola.errors import InputError

LARGEST = 8.0  # pixels in [0, 1] stay below it after noise or standardisation; most 8-bit images exceed it


def check_images(images: Tensor) -> None:
    """Raise InputError unless images are a tensor (N, 3, H, W) of at least one image."""
    _check_tensor(images)
    if images.ndim != 4 or images.shape[1] != 3 or 0 in images.shape:
        raise InputError(f"Images have shape {tuple(images.shape)}; expected (N, 3, H, W) with N at least 1.")


def _check_tensor(images: object) -> None:
    if not isinstance(images, Tensor):
        raise InputError(
            f"Images are of type {type(images).__name__}, but models take a tensor (N, 3, H, W): read a file with "
            "finola.image_io.read_photo(path)[None]."
        )


def check_values(images: Tensor, *, training: bool = False) -> None:
    """Raise InputError if images are not floating point or have values in [0, 255] instead of [0, 1].

    Values up to `LARGEST` = 8 are accepted to allow for noise and standardisation. In training, and where `can_read`
    is false, only the dtype is checked.
    """
    _check_tensor(images)
    if not images.is_floating_point():
        dtype = str(images.dtype).removeprefix("torch.")
        raise InputError(f"Images have dtype {dtype}, but models need floats in [0, 1]. Use images.float() / 255.")
    if training or not can_read(images):
        return
    largest = float(images.detach().amax())
    if largest > LARGEST:
        raise InputError(
            f"The largest pixel is {largest:g}, but models need pixels in [0, 1]. Divide 8-bit images by 255."
        )


def can_read(values: Tensor) -> bool:
    """Whether reading values costs nothing: on the CPU, and not in a traced, compiled, exported or mapped function."""
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined,no-untyped-call]
    if traced or not values.is_cpu or values.numel() == 0 or torch._C._are_functorch_transforms_active():
        return False
    return type(values) in (Tensor, torch.nn.Parameter)  # not the fake tensors of torch.export


def check_size(height: int, width: int, multiple: int) -> None:
    """Raise InputError for an image that does not divide into whole map cells, with the nearest sizes that do."""
    if height % multiple or width % multiple:
        below, above = (
            [max(multiple, rounded(side / multiple) * multiple) for side in (height, width)]
            for rounded in (math.floor, math.ceil)
        )
        raise InputError(
            f"The image is {show_size((height, width))}, but both sides must be multiples of {multiple}: the nearest "
            f"such sizes are {show_size((below[0], below[1]))} and {show_size((above[0], above[1]))}."
        )
