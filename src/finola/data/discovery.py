"""Opening of a data set given as a folder, file, pattern, name in FINOLA_DATA or nothing."""

import os
from collections.abc import Sequence
from pathlib import Path

from finola.data.coco import annotation_files, open_coco
from finola.data.dataset import PhotoDataset
from finola.data.folder import open_files, open_folder, split_folders
from finola.data.parquet import ParquetSource
from finola.data.remote import File, find_remote, open_photos_at
from finola.data.shards import ShardSource
from finola.data.smoke import SmokeSource
from finola.data.sources import Source, check_split, choose_parts, part_of, split_by_name
from finola.data.transforms import Transform
from finola.errors import InputError, MissingFileError
from finola.locations import check_regular, is_photo, is_special, locate, subfolders
from finola.urls import is_url, without_credentials

MAX_DEPTH = 32
"""Maximum depth of nested folders that are searched for data."""
_TABLES = {".parquet": ParquetSource, ".tar": ShardSource}


def open_data(
    source: str | Path | None = None,
    split: str = "train",
    *,
    transform: Transform | None = None,
    seed: int = 0,
    crops_per_image: int = 1,
    augment: str | None = None,
) -> PhotoDataset:
    """Open a data set of photos.

    `source` is a folder of photos (class subfolders become labels), Parquet files, WebDataset tar shards, a COCO
    folder, or a pattern of such files (`shards/{000..127}.tar`, `packs/train-*.parquet`); `smoke`, which consists of
    crops of the photos installed with scikit-image; `skimage:NAME`, one of those photos; or a name inside the folder
    FINOLA_DATA. If `source` is None, FINOLA_DATA itself is opened. Existing paths take precedence over names inside
    FINOLA_DATA.

    `split` is `train`, `val`, `test` (the test part, otherwise the val part, otherwise everything) or `all`. Subfolders
    and files named after splits are used as such. Data without splits is split by name: one photo in twenty belongs to
    val (`finola.data.sources.split_by_name`).

    >>> len(open_data("smoke")), len(open_data("smoke", "val"))
    (512, 32)
    """
    check_split(split)
    opened = SmokeSource(split) if source == "smoke" else open_source(locate(source), split)
    return PhotoDataset(opened, transform, seed=seed, crops_per_image=crops_per_image, augment=augment)


def find_source(source: str | Path | None, split: str = "all") -> Source:
    """Source of photos for `open_data`, or at a URL that fsspec can open.

    At a URL there may be a photo, a folder of photos (without labels), Parquet files or tar shards, or a pattern of
    such files. Recipes cannot name a URL: `open_data` opens files on this machine only.

    >>> len(find_source("smoke", "val"))
    32
    """
    check_split(split)
    if source == "smoke":
        return SmokeSource(split)
    if isinstance(source, str) and is_url(source):
        return _open_url(source, split)
    return open_source(locate(source), split)


def _open_url(url: str, split: str) -> Source:
    files, root = find_remote(url)
    for suffix in _TABLES:
        inner = {file.path.removeprefix(root).lstrip("/"): file for file in files if file.name.endswith(suffix)}
        tables = {path: file for path, file in inner.items() if "/" not in path} or inner
        if tables:
            named = [(file, part_of(path)) for path, file in tables.items()]
            return _open_tables(named, suffix, split, without_credentials(url))
    return open_photos_at(files, root, url, split)


def open_source(paths: list[Path], split: str) -> Source:
    """Open a folder, or files of one kind, as a source."""
    root = paths[0]
    for path in paths:
        check_regular(path)
    if len(paths) > 1 and any(path.is_dir() for path in paths):
        raise InputError(
            f"A pattern must match files only, but {paths[0]} or {paths[1]} is a folder; give a single folder."
        )
    if root.is_file():
        suffixes = {path.suffix for path in paths}
        if len(suffixes) == 1 and root.suffix in _TABLES:
            return _open_local_tables(root.parent, paths, split)
        if all(is_photo(path.name) for path in paths):
            return open_files(paths, split)
        raise InputError(f"Cannot open {root} as data; give Parquet files, tar shards, a photo, or a folder of them.")
    found = _kind(root)
    if found == "coco":
        return open_coco(root, split)
    if found in _TABLES:
        return _open_local_tables(root, _tables(root, found), split)
    if found == "packs":
        raise InputError(f"{root} contains several data sets; choose one of {', '.join(_packs(root))}.")
    if found == "photos":
        return open_folder(root, split)
    raise MissingFileError(f"{root} contains no photos, Parquet files, tar shards or COCO annotations.")


def _open_local_tables(root: Path, files: list[Path], split: str) -> Source:
    return _open_tables([(file, _part_of(file, root)) for file in files], files[0].suffix, split, str(root))


def _open_tables(files: Sequence[tuple[File, str | None]], suffix: str, split: str, where: str) -> Source:
    """Open the files of a split; each is given with the split that its name contains."""
    chosen = choose_parts({part for _, part in files if part}, split, where)
    picked = [file for file, part in files if not chosen or part in chosen]
    source = _TABLES[suffix](picked, str(picked[0]) if len(picked) == 1 else where)
    return source if chosen else split_by_name(source, split)


def _kind(root: Path, known: dict[str, str | None] | None = None, level: int = 0) -> str | None:
    """Kind of data in a folder: `coco`, a suffix of `_TABLES`, `photos`, `packs` for several data sets, or None.

    `known` caches results by real path, because symbolic links may lead to a folder repeatedly or form a cycle.
    """
    known = {} if known is None else known
    real = os.path.realpath(root)
    if real not in known:
        known[real] = None
        known[real] = _detect_kind(root, known, level)
    return known[real]


def _detect_kind(root: Path, known: dict[str, str | None], level: int) -> str | None:
    if level == MAX_DEPTH:
        return None
    if annotation_files(root):
        return "coco"
    for suffix in _TABLES:
        if _tables(root, suffix):
            return suffix
    with os.scandir(root) as entries:
        if any(is_photo(entry.name) and entry.is_file() for entry in entries):
            return "photos"
    folders = subfolders(root)
    kinds = {_kind(folder, known, level + 1) for folder in folders}
    # Subfolders that contain only photos are classes or splits; otherwise they are separate data sets.
    if kinds - {"photos", None} or any(split_folders(folder) for folder in folders):
        return "packs"
    return "photos" if "photos" in kinds else None


def _packs(root: Path) -> list[str]:
    return [folder.name for folder in subfolders(root) if _kind(folder)]


def _tables(root: Path, suffix: str) -> list[Path]:
    """Files in the folder itself, otherwise in subfolders named `data` or after splits."""
    inner = [folder for folder in subfolders(root) if folder.name == "data" or part_of(folder.name)]
    for folders in ([root], inner):
        found = [file for folder in folders for file in folder.glob(f"*{suffix}") if not is_special(file)]
        if found:
            return sorted(found)
    return []


def _part_of(file: Path, root: Path) -> str | None:
    return part_of(file.relative_to(root).as_posix()) if file.is_relative_to(root) else part_of(file.name)
