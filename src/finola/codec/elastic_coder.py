"""Quantiser and entropy coder of elastic models: rate–distortion optimised integers in the basis of each tile."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from finola.autoencoder import Autoencoder
from finola.codec.contexts import (
    EXPECTED,
    MEAN_CONTEXTS,
    REACH,
    RECENT,
    ContextModel,
    Floats,
    Integers,
    Tiles,
)
from finola.codec.entropy_model import LAMBDA, step_size
from finola.codec.rans import Table
from finola.encoders.elastic import elastic_encoder
from finola.errors import CorruptFileError, first_line
from finola.files import write_tensors
from finola.wave.codebook import LENGTHS

CANDIDATES = 3  # bases per tile that are compared with the costs of the tables
ROUNDING = 0.35  # added before truncation, as rate–distortion optimised quantisation does on average
BITS_PER_NONZERO = 5.0  # approximate cost of a non-zero value besides its magnitude
VALUE_SYMBOLS, MEAN_SYMBOLS = 2 * REACH + 2, 130  # symbols of a table, with the escape
TILES = 512  # tiles that are quantised together


def approximate_costs(rotated: Tensor, size: float | Tensor) -> Tensor:
    """Error + λ·bits (T, G), in squared steps, of components (T, G, D) quantised with step `size`.

    The bits are approximate: those of the magnitudes alone, without contexts.
    """
    magnitude = rotated.abs().div_(size)
    levels = (magnitude + ROUNDING).floor_()
    costs = LAMBDA * (BITS_PER_NONZERO * (levels > 0).sum(2) + 2 * levels.clamp(min=1).log2_().sum(2))
    costs += magnitude.sub_(levels).square_().sum(2)
    return costs


@dataclass(frozen=True)
class Candidates:
    """Tiles to be quantised: their mean colours, and their components in a few bases each."""

    means: Tensor  # (T, 3)
    index: Tensor  # (T, n): bases
    components: Tensor  # (T, n, D)


@dataclass(frozen=True)
class ElasticCoder:
    """Quantiser and entropy coder of an elastic model.

    The products with the bases of the codebook run on the device of the model, all other steps on the CPU.
    """

    model: Autoencoder
    contexts: ContextModel

    @cached_property
    def _mean_coordinates(self) -> Tensor:
        """Indices of the coordinates of p that hold the mean of each colour: (3,), on the CPU."""
        sizes = elastic_encoder(self.model).basis.sizes()
        return torch.tensor([sum(sizes[:colour]) for colour in range(3)])

    @cached_property
    def _position_costs(self) -> Floats:
        """Bits of the magnitudes 0 … REACH by expected-magnitude context, averaged over the other contexts."""
        costs = self.contexts.value_costs.reshape(EXPECTED, RECENT, -1)
        magnitudes = (costs[:, :, REACH:] + costs[:, :, REACH::-1]) / 2
        weights = np.exp2(-magnitudes[:, :, :1])  # contexts in which zero is likely are more frequent
        averaged: Floats = ((magnitudes * weights).sum(1) / weights.sum(1)).astype(np.float32)
        return averaged

    def prepare(self, p: Tensor, step: int) -> Candidates:
        """Preselect the bases of tiles p (T, D) that are cheapest at about this step, by an approximate rate."""
        device = self.model.device
        parts = [[t.cpu() for t in self._prepare(part.to(device), step_size(step))] for part in p.split(TILES)]
        return Candidates(p[:, self._mean_coordinates], *(torch.cat(part) for part in zip(*parts, strict=True)))

    def _prepare(self, p: Tensor, size: float) -> tuple[Tensor, Tensor]:
        codebook, where = elastic_encoder(self.model).codebook, self._mean_coordinates
        means = size * (p[:, where] / size).round()
        without_means = p.clone()
        without_means[:, where] -= means
        rotated = codebook.rotated(without_means)  # (T, G, D)
        costs = approximate_costs(rotated, size)
        index = costs.topk(min(CANDIDATES, costs.shape[1]), largest=False).indices
        components = rotated[torch.arange(len(p), device=p.device)[:, None], index]  # (T, n, D), without the means
        return index, components + torch.einsum("tc,tncd->tnd", means, codebook.bases[:, where][index])

    def quantise(self, tiles: Candidates, step: int, keep: int | None = None) -> Tiles:
        """Quantise tiles with the integers, lengths and bases that minimise error + λ·bits.

        `keep` is the largest number of values per tile.
        """
        size = step_size(step)
        means = (tiles.means / size).round()
        rows = elastic_encoder(self.model).codebook.bases[:, self._mean_coordinates].cpu()  # (G, 3, D)
        best: tuple[Floats, Integers, Integers, Floats] | None = None
        for index, components in zip(tiles.index.T, tiles.components.unbind(1), strict=True):
            x = components / size - torch.einsum("tc,tcd->td", means, rows[index])
            cost, lengths, values = self._lengths(x.numpy(), keep)
            if best is None:
                best = cost, lengths, index.numpy(), values
            else:
                better = cost < best[0]
                best = (
                    np.where(better, cost, best[0]),
                    np.where(better, lengths, best[1]),
                    np.where(better, index.numpy(), best[2]),
                    np.where(better[:, None], values, best[3]),
                )
        assert best is not None
        chosen = np.where(best[1] > 0, best[2], 0)
        return Tiles(best[1], means.long().numpy(), chosen, best[3].astype(np.int16))

    def _lengths(self, x: Floats, keep: int | None) -> tuple[Floats, Integers, Floats]:
        """Least cost of every row of scaled components (T, D), its length class, and the integers that reach it."""
        tail = np.square(x[:, ::-1]).cumsum(1)[:, ::-1]  # error if everything from a position on is zero
        best, lengths, values = tail[:, 0].copy(), np.zeros(len(x), np.int64), np.zeros_like(x)
        for kind, size in enumerate(self.contexts.sizes):
            if not size or (keep is not None and size > keep):
                continue
            alive = np.flatnonzero(np.abs(x[:, :size]).max(1) > 0.5)
            own = x[alive, :size]
            chosen, cost = self._choose(own, self.contexts.expected[kind, :size])
            total = cost.sum(1) + (tail[alive, size] if size < x.shape[1] else 0)
            total += LAMBDA * self._length_costs[kind]
            better = total < best[alive]
            rows = alive[better]
            best[rows], lengths[rows] = total[better], kind
            values[rows] = 0
            values[rows, :size] = chosen[better]
        return best, lengths, values

    @cached_property
    def _length_costs(self) -> Floats:
        """Bits of a length class and a basis, averaged over contexts, less those of class 0."""
        lengths = np.array([[table.costs[kind] for kind in range(len(self.contexts.sizes))]
                            for table in self.contexts.length_tables])  # fmt: skip
        indices = np.array([table.costs[: self.contexts.bases] for table in self.contexts.index_tables]).mean()
        bits: Floats = (lengths.mean(0) - lengths.mean(0)[0] + indices).astype(np.float32)
        return bits

    def _choose(self, x: Floats, expected: Integers) -> tuple[Floats, Floats]:
        """Quantise each value to the nearest integer, the next one towards zero, or zero, whichever costs least."""
        costs = self._position_costs[expected]  # (D, REACH + 1)
        magnitude, position = np.abs(x), np.arange(x.shape[1])
        nearest = np.rint(magnitude)
        chosen, best = np.zeros_like(x), np.square(x) + LAMBDA * costs[:, 0]
        for candidate in (nearest - 1, nearest):
            bits = costs[position, np.clip(candidate, 0, REACH).astype(np.int64)]
            total = np.square(magnitude - candidate) + LAMBDA * bits
            better = (total < best) & (candidate > 0)
            chosen, best = np.where(better, candidate, chosen), np.where(better, total, best)
        return chosen * np.sign(x), best

    def dequantise(self, tiles: Tiles, step: int) -> Tensor:
        """Coordinates p (T, D) of quantised tiles, on the device of the model."""
        codebook, size, device = elastic_encoder(self.model).codebook, step_size(step), self.model.device
        values = torch.from_numpy(tiles.values.astype(np.float32)).to(device)
        p = codebook.decode(values, torch.from_numpy(tiles.index).to(device))
        p[:, self._mean_coordinates] += torch.from_numpy(tiles.means.astype(np.float32)).to(device)
        return p * size

    def save(self, path: Path) -> None:
        model = self.contexts
        tensors = {"expected": torch.from_numpy(model.expected).to(torch.uint8)}
        tables = {"length": model.length_tables, "index": model.index_tables, "value": model.value_tables}
        tables["mean"] = tuple(table for colour in model.mean_tables for table in colour)
        for name, group in tables.items():
            tensors[name] = torch.tensor([table.frequencies for table in group], dtype=torch.int16)
        write_tensors(path, tensors)

    @classmethod
    def load(cls, path: Path, model: Autoencoder) -> ElasticCoder:
        """Load and validate the tables of an elastic codec; raises CorruptFileError if they are invalid."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return cls(model, _checked(load_file(path), model))
        except (SafetensorError, ValueError, RuntimeError) as error:
            raise CorruptFileError(f"Corrupt codec tables in {path}: {first_line(error)}.") from error


