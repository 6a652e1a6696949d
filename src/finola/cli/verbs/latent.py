"""finola latent: statistics, plots and measurements of the latent space of q."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import add_crop, add_data, cropped_size, open_cropped, read_cropped, readable
from finola.cli.output import add_force
from finola.config import DEFAULT_WHOLE
from finola.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset
    from finola.evaluation.latent.statistics import Statistics
    from finola.plotting.latent import Plot

HELP = "analyse the latent space of q: mean, interpolation, mirroring, sampling, PCA and nearest neighbours"
PHOTO = "a file, or skimage:NAME"

Act = Callable[[argparse.Namespace], None]


def add_arguments(parser: ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="name", metavar="ACT", required=True)

    def add(name: str, act: Act, words: str, *, statistics: bool = True, picture: bool = True) -> ArgumentParser:
        one: ArgumentParser = acts.add_parser(name, help=words, description=words)
        one.set_defaults(act=act)
        text = "model folder, name or hub id (default: %(default)s)"
        one.add_argument("-m", "--model", default=DEFAULT_WHOLE, help=text)
        one.add_argument("--json", action="store_true", help="print JSON")
        if statistics:
            text = "file written by finola latent fit for this model (default: the file stored with the model)"
            one.add_argument("-s", "--statistics", metavar="FILE", help=text)
        if picture:
            text = "plot to write (.png, .jpg, .pdf or .svg)"
            one.add_argument("-o", "--out", required=True, metavar="FILE", help=text)
        return one

    words = "compute mean, covariance and principal components of q over photos"
    fit = add("fit", _fit, words, statistics=False, picture=False)
    add_data(fit, "train")
    fit.add_argument("-o", "--out", required=True, metavar="FILE", help="safetensors file to write")
    fit.add_argument("--components", type=int, help="number of principal components to store (default: all)")
    fit.add_argument(
        "--incremental",
        action="store_true",
        help="incremental PCA without the full covariance (default: if q has more than 4096 dimensions)",
    )
    add("mean", _mean, "decode the mean of q")
    fade = add("fade", _fade, "interpolate from photos to the mean of q")
    mirror = add("mirror", _mirror, "interpolate from photos through the mean to 2q̄ − q, which reverses colours")
    mix = add("interpolate", _interpolate, "interpolate between the q of two photos", statistics=False)
    mix.add_argument("first", help=PHOTO)
    mix.add_argument("second", help=PHOTO)
    for one in (fade, mirror, mix):
        one.add_argument("--steps", type=int, default=5, help="number of interpolation steps (default: %(default)s)")
    sample = add("sample", _sample, "sample q from a Gaussian with the mean and covariance of photos")
    sample.add_argument("--count", type=int, default=10, help="number of images (default: %(default)s)")
    sample.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    pca = add("pca", _pca, "reconstruct photos from their first K principal components")
    pca.add_argument("-k", type=int, nargs="+", help="values of K (default: five values up to all components)")
    for one in (fade, mirror, pca):
        one.add_argument("photos", nargs="+", metavar="PHOTO", help=PHOTO)
    near = add("neighbours", _neighbours, "find the nearest neighbours of a photo by q")
    near.add_argument("photo", help=PHOTO)
    add_data(near, "all")
    near.add_argument("--count", type=int, default=6, help="number of images (default: %(default)s)")
    near.add_argument("-k", type=int, help="compare the first K principal components only (default: all)")
    words = "measure the paper's observations about q on photos"
    seen = add("observe", _observe, words, statistics=False, picture=False)
    add_data(seen, "val")
    words = "file written by finola latent fit (default: stored with the model, else computed on the train split)"
    seen.add_argument("-s", "--statistics", metavar="FILE", help=words)
    seen.add_argument("-o", "--out", metavar="FILE", help="JSON file to write")
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
    from finola.model_zoo import load

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
    from finola.plotting.latent import plot_mean

    model, statistics = _loaded(args)
    _show(args, plot_mean(model, statistics), "decoded mean of q")


def _fade(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_fade

    model, statistics = _loaded(args)
    images = read_cropped(args.photos, cropped_size(args, model.config))
    _show(args, plot_fade(model, statistics, images, _steps(args)), f"{len(images)} photos interpolated to the mean")


def _mirror(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_fade

    model, statistics = _loaded(args)
    plot = plot_fade(
        model, statistics, read_cropped(args.photos, cropped_size(args, model.config)), _steps(args), end=2.0
    )
    values = ", ".join(f"{value:.2f}" for value in plot.values["correlation_of_mirror"])
    _show(args, plot, f"correlation of mirrored image and photo around the mean: {values}")


def _interpolate(args: argparse.Namespace) -> None:
    from finola.model_zoo import load
    from finola.plotting.latent import plot_interpolation
    from finola.plotting.style import check_path

    check_path(args.out)
    model = load(args.model)
    images = read_cropped([args.first, args.second], cropped_size(args, model.config))
    plot = plot_interpolation(model, images[:1], images[1:], _steps(args))
    values = ", ".join(f"{one[0]:.1f}" for one in plot.values["psnr_to_pixel_mix"].values())
    _show(args, plot, f"PSNR to the interpolated pixels: {values} dB")


def _sample(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_samples

    if args.count < 1:
        raise InputError(f"--count is {args.count}, but must be at least 1.")
    model, statistics = _loaded(args)
    _show(args, plot_samples(model, statistics, args.count, args.seed), f"{args.count} samples")


def _pca(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_components

    model, statistics = _loaded(args)
    plot = plot_components(model, statistics, read_cropped(args.photos, cropped_size(args, model.config)), args.k)
    pairs = zip(plot.values["components"], plot.values["psnr"], strict=True)
    _show(args, plot, ", ".join(f"K = {k}: {sum(row) / len(row):.1f} dB" for k, row in pairs))


def _neighbours(args: argparse.Namespace) -> None:
    import torch

    from finola.evaluation.latent.operations import encode, neighbours
    from finola.plotting.latent import plot_neighbours

    if args.count < 1:
        raise InputError(f"--count is {args.count}, but must be at least 1.")
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
    _show(args, plot_neighbours(query[0], images, similarities, names, title), "")
    if not args.json:
        for name, similarity in zip(names, similarities, strict=True):
            print(f"  {similarity:.3f}  {name}")


def _observe(args: argparse.Namespace) -> None:
    import json

    from finola.cli.output import print_json
    from finola.evaluation.latent.observations import observe
    from finola.evaluation.latent.statistics import Statistics, stored_statistics
    from finola.files import write_text
    from finola.model_zoo import load

    model = load(args.model)
    data = open_cropped(args, model.config, args.split)
    source = "the train split"
    if path := args.statistics or stored_statistics(args.model):
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
            "the mean decodes to a flat image: std relative to that of images",
            f"{result['mean']['share_of_an_image']:.1%}",
        ),
        ("the mirror reverses colours: correlation around the mean", f"{mirror['correlation']:.3f}"),
        ("  photos where it is negative", f"{mirror['share_negative']:.0%}"),
        ("interpolating q interpolates images: PSNR to interpolated pixels, t = ½", f"{mixes['0.5']:.2f} dB"),
        ("more components add detail: PSNR increases with K", "yes" if parts["rises_with_k"] else "no"),
        *((f"  K = {parts['k'][i]}", f"{parts['psnr'][i]:.2f} dB") for i in chosen),
        ("samples look like noise: kurtosis of pixel differences (noise: 3)", f"{samples['kurtosis']:.1f}"),
        ("  kurtosis of reconstructed photos", f"{samples['kurtosis_of_images']:.1f}"),
    ]
    title = f"{result['model']}: {result['images']} images of {result['data']}, statistics over {result['fitted_on']:,}"
    print_table(title, ["observation", "measured"], rows)


def _loaded(args: argparse.Namespace) -> tuple[Autoencoder, Statistics]:
    from finola.evaluation.latent.statistics import Statistics, stored_statistics
    from finola.model_zoo import load
    from finola.plotting.style import check_path

    check_path(args.out)
    path = args.statistics or stored_statistics(args.model)
    if path is None:
        raise InputError(
            f"{args.model} has no stored statistics. Compute them with finola latent fit and pass them with -s FILE."
        )
    model = load(args.model)
    return model, Statistics.load(path, model)


def _fitted(args: argparse.Namespace, model: Autoencoder, data: PhotoDataset) -> Statistics:
    from finola.evaluation.latent.statistics import fit

    return fit(model, _pixels(args, data, "fitting"), args.components, incremental=args.incremental or None)


def _pixels(args: argparse.Namespace, data: PhotoDataset, what: str) -> Iterator[Tensor]:
    return (image for _, image in readable(args, data, what))


def _steps(args: argparse.Namespace) -> int:
    if args.steps < 2:
        raise InputError(f"--steps is {args.steps}, but must be at least 2.")
    return int(args.steps)


def _show(args: argparse.Namespace, plot: Plot, words: str) -> None:
    from finola.cli.output import print_json
    from finola.plotting.style import save_figure

    save_figure(plot.figure, args.out)
    if args.json:
        print_json({"model": args.model, "written": args.out} | plot.values)
        return
    print(f"{words}\nwritten to {args.out}" if words else f"written to {args.out}")
