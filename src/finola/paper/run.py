"""Train the rows of claims side by side, cached and resumable, and store their results as JSON."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from finola.config import ModelConfig
from finola.errors import FinolaError, InputError, first_line
from finola.files import write_json
from finola.jobs.pool import Pool
from finola.paper.claims import rows_of
from finola.paper.definitions import Claim, Same
from finola.paper.measure import MEASURED, describe_data, machine, measure, minutes, validation_curve
from finola.paper.recipes import canonical
from finola.paper.tables import ROWS, quoted_numbers
from finola.recipes.loading import load_recipe, settings_of
from finola.recipes.recipe import Recipe

RUNS, RESULTS = Path("runs/reproduce"), Path("results/reproduce")
SUMMARY, DATA, MACHINE = "summary.json", "data.json", "machine.json"
"""Files in a run directory: the outcome of the run, the description of its data, and the CPU that trained it."""
FINAL = ("finished", "diverged")
"""Statuses of runs that are not run again."""
WITHOUT_EFFECT = (
    *("name", "about", "paper_psnr", "classes", "data.num_workers", "data.path"),
    *("trainer.accelerator", "trainer.devices", "trainer.num_nodes", "trainer.strategy", "logging.", "checkpoint."),
)
"""Settings, or their prefixes, that do not affect what a run learns. The name of the data is hashed separately."""


class Stopped(FinolaError):
    """A run was interrupted by a signal; the same command resumes it."""


@dataclass(frozen=True)
class Scale:
    """Settings of all runs at one scale that do not affect what is learned, and the size of its data for estimates."""

    photos: int  # training photos
    overrides: tuple[str, ...] = ()
    threads: int | None = None  # of each run; None: chosen by PyTorch


SCALES = {
    "paper": Scale(1_281_167),  # ImageNet-1K
    "cpu": Scale(
        4_866,  # photos256
        ("trainer.accelerator=cpu", "data.num_workers=0", "logging.wandb=false", "checkpoint.every_minutes=2"),
        threads=1,
    ),
}
"""Scales of reproduction; the models at CPU scale are those of `finola.paper.definitions.TWIN`."""


@dataclass(frozen=True)
class Job:
    """A run: a row of a claim in words and a seed, its recipe, run directory and command."""

    row: str
    seed: int
    recipe: Recipe
    folder: Path
    command: tuple[str, ...]
    metrics: tuple[str, ...] = ()  # that are computed in the process of the run, since they take long

    def status(self) -> str | None:
        """Status of the run in the directory: finished, diverged, interrupted, or None."""
        path = self.folder / SUMMARY
        return str(json.loads(path.read_text(encoding="utf-8"))["status"]) if path.is_file() else None

    def is_done(self) -> bool:
        """Whether the run is finished and its metrics are stored in the directory, or it diverged."""
        path = self.folder / MEASURED
        stored = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return self.status() == "diverged" or (self.status() == "finished" and {*self.metrics} <= {*stored})


def plan(row: Same, scale: str, seed: int, data: str | None = None, runs: Path = RUNS) -> Job:
    """The run of a row. Equal settings, seed and data give the same run directory, whatever the claim.

    >>> from finola.paper.definitions import Same
    >>> plan(Same("channels/256", "C = 256"), "paper", seed=1).command[:4]
    ('finola', 'train', 'paper/channels/256', 'seed=1')
    """
    name = canonical(f"{scale}/{row.of}" if row.of in ROWS else row.of)
    overrides = list(row.overrides)
    if scale == "cpu":
        overrides += row.cpu
        if row.twin:
            model = replace(ModelConfig.parse(load_recipe(name).model.name), **row.twin)
            overrides.append(f"model.name={model}")
    overrides += [f"seed={seed}", *([] if data is None else [f"data.path={data}"]), *SCALES[scale].overrides]
    recipe = load_recipe(name, overrides)
    settings = {key: value for key, value in settings_of(recipe).items() if not key.startswith(WITHOUT_EFFECT)}
    path = recipe.data.path or os.environ.get("FINOLA_DATA")
    settings["data"] = Path(path).name if path else None
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    folder = runs / f"{name.replace('/', '-')}-{digest}"
    command = ("finola", "train", name, *overrides, "--out", str(folder), "--resume")
    return Job(row.about, seed, recipe, folder, command)


def jobs_of(
    claims: Sequence[Claim], scale: str, seeds: int, data: str | None = None, runs: Path = RUNS
) -> dict[str, list[Job]]:
    """The runs of each claim, by its name. Raises InputError for claims that do not exist at this scale."""
    for claim in claims:
        if scale not in claim.scales:
            raise InputError(f"The claim {claim.name} has no runs at scale {scale}. Use --scale {claim.scales[0]}.")
    return {
        claim.name: [
            replace(plan(row, scale, seed, data, runs), metrics=claim.metrics if claim.labelled else ())
            for row in rows_of(claim, scale).values()
            for seed in range(seeds)
        ]
        for claim in claims
    }


def reproduce(
    claims: Sequence[Claim],
    scale: str = "cpu",
    seeds: int = 2,
    data: str | None = None,
    runs: str | Path = RUNS,
    results: str | Path = RESULTS,
    workers: int = 2,
    reuse: bool = False,
    launch: Callable[[Job], None] | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Train what the claims need, and write one JSON file per claim. Returns the contents of these files.

    Finished runs are not repeated and interrupted ones resume. A file is written whenever a run of its claim ends.
    Results of runs with the same settings, seed and data that are already in the files are never lost; with `reuse`
    these runs are not trained again if their run directories are missing. `launch` trains one job in this process;
    by default each has a process of its own, and one that is killed is resumed.
    """
    runs, results = Path(runs), Path(results)
    jobs = jobs_of(claims, scale, seeds, data, runs)
    described = describe_data(data or next(iter(jobs.values()))[0].recipe.data.path)
    stored = {claim.name: stored_runs(claim, scale, described, results) for claim in claims}
    every = [(name, job) for name, found in jobs.items() for job in found]
    if reuse:
        every = [(name, job) for name, job in every if job.folder.name not in stored[name]]
    unique: dict[Path, Job] = {}
    for _, job in every:  # claims that share a run may need different metrics of it
        needed = (*(unique[job.folder].metrics if job.folder in unique else ()), *job.metrics)
        unique[job.folder] = replace(job, metrics=tuple(dict.fromkeys(needed)))
    for job in unique.values():
        _check_data(job, described)
    waiting = [job for job in unique.values() if not job.is_done()]
    report(f"{len(unique)} runs, {len(unique) - len(waiting)} of them finished before.")
    with Pool(
        workers if launch is None else 1, threads=SCALES[scale].threads, own_process=launch is None, say=report
    ) as pool:
        ended = pool.run(launch or run_job, waiting, lambda job: f"{job.row}, seed {job.seed}")
        for done, (number, _) in enumerate(ended, 1):
            job = waiting[number]
            report(f"{done} of {len(waiting)}: {job.row}, seed {job.seed}, {job.status()}")
            for claim in claims:
                if any(other.folder == job.folder for other in jobs[claim.name]):
                    _store(claim, scale, jobs[claim.name], described, results, stored[claim.name])
    return [_store(claim, scale, jobs[claim.name], described, results, stored[claim.name]) for claim in claims]


