"""The promises of the package and the evidence of each, which `prove.py` runs or reads from results/."""

from __future__ import annotations

import ast
import json
import re
import runpy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fuzz_cases import READERS

from finola.compare.report import quoted

ROOT = Path(__file__).parents[1]
CONFIGURATIONS = ("aten-default", "avx2", "threads-2", "threads-1")  # of portability.py
OUT = "{out}"  # in a command: where it writes its results
METRIC_FILES = ("evaluate-*.json", "compare-*.json", "reproduce/cpu/*.json")
TRUSTED_CALLS = {
    ("jobs/pool.py", "pickle.loads"): "what a worker of the same command sends",
    ("jobs/worker.py", "pickle.loads"): "what the process that started the worker sends",
    ("deployment/verification.py", "torch.export.load"): "only with trusted=True, for folders that the caller exported",
}
"""Calls that may unpickle, by file and name, with the reason."""


@dataclass(frozen=True)
class Evidence:
    """One way to show that a promise holds: exactly one of tests, command and check.

    `tests` are run by pytest. `command` follows `python`; it writes JSON to the path in place of OUT, or to standard
    output without one. `holds` judges that JSON, or the stored one in results/`result` if it is named: it returns what
    is wrong, or nothing. `check` is judged at once in the same way, with and without stored results.
    """

    name: str
    tests: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    result: str = ""
    holds: Callable[[Any], str] | None = None
    check: Callable[[], str] | None = None
    needs: str = ""  # "data" (FINOLA_DATA), "chromium" or "linux"


@dataclass(frozen=True)
class Promise:
    words: str
    evidence: tuple[Evidence, ...]


def no_failures(found: Any) -> str:
    """Judge results/fuzz-readers.json: every reader was given damaged files, and none failed."""
    if found["failures"]:
        return f"{found['failures']} of {found['cases']} damaged files failed"
    return ", ".join(f"{name} was not run" for name in READERS if not found["readers"].get(name, {}).get("cases"))


def suite_passes(found: Any) -> str:
    """Judge results/portability.json: every configuration ran, and no test failed in any."""
    rows = {row["configuration"]: row for row in found["rows"]}
    missing = [name for name in CONFIGURATIONS if name not in rows]
    failed = [f"{row['failed']} tests in {name}" for name, row in rows.items() if row["failed"]]
    empty = [f"no tests in {name}" for name, row in rows.items() if not row["passed"]]
    return ", ".join([*(f"{name} was not run" for name in missing), *(f"{words} failed" for words in failed), *empty])


def maps_in_memory(found: Any) -> str:
    """Judge results/memory.json."""
    return ", ".join(f"{row['maps_alive']} maps" for row in found["rows"] if row["maps_alive"] > found["bar"])


def clicks_pass(found: Any) -> str:
    """Judge results/page-clicks.json."""
    if found["minutes"] < 10:
        return f"only {found['minutes']:g} minutes"
    faults = found["tracebacks"] + len(found["browser_errors"])
    return "" if found["passed"] else f"{faults} errors, memory grew {found['memory']['growth']}-fold"


def is_output(found: Any) -> str:
    """A stored output that has no bar of its own."""
    return "" if found else "the file is empty"


def only_safetensors() -> str:
    """Weights and tables of bundled models are safetensors, beside JSON, Markdown and pictures."""
    folder = ROOT / "src" / "finola" / "weights"
    allowed = {".safetensors", ".json", ".md", ".jpg"}
    return ", ".join(path.name for path in folder.rglob("*") if path.is_file() and path.suffix not in allowed)


