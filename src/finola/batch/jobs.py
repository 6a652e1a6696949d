"""The unit of work of every engine: one shard of a data set, computed and written by one function, `Job.do`.

A shard is a range of indices of the source. Its file depends on the shard and the task alone, not on the engine, the
number of workers or the other shards, up to rounding errors of q with another number of threads. So a shard may be done
again at any time by any process.
"""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, replace
from typing import IO, Any, ClassVar, NamedTuple, Protocol, Self, TypeVar

from finola.batch.memory import causes, is_out_of_memory
from finola.batch.storage import Folder
from finola.data.sources import Source
from finola.errors import CorruptFileError, FinolaError, InputError, first_line, valid_unicode
from finola.urls import file_system_errors, without_credentials

Result = TypeVar("Result")

SAME, ATTEMPTS = 2, 4
"""Attempts at a shard with unchanged memory, and in all."""


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

    def file(self, template: str) -> str:
        """Name of the file of this shard."""
        return template.format(self.number)

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

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Record:
        """Parse a record; raises CorruptFileError unless all fields are present and have the right types."""
        try:
            fields = json.loads(data)
            errors = tuple(PhotoError(**error) for error in fields.pop("errors"))
            record = cls(**fields, errors=errors)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise CorruptFileError(f"Corrupt record of a shard: {first_line(error)}.") from error
        kinds = {"run": str, "number": int, "rows": int, "size": int, "sha256": str}
        wrong = [name for name, kind in kinds.items() if type(getattr(record, name)) is not kind]
        wrong += [
            "errors" for e in errors if [type(v) for v in asdict(e).values()] != [int, str, str, bool] or e.index < 0
        ]
        if wrong:
            raise CorruptFileError(f"Corrupt record of a shard: {wrong[0]} has the wrong type.")
        return record


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
    """A finished shard, as an engine returns it."""

    record: Record
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An exception in a worker, in a form that can be sent to another process or machine."""

    message: str
    is_defect: bool = False
    system: tuple[int, str, str] | None = None  # errno, message and file of an operating system error

    def throw(self) -> None:
        """Raise the exception again."""
        if self.is_defect:
            raise RuntimeError(f"A worker failed:\n{self.message}")
        if self.system is not None:
            raise OSError(*self.system)
        raise InputError(self.message)


@dataclass(frozen=True)
class Job:
    """A task on a data set with an output folder. It can be sent to other processes and machines."""

    task: Task
    source: Source
    out: str
    run: str  # digest of the manifest

    def do(self, shard: Shard) -> Done:
        """Compute a shard, write its file, then its record."""
        made = self.task.make(self.source, shard)
        folder = Folder(self.out)
        digest = hashlib.sha256(made.data).hexdigest()
        record = Record(self.run, shard.number, made.rows, len(made.data), digest, tuple(made.errors))
        folder.write(shard.file(self.task.template), made.data)
        folder.write(shard.record, record.to_json())
        return Done(record, made.notes)

    def attempt(self, shard: Shard) -> Done | Failure:
        """`do`, with exceptions returned instead of raised."""
        try:
            return self.do(shard)
        except OSError as error:
            if error.errno is None or not error.strerror:
                return Failure(str(error))
            return Failure(
                str(error), system=(error.errno, error.strerror, str(error.filename or Folder(self.out).where))
            )
        except (FinolaError, ValueError) as error:
            return Failure(str(error) or type(error).__name__)
        except Exception as error:
            if is_out_of_memory(error):
                hint = "Out of memory: use fewer workers, a smaller batch or a smaller model."
                return Failure(str(error) if str(error).startswith("Out of memory") else hint)
            return Failure(traceback.format_exc(), is_defect=True)  # the main process shows the traceback

    def for_attempt(self, attempt: int) -> Job | None:
        """The job for the first, second, … attempt at a shard: with less memory after several; None after the last.

        A worker that is killed has often used too much memory.
        """
        if attempt > ATTEMPTS:
            return None
        task = self.task
        for _ in range(attempt - SAME):
            task = task.smaller() or task
        return self if task is self.task else replace(self, task=task)

    def finished(self, folder: Folder, shard: Shard) -> Record | None:
        """Record of a shard if its file is complete and belongs to this run; None if the shard is to be done."""
        try:
            data = folder.read(shard.record)
            if data is None:
                return None
            record = Record.from_json(data)
            name = shard.file(self.task.template)
            if (record.run, record.number) != (self.run, shard.number) or folder.size(name) != record.size:
                return None
            if record.rows + len(record.errors) != len(shard) or any(error.temporary for error in record.errors):
                return None
            with file_system_errors(name), folder.open(name) as stream:
                if folder.is_local and hashlib.sha256(stream.read()).hexdigest() != record.sha256:
                    return None
                stream.seek(0)
                self.task.check(stream, record.rows)
        except (CorruptFileError, OSError):
            return None
        return record


Engine = Generator[Done | Failure | str, None, None]
"""Results of an engine as they arrive, and messages for the user."""


def result_to_json(result: Done | Failure) -> str:
    """Serialise a result for an engine that returns text; `result_from_json` is the inverse."""
    if isinstance(result, Failure):
        return json.dumps({"failure": asdict(result)})
    return json.dumps({"record": result.record.to_json().decode(), "notes": result.notes})


def result_from_json(text: str) -> Done | Failure:
    fields = json.loads(text)
    if "failure" in fields:
        system = fields["failure"].pop("system")
        return Failure(**fields["failure"], system=None if system is None else tuple(system))
    return Done(Record.from_json(fields["record"].encode()), tuple(fields["notes"]))


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
