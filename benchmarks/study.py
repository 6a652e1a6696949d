"""Compare pre-training methods on one encoder: FINOLA, masked E and B, MoCo-v2, supervised training, random weights.

Every method has the same Mobile-Former W720, photos, number of images and batch size. The encoder is probed at several
points of the run, and at its end it is also fine-tuned and used, frozen, for reconstruction. Each method has its own
JSON file in `--out`, which is not measured again; interrupted runs are resumed. Needs labelled photos, by default the
data set imagenette128 in FINOLA_DATA.

    python benchmarks/study.py --runs runs/study --out results/study-imagenette128
    python benchmarks/study.py --methods moco          # one process and one thread per method
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from finola.data import CentreCrop, make_loader, open_data
from finola.data.sources import evenly
from finola.evaluation.curvature import curvature, peak_curvature
from finola.evaluation.probing import Features, accuracy, extract, head_recipe, knn, train_head
from finola.files import write_text
from finola.heads import Classifier
from finola.model_zoo import load_encoder
from finola.training import load_recipe, train

METHODS = ("random", "masked-e", "masked-b", "finola", "moco", "moco-adamw", "supervised")
ENCODER, BATCH = "mf-w720", 64
FRACTIONS = (0.125, 0.25, 0.5, 1.0)
"""Points of a run at which the encoder is probed."""
CURVATURE_PHOTOS = 100


def pre_training(method: str, seed: int, args: argparse.Namespace) -> tuple[str, list[str]]:
    """Recipe of a method, and its overrides."""
    name = f"{ENCODER}/256x1@{args.size // 16}:{args.size}"
    common = [f"seed={seed}", f"data.path={args.data}", f"schedule.epochs={epochs(args)}", "schedule.warmup_epochs=1"]
    common += [f"data.batch_size={BATCH}", "data.flip=true", "data.scale=[0.2,1.0]"]
    common += [f"trainer.check_val_every_n_epoch={2 * epochs(args)}"]  # no validation: the last weights are used
    adamw = ["optimiser.kind=adamw", "optimiser.lr=null", "optimiser.base_lr=2e-3", "optimiser.weight_decay=0.05"]
    by_method = {
        "finola": ("paper/channels/256", [f"model.name={name}+patch", *adamw, "logging.samples=0"]),
        "masked-e": ("masked/e-w720-128", [f"model.name={name}+patch", "logging.samples=0"]),
        "masked-b": ("masked/b-w720-128", [f"model.name={name}+tran1", "logging.samples=0"]),
        "moco": ("moco/w720-128", [f"data.size={args.size}", "schedule.warmup_epochs=0"]),  # SGD, as published
        "moco-adamw": ("moco/w720-128", [f"data.size={args.size}", *adamw]),  # optimiser of FINOLA and masked FINOLA
        "supervised": ("supervised/w720-128", [f"data.size={args.size}"]),
    }
    recipe, own = by_method[method]
    return recipe, common + own


def steps_per_epoch(args: argparse.Namespace) -> int:
    return len(open_data(args.data, "train")) // BATCH


def epochs(args: argparse.Namespace) -> int:
    """Whole epochs with at least `--images` images."""
    per_epoch = steps_per_epoch(args) * BATCH
    return int(-(-args.images // per_epoch))


def study(method: str, seed: int, args: argparse.Namespace) -> dict[str, Any]:
    """Pre-train an encoder, and measure it: accuracies in percent, PSNR in dB."""
    folder = Path(args.runs) / f"{method}-{seed}"
    total = epochs(args) * steps_per_epoch(args)
    curve, seconds = [], 0.0
    for fraction in FRACTIONS if method != "random" else ():
        step = round(fraction * total)
        target = folder / f"model-{step}"
        stored = folder / f"probe-{step}.json"
        if not stored.exists():
            recipe, words = pre_training(method, seed, args)
            outcome = train(
                load_recipe(recipe, [*words, f"trainer.max_steps={step}"]),
                folder / "pre-training",
                resume=True,
                export_to=target,
                quiet=True,
            )
            if outcome.status != "finished":
                sys.exit(outcome.message)
            encoder = load_encoder(str(target), (args.size, args.size))
            point = {"images": step * BATCH, "seconds": outcome.seconds, **probe(features(encoder, args), seed)}
            write_text(stored, json.dumps(point) + "\n")
            print(f"{method}: {point}", file=sys.stderr, flush=True)
        curve.append(json.loads(stored.read_text()))
        seconds += curve[-1]["seconds"]
    torch.manual_seed(seed)
    weights = str(folder / f"model-{total}") if curve else ENCODER
    encoder = load_encoder(weights, (args.size, args.size))
    if not curve:
        estimate_statistics(encoder, args)
    train_set, val_set = features(encoder, args, mirrored=True)
    head = train_head(head_recipe("tran-1", seed=seed), train_set)
    probed = save_probe(encoder, head, train_set.classes, folder / "probe", args.size)
    return {
        "method": method,
        "seed": seed,
        "images": curve[-1]["images"] if curve else 0,
        "seconds": round(seconds, 1),
        "curve": curve,
        **probe((train_set, val_set), seed),
        "tran-1": percent(accuracy(head, val_set)),
        "fine-tuned": percent(fine_tune(probed, seed, args, folder)),
        "reconstruction": round(reconstruct(probed, seed, args, folder), 2),
        **mean_curvature(encoder, args),
    }


def percent(fraction: float) -> float:
    return round(100 * fraction, 2)


def features(encoder: nn.Module, args: argparse.Namespace, mirrored: bool = False) -> tuple[Features, Features]:
    """Feature maps of the training and validation photos."""
    train_set = extract(encoder, args.data, "train", args.size, mirrored=mirrored)
    return train_set, extract(encoder, args.data, "val", args.size, like="train")


def probe(found: tuple[Features, Features], seed: int) -> dict[str, float]:
    train_set, val_set = found
    lin = accuracy(train_head(head_recipe("lin", epochs=90, seed=seed), train_set), val_set)
    return {"lin": percent(lin), "knn": percent(knn(train_set, val_set))}


@torch.no_grad()
def estimate_statistics(encoder: nn.Module, args: argparse.Namespace, batches: int = 10) -> None:
    """Estimate the batch-norm statistics of a random encoder on photos; else its maps hardly differ between photos."""
    dataset = open_data(args.data, "train", transform=CentreCrop(args.size))
    dataset.source = evenly(dataset.source, BATCH * batches)
    for module in encoder.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            module.momentum = None  # the mean over all batches
    encoder.train()
    for batch in make_loader(dataset, BATCH, shuffle=False):
        encoder(batch.images)
    encoder.eval()


def save_probe(encoder: nn.Module, head: nn.Module, classes: list[str], folder: Path, size: int) -> Path:
    """Save the encoder with its tran-1 head as a classifier."""
    model = Classifier(ENCODER, "tran-1", classes, size)
    model.encoder.load_state_dict(encoder.state_dict())
    model.head.load_state_dict(head.state_dict())
    model.save_pretrained(folder)
    return folder


def fine_tune(probed: Path, seed: int, args: argparse.Namespace, folder: Path) -> float:
    """Accuracy after training encoder and head with labels, initialised from the tran-1 probe."""
    words = [f"model.weights={probed}", f"seed={seed}", f"data.path={args.data}", f"data.size={args.size}"]
    words += [f"data.batch_size={BATCH}", f"schedule.epochs={args.tuning}", "schedule.warmup_epochs=0.5"]
    words += [f"trainer.check_val_every_n_epoch={args.tuning}"]
    outcome = train(load_recipe("finetune/w720-128", words), folder / "fine-tuning", resume=True, quiet=True)
    return outcome.best["accuracy"]


def reconstruct(probed: Path, seed: int, args: argparse.Namespace, folder: Path) -> float:
    """PSNR of FINOLA with the frozen encoder: pooling, recurrence and decoder are trained (appendix C)."""
    name = f"{ENCODER}/256x1@{args.size // 16}:{args.size}+patch"
    words = [f"model.weights={probed}", f"model.name={name}", f"seed={seed}", f"data.path={args.data}"]
    words += ["data.val_limit=null", f"schedule.epochs={args.tuning}", "logging.samples=0"]
    words += [f"trainer.check_val_every_n_epoch={args.tuning}"]
    recipe = load_recipe("masked/recon-b-w720-128", words)
    return train(recipe, folder / "reconstruction", resume=True, quiet=True).best["psnr"]


@torch.inference_mode()
def mean_curvature(encoder: nn.Module, args: argparse.Namespace) -> dict[str, float]:
    """Peak Gaussian curvature of the encoder's map, the mean over channels and val photos.

    The curvature depends on the scale of the map: it is given as it is, and with maps of standard deviation 1.
    """
    dataset = open_data(args.data, "val", transform=CentreCrop(args.size))
    dataset.source = evenly(dataset.source, CURVATURE_PHOTOS)
    maps = torch.cat([encoder(batch.images) for batch in make_loader(dataset, BATCH, shuffle=False)])

    def mean(z: Tensor) -> float:
        return float(peak_curvature(curvature(z)).mean())

    scaled = maps / maps.std((1, 2, 3), keepdim=True)
    return {"curvature": round(mean(maps), 6), "curvature_of_scaled_maps": round(mean(scaled), 6)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="imagenette128", help="labelled photos")
    parser.add_argument("--runs", default="runs/study", help="folder of the runs")
    parser.add_argument("--out", default="results/study-imagenette128", help="folder of the JSON files")
    parser.add_argument("--size", type=int, default=96, help="side of the images in pixels, a multiple of 32")
    parser.add_argument("--images", type=int, default=200_000, help="of pre-training, at least")
    parser.add_argument("--tuning", type=int, default=3, help="epochs of fine-tuning, and of reconstruction")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    args = parser.parse_args()
    for seed in args.seeds:
        for method in args.methods:
            stored = Path(args.out) / f"{method}-{seed}.json"
            if not stored.exists():
                stored.parent.mkdir(parents=True, exist_ok=True)
                settings = {name: getattr(args, name) for name in ("data", "size", "tuning")}
                found = study(method, seed, args) | {"encoder": ENCODER, **settings, "torch": torch.__version__}
                write_text(stored, json.dumps(found, indent=1) + "\n")
            print(stored.read_text(), end="")


if __name__ == "__main__":
    main()