def unpickling_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls that unpickle: load and loads of a pickle module, and library calls without their safe option.

    >>> code = "pickle.load(f); torch.load(f); numpy.load(f, allow_pickle=True)"
    >>> len(list(unpickling_calls(ast.parse(code))))
    3
    >>> [ast.unparse(call.func) for call in unpickling_calls(ast.parse("torch.export.load(f); torch.export.export(m)"))]
    ['torch.export.load']
    >>> list(unpickling_calls(ast.parse("torch.load(f, weights_only=True); numpy.load(f); json.loads(f)")))
    []
    """
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        owner = ast.unparse(call.func.value)  # as in torch.export
        options = {word.arg: getattr(word.value, "value", None) for word in call.keywords}
        unsafe = {
            **dict.fromkeys(("pickle", "dill", "cloudpickle", "joblib", "torch.export", "torch.jit"), True),
            "torch": options.get("weights_only") is not True,
            **dict.fromkeys(("np", "numpy"), options.get("allow_pickle", False) is not False),
        }
        if call.func.attr in ("load", "loads", "Unpickler") and unsafe.get(owner, False):
            yield call


def nothing_unpickles() -> str:
    """No call in the package can unpickle, but for TRUSTED_CALLS."""
    source = ROOT / "src" / "finola"
    return ", ".join(
        f"{name}:{call.lineno}"
        for path in sorted(source.rglob("*.py"))
        for name in (path.relative_to(source).as_posix(),)
        for call in unpickling_calls(ast.parse(path.read_text(encoding="utf-8")))
        if (name, ast.unparse(call.func)) not in TRUSTED_CALLS
    )


def generated_pages() -> str:
    """Model cards, docs/compare.md and docs/recognition.md are what their scripts make of results/."""
    from finola.hub import WEIGHTS_FOLDER, bundled_models

    cards, compare, recognition = (
        runpy.run_path(str(ROOT / "docs" / f"{name}.py")) for name in ("cards", "compare", "recognition")
    )
    pages = {WEIGHTS_FOLDER / name / "README.md": cards["card"](name) for name in bundled_models()}
    pages[ROOT / "docs" / "compare.md"] = compare["page"](compare["load"]())
    pages[ROOT / "docs" / "recognition.md"] = recognition["page"]()
    stale = [path for path, text in pages.items() if path.read_text(encoding="utf-8") != text]
    return ", ".join(f"{path.relative_to(ROOT)} is not what results/ gives" for path in stale)


def cards_name_recipes() -> str:
    """Every card names the settings of each stage of training, stored with the summary of the finished run."""
    from finola.hub import WEIGHTS_FOLDER, bundled_models

    faults = []
    for name in bundled_models():
        recipes = re.findall(
            r"`(results/[\w/.-]+/recipe\.yaml)`", (WEIGHTS_FOLDER / name / "README.md").read_text("utf-8")
        )
        faults += [] if recipes else [f"the card of {name} names no recipe"]
        for recipe in recipes:
            summary = (ROOT / recipe).with_name("summary.json")
            if not (ROOT / recipe).exists() or not summary.exists():
                faults.append(f"{recipe} of {name} is not stored with its summary")
            elif json.loads(summary.read_text("utf-8"))["status"] != "finished":
                faults.append(f"the run of {recipe} did not finish")
    return ", ".join(faults)


def numbers_in(value: Any) -> Iterator[float]:
    """All numbers of a JSON value."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def unknown_decibels(text: str, known: Sequence[float]) -> list[str]:
    """Values in dB of a text that no known number rounds to.

    >>> unknown_decibels("23.90 dB and 25.45 dB, 26.1 dB", [23.8987, 25.5])
    ['25.45', '26.1']
    """
    found = re.findall(r"(\d+\.\d+) dB", text)
    return [word for word in found if not any(f"{number:.{len(word.partition('.')[2])}f}" == word for number in known)]


def readme_numbers() -> str:
    """Every dB value of the README is in results/, or quoted from the paper."""
    files = [path for pattern in METRIC_FILES for path in (ROOT / "results").glob(pattern)]
    stored = (json.loads(path.read_text(encoding="utf-8")) for path in files)
    known = [number for content in (*stored, quoted()) for number in numbers_in(content)]
    unknown = unknown_decibels((ROOT / "README.md").read_text(encoding="utf-8"), known)
    return ", ".join(f"{word} dB is in no stored output" for word in unknown)


def same_psnr(found: Any) -> str:
    """Judge an evaluation that was run again: equal to the stored one to 0.01 dB."""
    stored = json.loads((ROOT / "results" / "evaluate-tile32-photos256.json").read_text(encoding="utf-8"))
    return "" if abs(found["psnr"] - stored["psnr"]) < 0.01 else f"{found['psnr']} dB, stored {stored['psnr']} dB"


def measured(name: str, script: str, result: str, holds: Callable[[Any], str] = is_output, needs: str = "") -> Evidence:
    """Output of a script of benchmarks/, which writes it to the path after --out."""
    command = (*f"benchmarks/{script}".split(), "--out", OUT)
    return Evidence(name, command=command, result=result, holds=holds, needs=needs)


def printed(name: str, script: str, result: str, needs: str = "") -> Evidence:
    """Output of a script of benchmarks/, which prints it."""
    return Evidence(name, command=(f"benchmarks/{script}",), result=result, holds=is_output, needs=needs)


