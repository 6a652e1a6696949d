"""Image quality, one figure per image: PSNR, SSIM and MS-SSIM of images (N, 3, H, W) in [0, 1]."""

from __future__ import annotations

from torch import Tensor

SSIM_SIDE = 11  # its window
MS_SSIM_SIDE = 176  # five scales, each half of the last, must leave an 11-pixel window room


def psnr(images: Tensor, originals: Tensor) -> Tensor:
    """10·log₁₀(1 / mean square error) per image, after clamping to [0, 1]; identical images give infinity.

    >>> import torch
    >>> psnr(torch.full((2, 3, 8, 8), 0.6), torch.full((2, 3, 8, 8), 0.5)).round()
    tensor([20., 20.])
    """
    _check(images, originals)
    return -10 * (images.clamp(0, 1) - originals).square().flatten(1).mean(1).log10()


def ssim(images: Tensor, originals: Tensor) -> Tensor:
    """Structural similarity per image (torchmetrics: 11-pixel Gaussian window)."""
    from torchmetrics.functional.image import structural_similarity_index_measure

    _check(images, originals)
    result = structural_similarity_index_measure(images.clamp(0, 1), originals, data_range=1.0, reduction="none")
    assert isinstance(result, Tensor)
    return result.reshape(len(images))


def ms_ssim(images: Tensor, originals: Tensor) -> Tensor:
    """Multi-scale structural similarity per image; both sides are at least 176 pixels."""
    from torchmetrics.functional.image import multiscale_structural_similarity_index_measure

    _check(images, originals)
    if min(images.shape[-2:]) < MS_SSIM_SIDE:
        height, width = images.shape[-2:]
        raise ValueError(f"MS-SSIM needs sides of at least {MS_SSIM_SIDE} pixels, and this image is {height}x{width}.")
    result = multiscale_structural_similarity_index_measure(
        images.clamp(0, 1), originals, data_range=1.0, reduction="none", normalize="relu"
    )
    return result.reshape(len(images))


def figures(images: Tensor, originals: Tensor) -> list[dict[str, float | None]]:
    """PSNR, SSIM and MS-SSIM of every image; None where the images are too small for one.

    >>> import torch
    >>> figures(torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8))
    [{'psnr': -0.0, 'ssim': None, 'ms_ssim': None}]
    """
    side = min(originals.shape[-2:])
    values: dict[str, list[float | None]] = {"psnr": psnr(images, originals).tolist()}
    values["ssim"] = ssim(images, originals).tolist() if side >= SSIM_SIDE else [None] * len(images)
    values["ms_ssim"] = ms_ssim(images, originals).tolist() if side >= MS_SSIM_SIDE else [None] * len(images)
    return [{key: column[number] for key, column in values.items()} for number in range(len(images))]


def _check(images: Tensor, originals: Tensor) -> None:
    if images.shape != originals.shape or images.ndim != 4:
        raise ValueError(f"images of shape {tuple(images.shape)} cannot be compared with {tuple(originals.shape)}.")
