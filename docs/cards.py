"""Generate the model card of every bundled model from results/: python docs/cards.py"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import yaml

from finola.hub import WEIGHTS_FOLDER, bundled_models, read_config
from finola.image_io import read_photo
from finola.model_zoo import load
from finola.plotting.waves import plot_waves
from finola.wave.analysis import waves

RESULTS = Path(__file__).parent.parent / "results"
DESCRIPTIONS = {
    "tile32": "32×32 tiles, one vector q of 512 channels each with as many latents as the tile needs; networks on "
    "pixels before the analysis and after the read-out of exact plane waves.",
    "photo256": "A whole 256×256 photo from **one** vector of 3072 channels: exact plane waves on a 16×16 map, with "
    "networks on pixels before the analysis and after the read-out.",
    "paper64": "FINOLA from random weights, on images of 64×64 pixels: a residual encoder to one vector of 256 "
    "channels, norm+linear with random initial A and B on an 8×8 map, a residual decoder.",
}
DATA = {
    "photos256": "the train split of `photos256` (4,866 photos at 256×256, three quarters ImageNet-like, else Pixabay)",
    "imagenette128": "the train split of `imagenette128` (5,000 photos of ten ImageNet classes at 128×128)",
}
STAGES = {
    "tile32": ("train-tile32",),
    "photo256": ("train-photo256",),
    "paper64": ("train-paper64",),
}
"""Run directories in results/ of all stages of training; each has the settings of its run in recipe.yaml."""
CURVES = {"paper64": "compare-photos256-64-160.json"}
"""Comparisons in results/ with the KLT on the val photos of a run, for the plot of its curve."""
BESIDE = {"paper64": {"train-paper64-mobile-former": "Mobile-Former W720 and a linear decoder"}}
"""Further runs in results/ whose curves are drawn beside that of a model."""
STAGES_HEAD = """The weights were made with these settings, one stage after the other, on two shared CPU cores.
`finola train FILE` repeats a stage in a checkout of the repository.

| settings | steps | images per step | minutes | seed |
|---|---|---|---|---|
"""
TERMS = """## Licence
The code is Apache-2.0. **The weights have a separate licence: non-commercial research only**, as the photos on which
they were trained (ImageNet-derived: non-commercial research, no redistribution; Pixabay: Pixabay Content License).
"""
CROPS = {"paper64": 64, "photo256": 256}
"""Side of the photos of models of whole images."""


def card(name: str) -> str:
    """Return the model card of a bundled model as Markdown."""
    config = read_config(WEIGHTS_FOLDER / name)
    stages = {stage: _stage(RESULTS / stage) for stage in STAGES[name]}
    [data] = {recipe["data"]["path"] for recipe, _ in stages.values()}
    size = (WEIGHTS_FOLDER / name / "model.safetensors").stat().st_size / 1e6
    parts = [
        "---\nlibrary_name: finola\nlicense: other\nlicense_name: non-commercial-research\ntags: [finola]\n---",
        f"# {name}\n\n{DESCRIPTIONS[name]}\n",
        f"`{config.get('name', config.get('encoder'))}`, {size:.1f} MB, parameters in half precision except for the "
        "analysis matrix of a wave encoder.\n",
        _use(name, config),
        f"## Data\nTrained on {DATA[data]}. No val or test photos were used for training.\n",
        f"## Training\n{_training(name, stages)}\n",
        f"## Metrics\n{_metrics(name)}\n",
    ]
    if name in CURVES:
        parts.append("## Curve\n![PSNR over the number of training images, with the KLT](curve.jpg)\n")
    if (WEIGHTS_FOLDER / name / "speeds.jpg").exists():
        parts.append(f"## Waves\n{_waves(name)}\n\n![Wave speeds in the complex plane](speeds.jpg)\n")
    return "\n".join([*parts, TERMS])


def _use(name: str, config: dict[str, Any]) -> str:
    if "classes" in config:
        return f"```\nfinola classify photo.jpg --model {name}\n```\nClasses: {', '.join(config['classes'])}.\n"
    lines = (
        "import finola",
        "",
        f'model = finola.load("{name}")',
        'photo = finola.read_photo("photo.jpg")  # (3, H, W) in [0, 1], any size',
        "out = finola.decode(model, finola.encode(model, photo))",
    )
    return "\n".join(["```python", *lines, "```", ""])


def _stage(folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings and summary of a run."""
    return yaml.safe_load((folder / "recipe.yaml").read_text()), json.loads((folder / "summary.json").read_text())


def _training(name: str, stages: dict[str, tuple[dict[str, Any], dict[str, Any]]]) -> str:
    rows = [
        f"| `results/{stage}/recipe.yaml` | {summary['step']:,} | {recipe['data']['batch_size']} | "
        f"{summary['seconds'] / 60:.0f} | {recipe['seed']} |"
        for stage, (recipe, summary) in stages.items()
    ]
    text = STAGES_HEAD + "\n".join(rows)
    notes = RESULTS / f"train-{name}" / "README.md"
    return text + ("\n\n" + notes.read_text().partition("\n\n")[2].strip("\n") if notes.exists() else "")


