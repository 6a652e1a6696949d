"""Calibration of a model as a codec: a transform of its latents to decorrelated coefficients, and integer tables.

The transform is scaled such that a unit step in any coefficient causes the same squared error in the pixels.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.elastic_coder import ElasticCoder
from finola.codec.entropy_model import CLASSES, CONTEXTS, TABLES, Coder, band_ranges, laplace
from finola.codec.rans import Table, frequencies
from finola.config import ModelConfig
from finola.errors import CorruptFileError, InputError, MissingFileError, first_line
from finola.files import write_tensors
from finola.hub import UNTRAINED, WEIGHTS, bundled_models, local_folder, read_config, resolve
from finola.latents import Space
from finola.model_zoo import load
from finola.wave.basis import WaveBasis
from finola.wave.initialisation import wave_basis

FILE = "codec.safetensors"
SAMPLES = 6  # tiles at which the Jacobian of the decoder is measured
STEPS = (64, 88, 112, 136, 160)  # quantiser steps at which symbols are counted
MAX_SCALE = 2**12  # of 16·log₂ of a standard deviation: 2**256 is beyond float32
PLAIN_BITS = 4  # per latent in the fixed-length mode
LAST_LEVEL = (1 << PLAIN_BITS) - 1


@dataclass(frozen=True)
class Calibration:
    """Linear transform latents = mean + synthesis · b, and the entropy coder of b.

    The coefficients b are uncorrelated, and a step in any of them causes the same squared error in the pixels. A plain
    calibration has no coefficients (K = 0), only the ranges of the fixed-length mode.
    """

    mean: Tensor  # (D,)
    synthesis: Tensor  # (D, K)
    low: Tensor  # (D,), range of every rotated latent in the fixed-length mode
    high: Tensor  # (D,)
    coder: Coder

    def analyse(self, latents: Tensor) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Latents (T, D) → b (T, K)."""
        if not self.synthesis.numel():
            raise InputError(
                "This codec was calibrated with --plain and supports mode paper without effort only. "
                "Calibrate it without --plain for others."
            )
        inverse = _inverse(self.synthesis)
        return ((latents.cpu().double() - self.mean) @ inverse.T).float().numpy()

    def synthesise(self, b: Tensor) -> Tensor:
        """b (T, K) → latents (T, D)."""
        return (self.mean + b.double() @ self.synthesis.double().T).float()

    def levels(self, latents: Tensor) -> Tensor:
        """Latents (T, D) → nearest levels of the fixed-length mode, 0 … LAST_LEVEL, of the rotated latents."""
        return quantise_levels(rotate(latents), self.low, self.high)

    def from_levels(self, levels: Tensor) -> Tensor:
        """Levels (T, D) → latents (T, D)."""
        return rotate(self.low + levels / LAST_LEVEL * (self.high - self.low))

    def save(self, path: Path) -> None:
        coder = self.coder
        longest = max(len(table.frequencies) for table in coder.values)
        values = torch.zeros(TABLES, longest, dtype=torch.int32)
        for row, table in zip(values, coder.values, strict=True):
            row[: len(table.frequencies)] = torch.tensor(table.frequencies)
        classes = torch.tensor([[table.frequencies for table in tables] for tables in coder.classes], dtype=torch.int32)
        classes = classes.reshape(len(coder.classes), CONTEXTS, CLASSES + 1)
        tensors = {"mean": self.mean.float(), "synthesis": self.synthesis.half(), "low": self.low, "high": self.high}
        tensors |= {"scales": torch.tensor(coder.scales, dtype=torch.int16), "values": values, "classes": classes}
        write_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path) -> Calibration:
        """Load and validate the tables of a codec; raises `CorruptFileError` if they are invalid."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return cls._checked(load_file(path))
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise CorruptFileError(f"Corrupt codec tables in {path}: {first_line(error)}.") from error

    @classmethod
    def _checked(cls, t: dict[str, Tensor]) -> Calibration:
        names = ("mean", "synthesis", "low", "high", "scales", "values", "classes")
        if missing := [name for name in names if name not in t]:
            raise CorruptFileError(f"missing {', '.join(missing)}.")
        floats = {name: t[name] for name in ("mean", "synthesis", "low", "high")}
        integers = {name: t[name] for name in ("scales", "values", "classes")}
        for name, tensor in floats.items():
            if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
                raise CorruptFileError(f"{name} must hold finite floating-point numbers.")
        for name, tensor in integers.items():
            if tensor.dtype not in (torch.int16, torch.int32, torch.int64):
                raise CorruptFileError(f"{name} must hold integers, not {tensor.dtype}.")
        if t["synthesis"].ndim != 2 or len(t["synthesis"]) == 0:
            raise CorruptFileError(f"synthesis has shape {tuple(t['synthesis'].shape)}; expected (D, K).")
        size, count = t["synthesis"].shape
        bands = len(band_ranges(count))
        expected: dict[str, tuple[int, ...]] = {"mean": (size,), "low": (size,), "high": (size,), "scales": (count,)}
        expected |= {"values": (TABLES, t["values"].shape[-1]), "classes": (bands, CONTEXTS, CLASSES + 1)}
        for name, shape in expected.items():
            if tuple(t[name].shape) != shape:
                raise CorruptFileError(f"{name} has shape {tuple(t[name].shape)}; expected {shape}.")
        if count and int(t["scales"].abs().max()) > MAX_SCALE:
            raise CorruptFileError(f"scales reach {int(t['scales'].abs().max())}; at most {MAX_SCALE} is possible.")
        values = tuple(Table([f for f in row if f]) for row in t["values"].tolist())
        classes = tuple(tuple(Table(row) for row in rows) for rows in t["classes"].tolist())
        coder = Coder(tuple(t["scales"].tolist()), values, classes)
        return cls(t["mean"].float(), t["synthesis"].float(), t["low"].float(), t["high"].float(), coder)


def rotate(latents: Tensor) -> Tensor:
    """Rotate latents (T, D) for the fixed-length mode: a DCT, fixed random signs, the inverse DCT.

    Channels of exact waves have very different variances, for which equal numbers of bits are wasteful; rotated ones
    have nearly equal variances. The rotation is its own inverse. As the coordinates of a wave model are orthogonal to
    the all-ones vector, it maps A to O A Oᵀ and leaves the recurrence unchanged.

    >>> x = torch.randn(2, 64)
    >>> torch.allclose(rotate(rotate(x)), x, atol=1e-5)
    True
    """
    from scipy.fft import dct, idct

    signs = np.random.RandomState(0).choice([-1.0, 1.0], latents.shape[1])  # a stream that NumPy guarantees
    rotated = idct(signs * dct(latents.double().numpy(), norm="ortho"), norm="ortho")
    return torch.from_numpy(rotated).float()


def quantise_levels(rotated: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """Nearest of the levels 0 … LAST_LEVEL of rotated latents (T, D) between their limits (D,)."""
    return ((rotated - low) / (high - low).clamp_min(1e-12) * LAST_LEVEL).round().clamp(0, LAST_LEVEL)


def plain_ranges(rotated: Tensor) -> tuple[Tensor, Tensor]:
    """Limits (D,) around the means of rotated latents (T, D), as wide as gives the levels the least squared error."""
    deviation, mean = torch.std_mean(rotated, dim=0, correction=0)
    errors = {}
    for width in np.arange(1.5, 4.5, 0.1):
        low, high = mean - width * deviation, mean + width * deviation
        restored = low + quantise_levels(rotated, low, high) / LAST_LEVEL * (high - low)
        errors[width] = float((restored - rotated).square().mean())
    best = min(errors, key=errors.__getitem__)
    return mean - best * deviation, mean + best * deviation


@lru_cache(maxsize=4)
def _inverse(synthesis: Tensor) -> Tensor:
    inverse: Tensor = torch.linalg.pinv(synthesis.double())
    return inverse


@dataclass(frozen=True)
class CodecModel:
    """A model with its calibration, and the name and hash that identify it in a file.

    Latents and coefficients are on the CPU; the model may be on any device.
    """

    id: str
    hash: bytes
    model: Autoencoder
    calibration: Calibration

    @property
    def space(self) -> CodecSpace:
        return CodecSpace(self.model)


class CodecSpace(Space):
    """Latents that the codec stores: q, or for a wave model only the coordinates of q in its basis."""

    def __init__(self, model: Autoencoder) -> None:
        super().__init__(model)
        self.margin = self.cells[0] // 2, self.cells[1] // 2  # exceeds the receptive field of the wave decoders

    def to_latents(self, q: Tensor) -> Tensor:
        return to_latents(self.model, q).cpu()

    def to_q(self, p: Tensor) -> Tensor:
        return to_q(self.model, p.to(self.device))


def to_latents(model: Autoencoder, q: Tensor) -> Tensor:
    basis = wave_basis(model) if model.config.is_waves else None
    return (q if basis is None else basis.coordinates(q)).flatten(1)


def to_q(model: Autoencoder, latents: Tensor) -> Tensor:
    by_path = latents.unflatten(1, (model.config.paths, -1))
    basis = wave_basis(model) if model.config.is_waves else None
    return by_path if basis is None else basis.complete(by_path)


def bundled_codecs() -> dict[str, Path]:
    """Files with the tables of the bundled codecs, by the name that `.finola` files store."""
    tables = Path(str(files("finola.codec") / "tables"))
    found = {name: folder / FILE for name in bundled_models() if (folder := local_folder(name)) is not None}
    found |= {name: tables / f"{name}.safetensors" for name in UNTRAINED}
    return {name: path for name, path in found.items() if path.is_file()}


def coded_codecs() -> list[str]:
    """Names of the bundled codecs with an entropy model; the others have the fixed-length mode only."""
    return [name for name, path in bundled_codecs().items() if _has_coder(path)]


@lru_cache
def _has_coder(path: Path) -> bool:
    """Whether the tables of a codec have an entropy model. Loading the codec reports a corrupt file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, "pt") as file:
            return "synthesis" not in file.keys() or file.get_slice("synthesis").get_shape()[1] > 0  # noqa: SIM118
    except SafetensorError:
        return True


