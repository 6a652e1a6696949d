"""HTML of images, metrics and the complex plane. Images are embedded as data URIs."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from finola.app.comparison import ERROR_LEVELS, OTHERS, Comparison, Version, error_levels
from finola.app.models import describe, limits
from finola.app.photos import EXAMPLES, Photo, example, shrunk
from finola.image_io import to_pillow

SHOWN = 1024  # maximum side of a displayed image in pixels
PNG_PIXELS = 4_000_000  # larger decoded photos are offered as JPEG
THUMBNAIL = 96
ERROR_COLOURS, LENGTH_COLOURS, WAVE_COLOURS = "inferno", "viridis", "RdBu_r"


def data_uri(data: bytes, kind: str) -> str:
    """Encode bytes as a data URI."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_uri(image: Tensor, side: int = SHOWN) -> str:
    """Encode uint8 (3, H, W), downscaled to `side`, as a PNG data URI."""
    stream = io.BytesIO()
    to_pillow(shrunk(image, side)).save(stream, "PNG", compress_level=1)
    return data_uri(stream.getvalue(), "image/png")


def figure(uri: str, size: tuple[int, int], title: str, note: str = "", foot: str = "") -> str:
    """Image with title and note; width and height reserve its space while it loads."""
    height, width = size
    return (
        f'<figure class="shot"><figcaption><b>{html.escape(title)}</b><span>{html.escape(note)}</span></figcaption>'
        f'<img src="{uri}" alt="{html.escape(title)}" width="{width}" height="{height}">{foot}</figure>'
    )


def picture(image: Tensor, title: str, note: str = "") -> str:
    """Figure of a uint8 image (3, H, W)."""
    return figure(image_uri(image), (image.shape[-2], image.shape[-1]), title, note)


def gallery(*figures: str) -> str:
    """Figures side by side, wrapped to the available width."""
    return f'<div class="shots">{"".join(figures)}</div>'


def message(words: str, alarm: bool = False) -> str:
    """One-line message to the user; alarms are announced immediately by screen readers."""
    kind = ('alert" class="said alarm') if alarm else ('status" class="said')
    return f'<p role="{kind}">{html.escape(words)}</p>'


def comparison(photo: Photo, found: Comparison, model: str, asked: int = 0) -> str:
    """Original, reconstruction, error map and other formats with their metrics. `asked` is the effort asked for."""
    height, width = photo.size
    ours = found.ours
    figures = [
        picture(photo.pixels, "Original", f"{width} × {height} pixels"),
        picture(ours.image, f"finola, {model}", _size(ours) or "not quantised"),
        error_map(ours.image, photo.pixels),
    ]
    if ours.data is None:
        words = f"{model} writes no file, so there is no size to match."
        figures.append(_empty("Other formats", (height, width), words))
    for title in OTHERS.values() if ours.data is not None else ():
        if title in found.others:
            figures.append(picture(found.others[title].image, title, _other_size(found.others[title], ours)))
        else:
            figures.append(_empty(title, (height, width), f"This installation of Pillow has no {title}."))
    notes = message(describe(model))
    if found.effort < asked and ours.data is not None:
        words = f"Effort {asked} takes more than about ten seconds for a photo of this size; {found.effort} was used."
        notes = message(words) + notes
    return scale_note(photo, model) + gallery(*figures) + table(found, model) + notes + download(photo, ours)


def abilities(model: str) -> str:
    """What a model cannot do."""
    return message(" ".join(limits(model)))


def scale_note(photo: Photo, model: str) -> str:
    """Message on the scaling of a photo; empty if it was not scaled down."""
    if photo.full_size is None:
        return ""
    (height, width), (full_height, full_width) = photo.size, photo.full_size
    return message(
        f"Scaled down from {full_width} × {full_height} to {width} × {height} pixels: at full size {model} would take "
        "more than about ten seconds here. finola compress processes photos at full size."
    )


def _empty(title: str, size: tuple[int, int], words: str) -> str:
    height, width = size
    return (
        f'<figure class="shot"><figcaption><b>{title}</b><span>–</span></figcaption>'
        f'<div class="empty" style="aspect-ratio:{width}/{height}">{html.escape(words)}</div></figure>'
    )


