"""`embed` and `compress_dataset`: whole data sets as Parquet files of q, or as shards of `.finola` files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from finola.batch.run import LOCAL, RAY, SHARD_SIZE, Run, Summary, do
from finola.batch.shards import PARQUET, TAR
from finola.batch.table import DTYPES
from finola.errors import InputError, require

BATCH = 32
"""Default number of photos, or tiles of a photo, that are encoded together."""
FEATURES = ("pooled", "map")


def embed(
    data: str | Path | None,
    out: str | Path,
    model: str = "photo256",
    *,
    split: str = "all",
    limit: int | None = None,
    crop: int | None = None,
    whole: bool = False,
    budget: int | None = None,
    per_tile: int | None = None,
    features: str | None = None,
    dtype: str = "float32",
    batch: int = BATCH,
    device: str = "auto",
    shard_size: int = SHARD_SIZE,
    workers: int | None = None,
    engine: str = LOCAL,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Summary:
    """Write q of every photo of a data set to Parquet files in the folder `out`, and resume a run that is there.

    `data` is a data set as `finola.data.open_data` takes it, or a URL of fsspec; `out` is a folder or a URL. Photos are
    resized to cover the image size of the model and cropped at the centre, which gives one q per photo; `crop` is
    another side, whose crop is cut into tiles. With `whole`, and by default with an elastic model, photos keep their
    size and are cut into tiles. `budget` and `per_tile` are options of `finola.encode`. `features` adds the
    feature map of the encoder (`map`) or its mean over all positions (`pooled`).

    `workers` processes work on shards of `shard_size` photos; with `engine="ray"` they run on a Ray cluster. Finished
    shards are skipped. `progress(done, total)` is called with numbers of photos, `say` with messages.

    >>> import tempfile
    >>> summary = embed("smoke", tempfile.mkdtemp(), "waves/64x1@8:32", split="val")
    >>> summary.rows, summary.errors
    (32, [])
    """
    require("pyarrow")
    if crop is not None and whole:
        raise InputError(f"crop ({crop}) and whole exclude each other; use one of them.")
    if features is not None and features not in FEATURES:
        raise InputError(f"Unknown features {features!r}; use {' or '.join(FEATURES)}.")
    if dtype not in DTYPES:
        raise InputError(f"Unknown dtype {dtype!r}; use {' or '.join(DTYPES)}.")
    for name, value in {"crop": crop, "batch": batch, "workers": workers}.items():
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, not {value}.")
    settings = {
        "model": model,
        "crop": crop,
        "whole": whole,
        "budget": budget,
        "per_tile": per_tile,
        "features": features,
    }
    settings |= {"dtype": dtype, "batch": batch, "device": device, "check_device": engine != RAY}
    run = Run(data, split, limit, str(out), shard_size, workers, engine, device, force, progress, say)
    return do(run, PARQUET, "finola.batch.embedding", settings)


def compress_dataset(
    data: str | Path | None,
    out: str | Path,
    model: str | None = None,
    *,
    split: str = "all",
    limit: int | None = None,
    quality: int | None = None,
    bpp: float | None = None,
    per_tile: int | None = None,
    mode: str = "coded",
    effort: int = 0,
    keep_exif: bool = False,
    device: str = "auto",
    shard_size: int = SHARD_SIZE,
    workers: int | None = None,
    engine: str = LOCAL,
    force: bool = False,
    progress: Callable[[int, int], None] | None = None,
    say: Callable[[str], None] | None = None,
) -> Summary:
    """Compress a data set to WebDataset shards in the folder `out`, and resume a run that is there.

    The options of the codec are those of `finola.compress`; the others those of `finola.batch.embed`.

    >>> import tempfile
    >>> summary = compress_dataset("smoke", tempfile.mkdtemp(), "waves512", split="val", limit=2)
    >>> summary.rows, summary.shards
    (2, 1)
    """
    settings = {"model": model, "quality": quality, "bpp": bpp, "per_tile": per_tile, "mode": mode, "effort": effort}
    settings |= {"keep_exif": keep_exif, "device": device, "check_device": engine != RAY}
    run = Run(data, split, limit, str(out), shard_size, workers, engine, device, force, progress, say)
    return do(run, TAR, "finola.batch.compression", settings)
