"""Plot rate–distortion curves and PSNR over the number of latents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from finola.compare.report import by_latents, curve_label
from finola.errors import require
from finola.files import plot_path

FAMILIES = {"dct": "DCT", "dwt": "DWT", "dtcwt": "DTCWT", "klt64": "KLT, 64x64 tiles", "klt256": "KLT, whole photos"}


def plot_rate_distortion(result: dict[str, Any], path: str | Path) -> Path:
    """Plot the result of a comparison: PSNR over bits per pixel on the left, over latents on the right."""
    require("matplotlib")
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    from finola.plotting.style import save_figure

    path = plot_path(path)
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
    for name, points in result["curves"].items():
        left.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=curve_label(result, name))
    data = "Kodak" if "kodak" in str(result["data"]).lower() else "ImageNet"
    for entry in result["quoted"]["bits"]:
        if entry["data"] == data:
            text = f"{entry['method']} (quoted, {data})"
            left.plot(entry["bpp"], entry["psnr"], marker="*", linestyle="none", markersize=10, label=text)
    left.set(xscale="log", xlabel="bits per pixel", ylabel="PSNR, dB", title="Files")
    families: dict[str, list[tuple[float, float]]] = {}
    for method in by_latents(result["methods"]):
        family = method["word"].partition(":")[0]
        name = FAMILIES.get(family, method["word"])
        if family.startswith("waves/"):
            name = (
                f"wave initialisation, untrained, {'64x64 tiles' if method['word'].endswith(':64') else 'whole photos'}"
            )
        families.setdefault(name, []).append((method["latents_per_256"], method["psnr"]))
    for name, points in families.items():
        right.plot(*zip(*points, strict=True), marker="o", markersize=3.5, label=name)
    finola = [(e["latents"], e["psnr"]) for e in result["quoted"]["latents"] if e["method"].startswith("FINOLA")]
    right.plot(*zip(*finola, strict=True), "k*", markersize=8, label="FINOLA, trained (quoted, ImageNet)")
    right.set(xscale="log", xlabel="latents per 256x256 pixels", ylabel="PSNR, dB", title="Transforms and models")
    for axes in (left, right):
        axes.grid(alpha=0.3, which="both")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8)
    figure.suptitle(f"{result['images']} photos of {result['data']}")
    save_figure(figure, path)
    plt.close(figure)
    return path
