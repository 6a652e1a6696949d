"""Read the embeddings that `finola embed` has written, and reconstruct photos from them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from finola.batch.run import parts_of, read_manifest
from finola.batch.shards import PARQUET
from finola.batch.table import REQUIRED
from finola.encoders.elastic import elastic_encoder
from finola.errors import CorruptFileError, InputError, MissingFileError, first_line, require
from finola.image_io import MAX_FLOAT_PIXELS
from finola.jobs.store import Store
from finola.latents import Latents
from finola.photos import decode

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


UNREADABLE = (OSError, ValueError, TypeError, AttributeError, LookupError, OverflowError, MemoryError)
"""Exceptions of damaged files, besides those of pyarrow."""


@dataclass(frozen=True)
class Embedding:
    """Embedding of one photo.

    q has shape (M, C) for one q per photo, (rows, columns, M, C) for tiles, and is a vector for elastic models: the
    latents of all tiles one after the other, with the `lengths` and `bases` of the tiles in a grid of `shape`.
    """

    index: int
    id: str
    q: np.ndarray
    shape: tuple[int, ...]
    size: tuple[int, int]  # (height, width) of the photo
    label: int
    model: str
    model_hash: str
    lengths: np.ndarray | None = None
    bases: np.ndarray | None = None
    features: np.ndarray | None = None
    is_whole: bool = True  # not a crop


def read_embeddings(out: str | Path, *, partial: bool = False) -> Iterator[Embedding]:
    """Yield the embeddings in a folder, or at a URL, in the order of the data set.

    Checksums, types and shapes are verified; raises CorruptFileError if a file is damaged. Raises InputError if files
    of the run are missing, unless `partial` is set. Photos that could not be read have no row in any case.

    >>> import tempfile
    >>> from finola.batch import embed
    >>> folder = tempfile.mkdtemp()
    >>> summary = embed("smoke", folder, "waves/64x1@8:32", split="val", limit=3)
    >>> [(one.id, one.q.shape) for one in read_embeddings(folder)][:2]
    [('smoke/val/000', (1, 64)), ('smoke/val/016', (1, 64))]
    """
    require("pyarrow")
    store = Store(out)
    names = [name for name in store.names() if name.endswith(".parquet")]
    if not names:
        raise MissingFileError(f"{store.where} contains no embeddings. Write them with finola embed.")
    expected = map(PARQUET.format, range(parts_of(read_manifest(store) or {}, PARQUET)))
    present = set(names)
    missing = next((name for name in expected if name not in present), None)
    if missing and not partial:
        raise InputError(
            f"{store.where} has not all files of its run, {missing} is missing: finish the run with the same command "
            "of finola embed, or read these files with partial=True."
        )
    for name in names:
        yield from _read(store, name)


def _read(store: Store, name: str) -> Iterator[Embedding]:
    from pyarrow import ArrowException, parquet

    where = f"{store.where}/{name}"
    try:
        size = store.size(name) or 0
        with store.open(name) as stream, parquet.ParquetFile(stream, page_checksum_verification=True) as table:
            missing = [column for column in REQUIRED if column not in table.schema_arrow.names]
            if missing:
                raise CorruptFileError(f"it has no column {missing[0]!r}")
            settings = json.loads((table.schema_arrow.metadata or {}).get(b"finola", b"{}"))
            for number in range(table.num_row_groups):
                group = table.metadata.row_group(number)
                if group.total_byte_size > 2**20 + 1000 * size:  # checked before memory is allocated
                    raise CorruptFileError(f"it declares {group.total_byte_size} bytes, too many for its {size}")
                rows = table.read_row_group(number, use_threads=False)
                rows.validate(full=True)
                for batch in rows.to_batches():
                    for row in range(batch.num_rows):
                        found = _embedding({column: batch[column][row] for column in batch.schema.names})
                        yield replace(found, is_whole=settings.get("crop") is None)
    except (ArrowException, *UNREADABLE) as error:
        raise CorruptFileError(f"{where} cannot be read as embeddings: {first_line(error)}.") from error


def _embedding(row: dict[str, Any]) -> Embedding:
    """Check one row and convert it to arrays."""
    shape = tuple(_integers(row["shape"]).tolist())
    q = _numbers(row["q"])
    lengths, bases = (_integers(row[name]) if name in row else None for name in ("lengths", "bases"))
    expected = int(lengths.sum()) if lengths is not None else math.prod(shape)
    if len(q) != expected or not shape or min(shape) < 1:
        raise CorruptFileError(f"q has {len(q)} numbers, but shape {shape} needs {expected}")
    tiled = lengths is not None and bases is not None
    if lengths is not None and bases is not None:
        fits = len(lengths) == len(bases) == math.prod(shape) and lengths.min() > 0 and bases.min() >= 0
        if not fits:
            raise CorruptFileError(f"lengths and bases do not match the grid of tiles {shape}")
    features = None
    if "features" in row:
        of_features = tuple(_integers(row["features_shape"]).tolist())
        features = _numbers(row["features"]).reshape(of_features)
    index, label, height, width = (_integer(row.get(name)) for name in ("index", "label", "height", "width"))
    id, model, digest = (str(row[name].as_py()) if name in row else "" for name in ("id", "model", "model_hash"))
    q = q if tiled else q.reshape(shape)
    return Embedding(index, id, q, shape, (height, width), label, model, digest, lengths, bases, features)


def _numbers(value: Any) -> np.ndarray:
    found = np.array(value.values.to_numpy(zero_copy_only=False))
    if found.dtype not in (np.float16, np.float32) or not np.isfinite(found).all():
        raise CorruptFileError(f"it has {found.dtype} values that are not finite numbers")
    return found


def _integers(value: Any) -> np.ndarray:
    found = np.array(value.values.to_numpy(zero_copy_only=False))
    if found.dtype.kind != "i":
        raise CorruptFileError(f"it has {found.dtype} values instead of integers")
    return found


def _integer(value: Any) -> int:
    found = None if value is None else value.as_py()
    if type(found) is not int:
        raise CorruptFileError(f"it has the value {found!r} instead of an integer")
    return found


@torch.no_grad()
def reconstruct(model: Autoencoder, embedding: Embedding) -> Tensor:
    """Reconstruct the image (3, H, W) of an embedding: the photo if it was embedded whole, otherwise its crop.

    >>> import tempfile, finola
    >>> from finola.batch import embed
    >>> folder = tempfile.mkdtemp()
    >>> summary = embed("skimage:astronaut", folder, "waves/64x1@8:32")
    >>> reconstruct(finola.load("waves/64x1@8:32"), next(read_embeddings(folder))).shape
    torch.Size([3, 32, 32])
    """
    config, values = model.config, torch.from_numpy(embedding.q.astype(np.float32))
    if embedding.lengths is None or embedding.bases is None:
        if config.elastic or embedding.shape[-2:] != (config.paths, config.channels):
            raise InputError(
                f"The embedding of {embedding.id} has shape {embedding.shape}, which does not fit {model.label}."
            )
        grid = (1, 1) if len(embedding.shape) == 2 else (embedding.shape[0], embedding.shape[1])
        values = values.reshape(-1, config.paths * config.channels)
        length, basis = torch.full((len(values),), values.shape[1]), torch.zeros(len(values), dtype=torch.int64)
    else:
        codebook, (rows, columns) = elastic_encoder(model).codebook, embedding.shape
        grid = rows, columns
        length, basis = torch.from_numpy(embedding.lengths).long(), torch.from_numpy(embedding.bases).long()
        if int(length.max()) > codebook.bases.shape[1] or int(basis.max()) >= len(codebook.bases):
            raise InputError(f"The embedding of {embedding.id} does not fit {model.label}.")
        packed, values = values, torch.zeros(len(length), codebook.bases.shape[1])
        values[torch.arange(values.shape[1]) < length[:, None]] = packed
    latents = Latents(values, length, basis, _size(embedding, grid, config.image_size))
    return decode(model, latents.to(model.device)).cpu()


def _size(embedding: Embedding, grid: tuple[int, int], tile: tuple[int, int]) -> tuple[int, int]:
    """Size of the image: that of a whole photo if the grid of tiles fits it, otherwise that of all tiles."""
    full = grid[0] * tile[0], grid[1] * tile[1]
    if full[0] * full[1] > MAX_FLOAT_PIXELS:
        raise InputError(f"The embedding of {embedding.id} has {full[0] * full[1]} pixels, too many to reconstruct.")
    fits = all(0 <= whole - own < side for whole, own, side in zip(full, embedding.size, tile, strict=True))
    return embedding.size if embedding.is_whole and fits else full