@dataclass(frozen=True)
class ElasticCodec:
    """An elastic model with its coder, and the name and hash that identify it in a file."""

    id: str
    hash: bytes
    model: Autoencoder
    coder: ElasticCoder


def codec_on(word: str, device: str | torch.device) -> CodecModel | ElasticCodec:
    """`load_codec` with the model on a device."""
    device = torch.device(device)
    return load_codec(word) if device.type == "cpu" else _moved(word, device)


@lru_cache(maxsize=2)
def _moved(word: str, device: torch.device) -> CodecModel | ElasticCodec:
    codec = load_codec(word)
    model = deepcopy(codec.model).to(device)
    if isinstance(codec, ElasticCodec):
        return replace(codec, model=model, coder=replace(codec.coder, model=model))
    return replace(codec, model=model)


@lru_cache(maxsize=4)
def load_codec(word: str) -> CodecModel | ElasticCodec:
    """Load a codec, a model with its tables: a bundled one by name, or a folder. `finola.hub` resolves the name."""
    folder, tables = _find(word)
    model = load(word)
    if model.config.elastic:
        assert folder is not None
        model = model.for_inference()
        return ElasticCodec(*_identity(folder, tables), model, ElasticCoder.load(tables, model))
    calibration = Calibration.load(tables)
    basis = wave_basis(model) if model.config.is_waves else None
    expected = model.config.paths * (model.config.channels if basis is None else basis.size)
    if len(calibration.mean) != expected:
        raise CorruptFileError(
            f"Corrupt codec tables in {tables}: they have {len(calibration.mean)} latents, the model has {expected}."
        )
    if folder is not None:
        name, digest = _identity(folder, tables)
    else:
        assert basis is not None
        name, digest = word, _hash(tables.read_bytes(), _spectrum_bytes(model, basis))
    return CodecModel(name, digest, model.for_inference(), calibration)


