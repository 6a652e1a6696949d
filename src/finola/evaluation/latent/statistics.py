"""Mean, covariance and principal components of q over any image set, streamed, and kept as one file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from finola.evaluation.latent.operations import encode, without_slack
from finola.files import check_folder, digest_of_weights, write_tensors
from finola.hub import resolve
from finola.tiling import cut, pad_to_multiple

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

EXACT = 4096  # numbers in q up to which the whole covariance is kept: 128 MB in float64
KEPT = 512  # components that the incremental way keeps when none are asked for
BATCH = 64  # images, or tiles, encoded at once
KIND = "finola latent statistics"
FILE = "latent.safetensors"
"""Beside the weights of a model: its statistics."""


@dataclass(frozen=True)
class Statistics:
    """The mean of q and the principal components of its covariance, largest first.

    With every component kept the covariance is whole: Σ = componentsᵀ · diag(variances) · components.
    """

    mean: Tensor  # q̄ (M, C)
    components: Tensor  # (K, M·C), orthonormal rows
    variances: Tensor  # (K,)
    total: float  # variance in all directions, kept or not
    count: int  # images, or tiles, that it was measured on
    model: str  # the one-line name
    weights: str  # the digest of the model's weights

    def covariance(self) -> Tensor:
        """Σ (M·C, M·C), as far as the components kept know it."""
        return self.components.T * self.variances @ self.components

    def explained(self) -> Tensor:
        """Share of all variance in the first 1 … K components: (K,)."""
        return self.variances.cumsum(0) / max(self.total, 1e-30)

    def save(self, path: str | Path) -> None:
        """Keep everything as one safetensors file, written beside its target and renamed."""
        path = check_folder(Path(path))
        tensors = {"mean": self.mean, "components": self.components, "variances": self.variances}
        about = {"kind": KIND, "model": self.model, "weights": self.weights}
        write_tensors(path, tensors, about | {"count": str(self.count), "total": repr(self.total)})

    @classmethod
    def load(cls, path: str | Path, model: Autoencoder) -> Statistics:
        """What `save` kept for this very model; a file made for another name or other weights is refused."""
        from safetensors import SafetensorError, safe_open

        path = Path(path).expanduser()
        if not path.is_file():
            raise FileNotFoundError(f"there are no statistics at {path}: finola latent fit makes them.")
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
        except SafetensorError as error:
            raise ValueError(f"{path} cannot be read as statistics of q: {error}.") from error
        if about.get("kind") != KIND or not {"mean", "components", "variances"} <= tensors.keys():
            raise ValueError(f"{path} holds no statistics of q: finola latent fit makes such a file.")
        name, weights = str(model.config), identity(model)
        if (about["model"], about["weights"]) != (name, weights):
            raise ValueError(
                f"{path} was made for {about['model']} (weights {about['weights']}), and this model is {name} "
                f"(weights {weights}): make its own with finola latent fit."
            )
        numbers = float(about["total"]), int(about["count"])
        return cls(tensors["mean"], tensors["components"], tensors["variances"], *numbers, name, weights)


def kept_with(name: str) -> Path | None:
    """The statistics beside a trained model's weights, if there are any."""
    folder = resolve(name)
    return folder / FILE if folder is not None and (folder / FILE).is_file() else None


@torch.no_grad()
def fit(
    model: Autoencoder, images: Iterable[Tensor], components: int | None = None, *, incremental: bool | None = None
) -> Statistics:
    """Statistics of q over images, one at a time or in batches, float in [0, 1] or uint8, of any sizes.

    An image larger than the model's own size counts as its tiles, whole ones only. The exact way keeps the covariance
    and its eigenvectors; the incremental one never holds more than a few times `components` vectors, and is taken
    unasked where q has more than 4096 numbers. Of a wave model the slack that tops q up to its sphere is left out: it
    draws nothing and follows from the rest.

    >>> import finola
    >>> statistics = fit(finola.load("waves/64x1@8:32"), torch.rand(5, 2, 3, 64, 32))
    >>> statistics.count, statistics.mean.shape, len(statistics.components)
    (20, torch.Size([1, 64]), 19)
    """
    config = model.config
    size = config.paths * config.channels
    if components is not None and not 1 <= components <= size:
        raise ValueError(f"{components} components were asked for, and q has {size} numbers: use 1 to {size}.")
    if incremental is None:
        incremental = size > EXACT
    running: Running = Incremental(size, components or min(KEPT, size)) if incremental else Exact(size)
    for q in _encoded(model, images):
        running.add(without_slack(model, q).flatten(1).double().cpu())
    if running.count < 2:
        raise ValueError(
            f"statistics need at least 2 images or tiles, and there are {running.count}: give more photos."
        )
    found, variances = running.components()
    kept = min(components or size, int((variances > 1e-9 * variances[0]).sum()))
    mean = running.mean.float().reshape(config.paths, config.channels)
    return Statistics(
        mean,
        found[:kept].float().contiguous(),
        variances[:kept].float(),
        running.total,
        running.count,
        str(config),
        identity(model),
    )


