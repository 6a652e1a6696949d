"""finola reproduce: the claims of the paper, the runs that test them, and the verdicts."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import positive
from finola.cli.output import add_force, print_json, print_line, print_table, say
from finola.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from finola.paper.definitions import Claim
    from finola.paper.run import Job
    from finola.recipes.recipe import Recipe

HELP = "reproduce the claims of the paper: run what they need and print ours beside the paper's"
HOURS = 10
"""Limit of all runs at CPU scale on two cores."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("label", nargs="?", metavar="LABEL", help="LaTeX label, name of a claim, or all")
    parser.add_argument("--list", action="store_true", help="list all tables and figures with their claims and costs")
    parser.add_argument(
        "--report", nargs="?", const="docs/reproduction.md", metavar="FILE", help="write the page of all verdicts"
    )
    parser.add_argument("--scale", choices=("paper", "cpu"), default="cpu", help="default: %(default)s")
    parser.add_argument("--seeds", type=positive, default=2, metavar="N", help="seeds 0 … N − 1 (default: %(default)s)")
    parser.add_argument("--data", help="photos in any format that finola train reads (default: FINOLA_DATA)")
    parser.add_argument(
        "--jobs", type=positive, metavar="N", help="runs side by side (default: 2 at scale cpu, else 1)"
    )
    parser.add_argument(
        "--runs", default="runs/reproduce", metavar="DIR", help="run directories (default: %(default)s)"
    )
    parser.add_argument(
        "--results", default="results/reproduce", metavar="DIR", help="JSON files of results (default: %(default)s)"
    )
    parser.add_argument(
        "--reuse", action="store_true", help="do not train runs again whose results are in --results, to add seeds"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs and their cost")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.paper.claims import find_claims

    if sum([args.label is not None, args.list, args.report is not None]) != 1:
        raise InputError("Give one of LABEL, --list and --report, such as finola reproduce table:comp-norm.")
    if args.list:
        _list(args)
    elif args.report is not None:
        _report(args)
    elif args.dry_run:
        _dry_run(args)
    else:
        _reproduce(find_claims(args.label, args.scale), args)


def _list(args: argparse.Namespace) -> None:
    from finola.paper.claims import CLAIMS, citation_of, examined, find_claims, labels_of
    from finola.paper.run import jobs_of
    from finola.paper.tables import FIGURES, TABLES, cite

    claims = [claim for claim in CLAIMS.values() if not claim.source and "cpu" in claim.scales]
    hours, total = (
        _hours(jobs_of(chosen, "cpu", args.seeds, args.data, Path(args.runs)))
        for chosen in (claims, find_claims("all"))
    )
    tables = [(each.label, cite(each.label, each.part), each.sentence, examined(each)) for each in (*TABLES, *FIGURES)]
    costs = [(claim.name, citation_of(claim), f"{hours[claim.name]:.1f}", claim.sentence) for claim in claims]
    if args.json:
        listed = [
            {"claim": claim.name, "labels": labels_of(claim), "sentence": sentence, "core_hours": hours[claim.name]}
            for claim, (*_, sentence) in zip(claims, costs, strict=True)
        ]
        labels = [dict(zip(("label", "citation", "sentence", "examined"), table, strict=True)) for table in tables]
        print_json({"labels": labels, "claims": listed, "core_hours": total["all"]})
        return
    shown = [(citation, how, sentence) for _, citation, sentence, how in tables]
    print_table("tables and figures of the paper", ["", "examined", "statement"], shown)
    print_table("claims with runs", ["claim", "", "core hours", "sentence"], costs)
    print(
        f"All runs at scale cpu with {args.seeds} seeds take about {total['all'] / 2:.1f} hours on two cores "
        f"(limit: {HOURS}); rows that claims share are trained once, and claims on recognition need labelled photos."
    )


def _hours(jobs: dict[str, list[Job]]) -> dict[str, float]:
    """Estimated hours of one core by claim, and for all of them without repeated runs."""
    from finola.paper.cost import plan
    from finola.paper.run import SCALES

    photos = SCALES["cpu"].photos
    hours = {job.folder: plan(job.recipe, photos, "cpu").hours for found in jobs.values() for job in found}
    return {name: sum(hours[job.folder] for job in found) for name, found in jobs.items()} | {
        "all": sum(hours.values())
    }


def _dry_run(args: argparse.Namespace) -> None:
    """Print the commands of the runs of claims; at paper scale and for tables without runs, those of the table."""
    from finola.paper.claims import commands_of, find_claims, rows_of
    from finola.paper.cost import PLANNED
    from finola.paper.run import jobs_of, plan
    from finola.recipes.loading import load_recipe

    commands = commands_of(args.label, args.data)
    try:
        claims = [claim for claim in find_claims(args.label, args.scale) if args.scale in claim.scales or not commands]
    except InputError:
        if not commands:
            raise
        claims = []
    recipes = {
        name: load_recipe(name) for words in map(str.split, commands) if words[1] == "train" for name in words[2:3]
    }
    costs = [(name, recipe) for name, recipe in recipes.items() if recipe.task in PLANNED]
    if not claims:
        _print_plan(commands, _costs(costs), None, args.json)
        return
    found = jobs_of(claims, args.scale, args.seeds, args.data, Path(args.runs))
    jobs = {job.folder: job for jobs in found.values() for job in jobs}
    hours = _hours(found)["all"] if args.scale == "cpu" else None
    rows = [row for claim in claims if "paper" in claim.scales for row in rows_of(claim, "paper").values()]
    # Rows with the same settings are trained once, whatever the claim.
    paper = {job.folder: (row.about, job.recipe) for row in rows for job in [plan(row, "paper", 0)]}
    printed = [shlex.join(job.command) for job in jobs.values()]
    _print_plan(printed, _costs(paper.values() or costs), hours, args.json)


def _costs(recipes: Iterable[tuple[str, Recipe]]) -> list[dict[str, Any]]:
    """Images, multiply–adds and days on 8 V100 of training recipes on ImageNet-1K."""
    from finola.paper.cost import FLOPS_PER_MULTIPLY_ADD, plan
    from finola.paper.run import SCALES

    found = []
    for name, recipe in recipes:
        planned = plan(recipe, SCALES["paper"].photos, "v100", 8)
        counted, days = planned.flops // FLOPS_PER_MULTIPLY_ADD, round(planned.hours / 24, 1)
        found.append({"row": name, "images": planned.images, "multiply_adds": counted, "days": days})
    return found


def _print_plan(commands: list[str], costs: list[dict[str, Any]], core_hours: float | None, as_json: bool) -> None:
    """Print the commands of runs, the time they take on one core if it is known, and the cost at paper scale."""
    if as_json:
        print_json({"commands": commands, "core_hours": core_hours, "paper_scale": costs})
        return
    for command in commands:
        print_line(command)
    if core_hours is not None:
        print(f"These {len(commands)} runs take about {60 * core_hours:.0f} minutes of one core.\n")
    if costs:
        cells = [(c["row"], f"{c['images']:.3g}", f"{c['multiply_adds']:.2g}", f"{c['days']:.1f}") for c in costs]
        total = (f"{sum(c['multiply_adds'] for c in costs):.2g}", f"{sum(c['days'] for c in costs):.1f}")
        columns = ["row", "images", "multiply–adds", "days on 8 V100"]
        print_table("cost at the scale of the paper, one seed", columns, [*cells, ("all of these", "", *total)])


def _reproduce(claims: list[Claim], args: argparse.Namespace) -> None:
    from finola.paper.run import reproduce

    def report(line: str) -> None:
        say(f"finola reproduce: {line}")

    workers = args.jobs or (2 if args.scale == "cpu" else 1)
    places = (args.runs, args.results)
    found = reproduce(claims, args.scale, args.seeds, args.data, *places, workers, args.reuse, report=report)
    if args.json:
        pairs = zip(claims, found, strict=True)
        print_json({"claims": [result | {"verdict": _verdict(claim, result)} for claim, result in pairs]})
        return
    from finola.paper.claims import citation_of
    from finola.paper.report import row_table

    for claim, result in zip(claims, found, strict=True):
        print_table(f"{citation_of(claim)}: {claim.sentence}", *row_table(claim, result))
        judged = _verdict(claim, result)
        details = [f"{key} {judged[key]}" for key in ("comparison", "margin", "noise") if judged[key]]
        print_line(f"{claim.name}: {'; '.join([judged['status'], *details])}")


def _verdict(claim: Claim, result: dict[str, Any]) -> dict[str, str]:
    from finola.paper.report import describe, judge_stored

    judged = judge_stored(claim, result)
    return {"status": judged.status, **dict(zip(("comparison", "margin", "noise"), describe(judged), strict=True))}


def _report(args: argparse.Namespace) -> None:
    from finola.files import output_path, write_text
    from finola.paper.report import generate

    if Path(args.report).suffix != ".md":
        raise InputError(f"--report {args.report}: give a file that ends in .md. The report has all claims.")
    target = output_path(args.report, [args.results], args.force)
    if not Path(args.results).is_dir():
        raise InputError(f"There are no results in {args.results}. Run finola reproduce first, or give --results.")
    write_text(target, generate(Path(args.results)))
    if args.json:
        print_json({"written": args.report})
    else:
        print_line(f"Wrote {args.report}")
