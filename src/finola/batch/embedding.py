"""`finola embed`: q of every photo of a data set, and features of the encoder if asked, as Parquet files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import IO, TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from finola.batch.shards import PARQUET, Made, PhotoError, Shard, attempt_photo, photo_error
from finola.batch.table import Layout, Row, check_table, write_table
from finola.data.sources import Source
from finola.data.transforms import centre_crop
from finola.errors import InputError, valid_unicode
from finola.files import digest_of_weights
from finola.hub import resolve
from finola.image_io import read_photo, shown_size
from finola.jobs.memory import Halving, is_out_of_memory
from finola.latents import Latents
from finola.model_zoo import choose_device, load
from finola.photos import encode
from finola.tiling import Size, grid_of

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder


@dataclass(frozen=True)
class EmbedTask:
    """Settings of `embed` that decide a shard; `hash` is the digest of the weights, checked by every worker."""

    model: str
    config: str
    hash: str
    crop: Size | None  # None: whole photos
    budget: int | None = None
    per_tile: int | None = None
    features: str | None = None
    dtype: str = "float32"
    batch: int = 32
    device: str = "auto"

    template: ClassVar[str] = PARQUET

    def settings(self) -> dict[str, Any]:
        """The batch size and the device are left out: they change q by rounding errors only."""
        crop = None if self.crop is None else list(self.crop)
        names = ("model", "config", "hash", "budget", "per_tile", "features", "dtype")
        return {name: getattr(self, name) for name in names} | {"crop": crop}

    def smaller(self) -> EmbedTask | None:
        return replace(self, batch=self.batch // 2) if self.batch > 1 else None

    def check(self, stream: IO[bytes], rows: int) -> None:
        check_table(stream, rows)

    def make(self, source: Source, shard: Shard) -> Made:
        """Embed the photos of a shard."""
        model = _model_of(self)
        halving, errors = Halving(self.batch), list[PhotoError]()
        embed_photos = _whole if self.crop is None else _cropped
        with torch.inference_mode():
            rows = list(embed_photos(self, model, source, shard, halving, errors))
        data = write_table(rows, self.settings(), self._layout(model))
        return Made(data, len(rows), sorted(errors, key=lambda error: error.index), halving.notes)

    def _layout(self, model: Autoencoder) -> Layout:
        """Columns of the table, which are the same in all shards, also in one without rows."""
        config, width, features = model.config, None, None
        if self.crop is not None and not config.elastic:
            rows, columns = grid_of(self.crop, config.image_size)
            width = rows * columns * config.paths * config.channels
        if self.features is not None:
            height, across = config.image_size
            encoder: Any = model.encoder
            positions = (height // encoder.reduction) * (across // encoder.reduction)
            features = encoder.channels * (1 if self.features == "pooled" else positions)
        return Layout(self.dtype, width, features, bool(config.elastic))


_latest: dict[tuple[str, str], Autoencoder] = {}
"""The model of this process, by its name and hash: all shards of a run use it."""


def _load(name: str) -> tuple[Autoencoder, str]:
    """Load and hash a model, which stays in memory for the shards of this process."""
    model = load(name)
    digest = model_hash(model, name)
    _latest.clear()
    _latest[name, digest] = model
    return model, digest


def _model_of(task: EmbedTask) -> Autoencoder:
    key = task.model, task.hash
    if key not in _latest:
        _, found = _load(task.model)
        if found != task.hash:
            raise InputError(
                f"The weights of {task.model} have hash {found} on this machine, but {task.hash} where the run "
                "started: use the same model folder on all machines."
            )
    return _latest[key].to(choose_device(task.device))


def model_hash(model: Autoencoder, name: str) -> str:
    """Twelve hexadecimal digits that identify a model: of its weights or, if it has none that are stored, of its name.

    The matrices of an untrained wave model follow from its name up to rounding errors, which depend on the machine.
    """
    if resolve(name) is None:
        return hashlib.sha256(str(model.config).encode()).hexdigest()[:12]
    return digest_of_weights(model)


def _cropped(
    task: EmbedTask, model: Autoencoder, source: Source, shard: Shard, halving: Halving, errors: list[PhotoError]
) -> Iterator[Row]:
    """Rows of photos that are resized and cropped to one size, in batches.

    If memory runs out, also while a photo is read, the photos beyond the reduced batch are dropped and read again.
    """
    assert task.crop is not None
    size = task.crop
    device = next(model.parameters()).device

    def read(index: int) -> tuple[int, Size, Tensor]:
        name = source.name(index)
        photo = source.open(index)
        return index, shown_size(photo, name), centre_crop(photo, size, name)

    def encode_photos(photos: Sequence[tuple[int, Size, Tensor]]) -> list[dict[str, Any]]:
        images = torch.stack([image for _, _, image in photos]).to(device).float() / 255
        return _encode_batch(task, model, images)

    pending: list[tuple[int, Size, Tensor]] = []
    index = shard.start
    while index < shard.stop or pending:
        if index < shard.stop and len(pending) < halving.size:
            is_short = False
            try:
                pending.append(read(index))
            except Exception as error:  # any class, because memory may run out in any library
                is_short = bool(pending) and is_out_of_memory(error)
                if not is_short:
                    errors.append(photo_error(source, index, error))
            if is_short:
                halving.halve(len(pending) + 1)
            else:
                index += 1
        elif (found := halving.attempt(encode_photos, pending)) is not None:
            facts = [(number, shown) for number, shown, _ in pending]
            pending.clear()
            for (number, shown), values in zip(facts, found, strict=True):
                yield from _row(task, source, number, shown, values, errors)
        if len(pending) > halving.size:
            index = pending[halving.size][0]
            del pending[halving.size :]
            errors[:] = [error for error in errors if error.index < index]  # of photos that are read again


def _encode_batch(task: EmbedTask, model: Autoencoder, images: Tensor) -> list[dict[str, Any]]:
    if task.features is None:
        latents = encode(model, images, budget=task.budget, per_tile=task.per_tile).to("cpu")
        return [_columns(model, latents[number], whole=False) for number in range(len(images))]
    maps: Tensor = model.encoder(images)
    chosen = maps.mean((2, 3)) if task.features == "pooled" else maps
    pairs = zip(model.pool(maps).cpu(), chosen.cpu(), strict=True)
    return [{"q": q.flatten(), "shape": q.shape, "features": features} for q, features in pairs]


def _columns(model: Autoencoder, latents: Latents, whole: bool) -> dict[str, Any]:
    """Latents of a photo as columns of the table. A crop of one tile has no grid."""
    grid = grid_of(latents.size, model.config.image_size)
    if model.config.elastic:
        values = latents.values[latents.used]
        return {"q": values, "shape": grid, "lengths": latents.length, "bases": latents.basis}
    shape = (*(grid if whole or grid != (1, 1) else ()), model.config.paths, model.config.channels)
    return {"q": latents.values.flatten(), "shape": shape}


def _whole(
    task: EmbedTask, model: Autoencoder, source: Source, shard: Shard, halving: Halving, errors: list[PhotoError]
) -> Iterator[Row]:
    """Rows of whole photos, each cut into tiles. A photo for which memory is insufficient is listed in `errors`."""
    device = next(model.parameters()).device

    def work(index: int) -> tuple[Size, dict[str, Any]]:
        image = read_photo(source.open(index), source.name(index)).to(device)
        found = partial(encode, model, image, budget=task.budget, per_tile=task.per_tile)
        latents = found() if model.config.elastic else halving.fit(lambda most: found(most=most))
        return latents.size, _columns(model, latents.to("cpu"), whole=True)

    for index in range(shard.start, shard.stop):
        found = attempt_photo(work, source, index, errors)
        if found is not None:
            size, values = found
            yield from _row(task, source, index, size, values, errors)


def _row(
    task: EmbedTask, source: Source, index: int, size: Size, values: dict[str, Any], errors: list[PhotoError]
) -> Iterator[Row]:
    name = valid_unicode(source.name(index))
    row = Row(index=index, id=name, size=size, label=source.label(index), **values)
    if row.is_finite(task.dtype):
        yield row
    else:
        errors.append(PhotoError(index, name, f"{task.model} gives values that {task.dtype} cannot represent."))


def make_task(
    model: str,
    *,
    crop: int | None,
    whole: bool,
    budget: int | None,
    per_tile: int | None,
    check_device: bool,
    **settings: Any,
) -> EmbedTask:
    """Load a model, and check the settings of `embed` with it."""
    if check_device:
        choose_device(settings["device"])  # raises if there is no such device
    loaded, digest = _load(model)
    loaded.space.check(budget, per_tile)
    size = _crop_of(loaded, crop, whole)
    _check_features(loaded, settings["features"], size)
    return EmbedTask(model, str(loaded.config), digest, size, budget, per_tile, **settings)


def _crop_of(model: Autoencoder, crop: int | None, whole: bool) -> Size | None:
    own = model.config.image_size
    if whole or (crop is None and model.config.elastic):
        return None
    if crop is None:
        return own
    if any(crop % side for side in own):
        raise InputError(f"crop {crop} is not a multiple of the tiles of {model.label}, {own[1]}×{own[0]} pixels.")
    return crop, crop


def _check_features(model: Autoencoder, features: str | None, size: Size | None) -> None:
    if features is None:
        return
    if getattr(model.encoder, "returns_q", False):
        raise InputError(
            f"The encoder of {model.label} gives q without a feature map; use one with pooling, such as mf-w720."
        )
    if size != model.config.image_size:
        raise InputError("Features need one tile per photo; remove crop and whole.")
