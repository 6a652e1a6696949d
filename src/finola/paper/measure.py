"""Metrics of a finished run: those of its last validation, and others that are computed from its model."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.errors import valid_unicode
from finola.files import write_json
from finola.paper.definitions import CURVATURE_METRICS, LATENT_METRICS, PROBES, WAVE_METRICS
from finola.paper.probes import curvatures, fine_tune, probe_encoder, reconstruct
from finola.recipes.recipe import Recipe

if TYPE_CHECKING:
    from torch import Tensor

    from finola.autoencoder import Autoencoder
    from finola.baselines.klt import KLT

MEASURED = "measured.json"
"""File of computed metrics in a run directory."""
WAVE_PHOTOS = 1000
TRAIN_PHOTOS = 640
"""Training photos for the PSNR in training mode."""
LATENT_PHOTOS = (2000, 200)
"""Training photos for the statistics of q, and val photos on which its properties are measured."""
KLT_CROPS, KLT_COMPONENTS, KLT_SIDE = 40_000, 256, 64
"""Training crops that a KLT is fitted to, its components, and the largest side of an image: a KLT of larger images
needs more photos than there are."""
INVERTIBLE = 1e6
"""Largest condition number of a B that counts as invertible in single precision."""
DIGITS = 6


def measure(run: Path, metrics: Iterable[str]) -> dict[str, float | None]:
    """Metrics of a finished or diverged run by name; None if it diverged or the value is not finite.

    A name is `train_mode_psnr`, `klt`, the PSNR of a linear code of as many numbers, one of `WAVE_METRICS`,
    `LATENT_METRICS` or `PROBE_METRICS`, or a metric of the validation, such as `psnr`. Computed metrics are stored in
    the run directory.
    """
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    if summary["status"] == "diverged":
        return dict.fromkeys(metrics)
    wanted, path = list(metrics), run / MEASURED
    found: dict[str, float | None] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    missing = [name for name in wanted if name not in found]
    computed = {("train_mode_psnr",): _train_mode_psnr, ("klt",): _klt, WAVE_METRICS: _waves, LATENT_METRICS: _latent}
    computed |= {PROBES: probe_encoder, ("fine-tuned",): fine_tune, ("reconstruction",): reconstruct}
    computed |= {CURVATURE_METRICS: curvatures}
    for names, function in computed.items():
        if set(missing) & set(names):
            found |= {name: _plain(value) for name, value in function(run).items()}
            write_json(path, found)
    found |= {name: _plain(summary["metrics"].get(f"val/{name}")) for name in missing if name not in found}
    if missing:
        write_json(path, found)
    return {name: found[name] for name in wanted}


def _curve(run: Path) -> list[dict[str, float]]:
    from finola.training.checkpoint import CURVE
    from finola.training.log import read_curve

    return read_curve(run / CURVE)


def validation_curve(run: Path, recipe: Recipe) -> list[tuple[int, float]]:
    """Images seen and PSNR of every validation of a run; the first may precede training."""
    rows = [row for row in _curve(run) if "val/psnr" in row]
    return [(int(row["step"]) * recipe.data.batch_size, float(f"{row['val/psnr']:.{DIGITS}g}")) for row in rows]


def minutes(run: Path) -> float:
    """Minutes of training over all parts of a resumed run."""
    curve = _curve(run)
    return round(curve[-1]["seconds"] / 60, 2) if curve else 0.0


def describe_data(path: str | None) -> dict[str, Any]:
    """Name, numbers of photos and a digest of their names, which identify the data of a run."""
    from finola.data import open_data

    parts = {split: open_data(path, split).source for split in ("train", "val")}
    digest = hashlib.sha256()
    for source in parts.values():
        for index in range(len(source)):
            digest.update(f"{source.name(index)}\n".encode(errors="surrogateescape"))
    name = valid_unicode(Path(path or os.environ["FINOLA_DATA"]).name)
    return {"name": name, **{split: len(source) for split, source in parts.items()}, "digest": digest.hexdigest()[:12]}


def machine() -> str:
    """Name of the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(f"{value:.{DIGITS}g}")


def _model_and_images(run: Path, split: str, count: int) -> tuple[Autoencoder, Tensor]:
    """Trained model of a run, and photos of its data in the model's size: (N, 3, H, W) in [0, 1]."""
    import torch

    import finola
    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly
    from finola.recipes.loading import RECIPE, load_recipe

    recipe: Any = load_recipe(run / RECIPE)
    model = finola.load(run / "model")
    path = recipe.data.val_path if split == "val" else None
    data = open_data(path or recipe.data.path, split, transform=CentreCrop(model.config.image_size))
    data.source = evenly(data.source, count)
    return model, torch.stack([data[0, index].images[0] for index in range(len(data))]).float() / 255


