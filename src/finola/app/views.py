"""Pictures, figures and the complex plane as HTML that needs no other file: every picture is in the page itself."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from finola.app.comparison import ERROR_LEVELS, Version, error_levels
from finola.app.models import describe
from finola.app.photos import EXAMPLES, Photo, example, shrunk
from finola.image_io import to_pillow

SHOWN = 1024  # pixels of the longer side of a picture on the page
PNG_PIXELS = 4_000_000  # beyond, a decoded photo is handed out as a JPEG
THUMBNAIL = 96
ERROR_COLOURS, WAVE_COLOURS = "inferno", "RdBu_r"


def data_uri(data: bytes, kind: str) -> str:
    """Bytes as an address that holds them."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def image_uri(image: Tensor, side: int = SHOWN) -> str:
    """uint8 (3, H, W) as a PNG in an address, shrunk to `side`."""
    stream = io.BytesIO()
    to_pillow(shrunk(image, side)).save(stream, "PNG", compress_level=1)
    return data_uri(stream.getvalue(), "image/png")


def figure(uri: str, size: tuple[int, int], title: str, note: str = "", foot: str = "") -> str:
    """One picture with its title above and a note below; its place is kept while it loads."""
    height, width = size
    return (
        f'<figure class="shot"><figcaption><b>{html.escape(title)}</b><span>{html.escape(note)}</span></figcaption>'
        f'<img src="{uri}" alt="{html.escape(title)}" width="{width}" height="{height}">{foot}</figure>'
    )


def picture(image: Tensor, title: str, note: str = "") -> str:
    """A uint8 image (3, H, W) as a figure."""
    return figure(image_uri(image), (image.shape[-2], image.shape[-1]), title, note)


def gallery(*figures: str) -> str:
    """Figures beside each other, as many as there is room for."""
    return f'<div class="shots">{"".join(figures)}</div>'


def sentence(words: str, alarm: bool = False) -> str:
    """One line to the visitor; an alarm is read out at once by a screen reader."""
    kind = ('alert" class="said alarm') if alarm else ('status" class="said')
    return f'<p role="{kind}">{html.escape(words)}</p>'


def comparison(photo: Photo, ours: Version, jpeg: Version | None, model: str) -> str:
    """Original, reconstruction, JPEG and error map, and their figures."""
    height, width = photo.size
    title = f"finola, {model}"
    others = (
        picture(jpeg.image, "JPEG, same size", _size(jpeg))
        if jpeg
        else _empty("JPEG, same size", (height, width), f"{model} writes no file, so there is no size to match.")
    )
    figures = [
        picture(photo.pixels, "Original", f"{width} × {height} pixels"),
        picture(ours.image, title, _size(ours) or "not quantised"),
        others,
        error_map(ours.image, photo.pixels),
    ]
    note = scale_note(photo, model)
    return note + gallery(*figures) + table(ours, jpeg, model) + sentence(describe(model)) + download(photo, ours)


def scale_note(photo: Photo, model: str) -> str:
    """A line that says by how much a photo was scaled down, and why; empty where it was not."""
    if photo.full_size is None:
        return ""
    (height, width), (full_height, full_width) = photo.size, photo.full_size
    return sentence(
        f"Scaled down from {full_width} × {full_height} to {width} × {height} pixels: at full size {model} would take "
        "more than about ten seconds here. finola compress works on the whole photo."
    )


def _empty(title: str, size: tuple[int, int], words: str) -> str:
    height, width = size
    return (
        f'<figure class="shot"><figcaption><b>{title}</b><span>–</span></figcaption>'
        f'<div class="empty" style="aspect-ratio:{width}/{height}">{html.escape(words)}</div></figure>'
    )


def error_map(image: Tensor, original: Tensor) -> str:
    """Where the reconstruction is off and by how much, with the legend of its colours."""
    levels = error_levels(image, original)
    places = (levels / ERROR_LEVELS).clamp(0, 1).mul(255).to(torch.uint8)
    coloured = torch.from_numpy(_colours(ERROR_COLOURS)[places.numpy()]).permute(2, 0, 1)
    stops = ",".join("rgb({},{},{})".format(*colour) for colour in _colours(ERROR_COLOURS)[::32])
    foot = (
        f'<div class="legend"><i style="background:linear-gradient(90deg,{stops})"></i>'
        f"<span>0</span><span>{ERROR_LEVELS // 2}</span><span>{ERROR_LEVELS} or more</span></div>"
    )
    size = levels.shape[0], levels.shape[1]
    return figure(image_uri(coloured), size, "Error map", f"{levels.mean():.1f} of 255 levels off", foot)


def wave_over(image: Tensor, wave: Tensor, title: str, note: str) -> str:
    """A wave (h, w) in [−1, 1] over a photo in grey: red where it adds, blue where it takes away."""
    grey = image.float().mean(0, keepdim=True) * 0.6 + 60
    strength = wave.abs().sqrt()[None] * 0.9
    colours = torch.from_numpy(_colours(WAVE_COLOURS)[((wave + 1) * 127.5).to(torch.uint8).numpy()]).permute(2, 0, 1)
    over = grey * (1 - strength) + colours * strength
    stops = ",".join("rgb({},{},{})".format(*colour) for colour in _colours(WAVE_COLOURS)[::32])
    foot = (
        f'<div class="legend"><i style="background:linear-gradient(90deg,{stops})"></i>'
        "<span>takes away</span><span>nothing</span><span>adds</span></div>"
    )
    drawn = over.round().clamp(0, 255).to(torch.uint8)
    return figure(image_uri(drawn), (image.shape[-2], image.shape[-1]), title, note, foot)