def length_sizes(depth: int) -> tuple[int, ...]:
    """Number of values of each length class of an elastic codec whose tiles have up to `depth` values."""
    return (0, *(length for length in LENGTHS if length < depth), depth)


def _checked(tensors: dict[str, Tensor], model: Autoencoder) -> ContextModel:
    codebook = elastic_encoder(model).codebook
    bases, depth = codebook.bases.shape[:2]
    sizes = length_sizes(depth)
    shapes = {
        "expected": (len(sizes), depth),
        "length": (len(sizes), len(sizes) + 1),
        "index": (bases + 1, bases + 1),
        "value": (EXPECTED * RECENT, VALUE_SYMBOLS),
        "mean": (3 * MEAN_CONTEXTS, MEAN_SYMBOLS),
    }
    for name, shape in shapes.items():
        if name not in tensors:
            raise CorruptFileError(f"missing {name}.")
        if tuple(tensors[name].shape) != shape or tensors[name].is_floating_point():
            raise CorruptFileError(
                f"{name} has shape {tuple(tensors[name].shape)}; expected integers of shape {shape}."
            )
    expected = tensors["expected"].long()
    if int(expected.min()) < 0 or int(expected.max()) >= EXPECTED:
        raise CorruptFileError(f"expected must hold integers from 0 to {EXPECTED - 1}.")
    tables = {name: tuple(Table(row) for row in tensors[name].tolist()) for name in shapes if name != "expected"}
    means = tuple(tables["mean"][colour * MEAN_CONTEXTS : (colour + 1) * MEAN_CONTEXTS] for colour in range(3))
    return ContextModel(sizes, expected.numpy(), tables["length"], means, tables["index"], tables["value"])
