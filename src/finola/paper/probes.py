"""Metrics of a pre-trained encoder on labelled photos: probes, fine-tuning, reconstruction and curvature."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from finola.recipes.recipe import Recipe

EPOCHS = 3
"""Epochs of fine-tuning, and of reconstruction with the frozen encoder."""
LIN_EPOCHS = 90
BATCH = 64
CURVATURE_PHOTOS = 100


def probe_encoder(run: Path) -> dict[str, float]:
    """Metrics of the encoder of a finished run, `PROBE_METRICS`: accuracy on val in percent, PSNR in dB."""
    from finola.evaluation.probing import accuracy, extract, head_recipe, knn, train_head
    from finola.heads import Classifier
    from finola.model_zoo import load_encoder
    from finola.recipes.loading import RECIPE, load_recipe

    recipe = load_recipe(run / RECIPE)
    data, (size, _), seed = recipe.data.path, recipe.image_size, recipe.seed
    encoder = load_encoder(run / "model", (size, size))
    train = extract(encoder, data, "train", size, mirrored=True)
    val = extract(encoder, data, "val", size, like="train")
    lin = train_head(head_recipe("lin", epochs=LIN_EPOCHS, seed=seed), train)
    head = train_head(head_recipe("tran-1", seed=seed), train)
    backbone = recipe.model.name.partition("/")[0]
    classifier = Classifier(backbone, "tran-1", train.classes, size)
    classifier.encoder.load_state_dict(encoder.state_dict())
    classifier.head.load_state_dict(head.state_dict())
    classifier.save_pretrained(run / "probe")
    short = ("schedule.warmup_epochs=0.5", f"data.batch_size={BATCH}", f"model.name={backbone}")
    tuned = _trained(run, recipe, "finetune/w720-128", *short)
    model = f"model.name={backbone}/256x1@{size // 16}:{size}+patch"
    frozen = _trained(run, recipe, "masked/recon-b-w720-128", model, "data.val_limit=null", "logging.samples=0")
    return {
        "lin": 100 * accuracy(lin, val),
        "knn": 100 * knn(train, val),
        "tran-1": 100 * accuracy(head, val),
        "fine-tuned": 100 * tuned["accuracy"],
        "reconstruction": frozen["psnr"],
        **_mean_curvature(encoder, data, size),
    }


def _trained(run: Path, recipe: Recipe, name: str, *overrides: str) -> dict[str, float]:
    """Metrics of a short training from the probe of a run, resumed if it was interrupted."""
    from finola.training import load_recipe, train

    height, _ = recipe.image_size
    size = [f"data.size={height}"] if name.startswith("finetune") else []
    words = [f"model.weights={run / 'probe'}", f"seed={recipe.seed}", f"data.path={recipe.data.path}", *size]
    words += [f"schedule.epochs={EPOCHS}", f"trainer.check_val_every_n_epoch={EPOCHS}", *overrides]
    words += [f"trainer.accelerator={recipe.trainer.accelerator}", "logging.wandb=false"]
    return train(load_recipe(name, words), run / name.replace("/", "-"), resume=True, quiet=True).best


def _mean_curvature(encoder: nn.Module, data: str | None, size: int) -> dict[str, float]:
    """Peak Gaussian curvature of the encoder's map, the mean over channels and val photos.

    The curvature depends on the scale of the map: it is given as it is, and with maps of standard deviation 1.
    """
    import torch

    from finola.data import CentreCrop, make_loader, open_data
    from finola.data.sources import evenly
    from finola.evaluation.curvature import curvature, peak_curvature

    dataset: Any = open_data(data, "val", transform=CentreCrop(size))
    dataset.source = evenly(dataset.source, CURVATURE_PHOTOS)
    with torch.inference_mode():
        maps = torch.cat([encoder(batch.images) for batch in make_loader(dataset, BATCH, shuffle=False)])
        scaled = maps / maps.std((1, 2, 3), keepdim=True)
        raw, unit = (float(peak_curvature(curvature(z)).mean()) for z in (maps, scaled))
    return {"curvature": raw, "curvature_of_scaled_maps": unit}