@lru_cache(maxsize=4)
def _colours(name: str) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    """256 colours (256, 3) of a matplotlib map."""
    from matplotlib import colormaps

    return (colormaps[name](np.arange(256))[:, :3] * 255).round().astype(np.uint8)


def table(ours: Version, jpeg: Version | None, model: str) -> str:
    """Size and nearness of both, the better one set in bold."""
    rows = [(f"finola, {model}", ours), ("JPEG, same size", jpeg)]
    best = {
        "psnr": max(v.psnr for _, v in rows if v),
        "ssim": max(v.ssim or 0.0 for _, v in rows if v),
    }
    lines = []
    for title, version in rows:
        cells = ["–"] * 4
        if version is not None:
            bpp = version.bits_per_pixel()
            psnr, similar = f"{min(version.psnr, 100.0):.2f} dB", f"{version.ssim or 0:.3f}"
            cells = [
                "no file" if version.data is None else _bytes(len(version.data)),
                "–" if bpp is None else f"{bpp:.3f}",
                f"<b>{psnr}</b>" if jpeg and version.psnr == best["psnr"] else psnr,
                "–"
                if version.ssim is None
                else f"<b>{similar}</b>"
                if jpeg and version.ssim == best["ssim"]
                else similar,
            ]
        lines.append(
            f'<tr><th scope="row">{html.escape(title)}</th>{"".join(f"<td>{cell}</td>" for cell in cells)}</tr>'
        )
    heads = ("", "File size", "Bits per pixel", "PSNR", "SSIM")
    head = "".join(f'<th scope="col">{word}</th>' for word in heads)
    return f'<table class="figures"><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'


def _size(version: Version) -> str:
    return "" if version.data is None else f"{_bytes(len(version.data))}, {version.psnr:.1f} dB"


def _bytes(count: int) -> str:
    """A size with its unit.

    >>> _bytes(812), _bytes(5461)
    ('812 bytes', '5.5 kB')
    """
    if count < 1000:
        return f"{count} bytes"
    return f"{count / 1e3:,.1f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"


def download(photo: Photo, ours: Version) -> str:
    """A link that holds the `.finola` file itself."""
    if ours.data is None:
        return '<p class="links">This model has no code tables: there is no file to download.</p>'
    name = f"{_stem(photo)}.finola"
    uri = data_uri(ours.data, "application/octet-stream")
    words = f"Download {name}, {_bytes(len(ours.data))}"
    return (
        f'<p class="links"><a class="button" href="{uri}" download="{html.escape(name)}">{html.escape(words)}</a></p>'
    )


def decoded(photo: Photo) -> str:
    """What a `.finola` file holds: the picture, its figures, and the picture to take along."""
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
    words = "It came as a .finola file: there is no original to compare it with. The other tabs take it as any photo."
    return f'{shown}<p class="links">{link}</p>{sentence(words)}'


def _stem(photo: Photo) -> str:
    stem = photo.name.split(",")[0].rsplit(".", 1)[0]
    return "".join(c if c.isalnum() or c in "-_ " else "-" for c in stem).strip()[:60] or "photo"


@lru_cache(maxsize=1)
def thumbnails() -> str:
    """The example photos as buttons."""
    buttons = []
    for name, words in EXAMPLES.items():
        uri = image_uri(example(name).pixels, THUMBNAIL)
        buttons.append(
            f'<button type="button" data-choice="{name}" title="{words}"><img src="{uri}" alt="">{words}</button>'
        )
    return f'<div class="thumbs" role="group" aria-label="Example photos">{"".join(buttons)}</div>'


def plane(places: Sequence[tuple[float, float, int, str]], chosen: int) -> str:
    """Speeds in the complex plane: (x, y, how many waves stand there, words) for every dot; `chosen` is one of them."""
    rings = []
    for speed, words in ((1 / 3, "⅓"), (1.0, "1"), (3.0, "3"), (float("inf"), "∞")):
        radius = 1 / (1 + 1 / speed)
        across = -radius * 2**-0.5  # at the upper left, where few dots are
        words = f"|λ| = {words}" if speed == 1 else words
        rings.append(f'<circle r="{radius:.3f}"/><text x="{across:.3f}" y="{across + 0.02:.3f}">{words}</text>')
    dots = []
    for number, (x, y, count, words) in enumerate(places):
        kind = "dot chosen" if number == chosen else "dot"
        size = 0.016 + 0.008 * min(count, 36) ** 0.5
        # Conjugate speeds belong to the same wave: both are drawn, and either can be chosen.
        for height in {y, -y}:
            place = f'cx="{x:.4f}" cy="{height:.4f}" r="{size:.4f}"'
            title = f"<title>{html.escape(words)}</title>"
            dots.append(f'<circle class="{kind}" data-choice="{number}" {place}>{title}</circle>')
    dots.sort(key=lambda dot: "chosen" in dot)  # drawn last, it lies on top
    return (
        '<figure class="shot"><figcaption><b>Speeds λ in the complex plane</b>'
        "<span>choose a dot or move the slider</span></figcaption>"
        '<svg class="plane" viewBox="-1.09 -1.09 2.18 2.18" role="img" aria-label="Wave speeds in the complex plane">'
        f'<g class="rings"><path d="M-1 0H1M0 -1V1"/>{"".join(rings)}</g>{"".join(dots)}</svg>'
        '<div class="legend"><span>real part to the right, imaginary part upwards, ∞ on the rim; '
        "a larger dot holds more waves</span></div></figure>"
    )
