"""Photos as rows of parquet files: encoded bytes in one column, perhaps a label and its name in others."""

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from finola.data.sources import Source
from finola.images import open_photo

IN_MEMORY = 2**30
"""Bytes of files up to which all rows are held in memory; a larger set is read by row groups, its `blocks`."""

CACHED_GROUPS = 8
IMAGE_COLUMNS = ("image", "img", "photo", "jpg", "jpeg", "png", "bytes")
LABEL_COLUMNS = ("label", "labels", "cls")


class ParquetSource(Source):
    """The rows of parquet files: `image` is bytes or, as Hugging Face writes it, a struct with `bytes`."""

    def __init__(self, files: Sequence[Path], where: str) -> None:
        from pyarrow import ArrowInvalid, parquet

        self.where = where
        self._files = [str(file) for file in files]
        groups: list[tuple[int, int, int]] = []  # file, row group in it, rows
        labels: list[np.ndarray] = []
        size = 0
        self.classes = {}
        for number, file in enumerate(self._files):
            try:
                with parquet.ParquetFile(file) as table:
                    self._image, label = _columns(table.schema_arrow, file)
                    size += Path(file).stat().st_size
                    rows = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
                    groups += [(number, group, count) for group, count in enumerate(rows)]
                    labels.append(_labels(table, label))
                    self.classes |= _class_names(table, label, labels[-1])
            except ArrowInvalid as error:
                raise ValueError(f"{file} cannot be read as parquet: {str(error).splitlines()[0]}.") from error
        if not groups:
            raise ValueError(f"{where} has no rows in its {len(self._files)} parquet files.")
        self._groups = np.array(groups)
        self._starts = np.concatenate([[0], np.cumsum(self._groups[:, 2])])
        self._labels = np.concatenate(labels)
        self._in_memory = size <= IN_MEMORY
        self.blocks = None if self._in_memory else self._starts[:-1]
        self._cache: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, index: int) -> str:
        group, row = self._locate(index)
        file = self._groups[group, 0]
        first = self._starts[np.searchsorted(self._groups[:, 0], file)]
        return f"{Path(self._files[file]).name} row {self._starts[group] + row - first}"

    def open(self, index: int) -> Image.Image:
        group, row = self._locate(index)
        value = self._read(group)[row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not data:
            raise ValueError(f"{self.name(index)} cannot be read as a photo: it holds no bytes.")
        return open_photo(data, self.name(index))

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def _locate(self, index: int) -> tuple[int, int]:
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        return group, index - int(self._starts[group])

    def _read(self, group: int) -> Any:
        """The image column of a row group; the last few are kept, or all of them when the set is small."""
        from pyarrow import parquet

        if group not in self._cache:
            file, number, _ = self._groups[group]
            with parquet.ParquetFile(self._files[file]) as table:
                rows = table.read_row_group(int(number), columns=[self._image], use_threads=False)
            self._cache[group] = rows[self._image]
            if not self._in_memory and len(self._cache) > CACHED_GROUPS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(group)
        return self._cache[group]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": OrderedDict()}


def _columns(schema: Any, file: str) -> tuple[str, str | None]:
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    if image is None:
        raise ValueError(f"{file} has no column of image bytes among {', '.join(schema.names)}; name it 'image'.")
    return image, next((name for name in LABEL_COLUMNS if name in schema.names), None)


def _labels(table: Any, column: str | None) -> np.ndarray:
    if column is None:
        return np.full(table.metadata.num_rows, -1)
    return np.asarray(table.read(columns=[column])[column].fill_null(-1).to_numpy(), np.int64)


def _class_names(table: Any, column: str | None, labels: np.ndarray) -> dict[int, str]:
    """From Hugging Face's own metadata, else from a `name` column, else the numbers themselves."""
    known = sorted({int(label) for label in labels} - {-1})
    features = json.loads((table.schema_arrow.metadata or {}).get(b"huggingface", b"{}"))
    names = features.get("info", {}).get("features", {}).get(column, {}).get("names")
    if names:
        return dict(enumerate(names))
    if known and "name" in table.schema_arrow.names:
        by_label = dict(zip(labels.tolist(), table.read(columns=["name"])["name"].to_pylist(), strict=True))
        return {label: by_label[label] or str(label) for label in known}
    return {label: str(label) for label in known}
