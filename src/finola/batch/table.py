"""The Parquet files of embeddings: one row per photo."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from finola.errors import CorruptFileError, first_line, valid_unicode

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = ("float32", "float16")
REQUIRED = ("index", "id", "q", "shape", "model_hash")
ROW_GROUP = 1024


@dataclass(frozen=True)
class Row:
    """Embedding of one photo, with q as a vector whose array has `shape`."""

    index: int
    id: str
    size: tuple[int, int]
    label: int
    q: Tensor
    shape: tuple[int, ...]
    lengths: Tensor | None = None
    bases: Tensor | None = None
    features: Tensor | None = None

    def is_finite(self, dtype: str) -> bool:
        """Whether all numbers are finite in this type."""
        with np.errstate(over="ignore"):
            values = [x.numpy().astype(dtype) for x in (self.q, self.features) if x is not None]
        return all(bool(np.isfinite(x).all()) for x in values)


class Layout(NamedTuple):
    """Types of the columns; a width of None stands for lists of varying lengths."""

    dtype: str
    q_width: int | None
    features_width: int | None = None
    elastic: bool = False


def write_table(rows: Sequence[Row], settings: dict[str, Any], layout: Layout) -> bytes:
    """Serialise rows as a Parquet file, with settings as metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    settings = valid_unicode(settings)
    number = pa.float32() if layout.dtype == "float32" else pa.float16()
    columns: dict[str, Any] = {
        "index": pa.array([row.index for row in rows], pa.int64()),
        "id": pa.array([row.id for row in rows], pa.string()),
        "q": _lists([row.q for row in rows], number, layout.q_width),
        "shape": pa.array([list(row.shape) for row in rows], pa.list_(pa.int32())),
    }
    if layout.features_width is not None:
        features = [row.features for row in rows if row.features is not None]
        columns["features"] = _lists(features, number, layout.features_width)
        columns["features_shape"] = pa.array([list(values.shape) for values in features], pa.list_(pa.int32()))
    if layout.elastic:
        columns["lengths"] = _lists([row.lengths for row in rows if row.lengths is not None], pa.int32(), None)
        columns["bases"] = _lists([row.bases for row in rows if row.bases is not None], pa.int32(), None)
    columns |= {
        "label": pa.array([row.label for row in rows], pa.int64()),
        "width": pa.array([row.size[1] for row in rows], pa.int32()),
        "height": pa.array([row.size[0] for row in rows], pa.int32()),
    }
    for name, text in (("model", settings["model"]), ("model_hash", settings["hash"])):
        columns[name] = pa.array([text] * len(rows), pa.string()).dictionary_encode()
    table = pa.table(columns).replace_schema_metadata({"finola": json.dumps(settings)})
    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd", row_group_size=ROW_GROUP, write_page_checksum=True)
    return sink.getvalue()


def _lists(values: Sequence[Tensor], kind: Any, width: int | None) -> Any:
    """Array of lists, of `width` numbers each or of varying lengths."""
    import pyarrow as pa

    if not values:
        return pa.array([], pa.large_list(kind) if width is None else pa.list_(kind, width))
    arrays = [one.flatten().numpy().astype(kind.to_pandas_dtype()) for one in values]
    flat = pa.array(np.concatenate(arrays), kind)
    if width is not None:
        return pa.FixedSizeListArray.from_arrays(flat, width)
    offsets = np.concatenate([[0], np.cumsum([len(one) for one in arrays])]).astype(np.int64)
    return pa.LargeListArray.from_arrays(pa.array(offsets), flat)


def check_table(stream: IO[bytes], rows: int) -> None:
    """Raise CorruptFileError unless the footer is that of embeddings with this number of rows."""
    from pyarrow import ArrowException, parquet

    try:
        with parquet.ParquetFile(stream) as table:
            found, names = table.metadata.num_rows, table.schema_arrow.names
    except (ArrowException, OSError, ValueError, MemoryError, OverflowError, KeyError) as error:
        raise CorruptFileError(f"The file cannot be read as Parquet: {first_line(error)}.") from error
    missing = [name for name in REQUIRED if name not in names]
    if found != rows or missing:
        what = f"no column {missing[0]!r}" if missing else f"{found} rows instead of {rows}"
        raise CorruptFileError(f"The Parquet file has {what}.")
