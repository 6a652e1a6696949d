"""Validation of COCO masks before pycocotools allocates memory for them."""

from itertools import pairwise
from typing import Any

from finola.config import show_size
from finola.errors import CorruptFileError, shorten

MAX_OUTLINE = 1000
"""Maximum length of a polygon, in units of height + width of its photo; pycocotools uses memory proportional to it."""


def check_segmentation(segmentation: Any, size: tuple[int, int]) -> None:
    """Raise `CorruptFileError` unless the segmentation is valid polygons or run lengths for a photo of `size`."""
    if isinstance(segmentation, dict):
        _check_runs(segmentation, size)
        return
    for polygon in segmentation:
        _check_polygon(polygon, size)


def _check_polygon(polygon: Any, size: tuple[int, int]) -> None:
    if not isinstance(polygon, list) or len(polygon) % 2:
        raise CorruptFileError(f"a polygon is {shorten(polygon)}, not a list of x, y, x, y, ….")
    height, width = size
    outline = 0.0
    for values, side in ((polygon[::2], width), (polygon[1::2], height)):
        for value in values:
            if not is_number(value) or not -side <= value <= 2 * side:
                raise CorruptFileError(f"a polygon of a {width}×{height} photo has the coordinate {shorten(value)}.")
        outline += sum(abs(a - b) for a, b in pairwise(values))
    if outline > MAX_OUTLINE * (height + width):
        raise CorruptFileError(f"a polygon of a {width}×{height} photo has an outline of {outline:.0f} pixels.")


def _check_runs(runs: dict[str, Any], size: tuple[int, int]) -> None:
    if runs.get("size") != list(size):
        raise CorruptFileError(f"the run lengths of a mask have size {shorten(runs.get('size'))}, not {list(size)}.")
    counts = runs.get("counts")
    if isinstance(counts, str):
        counts = _decode_counts(counts, size[0] * size[1])
    if not isinstance(counts, list) or not all(type(count) is int and count >= 0 for count in counts):
        raise CorruptFileError(f"the run lengths of a mask are {shorten(counts)}, not a list of non-negative integers.")
    if sum(counts) != size[0] * size[1]:
        raise CorruptFileError(
            f"the sum of the run lengths of a mask is {shorten(sum(counts))}, not {show_size(size)} pixels."
        )


def _decode_counts(text: str, pixels: int) -> list[int]:
    """Decode the compressed run lengths of COCO: five bits and a continuation bit per character, mostly differences."""
    counts: list[int] = []
    value = shift = 0
    for character in text:
        code = ord(character) - 48
        if not 0 <= code < 64 or shift > 30:
            raise CorruptFileError(
                f"the run lengths of a mask are {shorten(text)}, which is not a valid COCO encoding."
            )
        value |= (code & 31) << shift
        shift += 5
        if not code & 32:
            value -= (1 << shift) if code & 16 else 0
            counts.append(value + (counts[-2] if len(counts) > 2 else 0))
            if counts[-1] > pixels:
                break
            value = shift = 0
    if shift:
        raise CorruptFileError(f"the run lengths of a mask are {shorten(text)}, which do not match {pixels} pixels.")
    return counts


def is_number(value: Any) -> bool:
    """Whether a JSON value is a number (booleans are not)."""
    return type(value) in (int, float)
