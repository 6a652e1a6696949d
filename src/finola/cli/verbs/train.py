"""finola train: train a recipe with key=value overrides; runs can be stopped and resumed at any step."""

from __future__ import annotations

import argparse
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from finola.cli.output import add_force
from finola.errors import InputError
from finola.locations import user_path

if TYPE_CHECKING:
    from finola.recipes.recipe import Recipe
    from finola.training.run import Outcome

HELP = "train a model from a recipe; runs can be stopped and resumed"
EXIT = {"finished": 0, "diverged": 1, "interrupted": 130}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="a bundled recipe (--list) or a YAML file")
    parser.add_argument(
        "overrides", nargs="*", metavar="key=value", help="settings to override, such as schedule.epochs=20"
    )
    parser.add_argument(
        "--list",
        nargs="?",
        const="",
        metavar="PATTERN",
        help="list the bundled recipes by group, or those whose names match, such as paper/resolution or '*w720*'",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="run directory (default: runs/RECIPE, shared by recipes with equal settings)"
    )
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint in the run directory")
    parser.add_argument(
        "--export", metavar="DIR", help="folder for the trained model (default: model in the run directory)"
    )
    parser.add_argument("--half", action="store_true", help="store the exported weights in half precision")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    _allow_overrides_after_options(parser)


def _allow_overrides_after_options(parser: argparse.ArgumentParser) -> None:
    """Accept overrides after options, as in `train smoke --out runs/a seed=1`, which argparse rejects by default."""
    parse = parser.parse_known_args

    def parse_known_args(args=None, namespace=None):  # type: ignore[no-untyped-def]
        namespace, rest = parse(args, namespace)
        namespace.overrides += [word for word in rest if "=" in word and not word.startswith("-")]
        return namespace, [word for word in rest if word not in namespace.overrides]

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def run(args: argparse.Namespace) -> int:
    from finola.paper.recipes import canonical
    from finola.recipes.loading import load_recipe

    if args.list is not None:
        _list(args.list, args.json)
        return 0
    overrides = list(args.overrides)
    if args.recipe is not None and "=" in args.recipe:  # an override of the recipe in the run directory
        overrides.insert(0, args.recipe)
        args.recipe = None
    if args.recipe is None:
        if not (args.resume and args.out):
            raise InputError(
                "No recipe given. Name one, such as finola train smoke; list all with finola train --list."
            )
        source = f"{args.out}/recipe.yaml"
    else:
        source = args.recipe
    recipe = load_recipe(source, overrides)
    folder = canonical(recipe.name).replace("/", "-")
    if not args.out and folder in ("", ".", ".."):
        raise InputError(f"The recipe's name {recipe.name!r} cannot name a run directory. Change it, or add --out.")
    out = args.out or f"runs/{folder}"

    _check_export(args, recipe, out)
    from finola.training.run import train

    outcome = train(recipe, out, resume=args.resume, export_to=args.export, half=args.half, quiet=args.json)
    return _report(outcome, recipe, args.json)


def _check_export(args: argparse.Namespace, recipe: Recipe, out: str) -> None:
    """Check before training that the model can be written. A resumed run replaces the model in its run directory."""

    from finola.cli.output import WEIGHTS, input_files
    from finola.files import output_paths
    from finola.recipes.loading import RECIPE
    from finola.training.devices import is_first_process

    run, own = user_path(out), args.export is None
    folder = run / "model" if own else user_path(args.export)
    if not is_first_process() or (own and (args.resume or (run / RECIPE).exists() or not folder.exists())):
        return
    data = [path for path in (recipe.data.path, recipe.data.val_path) if path is not None]
    inputs = input_files(data=data, models=[recipe.model.weights])
    output_paths([folder / name for name in (*WEIGHTS, "README.md")], inputs, args.force, create=not own)


def _report(outcome: Outcome, recipe: Recipe, as_json: bool) -> int:
    from dataclasses import asdict

    from finola.cli.output import print_json, print_line, say
    from finola.training.devices import is_first_process

    if not is_first_process():  # only rank 0 reports; launchers treat other exit codes as a crash
        return 0
    if as_json:
        print_json(asdict(outcome))
    say(f"finola train: {outcome.message}.")
    if not as_json and outcome.status == "finished":
        best = _best(outcome.best)
        psnr = getattr(recipe, "paper_psnr", None)
        paper = f" (paper: {psnr} dB)" if psnr else ""
        print_line(
            f"{best}{outcome.images_per_second:.0f} images/s, {outcome.seconds:.0f} s{paper}; model in {outcome.model}"
        )
    return 143 if outcome.signal == "SIGTERM" else EXIT[outcome.status]


def _best(best: dict[str, float]) -> str:
    """Format the metric of the best checkpoint."""
    found = [(metric, value) for metric, value in best.items() if metric != "step"]
    if not found:
        return ""
    metric, value = found[0]
    shown = f"{value:.2f} dB" if metric == "psnr" else f"{metric} {value:.4g}"
    return f"best {shown} at step {int(best['step'])}, "


def _list(pattern: str, as_json: bool) -> None:
    """Print the recipes whose names match a pattern; without one, recipes to start from, our models and all groups."""
    from finola.cli.output import print_json, print_table
    from finola.paper.recipes import GROUPS, STARTING_POINTS
    from finola.recipes.loading import list_recipes, load_recipe

    names = list_recipes()
    if pattern:
        names = [name for name in names if pattern in name or fnmatchcase(name, pattern)]
        if not names:
            raise InputError(f"No recipe matches {pattern!r}. List all groups with finola train --list.")
    if as_json or pattern:
        rows = [(r, getattr(r, "paper_psnr", None)) for r in map(load_recipe, names)]
        if as_json:
            facts = ({"recipe": r.name, "about": r.about, "paper_psnr": p, "model": r.model.name} for r, p in rows)
            print_json({"recipes": list(facts)})
            return
        table = [(r.name, r.model.name, psnr or "", r.about) for r, psnr in rows]
        print_table("recipes", ["recipe", "model", "paper, dB", "about"], table)
        return
    ours = [name for name in names if "/" not in name and name not in STARTING_POINTS]
    for title, chosen in (("recipes to start from", STARTING_POINTS), ("our models", ours)):
        print_table(title, ["recipe", "about"], [(name, load_recipe(name).about) for name in chosen])
    counts = {prefix: sum(name.startswith(prefix) for name in names) for prefix in GROUPS}
    groups = [(f"{prefix}…", counts[prefix], about) for prefix, about in GROUPS.items()]
    print_table("groups (finola train --list PATTERN lists one)", ["recipes", "number", "about"], groups)
