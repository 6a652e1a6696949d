"""Mean, covariance and principal components of q over an image set, computed in one pass and stored in one file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from finola.errors import CorruptFileError, InputError, MissingFileError
from finola.evaluation.latent.operations import encode, without_slack
from finola.files import check_folder, digest_of_weights, write_tensors
from finola.hub import resolve
from finola.locations import user_path
from finola.tiling import cut

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder

EXACT = 4096  # largest dimension of q for which the full covariance is computed: 128 MB in float64
DEFAULT_COMPONENTS = 512  # of incremental PCA
BATCH = 64  # images, or tiles, encoded at once
KIND = "finola latent statistics"
FILE = "latent.safetensors"
"""File of the statistics in the folder of a model."""


@dataclass(frozen=True)
class Statistics:
    """Mean of q and principal components of its covariance, largest first.

    With all components, the covariance is Σ = componentsᵀ · diag(variances) · components.
    """

    mean: Tensor  # q̄ (M, C)
    components: Tensor  # (K, M·C), orthonormal rows
    variances: Tensor  # (K,)
    total: float  # total variance, including components that are not stored
    count: int  # number of images or tiles
    model: str  # one-line name
    weights: str  # digest of the weights

    def covariance(self) -> Tensor:
        """Covariance Σ (M·C, M·C) of the stored components."""
        return self.components.T * self.variances @ self.components

    def explained(self) -> Tensor:
        """Fraction of the total variance in the first 1 … K components: (K,)."""
        return self.variances.cumsum(0) / max(self.total, 1e-30)

    def save(self, path: str | Path) -> None:
        """Write a safetensors file atomically."""
        path = check_folder(Path(path))
        tensors = {"mean": self.mean, "components": self.components, "variances": self.variances}
        about = {"kind": KIND, "model": self.model, "weights": self.weights}
        write_tensors(path, tensors, about | {"count": str(self.count), "total": repr(self.total)})

    @classmethod
    def load(cls, path: str | Path, model: Autoencoder) -> Statistics:
        """Load statistics written by `save`; raise InputError if they belong to a model of another name or weights."""
        from safetensors import SafetensorError, safe_open

        path = user_path(path)
        if not path.is_file():
            raise MissingFileError(f"There are no statistics at {path}. Compute them with finola latent fit.")
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
        except SafetensorError as error:
            raise CorruptFileError(f"Corrupt file {path}: {error}.") from error
        if about.get("kind") != KIND or not {"mean", "components", "variances"} <= tensors.keys():
            raise InputError(f"{path} does not contain statistics of q. Compute them with finola latent fit.")
        name, weights = str(model.config), identity(model)
        if (about["model"], about["weights"]) != (name, weights):
            raise InputError(
                f"{path} belongs to {about['model']} (weights {about['weights']}), but the model is {name} "
                f"(weights {weights}). Compute its own statistics with finola latent fit."
            )
        numbers = float(about["total"]), int(about["count"])
        return cls(tensors["mean"], tensors["components"], tensors["variances"], *numbers, name, weights)


def stored_statistics(name: str) -> Path | None:
    """Path of the statistics stored with a trained model; None if it has none."""
    folder = resolve(name)
    return folder / FILE if folder is not None and (folder / FILE).is_file() else None


@torch.no_grad()
def fit(
    model: Autoencoder, images: Iterable[Tensor], components: int | None = None, *, incremental: bool | None = None
) -> Statistics:
    """Compute the statistics of q over images or batches of images, float in [0, 1] or uint8, of any size.

    An image larger than the model's size is cut into tiles, of which incomplete ones are dropped. `incremental`
    computes only the first principal components, with memory for a few times `components` vectors; it is the default
    if q has more than 4096 dimensions. The slack channel of a wave model is excluded, because it follows from the rest.

    >>> import finola
    >>> statistics = fit(finola.load("waves/64x1@8:32"), torch.rand(5, 2, 3, 64, 32))
    >>> statistics.count, statistics.mean.shape, len(statistics.components)
    (20, torch.Size([1, 64]), 19)
    """
    config = model.config
    size = config.paths * config.channels
    if components is not None and not 1 <= components <= size:
        raise InputError(f"components is {components}, but q has {size} dimensions. Use 1 to {size}.")
    if incremental is None:
        incremental = size > EXACT
    running: Accumulator = (
        Incremental(size, components or min(DEFAULT_COMPONENTS, size)) if incremental else Exact(size)
    )
    for q in _encoded(model, images):
        running.add(without_slack(model, q).flatten(1).cpu().double())
    if running.count < 2:
        raise InputError(f"Statistics need at least 2 images or tiles, got {running.count}.")
    directions, variances = running.components()
    count = min(components or size, int((variances > 1e-9 * variances[0]).sum()))
    mean = running.mean.float().reshape(config.paths, config.channels)
    return Statistics(
        mean,
        directions[:count].float().contiguous(),
        variances[:count].float(),
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
        waiting.append(cut(batch[..., :height, :width], tile)[0])
        if sum(map(len, waiting)) >= BATCH:
            yield encode(model, torch.cat(waiting)).q
            waiting.clear()
    if waiting:
        yield encode(model, torch.cat(waiting)).q


class Accumulator(Protocol):
    """Running statistics of vectors (n, D) in float64."""

    count: int
    mean: Tensor  # (D,)

    @property
    def total(self) -> float:
        """Total variance."""

    def add(self, vectors: Tensor) -> None:
        """Add vectors (n, D)."""

    def components(self) -> tuple[Tensor, Tensor]:
        """Principal components (K, D) and variances (K,), largest first."""


class Exact:
    """Full scatter matrix, accumulated with the update of Chan et al., which is numerically stable."""

    def __init__(self, size: int) -> None:
        self.count, self.mean = 0, torch.zeros(size, dtype=torch.float64)
        self.scatter = torch.zeros(size, size, dtype=torch.float64)

    @property
    def total(self) -> float:
        return float(self.scatter.trace()) / (self.count - 1)

    def add(self, vectors: Tensor) -> None:
        centred, step = _update(self, vectors)
        self.scatter += centred.T @ centred + step[:, None] * step

    def components(self) -> tuple[Tensor, Tensor]:
        values, vectors = torch.linalg.eigh(self.scatter)
        return vectors.T.flip(0), values.flip(0).clamp_min(0) / (self.count - 1)


class Incremental:
    """Incremental PCA: each block of vectors is merged with the scaled components so far by one SVD."""

    def __init__(self, size: int, keep: int) -> None:
        self.count, self.mean, self.keep = 0, torch.zeros(size, dtype=torch.float64), keep
        self.rows = torch.zeros(0, size, dtype=torch.float64)  # singular value times direction
        self.squares = 0.0
        self.waiting: list[Tensor] = []

    @property
    def total(self) -> float:
        return self.squares / (self.count - 1)

    def add(self, vectors: Tensor) -> None:
        centred, step = _update(self, vectors)
        self.waiting += [centred, step[None]]
        self.squares += float(centred.square().sum() + step.square().sum())
        if sum(map(len, self.waiting)) >= self.keep:  # large blocks need fewer SVDs and truncate less
            self._merge()

    def components(self) -> tuple[Tensor, Tensor]:
        self._merge()
        values = self.rows.norm(dim=1)
        return self.rows / values.clamp_min(1e-30)[:, None], values.square() / (self.count - 1)

    def _merge(self) -> None:
        _, values, directions = torch.linalg.svd(torch.cat([self.rows, *self.waiting]), full_matrices=False)
        self.rows = values[: self.keep, None] * directions[: self.keep]
        self.waiting = []


def _update(running: Exact | Incremental, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Update count and mean. The scatter grows by the centred vectors and by the shift of the mean, scaled."""
    own = vectors.mean(0)
    shift, count = own - running.mean, running.count + len(vectors)
    step = shift * math.sqrt(running.count * len(vectors) / count)
    running.mean = running.mean + shift * len(vectors) / count
    running.count = count
    return vectors - own, step


def identity(model: Autoencoder) -> str:
    """Digest of a model's weights, or `start` for an untrained wave initialisation.

    A wave initialisation is computed on loading, and its last bits depend on the machine; its name identifies it.
    """
    from finola.autoencoder import Autoencoder

    config = model.config
    if config.encoder == "waves":
        with torch.random.fork_rng(devices=[]):  # leave the global random state unchanged
            start = Autoencoder(str(config)).state_dict()
        own = model.state_dict()
        same_shapes = all(name in own and own[name].shape == tensor.shape for name, tensor in start.items())
        if same_shapes and all(torch.allclose(own[n].cpu(), t, rtol=1e-3, atol=1e-5) for n, t in start.items()):
            return "start"
    return digest_of_weights(model)
