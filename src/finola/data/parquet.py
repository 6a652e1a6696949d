"""Photos in Parquet files: a column of encoded images, and optional columns of labels and class names."""

import errno
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from PIL import Image

from finola.data.checks import parse_json
from finola.data.remote import File, RemoteFile, extent_of, open_binary, size_of
from finola.data.sources import Source
from finola.errors import CorruptFileError, InputError, first_line, require, shorten
from finola.image_io import open_photo
from finola.locations import check_regular
from finola.urls import without_credentials

IN_MEMORY = 2**30
"""Total size in bytes up to which all rows are cached in memory; larger data is read by row groups (`blocks`)."""

CACHED_GROUPS = 8
IMAGE_COLUMNS = ("image", "img", "photo", "jpg", "jpeg", "png", "bytes")
LABEL_COLUMNS = ("label", "labels", "cls")
MAX_ROWS = 2**20
"""Maximum number of rows that a file may declare, unless it has more bytes: then at most one row per byte."""
MAX_EXPANSION = 2**30, 100
"""Maximum bytes that a row group may declare, absolute and as a multiple of the size of its file."""


class ParquetSource(Source):
    """Rows of Parquet files. The image column has bytes or, as written by Hugging Face, structs with `bytes`.

    Paths stored in a file are never opened: a row without bytes is unreadable.
    """

    def __init__(self, files: Sequence[File], where: str) -> None:
        require("pyarrow")
        self.where = where
        self._files = list(files)
        self._columns: list[str] = []  # of images, by file
        groups: list[tuple[int, int, int]] = []  # file, row group in it, rows
        labels: list[np.ndarray] = []
        self._sizes = [size_of(file) for file in files]
        self.classes = {}
        for number, (file, bytes_of_file) in enumerate(zip(files, self._sizes, strict=True)):
            with _reading(str(file)), _opened(file) as table:
                image, label = _choose_columns(table.schema_arrow)
                self._columns.append(image)
                rows = _count_rows(table.metadata, bytes_of_file)
                groups += [(number, group, count) for group, count in enumerate(rows)]
                labels.append(_labels(table, label, sum(rows)))
                self.classes |= _class_names(table, label, labels[-1])
        if not any(count for _, _, count in groups):
            raise InputError(f"{where}: the {len(self._files)} Parquet files have no rows.")
        self._groups = np.array(groups)
        self._starts = np.concatenate([[0], np.cumsum(self._groups[:, 2])])
        self._labels = np.concatenate(labels)
        self._in_memory = sum(self._sizes) <= IN_MEMORY
        self.blocks = None if self._in_memory else self._starts[:-1]
        self._cache: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def name(self, index: int) -> str:
        group, row = self._locate(index)
        file = self._groups[group, 0]
        first = self._starts[np.searchsorted(self._groups[:, 0], file)]
        return f"{self._files[file].name} row {self._starts[group] + row - first}"

    def open(self, index: int) -> Image.Image:
        group, row = self._locate(index)
        with _reading(self.name(index)):
            value = self._read(group)[row].as_py()
        data = value.get("bytes") if isinstance(value, dict) else value
        if not data:
            raise CorruptFileError(f"{self.name(index)} cannot be read as a photo: it has no bytes.")
        return open_photo(data, self.name(index))

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def extent(self) -> bytes:
        return extent_of(self._files)

    def read_in_order(self) -> None:
        self._in_memory = False

    def _locate(self, index: int) -> tuple[int, int]:
        group = int(np.searchsorted(self._starts, index, side="right")) - 1
        return group, index - int(self._starts[group])

    def _read(self, group: int) -> Any:
        """Image column of a row group, from a cache of the last few row groups (of all if the data is small)."""
        if group not in self._cache:
            file, number, count = (int(value) for value in self._groups[group])
            column = self._columns[file]
            with _opened(self._files[file]) as table:
                rows = table.read_row_group(number, columns=[column], use_threads=False)[column]
            if len(rows) != count:
                raise CorruptFileError(f"row group {number} declares {count} rows but has {len(rows)}")
            self._cache[group] = rows
            if not self._in_memory and len(self._cache) > CACHED_GROUPS:
                self._cache.popitem(last=False)
        self._cache.move_to_end(group)
        return self._cache[group]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_cache": OrderedDict()}


