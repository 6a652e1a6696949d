"""Create and load models by name.

Names are resolved by `finola.hub`. Torch is imported where it is needed, so that lists and wrong names take no time.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from finola.config import MOBILE_FORMERS, ModelConfig, nearest
from finola.errors import InputError, MissingFileError, UnknownNameError
from finola.hub import (
    CONFIG,
    UNTRAINED,
    WEIGHTS,
    bundled_models,
    encoder_name,
    full_name,
    model_folder,
    model_type,
    resolve,
)
from finola.paper.tables import MODELS

if TYPE_CHECKING:
    import torch
    from torch import nn

    from finola.autoencoder import Autoencoder
    from finola.heads import Classifier
    from finola.heads.detector import Detector
    from finola.heads.mask_rcnn import Segmenter


def create(name: str, init: str | None = None, *, pretrained: bool = False) -> Autoencoder:
    """Create a model from its one-line name, randomly initialised as in the paper or with `init="waves"`.

    Models whose names start with `waves` always use wave initialisation, which reconstructs images without training.
    `init="wave-matrices"` initialises only A and B with plane waves, between a random encoder and decoder.
    With `pretrained` the encoder, which must be a timm model, has timm's pretrained weights.

    >>> create("waves/64x1@8:32").config.channels
    64
    """
    if name in bundled_models():
        raise InputError(f"{name} is a trained model. Load it with finola.load({name!r}).")
    name = full_name(name)
    if not re.search(r"/\d+x\d+@", name):
        raise UnknownNameError(f"{name!r} is not a model name: {nearest(name, known_names())}")
    from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

    from finola.autoencoder import Autoencoder

    with unset_fake_temporarily() as fake:  # waves are chosen by values, which fake tensors do not have
        model = Autoencoder(name, init)
    if isinstance(fake, FakeTensorMode):
        for module in model.modules():
            tensors: dict[str, Any]
            for tensors in (module._parameters, module._buffers):
                tensors |= {key: fake.from_tensor(own) for key, own in tensors.items() if own is not None}
    if pretrained:
        from finola.encoders import pretrained_state

        model.encoder.load_state_dict(pretrained_state(model.config.encoder, model.config.image_size))
    return model


def load(name: str | Path, device: str | torch.device = "cpu") -> Autoencoder:
    """Load a trained autoencoder from a bundled name, a folder or a hub id, in evaluation mode, onto a device.

    A `waves…` name needs no trained weights; the model is created. The device `auto` is that of `choose_device`.
    """
    text = full_name(str(name))
    folder = model_folder(name, "autoencoder")
    if folder is not None:
        from finola.autoencoder import Autoencoder

        model: Autoencoder = Autoencoder.from_pretrained(folder)
    elif text.startswith("waves") and "@" in text:
        model = create(text).eval()
    elif "@" in text:
        ModelConfig.parse(text)
        raise InputError(f"{text} has no trained weights. Create the model with finola.create({text!r}).")
    elif text in MOBILE_FORMERS:
        raise InputError(f"{text!r} is an encoder; load it with finola.load_encoder.")
    else:
        raise _not_found(text)
    model.label = str(name)
    return model.to(choose_device() if device == "auto" else device)


def list_models(pattern: str = "*") -> list[str]:
    """Names of the bundled autoencoders, and of those of the paper, that match a pattern.

    >>> list_models("tile*")
    ['tile32']
    """
    return [name for name in dict.fromkeys(known_names()) if fnmatchcase(name, pattern)]


def load_encoder(name: str | Path, image_size: tuple[int, int] = (256, 256)) -> nn.Module:
    """Load the encoder of a trained model of any type, or build a randomly initialised encoder by name.

    `name` is a bundled name, a folder or a hub id of an autoencoder, a masked model, a classifier, a detector or
    MoCo; or the name of an encoder: `mf-w720` … `mf-w5760`, or a timm model.

    >>> load_encoder("mf-w720").channels
    720
    """
    from finola.encoders import build_encoder
    from finola.serialization import building_for, load_weights, read_weights

    folder = resolve(name)
    if folder is None:
        return build_encoder(str(name), image_size)
    with building_for(folder / WEIGHTS, folder / CONFIG):
        encoder = build_encoder(encoder_name(folder), image_size)
    load_weights(encoder, read_weights(folder / WEIGHTS, "encoder."), f"{folder / WEIGHTS} (encoder)")
    return encoder.eval()


def load_classifier(name: str | Path) -> Classifier:
    """Load a trained classifier from a folder or a hub id, in evaluation mode."""
    folder = model_folder(name, "classifier")
    if folder is None:
        raise _not_found(name, "classifier")
    from finola.heads import Classifier

    return Classifier.from_pretrained(folder)


def load_detector(name: str | Path) -> Detector | Segmenter:
    """Load a trained detector, or a segmenter, which also predicts masks, in evaluation mode."""
    folder = model_folder(name, "detector", "segmenter")
    if folder is None:
        raise _not_found(name, "detector", "segmenter")
    from finola.heads.detector import Detector
    from finola.heads.mask_rcnn import Segmenter

    return (Segmenter if model_type(folder) == "segmenter" else Detector).from_pretrained(folder)


def load_model(name: str | Path, *, untrained: bool = False) -> nn.Module:
    """Load a model of any type: an autoencoder, a masked model, a classifier, a detector, a segmenter or an encoder.

    With `untrained`, the name of an encoder that has no trained weights builds it randomly initialised, as
    `load_encoder` does.

    >>> type(load_model("paper64")).__name__
    'Autoencoder'
    """
    kind = model_type(name)
    if kind == "masked":
        from finola.masked import MaskedFinola

        return MaskedFinola.from_pretrained(name)
    if kind == "encoder" or (untrained and kind is None and "@" not in full_name(str(name))):
        return load_encoder(name).eval()
    loaders = {"classifier": load_classifier, "detector": load_detector, "segmenter": load_detector}
    return loaders.get(kind or "", load)(name)


def choose_device(name: str = "auto") -> torch.device:
    """Device by name; `auto` is CUDA, otherwise Apple's MPS, otherwise the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    import torch

    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name not in (*available, "auto"):
        raise UnknownNameError(f"Unknown device {name!r}; use auto, {', '.join(available)}.")
    found = next(kind for kind, there in available.items() if there) if name == "auto" else name
    if not available[found]:
        raise InputError(f"Device {found}: PyTorch finds no such device here. Use auto or cpu.")
    return torch.device(found)


def check_name(name: str | Path) -> None:
    """Raise MissingFileError unless there is a model of this name; PyTorch is not imported.

    >>> check_name("tile32")
    """
    if resolve(name) is None and "@" not in full_name(str(name)) and str(name) not in MOBILE_FORMERS:
        raise _not_found(name)


def _not_found(name: str | Path, *wanted: str) -> MissingFileError:
    names = bundled_models(*wanted) if wanted else known_names()
    hint = nearest(str(name), names) if names else "train one with finola train."
    return MissingFileError(f"{str(name)!r} is not a bundled model, folder or hub id: {hint}")


def known_names() -> list[str]:
    """Names of all autoencoders listed by `finola models`."""
    listed = (name for names in MODELS.values() for name in names if "@" in name)
    return [*bundled_models("autoencoder"), *UNTRAINED, *listed]
