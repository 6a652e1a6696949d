"""Methods by name: `dct:3`, `dwt:scale3`, `dtcwt:ll`, `klt64:256`, `jpeg:8`, `jpeg@0.2`, `vae:DIR`, or a model.

`tile32@4096` is an elastic model with a budget per 256×256 pixels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from finola.baselines import Method
from finola.config import DEFAULT_CODEC, PLAIN_CODEC, nearest
from finola.errors import InputError, UnknownNameError
from finola.locations import user_path

if TYPE_CHECKING:
    import torch

Number = TypeVar("Number", int, float)
TRANSFORMS = ["dct:1", "dct:3", "dct:6", "dct:10", "dwt:ll", "dwt:scale3", "dwt:scale2"]
TRANSFORMS += ["dtcwt:ll", "dtcwt:scale3", "dtcwt:scale2"]
CODEC = [f"finola:{quality}" for quality in (10, 20, 30, 40, 55, 70)] + ["finola-paper:4"]
MODELS = ["waves/256x1@16:64", "waves/512x1@16:64", "waves/1024x1@16", "waves/3072x1@16"]


def build_method(word: str, fitted: Mapping[int, Path] | None = None, device: str | torch.device = "cpu") -> Method:
    """Build the method that `word` names. `fitted` maps the tile side of a KLT to the file of the fitted KLT.

    Models and the codec run on `device`, all other methods on the CPU.

    >>> build_method("dct:3").name
    'dct:3'
    """
    from finola.baselines import dct, dwt, klt, learned
    from finola.baselines import image_codecs as codecs
    from finola.hub import UNTRAINED, local_folder

    method, colon, setting = word.partition(":")
    method, at, rate = (method, "", "") if colon else word.partition("@")
    if is_klt(word):
        side, components = _klt_side(word), int(setting)
        if side not in (fitted or {}):
            raise InputError(
                f"{word} requires a KLT fitted to tiles of {side} pixels: give photos to fit it to (--train)."
            )
        return klt.klt_method(klt.load_klt((fitted or {})[side], components), components)
    if method == "finola-paper":
        return learned.plain_method(word, plain_codec(word), device)
    if method == "finola":
        return learned.codec_method(word, _number(word, setting or rate, float), bool(at), device)
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
        "vae": lambda folder: learned.vae_method(folder, device),
    }
    if method in factories:
        return factories[method](setting)
    name, budget = split_budget(word)
    if "/" not in name and local_folder(name) is None and name not in UNTRAINED:
        raise UnknownNameError(f"Unknown method {word!r}: {nearest(method, [*factories, *codecs.FORMATS, 'klt64'])}")
    return learned.model_method(name, device, budget)


def split_budget(word: str) -> tuple[str, int | None]:
    """Name of a model and its budget per 256×256 pixels. The one-line names of models contain `@` as well.

    >>> split_budget("tile32@4096"), split_budget("waves/64x1@8:32")
    (('tile32', 4096), ('waves/64x1@8:32', None))
    """
    name, _, number = word.rpartition("@")
    if not number.isdigit() or re.search(r"/\d+x\d+$", name):
        return word, None
    return name, int(number)


def plain_codec(word: str) -> str:
    """Codec of a method with four bits per latent: `finola-paper:4` has the default one, `finola-paper:NAME` another.

    >>> plain_codec("finola-paper:photo256")
    'photo256'
    """
    setting = word.partition(":")[2]
    if setting == "4":
        return PLAIN_CODEC
    if not setting or setting.isdigit():
        raise InputError(
            f"Unknown method {word!r}: the fixed-length mode has four bits per latent; use finola-paper:4, or the name "
            "or folder of a codec as in finola-paper:photo256."
        )
    return setting


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


def runs_model(word: str) -> bool:
    """Whether a method runs a model: a model by name, a VAE or the codec.

    >>> runs_model("finola@0.2"), runs_model("waves512"), runs_model("jpeg:8"), runs_model("klt64:256")
    (True, True, False, False)
    """
    from finola.baselines.image_codecs import FORMATS

    return not (is_klt(word) or _kind(word) in (*FORMATS, "dct", "dwt", "dtcwt"))


def is_klt(word: str) -> bool:
    """Whether a method is a KLT, which `fitted` of `build_method` holds.

    >>> is_klt("klt64:256"), is_klt("klt-models/mine")
    (True, False)
    """
    return re.fullmatch(r"klt\d+:\d+", word) is not None


def _klt_side(word: str) -> int:
    return int(_kind(word).removeprefix("klt"))


def _kind(word: str) -> str:
    return word.partition(":")[0].partition("@")[0]


def identity(word: str, device: str | torch.device = "cpu", fitted: Mapping[int, Path] | None = None) -> str:
    """Cache key of a method: its name and what else its metrics depend on, such as library versions and weights.

    `fitted` is that of `build_method`.
    """
    import PIL
    import torch

    from finola.baselines.image_codecs import FORMATS

    method = _kind(word)
    if method in FORMATS:
        settings = FORMATS[method].settings(FORMATS[method].ladder[0])
        return f"{word} Pillow {PIL.__version__} {settings}"
    if is_klt(word):
        return f"{word} {(fitted or {})[_klt_side(word)].name}"
    if not runs_model(word):
        return word
    place = torch.device(device).type
    suffix = "" if place == "cpu" else f" {place}"
    if method in ("finola", "finola-paper"):
        from finola.codec.calibration import load_codec

        name = plain_codec(word) if method == "finola-paper" else DEFAULT_CODEC
        return f"{word} {name} {load_codec(name).hash.hex()}{suffix}"
    from finola.files import digest_of_weights
    from finola.model_zoo import load

    if method == "vae":
        weights = _folder_digest(Path(word.partition(":")[2]))
    else:
        weights = digest_of_weights(load(split_budget(word)[0]))
    return f"{word} {weights} torch {torch.__version__}{suffix}"


def _folder_digest(folder: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    for file in sorted(user_path(folder).glob("*")):
        digest.update(f"{file.name} {file.stat().st_size} {file.stat().st_mtime_ns}".encode())
    return digest.hexdigest()[:12]
