"""Methods by name: `dct:3`, `dwt:scale3`, `dtcwt:ll`, `klt64:256`, `jpeg:8`, `jpeg@0.2`, `vae:DIR`, or a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from finola.baselines import Method
from finola.config import nearest
from finola.errors import InputError, UnknownNameError

Number = TypeVar("Number", int, float)
TRANSFORMS = ["dct:1", "dct:3", "dct:6", "dct:10", "dwt:ll", "dwt:scale3", "dwt:scale2"]
TRANSFORMS += ["dtcwt:ll", "dtcwt:scale3", "dtcwt:scale2"]
CODEC = [f"finola:{quality}" for quality in (10, 20, 30, 40, 55, 70)] + ["finola-paper:4"]
MODELS = ["waves/256x1@16:64", "waves/512x1@16:64", "waves/1024x1@16", "waves/3072x1@16"]


def build_method(word: str, fitted: Mapping[int, Path] | None = None) -> Method:
    """Build the method that `word` names. `fitted` maps the tile side of a KLT to the file of the fitted KLT.

    >>> build_method("dct:3").name
    'dct:3'
    """
    from finola.baselines import dct, dwt, klt
    from finola.baselines import image_codecs as codecs
    from finola.baselines import learned as models
    from finola.hub import UNTRAINED, local_folder

    method, colon, setting = word.partition(":")
    method, at, rate = (method, "", "") if colon else word.partition("@")
    if method.startswith("klt"):
        side, components = _number(word, method[3:]), _number(word, setting)
        if side not in (fitted or {}):
            raise InputError(
                f"{word} requires a KLT fitted to tiles of {side} pixels: give photos to fit it to (--train)."
            )
        return klt.klt_method(klt.load_klt((fitted or {})[side], components), components)
    if method == "finola-paper" and word != "finola-paper:4":
        raise InputError(
            f"Unknown method {word!r}: the fixed-length mode has four bits per latent; use finola-paper:4."
        )
    if method in ("finola", "finola-paper"):
        return models.codec_method(word, _number(word, setting or rate, float), bool(at), method == "finola-paper")
    if method in codecs.FORMATS:
        if not codecs.FORMATS[method].available():
            raise InputError(f"{word}: the installed Pillow cannot write {method} files; choose another format.")
        if at:
            return codecs.file_at_rate(method, _number(word, rate, float))
        return codecs.file_at_quality(method, _number(word, setting, float))
    factories: dict[str, Callable[[str], Method]] = {
        "dct": lambda count: dct.dct(_number(word, count)),
        "dwt": dwt.dwt_method,
        "dtcwt": dwt.dtcwt_method,
        "vae": models.vae_method,
    }
    if method in factories:
        return factories[method](setting)
    if "/" not in word and local_folder(word) is None and word not in UNTRAINED:
        raise UnknownNameError(f"Unknown method {word!r}: {nearest(method, [*factories, *codecs.FORMATS, 'klt64'])}")
    return models.model_method(word)


def _number(word: str, text: str, kind: Callable[[str], Number] = int) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise InputError(
            f"{text!r} in {word!r} is not a number; write for example dct:3, klt64:256 or jpeg:8."
        ) from None


def file_ladder() -> list[str]:
    """Names of every available file format at every quality of its rate–distortion curve."""
    from finola.baselines.image_codecs import FORMATS

    return [f"{name}:{q:g}" for name, known in FORMATS.items() if known.available() for q in known.ladder] + CODEC


def files_at(bits_per_pixel: float) -> list[str]:
    """Names of every available file format at one rate."""
    from finola.baselines.image_codecs import FORMATS

    names = [*(name for name, known in FORMATS.items() if known.available()), "finola"]
    return [f"{name}@{bits_per_pixel:g}" for name in names]


def identity(word: str) -> str:
    """Cache key of a method: its name and what else its metrics depend on, such as library versions and weights."""
    import PIL
    import torch

    from finola.baselines.image_codecs import FORMATS

    method = word.partition(":")[0].partition("@")[0]
    if method in FORMATS:
        return f"{word} Pillow {PIL.__version__}"
    if method.startswith("finola"):
        from finola.codec.calibration import load_codec
        from finola.codec.codec import default_codec

        name = default_codec("paper" if method == "finola-paper" else "coded")
        return f"{word} {name} {load_codec(name).hash.hex()}"
    if method in ("dct", "dwt", "dtcwt") or method.startswith("klt"):
        return word
    from finola.files import digest_of_weights
    from finola.model_zoo import load

    weights = digest_of_weights(load(word)) if method != "vae" else _folder_digest(Path(word.partition(":")[2]))
    return f"{word} {weights} torch {torch.__version__}"


def _folder_digest(folder: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for file in sorted(folder.expanduser().glob("*")):
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:12]
