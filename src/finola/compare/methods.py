"""From a word to a peer: `dct:3`, `dwt:scale3`, `dtcwt:ll`, `klt64:256`, `jpeg:8`, `jpeg@0.2`, `vae:DIR`, a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from finola.baselines import Peer
from finola.config import nearest

Number = TypeVar("Number", int, float)
TRANSFORMS = ["dct:1", "dct:3", "dct:6", "dct:10", "dwt:ll", "dwt:scale3", "dwt:scale2"]
TRANSFORMS += ["dtcwt:ll", "dtcwt:scale3", "dtcwt:scale2"]
CODEC = [f"finola:{quality}" for quality in (10, 20, 30, 40, 55, 70)] + ["finola-paper:4"]
MODELS = ["waves/256x1@16:64", "waves/512x1@16:64", "waves/1024x1@16", "waves/3072x1@16"]


def build_peer(word: str, fitted: Mapping[int, Path] | None = None) -> Peer:
    """The peer that `word` names; `fitted` says where the KLT of each tile's side is kept.

    >>> build_peer("dct:3").name
    'dct:3'
    """
    from finola.baselines import dct, dwt, klt
    from finola.baselines import image_codecs as codecs
    from finola.baselines import learned as models
    from finola.zoo import bundled_names

    method, colon, setting = word.partition(":")
    method, at, rate = (method, "", "") if colon else word.partition("@")
    if method.startswith("klt"):
        side, components = _number(word, method[3:]), _number(word, setting)
        if side not in (fitted or {}):
            raise ValueError(
                f"{word} needs a KLT fitted to tiles of {side} pixels: name photos to fit it to (--train)."
            )
        return klt.klt_peer(klt.load_klt((fitted or {})[side], components), components)
    if method in ("finola", "finola-paper"):
        return models.codec_peer(word, _number(word, setting or rate, float), bool(at), method == "finola-paper")
    if method in codecs.FORMATS:
        if not codecs.FORMATS[method].available():
            raise ValueError(f"{word}: this Pillow cannot write {method} files.")
        if at:
            return codecs.file_at_rate(method, _number(word, rate, float))
        return codecs.file_at_quality(method, _number(word, setting, float))
    makers: dict[str, Callable[[str], Peer]] = {
        "dct": lambda kept: dct.dct(_number(word, kept)),
        "dwt": dwt.dwt_peer,
        "dtcwt": dwt.dtcwt_peer,
        "vae": models.vae_peer,
    }
    if method in makers:
        return makers[method](setting)
    if "/" not in word and not Path(word).exists() and word not in bundled_names():
        raise ValueError(f"No peer is called {word!r}: {nearest(method, [*makers, *codecs.FORMATS, 'klt64'])}")
    return models.model_peer(word)


def _number(word: str, text: str, kind: Callable[[str], Number] = int) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{word!r} wants a number where it says {text!r}, as in dct:3, klt64:256, jpeg:8.") from None


def file_ladder() -> list[str]:
    """Every format that is there, at every quality of its curve."""
    from finola.baselines.image_codecs import FORMATS

    return [f"{name}:{q:g}" for name, known in FORMATS.items() if known.available() for q in known.ladder] + CODEC


def files_at(bits_per_pixel: float) -> list[str]:
    """Every format that is there, at one rate."""
    from finola.baselines.image_codecs import FORMATS

    names = [*(name for name, known in FORMATS.items() if known.available()), "finola"]
    return [f"{name}@{bits_per_pixel:g}" for name in names]


def identity(word: str) -> str:
    """The word with what else its figures depend on: a library's version, a model's weights."""
    import PIL
    import torch

    from finola.baselines.image_codecs import FORMATS

    method = word.partition(":")[0].partition("@")[0]
    if method in FORMATS:
        return f"{word} Pillow {PIL.__version__}"
    if method.startswith("finola"):
        from finola.codec.calibration import load_codec
        from finola.config import DEFAULT_CODEC

        return f"{word} {DEFAULT_CODEC} {load_codec(DEFAULT_CODEC).hash.hex()}"
    if method in ("dct", "dwt", "dtcwt") or method.startswith("klt"):
        return word
    from finola.files import digest_of_weights
    from finola.zoo import load

    weights = digest_of_weights(load(word)) if method != "vae" else _folder_digest(Path(word.partition(":")[2]))
    return f"{word} {weights} torch {torch.__version__}"


def _folder_digest(folder: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for file in sorted(folder.expanduser().glob("*")):
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:12]
