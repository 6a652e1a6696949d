"""Metrics of a pre-trained encoder on labelled photos: probes, fine-tuning, reconstruction and curvature."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from finola.errors import FinolaError
from finola.paper.definitions import CRITICAL, CURVATURE_METRICS

if TYPE_CHECKING:
    from torch import Tensor, nn

    from finola.recipes.recipe import ClassifyRecipe, Recipe

EPOCHS = 5
"""Epochs of fine-tuning, and of reconstruction with the frozen encoder."""
LIN_EPOCHS = 90
CURVATURE_PHOTOS = 100
CLASSIFIER = "probe"
"""Folder in a run directory of the frozen encoder with its `tran-1` head."""


def probe_encoder(run: Path) -> dict[str, float]:
    """Accuracy in percent on val of probes of the frozen encoder of a finished run: `lin`, `knn` and `tran-1`."""
    from finola.evaluation.probing import accuracy, extract, head_recipe, knn, train_head
    from finola.heads import Classifier
    from finola.model_zoo import load_encoder
    from finola.recipes.loading import load_recipe

    recipe = _recipe(run)
    data, (size, _), seed = recipe.data.path, recipe.image_size, recipe.seed
    encoder = load_encoder(run / "model", (size, size))
    train = extract(encoder, data, "train", size, mirrored=True)
    val = extract(encoder, data, "val", size, like="train")
    lin = train_head(head_recipe("lin", epochs=LIN_EPOCHS, seed=seed), train)
    head = train_head(cast("ClassifyRecipe", load_recipe("study/tran1", [f"seed={seed}"])), train)
    classifier = Classifier(recipe.model.name.partition("/")[0], "tran-1", train.classes, size)
    classifier.encoder.load_state_dict(encoder.state_dict())
    classifier.head.load_state_dict(head.state_dict())
    classifier.save_pretrained(run / CLASSIFIER)
    return {"lin": 100 * accuracy(lin, val), "knn": 100 * knn(train, val), "tran-1": 100 * accuracy(head, val)}


def fine_tune(run: Path) -> dict[str, float]:
    """Accuracy in percent on val after training the encoder of a run together with its `tran-1` head."""
    return {"fine-tuned": 100 * _trained(run, "study/finetune")["accuracy"]}


def reconstruct(run: Path) -> dict[str, float]:
    """PSNR on val of FINOLA with the frozen encoder of a run."""
    return {"reconstruction": _trained(run, "study/reconstruct")["psnr"]}


def _trained(run: Path, name: str) -> dict[str, float]:
    """Metrics of a short training from the encoder of a run and its head, resumed if it was interrupted."""
    from finola.training import load_recipe, train

    if not (run / CLASSIFIER).is_dir():
        probe_encoder(run)
    recipe = _recipe(run)
    words = [f"model.weights={run / CLASSIFIER}", f"seed={recipe.seed}", f"data.path={recipe.data.path}"]
    words += [f"schedule.epochs={EPOCHS}", f"data.batch_size={recipe.data.batch_size}", "data.num_workers=0"]
    words += [f"trainer.accelerator={recipe.trainer.accelerator}"]
    outcome = train(load_recipe(name, words), run / name.partition("/")[2], resume=True, quiet=True)
    if outcome.status == "interrupted":
        raise FinolaError(outcome.message)
    return outcome.best


def curvatures(run: Path) -> dict[str, float]:
    """Peak Gaussian curvature of the maps of a run on val photos, `CURVATURE_METRICS`.

    It is the mean over photos, and over the channels of each photo with the largest peaks. The curvature depends on the
    scale of a map: it is given for the map as it is, and for the map of each photo divided by its standard deviation.
    A model without recurrence has no map z; its metrics are NaN.
    """
    import torch

    from finola.evaluation.curvature import has_recurrence, most_curved
    from finola.model_zoo import load_model

    model = load_model(run / "model").eval()
    recipe = _recipe(run)
    images = _photos(recipe.data.path, recipe.image_size[0])
    found = dict.fromkeys(CURVATURE_METRICS, float("nan"))
    for kind in ("z", "encoder") if has_recurrence(model) else ("encoder",):
        with torch.inference_mode():
            maps = _maps(model, images, kind)
        scaled = maps / maps.std((1, 2, 3), keepdim=True)
        for percent in CRITICAL:
            for suffix, z in (("", maps), ("-scaled", scaled)):
                found[f"{kind}-curvature-{percent}{suffix}"] = float(most_curved(z, percent / 100).mean())
    return found


def _maps(model: nn.Module, images: Tensor, kind: Any) -> Tensor:
    """The maps `kind` of images: (N, C, H, W)."""
    import torch

    from finola.evaluation.curvature import feature_map

    return torch.stack([feature_map(model, image, kind) for image in images])


@cache
def _photos(data: str | None, size: int) -> Tensor:
    """Evenly spread val photos: (N, 3, size, size) in [0, 1]."""
    import torch

    from finola.data import CentreCrop, open_data
    from finola.data.sources import evenly

    dataset: Any = open_data(data, "val", transform=CentreCrop(size))
    dataset.source = evenly(dataset.source, CURVATURE_PHOTOS)
    return torch.stack([dataset.sample(index)[0] for index in range(len(dataset))]).float() / 255


def _recipe(run: Path) -> Recipe:
    from finola.recipes.loading import RECIPE, load_recipe

    return load_recipe(run / RECIPE)
