"""finola reproduce: the claims of the paper, the runs that test them, and the verdicts."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import positive
from finola.cli.output import print_json, print_table
from finola.errors import InputError

if TYPE_CHECKING:
    from finola.reproduce.claims import Claim
    from finola.reproduce.runner import Job

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
    parser.add_argument("--dry-run", action="store_true", help="print the commands of the runs and their cost")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.reproduce.claims import find_claims, recipes_without_claim

    if sum([args.label is not None, args.list, args.report is not None]) != 1:
        raise InputError("Give one of LABEL, --list and --report, such as finola reproduce table:comp-norm.")
    if args.list:
        _list(args)
    elif args.report is not None:
        _report(args)
    elif args.dry_run and (names := recipes_without_claim(args.label)):
        _print_commands([f"finola train {name}" for name in names], args.json)
    elif args.dry_run:
        _dry_run(find_claims(args.label, args.scale), args)
    else:
        _reproduce(find_claims(args.label, args.scale), args)


def _list(args: argparse.Namespace) -> None:
    from finola.paper import cite
    from finola.reproduce.claims import CLAIMS
    from finola.reproduce.runner import jobs_of
    from finola.reproduce.statements import RUNS, STATEMENTS

    claims = [claim for claim in CLAIMS.values() if "cpu" in claim.scales]
    jobs = jobs_of(claims, "cpu", args.seeds, args.data, Path(args.runs))
    hours = _hours(jobs)
    if args.json:
        labels = [{"label": label, **statement._asdict()} for label, statement in STATEMENTS.items()]
        listed = [
            {"claim": claim.name, "labels": claim.labels, "sentence": claim.sentence, "core_hours": hours[claim.name]}
            for claim in claims
        ]
        print_json({"labels": labels, "claims": listed, "core_hours": hours["all"]})
        return
    shown = {RUNS: "has runs", "definition": "no claim"}
    rows = [(cite(label), shown.get(each.examined, each.examined), each.sentence) for label, each in STATEMENTS.items()]
    print_table("tables and figures of the paper", ["", "examined", "statement"], rows)
    costs = [(claim.name, claim.citation(), f"{hours[claim.name]:.1f}", claim.sentence) for claim in claims]
    print_table("claims with runs", ["claim", "", "core hours", "sentence"], costs)
    print(
        f"All runs at scale cpu with {args.seeds} seeds take about {hours['all'] / 2:.1f} hours on two cores "
        f"(limit: {HOURS}); rows that claims share are trained once."
    )


def _hours(jobs: dict[str, list[Job]]) -> dict[str, float]:
    """Estimated hours of one core by claim, and for all of them without repeated runs."""
    from finola.reproduce.claims import SCALES
    from finola.reproduce.cost import estimated_seconds

    photos = SCALES["cpu"].photos
    seconds = {job.folder: estimated_seconds(job.recipe, photos) for found in jobs.values() for job in found}
    by_claim = {name: sum(seconds[job.folder] for job in found) / 3600 for name, found in jobs.items()}
    return by_claim | {"all": sum(seconds.values()) / 3600}


def _dry_run(claims: list[Claim], args: argparse.Namespace) -> None:
    from finola.reproduce.claims import SCALES
    from finola.reproduce.cost import images_seen, multiply_adds
    from finola.reproduce.runner import jobs_of, plan

    jobs = {
        job.folder: job
        for found in jobs_of(claims, args.scale, args.seeds, args.data, Path(args.runs)).values()
        for job in found
    }
    rows = {row.name: row for claim in claims for row in claim.rows if "paper" in claim.scales}
    photos = SCALES["paper"].photos
    costs = []
    for row in rows.values():
        recipe = plan(row, "paper", 0).recipe
        costs.append((row.name, images_seen(recipe, photos), multiply_adds(recipe, photos)))
    commands = [shlex.join(job.command) for job in jobs.values()]
    if args.json:
        named = [{"row": name, "images": images, "multiply_adds": count} for name, images, count in costs]
        print_json({"commands": commands, "paper_scale": named})
        return
    _print_commands(commands, as_json=False)
    if costs:
        cells = [(name, f"{images:.3g}", f"{count:.2g}") for name, images, count in costs]
        cells.append(("all rows, one seed", "", f"{sum(cost[2] for cost in costs):.2g}"))
        print_table("cost at the scale of the paper", ["row", "images", "multiply–adds"], cells)


def _print_commands(commands: list[str], as_json: bool) -> None:
    if as_json:
        print_json({"commands": commands})
        return
    for command in commands:
        print(command)


def _reproduce(claims: list[Claim], args: argparse.Namespace) -> None:
    from finola.reproduce.runner import reproduce

    def report(line: str) -> None:
        print(f"finola reproduce: {line}", file=sys.stderr, flush=True)

    workers = args.jobs or (2 if args.scale == "cpu" else 1)
    found = reproduce(claims, args.scale, args.seeds, args.data, args.runs, args.results, workers, report=report)
    if args.json:
        print_json([result | {"verdict": _verdict(claim, result)} for claim, result in zip(claims, found, strict=True)])
        return
    from finola.reproduce.report import row_table

    for claim, result in zip(claims, found, strict=True):
        print_table(f"{claim.citation()}: {claim.sentence}", *row_table(claim, result))
        judged = _verdict(claim, result)
        details = [f"{key} {judged[key]}" for key in ("comparison", "margin", "noise") if judged[key]]
        print(f"{claim.name}: {'; '.join([judged['status'], *details])}")


def _verdict(claim: Claim, result: dict[str, Any]) -> dict[str, str]:
    from finola.reproduce.report import describe, judge_stored

    judged = judge_stored(claim, result)
    return {"status": judged.status, **dict(zip(("comparison", "margin", "noise"), describe(judged), strict=True))}


def _report(args: argparse.Namespace) -> None:
    from finola.files import write_text
    from finola.reproduce.report import generate

    write_text(Path(args.report), generate(Path(args.results)))
    print(f"Wrote {args.report}")
