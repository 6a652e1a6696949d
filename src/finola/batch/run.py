"""Runs over data sets: plan, manifest, shards that are not finished, list of errors.

The first worker opens the data, loads the model and plans the run while the others start, and the main process imports
no torch: on a small machine it would take as much time as the shards of a short run.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from finola import __version__
from finola.batch.shards import PhotoError, Record, Shard, ShardWork, Task, plan
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
from finola.jobs.pool import Packed, Pool, available_cores
from finola.jobs.store import Store
from finola.locations import locate
from finola.urls import is_url, without_credentials

if TYPE_CHECKING:
    from finola.data.sources import Source
    from finola.jobs.ray import RayPool

LOCAL, RAY = "local", "ray"
SHARD_SIZE = 1000
"""Default number of photos per shard."""
MANIFEST, ERRORS = "_manifest.json", "_errors.jsonl"
FORMAT = 1
COMPARED = ("format", "template", "photos", "fingerprint", "shard_size", "settings")
"""Fields of the manifest in which a run must agree with the one that it resumes."""


@dataclass(frozen=True)
class Run:
    """A data set, an output, and how the shards are done, which does not change the content of the files.

    `data` is a data set of `finola.data.open_data`, or a URL; `out` is a folder or a URL.
    """

    data: str | Path | None
    split: str
    limit: int | None
    out: str
    shard_size: int = SHARD_SIZE
    workers: int | None = None
    engine: str = LOCAL
    device: str = "auto"
    force: bool = False
    progress: Callable[[int, int], None] | None = None
    say: Callable[[str], None] | None = None

    def pool(self, module: str) -> Pool | RayPool:
        """Workers that import `module`."""
        if self.engine == RAY:
            from finola.jobs.ray import RayPool

            return RayPool(self.workers, self.device)
        workers = self.workers or 1
        return Pool(workers, threads=max(1, available_cores() // workers), module=module, say=self.say)


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


class Plan(NamedTuple):
    """What the main process knows of a run. It does not unpickle the work, which would import torch."""

    work: Packed
    shards: list[Shard]
    problems: tuple[str, ...]


def do(run: Run, template: str, module: str, settings: dict[str, Any]) -> Summary:
    """Do all shards of a run that are not finished.

    `make_task(**settings)` of `module` loads the model, after the outputs are checked. `template` names its files.
    """
    _check_engine(run)
    _paths(run.data)  # raises for a wrong path before the workers start
    records: dict[int, Record] = {}
    said: set[str] = set()

    def say(*messages: str) -> None:
        """Pass on each message once."""
        for message in messages:
            if run.say is not None and message not in said:
                run.say(message)
            said.add(message)

    with run.pool(module) as pool:
        plain = replace(run, progress=None, say=None)  # what can be sent to a worker
        work, shards, problems = pool.call(_prepare, plain, template, module, settings)
        say(*problems)
        photos, done, skipped = sum(map(len, shards)), 0, 0
        for number, result in pool.run(work, shards):
            say(*result.notes)
            records[number] = result.record
            done, skipped = done + len(shards[number]), skipped + result.skipped
            if run.progress is not None and not result.skipped:
                run.progress(done, photos)
    store = Store(run.out)
    errors = [error for number in range(len(shards)) for error in records[number].errors]
    lines = [{"index": error.index, "id": error.id, "reason": error.reason} for error in errors]
    lines += [{"index": None, "id": None, "reason": problem} for problem in problems]
    store.write(ERRORS, "".join(json.dumps(line) + "\n" for line in lines).encode())
    store.remove_temporary()
    rows, size = (sum(getattr(record, name) for record in records.values()) for name in ("rows", "size"))
    return Summary(store.where, photos, rows, len(shards), skipped, size, errors, problems)


def _check_engine(run: Run) -> None:
    if run.engine not in (LOCAL, RAY):
        raise UnknownNameError(f"Unknown engine {run.engine!r}; use {LOCAL} or {RAY}.")
    if run.engine == RAY:
        require("ray")
    if (run.workers or 1) > 1 or run.engine == RAY:  # a task of Ray is in another process
        for where in (run.data, run.out):
            if str(where).startswith("memory://"):
                raise InputError(f"{where} is in the memory of one process; use one worker and the local engine.")


def _prepare(run: Run, template: str, module: str, settings: dict[str, Any]) -> Plan:
    """Open the data, check the outputs, load the model, and write or compare the manifest."""
    from finola.data.discovery import find_source
    from finola.data.sources import evenly

    store = Store(run.out)
    source = evenly(find_source(run.data, run.split), run.limit)
    shards = plan(len(source), run.shard_size)
    before = None if run.force else read_manifest(store)
    _check_outputs(store, [template.format(shard.number) for shard in shards], template, run.data, before, run.force)
    task: Task = import_module(module).make_task(**settings)
    manifest = _manifest(task, source, run)
    if before is not None:
        _check_same(before, manifest, store)
    digest = hashlib.sha256(json.dumps({key: manifest[key] for key in COMPARED}, sort_keys=True).encode()).hexdigest()
    if before is None:
        if run.force:
            _remove_run(store, template)
        store.write(MANIFEST, json.dumps(manifest, indent=1).encode() + b"\n")
    store.remove_temporary()
    source.read_in_order()
    problems = tuple(valid_unicode(without_credentials(problem)) for problem in source.problems)
    return Plan(Packed(ShardWork(task, source, run.out, digest)), shards, problems)


def _manifest(task: Task, source: Source, run: Run) -> dict[str, Any]:
    where = without_credentials(str(run.data)) if is_url(run.data) else source.where
    manifest = {
        "format": FORMAT,
        "finola": __version__,
        "data": where,
        "template": task.template,
        "photos": len(source),
        "fingerprint": source.fingerprint(),
        "shard_size": run.shard_size,
        "settings": task.settings(),
    }
    return valid_unicode(manifest)


def read_manifest(store: Store) -> dict[str, Any] | None:
    """Manifest of the run in a folder; None if there is none."""
    data = store.read(MANIFEST)
    if data is None:
        return None
    try:
        manifest = json.loads(data)
    except (ValueError, RecursionError):
        manifest = None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("settings"), dict):
        raise CorruptFileError(
            f"{store.where}/{MANIFEST} is not a manifest of finola: choose another output, or --force to start anew."
        )
    return manifest


def _check_same(before: dict[str, Any], now: dict[str, Any], store: Store) -> None:
    """Raise InputError if the run in the folder has other data or settings."""
    old, new = ({**{key: m.get(key) for key in COMPARED if key != "settings"}, **m["settings"]} for m in (before, now))
    for key in [*new, *(key for key in old if key not in new)]:
        if old.get(key) != new.get(key):
            raise InputError(
                f"{store.where} holds a run with {key} {shorten(old.get(key))}, not {shorten(new.get(key))}: choose "
                "another output, or --force to start anew."
            )


def _paths(data: str | Path | None) -> list[Path]:
    """Files and folders of a data set on this machine. Raises MissingFileError if there are none."""
    return [] if data == "smoke" or is_url(data) else locate(data)


def _check_outputs(
    store: Store, names: list[str], template: str, data: str | Path | None, before: object, force: bool
) -> None:
    """Check, before the work, that the files of a run may be written.

    A folder without a manifest must have no file of another origin that a reader would take for a part of the run.
    """
    inputs = _paths(data)
    for place in [str(data)] if is_url(data) else inputs:
        if store.is_inside(Store(place)):  # its files would become data of the next run
            where = without_credentials(str(place))
            raise OutputExistsError(f"{store.where} is in the input folder {where}: choose another output with -o.")
    suffix = template.rpartition(".")[2]
    foreign = [name for name in store.names() if name.endswith(f".{suffix}")]
    if before is None and foreign and (not force or not {*foreign} <= {*names, *_names_of_run(store, template)}):
        hint = "choose an empty folder" if force else "choose an empty folder, or --force to overwrite files of a run"
        raise OutputExistsError(f"{store.where}/{foreign[0]} already exists: {hint}.")
    if store.is_local:
        paths = [store.path / name for name in (MANIFEST, *names)]
        output_paths(paths, inputs, before is not None or force, create=True)


def _names_of_run(store: Store, template: str) -> list[str]:
    """Names of the files of the run in the folder, if it has a manifest."""
    try:
        parts = parts_of(read_manifest(store) or {}, template)
    except CorruptFileError:
        return []
    # Not all names of the run: a damaged manifest may declare any number of photos.
    return [name for name in store.names() if _is_part(name, template, parts)]


def _is_part(name: str, template: str, parts: int) -> bool:
    digits = re.search("[0-9]{1,18}", name)
    return digits is not None and int(digits[0]) < parts and name == template.format(int(digits[0]))


def parts_of(manifest: dict[str, Any], template: str) -> int:
    """Number of files of a complete run; 0 if the manifest is that of another kind of run."""
    photos, size = manifest.get("photos"), manifest.get("shard_size")
    if manifest.get("template") != template or type(photos) is not int or type(size) is not int or size < 1:
        return 0
    return -(-photos // size)


def _remove_run(store: Store, template: str) -> None:
    """Remove the files of an earlier run, its manifest last."""
    for name in _names_of_run(store, template):
        store.remove(name)
    for name in (ERRORS, MANIFEST):
        store.remove(name)
