"""Photos as files: one folder, folders inside it, or one folder a class."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from finola.data.sources import Source, choose_parts, part_of, split_by_name
from finola.errors import InputError, MissingFileError
from finola.image_io import is_photo, open_photo, photos_below


class FolderSource(Source):
    """Photos by their paths inside a folder, with their labels."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int], classes: dict[int, str]) -> None:
        if not names:
            raise MissingFileError(f"{root} holds no photos; give a folder with JPEG, PNG or WebP files.")
        self.where, self.classes = str(root), classes
        self._root = root
        # Arrays instead of lists of objects: forked workers then share their memory for good.
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


def open_folder(root: Path, split: str) -> Source:
    """A folder of photos, `train/` and `val/` inside it honoured; without them `split_by_name` decides.

    When no photo lies at the top, its subfolders are the classes, numbered in alphabetical order over all splits.
    """
    if root.is_file():
        return FolderSource(root.parent, [root.name], [-1], {})
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
    """Subfolders that are splits: several of them, or nothing else; `train/` among classes is a class of trains."""
    folders = subfolders(root)
    parts = {part: folder for folder in folders if (part := part_of(folder.name)) and folder.name.isalpha()}
    return parts if len(parts) > 1 or len(parts) == len(folders) else {}


def subfolders(root: Path) -> list[Path]:
    """The folders directly inside a folder, hidden ones left out."""
    with os.scandir(root) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _classes(tops: Sequence[Path]) -> dict[int, str]:
    if any(is_photo(path.name) and path.is_file() for top in tops for path in top.iterdir()):
        return {}
    for top in tops:
        _check_links(top)
    return dict(enumerate(sorted({folder.name for top in tops for folder in subfolders(top)})))


def _check_links(top: Path) -> None:
    """Refuse class folders that are links to one folder: its photos would belong to both classes, and be read once."""
    found: dict[str, str] = {os.path.realpath(top): top.name}
    for folder in subfolders(top):
        same = found.setdefault(os.path.realpath(folder), folder.name)
        if same != folder.name:
            raise InputError(f"The class folder {folder} is a link to the folder of {same}; remove one of the two.")