def _metrics(name: str) -> str:
    rows = []
    files = [json.loads(file.read_text()) for file in sorted(RESULTS.glob(f"evaluate-{name}-*.json"))]
    for found in sorted(files, key=lambda found: (found.get("effort") or 0, found.get("budget") or 0)):
        options = {"crop": "--crop", "budget": "--budget", "per_tile": "--per-tile", "effort": "--effort"}
        options |= {"limit": "--limit"}
        chosen = "".join(f" {flag} {found[key]}" for key, flag in options.items() if found.get(key))
        command = f"finola evaluate {name} {found['data']} --split {found['split']}{chosen}"
        if "psnr" in found:
            what = f"PSNR {found['psnr']:.2f} dB, SSIM {found['ssim']:.3f}"
            if found["ms_ssim"] is not None:  # too small for the five scales of MS-SSIM
                what += f", MS-SSIM {found['ms_ssim']:.3f}"
            what += f"; refined q: PSNR {found['refined_psnr']:.2f} dB" if "refined_psnr" in found else ""
        else:
            what = f"accuracy {100 * found['accuracy']:.1f} %"
        rows.append(f"| {found['data']} {found['split']}, {found['images']} photos | {what} | `{command}` |")
    return "\n".join(["| photos | mean | command |", "|---|---|---|", *rows])


def _waves(name: str) -> str:
    """What the matrices are after training, and how well the wave equations hold on photos and on their controls."""
    found = json.loads((RESULTS / f"waves-{name}.json").read_text())
    quadrants = [quadrant for key, quadrant in found["quadrants"].items() if key.count("-") == 1]
    conditions = [quadrant["cond_B"] for quadrant in quadrants if quadrant["cond_B"] != "infinite"]
    shares = ", ".join(f"{share:.1%} {kind}" for kind, share in found["shares"].items() if share)
    matrices = {
        "speeds": shares,
        "sizes of speeds: 10, 50, 90 % (right, down)": ", ".join(_number(size) for size in quadrants[0]["sizes"]),
        "condition number of B": f"{min(conditions):.3g} to {max(conditions):.3g}" if conditions else "infinite",
        "commutator of A and B (right, down)": _number(quadrants[0]["commutator"]),
        "σ on photos": f"{found['sigma_min']:.4f} to {found['sigma_max']:.4f}",
    }
    measured = {"photos": found} | found["controls"]
    rows = {
        "residual of β Δxζ = α Δyζ, mean of both orders": [one["residual"]["mean"] for one in measured.values()],
        "variance of Δx z explained by Δy z, best Q": [one["explained"]["fitted"] for one in measured.values()],
        "the same, Δy z of other photos": [one["explained"]["shuffled"] for one in measured.values()],
        "the same, Q of the model": [one["explained"]["model_Q"] for one in measured.values()],
        "path inconsistency ‖z_h − z_v‖/‖z‖": [one["path_inconsistency"] for one in measured.values()],
    }
    split = f" --split {found['split']}" if found.get("split") else ""
    crop = f" --crop {CROPS[name]}" if name in CROPS else ""
    random = " --random" if "random A, B" in found["controls"] else ""
    command = f"finola waves {name} --images photos256{split} --limit {found['images']}{crop}{random}"
    return "\n".join(
        [
            f"`{command}`; terms and controls are explained in docs/speeds.md.\n",
            *("| | |", "|---|---|", *(f"| {what} | {value} |" for what, value in matrices.items())),
            "",
            f"| | {' | '.join(measured)} |",
            "|---" * (1 + len(measured)) + "|",
            *(f"| {what} | {' | '.join(map(_number, values))} |" for what, values in rows.items()),
        ]
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}"


def plot_curve(name: str) -> None:
    """Plot the validation PSNR of a run over the number of training images, beside the KLT with as many latents."""
    import matplotlib.pyplot as plt

    compared = json.loads((RESULTS / CURVES[name]).read_text())
    klt = next(method for method in compared["methods"] if method["word"].startswith("klt"))
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    for run, label in ({f"train-{name}": f"{name}, {compared['images']} val photos"} | BESIDE.get(name, {})).items():
        batch = yaml.safe_load((RESULTS / run / "recipe.yaml").read_text())["data"]["batch_size"]
        with (RESULTS / run / "metrics.csv").open() as file:
            rows = [row for row in csv.DictReader(file) if row["val/psnr"]]
        points = [(int(row["step"]) * batch, float(row["val/psnr"])) for row in rows]
        axes.plot(*zip(*points, strict=True), marker=".", label=label)
    axes.axhline(klt["psnr"], color="black", linestyle="--", label=f"KLT, {klt['latents']:.0f} latents")
    axes.set(xlabel="training images", ylabel="PSNR, dB")
    axes.legend()
    figure.savefig(WEIGHTS_FOLDER / name / "curve.jpg", dpi=110)
    plt.close(figure)


def main() -> None:
    for name in bundled_models():
        if name in CURVES:
            plot_curve(name)
        config = read_config(WEIGHTS_FOLDER / name)
        if "classes" not in config:
            found, photo = waves(load(name)), read_photo("skimage:astronaut")
            plot_waves(found, found.residual([photo]), photo[None], WEIGHTS_FOLDER / name / "speeds.jpg")
        (WEIGHTS_FOLDER / name / "README.md").write_text(card(name))
        print(WEIGHTS_FOLDER.name + f"/{name}/README.md")


if __name__ == "__main__":
    main()