@lru_cache(maxsize=4)
def codec_hash(word: str) -> bytes:
    """Hash of a codec in its files. The model of a folder is not loaded."""
    folder, tables = _find(word)
    return load_codec(word).hash if folder is None else _identity(folder, tables)[1]


def _find(word: str) -> tuple[Path | None, Path]:
    """Folder of a codec, None for an untrained model, and the file with its tables."""
    folder, bundled = resolve(word), bundled_codecs()
    tables = bundled.get(word) if folder is None else folder / FILE
    if tables is None or not tables.is_file():
        raise MissingFileError(
            f"No codec named {word!r}. Bundled codecs: {', '.join(bundled)}. "
            "Create a codec from a model folder with finola calibrate."
        )
    return folder, tables


def _identity(folder: Path, tables: Path) -> tuple[str, bytes]:
    """Name of the codec in a folder, and the hash of its tables and weights, and of the name of an elastic model."""
    name = re.sub(r"[^a-z0-9._-]", "", folder.resolve().name.lower())[:32] or "model"
    config = ModelConfig.parse(read_config(folder).get("name", ""))
    more = [str(config).encode()] if config.elastic else []
    return name, _hash(tables.read_bytes(), (folder / WEIGHTS).read_bytes(), *more)


def _spectrum_bytes(model: Autoencoder, basis: WaveBasis) -> bytes:
    """Name and plane waves of a model that is created instead of loaded, the same on every machine."""
    tensors = [getattr(basis, key).numpy() for key in ("waves", "means", "period", "gain")]
    return b"".join([str(model.config).encode(), *(t.astype(t.dtype.newbyteorder("<")).tobytes() for t in tensors)])


def _hash(*contents: bytes) -> bytes:
    """First four bytes of the SHA-256 of tables and weights."""
    return hashlib.sha256(b"".join(contents)).digest()[:4]