@contextmanager
def _opened(file: File) -> Iterator[Any]:
    """Open a Parquet file; a local one by its path, so that pyarrow reads it directly."""
    from pyarrow import parquet

    if isinstance(file, RemoteFile):
        with open_binary(file) as stream, parquet.ParquetFile(stream) as table:
            yield table
    else:
        check_regular(file)
        with parquet.ParquetFile(str(file)) as table:
            yield table


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Convert exceptions of pyarrow and of the checks in this module to `CorruptFileError` with `name`.

    Other classes are those of the file system of a remote file, and are converted to OSError.
    """
    from pyarrow import ArrowException

    try:
        yield
    except (ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError) as error:
        raise CorruptFileError(f"{name} cannot be read as Parquet: {first_line(error)}.") from error
    except Exception as error:
        raise OSError(errno.EIO, without_credentials(first_line(error)), name) from error


def _choose_columns(schema: Any) -> tuple[str, str | None]:
    """Names of the column of images and of the column of labels, if there is one."""
    from pyarrow import types

    known = [name for name in (*IMAGE_COLUMNS, *LABEL_COLUMNS, "name") if schema.names.count(name) > 1]
    if known:
        raise InputError(f"it has {schema.names.count(known[0])} columns named {known[0]!r}")
    image = next((name for name in IMAGE_COLUMNS if name in schema.names), None)
    if image is None:
        names = shorten(", ".join(schema.names), 200)[1:-1]
        raise InputError(f"no image column among {names}; name the column of encoded images 'image'")
    kind = schema.field(image).type
    if types.is_struct(kind):
        inner = [field.type for field in kind if field.name == "bytes"]
        is_bytes = len(inner) == 1 and _is_bytes(inner[0])
    else:
        is_bytes = _is_bytes(kind)
    if not is_bytes:
        raise InputError(
            f"column {image!r} has type {shorten(str(kind))}; it must contain the bytes of encoded images, "
            "because paths are not opened"
        )
    label = next((name for name in LABEL_COLUMNS if name in schema.names), None)
    if label is not None and not types.is_integer(schema.field(label).type):
        raise InputError(
            f"column {label!r} has type {shorten(str(schema.field(label).type))}, but labels must be integers; "
            "convert it, or rename it if it does not contain classes"
        )
    return image, label


def _is_bytes(kind: Any) -> bool:
    from pyarrow import types

    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _count_rows(metadata: Any, bytes_of_file: int) -> list[int]:
    """Number of rows of every row group. Declared sizes are checked against the size of the file before allocation."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    rows = [group.num_rows for group in groups]
    if any(count < 0 for count in rows) or sum(rows) != metadata.num_rows:
        raise CorruptFileError(f"the row groups have {sum(rows)} rows, but the file declares {metadata.num_rows}")
    if sum(rows) > max(MAX_ROWS, bytes_of_file):
        raise CorruptFileError(f"it declares {sum(rows)} rows, too many for its {bytes_of_file} bytes")
    most, times = MAX_EXPANSION
    for group in groups:
        # The size of the whole group: pyarrow aborts the process on reading the size of a corrupt column.
        if group.total_byte_size > max(most, times * bytes_of_file):
            raise CorruptFileError(f"it declares {group.total_byte_size} bytes, too many for its {bytes_of_file} bytes")
    return rows


def _labels(table: Any, column: str | None, rows: int) -> np.ndarray:
    """Labels (rows,), −1 where a row has none."""
    from pyarrow import int64

    if column is None:
        return np.full(rows, -1)
    labels = table.read(columns=[column], use_threads=False)[column].cast(int64()).fill_null(-1).to_numpy()
    if len(labels) != rows:
        raise CorruptFileError(f"column {column!r} has {len(labels)} of {rows} rows")
    if rows and labels.min() < -1:
        raise InputError(f"column {column!r} has the label {labels.min()}; labels must be at least −1 (unknown)")
    return np.asarray(labels)


def _class_names(table: Any, column: str | None, labels: np.ndarray) -> dict[int, str]:
    """Class names by label: from the metadata of Hugging Face, otherwise from a `name` column, otherwise the labels."""
    known = [int(label) for label in np.unique(labels) if label != -1]
    metadata = (table.schema_arrow.metadata or {}).get(b"huggingface")
    names = _hugging_face_names(parse_json(metadata, "the metadata"), column) if metadata and column else None
    if names is not None:
        if known and known[-1] >= len(names):
            raise InputError(f"it has the label {known[-1]}, but its metadata lists {len(names)} classes")
        return dict(enumerate(names))
    if known and "name" in table.schema_arrow.names:
        return _name_column(table, labels, known)
    return {label: str(label) for label in known}


def _hugging_face_names(features: Any, column: str) -> list[str] | None:
    """`info.features.COLUMN.names` of the metadata of Hugging Face, or None if it is missing."""
    for key in ("info", "features", column, "names"):
        features = features.get(key) if isinstance(features, dict) else None
    if not features:
        return None
    if not isinstance(features, list) or not all(isinstance(name, str) for name in features):
        raise CorruptFileError(f"the class names in its metadata are {shorten(features)}, not a list of strings")
    return features


def _name_column(table: Any, labels: np.ndarray, known: list[int]) -> dict[int, str]:
    from pyarrow import types

    kind = table.schema_arrow.field("name").type
    if not (types.is_string(kind) or types.is_large_string(kind)):
        raise InputError(f"column 'name' has type {shorten(str(kind))}, but class names must be strings")
    names = table.read(columns=["name"], use_threads=False)["name"]
    if len(names) != len(labels):
        raise CorruptFileError(f"column 'name' has {len(names)} of {len(labels)} rows")
    by_label = dict(zip(labels.tolist(), names.to_pylist(), strict=True))
    return {label: by_label[label] or str(label) for label in known}
