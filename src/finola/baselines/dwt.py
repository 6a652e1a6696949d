"""Wavelet transforms with three scales: the discrete one (PyWavelets) and the dual-tree complex one.

The subsets of coefficients are those of the paper's table: the coarsest low-pass band (`ll`), all of scale 3
(`scale3`), or scale 3 and the details of scale 2 (`scale2`). Finer details are set to zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from finola.baselines import Code, Method, dtcwt
from finola.errors import UnknownNameError, require
from finola.tiling import pad_to

WAVELET = "db3"  # the paper's latent counts imply six taps and symmetric extension; it does not name the wavelet
LEVELS = 3
MIN_SIDE = 40  # in pixels; smaller images are padded, because three scales of six taps need this many samples
DETAIL_SCALES = {"ll": 0, "scale3": 1, "scale2": 2, "all": LEVELS}  # number of detail scales, from the coarsest


def dwt_method(subset: str) -> Method:
    """DWT restricted to a subset. For a 256×256 image, `ll` is 3·36² = 3888 latents, `scale3` 15552, `scale2` 55953."""
    require("pywt")
    details = _detail_scales(f"dwt:{subset}", subset)

    def encode(image: Tensor) -> Code:
        import pywt

        padded = pad_to(image[None].double(), (MIN_SIDE, MIN_SIDE))[0]
        bands = pywt.wavedec2(padded.numpy(), WAVELET, mode="symmetric", level=LEVELS, axes=(-2, -1))
        shapes = [band[0].shape for band in bands[1 + details :]]
        count = bands[0].size + sum(part.size for band in bands[1 : 1 + details] for part in band)
        return Code((bands[: 1 + details], shapes), (image.shape[-2], image.shape[-1]), latents=count)

    def decode(code: Code) -> Tensor:
        import pywt

        bands, shapes = code.data
        zero = [tuple(np.zeros(shape) for _ in range(3)) for shape in shapes]
        image = pywt.waverec2([*bands, *zero], WAVELET, mode="symmetric", axes=(-2, -1))
        return torch.from_numpy(image[:, : code.size[0], : code.size[1]]).float()

    return Method(f"dwt:{subset}", encode, decode)


def dtcwt_method(subset: str) -> Method:
    """DTCWT restricted to a subset; the transform is redundant by design.

    For a 256×256 image, `ll` is 3·64² = 12288 latents, `scale3` 49152, `scale2` 196608.
    """
    details = _detail_scales(f"dtcwt:{subset}", subset)

    def encode(image: Tensor) -> Code:
        bands = dtcwt.forward(image, LEVELS)
        shapes = [band.shape for band in bands.highpasses[: LEVELS - details]]
        coarse = dtcwt.DTCWT(bands.lowpass, bands.highpasses[LEVELS - details :])
        return Code((coarse, shapes), (image.shape[-2], image.shape[-1]), latents=dtcwt.count(coarse))

    def decode(code: Code) -> Tensor:
        coarse, shapes = code.data
        zero = [torch.zeros(shape, dtype=coarse.lowpass.dtype.to_complex()) for shape in shapes]
        return dtcwt.inverse(dtcwt.DTCWT(coarse.lowpass, (*zero, *coarse.highpasses)), size=code.size)

    return Method(f"dtcwt:{subset}", encode, decode)


def _detail_scales(name: str, subset: str, known: Sequence[str] = tuple(DETAIL_SCALES)) -> int:
    if subset not in known:
        raise UnknownNameError(f"Unknown subset {subset!r} in {name}; use one of {', '.join(known)}.")
    return DETAIL_SCALES[subset]
