"""finola waves: wave speeds of a model by quadrant, and residuals of its wave equations on photos."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.output import add_force
from finola.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from finola.wave.analysis import Quadrant, Waves
    from finola.wave.residuals import Measurement

HELP = "print the wave speeds of a model, and measure the residuals of its wave equations on photos"
NAMES = ("right-down", "left-down", "right-up", "left-up")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="model folder, bundled name, hub id or waves… name")
    parser.add_argument(
        "--images", default="skimage:astronaut", help="a photo, a folder, or skimage:NAME (default: %(default)s)"
    )
    parser.add_argument("--limit", type=int, default=16, help="maximum number of photos (default: %(default)s)")
    parser.add_argument(
        "--plot", metavar="FILE", help="plot of speeds, waves and residuals to write (.png, .pdf, .svg or .jpg)"
    )
    parser.add_argument("--quadrant", choices=NAMES, help="quadrant whose speeds are listed and plotted")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import input_files, print_json, progress
    from finola.files import output_path
    from finola.image_io import find_photos, read_photo
    from finola.model_zoo import load
    from finola.plotting.style import check_path
    from finola.plotting.waves import plot_waves
    from finola.wave.analysis import waves

    if args.limit < 1:
        raise InputError(f"--limit is {args.limit}, but must be at least 1.")
    if args.plot:
        check_path(args.plot)
        output_path(args.plot, input_files([args.images], models=[args.model]), args.force)
    skimage = args.images.startswith("skimage:")
    photos: list[str | Path] = [args.images] if skimage else list(find_photos(args.images))
    if not photos:
        raise InputError(f"{args.images} contains no photos.")
    selected = photos[: args.limit]
    found = waves(load(args.model))

    first: list[Tensor] = []

    def read() -> Iterator[Tensor]:
        for photo in progress(selected, len(selected), "measuring", quiet=args.json or len(selected) == 1):
            image = read_photo(photo)
            if not first:
                first.append(image)
            yield image

    measurement = found.residual(read())
    quadrants = [found[name] for name in NAMES]
    shown = found[args.quadrant or "right-down"]
    if args.plot:
        plot_waves(found, measurement, first[0][None], args.plot, shown.name)
    if args.json:
        result = {"model": args.model, "photos": [str(photo) for photo in selected], "of": len(photos)}
        result |= measurement.to_dict() | {"quadrants": {one.name: _plain(one) for one in quadrants}}
        if args.quadrant:
            result["quadrant"] = shown.name
            result["speeds"] = [_speed(one) for one in shown.speeds.tolist()]
            result["kinds"] = shown.kinds
        print_json(result)
        return
    _print(
        args,
        measurement,
        quadrants,
        f"{len(selected)} of {len(photos)} photos" if len(photos) > 1 else str(selected[0]),
    )
    if args.quadrant:
        _print_speeds(found, shown)
    if args.plot:
        print(f"written to {args.plot}")


def _plain(quadrant: Quadrant) -> dict[str, Any]:
    shares = quadrant.shares()
    conditions = {"cond_B": _finite(quadrant.cond_B), "cond_V": _finite(quadrant.cond_V)}
    return {"words": quadrant.words, "has_Q": quadrant.Q is not None, **conditions, "shares": shares}


def _finite(value: float) -> float | str:
    return value if math.isfinite(value) else "infinite"


def _speed(value: complex) -> list[float] | str:
    """Convert a speed to [real, imaginary], or to a string for infinity and NaN, which JSON does not have.

    >>> _speed(1 + 2j), _speed(complex(math.inf, 0)), _speed(complex(math.nan, 0))
    ([1.0, 2.0], 'infinite', 'none')
    """
    if math.isfinite(value.real):
        return [value.real, value.imag]
    return "infinite" if math.isinf(value.real) else "none"


def _print(args: argparse.Namespace, measurement: Measurement, quadrants: list[Quadrant], photos: str) -> None:
    from finola.cli.output import print_table

    kinds = [kind for kind in quadrants[0].shares() if any(kind in one.kinds for one in quadrants)]
    rows = [
        [one.name, *(one.kinds.count(kind) for kind in kinds), f"{one.cond_B:.3g}", f"{one.cond_V:.3g}"]
        for one in quadrants
    ]
    print_table(f"{args.model}: speeds by kind", ["quadrant", *kinds, "cond(B)", "cond(V)"], rows)
    for words in dict.fromkeys(one.words for one in quadrants):
        names = [one.name for one in quadrants if one.words == words]
        print(f"  {', '.join(names) if len(names) < len(quadrants) else 'all'}: {words}")
    print()
    residual_Q = measurement.residual_Q
    orders = ("horizontal", "vertical", "mean")
    body = [["residual of β Δxζ = α Δyζ", *(f"{measurement.residual[order]:.3g}" for order in orders)]]
    body.append(
        ["residual of Δx z = Q Δy z", *(f"{residual_Q[order]:.3g}" if residual_Q else "no Q" for order in orders)]
    )
    print_table(f"measured on {photos} (0: the equation holds exactly)", ["", *orders], body)
    print(f"  path inconsistency ‖z_h − z_v‖/‖z‖: {measurement.path_inconsistency:.3g}")
    spread = f"varying by {measurement.sigma_spread:.3g} within a map"
    print(f"  σ from {measurement.sigma_min:.6g} to {measurement.sigma_max:.6g}, {spread}")


def _print_speeds(found: Waves, quadrant: Quadrant) -> None:
    from finola.cli.output import print_table

    rows = []
    for channel, (speed, kind) in enumerate(zip(quadrant.speeds.tolist(), quadrant.kinds, strict=True)):
        value = f"{speed.real:.5g}{speed.imag:+.5g}i" if kind == "complex" else f"{speed.real:.5g}"
        size = f"{abs(speed):.5g}" if math.isfinite(speed.real) else ""
        rows.append([channel, value if size else "", size, kind, found.describe(channel)])
    columns = ["channel", "λ", "|λ|", "kind", "wave"]
    if found.basis is None:
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    print_table(f"speeds of {quadrant.name}", columns, rows)
