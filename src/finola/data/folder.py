"""Photos as files in a folder, in nested folders, or in one folder per class."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from finola.data.sources import Source, choose_parts, part_of, split_by_name, stamps
from finola.errors import InputError, MissingFileError
from finola.image_io import open_photo
from finola.locations import is_photo, photos_below, subfolders


class FolderSource(Source):
    """Photos given by their paths relative to a folder, with labels."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int], classes: dict[int, str]) -> None:
        if not names:
            raise MissingFileError(f"{root} contains no photos; give a folder with JPEG, PNG or WebP files.")
        self.where, self.classes = str(root), classes
        self._root = root
        # Arrays instead of lists of objects: reference counts would copy the memory shared with forked workers.
        self._names = np.array([os.fsencode(name) for name in names])
        self._labels = np.array(labels)

    def __len__(self) -> int:
        return len(self._names)

    def name(self, index: int) -> str:
        return os.fsdecode(bytes(self._names[index]))

    def open(self, index: int) -> Image.Image:
        return open_photo(self._root / self.name(index))

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def extent(self) -> bytes:
        root = os.fsencode(self._root)
        return stamps(os.path.join(root, bytes(name)) for name in self._names)


def open_files(paths: Sequence[Path], split: str) -> Source:
    """Open photos given as files, such as those that match a pattern, without labels."""
    root = Path(os.path.commonpath([path.absolute().parent for path in paths]))
    names = [path.absolute().relative_to(root).as_posix() for path in paths]
    return split_by_name(FolderSource(root, names, [-1] * len(names), {}), split)


def open_folder(root: Path, split: str) -> Source:
    """Open a folder of photos. Subfolders such as `train/` and `val/` are splits; otherwise `split_by_name` applies.

    If a split has no photos at its top level, its subfolders are classes, in alphabetical order over all splits.
    """
    parts = split_folders(root)
    chosen = choose_parts(parts, split, str(root))
    tops = list(parts.values()) or [root]
    classes = _classes(tops)
    numbers = {name: number for number, name in classes.items()}
    names: list[str] = []
    labels: list[int] = []
    for top in [parts[part] for part in chosen] or tops:
        below = photos_below(top)
        names += below if top == root else [f"{top.name}/{name}" for name in below]
        labels += [numbers.get(name.partition("/")[0], -1) for name in below]
    source = FolderSource(root, names, labels, classes)
    return source if chosen else split_by_name(source, split)


def split_folders(root: Path) -> dict[str, Path]:
    """Subfolders that are splits, by split: at least two, or all of them. A single `train/` among others is a class."""
    folders = subfolders(root)
    parts = {part: folder for folder in folders if (part := part_of(folder.name)) and folder.name.isalpha()}
    return parts if len(parts) > 1 or len(parts) == len(folders) else {}


def _classes(tops: Sequence[Path]) -> dict[int, str]:
    if any(is_photo(path.name) and path.is_file() for top in tops for path in top.iterdir()):
        return {}
    for top in tops:
        _check_links(top)
    return dict(enumerate(sorted({folder.name for top in tops for folder in subfolders(top)})))


def _check_links(top: Path) -> None:
    """Raise if two class folders link to the same folder: its photos would be in both classes, but are read once."""
    found: dict[str, str] = {os.path.realpath(top): top.name}
    for folder in subfolders(top):
        same = found.setdefault(os.path.realpath(folder), folder.name)
        if same != folder.name:
            raise InputError(f"The class folder {folder} is the same folder as {same}; remove one of the two links.")
