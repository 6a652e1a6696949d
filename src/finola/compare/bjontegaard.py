"""Bjøntegaard's deltas: how much rate, or how much PSNR, lies between two rate–distortion curves on average."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

Curve = Sequence[tuple[float, float]]  # (bits per pixel, PSNR in dB)


def bd_rate(reference: Curve, other: Curve) -> float | None:
    """Per cent of rate that `other` needs more (less: negative) than `reference` at equal PSNR; None without overlap.

    >>> curve = [(0.1, 24.0), (0.2, 26.0), (0.4, 28.5), (0.8, 31.0)]
    >>> round(bd_rate(curve, [(0.9 * rate, quality) for rate, quality in curve]), 6)
    -10.0
    """
    mean = _mean_gap([(q, np.log(r)) for r, q in reference], [(q, np.log(r)) for r, q in other])
    return None if mean is None else float(100 * np.expm1(mean))


def bd_psnr(reference: Curve, other: Curve) -> float | None:
    """dB that `other` is better (worse: negative) than `reference` at equal rate; None without overlap.

    >>> curve = [(0.1, 24.0), (0.2, 26.0), (0.4, 28.5), (0.8, 31.0)]
    >>> round(bd_psnr(curve, [(rate, quality + 0.5) for rate, quality in curve]), 6)
    0.5
    """
    return _mean_gap([(np.log(r), q) for r, q in reference], [(np.log(r), q) for r, q in other])


def _mean_gap(reference: Curve, other: Curve) -> float | None:
    """Mean of other − reference over the x both have, each curve a monotone cubic (PCHIP) through its points."""
    from scipy.interpolate import PchipInterpolator

    first, second = (np.array(sorted(curve), dtype=float) for curve in (reference, other))
    if min(len(first), len(second)) < 2 or any((np.diff(curve[:, 0]) <= 0).any() for curve in (first, second)):
        raise ValueError("a rate–distortion curve has at least two points, no two of equal rate or equal PSNR.")
    low, high = max(first[0, 0], second[0, 0]), min(first[-1, 0], second[-1, 0])
    if low >= high:
        return None
    areas = [PchipInterpolator(*curve.T).integrate(low, high) for curve in (first, second)]
    return float((areas[1] - areas[0]) / (high - low))
