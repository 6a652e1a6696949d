"""Every claim has rows and a verdict, and its runs are those of the recipes derived from its table."""

from __future__ import annotations

import json
import math
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from finola.cli import build_parser, main
from finola.config import RECURRENT, ModelConfig
from finola.errors import InputError, UnknownNameError
from finola.model_counts import Count
from finola.paper import cost
from finola.paper.claims import CLAIMS, SOURCES, commands_of, examined, find_claims, labels_of, rows_of
from finola.paper.definitions import PROBE_METRICS, Claim, Same
from finola.paper.recipes import canonical
from finola.paper.recognition import STUDY
from finola.paper.report import judge
from finola.paper.run import Job, jobs_of, plan
from finola.paper.tables import EVERYTHING, FIGURES, ROWS, TABLES, number, quoted_numbers
from finola.paper.verdict import FAILS, NOT_RUN, WEAKLY, verdict
from finola.recipes.loading import load_recipe

ROOT = Path(__file__).parents[2]
RUNS = {name: claim for name, claim in CLAIMS.items() if not claim.source}
COMMANDS = list(dict.fromkeys(table.label for table in EVERYTHING if table.commands))


def jobs(claim: Claim) -> list[Job]:
    return [job for scale in claim.scales for job in jobs_of([claim], scale, 1, "photos")[claim.name]]


def test_every_table_and_figure_is_examined_or_says_why_not() -> None:
    for table in (*TABLES, *FIGURES):
        claims = [claim for claim in CLAIMS.values() if table.label in labels_of(claim)]
        assert table.sentence and (bool(claims) or bool(table.needs)) == (examined(table) != "no claim")
        assert not table.page or ((ROOT / "docs" / table.page).is_file() and (claims or table.needs))
    names = [claim.name for table in EVERYTHING for claim in table.claims]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("claim", RUNS.values(), ids=RUNS)
def test_a_claim_compares_its_own_rows(claim: Claim) -> None:
    assert all(number(label) for label in labels_of(claim))
    rows = rows_of(claim)
    assert len({row.about for row in rows.values()}) == len(rows)
    equal = {name: [dict.fromkeys(claim.metrics, 1.0)] for name in rows}
    found = verdict(claim.checks, equal)
    assert found.comparison and math.isfinite(found.margin)


@pytest.mark.parametrize("claim", RUNS.values(), ids=RUNS)
def test_commands_train_the_planned_recipe(claim: Claim) -> None:
    for job in jobs(claim):
        words = shlex.split(shlex.join(job.command))
        args = build_parser().parse_args(words[1:])
        assert load_recipe(args.recipe, args.overrides) == job.recipe and job.recipe.data.path == "photos"
        assert args.resume and Path(args.out) == job.folder


def test_equal_runs_share_a_directory_and_different_ones_do_not() -> None:
    row = rows_of(CLAIMS["normalisation"])["layer-norm"]
    first = plan(row, "cpu", 0, "photos")
    alias = rows_of(CLAIMS["channels"])["3072"]
    assert plan(alias, "cpu", 0, "elsewhere/photos").folder == first.folder
    others = [plan(row, "cpu", 1, "photos"), plan(row, "cpu", 0, "pictures"), plan(row, "paper", 0, "photos")]
    others.append(plan(Same(row.of, "longer", overrides=("schedule.epochs=6",)), "cpu", 0, "photos"))
    assert len({first.folder, *(job.folder for job in others)}) == 5


def test_small_twins_compare_what_the_paper_compares() -> None:
    for claim in RUNS.values():
        for row in rows_of(claim).values() if "paper" in claim.scales else ():
            twin, paper = (ModelConfig.parse(plan(row, scale, 0).recipe.model.name) for scale in ("cpu", "paper"))
            assert all(getattr(twin, key) == getattr(paper, key) for key in ("speeds", "start", "paths"))
            assert (twin.transition in RECURRENT) == (paper.transition in RECURRENT)


def test_at_paper_scale_every_row_of_a_table_is_run() -> None:
    claims = [claim for claim in RUNS.values() if "paper" in claim.scales]
    run = {plan(row, "paper", 0).recipe.model.name for claim in claims for row in rows_of(claim, "paper").values()}
    assert {load_recipe(f"paper/{name}").model.name for name in ROWS} <= run


def test_quoted_values_are_those_of_the_paper() -> None:
    quoted = [quoted_numbers(row) for row in rows_of(CLAIMS["normalisation"]).values()]
    assert quoted == [{"psnr": 16.3, "train_mode_psnr": 25.1}, {"psnr": 25.8, "train_mode_psnr": 25.5}]
    psnr = [quoted_numbers(row)["psnr"] for row in rows_of(CLAIMS["channels"]).values()]
    assert all(low < high for low, high in pairwise(psnr))
    assert quoted_numbers(rows_of(CLAIMS["wave-start"])["random-96"]) == {}  # a result of our own


def test_claims_are_found_by_label_and_name() -> None:
    assert [claim.name for claim in find_claims("table:special-case-all")] == ["speeds", "all-one"]
    assert find_claims("speeds") == [CLAIMS["speeds"]]
    assert find_claims("all") == [claim for claim in RUNS.values() if not claim.labelled]
    with pytest.raises(UnknownNameError, match="did you mean table:comp-norm"):
        find_claims("table:comp-nrom")


