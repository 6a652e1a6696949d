"""Every table and figure has a statement, and every claim has runs that `finola train` accepts."""

from __future__ import annotations

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from finola.cli import build_parser, main
from finola.config import ModelConfig
from finola.errors import InputError, UnknownNameError
from finola.model_counts import Count
from finola.paper import FIGURES, TABLES, number
from finola.recipes.table import ROWS, canonical
from finola.reproduce import cost
from finola.reproduce.claims import CLAIMS, find_claims
from finola.reproduce.commands import COMMANDS, commands_of
from finola.reproduce.cost import images_seen
from finola.reproduce.definitions import SCALES, Claim, Row
from finola.reproduce.runner import Job, jobs_of, plan
from finola.reproduce.statements import RUNS, STATEMENTS
from finola.reproduce.verdicts import verdict
from finola.training.loading import load_recipe


def jobs(claim: Claim) -> list[Job]:
    return [job for scale in claim.scales for job in jobs_of([claim], scale, 1, "photos")[claim.name]]


def test_every_table_and_figure_has_a_statement() -> None:
    assert list(STATEMENTS) == [*TABLES, *FIGURES]
    with_claims = {label for claim in CLAIMS.values() for label in claim.labels if label in STATEMENTS}
    assert with_claims == {label for label, statement in STATEMENTS.items() if statement.examined == RUNS}
    pages = {statement.examined for statement in STATEMENTS.values() if statement.examined.endswith(".md")}
    assert all((Path(__file__).parents[2] / "docs" / page).is_file() for page in pages)


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_a_claim_compares_its_own_rows(claim: Claim) -> None:
    assert all(number(label) for label in claim.labels)
    names = [row.name for row in claim.rows]
    assert len(set(names)) == len(names)
    runs = [{name: [dict.fromkeys(claim.metrics, value)] for name in names} for value in (1.0, 2.0)]
    first, second = (verdict(claim.checks, found) for found in runs)
    assert first.comparison and first.comparison == second.comparison


@pytest.mark.parametrize("claim", CLAIMS.values(), ids=CLAIMS)
def test_commands_train_the_planned_recipe(claim: Claim) -> None:
    for job in jobs(claim):
        words = shlex.split(shlex.join(job.command))
        args = build_parser().parse_args(words[1:])
        assert load_recipe(args.recipe, args.overrides) == job.recipe and job.recipe.data.path == "photos"
        assert args.resume and Path(args.out) == job.folder


def test_equal_runs_share_a_directory_and_different_ones_do_not() -> None:
    row = CLAIMS["normalisation"].rows[1]
    alias = CLAIMS["channels"].rows[-1]
    first = plan(row, "cpu", 0, "photos")
    assert plan(alias, "cpu", 0, "elsewhere/photos").folder == first.folder
    others = [plan(row, "cpu", 1, "photos"), plan(row, "cpu", 0, "pictures"), plan(row, "paper", 0, "photos")]
    others.append(plan(Row("longer", row.recipe, ("schedule.epochs=6",)), "cpu", 0, "photos"))
    assert len({first.folder, *(job.folder for job in others)}) == 5


def test_small_twins_compare_what_the_paper_compares() -> None:
    for claim in CLAIMS.values():
        for row in claim.rows if "paper" in claim.scales else ():
            twin, paper = (ModelConfig.parse(plan(row, scale, 0).recipe.model.name) for scale in ("cpu", "paper"))
            assert all(getattr(twin, key) == getattr(paper, key) for key in ("transition", "speeds", "start", "paths"))


def test_at_paper_scale_every_row_of_a_table_is_run() -> None:
    run = {plan(row, "paper", 0).recipe.model.name for claim in CLAIMS.values() for row in claim.rows_at("paper")}
    rows = {load_recipe(f"paper/{name}").model.name for name in ROWS}
    assert rows <= run
    assert all(claim.rows_at("cpu") == claim.rows for claim in CLAIMS.values())


def test_quoted_values_are_those_of_the_paper() -> None:
    quoted = [row.paper() for row in CLAIMS["normalisation"].rows]
    assert quoted == [{"psnr": 16.3, "train_mode_psnr": 25.1}, {"psnr": 25.8, "train_mode_psnr": 25.5}]
    psnr = [row.paper()["psnr"] for row in CLAIMS["channels"].rows]
    assert all(low < high for low, high in pairwise(psnr))
    assert CLAIMS["wave-start"].rows[0].paper() == {}  # a result of our own


def test_images_seen() -> None:
    recipe = plan(CLAIMS["channels"].rows[0], "paper", 0).recipe
    assert images_seen(recipe, SCALES["paper"].photos) == 100 * 1_281_167
    before = plan(CLAIMS["waves"].rows[0], "cpu", 0).recipe
    assert images_seen(before, 4_866) == before.data.batch_size


def test_claims_are_found_by_label_and_name() -> None:
    assert [claim.name for claim in find_claims("table:special-case-all")] == ["speeds", "all-one"]
    assert find_claims("speeds") == [CLAIMS["speeds"]] and find_claims("all") == list(CLAIMS.values())
    with pytest.raises(UnknownNameError, match="did you mean table:comp-norm"):
        find_claims("table:comp-nrom")


def test_tables_without_runs_have_commands(capsys: pytest.CaptureFixture[str]) -> None:
    without = [label for label, each in STATEMENTS.items() if each.examined not in (RUNS, "definition")]
    assert set(without) == set(COMMANDS)
    for label in without:
        with pytest.raises(InputError, match=f"{label}.* --dry-run"):
            find_claims(label)
    assert main(["reproduce", "fig:appendix:recon-ftlin", "--dry-run", "--data", "imagenet/", "--json"]) == 0
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
    monkeypatch.setattr(
        "finola.model_counts.sizes", lambda name: {"encoder": Count(1, 10**8), "decoder": Count(1, 10**8)}
    )
    cost._multiply_adds.cache_clear()
    try:
        assert main(["reproduce", "--list", "--json"]) == 0
        listed = json.loads(capsys.readouterr().out)
        assert main(["reproduce", "--list"]) == 0
    finally:
        cost._multiply_adds.cache_clear()
    printed = capsys.readouterr().out
    assert [entry["label"] for entry in listed["labels"]] == list(STATEMENTS)
    by_claim = {entry["claim"]: entry["core_hours"] for entry in listed["claims"]}
    assert list(by_claim) == list(CLAIMS)
    assert 0 < max(by_claim.values()) < listed["core_hours"] < sum(by_claim.values())  # shared rows count once
    assert all(label in printed for label in STATEMENTS) and "hours on two cores" in printed


def test_a_dry_run_prints_commands_and_the_cost_at_paper_scale(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "table:comp-norm", "--dry-run", "--json", "--data", "photos", "--seeds", "3"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["commands"]) == 6 and len(printed["paper_scale"]) == 2
    assert 0.1 < printed["core_hours"] < 10
    for command in printed["commands"]:
        assert build_parser().parse_args(shlex.split(command)[1:]).verb == "train"
    assert all(row["multiply_adds"] > 1e19 for row in printed["paper_scale"])
    assert main(["reproduce", "table:comp-norm", "--dry-run", "--data", "photos"]) == 0
    assert capsys.readouterr().out.startswith("finola train cpu/normalisation/batch-norm ")