def _check_data(job: Job, described: dict[str, Any]) -> None:
    """Store the description of the data in a run directory. Raises InputError if it differs from the stored one."""
    path = job.folder / DATA
    if path.exists() and json.loads(path.read_text(encoding="utf-8")) != described:
        raise InputError(f"{job.folder} was trained on other photos named {described['name']}. Choose another --runs.")
    job.folder.mkdir(parents=True, exist_ok=True)
    write_json(path, described)


def run_job(job: Job) -> None:
    """Train a job in this process, which is its own, with its messages in a log file beside the run directory."""
    log = job.folder.with_suffix(".log")
    with log.open("wb") as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(file.fileno(), stream.fileno())
    from finola.training import train

    try:
        with _locked(job.folder):
            outcome = train(job.recipe, job.folder, resume=True, quiet=True)
            if outcome.status in FINAL:
                measure(job.folder, job.metrics)
            write_json(job.folder / MACHINE, machine())
    except Exception as error:
        traceback.print_exc()
        raise FinolaError(f"{job.command[2]} in {job.folder} failed: {first_line(error)}. See {log}.") from None
    if outcome.status not in FINAL:
        raise Stopped(f"{job.folder} was interrupted. Repeat the command to resume it.")


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a run directory. Raises InputError if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (folder / ".lock").open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder} is being trained by another process. Wait for it, or end it.") from None
        yield