def _encoded(model: Autoencoder, images: Iterable[Tensor]) -> Iterator[Tensor]:
    """q (n, M, C) of all images in turn, or of their whole tiles, encoded in batches."""
    tile = model.config.image_size
    waiting: list[Tensor] = []
    for image in images:
        batch = image[None] if image.ndim == 3 else image
        height, width = (side // own * own or side for side, own in zip(batch.shape[-2:], tile, strict=True))
        waiting.append(cut(pad_to_multiple(batch[..., :height, :width], tile), tile)[0])
        if sum(map(len, waiting)) >= BATCH:
            yield encode(model, torch.cat(waiting)).q
            waiting.clear()
    if waiting:
        yield encode(model, torch.cat(waiting)).q


class Running(Protocol):
    """Statistics of vectors (n, D) as they come, float64."""

    count: int
    mean: Tensor  # (D,)

    @property
    def total(self) -> float:
        """Variance in all directions."""

    def add(self, vectors: Tensor) -> None:
        """Take these in."""

    def components(self) -> tuple[Tensor, Tensor]:
        """(K, D) and variances (K,), largest first."""


class Exact:
    """The whole scatter matrix: Chan's update, so that no mean is subtracted too late."""

    def __init__(self, size: int) -> None:
        self.count, self.mean = 0, torch.zeros(size, dtype=torch.float64)
        self.scatter = torch.zeros(size, size, dtype=torch.float64)

    @property
    def total(self) -> float:
        return float(self.scatter.trace()) / (self.count - 1)

    def add(self, vectors: Tensor) -> None:
        centred, step = _take_in(self, vectors)
        self.scatter += centred.T @ centred + step[:, None] * step

    def components(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.scatter)
        return vectors.T.flip(0), values.flip(0).clamp_min(0) / (self.count - 1)


class Incremental:
    """The first components alone: what they are so far, weighed, joins every new block in one small SVD."""

    def __init__(self, size: int, keep: int) -> None:
        self.count, self.mean, self.keep = 0, torch.zeros(size, dtype=torch.float64), keep
        self.rows = torch.zeros(0, size, dtype=torch.float64)  # singular value times direction
        self.squares = 0.0
        self.waiting: list[Tensor] = []

    @property
    def total(self) -> float:
        return self.squares / (self.count - 1)

    def add(self, vectors: Tensor) -> None:
        centred, step = _take_in(self, vectors)
        self.waiting += [centred, step[None]]
        self.squares += float(centred.square().sum() + step.square().sum())
        if sum(map(len, self.waiting)) >= self.keep:  # large blocks: fewer decompositions, and less is cut off
            self._merge()

    def components(self) -> tuple[Tensor, Tensor]:
        self._merge()
        values = self.rows.norm(dim=1)
        return self.rows / values.clamp_min(1e-30)[:, None], values.square() / (self.count - 1)

    def _merge(self) -> None:
        _, values, directions = torch.linalg.svd(torch.cat([self.rows, *self.waiting]), full_matrices=False)
        self.rows = values[: self.keep, None] * directions[: self.keep]
        self.waiting = []


def _take_in(running: Exact | Incremental, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Update count and mean; what the scatter gains: the vectors around their own mean, and one for its distance."""
    own = vectors.mean(0)
    shift, count = own - running.mean, running.count + len(vectors)
    step = shift * math.sqrt(running.count * len(vectors) / count)
    running.mean = running.mean + shift * len(vectors) / count
    running.count = count
    return vectors - own, step


def identity(model: Autoencoder) -> str:
    """The digest of a model's weights, or `start` for a wave start that no one has trained.

    A start is computed on loading, and its last bits depend on the machine and its threads; its name says it all.
    """
    from finola.autoencoder import Autoencoder

    config = model.config
    if config.encoder == "waves":
        with torch.random.fork_rng(devices=[]):  # what is drawn after this does not hang on it
            start = Autoencoder(str(config)).state_dict()
        own = model.state_dict()
        same_shapes = all(name in own and own[name].shape == tensor.shape for name, tensor in start.items())
        if same_shapes and all(torch.allclose(own[n].cpu(), t, rtol=1e-3, atol=1e-5) for n, t in start.items()):
            return "start"
    return digest_of_weights(model)
