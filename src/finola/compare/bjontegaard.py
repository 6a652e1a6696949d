"""Bjøntegaard deltas: the average difference in rate, or in PSNR, between two rate–distortion curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from finola.errors import InputError

Curve = Sequence[tuple[float, float]]  # (bits per pixel, PSNR in dB)
MIN_RATIO = 3.0
"""Smallest ratio of the highest to the lowest common rate for which a delta is meaningful."""


def common_rates(reference: Curve, other: Curve) -> tuple[float, float] | None:
    """Lowest and highest rate that both curves cover, or None if they do not overlap.

    >>> common_rates([(0.1, 24.0), (0.8, 31.0)], [(0.2, 25.0), (1.6, 33.0)])
    (0.2, 0.8)
    """
    low = max(min(rate for rate, _ in curve) for curve in (reference, other))
    high = min(max(rate for rate, _ in curve) for curve in (reference, other))
    return (low, high) if low < high else None


def bd_rate(reference: Curve, other: Curve) -> float | None:
    """BD-rate in per cent: extra rate of `other` over `reference` at equal PSNR, or None if the curves do not overlap.

    >>> curve = [(0.1, 24.0), (0.2, 26.0), (0.4, 28.5), (0.8, 31.0)]
    >>> round(bd_rate(curve, [(0.9 * rate, quality) for rate, quality in curve]), 6)
    -10.0
    """
    mean = _mean_gap([(q, np.log(r)) for r, q in reference], [(q, np.log(r)) for r, q in other])
    return None if mean is None else float(100 * np.expm1(mean))


def bd_psnr(reference: Curve, other: Curve) -> float | None:
    """BD-PSNR in dB: gain of `other` over `reference` at equal rate, or None if the curves do not overlap.

    >>> curve = [(0.1, 24.0), (0.2, 26.0), (0.4, 28.5), (0.8, 31.0)]
    >>> round(bd_psnr(curve, [(rate, quality + 0.5) for rate, quality in curve]), 6)
    0.5
    """
    return _mean_gap([(np.log(r), q) for r, q in reference], [(np.log(r), q) for r, q in other])


def _mean_gap(reference: Curve, other: Curve) -> float | None:
    """Mean of other − reference over their common range of x; curves are interpolated by monotone cubics (PCHIP)."""
    from scipy.interpolate import PchipInterpolator

    first, second = (np.array(sorted(curve), dtype=float) for curve in (reference, other))
    if min(len(first), len(second)) < 2 or any((np.diff(curve[:, 0]) <= 0).any() for curve in (first, second)):
        raise InputError(
            f"Rate–distortion curves of {len(first)} and {len(second)} points: each needs at least two points, "
            "no two of which may have the same rate or PSNR."
        )
    low, high = max(first[0, 0], second[0, 0]), min(first[-1, 0], second[-1, 0])
    if low >= high:
        return None
    areas = [PchipInterpolator(*curve.T).integrate(low, high) for curve in (first, second)]
    return float((areas[1] - areas[0]) / (high - low))
