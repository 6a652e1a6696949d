"""Runs of batch jobs: plan, manifest, finished shards, engine, list of errors."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from finola import __version__
from finola.batch.jobs import Done, Engine, Failure, Job, PhotoError, Record, Shard, Task, plan
from finola.batch.storage import Folder, is_private_source
from finola.data.sources import Source
from finola.errors import (
    CorruptFileError,
    InputError,
    OutputExistsError,
    UnknownNameError,
    require,
    shorten,
    valid_unicode,
)
from finola.files import output_paths
from finola.locations import locate
from finola.urls import is_url, without_credentials

LOCAL, RAY = "local", "ray"
SHARD_SIZE = 1000
"""Default number of photos per shard."""
MANIFEST, ERRORS = "_manifest.json", "_errors.jsonl"
FORMAT = 1
COMPARED = ("format", "template", "photos", "fingerprint", "shard_size", "settings")
"""Fields of the manifest in which a run must agree with the one that it resumes."""


@dataclass(frozen=True)
class Execution:
    """How a run is executed; none of this changes the content of its files."""

    out: str
    shard_size: int = SHARD_SIZE
    workers: int | None = None
    engine: str = LOCAL
    force: bool = False
    progress: Callable[[int, int], None] | None = None
    say: Callable[[str], None] | None = None


@dataclass(frozen=True)
class Summary:
    """Result of a run: `rows` is `photos` less the number of `errors`."""

    out: str
    photos: int
    rows: int
    shards: int
    skipped: int  # shards that an earlier run had finished
    bytes: int
    errors: list[PhotoError] = field(default_factory=list)
    problems: tuple[str, ...] = ()  # data that could not be read when it was opened, such as a truncated tar file


def run(
    template: str, make_task: Callable[[], Task], source: Source, data: str | Path | None, execution: Execution
) -> Summary:
    """Do all shards of a task that are not finished.

    Outputs are checked before `make_task` loads the model.
    """
    workers = _check_engine(execution, data)
    folder = Folder(execution.out)
    shards = plan(len(source), execution.shard_size)
    before = None if execution.force else read_manifest(folder)
    _check_outputs(folder, [shard.file(template) for shard in shards], template, data, before, execution.force)
    task = make_task()
    manifest = _manifest(task, source, data, execution.shard_size)
    if before is not None:
        _check_same(before, manifest, folder)
    digest = hashlib.sha256(json.dumps({key: manifest[key] for key in COMPARED}, sort_keys=True).encode()).hexdigest()
    job = Job(task, source, execution.out, digest)
    if before is None:
        if execution.force:
            _remove_run(folder, template)
        folder.write(MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    folder.remove_temporary()
    source.read_in_order()
    problems = tuple(valid_unicode(without_credentials(problem)) for problem in source.problems)
    if execution.say is not None:
        for problem in problems:
            execution.say(problem)
    records = {shard.number: record for shard in shards if (record := job.finished(folder, shard)) is not None}
    skipped = len(records)
    pending = [shard for shard in shards if shard.number not in records]
    with contextlib.closing(_start(job, pending, workers, execution.engine)) as results:
        _collect(results, shards, records, execution)
    return _finish(folder, source, shards, records, skipped, problems)


def _check_engine(execution: Execution, data: object) -> int | None:
    if execution.engine not in (LOCAL, RAY):
        raise UnknownNameError(f"Unknown engine {execution.engine!r}; use {LOCAL} or {RAY}.")
    if execution.engine == RAY:
        require("ray")
    workers = execution.workers if execution.engine == RAY else execution.workers or 1
    if workers != 1 or execution.engine == RAY:  # an actor of Ray is another process
        for where in (data, execution.out):
            if is_private_source(where):
                raise InputError(f"{where} is in the memory of one process; use one worker and the local engine.")
    return workers


def _start(job: Job, shards: list[Shard], workers: int | None, engine: str) -> Engine:
    if engine == RAY:
        from finola.batch.ray_engine import run_on_ray

        return run_on_ray(job, shards, workers)
    from finola.batch.local_engine import run_locally

    return run_locally(job, shards, workers or 1)


def _collect(results: Engine, shards: list[Shard], records: dict[int, Record], execution: Execution) -> None:
    """Collect the records of an engine, report progress, and pass on each message once."""
    total = sum(len(shard) for shard in shards)
    sizes = {shard.number: len(shard) for shard in shards}
    done = sum(sizes[number] for number in records)
    said: set[str] = set()
    for result in results:
        if isinstance(result, Failure):
            result.throw()
        messages = (result,) if isinstance(result, str) else result.notes if isinstance(result, Done) else ()
        for message in messages:
            if execution.say is not None and message not in said:
                execution.say(message)
            said.add(message)
        if isinstance(result, Done):
            records[result.record.number] = result.record
            done += sizes[result.record.number]
            if execution.progress is not None:
                execution.progress(done, total)


def _finish(
    folder: Folder,
    source: Source,
    shards: list[Shard],
    records: dict[int, Record],
    skipped: int,
    problems: tuple[str, ...],
) -> Summary:
    """Write the list of errors and summarise the run."""
    missing = [shard.number for shard in shards if shard.number not in records]
    if missing:
        raise RuntimeError(f"The engine returned no result for {len(missing)} shards, the first is {missing[0]}.")
    errors = [error for shard in shards for error in records[shard.number].errors]
    lines = [{"index": error.index, "id": error.id, "reason": error.reason} for error in errors]
    lines += [{"index": None, "id": None, "reason": problem} for problem in problems]
    folder.write(ERRORS, "".join(json.dumps(line) + "\n" for line in lines).encode())
    folder.remove_temporary()
    rows, size = (sum(getattr(record, name) for record in records.values()) for name in ("rows", "size"))
    return Summary(folder.where, len(source), rows, len(shards), skipped, size, errors, problems)


def _manifest(task: Task, source: Source, data: str | Path | None, shard_size: int) -> dict[str, Any]:
    where = without_credentials(str(data)) if is_url(data) else source.where
    manifest = {
        "format": FORMAT,
        "finola": __version__,
        "data": where,
        "template": task.template,
        "photos": len(source),
        "fingerprint": source.fingerprint(),
        "shard_size": shard_size,
        "settings": task.settings(),
    }
    return valid_unicode(manifest)


def read_manifest(folder: Folder) -> dict[str, Any] | None:
    """Manifest of the run in a folder; None if there is none."""
    data = folder.read(MANIFEST)
    if data is None:
        return None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("settings"), dict):
        raise CorruptFileError(
            f"{folder.where}/{MANIFEST} is not a manifest of finola: choose another output, or --force to start anew."
        )
    return manifest


def _check_same(before: dict[str, Any], now: dict[str, Any], folder: Folder) -> None:
    """Raise InputError if the run in the folder has other data or settings."""
    old, new = ({**{key: m.get(key) for key in COMPARED if key != "settings"}, **m["settings"]} for m in (before, now))
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) != new.get(key):
            raise InputError(
                f"{folder.where} holds a run with {key} {shorten(old.get(key))}, not {shorten(new.get(key))}: choose "
                "another output, or --force to start anew."
            )


def _check_outputs(
    folder: Folder, names: list[str], template: str, data: str | Path | None, before: object, force: bool
) -> None:
    """Check, before the work, that the files of a run may be written.

    A folder without a manifest must have no file of another origin that a reader would take for a part of the run.
    """
    inputs = [] if data == "smoke" or is_url(data) else locate(data)
    for place in [str(data)] if is_url(data) else inputs:
        if folder.is_inside(Folder(place)):  # its files would become data of the next run
            where = without_credentials(str(place))
            raise OutputExistsError(f"{folder.where} is in the input folder {where}: choose another output with -o.")
    suffix = template.rpartition(".")[2]
    foreign = [name for name in folder.names() if name.endswith(f".{suffix}")]
    if before is None and foreign and (not force or not {*foreign} <= {*names, *_names_of_run(folder, template)}):
        hint = "choose an empty folder" if force else "choose an empty folder, or --force to overwrite files of a run"
        raise OutputExistsError(f"{folder.where}/{foreign[0]} already exists: {hint}.")
    if folder.is_local:
        paths = [folder.path / name for name in (MANIFEST, *names)]
        output_paths(paths, inputs, before is not None or force, create=True)


def _names_of_run(folder: Folder, template: str) -> list[str]:
    """Names of the files of the run in the folder, if it has a manifest."""
    try:
        parts = parts_of(read_manifest(folder) or {}, template)
    except CorruptFileError:
        return []
    # Not all names of the run: a damaged manifest may declare any number of photos.
    return [name for name in folder.names() if _is_part(name, template, parts)]


def _is_part(name: str, template: str, parts: int) -> bool:
    digits = re.search("[0-9]{1,18}", name)
    return digits is not None and int(digits[0]) < parts and name == template.format(int(digits[0]))


def parts_of(manifest: dict[str, Any], template: str) -> int:
    """Number of files of a complete run; 0 if the manifest is that of another kind of run."""
    photos, size = manifest.get("photos"), manifest.get("shard_size")
    if manifest.get("template") != template or type(photos) is not int or type(size) is not int or size < 1:
        return 0
    return -(-photos // size)


def _remove_run(folder: Folder, template: str) -> None:
    """Remove the files of an earlier run, its manifest last."""
    for name in _names_of_run(folder, template):
        folder.remove(name)
    for name in (ERRORS, MANIFEST):
        folder.remove(name)
