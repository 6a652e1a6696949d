"""finola latent: statistics, plots and measurements of the latent space of q."""

from __future__ import annotations

import argparse
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.cli.inputs import (
    PHOTO,
    Photo,
    add_batch,
    add_crop,
    add_data,
    add_model,
    add_photos,
    cropped_size,
    find_photos,
    integer,
    load_model,
    open_cropped,
    positive,
    read_cropped,
    readable,
)
from finola.cli.loop import Loop, report_unreadable
from finola.cli.output import add_force, input_files, print_json, print_line, print_table
from finola.config import DEFAULT_WHOLE
from finola.errors import InputError
from finola.files import output_path, plot_path, write_json
from finola.model_zoo import check_name

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.data import PhotoDataset
    from finola.evaluation.latent.statistics import Statistics
    from finola.plotting.latent import Plot

HELP = "analyse the latent space of q: mean, interpolation, mirroring, sampling, PCA and nearest neighbours"

Act = Callable[[argparse.Namespace], int | None]


def add_arguments(parser: ArgumentParser) -> None:
    acts = parser.add_subparsers(dest="name", metavar="ACT", required=True)

    def add(name: str, act: Act, words: str, *, statistics: bool = True, picture: bool = True) -> ArgumentParser:
        one: ArgumentParser = acts.add_parser(name, help=words, description=words)
        one.set_defaults(act=act, parser=one)
        add_model(one, DEFAULT_WHOLE)
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
    fit.add_argument("--components", type=positive, help="number of principal components to store (default: all)")
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
        one.add_argument(
            "--steps", type=integer(2), default=5, help="number of interpolation steps (default: %(default)s)"
        )
    sample = add("sample", _sample, "sample q from a Gaussian with the mean and covariance of photos")
    sample.add_argument("--count", type=positive, default=10, help="number of images (default: %(default)s)")
    sample.add_argument("--seed", type=int, default=0, help="random seed (default: %(default)s)")
    pca = add("pca", _pca, "reconstruct photos from their first K principal components")
    pca.add_argument("-k", type=positive, nargs="+", help="values of K (default: five values up to all components)")
    for one in (fade, mirror, pca):
        add_photos(one)
    near = add("neighbours", _neighbours, "find the nearest neighbours of a photo by q")
    near.add_argument("photo", help=PHOTO)
    add_data(near, "all")
    near.add_argument("--count", type=positive, default=6, help="number of images (default: %(default)s)")
    add_batch(near, 32)
    near.add_argument("-k", type=positive, help="compare the first K principal components only (default: all)")
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


def run(args: argparse.Namespace) -> int:
    given = vars(args)
    words = [*given.get("photos", []), *(given[key] for key in ("photo", "first", "second") if key in given)]
    photos = [*(photo.name for photo in find_photos(words)), given.get("statistics")]
    inputs = input_files(photos, [args.data] if "data" in given else [], [args.model])
    if args.out:
        if args.name not in ("fit", "observe"):
            plot_path(args.out)
        args.out = str(output_path(args.out, inputs, args.force))
    check_name(args.model)
    return args.act(args) or 0


def _fit(args: argparse.Namespace) -> int:
    model = load_model(args)
    data = open_cropped(args, model.config)
    statistics = _fitted(args, model, data)
    statistics.save(args.out)
    explained = statistics.explained()
    about = {
        "model": args.model,
        "config": statistics.model,
        "weights": statistics.weights,
        "count": statistics.count,
        "written": args.out,
    }
    about |= {"components": len(explained), "variance_held": round(float(explained[-1]), 6)}
    if args.json:
        print_json(about)
    else:
        kind = "photos" if cropped_size(args, model.config) == model.config.image_size else "tiles"
        print_line(
            f"{args.model}: mean and {len(explained)} components over {statistics.count:,} {kind}, in {args.out}"
        )
    return report_unreadable(args.verb, data)


