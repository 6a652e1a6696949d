"""finola latent: what lies in the space of q, as statistics, pictures and measurements."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import add_crop, add_data, cropped_size, open_cropped, read_cropped, readable
from finola.cli.output import add_force
from finola.config import DEFAULT_WHOLE

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset
    from finola.evaluation.latent.statistics import Statistics
    from finola.plotting.latent import Drawn

HELP = "look into the space of q: its mean, fades, mirrors, mixes, samples, components and neighbours"
PHOTO = "a file, or skimage:NAME"

Act = Callable[[argparse.Namespace], None]


def add_arguments(parser: ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="name", metavar="ACT", required=True)

    def add(name: str, act: Act, words: str, *, statistics: bool = True, picture: bool = True) -> ArgumentParser:
        one: ArgumentParser = acts.add_parser(name, help=words, description=words)
        one.set_defaults(act=act)
        text = "a folder, a name, or a hub id (default: %(default)s)"
        one.add_argument("-m", "--model", default=DEFAULT_WHOLE, help=text)
        one.add_argument("--json", action="store_true", help="print JSON")
        if statistics:
            text = "what finola latent fit made for this model (default: those that come with it)"
            one.add_argument("-s", "--statistics", metavar="FILE", help=text)
        if picture:
            text = "picture to write (.png, .jpg, .pdf or .svg)"
            one.add_argument("-o", "--out", required=True, metavar="FILE", help=text)
        return one

    words = "measure mean, covariance and principal components of q over photos"
    fit = add("fit", _fit, words, statistics=False, picture=False)
    add_data(fit, "train")
    fit.add_argument("-o", "--out", required=True, metavar="FILE", help="safetensors file to write")
    fit.add_argument("--components", type=int, help="keep this many principal components only (default: all)")
    fit.add_argument(
        "--incremental", action="store_true", help="never hold the whole covariance (default: past 4096 numbers in q)"
    )
    add("mean", _mean, "draw the mean of q")
    fade = add("fade", _fade, "fade photos into the mean")
    mirror = add("mirror", _mirror, "walk from photos through the mean to 2q̄ − q, which reverses colours")
    mix = add("interpolate", _interpolate, "mix the q of two photos", statistics=False)
    mix.add_argument("first", help=PHOTO)
    mix.add_argument("second", help=PHOTO)
    for one in (fade, mirror, mix):
        one.add_argument("--steps", type=int, default=5, help="pictures on the way (default: %(default)s)")
    sample = add("sample", _sample, "draw q from the Gaussian with the mean and covariance of photos")
    sample.add_argument("--count", type=int, default=10, help="how many (default: %(default)s)")
    sample.add_argument("--seed", type=int, default=0, help="which ones (default: %(default)s)")
    pca = add("pca", _pca, "draw photos from their first K principal components")
    pca.add_argument("-k", type=int, nargs="+", help="values of K (default: five, up to all)")
    for one in (fade, mirror, pca):
        one.add_argument("photos", nargs="+", metavar="PHOTO", help=PHOTO)
    near = add("neighbours", _neighbours, "find the photos whose q is nearest to that of one")
    near.add_argument("photo", help=PHOTO)
    add_data(near, "all")
    near.add_argument("--count", type=int, default=6, help="how many (default: %(default)s)")
    near.add_argument("-k", type=int, help="look at the first K principal components only (default: all)")
    words = "measure the paper's observations about q on photos"
    seen = add("observe", _observe, words, statistics=False, picture=False)
    add_data(seen, "val")
    words = "(default: those that come with the model, else fitted now, on the data's train split)"
    seen.add_argument("-s", "--statistics", metavar="FILE", help=words)
    seen.add_argument("-o", "--out", metavar="FILE", help="JSON file to keep the figures in")
    for one in (fit, fade, mirror, mix, pca, near, seen):
        add_crop(one)
    for one in acts.choices.values():
        add_force(one)


def run(args: argparse.Namespace) -> None:
    from finola.cli.output import input_files
    from finola.files import output_path

    given = vars(args)
    photos = [*given.get("photos", []), *(given.get(key) for key in ("photo", "first", "second", "statistics"))]
    if args.out:
        data = [args.data] if "data" in given else []
        args.out = str(output_path(args.out, input_files(photos, data, [args.model]), args.force))
    args.act(args)


def _fit(args: argparse.Namespace) -> None:
    from finola.cli.output import print_json
    from finola.zoo import load

    model = load(args.model)
    data = open_cropped(args, model.config, args.split)
    statistics = _fitted(args, model, data)
    statistics.save(args.out)
    explained = statistics.explained()
    about = {"model": statistics.model, "weights": statistics.weights, "count": statistics.count, "written": args.out}
    about |= {"components": len(explained), "variance_held": round(float(explained[-1]), 6)}
    if args.json:
        print_json(about)
        return
    kind = "photos" if cropped_size(args, model.config) == model.config.image_size else "tiles"
    print(f"{statistics.model}: mean and {len(explained)} components over {statistics.count:,} {kind}, in {args.out}")
    if report := data.report():
        print(report)


def _mean(args: argparse.Namespace) -> None:
    from finola.plotting.latent import averaged

    model, statistics = _loaded(args)
    _show(args, averaged(model, statistics), "what the mean of q draws")


def _fade(args: argparse.Namespace) -> None:
    from finola.plotting.latent import faded

    model, statistics = _loaded(args)
    images = read_cropped(args.photos, cropped_size(args, model.config))
    _show(args, faded(model, statistics, images, _steps(args)), f"{len(images)} photos fading into the mean")


def _mirror(args: argparse.Namespace) -> None:
    from finola.plotting.latent import faded

    model, statistics = _loaded(args)
    drawn = faded(model, statistics, read_cropped(args.photos, cropped_size(args, model.config)), _steps(args), end=2.0)
    values = ", ".join(f"{value:.2f}" for value in drawn.numbers["correlation_of_mirror"])
    _show(args, drawn, f"mirror and photo around the mean correlate by {values}")


def _interpolate(args: argparse.Namespace) -> None:
    from finola.plotting.latent import interpolated
    from finola.plotting.waves import check_path
    from finola.zoo import load

    check_path(args.out)
    model = load(args.model)
    images = read_cropped([args.first, args.second], cropped_size(args, model.config))
    drawn = interpolated(model, images[:1], images[1:], _steps(args))
    values = ", ".join(f"{one[0]:.1f}" for one in drawn.numbers["psnr_to_pixel_mix"].values())
    _show(args, drawn, f"to the mix of pixels: {values} dB")


def _sample(args: argparse.Namespace) -> None:
    from finola.plotting.latent import sampled

    if args.count < 1:
        raise ValueError(f"--count {args.count} asks for no sample: use 1 or more.")
    model, statistics = _loaded(args)
    _show(args, sampled(model, statistics, args.count, args.seed), f"{args.count} samples")


def _pca(args: argparse.Namespace) -> None:
    from finola.plotting.latent import principal

    model, statistics = _loaded(args)
    drawn = principal(model, statistics, read_cropped(args.photos, cropped_size(args, model.config)), args.k)
    pairs = zip(drawn.numbers["components"], drawn.numbers["psnr"], strict=True)
    _show(args, drawn, ", ".join(f"K = {k}: {sum(row) / len(row):.1f} dB" for k, row in pairs))


def _neighbours(args: argparse.Namespace) -> None:
    import torch

    from finola.evaluation.latent.operations import encode, neighbours
    from finola.plotting.latent import found

    if args.count < 1:
        raise ValueError(f"--count {args.count} asks for no neighbour: use 1 or more.")
    model, statistics = _loaded(args)
    query = read_cropped([args.photo], cropped_size(args, model.config))
    data = open_cropped(args, model.config, args.split)
    numbers: list[int] = []

    def others() -> Iterator[Tensor]:
        for number, image in readable(args, data, "searching"):
            numbers.append(number)
            yield encode(model, image[None]).q

    best = neighbours(encode(model, query).q, others(), statistics, args.count, args.k)
    images = torch.stack([data.sample(numbers[place])[0] for place, _ in best]) / 255
    names, similarities = [data.name(numbers[place]) for place, _ in best], [round(value, 4) for _, value in best]
    title = f"Nearest by q to {args.photo} (cosine at the mean), {statistics.model}"
    _show(args, found(query[0], images, similarities, names, title), "")
    if not args.json:
        for name, similarity in zip(names, similarities, strict=True):
            print(f"  {similarity:.3f}  {name}")


def _observe(args: argparse.Namespace) -> None:
    import json

    from finola.cli.output import print_json
    from finola.evaluation.latent.observations import observe
    from finola.evaluation.latent.statistics import Statistics, kept_with
    from finola.files import write_text
    from finola.zoo import load

    model = load(args.model)
    data = open_cropped(args, model.config, args.split)
    source = "the train split"
    if path := args.statistics or kept_with(args.model):
        statistics, source = Statistics.load(path, model), Path(path).name
    else:
        args.components, args.incremental = None, False
        statistics = _fitted(args, model, open_cropped(args, model.config, "train"))
    result = {"data": args.data or "FINOLA_DATA", "split": args.split, "statistics": source}
    result |= observe(model, statistics, _pixels(args, data, "observing"))
    if args.out:
        write_text(Path(args.out), json.dumps(result, indent=1, allow_nan=False) + "\n")
    if args.json:
        print_json(result)
        return
    _print_observations(result)
    if report := data.report():
        print(report)


def _print_observations(result: dict[str, Any]) -> None:
    from finola.cli.output import print_table

    mirror, samples, parts = result["mirror"], result["samples"], result["components"]
    mixes = result["interpolation"]["psnr_to_pixel_mix"]
    chosen = [0, len(parts["k"]) // 2, len(parts["k"]) - 1]
    rows = [
        (
            "the mean draws a flat image: its std, as a share of an image's",
            f"{result['mean']['share_of_an_image']:.1%}",
        ),
        ("the mirror reverses colours: correlation around the mean", f"{mirror['correlation']:.3f}"),
        ("  photos where it is negative", f"{mirror['share_negative']:.0%}"),
        ("a mix of q mixes images: PSNR to the mix of pixels, t = ½", f"{mixes['0.5']:.2f} dB"),
        ("more components, more detail: PSNR rises with every K", "yes" if parts["rises_with_k"] else "no"),
        *((f"  K = {parts['k'][i]}", f"{parts['psnr'][i]:.2f} dB") for i in chosen),
        ("samples look like noise: kurtosis of pixel differences (noise: 3)", f"{samples['kurtosis']:.1f}"),
        ("  the same of what photos' q draw", f"{samples['kurtosis_of_images']:.1f}"),
    ]
    title = f"{result['model']}: {result['images']} images of {result['data']}, statistics over {result['fitted_on']:,}"
    print_table(title, ["observation", "measured"], rows)


def _loaded(args: argparse.Namespace) -> tuple[Autoencoder, Statistics]:
    from finola.evaluation.latent.statistics import Statistics, kept_with
    from finola.plotting.waves import check_path
    from finola.zoo import load

    check_path(args.out)
    path = args.statistics or kept_with(args.model)
    if path is None:
        raise ValueError(f"{args.model} brings no statistics: make them with finola latent fit, and say -s FILE.")
    model = load(args.model)
    return model, Statistics.load(path, model)


def _fitted(args: argparse.Namespace, model: Autoencoder, data: PhotoDataset) -> Statistics:
    from finola.evaluation.latent.statistics import fit

    return fit(model, _pixels(args, data, "fitting"), args.components, incremental=args.incremental or None)


def _pixels(args: argparse.Namespace, data: PhotoDataset, what: str) -> Iterator[Tensor]:
    return (image for _, image in readable(args, data, what))


def _steps(args: argparse.Namespace) -> int:
    if args.steps < 2:
        raise ValueError(f"--steps {args.steps} leads nowhere: use 2 or more.")
    return int(args.steps)


def _show(args: argparse.Namespace, drawn: Drawn, words: str) -> None:
    from finola.cli.output import print_json
    from finola.plotting.waves import save_figure

    save_figure(drawn.figure, args.out)
    if args.json:
        print_json({"model": args.model, "written": args.out} | drawn.numbers)
        return
    print(f"{words}\ndrawn into {args.out}" if words else f"drawn into {args.out}")
