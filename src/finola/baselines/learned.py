"""Trained auto-encoders as peers: a model of this package, or any VAE that diffusers can load from a folder."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from finola.baselines import Code, Peer
from finola.tiling import cut, join, pad_to_multiple


def model_peer(name: str) -> Peer:
    """A model by name, folder or hub id. Its latents are all numbers of q, the slack of a wave model included."""
    from finola.zoo import load

    model = load(name).for_inference()
    size = model.config.image_size

    @torch.inference_mode()
    def encode(image: Tensor) -> Code:
        tiles, grid = cut(pad_to_multiple(image[None], size), size)
        q = model.encode(tiles)
        return Code((q, grid), (image.shape[-2], image.shape[-1]), latents=q.numel())

    @torch.inference_mode()
    def decode(code: Code) -> Tensor:
        q, grid = code.data
        return model.decode(join(model.propagate(q), grid))[0, :, : code.size[0], : code.size[1]]

    return Peer(name, encode, decode)


def codec_peer(word: str, number: float, at_rate: bool, paper: bool) -> Peer:
    """Our own files: `finola:40` of one quality, `finola@0.2` of one rate, `finola-paper:4` of four plain bits."""
    from finola.codec.codec import compress, decompress

    def encode(image: Tensor) -> Code:
        if paper:
            made = compress(image, mode="paper")
        else:
            made = compress(image, bpp=number) if at_rate else compress(image, quality=int(number))
        return Code(made.data, (image.shape[-2], image.shape[-1]), bits=8 * len(made.data))

    return Peer(word, encode, lambda code: decompress(code.data).float() / 255)


def vae_peer(folder: str) -> Peer:
    """A diffusers VAE (AutoencoderKL and its kin) from a folder of its own weights in safetensors."""
    if not Path(folder).expanduser().is_dir():
        raise FileNotFoundError(f"There is no folder {folder} with a diffusers VAE; check the path.")
    if find_spec("diffusers") is None:
        raise ValueError(f"vae:{folder} needs diffusers; install it with: pip install 'finola[peers]'.")
    from diffusers import AutoencoderKL

    vae: Any = AutoencoderKL.from_pretrained(str(Path(folder).expanduser()), use_safetensors=True)
    vae = vae.eval()
    cell = 2 ** (len(vae.config.block_out_channels) - 1)

    @torch.inference_mode()
    def encode(image: Tensor) -> Code:
        latents = vae.encode(2 * pad_to_multiple(image[None], (cell, cell)) - 1).latent_dist.mode()
        return Code(latents, (image.shape[-2], image.shape[-1]), latents=latents.numel())

    @torch.inference_mode()
    def decode(code: Code) -> Tensor:
        image: Tensor = vae.decode(code.data).sample / 2 + 0.5
        return image[0, :, : code.size[0], : code.size[1]]

    return Peer(f"vae:{folder}", encode, decode)