def _mean(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_mean

    model, statistics = _loaded(args)
    _show(args, plot_mean(model, statistics), "decoded mean of q")


def _fade(args: argparse.Namespace) -> int:
    from finola.plotting.latent import plot_fade

    model, statistics = _loaded(args)
    images, code = _photos(args, model)
    _show(args, plot_fade(model, statistics, images, args.steps), f"{len(images)} photos interpolated to the mean")
    return code


def _mirror(args: argparse.Namespace) -> int:
    from finola.plotting.latent import plot_fade

    model, statistics = _loaded(args)
    images, code = _photos(args, model)
    plot = plot_fade(model, statistics, images, args.steps, end=2.0)
    values = ", ".join(f"{value:.2f}" for value in plot.values["correlation_of_mirror"])
    _show(args, plot, f"correlation of mirrored image and photo around the mean: {values}")
    return code


def _interpolate(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_interpolation

    model = load_model(args)
    images = read_cropped([args.first, args.second], cropped_size(args, model.config))
    plot = plot_interpolation(model, images[:1], images[1:], args.steps)
    values = ", ".join(f"{one[0]:.1f}" for one in plot.values["psnr_to_pixel_mix"].values())
    _show(args, plot, f"PSNR to the interpolated pixels: {values} dB")


def _sample(args: argparse.Namespace) -> None:
    from finola.plotting.latent import plot_samples

    model, statistics = _loaded(args)
    _show(args, plot_samples(model, statistics, args.count, args.seed), f"{args.count} samples")


def _pca(args: argparse.Namespace) -> int:
    from finola.plotting.latent import plot_components

    model, statistics = _loaded(args)
    images, code = _photos(args, model)
    plot = plot_components(model, statistics, images, args.k)
    pairs = zip(plot.values["components"], plot.values["psnr"], strict=True)
    _show(args, plot, ", ".join(f"K = {k}: {sum(row) / len(row):.1f} dB" for k, row in pairs))
    return code


def _neighbours(args: argparse.Namespace) -> int:
    import torch

    from finola.evaluation.latent.operations import encode, neighbours
    from finola.plotting.latent import plot_neighbours
    from finola.tiling import equal_sized

    model, statistics = _loaded(args)
    query = read_cropped([args.photo], cropped_size(args, model.config))
    data = open_cropped(args, model.config)
    numbers: list[int] = []

    def others() -> Iterator[Tensor]:
        for group in equal_sized(readable(data, "searching"), args.batch):
            numbers.extend(number for number, _ in group)
            q = encode(model, torch.stack([image for _, image in group])).q
            yield from q.unflatten(0, (len(group), -1))

    best = neighbours(encode(model, query).q, others(), statistics, args.count, args.k)
    images = torch.stack([data.sample(numbers[place])[0] for place, _ in best]) / 255
    names, similarities = [data.name(numbers[place]) for place, _ in best], [round(value, 4) for _, value in best]
    title = f"Nearest by q to {args.photo} (cosine at the mean), {args.model}"
    _show(args, plot_neighbours(query[0], images, similarities, names, title), "")
    if not args.json:
        for name, similarity in zip(names, similarities, strict=True):
            print_line(f"  {similarity:.3f}  {name}")
    return report_unreadable(args.verb, data)


def _observe(args: argparse.Namespace) -> int:

    from finola.evaluation.latent.observations import observe
    from finola.evaluation.latent.statistics import Statistics, stored_statistics

    model = load_model(args)
    data = open_cropped(args, model.config)
    opened, source = [data], "the train split"
    if path := args.statistics or stored_statistics(args.model):
        statistics, source = Statistics.load(path, model), Path(path).name
    else:
        args.components, args.incremental = None, False
        opened.insert(0, open_cropped(args, model.config, "train"))
        statistics = _fitted(args, model, opened[0])
    result = {"data": args.data or "FINOLA_DATA", "split": args.split, "statistics": source}
    measured = observe(model, statistics, _pixels(data, "observing"))
    result |= measured | {"model": args.model, "config": measured["model"]}
    if args.out:
        write_json(Path(args.out), result)
    if args.json:
        print_json(result)
    else:
        _print_observations(result)
    return report_unreadable(args.verb, *opened)


def _print_observations(result: dict[str, Any]) -> None:
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

    path = args.statistics or stored_statistics(args.model)
    if path is None:
        raise InputError(
            f"{args.model} has no stored statistics. Compute them with finola latent fit and pass them with -s FILE."
        )
    model = load_model(args)
    return model, Statistics.load(path, model)


def _photos(args: argparse.Namespace, model: Autoencoder) -> tuple[Tensor, int]:
    """Readable photos of the arguments, cropped to one size, (N, 3, H, W), and the exit code."""
    import torch

    size = cropped_size(args, model.config)
    loop = Loop(args, "reading")
    images = list(loop.each(Photo.read_cropped, [(photo, size) for photo in find_photos(args.photos, args.limit)]))
    if not images:
        raise InputError("None of the photos can be read.")
    return torch.stack(images), loop.code


def _fitted(args: argparse.Namespace, model: Autoencoder, data: PhotoDataset) -> Statistics:
    from finola.evaluation.latent.statistics import fit

    return fit(model, _pixels(data, "fitting"), args.components, incremental=args.incremental or None)


def _pixels(data: PhotoDataset, what: str) -> Iterator[Tensor]:
    return (image for _, image in readable(data, what))


def _show(args: argparse.Namespace, plot: Plot, words: str) -> None:
    from finola.plotting.style import save_figure

    save_figure(plot.figure, args.out)
    if args.json:
        print_json({"model": args.model, "written": args.out} | plot.values)
        return
    for line in [*words.splitlines(), f"written to {args.out}"]:
        print_line(line)