def test_tables_without_runs_have_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for table in (*TABLES, *FIGURES):
        if not any(table.label in labels_of(claim) for claim in RUNS.values()):
            assert bool(table.commands) == (examined(table) != "no claim")
            with pytest.raises(InputError, match=f"{table.label}.*{'--dry-run' if table.commands else 'no claim'}"):
                find_claims(table.label)
    words = ["fig:appendix:recon-ftlin", "--dry-run", "--scale", "paper", "--data", "imagenet/", "--json"]
    assert main(["reproduce", *words]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["commands"][0] == "finola train masked/e-w2880 data.path=imagenet/"
    assert [row["row"] for row in printed["paper_scale"]] == [
        f"masked/{n}-w2880" for n in ("e", "b", "recon-e", "recon-b")
    ]
    assert all(row["days"] > 0 for row in printed["paper_scale"])


@pytest.mark.parametrize("label", COMMANDS)
def test_commands_are_valid_and_use_weights_of_earlier_ones(label: str) -> None:
    commands = commands_of(label)
    assert len(set(commands)) == len(commands)
    trained: set[str] = set()
    for command in commands:
        if not command.startswith("finola "):
            continue
        args = build_parser().parse_args(shlex.split(command)[1:])
        if args.verb != "train":
            folders = re.findall(r"runs/([^ ]+)/model", command)
            assert folders and set(folders) <= trained
            continue
        recipe = load_recipe(args.recipe, args.overrides)
        if recipe.model.weights is not None:
            assert recipe.model.weights.removeprefix("runs/").removesuffix("/model") in trained
        trained.add((args.out or canonical(args.recipe).replace("/", "-")).removeprefix("runs/"))


def test_the_list_has_every_table_claim_and_the_cost(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = {"encoder": Count(1, 10**8), "decoder": Count(1, 10**8)}
    for name in ("_sizes", "_count_masked", "_count_classifier"):
        monkeypatch.setattr(cost, name, lambda *_: counts)
    assert main(["reproduce", "--list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert main(["reproduce", "--list"]) == 0
    printed = capsys.readouterr().out
    assert [entry["label"] for entry in listed["labels"]] == [table.label for table in (*TABLES, *FIGURES)]
    by_claim = {entry["claim"]: entry["core_hours"] for entry in listed["claims"]}
    assert list(by_claim) == list(RUNS)
    assert 0 < listed["core_hours"] < sum(by_claim.values())  # shared rows count once
    assert all(table.label in printed for table in TABLES) and "hours on two cores" in printed


def test_a_dry_run_prints_commands_and_the_cost_at_paper_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table:comp-norm", "--dry-run", "--json", "--data", "photos", "--seeds", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["commands"]) == 6 and len(printed["paper_scale"]) == 2
    assert 0.1 < printed["core_hours"] < 10
    for command in printed["commands"]:
        assert build_parser().parse_args(shlex.split(command)[1:]).verb == "train"
    assert all(row["multiply_adds"] > 1e19 for row in printed["paper_scale"])
    assert main(["reproduce", "table:comp-norm", "--dry-run", "--data", "photos"]) == 0
    printed_words = capsys.readouterr().out
    assert printed_words.startswith("finola train cpu/normalisation/batch-norm ") and "minutes" in printed_words


@pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="source distributions have no results/")
@pytest.mark.parametrize("claim", [claim for claim in CLAIMS.values() if claim.source], ids=lambda claim: claim.name)
def test_claims_on_other_measurements_are_judged_by_files_of_the_repository(claim: Claim) -> None:
    assert judge(claim, ROOT / "results" / "reproduce").status != NOT_RUN
    assert claim.source in SOURCES


STORED = sorted((ROOT / "results" / "reproduce" / "cpu").glob("*.times.json"))


@pytest.mark.skipif(not STORED, reason="source distributions have no results/")
@pytest.mark.parametrize("times", STORED, ids=lambda path: path.name.partition(".")[0])
def test_stored_results_are_those_of_the_present_recipes(times: Path) -> None:
    stored = json.loads(times.with_name(times.name.replace(".times", "")).read_text("utf-8"))
    claim = CLAIMS[stored["claim"]]
    rows = {row.about: row for row in rows_of(claim).values()}
    assert stored["rows"].keys() <= rows.keys()
    for about, row in stored["rows"].items():
        for seed, result in row["seeds"].items():
            assert result["run"] == plan(rows[about], "cpu", int(seed), stored["data"]["name"]).folder.name
            assert claim.metrics == () or set(claim.metrics) <= result.keys()


@pytest.mark.parametrize(
    ("lin", "status"), [((40.0, 45.0, 50.0), WEAKLY), ((50.0, 45.0, 55.0), FAILS), ((40.0, 45.0), NOT_RUN)]
)
def test_an_order_of_pre_training_methods(tmp_path: Path, lin: tuple[float, ...], status: str) -> None:
    claim = CLAIMS["masking"]
    rows = {row.about: {"seeds": {"0": dict.fromkeys(PROBE_METRICS, 0.0)}} for row in rows_of(claim).values()}
    methods = [STUDY[method].about for method in ("finola", "masked-e", "masked-b")]
    for method, value in zip(methods, (*lin, None), strict=False):
        rows[method] = {"seeds": {} if value is None else {"0": dict.fromkeys(PROBE_METRICS, value)}}
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "masking.json").write_text(json.dumps({"claim": "masking", "rows": rows}))
    assert judge(claim, tmp_path).status == status
