"""finola classify: predict the classes of photos."""

from __future__ import annotations

import argparse

from finola.config import DEFAULT_CLASSIFIER
from finola.errors import InputError

HELP = "predict the classes of photos with a trained classifier"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="photos or folders of photos")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_CLASSIFIER, help="a classifier's folder, name or hub id (default: %(default)s)"
    )
    parser.add_argument("--top", type=int, default=5, help="number of classes to print (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from finola.cli.output import describe_error, is_bad_input, print_error, print_json, print_table, progress
    from finola.data import CentreCrop
    from finola.data.transforms import render_views
    from finola.image_io import named_photos, open_photo, shown_size
    from finola.model_zoo import load_classifier

    if args.top < 1:
        raise InputError(f"--top is {args.top}, but must be at least 1.")
    model = load_classifier(args.model)
    crop = CentreCrop(model.image_size)
    photos = [photo for image in args.images for photo in named_photos(image)]
    found, failed = [], 0
    for path in progress(photos, len(photos), "classifying", quiet=args.json):
        try:
            photo = open_photo(path)
            view = crop.view(shown_size(photo, str(path)), None)  # type: ignore[arg-type]
            image = render_views(photo, [view], str(path))[0] / 255
        except Exception as error:  # any class, because libraries define their own; defects are re-raised
            if not is_bad_input(error):
                raise
            print_error(args.verb, describe_error(error))
            failed += 1
            continue
        found.append((str(path), model.rank(image, args.top)))
    if args.json:
        rows = [
            (name, [{"class": word, "probability": probability} for word, probability in classes])
            for name, classes in found
        ]
        print_json([{"image": name, "classes": classes} for name, classes in rows])
    else:
        for name, classes in found:
            print_table(name, ["class", "probability"], [(word, f"{100 * p:.1f} %") for word, p in classes])
    return 2 if failed else 0