def stored_runs(claim: Claim, scale: str, data: dict[str, Any], results: Path) -> dict[str, dict[str, Any]]:
    """Stored results of all claims by the name of their run directory, which follows from settings and seed.

    An entry has the claim, the row, the seed, its result, and its minutes and machine. Results on other data, or
    without one of the metrics of `claim`, are left out.
    """
    needed = {"run", *claim.metrics, *(["curve"] if claim.curve else [])}
    found: dict[str, dict[str, Any]] = {}
    for times in sorted((results / scale).glob("*.times.json")):
        path = times.with_name(times.name.replace(".times", ""))
        if not path.is_file():  # interrupted between the two files
            continue
        content = json.loads(path.read_text(encoding="utf-8"))
        timings = json.loads(times.read_text(encoding="utf-8"))
        for row, runs in content["rows"].items() if content["data"] == data else ():
            for seed, result in runs["seeds"].items():
                entry = {"claim": content["claim"], "row": row, "seed": int(seed), "timing": timings[row][seed]}
                own = entry["claim"] == claim.name
                if needed <= set(result) and (own or result["run"] not in found):
                    metrics = {key: result[key] for key in result if key in needed | {"status", "images"}}
                    found[result["run"]] = entry | {"result": metrics}
    return found


def _store(
    claim: Claim,
    scale: str,
    jobs: Sequence[Job],
    data: dict[str, Any],
    results: Path,
    stored: dict[str, dict[str, Any]],
) -> dict[str, Any]:
    """Write the results of a claim, and its times in a second file, which differ from run to run.

    Stored results that belong to a row of the claim, for any seed, are written as well.
    """
    rows: dict[str, dict[str, Any]] = {}
    times: dict[str, dict[str, Any]] = {}
    for row in rows_of(claim, scale).values():
        by_seed = {job.seed: job for job in jobs if job.row == row.about}
        other = (entry for entry in stored.values() if (entry["claim"], entry["row"]) == (claim.name, row.about))
        for seed in sorted({*by_seed, *(entry["seed"] for entry in other)}):
            job = by_seed.get(seed) or plan(row, scale, seed, jobs[0].recipe.data.path, jobs[0].folder.parent)
            if job.status() in FINAL:
                result, timing = _result(job, claim), _timing(job)
            elif entry := stored.get(job.folder.name):
                result, timing = entry["result"], entry["timing"]
            else:
                continue
            paper = {metric: value for metric, value in quoted_numbers(row).items() if metric in claim.metrics}
            facts = {"recipe": job.command[2], "model": job.recipe.model.name, "paper": paper}
            rows.setdefault(row.about, {**facts, "seeds": {}})["seeds"][str(seed)] = result
            times.setdefault(row.about, {})[str(seed)] = timing
    result = {"claim": claim.name, "scale": scale, "data": data, "rows": rows}
    folder = results / scale
    folder.mkdir(parents=True, exist_ok=True)
    # Times first, so that every stored result has one.
    write_json(folder / f"{claim.name}.times.json", times)
    write_json(folder / f"{claim.name}.json", result)
    return result


def _result(job: Job, claim: Claim) -> dict[str, Any]:
    """Status, images seen, metrics and curve of a finished or diverged run, with the name of its run directory."""
    summary = json.loads((job.folder / SUMMARY).read_text(encoding="utf-8"))
    images = summary["step"] * job.recipe.data.batch_size
    found = {"run": job.folder.name, "status": summary["status"], "images": images}
    found |= measure(job.folder, claim.metrics)
    return found | ({"curve": validation_curve(job.folder, job.recipe)} if claim.curve else {})


def _timing(job: Job) -> dict[str, Any]:
    path = job.folder / MACHINE
    trained_on = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else machine()
    return {"minutes": minutes(job.folder), "machine": trained_on}
