"""Methods that run a model on a device: an autoencoder of this package, its codec, or a diffusers VAE from a folder.

Codes and reconstructions are on the CPU, so that measured times include the computation on the device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from finola import photos
from finola.baselines import Code, Method
from finola.errors import MissingFileError, require
from finola.locations import user_path
from finola.tiling import pad_to_multiple

Device = str | torch.device


def model_method(name: str, device: Device = "cpu", budget: int | None = None) -> Method:
    """A model given by name, folder or hub id, an elastic one with a budget per 256×256 pixels (default: 4096).

    All entries of q count as latents, also those that a wave model pads, and the side information of elastic models.
    """
    from finola.model_zoo import load

    model = load(name).for_inference().to(device)
    model.space.check(budget, None)

    @torch.inference_mode()
    def encode(image: Tensor) -> Code:
        latents = photos.encode(model, image.to(device), budget=budget)
        return Code(latents.to("cpu"), latents.size, latents=latents.count(model.space.side_bits).total)

    @torch.inference_mode()
    def decode(code: Code) -> Tensor:
        return photos.decode(model, code.data.to(device)).cpu()

    return Method(name if budget is None else f"{name}@{budget}", encode, decode)


def codec_method(word: str, number: float, at_rate: bool, device: Device = "cpu") -> Method:
    """The `.finola` codec: `finola:40` at a quality, `finola@0.2` at a rate."""
    return _codec(word, device, None, {"bpp": number} if at_rate else {"quality": int(number)})


def plain_method(word: str, codec: str, device: Device = "cpu") -> Method:
    """A bundled codec, or a folder, with four bits per latent and no entropy coding."""
    return _codec(word, device, codec, {"mode": "paper"})


def _codec(word: str, device: Device, codec: str | None, options: dict[str, Any]) -> Method:
    from finola.codec.codec import compress, decompress

    def encode(image: Tensor) -> Code:
        result = compress(image, model=codec, device=device, **options)
        return Code(result.data, (image.shape[-2], image.shape[-1]), bits=8 * len(result.data))

    return Method(word, encode, lambda code: decompress(code.data, model=codec, device=device).float() / 255)


def vae_method(folder: str, device: Device = "cpu") -> Method:
    """A diffusers VAE (`AutoencoderKL`) loaded from a local folder of safetensors weights."""
    if not user_path(folder).is_dir():
        raise MissingFileError(f"vae:{folder}: folder {folder} does not exist; give the folder of a diffusers VAE.")
    require("diffusers")
    from diffusers import AutoencoderKL

    vae: Any = AutoencoderKL.from_pretrained(str(user_path(folder)), use_safetensors=True)
    vae = vae.eval().to(device)
    cell = 2 ** (len(vae.config.block_out_channels) - 1)

    @torch.inference_mode()
    def encode(image: Tensor) -> Code:
        padded = pad_to_multiple(image[None].to(device), (cell, cell))
        latents = vae.encode(2 * padded - 1).latent_dist.mode().cpu()
        return Code(latents, (image.shape[-2], image.shape[-1]), latents=latents.numel())

    @torch.inference_mode()
    def decode(code: Code) -> Tensor:
        image: Tensor = vae.decode(code.data.to(device)).sample.cpu() / 2 + 0.5
        return image[0, :, : code.size[0], : code.size[1]]

    return Method(f"vae:{folder}", encode, decode)
