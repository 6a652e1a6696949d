"""Wavelets in three scales: the discrete transform (PyWavelets, which the field trusts) and the dual-tree complex one.

Both keep what the paper's table keeps: the coarsest low-pass band (`ll`), all of scale 3, or that and the details of
scale 2. Finer details are zero.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from finola.baselines import Code, Peer, dtcwt

WAVELET = "db3"  # the paper's latent counts ask for six taps and symmetric borders; it does not say which six
LEVELS = 3
SMALLEST = 40  # pixels a side, below which three scales of six taps are more border than image
KEPT = {"ll": 0, "scale3": 1, "scale2": 2, "all": LEVELS}  # how many scales of details, from the coarsest


def dwt_peer(kept: str) -> Peer:
    """Of a 256×256 image `ll` is 3·36² = 3888 numbers, `scale3` 15552, `scale2` 55953."""
    details = _details(f"dwt:{kept}", kept)

    def encode(image: Tensor) -> Code:
        import pywt

        height, width = (max(0, SMALLEST - side) for side in image.shape[-2:])
        wide = F.pad(image[None].double(), (0, width, 0, height), mode="replicate")[0]
        bands = pywt.wavedec2(wide.numpy(), WAVELET, mode="symmetric", level=LEVELS, axes=(-2, -1))
        shapes = [band[0].shape for band in bands[1 + details :]]
        count = bands[0].size + sum(part.size for band in bands[1 : 1 + details] for part in band)
        return Code((bands[: 1 + details], shapes), (image.shape[-2], image.shape[-1]), latents=count)

    def decode(code: Code) -> Tensor:
        import pywt

        bands, shapes = code.data
        zero = [tuple(np.zeros(shape) for _ in range(3)) for shape in shapes]
        image = pywt.waverec2([*bands, *zero], WAVELET, mode="symmetric", axes=(-2, -1))
        return torch.from_numpy(image[:, : code.size[0], : code.size[1]]).float()

    return Peer(f"dwt:{kept}", encode, decode)


def dtcwt_peer(kept: str) -> Peer:
    """Of a 256×256 image `ll` is 3·64² = 12288 numbers, `scale3` 49152, `scale2` 196608; it is redundant by design."""
    details = _details(f"dtcwt:{kept}", kept)

    def encode(image: Tensor) -> Code:
        bands = dtcwt.forward(image, LEVELS)
        shapes = [band.shape for band in bands.highpasses[: LEVELS - details]]
        coarse = dtcwt.DTCWT(bands.lowpass, bands.highpasses[LEVELS - details :])
        return Code((coarse, shapes), (image.shape[-2], image.shape[-1]), latents=dtcwt.count(coarse))

    def decode(code: Code) -> Tensor:
        coarse, shapes = code.data
        zero = [torch.zeros(shape, dtype=coarse.lowpass.dtype.to_complex()) for shape in shapes]
        return dtcwt.inverse(dtcwt.DTCWT(coarse.lowpass, (*zero, *coarse.highpasses)), size=code.size)

    return Peer(f"dtcwt:{kept}", encode, decode)


def _details(name: str, kept: str, known: Sequence[str] = tuple(KEPT)) -> int:
    if kept not in known:
        raise ValueError(f"{name} is not known: keep {', '.join(known)}.")
    return KEPT[kept]
