"""Karhunen–Loève transform (PCA): the linear code of K numbers with the least squared error on its training set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from finola.baselines import Code, Method
from finola.errors import InputError
from finola.files import write_tensors
from finola.tiling import cut, join

CHUNK = 2048  # images converted to float at a time


@dataclass(frozen=True)
class KLT:
    """Mean image and K orthonormal component images.

    >>> klt = fit_klt(torch.rand(50, 3, 4, 4), components=5)
    >>> klt.decode(klt.encode(torch.rand(2, 3, 4, 4))).shape
    torch.Size([2, 3, 4, 4])
    """

    mean: Tensor  # (D,)
    components: Tensor  # (K, D)
    shape: tuple[int, ...]  # of one image

    def encode(self, images: Tensor) -> Tensor:
        """Images (N, 3, H, W) → latents (N, K)."""
        return (images.flatten(1) - self.mean) @ self.components.T

    def decode(self, latents: Tensor) -> Tensor:
        """Latents (N, K) → images (N, 3, H, W)."""
        return (latents @ self.components + self.mean).reshape(-1, *self.shape)


def fit_klt(images: Tensor, components: int, iterations: int = 6) -> KLT:
    """Fit a KLT to images (N, 3, H, W), float in [0, 1] or uint8.

    The eigenvectors are computed from the Gram matrix if N ≤ 3HW, otherwise by subspace iteration.
    """
    count, size = len(images), images[0].numel()
    if not 1 <= components <= min(count, size):
        raise InputError(
            f"Cannot fit {components} components to {count} images of {size} values each: "
            f"use 1 to {min(count, size)} components."
        )
    mean = sum((chunk.sum(0, dtype=torch.float64) for chunk in _chunks(images)), torch.zeros(size).double()) / count
    mean = mean.float()
    basis = _by_gram(images, mean, components) if count <= size else _by_iteration(images, mean, components, iterations)
    return KLT(mean, basis, tuple(images.shape[1:]))


def _chunks(images: Tensor) -> Iterator[Tensor]:
    for chunk in images.split(CHUNK):
        yield chunk.flatten(1).float() / 255 if chunk.dtype == torch.uint8 else chunk.flatten(1)


def _by_gram(images: Tensor, mean: Tensor, components: int) -> Tensor:
    """Eigenvectors (K, D) of the covariance, computed from those of the (N, N) Gram matrix."""
    chunks = [chunk - mean for chunk in _chunks(images)]
    gram = torch.cat([torch.cat([a @ b.T for b in chunks], dim=1) for a in chunks])
    solved: tuple[Tensor, Tensor] = torch.linalg.eigh(gram.double())
    values, vectors = solved[0].flip(0)[:components], solved[1].flip(1)[:, :components].float()
    basis = vectors.new_zeros(components, len(mean))
    for part, chunk in zip(vectors.split(CHUNK), chunks, strict=True):
        basis += part.T @ chunk
    return basis / values.clamp_min(1e-12).sqrt().float()[:, None]


def _by_iteration(images: Tensor, mean: Tensor, components: int, iterations: int) -> Tensor:
    """Eigenvectors (K, D) of the covariance by orthogonal iteration with oversampling and a Rayleigh–Ritz step."""
    generator = torch.Generator().manual_seed(0)
    width = min(components + max(8, components // 4), len(mean))
    Q: Tensor = torch.linalg.qr(torch.randn(len(mean), width, generator=generator))[0]
    for _ in range(iterations):
        Q = torch.linalg.qr(_covariance_times(images, mean, Q))[0]
    rotation: Tensor = torch.linalg.eigh((Q.T @ _covariance_times(images, mean, Q)).double())[1]
    return (Q @ rotation.flip(1)[:, :components].float()).T.contiguous()


def _covariance_times(images: Tensor, mean: Tensor, Q: Tensor) -> Tensor:
    product = torch.zeros_like(Q)
    for chunk in _chunks(images):
        centred = chunk - mean
        product += centred.T @ (centred @ Q)
    return product


def klt_method(fitted: KLT, components: int) -> Method:
    """The first `components` of a fitted KLT, applied to tiles of the size it was fitted to."""
    known, size = len(fitted.components), (fitted.shape[-2], fitted.shape[-1])
    if not 1 <= components <= known:
        raise InputError(f"The KLT has {known} components, but {components} were requested: use 1 to {known}.")
    klt = KLT(fitted.mean, fitted.components[:components], fitted.shape)

    def encode(image: Tensor) -> Code:
        tiles, grid = cut(image[None], size)
        latents = klt.encode(tiles)
        return Code((latents, grid), (image.shape[-2], image.shape[-1]), latents=latents.numel())

    def decode(code: Code) -> Tensor:
        latents, grid = code.data
        return join(klt.decode(latents), grid, code.size)[0]

    return Method(f"klt{size[0]}:{components}", encode, decode)


def save_klt(klt: KLT, path: Path) -> None:
    """Save a fitted KLT as safetensors."""
    write_tensors(path, {"mean": klt.mean, "components": klt.components, "shape": torch.tensor(klt.shape)})


def load_klt(path: Path, components: int | None = None) -> KLT:
    """Load a KLT saved by `save_klt`, or only its first `components`: those of whole photos take gigabytes."""
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        mean, shape = file.get_tensor("mean"), file.get_tensor("shape")
        return KLT(mean, file.get_slice("components")[:components], tuple(shape.tolist()))
