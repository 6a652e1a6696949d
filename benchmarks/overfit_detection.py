"""Overfit the detector or the segmenter to eight photos, encoder included: AP50 of boxes and masks.

    python benchmarks/overfit_detection.py detect --steps 1200 --every 50 --out results/overfit-detect.json
    python benchmarks/overfit_detection.py segment --steps 600 --every 25 --lr 5e-4 --clip 1 --out FILE

The first eight train photos whose boxes all measure at least 16 pixels once the long side is 192, in one batch, without
dropout or augmentation, from scratch.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from finola.data.detection import Fit, ObjectDataset, collate_objects, move_boxes
from finola.data.discovery import locate, open_source
from finola.evaluation.detection import average_precision, ground_truth
from finola.files import write_text
from finola.heads.detector import Detector

VIEW = Fit(192, 192)
PHOTOS, LEAST, ENOUGH = 8, 16, 0.9
SAMPLES, PROPOSALS = 32, 200  # anchors and regions of each photo that Mask R-CNN learns from, and those it looks at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("detect", "segment"))
    parser.add_argument("--data", default="coco_mini", help="a COCO folder")
    parser.add_argument("--encoder", default="mf-w720")
    parser.add_argument("--steps", type=int, default=2000, help="at most so many")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--clip", type=float, default=0.1)
    parser.add_argument("--every", type=int, default=100, help="steps between measurements; it stops at AP50 0.9")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draw", help="folder for photos with the detections drawn on them")
    parser.add_argument("--out", help="JSON file to write")
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_flush_denormal(True)
    torch.use_deterministic_algorithms(True)
    dataset = ObjectDataset(open_source(locate(args.data), "train"), VIEW, masks=args.what == "segment")
    chosen = choose(dataset)
    batch, _ = collate_objects([dataset[0, index] for index in chosen])
    batch = batch._replace(images=batch.images.float() / 255)
    model = build(args.what, args.encoder, dataset.names)
    started, curve = time.monotonic(), []
    for step, losses in enumerate(fit(model, batch, args), 1):
        if step % args.every == 0 or step == args.steps:
            metrics = evaluate(model, dataset, chosen, batch)
            loss = round(float(sum(losses.values())), 4)
            curve.append(
                {"step": step, "loss": loss} | {kind: round(values["AP50"], 4) for kind, values in metrics.items()}
            )
            print(json.dumps(curve[-1]), f"{time.monotonic() - started:.0f} s", flush=True)
            if min(values["AP50"] for values in metrics.values()) >= ENOUGH:
                break
    result: dict[str, Any] = {
        "benchmark": "overfit_detection",
        "what": args.what,
        "encoder": args.encoder,
        "data": Path(args.data).name,
        "photos": [dataset.name(index) for index in chosen],
        "objects": sum(len(target["labels"]) for target in batch.targets),
        "lr": args.lr,
        "clip": args.clip,
        "seed": args.seed,
        "steps": curve[-1]["step"],
        "most_steps": args.steps,
        "metrics": metrics,
        "curve": curve,
    }
    if args.draw:
        save_drawings(model, dataset, chosen, batch, Path(args.draw))
    if args.out:
        write_text(Path(args.out), json.dumps(result, indent=1) + "\n")


def choose(dataset: ObjectDataset) -> list[int]:
    chosen: list[int] = []
    for index in range(len(dataset)):
        target = dataset.target(index)
        boxes = move_boxes(target["boxes"], VIEW.view(target["size"], None))
        if len(boxes) and bool((boxes[:, 2:] - boxes[:, :2] >= LEAST).all()):
            chosen.append(index)
        if len(chosen) == PHOTOS:
            return chosen
    raise ValueError(f"only {len(chosen)} photos have boxes that all measure {LEAST} pixels; {PHOTOS} are needed.")


def build(what: str, encoder: str, classes: list[str]) -> nn.Module:
    if what == "detect":
        model: nn.Module = Detector(encoder, "mf-dec-211", classes, frozen=False, encoder_norms=True, dropout=0.0)
    else:
        from finola.heads.mask_rcnn import Segmenter

        model = Segmenter(encoder, classes=classes, frozen=False, encoder_norms=True, size=(VIEW.short, VIEW.long))
        for part in (model.head.proposals, model.head.regions):  # 256 and 512 are meant for photos, these are stamps
            part.fg_bg_sampler.batch_size_per_image = SAMPLES
        for kept in (model.head.proposals._pre_nms_top_n, model.head.proposals._post_nms_top_n):
            kept.update(training=PROPOSALS, testing=PROPOSALS)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # every step sees all photos: its statistics are those of all photos
            module.momentum = 1.0
    return model


def fit(model: Any, batch: Any, args: argparse.Namespace) -> Any:
    """AdamW, warmed up over 50 steps and then falling as a cosine to a tenth; yields the losses of every step."""
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], args.lr, weight_decay=1e-4)
    for step in range(args.steps):
        factor = min(1, (step + 1) / 50) * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))
        for group in optimiser.param_groups:
            group["lr"] = args.lr * factor
        model.train()
        losses = model.losses(batch.images, batch.sizes, batch.targets)
        optimiser.zero_grad()
        torch.stack(list(losses.values())).sum().backward()
        nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimiser.step()
        yield {name: value.detach() for name, value in losses.items()}


def evaluate(model: Any, dataset: ObjectDataset, chosen: list[int], batch: Any) -> dict[str, Any]:
    truth, results = ground_truth(dataset.source, chosen), []
    for detections, size, target in zip(detections_of(model, batch), batch.sizes.tolist(), batch.targets, strict=True):
        resized = detections.resized(tuple(size), target["photo_size"])
        results += resized.to_coco(target["image_id"], dataset.categories)
    return {kind: average_precision(truth, results, kind) for kind in (["bbox", "segm"] if dataset.masks else ["bbox"])}


def detections_of(model: Any, batch: Any) -> list[Any]:
    model.eval()
    detections: list[Any] = model.detect(batch.images, batch.sizes)
    return detections


def save_drawings(model: Any, dataset: ObjectDataset, chosen: list[int], batch: Any, folder: Path) -> None:
    from finola.heads.visualisation import draw_detections
    from finola.image_io import save_photo

    folder.mkdir(parents=True, exist_ok=True)
    for number, (detections, target) in enumerate(zip(detections_of(model, batch), batch.targets, strict=True)):
        height, width = batch.sizes[number].tolist()
        image = batch.images[number, :, :height, :width]
        save_photo(draw_detections(image, detections.above(0.5), dataset.names), folder / f"{target['image_id']}.png")


if __name__ == "__main__":
    main()