@torch.no_grad()
def calibrate(model: Autoencoder, batches: Iterable[Tensor], *, plain: bool = False) -> Calibration:
    """Calibrate a codec on batches of tiles (n, 3, h, w).

    Measures the covariance of the latents, the Jacobian of the pixels and the frequencies of the quantised symbols.
    With `plain`, measures only the ranges of the fixed-length mode.
    """
    model = model.eval()
    latents, sample = [], None
    for tiles in batches:
        q = model.encode(tiles.to(model.device))
        latents.append(to_latents(model, q).cpu().double())
        sample = q[:SAMPLES] if sample is None else sample
    if sample is None or sum(map(len, latents)) < 16:
        raise InputError(f"Calibration requires at least 16 tiles, got {sum(map(len, latents))}; use more photos.")
    every = torch.cat(latents)
    mean = every.mean(0)
    low, high = plain_ranges(rotate(every[:16384]))
    if plain:
        return Calibration(mean.float(), torch.empty(len(mean), 0), low, high, laplacian_coder([]))
    metric = _pixel_metric(model, to_latents(model, sample))
    values, vectors = torch.linalg.eigh(metric)
    values = values.clamp_min(1e-4 * float(values.max()))  # directions with no effect on the pixels
    root, inverse_root = (vectors * values.pow(power) @ vectors.T for power in (0.5, -0.5))
    weighted = (every - mean) @ root
    variances, rotation = torch.linalg.eigh(weighted.T @ weighted / len(every))
    variances, rotation = variances.flip(0), rotation.flip(1)
    synthesis = (inverse_root @ rotation).half().float()
    scales = [round(16 * float(v.clamp_min(1e-8).sqrt().log2())) for v in variances]
    calibration = Calibration(mean.float(), synthesis, low, high, laplacian_coder(scales))
    b = calibration.analyse(every.float()[:8192])
    for _ in range(2):
        calibration = Calibration(mean.float(), synthesis, low, high, count_tables(calibration.coder, b))
    return calibration


def _pixel_metric(model: Autoencoder, latents: Tensor) -> Tensor:
    """E[JᵀJ] of the pixels with respect to the latents, by central differences: (D, D), float64."""
    size = latents.shape[1]
    scale = 1e-2 * float(latents.std())
    metric = torch.zeros(size, size, dtype=torch.float64)
    for one in latents:
        slopes = []
        for part in torch.eye(size, device=latents.device).split(64):
            up, down = (model.decode(model.propagate(to_q(model, one + sign * scale * part))) for sign in (1, -1))
            slopes.append(((up - down) / (2 * scale)).flatten(1))
        J = torch.cat(slopes)  # (D, pixels)
        metric += (J @ J.T).cpu().double()
    return metric / len(latents)


def laplacian_coder(scales: list[int]) -> Coder:
    """Initial coder before symbols are counted: Laplacian values and uniform classes."""
    values = tuple(Table(frequencies(laplace(number))) for number in range(TABLES))
    uniform = Table(frequencies([1 / CLASSES] * CLASSES + [0.0]))
    return Coder(tuple(scales), values, ((uniform,) * CONTEXTS,) * len(band_ranges(len(scales))))


def count_tables(coder: Coder, b: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> Coder:
    """Estimate tables from counts of integers and classes at several steps, with a Laplacian prior for rare ones."""
    priors = [laplace(number) for number in range(TABLES)]
    counts = [30 * np.array(prior) for prior in priors]
    classes = np.full((len(coder.bands), CONTEXTS, CLASSES), 0.5)
    for step in STEPS:
        found = coder.quantise(b.copy(), step)
        before = np.concatenate([[CLASSES], found.classes[:-1, 0]])
        for band, (first, last) in enumerate(coder.bands):
            kinds = found.classes[:, band]
            np.add.at(classes[band], (before, kinds), 1)
            before = kinds
            for kind in range(1, CLASSES):
                own = found.values[kinds == kind, first:last]
                for channel in range(last - first if len(own) else 0):
                    table = counts[coder.table_number(first + channel, kind, step)]
                    symbols = np.where(own[:, channel] >= 0, 2 * own[:, channel], -2 * own[:, channel] - 1)
                    table += np.bincount(np.minimum(symbols, len(table) - 1), minlength=len(table))
    values = tuple(Table(frequencies((table / table.sum()).tolist())) for table in counts)
    by_band = tuple(
        tuple(Table(frequencies([*(row / row.sum()).tolist(), 0.0])) for row in contexts) for contexts in classes
    )
    return Coder(coder.scales, values, by_band)
