"""finola classify: the likeliest classes of photos."""

from __future__ import annotations

import argparse

from finola.config import DEFAULT_CLASSIFIER
from finola.errors import InputError

HELP = "name what photos show, with a trained classifier"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="photos or folders of photos")
    parser.add_argument(
        "-m", "--model", default=DEFAULT_CLASSIFIER, help="a classifier's folder, name or hub id (default: %(default)s)"
    )
    parser.add_argument("--top", type=int, default=5, help="how many classes to print (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    from finola.cli.output import complain, is_bad_input, print_json, print_table, progress, sentence
    from finola.data import CentreCrop
    from finola.data.transforms import draw
    from finola.image_io import named_photos, open_photo, shown_size
    from finola.zoo import load_classifier

    if args.top < 1:
        raise InputError(f"--top {args.top} asks for no class: use 1 or more.")
    model = load_classifier(args.model)
    crop = CentreCrop(model.image_size)
    photos = [photo for image in args.images for photo in named_photos(image)]
    found, failed = [], 0
    for path in progress(photos, len(photos), "classifying", quiet=args.json):
        try:
            photo = open_photo(path)
            view = crop.view(shown_size(photo, str(path)), None)  # type: ignore[arg-type]
            image = draw(photo, [view], str(path))[0] / 255
        except Exception as error:  # of any class, because libraries have their own; a defect is raised again
            if not is_bad_input(error):
                raise
            complain(args.verb, sentence(error))
            failed += 1
            continue
        found.append((str(path), model.rank(image, args.top)))
    if args.json:
        rows = [(name, [{"class": word, "probability": share} for word, share in classes]) for name, classes in found]
        print_json([{"image": name, "classes": classes} for name, classes in rows])
    else:
        for name, classes in found:
            print_table(name, ["class", "probability"], [(word, f"{100 * share:.1f} %") for word, share in classes])
    return 2 if failed else 0
