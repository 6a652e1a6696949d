"""Optimise a model for inference by folding batch norms into the preceding convolutions."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

Module = TypeVar("Module", bound=nn.Module)


def fold_norms(module: Module) -> Module:
    """Return a copy in evaluation mode with each batch norm folded into its convolution and channels-last weights.

    The output is the same up to rounding. The copy cannot be trained, or saved under the name of the original model.

    >>> net = nn.Sequential(nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)), nn.ReLU())
    >>> folded = fold_norms(net)
    >>> [type(layer).__name__ for layer in folded[0]]
    ['Conv2d', 'Identity']
    """
    folded = copy.deepcopy(module).eval()
    for pair in folded.modules():
        if isinstance(pair, nn.Sequential) and [type(layer) for layer in pair] == [nn.Conv2d, nn.BatchNorm2d]:
            pair[0], pair[1] = fuse_conv_bn_eval(pair[0], pair[1]), nn.Identity()  # type: ignore[arg-type, type-var]
    return folded.requires_grad_(False).to(memory_format=torch.channels_last)
