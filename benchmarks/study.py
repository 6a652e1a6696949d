"""What pre-training teaches an encoder: FINOLA, masked E and B, MoCo-v2, labels, nothing; probed and fine-tuned.

Every method gets the same Mobile-Former W720, the same photos and as many images. What is finished is kept in the runs'
folder, so that a stopped study goes on where it was. Needs labelled photos: the pack imagenette128 in FINOLA_DATA.

    python benchmarks/study.py --runs runs/study --out results/study-imagenette128.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from torch import nn

from finola.data import CentreCrop, make_loader, open_data
from finola.data.sources import evenly
from finola.evaluation.probing import accuracy, extract, head_recipe, knn, train_head
from finola.files import write_text
from finola.model_zoo import load_encoder
from finola.training import load_recipe, train

METHODS = ("random", "finola", "masked-e", "masked-b", "moco", "supervised")
PROBES = ("lin", "knn", "tran-1", "fine-tuned")


def pre_training(method: str, size: int, epochs: float, seed: int, photos: int | None) -> tuple[str, list[str]]:
    """The recipe of a method and what is changed in it."""
    cells = size // 16
    words = [f"seed={seed}", f"schedule.epochs={epochs}", "schedule.warmup_epochs=1", "data.flip=true"]
    words += ["data.path=imagenette128", f"data.limit={photos or 'null'}", "data.scale=[0.2,1.0]"]
    words += ["data.batch_size=64", "trainer.check_val_every_n_epoch=100"]
    if method == "finola":
        words += [f"model.name=mf-w720/256x1@{cells}:{size}+patch", "optimiser.base_lr=2e-3"]
        return "cpu/channels/256", [*words, "logging.samples=0", "logging.health=false"]
    if method.startswith("masked-"):
        variant = method[-1]
        decoder = "patch" if variant == "e" else "tran1"
        words += [f"model.name=mf-w720/256x1@{cells}:{size}+{decoder}", "logging.samples=0"]
        return f"masked/{variant}-w720-128", words
    words.append(f"data.size={size}")
    if method == "moco":
        return "moco/w720-128", [*words, "schedule.warmup_epochs=0"]
    return "supervised/w720-128", words


def study(method: str, seed: int, args: argparse.Namespace) -> dict[str, float]:
    """All probes of one method and seed, in percent."""
    folder = Path(args.runs) / f"{method}-{seed}"
    kept = folder / "figures.json"
    if kept.exists():
        found: dict[str, float] = json.loads(kept.read_text())
        return found
    began, size, weights = time.monotonic(), args.size, None
    if method != "random":
        recipe = load_recipe(*pre_training(method, size, args.epochs, seed, args.photos))
        weights = train(recipe, folder / "pre-training", resume=True, quiet=True).model
    took = time.monotonic() - began
    torch.manual_seed(seed)
    encoder = load_encoder(weights or "mf-w720", (size, size))
    if weights is None:
        settle(encoder, size)
    train_set = extract(encoder, "imagenette128", "train", size, mirrored=True, limit=args.photos)
    val_set = extract(encoder, "imagenette128", "val", size, like="train")
    head = train_head(head_recipe("tran-1", epochs=args.head_epochs, seed=seed), train_set)
    found = {
        "pre_training_seconds": round(took, 1),
        "knn": 100 * knn(train_set, val_set),
        "lin": 100 * accuracy(train_head(head_recipe("lin", seed=seed), train_set), val_set),
        "tran-1": 100 * accuracy(head, val_set),
        "fine-tuned": 100 * fine_tune(encoder, head, train_set.classes, seed, args, folder),
    }
    write_text(kept, json.dumps(found, indent=1) + "\n")
    return found


@torch.no_grad()
def settle(encoder: nn.Module, size: int, batches: int = 10) -> None:
    """Let the batch norms of a random encoder see photos: else its maps differ by 2 % from photo to photo."""
    dataset = open_data("imagenette128", "train", transform=CentreCrop(size))
    dataset.source = evenly(dataset.source, 64 * batches)
    norms = [module for module in encoder.modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d)]
    for norm in norms:
        norm.momentum = None  # the mean over all batches
    encoder.train()
    for batch in make_loader(dataset, 64, shuffle=False):
        encoder(batch.images)
    encoder.eval()


def fine_tune(encoder, head, classes: list[str], seed: int, args: argparse.Namespace, folder: Path) -> float:
    """Accuracy after both are trained with labels, the head beginning where its probe ended."""
    from finola.heads import Classifier

    model = Classifier("mf-w720", "tran-1", classes, args.size)
    model.encoder.load_state_dict(encoder.state_dict())
    model.head.load_state_dict(head.state_dict())
    model.save_pretrained(folder / "probe")
    words = [f"model.weights={folder / 'probe'}", f"seed={seed}", f"data.size={args.size}", "data.batch_size=64"]
    words += [
        f"schedule.epochs={args.tuning}",
        "schedule.warmup_epochs=0.5",
        f"trainer.check_val_every_n_epoch={args.tuning}",
    ]
    words += [f"data.limit={args.photos or 'null'}"]
    outcome = train(load_recipe("finetune/w720-128", words), folder / "fine-tuning", resume=True, quiet=True)
    return outcome.best["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", default="runs/study", help="folder of the runs")
    parser.add_argument("--out", help="JSON file to write")
    parser.add_argument("--size", type=int, default=64, help="side of the images in pixels")
    parser.add_argument("--epochs", type=int, default=10, help="of pre-training")
    parser.add_argument("--tuning", type=int, default=3, help="epochs of fine-tuning")
    parser.add_argument("--photos", type=int, help="train on this many photos only, evenly spread over classes")
    parser.add_argument("--head-epochs", type=int, default=10, help="of the tran-1 probe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    args = parser.parse_args()
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for seed in args.seeds:
        for method in args.methods:
            rows.setdefault(method, {})[str(seed)] = study(method, seed, args)
            print(f"seed {seed} {method}: {rows[method][str(seed)]}", file=sys.stderr, flush=True)
            _write(args, rows)
    for method, by_seed in rows.items():
        shown = [f"{probe} {statistics.mean(f[probe] for f in by_seed.values()):5.1f}" for probe in PROBES]
        print(f"{method:12s} {'  '.join(shown)}  (%, mean of {len(by_seed)} seeds)")


def _write(args: argparse.Namespace, rows: dict[str, dict[str, dict[str, float]]]) -> None:
    if not args.out:
        return
    command = f"python benchmarks/study.py --size {args.size} --epochs {args.epochs} --tuning {args.tuning}"
    command += f" --head-epochs {args.head_epochs}"
    command += f" --photos {args.photos}" if args.photos else ""
    content = {
        "command": command,
        "data": f"imagenette128: {args.photos or 5000:,} train and 1,000 val photos of ten classes",
        "encoder": "mf-w720",
        "pixels": args.size,
        "pre_training_epochs": args.epochs,
        "fine_tuning_epochs": args.tuning,
        "percent_right_by_method_and_seed": rows,
    }
    write_text(Path(args.out), json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