CODEC, TRAINING = "tests/codec", "tests/training"
ENCODERS = "random=mf-w720 masked-b=runs/masked-b-w720-128/model"
PROMISES = (
    Promise(
        "A .finola file decodes to the same latents on every machine; its hash covers all that decides its pixels",
        (
            Evidence(
                "stored files of both versions decode to the same integers, with any number of threads",
                tests=(
                    f"{CODEC}/test_codec.py::test_stored_files_decode_to_the_same_integers",
                    f"{CODEC}/test_codec.py::test_integers_are_independent_of_threads",
                    f"{CODEC}/test_elastic_photo.py::test_a_stored_file_decodes_to_the_same_integers",
                    f"{CODEC}/test_rans.py",
                    f"{CODEC}/test_contexts.py",
                    f"{CODEC}/test_container.py",
                ),
            ),
            Evidence(
                "another model, or other waves, have another hash",
                tests=(
                    f"{CODEC}/test_codec.py::test_the_hash_covers_the_waves_of_a_model_without_weights",
                    f"{CODEC}/test_codec.py::test_missing_or_different_model_raises_with_its_name_or_hash",
                    f"{CODEC}/test_elastic_photo.py::test_the_hash_covers_the_name_of_the_model",
                ),
            ),
        ),
    ),
    Promise(
        "Weights are safetensors; nothing downloaded or given by a user is unpickled",
        (
            Evidence("bundled weights and tables are safetensors", check=only_safetensors),
            Evidence("no call in the package unpickles, except files declared as trusted", check=nothing_unpickles),
            Evidence(
                "pickle files and harmful checkpoints are not executed",
                tests=(
                    "tests/test_serialization.py::test_a_pickle_file_is_never_read",
                    f"{TRAINING}/test_checkpoint.py::test_malicious_checkpoint_is_rejected_and_not_executed",
                    f"{TRAINING}/test_checkpoint.py::test_checkpoint_contains_the_whole_state",
                    "tests/deployment/test_export.py::test_files_of_torch_export_are_not_opened_unless_trusted",
                ),
            ),
            Evidence(
                "20,000 damaged files of every kind end in a result or in one sentence",
                command=("benchmarks/fuzz_readers.py", "--output", OUT),
                result="fuzz-readers.json",
                holds=no_failures,
                needs="linux",
            ),
        ),
    ),
    Promise(
        "Files and checkpoints are written beside their target and renamed",
        (
            Evidence(
                "a crash or a failed write leaves the old file",
                tests=(
                    "tests/test_files.py",
                    f"{TRAINING}/test_checkpoint.py::test_failed_write_keeps_the_existing_checkpoint",
                    f"{TRAINING}/test_checkpoint.py::test_last_and_previous_checkpoints_are_kept",
                ),
            ),
            Evidence(
                "no command damages files when its input or output is faulty", tests=("tests/cli/test_faults.py",)
            ),
        ),
    ),
    Promise(
        "Same seed, same numbers; a run killed at any step resumes to the same numbers",
        (
            Evidence("killed and interrupted runs equal uninterrupted ones", tests=(f"{TRAINING}/test_resume.py",)),
            Evidence(
                "samples, augmentation and masks depend on seed, epoch and index only",
                tests=(
                    "tests/data/test_loader.py::test_sample_depends_on_seed_epoch_and_index_only",
                    f"{TRAINING}/tasks/test_classification.py::test_resumed_run_repeats_augmentation_and_mixing",
                    f"{TRAINING}/tasks/test_masked.py::test_resumed_run_repeats_the_mask_positions",
                    "tests/paper/test_run.py::test_runs_are_cached_and_the_same_seeds_give_the_same_json",
                ),
            ),
        ),
    ),
    Promise(
        "Tests pass on every CPU, with any thread count and in any order",
        (
            Evidence(
                "the suite with other instruction sets, thread counts and orders",
                command=("benchmarks/portability.py", "--out", OUT),
                result="portability.json",
                holds=suite_passes,
            ),
        ),
    ),
    Promise(
        "Published numbers come from commands whose output is stored; weights from the recipe that their card names",
        (
            Evidence("model cards and generated pages are what results/ gives", check=generated_pages),
            Evidence("every dB value of the README is stored or quoted", check=readme_numbers),
            Evidence("every card names stored settings of a finished run", check=cards_name_recipes),
            Evidence(
                "evaluating tile32 again gives the stored metrics",
                command=("-m", "finola.cli", "evaluate", "tile32", "photos256", "--split", "val", "--json"),
                holds=same_psnr,
                needs="data",
            ),
            measured("memory of the recurrence", "memory.py", "memory.json", maps_in_memory),
            measured("fast clicks on the page", "page_clicks.py", "page-clicks.json", clicks_pass, needs="chromium"),
            measured("speed of detection", "detection_speed.py", "detection-speed.json"),
            printed("memory of the codec", "codec_memory.py", "codec-memory.json"),
            printed("speed of the page", "page_speed.py", "page-speed.json", needs="chromium"),
            measured("wave initialisation", "wave_start.py", "wave_start.json", needs="data"),
            measured("borders of tiles", "tile_borders.py kodak", "tile-borders.json", needs="data"),
            measured("overfitting a detector", "overfit_detection.py detect", "overfit-detect.json", needs="data"),
            measured(
                "overfitting a segmenter",
                "overfit_detection.py segment --lr 5e-4 --clip 1",
                "overfit-segment.json",
                needs="data",
            ),
            measured(
                "comparison of detectors", f"compare_detection.py {ENCODERS}", "detection-compare.json", needs="data"
            ),
        ),
    ),
)
