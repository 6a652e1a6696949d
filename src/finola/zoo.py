"""Create and load models by name; list the models of the paper with their parameters and multiply–adds."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from finola.autoencoder import Autoencoder, wave_decoder
from finola.config import ModelConfig, nearest
from finola.decoders import build_decoder
from finola.decoders.conv_ae import ConvGrower
from finola.encoders import build_encoder
from finola.errors import CorruptFileError, InputError, MissingFileError, UnknownNameError
from finola.paper import cite
from finola.pooling import AttentionPool
from finola.serialization import CONFIG, WEIGHTS, bounded_by, load_weights, read_weights
from finola.serialization import read_config as read_config_file
from finola.transitions import build_transition

if TYPE_CHECKING:
    from finola.heads import Classifier

BUNDLED = Path(__file__).parent / "weights"


def create(name: str, init: str | None = None) -> Autoencoder:
    """Create a model from its one-line name, randomly initialised as in the paper or with `init="waves"`.

    Models whose names start with `waves` always use wave initialisation, which reconstructs images without training.

    >>> create("waves/64x1@8:32").config.channels
    64
    """
    if (BUNDLED / name / "config.json").is_file():
        raise InputError(f"{name} is a trained model. Load it with finola.load({name!r}).")
    if not re.search(r"/\d+x\d+@", name):
        raise UnknownNameError(f"{name!r} is not a model name: {nearest(name, known_names())}")
    return Autoencoder(name, init)


def load(name: str | Path) -> Autoencoder:
    """Load a trained model from a folder, a bundled name or a hub id, in evaluation mode.

    A `waves…` name needs no trained weights; the model is created.
    """
    text = str(name)
    folder = find_trained(text)
    if folder is not None:
        config = read_config(folder)
        if "name" not in config or "variant" in config:
            raise InputError(f"{text} is {_kind(config)}, but an autoencoder is needed.")
        model: Autoencoder = Autoencoder.from_pretrained(str(folder))
        return model.eval()
    if "@" in text:
        if not text.startswith("waves"):
            ModelConfig.parse(text)
            raise InputError(f"{text} has no trained weights. Create the model with finola.create({text!r}).")
        return create(text).eval()
    raise MissingFileError(f"{text!r} is not a folder, bundled model or hub id: {nearest(text, known_names())}")


def load_encoder(name: str | Path, image_size: tuple[int, int] = (256, 256)) -> nn.Module:
    """Load the encoder of a trained model of any task, or build a randomly initialised encoder by name.

    `name` is a folder, a bundled name or a hub id of an autoencoder, a masked model, a classifier, a detector or
    MoCo; or the name of an encoder: `mf-w720` … `mf-w5760`, or a timm model.

    >>> load_encoder("mf-w720").channels
    720
    """
    folder = find_trained(str(name))
    if folder is None:
        return build_encoder(str(name), image_size)
    with bounded_by(folder / WEIGHTS, folder / CONFIG):
        encoder = build_encoder(encoder_name(folder), image_size)
    load_weights(encoder, trained_part(folder, "encoder."), f"{folder / WEIGHTS} (encoder)")
    return encoder.eval()


def trained_part(folder: Path, prefix: str) -> dict[str, Tensor]:
    """Read the weights whose names start with `prefix`; the keys of the result do not include it."""
    return read_weights(folder / WEIGHTS, prefix)


def load_classifier(name: str | Path) -> Classifier:
    """Load a trained classifier from a folder, a bundled name or a hub id, in evaluation mode."""
    from finola.heads import Classifier

    folder = find_trained(str(name))
    if folder is None:
        raise MissingFileError(
            f"{str(name)!r} is not a folder, bundled model or hub id. Train a classifier with finola train."
        )
    config = read_config(folder)
    if _kind(config) != "a classifier":
        raise InputError(
            f"{name} is {_kind(config)}, but a classifier is needed. Train a head on it with finola train probe/…."
        )
    model: Classifier = Classifier.from_pretrained(str(folder))
    return model.eval()


def encoder_name(folder: Path) -> str:
    """Name of the encoder of a trained model, as `build_encoder` takes it."""
    config = read_config(folder)
    name = config["encoder"] if "encoder" in config else ModelConfig.parse(config["name"]).encoder
    if name.startswith("waves"):
        raise InputError(f"{folder.name} has a wave encoder, which has no feature map. Choose another model.")
    return str(name)


def find_trained(name: str) -> Path | None:
    """Folder of a trained model: `name` itself, a bundled model, or a download from the hub. None if not found."""
    if Path(name).is_dir():
        if not (Path(name) / "config.json").is_file():
            raise MissingFileError(f"{name} has no config.json. Name a folder written by save_pretrained.")
        return Path(name)
    if (BUNDLED / name / "config.json").is_file():
        return BUNDLED / name
    if "@" not in name and re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        from huggingface_hub import errors, hf_hub_download

        try:
            for file in ("model.safetensors", "config.json"):
                found = hf_hub_download(name, file)
        except (errors.HfHubHTTPError, errors.EntryNotFoundError) as error:
            missing = isinstance(error, errors.RepositoryNotFoundError | errors.RemoteEntryNotFoundError)
            reason = "not found" if missing else str(error).splitlines()[0].rstrip(".")
            raise MissingFileError(f"There is no folder {name}, and no such model on the hub: {reason}.") from error
        return Path(found).parent
    return None


def read_config(folder: Path) -> dict[str, Any]:
    """Read config.json of a trained model and check the fields that determine the type of model."""
    config = read_config_file(folder / CONFIG)
    for key in ("name", "encoder", "head", "variant"):
        if not isinstance(config.get(key, ""), str):
            raise CorruptFileError(f"Corrupt file {folder / CONFIG}: {key} is not a string.")
    if "name" not in config and "encoder" not in config:
        raise CorruptFileError(f"Corrupt file {folder / CONFIG}: it has neither a name nor an encoder field.")
    return config


def kind_of(name: str) -> str | None:
    """Type of a trained model: "an autoencoder", "a masked model", "a classifier", …; None if it is not found."""
    folder = find_trained(name)
    return None if folder is None else _kind(read_config(folder))


def _kind(config: dict[str, Any]) -> str:
    if "variant" in config:
        return "a masked model"
    if "classes" in config:
        detectors = {"mf": "a detector", "mask": "a segmenter"}
        return detectors.get(config.get("head", "").partition("-")[0], "a classifier")
    return "an autoencoder" if "name" in config else "an encoder"


def bundled_names() -> list[str]:
    """Names of the autoencoders bundled with the package."""
    return [name for name in _bundled() if "classes" not in read_config(BUNDLED / name)]


def bundled_classifiers() -> list[str]:
    """Names of the classifiers bundled with the package."""
    return [name for name in _bundled() if "classes" in read_config(BUNDLED / name)]


def _bundled() -> list[str]:
    return sorted(folder.parent.name for folder in BUNDLED.glob("*/config.json"))


def full_name(name: str) -> str:
    """One-line name of a bundled model; other names are returned unchanged."""
    folder = BUNDLED / name
    return str(read_config(folder).get("name", name)) if (folder / "config.json").is_file() else name


def known_names() -> list[str]:
    """All names listed by `finola models`."""
    return [*bundled_names(), *(name for names in PAPER.values() for name in names)]


def _grid() -> list[str]:
    sizes = [f"{c}x{m}" for c in (128, 256, 512, 1024, 2048) for m in (1, 2, 4, 8)]
    return [f"mf-w2880/{size}@64" for size in [*sizes, "1024x16", "2048x16"]]


PAPER: dict[str, list[str]] = {
    f"resolution, {cite('table:multi-resolution')}": [
        f"mf-w2880/{cm}@{side}" for cm in ("3072x1", "1024x4") for side in (8, 16, 32, 64, 128, 256)
    ],
    f"autoregression, {cite('table:comp-auto')}": [
        f"mf-w2880/3072x1@{side}{rule}" for rule in ("+repeat", "+repeat+pos", "+linear") for side in (16, 64)
    ],
    f"norm+nonlinear, {cite('table:comp-nonlinear')}": [f"mf-w2880/{c}x1@16+mlp" for c in (512, 1024, 3072)],
    f"normalisation, {cite('table:comp-norm')}": ["mf-w2880/3072x1@16+batchnorm"],
    f"paths and channels, {cite('fig:val-relax')}": _grid(),
    f"Conv-AE, {cite('table:comp-ae')}": ["mf-w2880/512x4@64+convae", "mf-w2880/2048x4@64+convae"],
    f"channels, {cite('table:ablation', 'a')}": [
        f"mf-w2880/{c}x1@16" for c in (4096, 3072, 2048, 1024, 512, 256, 128, 64)
    ],
    f"encoders, {cite('table:ablation', 'b')}": [f"mf-w{width}/3072x1@16" for width in (5760, 4320, 2880, 1440, 720)],
    f"position of q, {cite('fig:appendix:recon-pos')}": [
        f"mf-w2880/3072x1@16{corner}" for corner in ("+corner", "+top-right", "+bottom-left", "+bottom-right")
    ],
    f"speeds, {cite('table:special-case-all')}": [
        "mf-w2880/1024x4@64+real",
        "mf-w2880/1024x4@64+unit",
        "mf-w2880/4096x1@64+repeat+pos",
    ],
    f"scattered starts, {cite('table:mixture-hidden-waves')}": [
        f"mf-w2880/{cm}@64+scatter" for cm in ("1024x4", "1024x8", "1024x16", "2048x8", "2048x16")
    ],
    "masked FINOLA-E (appendix B)": [f"mf-w{width}/512x1@16+patch" for width in (720, 1440, 2880)],
    "latent 16,384 on one path or sixteen (§4.1)": ["mf-w2880/16384x1@64", "mf-w2880/1024x16@64"],
    "plane waves (ours)": [
        "waves/256x1@16:64",
        "waves+conv/256x1@16:64",
        "waves+conv/512x1@16:64",
        "waves/1024x1@16",
        "waves/3072x1@16",
    ],
}


@dataclass(frozen=True)
class Count:
    """Parameters of one part of a model and its multiply–adds per image."""

    parameters: int
    multiply_adds: int


def count(name: str) -> dict[str, Count]:
    """Count the parameters and multiply–adds of encoder, pooling, propagation and decoder on the meta device.

    Multiply–adds are those of convolutions and matrix products. Propagation is 2·C²·(H·W − 1) per path, both orders.

    >>> count("mf-w2880/1024x16@64")["propagation"].parameters
    4194304
    """
    config = ModelConfig.parse(name)
    with torch.device("meta"):
        q = torch.empty(1, config.paths, config.channels)
        z = torch.empty(1, config.channels, *config.map_size)
        if config.is_waves:
            pooling = Count(0, 0)
            decoder: nn.Module = wave_decoder(config)
        else:
            feature_map = _encoder(config.encoder, config.image_size)[1]
            pooling = _count(AttentionPool(feature_map.shape[1], config.channels, config.paths), feature_map)[0]
            decoder = build_decoder(config)
        if config.transition == "conv-ae":
            propagation, z = _count(ConvGrower(config.channels, config.map_size), q)
        else:
            transition = build_transition(config.transition, config.speeds, config.channels)
            products = {"repetition": 0, "norm-mlp": 2}.get(config.transition, 1)
            positions = config.map_size[0] * config.map_size[1] - 1
            multiply_adds = 2 * products * config.channels**2 * positions * config.paths
            propagation = Count(sum(p.numel() for p in transition.parameters()), multiply_adds)
    encoder = _wave_encoder(config) if config.is_waves else _encoder(config.encoder, config.image_size)[0]
    return {"encoder": encoder, "pooling": pooling, "propagation": propagation, "decoder": _count(decoder, z)[0]}


def _count(module: nn.Module, inputs: Tensor) -> tuple[Count, Tensor]:
    from torch.utils.flop_counter import FlopCounterMode

    module.eval().requires_grad_(False)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        out = module(inputs)
    return Count(sum(p.numel() for p in module.parameters()), counter.get_total_flops() // 2), out


@cache
def _encoder(name: str, image_size: tuple[int, int]) -> tuple[Count, Tensor]:
    with torch.device("meta"):
        return _count(build_encoder(name, image_size), torch.empty(1, 3, *image_size))


def _wave_encoder(config: ModelConfig) -> Count:
    """Count the wave encoder on the CPU, because its shapes depend on values of the spectrum."""
    from finola.encoders.waves import WaveEncoder

    encoder = WaveEncoder(config, config.encoder.partition("+")[2] or None)
    return _count(encoder, torch.empty(1, 3, *config.image_size).uniform_())[0]
