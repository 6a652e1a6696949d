"""finola curvature: measure and plot the Gaussian curvature of feature maps of one or two models."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from finola.cli.output import add_force

if TYPE_CHECKING:
    from finola.autoencoder import Autoencoder
    from finola.masked import MaskedFinola

HELP = "plot the channels of a feature map with the largest curvature, optionally for two models"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("photo", help="a file, or skimage:NAME")
    parser.add_argument("-m", "--model", required=True, help="model folder (also of a masked model), name or hub id")
    parser.add_argument("--beside", metavar="MODEL", help="second model for comparison, such as a masked one")
    parser.add_argument(
        "--map",
        choices=("z", "encoder"),
        default="z",
        help="z: the propagated map; encoder: the encoder's feature map (default: %(default)s)",
    )
    parser.add_argument("-o", "--out", required=True, metavar="FILE", help="plot to write (.png, .jpg, .pdf or .svg)")
    add_force(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> None:
    from finola.cli.inputs import read_cropped
    from finola.cli.output import input_files, print_json, print_table
    from finola.evaluation.curvature import Curved, feature_map
    from finola.files import output_path
    from finola.plotting.curvature import plot_curvature
    from finola.plotting.waves import check_path, save_figure

    check_path(args.out)
    output_path(args.out, input_files([args.photo], models=[args.model, args.beside]), args.force)
    found, images = [], []
    for word in [args.model, args.beside] if args.beside else [args.model]:
        model = load_any(word)
        image = read_cropped([args.photo], model.config.image_size)[0]
        images.append(image)
        found.append(Curved.measure(_name(model), feature_map(model, image, args.map)))
    what = "the propagated map z" if args.map == "z" else "the encoder's feature map"
    figure = plot_curvature(found, images[0], f"Gaussian curvature of {what}, {args.photo}")
    save_figure(figure, args.out)
    numbers = [one.numbers() for one in found]
    if args.json:
        print_json({"photo": args.photo, "map": args.map, "written": args.out, "models": numbers})
        return
    rows = [
        (one["name"], one["channels"], *(f"{one['rms_of_peaks'][word]:.3g}" for word in ("median", "mean", "max")))
        for one in numbers
    ]
    print_table("RMS of peak curvatures over channels", ["model", "channels", "median", "mean", "max"], rows)
    print(f"written to {args.out}")


def load_any(word: str) -> Autoencoder | MaskedFinola:
    """Load an autoencoder with `finola.load`, or a masked model."""
    from finola.hub import model_type
    from finola.masked import MaskedFinola
    from finola.model_zoo import load

    return MaskedFinola.from_pretrained(word) if model_type(word) == "masked" else load(word)


def _name(model: Autoencoder | MaskedFinola) -> str:
    """Name of a model in the plot."""
    variant = getattr(model, "variant", None)
    return f"{model.config}, masked {variant.upper()}" if variant else str(model.config)
