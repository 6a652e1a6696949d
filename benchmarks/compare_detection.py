"""Compare frozen encoders by training a detection head on each: AP50 on the val photos of a COCO folder, over seeds.

    python benchmarks/compare_detection.py random=mf-w720 supervised=FOLDER masked-b=FOLDER --out results/x.json

Each encoder is a name and a trained model's folder or bundled name; an encoder's name such as mf-w720 stands for random
weights. The maps of a frozen encoder are computed once for every photo and its mirror image and cached; MF-Dec-211 is
trained on them. Photos and schedule are small: the results compare initialisations and are not those of the paper.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from finola.data.detection import Fit, ObjectDataset, letterbox
from finola.data.discovery import locate, open_source
from finola.data.transforms import View
from finola.evaluation.detection import average_precision, ground_truth
from finola.files import write_text
from finola.heads.criterion import detection_losses
from finola.heads.detector import Detector, normalise_boxes, to_detections
from finola.hub import encoder_name, resolve
from finola.model_zoo import load_encoder


class Mirrored(Fit):
    """`Fit`, left and right exchanged."""

    def view(self, size: tuple[int, int], random: np.random.Generator) -> View:
        return super().view(size, random)._replace(flip=True)


class CachedMaps:
    """Feature maps of a frozen encoder in half precision, with their targets and sizes."""

    def __init__(self, encoder: Any, datasets: list[ObjectDataset], side: int) -> None:
        eighths, sixteenths, sizes = [], [], []
        self.targets: list[dict[str, Any]] = []
        for dataset in datasets:
            for index in range(len(dataset)):
                item = dataset[0, index]
                image, size = letterbox([item.image, torch.zeros(3, side, side, dtype=torch.uint8)])
                with torch.inference_mode():
                    eighth, sixteenth = encoder.stages(image[:1].float() / 255)[-2:]
                eighths.append(eighth.half())
                sixteenths.append(sixteenth.half())
                sizes.append(size[0])
                self.targets.append(item.target)
        self.maps = torch.cat(eighths), torch.cat(sixteenths)
        self.sizes = torch.stack(sizes)

    def batch(self, numbers: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor, list[dict[str, Any]]]:
        eighth, sixteenth = (maps[numbers].float() for maps in self.maps)
        return (eighth, sixteenth), self.sizes[numbers], [self.targets[number] for number in numbers.tolist()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoders", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--data", default="coco_mini", help="a COCO folder with train and val parts")
    parser.add_argument("--head", default="mf-dec-211")
    parser.add_argument("--side", type=int, default=192, help="long side of the photos")
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--seeds", type=int, default=2, help="runs per encoder")
    parser.add_argument("--limit", type=int, help="photos per part, to try it out")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    rows = [row for given in args.encoders for row in compare(*given.split("=", 1), args)]
    summary = {}
    for name in dict.fromkeys(row["encoder"] for row in rows):
        values = [row["metrics"]["AP50"] for row in rows if row["encoder"] == name]
        spread = statistics.stdev(values) if len(values) > 1 else None
        summary[name] = {"AP50": statistics.mean(values), "deviation": spread, "runs": len(values)}
        print(json.dumps({name: summary[name]}), flush=True)
    if args.out:
        settings = {key: value for key, value in vars(args).items() if key not in ("out", "encoders")}
        settings["data"] = Path(args.data).name
        content = {"benchmark": "compare_detection", "settings": settings, "summary": summary, "runs": rows}
        write_text(Path(args.out), json.dumps(content, indent=1) + "\n")


def compare(name: str, model: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One row per seed."""
    torch.manual_seed(0)  # of random weights
    encoder = load_encoder(model).eval()
    view = Fit(args.side, args.side)
    parts = {part: open_source(locate(args.data), part) for part in ("train", "val")}
    names = ObjectDataset(parts["train"], view).names
    train = [
        few(ObjectDataset(parts["train"], shown, classes=names), args.limit)
        for shown in (view, Mirrored(*view_of(view)))
    ]
    val = few(ObjectDataset(parts["val"], view, classes=names), args.limit)
    started = time.monotonic()
    learned, held = CachedMaps(encoder, train, args.side), CachedMaps(encoder, [val], args.side)
    print(
        f"{name}: maps of {len(learned.targets) + len(held.targets)} photos in {time.monotonic() - started:.0f} s",
        flush=True,
    )
    folder = resolve(model)
    rows = []
    for seed in range(args.seeds):
        torch.manual_seed(seed)
        detector = Detector(model if folder is None else encoder_name(folder), args.head, names, size=view_of(view))
        loss, started = fit(detector, learned, args, seed), time.monotonic()
        metrics = evaluate(detector, held, val, args.batch)
        rows.append({"encoder": name, "seed": seed, "loss": round(loss, 4), "metrics": metrics})
        print(json.dumps({"encoder": name, "seed": seed, "loss": round(loss, 4), "AP50": metrics["AP50"]}), flush=True)
    return rows


def view_of(view: Fit) -> tuple[int, int]:
    return view.short, view.long


def few(dataset: ObjectDataset, limit: int | None) -> ObjectDataset:
    from finola.data.sources import Subset

    if limit is not None and limit < len(dataset):
        dataset.source = Subset(dataset.source, np.arange(limit))
    return dataset


def fit(detector: Detector, cached: CachedMaps, args: argparse.Namespace, seed: int) -> float:
    """AdamW on the head alone, warmed up over an epoch and then falling as a cosine; the last epoch's mean loss.

    Half of the kept maps are mirror images, so an epoch over the photos takes half of them.
    """
    optimiser = torch.optim.AdamW(detector.head.parameters(), args.lr, weight_decay=1e-4)
    order = torch.Generator().manual_seed(seed)
    steps = len(cached.targets) // 2 // args.batch
    for epoch in range(args.epochs):
        shuffled, losses = torch.randperm(len(cached.targets), generator=order), []
        for step in range(steps):
            done = (epoch * steps + step) / (args.epochs * steps)
            for group in optimiser.param_groups:
                group["lr"] = (
                    args.lr * min(1, (epoch * steps + step + 1) / steps) * 0.5 * (1 + math.cos(math.pi * done))
                )
            maps, sizes, targets = cached.batch(shuffled[step * args.batch : (step + 1) * args.batch])
            detector.train()
            parts = detection_losses(
                detector.predict(maps, sizes), normalise_boxes(targets, [tuple(size) for size in sizes.tolist()])
            )
            loss = torch.stack(list(parts.values())).sum()
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(detector.head.parameters(), 0.1)
            optimiser.step()
            losses.append(float(loss.detach()))
        if epoch % 5 == 4 or epoch + 1 == args.epochs:
            print(f"  epoch {epoch + 1}: loss {statistics.mean(losses):.3f}", flush=True)
    return statistics.mean(losses)


@torch.no_grad()
def evaluate(detector: Detector, cached: CachedMaps, dataset: ObjectDataset, batch: int) -> dict[str, Any]:
    """COCO's twelve metrics on the photos whose maps were cached."""
    detector.eval()
    results: list[dict[str, Any]] = []
    for numbers in torch.arange(len(cached.targets)).split(batch):
        maps, sizes, targets = cached.batch(numbers)
        own = [(int(height), int(width)) for height, width in sizes.tolist()]
        for found, size, target in zip(to_detections(detector.predict(maps, sizes), own), own, targets, strict=True):
            results += found.resized(size, target["photo_size"]).to_coco(target["image_id"], dataset.categories)
    return average_precision(ground_truth(dataset.source, range(len(dataset))), results)


if __name__ == "__main__":
    main()
