"""The unit of work on data sets: a shard, computed and written by one function, `ShardWork`.

A shard is a range of indices of the source. Its file depends on the shard and the task alone, not on the pool, the
number of workers or the other shards, up to rounding errors of q with another number of threads. So a shard may be done
again at any time by any process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import IO, TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from finola.errors import CorruptFileError, FinolaError, InputError, valid_unicode
from finola.jobs.memory import causes, is_out_of_memory
from finola.jobs.store import Store
from finola.urls import file_system_errors, without_credentials

if TYPE_CHECKING:
    from finola.data.sources import Source

Result = TypeVar("Result")

PARQUET, TAR = "part-{:05d}.parquet", "shard-{:05d}.tar"
"""Names of the files of a shard, by its number."""


@dataclass(frozen=True)
class Shard:
    """Photos with indices start … stop − 1."""

    number: int
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        return f"Shard {self.number} (photos {self.start} to {self.stop - 1})"

    @property
    def record(self) -> str:
        """Name of the JSON file with the record of this shard."""
        return f"_shards/{self.number:05d}.json"


def plan(photos: int, size: int) -> list[Shard]:
    """Split `photos` into shards of `size`; the last may be smaller.

    >>> [len(shard) for shard in plan(10, 4)]
    [4, 4, 2]
    """
    if size < 1:
        raise InputError(f"A shard must have at least 1 photo, not {size}.")
    return [Shard(n, start, min(start + size, photos)) for n, start in enumerate(range(0, photos, size))]


@dataclass(frozen=True)
class PhotoError:
    """A photo without a row: why, and whether the error may be temporary, so that a later run tries again."""

    index: int
    id: str
    reason: str
    temporary: bool = False


@dataclass(frozen=True)
class Record:
    """What the file of a finished shard contains. It is written after the file."""

    run: str  # digest of the manifest
    number: int
    rows: int
    size: int  # bytes
    sha256: str
    errors: tuple[PhotoError, ...] = ()

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Record:
        """A stored record. Raises TypeError or KeyError if it is damaged."""
        errors = tuple(PhotoError(**error) for error in fields.pop("errors"))
        return cls(**fields, errors=errors)


class Made(NamedTuple):
    """Content of the file of a shard."""

    data: bytes
    rows: int
    errors: list[PhotoError]
    notes: tuple[str, ...] = ()  # for the user, such as a smaller batch


class Task(Protocol):
    """What is computed from the photos of a shard."""

    template: ClassVar[str]
    """Name of the file of a shard, with `{:05d}` for its number."""

    def settings(self) -> dict[str, Any]:
        """Everything but the photos that decides the content of the files."""

    def make(self, source: Source, shard: Shard) -> Made: ...

    def check(self, stream: IO[bytes], rows: int) -> None:
        """Raise CorruptFileError unless the file is complete and has this number of rows."""

    def smaller(self) -> Self | None:
        """The same task with less memory; None if it cannot have less."""


class Done(NamedTuple):
    """A finished shard."""

    record: Record
    notes: tuple[str, ...] = ()
    skipped: bool = False  # an earlier run had finished it


@dataclass(frozen=True)
class ShardWork:
    """A task on a data set with an output folder, called with one shard after the other."""

    task: Task
    source: Source
    out: str
    run: str  # digest of the manifest

    def __call__(self, shard: Shard) -> Done:
        """Compute a shard, write its file, then its record, unless an earlier run has done so."""
        store = Store(self.out)
        found = self._finished(store, shard)
        if found is not None:
            return Done(found, skipped=True)
        made = self._made(shard, store)
        digest = hashlib.sha256(made.data).hexdigest()
        record = Record(self.run, shard.number, made.rows, len(made.data), digest, tuple(made.errors))
        store.write(self._file(shard), made.data)
        store.write_record(shard.record, asdict(record))
        return Done(record, made.notes)

    def smaller(self) -> ShardWork | None:
        """The same work with less memory; None if it cannot have less."""
        task = self.task.smaller()
        return None if task is None else replace(self, task=task)

    def _made(self, shard: Shard, store: Store) -> Made:
        try:
            return self.task.make(self.source, shard)
        except OSError as error:
            if error.errno is None or not error.strerror or error.filename:
                raise
            raise OSError(error.errno, error.strerror, store.where) from error
        except (FinolaError, ValueError):
            raise
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            hint = "Out of memory: use fewer workers, a smaller batch or a smaller model."
            raise InputError(str(error) if str(error).startswith("Out of memory") else hint) from error

    def _file(self, shard: Shard) -> str:
        return self.task.template.format(shard.number)

    def _finished(self, store: Store, shard: Shard) -> Record | None:
        """Record of a shard if its file is complete and belongs to this run; None if the shard is to be done."""
        name = self._file(shard)
        try:
            fields = store.record(shard.record)
            if fields is None:
                return None
            record = Record.of(fields)
            if (record.run, record.number) != (self.run, shard.number) or store.size(name) != record.size:
                return None
            if record.rows + len(record.errors) != len(shard) or any(error.temporary for error in record.errors):
                return None
            with file_system_errors(name), store.open(name) as stream:
                if store.is_local and hashlib.sha256(stream.read()).hexdigest() != record.sha256:
                    return None
                stream.seek(0)
                self.task.check(stream, record.rows)
        except (CorruptFileError, OSError, TypeError, KeyError):  # it is done again
            return None
        return record


def attempt_photo(work: Callable[[int], Result], source: Source, index: int, errors: list[PhotoError]) -> Result | None:
    """Result of `work(index)`; None, after an entry in `errors`, if the photo cannot be read or memory runs out."""
    try:
        return work(index)
    except Exception as error:  # any class, because memory may run out in any library
        errors.append(photo_error(source, index, error))
    return None


def photo_error(source: Source, index: int, error: Exception) -> PhotoError:
    """Entry for a photo that could not be read or is too large for memory; any other exception is raised again."""
    name = valid_unicode(source.name(index))
    if is_out_of_memory(error):
        return PhotoError(index, name, "Out of memory: the photo is too large for this machine.", True)
    if not isinstance(error, ValueError | OSError):
        raise error
    reason = valid_unicode(" ".join(without_credentials(str(error)).split())[:500]) or type(error).__name__
    return PhotoError(index, name, reason, _is_temporary(error))


def _is_temporary(error: Exception) -> bool:
    """Whether the operating system or the network may have caused an error.

    Decoders raise OSError for damaged files, too, but without an error number.
    """
    kinds = (FileNotFoundError, ConnectionError, TimeoutError)
    return any(isinstance(one, kinds) or (isinstance(one, OSError) and one.errno is not None) for one in causes(error))
