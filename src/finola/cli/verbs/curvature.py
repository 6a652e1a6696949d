"""finola curvature: measure and plot the Gaussian curvature of feature maps of one or two models."""

from __future__ import annotations

import argparse
from typing import Literal

from finola.cli.output import add_force

ENCODER_SIZE = (256, 256)  # of the photo, for encoders without a recurrence
HELP = "plot the channels of a feature map with the largest curvature, optionally for two models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help="a file, or skimage:NAME")
    parser.add_argument("-m", "--model", required=True, help="model of any task or encoder: folder, name or hub id")
    parser.add_argument("--beside", metavar="MODEL", help="second model for comparison, such as a masked one")
    parser.add_argument(
        "--map",
        choices=("z", "encoder"),
        help="z: the propagated map; encoder: the encoder's feature map (default: z if the models have one)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="plot to write (.png, .jpg, .pdf or .svg)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.inputs import read_cropped
    from finola.cli.output import input_files, print_json, print_table
    from finola.evaluation.curvature import CurvatureMap, feature_map, has_recurrence, load_model
    from finola.files import output_path
    from finola.plotting.curvature import plot_curvature
    from finola.plotting.style import check_path, save_figure

    check_path(args.out)
    output_path(args.out, input_files([args.photo], models=[args.model, args.beside]), args.force)
    names = [args.model, args.beside] if args.beside else [args.model]
    models = [load_model(name) for name in names]
    which: Literal["z", "encoder"] = args.map or ("z" if all(map(has_recurrence, models)) else "encoder")
    maps, images = [], []
    for name, model in zip(names, models, strict=True):
        image = read_cropped([args.photo], model.config.image_size if has_recurrence(model) else ENCODER_SIZE)[0]  # type: ignore[union-attr, arg-type]
        images.append(image)
        maps.append(CurvatureMap.of(name, feature_map(model, image, which)))
    what = "the propagated map z" if which == "z" else "the encoder's feature map"
    figure = plot_curvature(maps, images[0], f"Gaussian curvature of {what}, {args.photo}")
    save_figure(figure, args.out)
    summaries = [one.summary() for one in maps]
    if args.json:
        print_json({"photo": args.photo, "map": which, "written": args.out, "models": summaries})
        return
    rows = [
        (one["name"], one["channels"], *(f"{one['rms_of_peaks'][word]:.3g}" for word in ("median", "mean", "max")))
        for one in summaries
    ]
    print_table("RMS of peak curvatures over channels", ["model", "channels", "median", "mean", "max"], rows)
    print(f"written to {args.out}")