def error_map(image: Tensor, original: Tensor) -> str:
    """Map of the absolute error of a reconstruction, with a colour scale."""
    levels = error_levels(image, original)
    places = (levels / ERROR_LEVELS).clamp(0, 1).mul(255).to(torch.uint8)
    coloured = torch.from_numpy(_colours(ERROR_COLOURS)[places.numpy()]).permute(2, 0, 1)
    stops = ",".join("rgb({},{},{})".format(*colour) for colour in _colours(ERROR_COLOURS)[::32])
    foot = (
        f'<div class="legend"><i style="background:linear-gradient(90deg,{stops})"></i>'
        f"<span>0</span><span>{ERROR_LEVELS // 2}</span><span>{ERROR_LEVELS} or more</span></div>"
    )
    size = levels.shape[0], levels.shape[1]
    return figure(image_uri(coloured), size, "Error of finola", f"mean {levels.mean():.1f} of 255", foot)


def length_map(lengths: Tensor, size: tuple[int, int]) -> str:
    """Map of the number of latents of each tile (rows, columns) of a photo of `size`, on a logarithmic scale."""
    levels = lengths.float().log2()
    low, high = int(lengths.min()), int(lengths.max())
    places = ((levels - levels.min()) / (levels.max() - levels.min()).clamp_min(1e-6) * 255).to(torch.uint8)
    rows, columns = (torch.arange(side) * count // side for side, count in zip(size, lengths.shape, strict=True))
    drawn = torch.from_numpy(_colours(LENGTH_COLOURS)[places[rows][:, columns].numpy()]).permute(2, 0, 1)
    stops = ",".join("rgb({},{},{})".format(*colour) for colour in _colours(LENGTH_COLOURS)[::32])
    foot = (
        f'<div class="legend"><i style="background:linear-gradient(90deg,{stops})"></i>'
        f"<span>{low}</span><span>{high}</span></div>"
    )
    return figure(image_uri(drawn), size, "Latents of each tile", f"from {low} to {high}", foot)


def wave_over(image: Tensor, wave: Tensor, title: str, note: str) -> str:
    """Wave (h, w) in [−1, 1] over a grey photo: red for positive, blue for negative values."""
    grey = image.float().mean(0, keepdim=True) * 0.6 + 60
    strength = wave.abs().sqrt()[None] * 0.9
    colours = torch.from_numpy(_colours(WAVE_COLOURS)[((wave + 1) * 127.5).to(torch.uint8).numpy()]).permute(2, 0, 1)
    over = grey * (1 - strength) + colours * strength
    stops = ",".join("rgb({},{},{})".format(*colour) for colour in _colours(WAVE_COLOURS)[::32])
    foot = (
        f'<div class="legend"><i style="background:linear-gradient(90deg,{stops})"></i>'
        "<span>negative</span><span>0</span><span>positive</span></div>"
    )
    drawn = over.round().clamp(0, 255).to(torch.uint8)
    return figure(image_uri(drawn), (image.shape[-2], image.shape[-1]), title, note, foot)


@lru_cache(maxsize=4)
def _colours(name: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """Matplotlib colour map as uint8 (256, 3)."""
    from matplotlib import colormaps

    return (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8)


def table(found: Comparison, model: str) -> str:
    """Table of file sizes and metrics, with the best values among files of at most the size of ours in bold."""
    rows = {f"finola, {model}": found.ours, **found.others}
    fair = [version for version in rows.values() if _fits(version, found.ours)]
    best = {"psnr": max(v.psnr for v in fair), "ssim": max(v.ssim or 0.0 for v in fair)}
    lines = []
    for title, version in rows.items():
        bpp, bold = version.bits_per_pixel(), len(fair) > 1 and _fits(version, found.ours)
        psnr, ssim = f"{min(version.psnr, 100.0):.2f} dB", "–" if version.ssim is None else f"{version.ssim:.3f}"
        cells = [
            "no file" if version.data is None else _bytes(len(version.data)),
            "–" if bpp is None else f"{bpp:.3f}",
            f"<b>{psnr}</b>" if bold and version.psnr == best["psnr"] else psnr,
            f"<b>{ssim}</b>" if bold and version.ssim == best["ssim"] else ssim,
        ]
        lines.append(
            f'<tr><th scope="row">{html.escape(title)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        )
    heads = ("", "File size", "Bits per pixel", "PSNR", "SSIM")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _fits(version: Version, ours: Version) -> bool:
    """Whether a file is at most as large as ours."""
    return version.data is None or ours.data is None or len(version.data) <= len(ours.data)


def _other_size(version: Version, ours: Version) -> str:
    return _size(version) if _fits(version, ours) else f"{_size(version)}: its smallest file is larger"


def _size(version: Version) -> str:
    return "" if version.data is None else f"{_bytes(len(version.data))}, {version.psnr:.1f} dB"


def _bytes(count: int) -> str:
    """Format a file size.

    >>> _bytes(812), _bytes(5461)
    ('812 bytes', '5.5 kB')
    """
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def download(photo: Photo, ours: Version) -> str:
    """Download link with the embedded `.finola` file."""
    if ours.data is None:
        return '<p class="links">This model has no codec, so there is no file to download.</p>'
    name = f"{_stem(photo)}.finola"
    uri = data_uri(ours.data, "application/octet-stream")
    words = f"Download {name}, {_bytes(len(ours.data))}"
    return (
        f'<p class="links"><a class="button" href="{uri}" download="{html.escape(name)}">{html.escape(words)}</a></p>'
    )


def decoded(photo: Photo) -> str:
    """Photo decoded from a `.finola` file, with its size and a download link."""
    height, width = photo.size
    assert photo.coded is not None
    stream = io.BytesIO()
    kind = "PNG" if height * width <= PNG_PIXELS else "JPEG"
    to_pillow(photo.pixels).save(stream, kind, quality=95)
    name = f"{_stem(photo)}.{kind.lower()}"
    uri = data_uri(stream.getvalue(), f"image/{kind.lower()}")
    note = f"{width} × {height} pixels, {_bytes(photo.coded)}, {8 * photo.coded / (width * height):.3f} bits per pixel"
    link = f'<a class="button" href="{uri}" download="{html.escape(name)}">Download as {kind}</a>'
    shown = gallery(picture(photo.pixels, f"Decoded with {photo.model}", note))
    words = (
        "Decoded from a .finola file, so there is no original to compare with. The other tabs work as for any photo."
    )
    return f'{shown}<p class="links">{link}</p>{message(words)}'


def _stem(photo: Photo) -> str:
    stem = photo.name.split(",")[0].rsplit(".", 1)[0]
    return "".join(c if c.isalnum() or c in "-_ " else "-" for c in stem).strip()[:60] or "photo"


@lru_cache(maxsize=1)
def thumbnails() -> str:
    """Buttons for the example photos."""
    buttons = []
    for name, words in EXAMPLES.items():
        uri = image_uri(example(name).pixels, THUMBNAIL)
        buttons.append(
            f'<button type="button" data-choice="{name}" title="{words}"><img src="{uri}" alt="">{words}</button>'
        )
    return f'<div class="thumbs" role="group" aria-label="Example photos">{"".join(buttons)}</div>'


def plane(places: Sequence[tuple[float, float, int, str]], chosen: int) -> str:
    """Wave speeds in the complex plane. Each dot is (x, y, number of waves, label); `chosen` is the selected dot."""
    rings = []
    for speed, words in ((1 / 3, "⅓"), (1.0, "1"), (3.0, "3"), (float("inf"), "∞")):
        radius = 1 / (1 + 1 / speed)
        across = -radius * 2**-0.5  # upper left, where there are few dots
        words = f"|λ| = {words}" if speed == 1 else words
        rings.append(f'<circle r="{radius:.3f}"/><text x="{across:.3f}" y="{across + 0.02:.3f}">{words}</text>')
    dots = []
    for number, (x, y, count, words) in enumerate(places):
        kind = "dot chosen" if number == chosen else "dot"
        size = 0.016 + 0.008 * min(count, 36) ** 0.5
        # Conjugate speeds belong to the same wave; both are drawn and can be selected.
        for height in {y, -y}:
            place = f'cx="{x:.4f}" cy="{height:.4f}" r="{size:.4f}"'
            title = f"<title>{html.escape(words)}</title>"
            dots.append(f'<circle class="{kind}" data-choice="{number}" {place}>{title}</circle>')
    dots.sort(key=lambda dot: "chosen" in dot)  # drawn last, on top
    return (
        '<figure class="shot"><figcaption><b>Speeds λ in the complex plane</b>'
        "<span>select a dot or move the slider</span></figcaption>"
        '<svg class="plane" viewBox="-1.09 -1.09 2.18 2.18" role="img" aria-label="Wave speeds in the complex plane">'
        f'<g class="rings"><path d="M-1 0H1M0 -1V1"/>{"".join(rings)}</g>{"".join(dots)}</svg>'
        '<div class="legend"><span>real part to the right, imaginary part upwards, ∞ on the rim; '
        "larger dots represent more waves</span></div></figure>"
    )