def _klt(run: Path) -> dict[str, float]:
    """PSNR of a KLT with as many components as the model has latents, fitted to training crops of the same kind."""
    from finola.config import ModelConfig
    from finola.recipes.loading import RECIPE, load_recipe, settings_of

    recipe: Any = load_recipe(run / RECIPE)
    config = ModelConfig.parse(recipe.model.name)
    if max(config.image_size) > KLT_SIDE:
        return {"klt": math.nan}
    data = {key: value for key, value in settings_of(recipe).items() if key.startswith("data.") and value is not None}
    data["model.name"] = f"residual-w1/1x1@1:{config.image_size[0]}x{config.image_size[1]}"
    klt, images = _fitted_klt(tuple(f"{key}={json.dumps(value)}" for key, value in data.items()))
    from finola.baselines.klt import KLT
    from finola.metrics import psnr

    klt = KLT(klt.mean, klt.components[: config.channels * config.paths], klt.shape)
    return {"klt": float(psnr(klt.decode(klt.encode(images)), images).mean())}


@cache
def _fitted_klt(settings: tuple[str, ...]) -> tuple[KLT, Tensor]:
    """KLT of `KLT_COMPONENTS` components of training crops, and the val photos; `settings` are those of the data."""
    import torch

    from finola.baselines.klt import fit_klt
    from finola.recipes.loading import load_recipe
    from finola.training.data import Photos

    recipe: Any = load_recipe("fit", settings)
    photos = Photos(recipe)
    count, crops = len(photos.train), recipe.data.crops_per_image
    epochs = -(-KLT_CROPS // (count * crops))
    parts = [photos.train[epoch, index].images for epoch in range(epochs) for index in range(count)]
    images = torch.stack([photos.val.sample(index)[0] for index in range(len(photos.val))]).float() / 255
    with _one_thread():
        return fit_klt(torch.cat(parts)[:KLT_CROPS], KLT_COMPONENTS), images


def _train_mode_psnr(run: Path) -> dict[str, float]:
    """Mean PSNR of training photos, with the model in training mode: batch norms use the statistics of each batch."""
    import torch

    from finola.metrics import psnr
    from finola.recipes.loading import RECIPE, load_recipe

    model, images = _model_and_images(run, "train", TRAIN_PHOTOS)
    with torch.no_grad(), _one_thread():
        model.train()
        values = [
            psnr(model.decode(model.propagate(model.encode(batch))).clamp(0, 1), batch)
            for batch in images.split(load_recipe(run / RECIPE).data.batch_size)
        ]
    return {"train_mode_psnr": float(torch.cat(values).mean())}


def _waves(run: Path) -> dict[str, float]:
    """How far both orders agree, how much of Δx z the wave equation explains, and what Q looks like."""
    import finola
    from finola.wave.diagonalisation import restrict

    model, images = _model_and_images(run, "val", WAVE_PHOTOS)
    with _one_thread():
        waves = finola.waves(model)
        found, quadrant = waves.residual(images), waves["right-down"]
        a, b = restrict(waves.coefficients.A), restrict(waves.coefficients.B)
        speeds = waves.speeds.abs()
        speeds = speeds[~speeds.isnan()]  # a static wave has none
    return {
        "path_inconsistency": found.path_inconsistency,
        "commutator": float((a @ b - b @ a).norm() / (a.norm() * b.norm())),
        "explained": found.explained.fitted,
        "explained_shuffled": found.explained.shuffled,
        "explained_by_Q": found.explained.model_Q,
        "invertible_B": float(quadrant.cond_B < INVERTIBLE),
        "cond_V": quadrant.cond_V,
        "complex_share": found.shares["complex"],
        **{f"speed_{percent}": float(speeds.quantile(percent / 100)) for percent in (10, 50, 90)},
    }


def _latent(run: Path) -> dict[str, float]:
    """Properties of the space of q (appendix A.6), see `LATENT_METRICS`."""
    from finola.evaluation.latent import fit
    from finola.evaluation.latent.observations import observe

    model, images = _model_and_images(run, "train", LATENT_PHOTOS[0])
    _, val = _model_and_images(run, "val", LATENT_PHOTOS[1])
    with _one_thread():
        statistics = fit(model, images)
        found = observe(model, statistics, val)
    sixteenth = max(1, model.config.channels * model.config.paths // 16)
    return {
        "mean_contrast": found["mean"]["share_of_an_image"],
        "mirror_correlation": found["mirror"]["correlation"],
        "mixture_psnr": found["interpolation"]["psnr_to_pixel_mix"]["0.5"],
        "component_gain": min(high - low for low, high in pairwise(found["components"]["psnr"])),
        "first_components": float(statistics.explained()[sixteenth - 1]),
        "sample_kurtosis": found["samples"]["kurtosis"] / found["samples"]["kurtosis_of_images"],
    }


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: the order of sums, and so the last digits, depend on the number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
